"""The owner of a checkpoint is stored before the first batch is planned, whatever happens to that batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.cli.test_commands import watersmeet
from tests.spark.frames import run_all, streamed

import watersmeet as ws
from watersmeet.physical.chaining import ChainGroups
from watersmeet.physical.change import NamedIdentity
from watersmeet.spark.run import starts

pytestmark = pytest.mark.spark


def joined(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (streamed(folder / name, [rows]).withWatermark("t", "1 minute") for name in ("l", "r"))
    return ws.join(left, right, "left.id = right.id", within="1 hour")


def test_the_owner_is_written_before_the_first_batch_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    frame, checkpoint = joined(spark, tmp_path), tmp_path / "checkpoint"

    def fail(batch: DataFrame, number: int) -> None:
        raise ValueError("the sink failed")

    query = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint)).start()
    with pytest.raises(Exception, match="the sink failed"):
        query.awaitTermination(60)
    owner, planned = checkpoint / "watersmeet.json", checkpoint / "offsets" / "0"
    assert owner.stat().st_mtime_ns <= planned.stat().st_mtime_ns
    assert not (checkpoint / "commits" / "0").exists()
    assert sum(map(len, run_all(frame, checkpoint))) == 1


def test_a_start_that_died_before_its_first_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    frame, checkpoint = joined(spark, tmp_path), tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "watersmeet.json").write_text("")
    assert sum(map(len, run_all(frame, checkpoint))) == 1


def test_an_owner_that_a_killed_program_of_connect_did_not_write_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, checkpoint = joined(spark, tmp_path), tmp_path / "checkpoint"
    run_all(frame, checkpoint)
    owner = checkpoint / "watersmeet.json"
    text = owner.read_text()
    owner.unlink()
    # A program without a JVM writes it after the start, since only the server knows where the checkpoint is.
    monkeypatch.setattr(starts, "is_remote", lambda: True)
    run_all(frame, checkpoint)
    assert owner.read_text() == text


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_storage_that_cannot_be_reached_is_reported(spark: SparkSession, tmp_path: Path, command: str) -> None:
    shop = tmp_path / "shop"
    assert watersmeet("init", shop).exit_code == 0
    project = shop / "watersmeet.yml"
    project.write_text(re.sub(r"(?m)^storage: .*$", "storage: hdfs://127.0.0.1:1/shop", project.read_text()))
    ended = watersmeet(command, shop)
    shown = "[STORAGE_UNREACHABLE]" if command == "run" else "problem  storage"
    assert (ended.exit_code, shown in ended.output) == ({"run": 4, "doctor": 1}[command], True), ended.output
    assert "Connection refused" in ended.output


def test_chains_of_old_results_are_forgotten_and_their_queries_are_not() -> None:
    """They hold the frames that a query reads, so a program that builds chains all the time would grow."""

    def fail(chains: ChainGroups) -> DataFrame:
        raise AssertionError(chains)

    known = starts.KnownQueries()
    for number in range(starts.MOST_CHAINS + 2):
        known.add(str(number), NamedIdentity({}, {}))
        known.remember_chains(str(number), starts.OtherChains(None, fail))
    assert known.other_chains("0") is None
    assert known.other_chains("1") is not None
    assert known.find("0") is not None
