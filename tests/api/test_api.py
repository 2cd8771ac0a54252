"""`ws.join`, `ws.sql` and `ws.explain` on DataFrames: batches give the complete answer, streams the same in time."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.frames import add_file, all_rows, end_of_input, rows_of, run_all, stream_files

import watersmeet as ws

pytestmark = pytest.mark.spark

LEFT = "id INT, day STRING, t TIMESTAMP, a INT"
RIGHT = "id INT, day STRING, t TIMESTAMP, b INT"


def rows(spark: SparkSession, schema: str, *values: tuple[int | None, int | None, int]) -> DataFrame:
    """Rows of (id, minute, value); the day is that of the minute, the time is past noon by it."""
    named = "id, minute, v"
    if not values:
        return spark.createDataFrame([], schema)
    listed = ", ".join("(" + ", ".join("NULL" if v is None else str(v) for v in row) + ")" for row in values)
    moment = "TIMESTAMP'2024-01-01 12:00:00Z' + make_dt_interval(0, 0, minute)"
    select = f"SELECT INT(id), 'd' || INT(minute / 60) AS day, {moment} AS t, INT(v) AS {schema[-5]}"
    return spark.sql(f"{select} FROM VALUES {listed} AS r({named})")


def own_join(left: DataFrame, right: DataFrame, how: str, *, extra: str = "true") -> DataFrame:
    """Spark's own batch join within 10 minutes."""
    bound = "right.t BETWEEN left.t - INTERVAL 10 MINUTES AND left.t + INTERVAL 10 MINUTES"
    return left.alias("left").join(right.alias("right"), F.expr(f"left.id = right.id AND {bound} AND {extra}"), how)


def both(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left = rows(spark, LEFT, (1, 0, 10), (1, 20, 11), (2, 1, 12), (3, 2, 13), (None, 3, 14), (4, 59, 15), (4, None, 16))
    right = rows(spark, RIGHT, (1, 10, 20), (1, 9, 21), (2, 30, 22), (5, 3, 23), (None, 3, 24), (4, 61, 25))
    return left, right


ON = "left.id = right.id"
TIMES: dict[str, Any] = {"left_time": "t", "right_time": "t"}

SPELLINGS = (
    "inner",
    "left",
    "leftouter",
    "left_outer",
    "RIGHT",
    "right_outer",
    "rightouter",
    "full",
    "outer",
    "fullouter",
    "Full_Outer",
)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_batches_give_the_complete_answer(spark: SparkSession, how: str) -> None:
    left, right = both(spark)
    assert rows_of(ws.join(left, right, ON, within="10 minutes", how=how, **TIMES)) == rows_of(
        own_join(left, right, how)
    )


@pytest.mark.parametrize("how", SPELLINGS)
def test_kinds_are_spelled_as_in_spark(spark: SparkSession, how: str) -> None:
    left, right = both(spark)
    shown = ws.explain(left, right, ON, within="10 minutes", how=how, **TIMES)
    kind = "INNER" if how == "inner" else how.lower().replace("outer", "").strip("_").upper() or "FULL"
    assert f"{kind} JOIN" in shown
    padded = [f.nullable for f in ws.join(left, right, ON, within="10 minutes", how=how, **TIMES).schema]
    assert len(padded) == 8


def test_names_of_common_columns_stand_for_equality(spark: SparkSession) -> None:
    left, right = both(spark)
    joined = ws.join(left, right, "id", within="10 minutes", how="full", **TIMES)
    expected = own_join(left, right, "full").selectExpr(
        "coalesce(left.id, right.id)", "left.day", "left.t", "a", "right.day", "right.t", "b"
    )
    assert joined.columns == ["id", "left_day", "left_t", "a", "right_day", "right_t", "b"]
    assert rows_of(joined) == rows_of(expected)

    joined = ws.join(left, right, ["id", "day"], within="10 minutes", how="left", **TIMES)
    expected = own_join(left, right, "left", extra="left.day = right.day").selectExpr(
        "left.id", "left.day", "left.t", "a", "right.t", "b"
    )
    assert joined.columns == ["id", "day", "left_t", "a", "right_t", "b"]
    assert rows_of(joined) == rows_of(expected)


@pytest.mark.parametrize("how", ["left", "full"])
@pytest.mark.parametrize("empty", ["left", "right", "both"])
def test_an_empty_side_meets_nothing(spark: SparkSession, empty: str, how: str) -> None:
    left, right = both(spark)
    left = left if empty == "right" else rows(spark, LEFT)
    right = right if empty == "left" else rows(spark, RIGHT)
    assert rows_of(ws.join(left, right, ON, within="10 minutes", how=how, **TIMES)) == rows_of(
        own_join(left, right, how)
    )


def test_one_row_on_each_side(spark: SparkSession) -> None:
    left, right = rows(spark, LEFT, (1, 0, 10)), rows(spark, RIGHT, (1, 10, 20))
    assert ws.join(left, right, ON, within="10 minutes", **TIMES).count() == 1
    assert ws.join(left, right, ON, within="599 seconds", **TIMES).count() == 0


@pytest.mark.parametrize(("keys", "size", "within"), [(1, 600, "20 seconds"), (20_000, 100_000, "10 minutes")])
def test_one_key_or_many_give_what_spark_gives(spark: SparkSession, keys: int, size: int, within: str) -> None:
    moment = "timestamp_seconds(1700000000 + pmod(xxhash64(id, {seed}), 3600)) AS t"
    left, right = (
        spark.range(size).selectExpr(f"pmod(xxhash64(id), {keys}) AS k", moment.format(seed=seed), "id AS n")
        for seed in (1, 2)
    )
    joined = ws.join(left, right, "left.k = right.k", within=within, how="full", **TIMES)
    bound = f"right.t BETWEEN left.t - INTERVAL {within} AND left.t + INTERVAL {within}"
    own = left.alias("left").join(right.alias("right"), F.expr(f"left.k = right.k AND {bound}"), "full")
    sums = "count(*)", "count(left_n)", "count(right_n)", "sum(xxhash64(left_n, left_t, right_n, right_t) % 1000000007)"
    names = ["left_k", "left_t", "left_n", "right_k", "right_t", "right_n"]
    assert joined.columns == names
    found = joined.selectExpr(*sums).first()
    assert found == own.toDF(*names).selectExpr(*sums).first()
    assert found is not None and found[0] > size


def test_streams_with_spark_watermarks_give_the_answer_of_batches(spark: SparkSession, tmp_path: Path) -> None:
    left, right = both(spark)
    lefts = stream_files(tmp_path / "l", [left.where("a < 13"), left.where("a >= 13")]).withWatermark("t", "3 hours")
    rights = stream_files(tmp_path / "r", [right]).withWatermark("t", "3 hours")
    old_name: dict[str, Any] = {"marks": end_of_input(spark, tmp_path / "m", batch=1)}
    with pytest.warns(DeprecationWarning, match=r"`join\(marks=\)` is deprecated: use `join\(watermarks=\)`") as caught:
        joined = ws.join(lefts, rights, ON, within="10 minutes", how="full", **old_name)
    assert caught[0].filename == __file__, "the line of the caller"
    assert all_rows(joined, tmp_path / "checkpoint") == rows_of(own_join(left, right, "full"))


def test_old_values_of_arguments_work_and_warn(spark: SparkSession) -> None:
    left, right = both(spark)
    with pytest.warns(
        DeprecationWarning, match=r'`join\(late="kept"\)` is deprecated: use `join\(late="side_output"\)`'
    ):
        joined = ws.join(left, right, ON, within="10 minutes", late="kept", **TIMES)
    assert joined.columns[-1] == "_late"
    windows: dict[str, Any] = {"left_window": "COUNT 2", "right_window": "COUNT 0"}
    with pytest.warns(DeprecationWarning, match='use `window_join\\(unmatched="side_output"\\)`'):
        joined = ws.window_join(left, right, ON, how="full", unmatched="apart", **windows)
    assert joined.columns[-2:] == ["_unmatched_left", "_unmatched_right"]


def test_unmatched_rows_come_with_the_watermark_that_expires_them(spark: SparkSession, tmp_path: Path) -> None:
    lefts = stream_files(
        tmp_path / "l",
        [rows(spark, LEFT, (1, 0, 10), (2, 5, 11)), rows(spark, LEFT, (3, 40, 12)), rows(spark, LEFT, (3, 41, 13))],
    )
    rights = stream_files(
        tmp_path / "r",
        [rows(spark, RIGHT, (2, 6, 20)), rows(spark, RIGHT, (9, 12, 21)), rows(spark, RIGHT, (9, 17, 22))],
    )
    joined = ws.join(
        lefts, rights, ON, within="10 minutes", how="left",
        left_time="t", left_lag="1 minute", right_time="t", right_lag="2 minutes",
    ).select("a", "b")  # fmt: skip
    found = run_all(joined, tmp_path / "checkpoint")
    # The mark of the right is 4, then 10, then 15 minutes. The row of minute 0 lives to minute 10 and may still be met
    # at 10.
    assert [[tuple(row) for row in batch] for batch in found] == [[(11, 20)], [], [(10, None)]]

    add_file(tmp_path / "r", rows(spark, RIGHT, (3, 53, 23)))
    add_file(tmp_path / "r", rows(spark, RIGHT, (1, 3, 24), (3, 51, 25)))
    found = run_all(joined, tmp_path / "checkpoint")
    assert [[tuple(row) for row in batch] for batch in found] == [[(12, None)], [(13, 25)]], (
        "the row of minute 3 is late"
    )


SQL = """
SELECT STREAM l.id AS id, upper(l.day) AS day, r.b + 1 AS next, concat_ws('-', l.a, r.b) AS both
FROM l LEFT JOIN r WITHIN 10 MINUTES ON l.id = r.id
WHERE l.a < 100 AND l.day <> 'd9'
"""


def test_sql_over_frames(spark: SparkSession, tmp_path: Path) -> None:
    left, right = both(spark)
    own = (
        own_join(left, right, "left")
        .where("left.day <> 'd9'")
        .selectExpr("left.id", "upper(left.day)", "b + 1", "concat_ws('-', a, b)")
    )
    found = ws.sql(SQL, l=left.withWatermark("t", "1 hour"), r=right.withWatermark("t", "1 hour"))
    assert found.columns == ["id", "day", "next", "both"]
    assert rows_of(found) == rows_of(own)

    streams = {"l": stream_files(tmp_path / "l", [left]), "r": stream_files(tmp_path / "r", [right])}
    timed: dict[str, Any] = {name: stream.withWatermark("t", "1 hour") for name, stream in streams.items()}
    found = ws.sql(SQL, watermarks=end_of_input(spark, tmp_path / "m", "l.t", "r.t"), **timed)
    assert all_rows(found, tmp_path / "checkpoint") == rows_of(own)


@pytest.mark.parametrize(
    "where", ["o.a > 11", "d.b IS NULL", "d.b > 20 OR o.a = 12", "o.a > 10 AND d.b < 22", "o.a + d.b > 31"]
)
def test_filters_apply_to_the_result_of_a_join(spark: SparkSession, where: str) -> None:
    left, right = both(spark)
    text = (
        f"SELECT STREAM o.a, d.b FROM orders o FULL JOIN deliveries AS d WITHIN 10 MINUTES ON o.id = d.id WHERE {where}"
    )
    frames: dict[str, Any] = {
        "orders": left.withWatermark("t", "0 seconds"),
        "deliveries": right.withWatermark("t", "0 seconds"),
    }
    own = own_join(left, right, "full").select("a", "b").where(where.replace("o.", "").replace("d.", ""))
    assert rows_of(ws.sql(text, **frames)) == rows_of(own)


def test_rows_that_where_drops_still_move_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    lefts = stream_files(tmp_path / "l", [rows(spark, LEFT, (1, 0, 10)), rows(spark, LEFT, (1, 60, 999))])
    rights = stream_files(tmp_path / "r", [rows(spark, RIGHT, (2, 0, 20)), rows(spark, RIGHT, (1, 60, 999))])
    joined = ws.sql(
        "SELECT STREAM l.a, r.b FROM l FULL JOIN r WITHIN 10m ON l.id = r.id AND r.b < 100"
        " WHERE l.a < 100 OR l.a IS NULL",
        l=lefts.withWatermark("t", "0 seconds"), r=rights.withWatermark("t", "0 seconds"),
    )  # fmt: skip
    found = run_all(joined, tmp_path / "checkpoint")
    assert [sorted(map(str, map(tuple, batch))) for batch in found[:2]] == [
        [],
        ["(10, None)", "(None, 20)", "(None, 999)"],
    ]

    joined = ws.sql(
        "SELECT STREAM l.a, r.b FROM l LEFT JOIN r WITHIN 10m ON l.id = r.id AND r.b < 100 WHERE l.a < 100",
        l=lefts.withWatermark("t", "0 seconds"), r=rights.withWatermark("t", "0 seconds"),
    )  # fmt: skip
    assert [[tuple(row) for row in batch] for batch in run_all(joined, tmp_path / "second")[:2]] == [[], [(10, None)]]


def test_explain_tells_how_a_call_would_run(spark: SparkSession) -> None:
    left, right = both(spark)
    shown = ws.explain(left, right, ON, within="10 minutes", how="left", left_lag="1 minute", **TIMES)
    for part in ("LEFT JOIN", "left.id = right.id", "10 min", "interval join"):
        assert part in shown
    named: dict[str, Any] = {"l": left.withWatermark("t", "1 hour"), "r": right.withWatermark("t", "1 hour")}
    assert "LEFT JOIN" in ws.explain(SQL, **named)


def _files(folder: Path, pattern: str) -> list[Path]:
    return [file.relative_to(folder) for file in folder.rglob(pattern)]


def test_partitions_are_as_many_as_cores_by_default(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    partitions = "spark.sql.shuffle.partitions"
    for name in (partitions, "spark.sql.execution.arrow.maxRecordsPerBatch"):
        other.conf.unset(name)
    before = other.conf.getAll
    left, right = (stream_files(tmp_path / f.columns[-1], [f]).withWatermark("t", "0 seconds") for f in both(other))
    joined = ws.join(left, right, on="id", within="10 minutes", shards=5)
    found = run_all(joined.groupBy("id").count(), tmp_path / "checkpoint", mode="update")
    assert sorted(map(tuple, found[0])) == [(1, 3), (4, 1)]
    # Spark writes down what a query goes on with.
    known = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[1])["conf"]
    assert known[partitions] == str(max(2, other.sparkContext.defaultParallelism))
    owner = json.loads((tmp_path / "checkpoint" / "watersmeet.json").read_text())
    assert owner["queries"][0]["identity"]["shards"] == 5
    assert other.conf.getAll == before and other.conf.get(partitions) == "200"
    # On this machine it is written as by watersmeet run, but for the logs of sources.
    assert {file.parts[0] for file in _files(tmp_path / "checkpoint", "*.crc")} <= {"sources"}

    other.conf.set(partitions, "3")
    run_all(ws.join(left, right, on="id", within="10 minutes"), tmp_path / "second")
    known = json.loads((tmp_path / "second" / "offsets" / "0").read_text().splitlines()[1])["conf"]
    assert known[partitions] == "3" and other.conf.get(partitions) == "3"


def test_shards_that_are_far_more_than_what_runs_at_once_are_warned_of(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.shuffle.partitions", 40)
    left, right = both(other)
    with pytest.warns(
        UserWarning, match=r"split into 40 shards.*spark.conf.set\(\"spark.sql.shuffle.partitions\", 4\)"
    ):
        joined = ws.join(left, right, on="id", within="10 minutes")
    for shown in (ws.explain(joined), ws.explain(left, right, ON, within="10 minutes", **TIMES)):
        assert "40, as many as spark.sql.shuffle.partitions says, while 2 tasks run at once" in shown
        assert 'spark.conf.set("spark.sql.shuffle.partitions", 4)' in shown
    assert "one per core" in ws.explain(*both(spark), ON, within="10 minutes", **TIMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ws.join(left, right, on="id", within="10 minutes", shards=40)
        ws.join(*both(spark), on="id", within="10 minutes")
