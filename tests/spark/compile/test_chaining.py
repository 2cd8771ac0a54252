"""Joins that run in one operator, as users meet them: the same rows, numbers and states as of each join by itself."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import stream_files

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.project import resolve_paths
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners
from watersmeet.spark.state.owner import OWNER

pytestmark = pytest.mark.spark

STREAM = "(k STRING, v INT, t BIGINT, WATERMARK FOR t AS t - 2) USING json OPTIONS (path '{0}')"
QUERY = f"""
{" ".join(f"CREATE STREAM {name} {STREAM.format(name)};" for name in "abc")}
CREATE SINK o USING json OPTIONS (path 'output');
CREATE SINK late USING json OPTIONS (path 'late');
INSERT INTO o
SELECT STREAM a.v AS av, b.v AS bv, c.v AS cv FROM a
LEFT JOIN b ON a.k = b.k AND b.t BETWEEN a.t - 3 AND a.t + 3
FULL JOIN c ON a.k = c.k AND c.t BETWEEN a.t - 3 AND a.t + 3
LATE INTO late;
"""
ROWS: tuple[dict[str, list[tuple[str | None, int, int]]], ...] = (
    {"a": [("x", 1, 10), ("y", 2, 10), (None, 3, 10)], "b": [("x", 11, 11), ("x", 12, 12)], "c": [("x", 21, 12)]},
    {
        "a": [("x", 4, 11), ("y", 5, 21), ("x", 7, 1)],
        "b": [("y", 13, 20), ("x", 14, 5)],
        "c": [("y", 22, 22), ("z", 23, 22), ("x", 25, 2)],
    },
    {"c": [("y", 26, 23)]},
)


def run(spark: SparkSession, project: Path, part: int, together: str) -> list[Progress]:
    """Let the query take in one more file of each stream."""
    for name, rows in ROWS[part].items():
        (project / name).mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"k": k, "v": v, "t": t}) for k, v, t in rows)
        (project / name / f"{part}.json").write_text("\n".join(lines))
    script = resolve_paths(read_script(f"SET watersmeet.together = {together}; {QUERY}"), project)
    found: list[Progress] = []
    run_script(
        script,
        spark=spark,
        storage=project / "storage",
        trigger="available_now",
        listeners=Listeners(on_progress=found.append),
    )
    return [progress for progress in found if progress.operators]


def sink_lines(folder: Path) -> Counter[str]:
    return Counter(line for file in folder.glob("*.json") for line in file.read_text().splitlines())


def test_rows_numbers_and_states_are_those_of_joins_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    first = {how: run(spark, tmp_path / how, 0, how) for how in ("on", "off")}
    # A checkpoint goes on as it was begun, whatever is said later.
    second = {how: run(spark, tmp_path / how, 1, "off" if how == "on" else "on") for how in ("on", "off")}
    for folder in ("output", "late"):
        assert sink_lines(tmp_path / "on" / folder) == sink_lines(tmp_path / "off" / folder)
        assert sum(sink_lines(tmp_path / "on" / folder).values()) > 2, folder
    same = ("kind", "events", "events_processed", "late", "matched", "padded", "state_rows", "shards")
    for mine, theirs in zip([*first["on"], *second["on"]], [*first["off"], *second["off"]], strict=True):
        assert mine.operators.keys() == theirs.operators.keys() == {"a and b", "a+b and c"}
        assert (mine.marks, mine.own, mine.late, mine.sources) == (
            theirs.marks,
            theirs.own,
            theirs.late,
            theirs.sources,
        )
        for name, numbers in mine.operators.items():
            assert [getattr(numbers, n) for n in same] == [getattr(theirs.operators[name], n) for n in same], name
    checkpoints = {how: tmp_path / how / "storage" / "checkpoints" / "o" for how in first}
    owners = {how: json.loads((folder / OWNER).read_text()) for how, folder in checkpoints.items()}
    assert [owner["queries"][0]["identity"].get("together") for owner in owners.values()] == [[[0, 1]], None]
    states = {how: ws.state(folder, spark) for how, folder in checkpoints.items()}
    assert [operator.spark_number for operator in states["on"].checkpoint.operators] == [0, 0]
    kept = {how: [(one.name, one.operator.name) for one in state.spines] for how, state in states.items()}
    assert kept["on"] == kept["off"]
    rows = [Counter(map(str, state.rows("a+b").collect())) for state in states.values()]
    assert rows[0] == rows[1] and rows[0]
    assert states["on"].problems.count() == 0


def test_a_join_that_a_batch_does_not_come_to_is_reported_too(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, 0, "on")
    batch = run(spark, tmp_path, 2, "on")[0]
    inner, outer = batch.operators["a and b"], batch.operators["a+b and c"]
    assert (inner.kind, inner.shards, [*inner.sides]) == ("interval", 0, ["left", "right"])
    assert (outer.kind, outer.shards, outer.sides["right"].rows) == ("interval", 2, 1)


def join_three(spark: SparkSession, folder: Path, together: str) -> DataFrame:
    """Three streams by two calls, the second of which gets the result of the first."""
    if together == "default":
        spark.conf.unset("watersmeet.operator_chaining")
    else:
        spark.conf.set("watersmeet.operator_chaining", together)
    given = {name: spark.createDataFrame(ROWS[0][name], "k STRING, v INT, t BIGINT") for name in "abc"}
    a, b, c = (stream_files(folder / name, [frame]) for name, frame in given.items())
    times: dict[str, Any] = {"left_time": "t", "right_time": "t", "left_lag": 2, "right_lag": 2}
    both = ws.join(a, b, on="left.k = right.k", within=3, how="left", **times)
    on = "left.left_k = right.k"
    return ws.join(both, c, on=on, within=3, left_time="left_t", right_time="t", right_lag=2)


def rows_of(session: SparkSession, folder: Path) -> Counter[tuple[int | None, ...]]:
    found = session.read.json(str(folder)).select("left_v", "right_v", "v")
    return Counter((row.left_v, row.right_v, row.v) for row in found.collect())


@pytest.mark.skipif(os.environ.get("WATERSMEET_CASES") != "all", reason="`make cases` runs it")
def test_calls_continue_with_the_chains_that_their_checkpoint_began_with(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()

    def start(result: DataFrame, folder: Path) -> None:
        writer = result.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
        writer.outputMode("append").trigger(availableNow=True).start(str(folder / "output")).awaitTermination()

    results = {}
    for begun, operators in (("default", 1), ("off", 2)):
        folder = tmp_path / begun
        result = join_three(session, folder, begun)
        assert (", in one operator: both have the same key" in str(ws.explain(result))) == (operators == 1)
        start(result, folder)
        assert rows_of(session, folder / "output") == {(1, 11, 21): 1, (1, 12, 21): 1}
        # Derived frames are replaced, too; the result itself need not be in use any more.
        derived = join_three(session, folder, "off" if begun == "default" else "default").where("left_v > 0")
        start(derived.select("v", "right_v", "left_v"), folder)
        assert len(list((folder / "checkpoint" / "state").iterdir())) == operators
        owner = json.loads((folder / "checkpoint" / OWNER).read_text())
        assert ("together" in owner["queries"][0]["identity"]) == (operators == 1)
        results[begun] = rows_of(session, folder / "output")
    assert results["default"] == results["off"]
    assert sum(results["off"].values()) > 2
    # Spark renumbers the columns of one of two equal frames, so the start does not find the result in it.
    twice = join_three(session, tmp_path / "default", "off")
    with pytest.raises(WatersmeetError, match="joins ran in one operator, now they would run each in") as refused:
        start(twice.select("v", "right_v", "left_v").join(twice.select("v"), "v"), tmp_path / "default")
    assert (
        refused.value.refusals[0].hint
        == 'before the call, write `spark.conf.set("watersmeet.operator_chaining", "on")`.'
    )
    with pytest.raises(WatersmeetError, match="expected on or off"):
        join_three(session, tmp_path, "perhaps")
    session.conf.unset("watersmeet.operator_chaining")
