"""States that are spread over other numbers of shards and partitions, and go on as if nothing had happened."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.checkpoints.archives import HERE, extract
from tests.cli.test_commands import watersmeet

import watersmeet as ws
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.state import rescale as rescaling
from watersmeet.spark.state.owner import lock_storage
from watersmeet.spark.state.rescale import Parallelism, rescale

pytestmark = pytest.mark.spark

STREAM = "(k STRING, t BIGINT, WATERMARK FOR t AS t - 3) USING json OPTIONS (path '{}/{}', maxFilesPerTrigger '1')"
TEXT = """
{shards}
CREATE STREAM a {a};
CREATE STREAM b {b};
CREATE STREAM c {c};
CREATE SINK chain USING json OPTIONS (path '{folder}/{out}/chain');
INSERT INTO chain
SELECT STREAM a.k, a.t, b.t AS bt, c.t AS ct FROM a
LEFT JOIN b ON a.k = b.k AND b.t BETWEEN a.t - 4 AND a.t + 4
FULL JOIN c ON a.k = c.k AND c.t BETWEEN a.t - 4 AND a.t + 4;
"""


SKEWED = TEXT.replace("FULL JOIN", "LEFT JOIN").replace("SELECT", "SELECT /*+ SKEW('a', 'k', ('k1', 'k2', 'k9')) */")


def run(spark: SparkSession, folder: Path, out: str, shards: int | None = None, text: str = TEXT) -> None:
    streams = {name: STREAM.format(folder, name) for name in "abc"}
    said = "" if shards is None else f"SET watersmeet.shards = {shards};"
    script = read_script(text.format(folder=folder, out=out, shards=said, **streams))
    run_script(script, spark=spark, storage=folder / f"storage-{out}", trigger="available_now")


def arrive(folder: Path, batch: int) -> None:
    for stream, apart in (("a", 7), ("b", 5), ("c", 6)):
        (folder / stream).mkdir(exist_ok=True)
        rows = [{"k": f"k{i % apart}", "t": batch * 10 + i} for i in range(20)]
        (folder / stream / f"{batch}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def written(folder: Path, out: str) -> Counter[Any]:
    files = [file for file in (folder / out).rglob("*.json") if not file.name.startswith((".", "_"))]
    return Counter(line for file in files for line in file.read_text().splitlines())


def broken(*told: object) -> None:
    raise OSError("no space left")


def refused(spark: SparkSession, checkpoint: Path, now: Parallelism) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        rescale(spark, checkpoint, checkpoint.name, now)
    return raised.value.refusals[0]


def test_joins_that_are_chained_give_the_same_in_other_numbers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "storage-moved"
    chain = storage / "checkpoints" / "chain"
    arrive(tmp_path, 0)
    run(spark, tmp_path, "moved")
    with monkeypatch.context() as patched:
        patched.setattr(rescaling, "renumber", broken)
        with pytest.raises(WatersmeetError, match=r"rescaled: no space left\. Nothing was changed"):
            rescale(spark, chain, "chain", Parallelism(3, 1))
    told = watersmeet("state", "rescale", storage, "--shards", "5", "--partitions", "1", "--format", "json")
    was, now = {"shards": 2, "partitions": 2}, {"shards": 5, "partitions": 1}
    assert json.loads(told.stdout) == [{"query": "chain", "was": was, "now": now}]
    again = watersmeet("state", "rescale", storage, "--query", "chain", "--shards", "5")
    assert again.stdout == "chain: 5 shards on 1 partition, as before.\n"
    assert ws.state(chain, spark).problems.count() == 0
    # As a kill between the two names leaves it.
    chain.rename(chain.with_name(".before-chain"))
    arrive(tmp_path, 1)
    run(spark, tmp_path, "moved")
    run(spark, tmp_path, "straight")
    assert written(tmp_path, "moved") == written(tmp_path, "straight")
    assert len(written(tmp_path, "moved")) > 20
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, "moved", shards=4)
    assert "watersmeet state rescale --shards 4" in raised.value.refusals[0].hint
    assert [file.name for file in (storage / "checkpoints").iterdir()] == ["chain"]


def test_skewed_keys_give_the_same_in_other_numbers(spark: SparkSession, tmp_path: Path) -> None:
    chain = tmp_path / "storage-moved" / "checkpoints" / "chain"
    arrive(tmp_path, 0)
    run(spark, tmp_path, "moved", text=SKEWED)
    stored = ws.state(chain, spark).rows("b").groupBy("k", "t").count().collect()
    copies = {row["k"]: row["count"] for row in stored}
    assert (copies["k1"], copies["k3"]) == (2, 1), "each of two shards has rows of a skewed key"
    rescale(spark, chain, "chain", Parallelism(3, 2))
    assert ws.state(chain, spark).problems.count() == 0
    arrive(tmp_path, 1)
    run(spark, tmp_path, "moved", text=SKEWED)
    run(spark, tmp_path, "straight", text=TEXT.replace("FULL JOIN", "LEFT JOIN"))
    assert written(tmp_path, "moved") == written(tmp_path, "straight")
    assert len(written(tmp_path, "moved")) > 20
    with pytest.raises(WatersmeetError, match="skewed keys") as raised:
        run(spark, tmp_path, "moved", text=TEXT.replace("FULL JOIN", "LEFT JOIN"))
    assert raised.value.refusals[0].condition == "CHECKPOINT_TO_REBUILD"


def joined(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    read = spark.readStream.schema("k STRING, t BIGINT").option("maxFilesPerTrigger", "1")
    sides = [read.json(str(folder / name)) for name in "ab"]
    return ws.join(
        *sides, on="left.k = right.k", within=5, how="full", left_time="t", right_time="t", left_lag=3, right_lag=3,
        shards=shards,
    )  # fmt: skip


def test_a_query_of_a_program_goes_on_into_its_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Into Spark's own files, which keep a log of their batches."""

    def start(out: str, shards: int) -> None:
        writer = joined(spark, tmp_path, shards).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{out}")).trigger(availableNow=True)
        writer.start(str(tmp_path / out)).awaitTermination()

    arrive(tmp_path, 0)
    start("moved", 2)
    checkpoint = tmp_path / "checkpoint-moved"
    told = watersmeet("state", "rescale", checkpoint, "--shards", "3", "--partitions", "4")
    assert told.stdout == "checkpoint-moved: 3 shards on 4 partitions, before: 2 shards on 2 partitions.\n"
    arrive(tmp_path, 1)
    with pytest.raises(WatersmeetError) as raised:
        start("moved", 2)
    assert "pass `shards=3` to the call" in raised.value.refusals[0].hint
    start("moved", 3)
    start("straight", 2)
    rows = [Counter(map(str, spark.read.parquet(str(tmp_path / out)).collect())) for out in ("moved", "straight")]
    assert rows[0] == rows[1] and sum(rows[0].values()) > 20


def test_states_in_use_damaged_or_unknown_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    project = extract(HERE / "format-2.tar.gz", tmp_path)
    storage = project / "storage"
    checkpoint = storage / "checkpoints" / "nested"
    found = refused(spark, checkpoint, Parallelism(5, 2))
    assert found.condition == "NOT_RESCALED" and "spread by all their columns" in found.message
    with lock_storage(storage, "shared"):
        said = watersmeet("state", "rescale", storage, "--query", "nested", "--partitions", "1")
    assert (said.exit_code, "[CHECKPOINT_IN_USE]" in said.stderr) == (4, True)
    assert watersmeet("state", "rescale", storage).exit_code == 2
    (checkpoint / "watersmeet.json").write_text('{"format": 99}')
    assert refused(spark, checkpoint, Parallelism(5, 2)).condition == "CHECKPOINT_OF_A_NEWER_VERSION"
    (checkpoint / "watersmeet.json").unlink()
    assert refused(spark, checkpoint, Parallelism(5, 2)).condition == "NO_CHECKPOINT"
    left = storage / "checkpoints" / "interval_left"
    before = {file: file.read_bytes() for file in left.rglob("*") if file.is_file()}
    for zipped in left.glob("state/0/*/1.zip"):
        zipped.write_bytes(b"torn")
    assert refused(spark, left, Parallelism(3, 3)).condition == "DAMAGED_CHECKPOINT"
    for file, data in before.items():
        file.write_bytes(data)
    rescale(spark, left, "interval_left", Parallelism(3, 3))
    assert ws.state(left, spark).problems.count() == 0
    assert not [file for file in left.parent.iterdir() if file.name.startswith(".")]
