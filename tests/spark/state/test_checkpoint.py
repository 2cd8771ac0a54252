"""A checkpoint is continued where nothing of meaning changed, and refused at the start where something did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.frames import add_file, run_all, stream_files

import watersmeet as ws
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.state.format import FORMAT
from watersmeet.queries import read_script
from watersmeet.spark.private.files import HadoopStorage, LocalFolder
from watersmeet.spark.run.running import run_script

pytestmark = pytest.mark.spark

TEXT = """
CREATE STREAM l (id INT, t TIMESTAMP, v INT, WATERMARK FOR t AS t - INTERVAL 1 HOUR)
  USING json OPTIONS (path '{folder}/l');
CREATE STREAM r (id INT, t TIMESTAMP, w INT, WATERMARK FOR t AS t - INTERVAL 1 HOUR)
  USING json OPTIONS (path '{folder}/r');
CREATE SINK out USING json OPTIONS (path '{folder}/out');
INSERT INTO out SELECT STREAM a.id, a.v, b.w FROM l AS a LEFT JOIN r AS b ON a.id = b.id WITHIN 1 HOUR;
"""
REWORDED = """
CREATE STREAM l (v INT, t TIMESTAMP, id INTEGER, WATERMARK FOR t AS t - INTERVAL 60 MINUTES)
  USING json OPTIONS (path 'file:{folder}/l', maxFilesPerTrigger '5');
CREATE STREAM r (id INT, t TIMESTAMP, w INT, WATERMARK FOR t AS t - INTERVAL 1 HOUR)
  USING json OPTIONS (path '{folder}/r');
CREATE SINK out USING json OPTIONS (path '{folder}/out');
-- The same join in other words.
INSERT INTO out SELECT STREAM y.w AS right_w, x.v + 0 AS v, x.id AS id
FROM l AS x LEFT JOIN r AS y ON x.id = y.id WITHIN 60 MINUTES;
"""


def put(folder: Path, name: str, number: int, **row: object) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{number}.json").write_text(json.dumps({"t": "2024-01-01T12:00:00Z", **row}) + "\n")


def run(spark: SparkSession, text: str, folder: Path) -> None:
    script = read_script(text.format(folder=folder))
    run_script(script, spark=spark, storage=folder / "storage", trigger="available_now")


def refusal_of(call: Callable[[], object]) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        call()
    (found,) = raised.value.refusals
    return found


def test_a_script_in_other_words_continues(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "l", 1, id=1, v=10)
    put(tmp_path, "r", 1, id=2, w=20)
    run(spark, TEXT, tmp_path)
    put(tmp_path, "l", 2, id=2, v=11)
    put(tmp_path, "r", 2, id=1, w=21)
    put(tmp_path, "l", 3, id=3, v=12)
    # The end of input, declared under the names of before by a run that was killed.
    marks = tmp_path / "storage" / "marks" / "out" / "end-1.json"
    marks.parent.mkdir(parents=True)
    marks.write_text("".join(json.dumps({"column": f"{n}.t", "value": END_OF_INPUT}) + "\n" for n in (0, 1)))
    run(spark, REWORDED, tmp_path)
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    found = sorted((row["id"], row["v"], row.get("right_w")) for row in map(json.loads, lines))
    assert found == [(1, 10, 21), (2, 11, 20), (3, 12, None)]


OWNERS = {
    "": "WRONG_OWNER",
    '{"format": 1, "que': "WRONG_OWNER",
    '{"name": "another tool"}': "WRONG_OWNER",
    '{"query": "INNER JOIN", "shards": 2}': "CHECKPOINT_WITHOUT_FORMAT",
    f'{{"format": {FORMAT + 1}, "watersmeet": "8.0"}}': "CHECKPOINT_OF_A_NEWER_VERSION",
}


def test_a_join_is_refused_at_its_start_and_without_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t, 5 AS v")
    left, right = (stream_files(tmp_path / name, [rows]).withWatermark("t", "1 hour") for name in ("left", "right"))
    checkpoint = tmp_path / "checkpoint"

    def join(within: str = "1 hour", **options: object) -> DataFrame:
        return ws.join(left, right, "left.id = right.id", within=within, **options)  # pyright: ignore

    assert [len(batch) for batch in run_all(join(), checkpoint) if batch] == [1]
    # Whatever was done to the frame, and however the checkpoint is given.
    later = join(how="left").where("left_id > 0").selectExpr("left_id + 1 AS x").writeStream.format("noop")
    found = refusal_of(lambda: later.start(checkpointLocation=str(checkpoint)))
    assert found.condition == "CHECKPOINT_OF_ANOTHER_QUERY"
    assert found.label == "the join of `left` and `right` was `inner`, now it is `left`"
    assert "a new checkpointLocation" in found.hint
    fewer = join(shards=1).writeStream.options(checkpointLocation=f"file://{checkpoint}").format("noop")
    assert "`shards=2`" in refusal_of(fewer.start).hint
    assert "`shards=2`" in refusal_of(lambda: fewer.toTable("somewhere")).hint
    owner = checkpoint / "watersmeet.json"
    whole = owner.read_text()
    for text, condition in OWNERS.items():
        owner.write_text(text)
        found = refusal_of(lambda: run_all(join(), checkpoint))
        assert found.condition == condition
        assert str(checkpoint) in found.message
    owner.write_text(whole)
    add_file(tmp_path / "left", rows)
    assert [len(batch) for batch in run_all(join().select("right_v", "left_id"), checkpoint) if batch] == [1]


def test_two_joins_of_one_name_run_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    one, two, three = (stream_files(tmp_path / name, [rows]).withWatermark("t", "1 hour") for name in "abc")
    inner = ws.join(one, two, "left.id = right.id", within="1 hour").selectExpr("left_id AS id", "left_t AS t")
    outer = ws.join(inner, three, "left.id = right.id", within="1 hour", left_time="t", left_lag="1 hour")
    assert sum(len(batch) for batch in run_all(outer, tmp_path / "checkpoint")) == 1
    record = json.loads((tmp_path / "checkpoint" / "watersmeet.json").read_text())
    assert len(record["queries"]) == 2


class Starts(StreamingQueryListener):
    """Looks into a checkpoint when its query has started, which Spark tells before the query plans a batch."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.found: list[tuple[bool, bool]] = []

    def onQueryStarted(self, event: object) -> None:
        names = ("watersmeet.json", "offsets/0")
        self.found.append(cast("tuple[bool, bool]", tuple((self.checkpoint / name).is_file() for name in names)))

    def onQueryProgress(self, event: object) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: object) -> None:
        """Nothing to do."""


def test_a_start_that_is_killed_anywhere_leaves_a_checkpoint_that_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (stream_files(tmp_path / name, [rows]).withWatermark("t", "1 hour") for name in ("left", "right"))
    joined = ws.join(left, right, "left.id = right.id", within="1 hour")
    checkpoint = tmp_path / "checkpoint"
    owner = checkpoint / "watersmeet.json"

    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError("the process is gone")

    # Before Spark has started it.
    with pytest.raises(AnalysisException):
        joined.writeStream.format("noop").outputMode("complete").start(checkpointLocation=str(checkpoint))
    assert owner.is_file()
    # Between its start and its first batch.
    starts = Starts(checkpoint)
    spark.streams.addListener(starts)
    try:
        query = joined.writeStream.foreachBatch(fail).start(checkpointLocation=str(checkpoint))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    finally:
        spark.streams.removeListener(starts)
    assert starts.found == [(True, False)]
    # As an earlier version left it, that wrote it after the start.
    assert (checkpoint / "offsets" / "0").is_file()
    owner.unlink()
    assert [len(batch) for batch in run_all(joined, checkpoint) if batch] == [1]
    assert ws.state(checkpoint, spark).shards == 2


def test_a_record_that_replaces_another_is_never_gone(
    spark: SparkSession, other_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HadoopStorage(spark, "/checkpoint")
    other.make()
    here = LocalFolder(tmp_path / "checkpoint")
    here.make()
    for folder, place in ((other, other_files / "checkpoint"), (here, here.path)):
        folder.write("watersmeet.json", "one")
        folder.write("watersmeet.json", "two")
        assert folder.read("watersmeet.json") == "two"
        assert [file.name for file in place.iterdir() if file.suffix != ".crc"] == ["watersmeet.json"]

    def fail(*_: object) -> None:
        raise OSError("the process is gone")

    monkeypatch.setattr(other, "_replace", fail)
    monkeypatch.setattr(Path, "replace", fail)
    for folder in (other, here):
        with pytest.raises(OSError, match="gone"):
            folder.write("watersmeet.json", "three")
        assert folder.read("watersmeet.json") == "two"
