"""Joins that run in one operator, as users meet them: the same rows, numbers and states as of each join by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import add_file, streamed

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.observe.progress import Progress, progress_of
from watersmeet.spark.run.starts import reading_of

pytestmark = pytest.mark.spark

ROWS = {
    "a": [[("x", 1, 10), ("y", 2, 10), (None, 3, 10)], [("x", 4, 11), ("y", 5, 21)], [("w", 6, 40)]],
    "b": [[("x", 11, 11), ("x", 12, 12)], [("y", 13, 20), ("x", 14, 5)], [("v", 15, 40)]],
    "c": [[("x", 21, 12)], [("y", 22, 22), ("z", 23, 22)], [("v", 24, 41)]],
}


def frame(spark: SparkSession, rows: list[tuple[str | None, int, int]]) -> DataFrame:
    return spark.createDataFrame(rows, "k STRING, v INT, t BIGINT")


def chained(spark: SparkSession, folder: Path, together: str) -> DataFrame:
    """Three streams by two calls, the second of which gets the result of the first."""
    spark.conf.set("watersmeet.together", together)
    a, b, c = (streamed(folder / name, [frame(spark, ROWS[name][0])]) for name in "abc")
    times: dict[str, Any] = {"left_time": "t", "right_time": "t", "left_lag": 2, "right_lag": 2}
    both = ws.join(a, b, on="left.k = right.k", within=3, how="left", **times)
    on = "left.left_k = right.k"
    return ws.join(both, c, on=on, within=3, how="full", left_time="left_t", right_time="t", right_lag=2)


def run(result: DataFrame, folder: Path) -> list[tuple[Counter[str], Progress]]:
    """What is there, batch by batch: rows, and progress."""
    found: list[Counter[str]] = []

    def keep(rows: DataFrame, number: int) -> None:
        found.append(Counter(repr(tuple(row)) for row in rows.collect()))

    writer = result.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    reported = [p for p in query.recentProgress if p["observedMetrics"]]
    told = [progress_of("chain", p, reading_of(p["observedMetrics"])) for p in reported]
    return list(zip(found, told, strict=True))


def test_rows_numbers_and_states_are_those_of_joins_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    given: dict[str, list[tuple[Counter[str], Progress]]] = {}
    for together in ("off", "on"):
        folder = tmp_path / together
        found = run(chained(session, folder, together), folder)
        for more in (1, 2):
            for name in "abc":
                add_file(folder / name, frame(session, ROWS[name][more]))
        given[together] = found + run(chained(session, folder, together), folder)
    apart, one = given["off"], given["on"]
    assert [rows for rows, _ in one] == [rows for rows, _ in apart]
    assert sum(len(rows) for rows, _ in one) > 4
    for (_, mine), (_, theirs) in zip(one, apart, strict=True):
        assert mine.operators.keys() == theirs.operators.keys()
        assert len(mine.operators) == 2
        assert (mine.marks, mine.own, mine.late, mine.rows_in) == (
            theirs.marks,
            theirs.own,
            theirs.late,
            theirs.rows_in,
        )
        for name, numbers in mine.operators.items():
            same = ("kind", "events", "events_processed", "late", "matched", "padded", "state_rows", "shards")
            assert [getattr(numbers, n) for n in same] == [getattr(theirs.operators[name], n) for n in same], name
    states = {together: ws.state(tmp_path / together / "checkpoint", session) for together in given}
    assert [o.spark_number for o in states["on"].checkpoint.operators] == [0, 0]
    assert [(k.name, k.operator.name) for k in states["on"].kept] == [
        (k.name, k.operator.name) for k in states["off"].kept
    ]
    last = states["off"].kept[-1]
    rows = [Counter(map(str, state.rows(last.name, last.operator.number).collect())) for state in states.values()]
    assert rows[0] == rows[1] and rows[0]
    assert states["on"].problems.count() == 0
    with pytest.raises(WatersmeetError, match="joins ran in one operator") as refused:
        run(chained(session, tmp_path / "on", "off"), tmp_path / "on")
    assert refused.value.refusals[0].hint == 'before the call, write `spark.conf.set("watersmeet.together", "on")`.'
    assert ", in one operator: it has the same key" in str(ws.explain(chained(session, tmp_path / "on", "on")))
