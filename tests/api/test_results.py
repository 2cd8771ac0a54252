"""Results of calls as inputs of other calls: one query, in which every watermark travels."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.frames import add_file, all_rows, end_of_input, rows_of, run_all, stream_files

import watersmeet as ws
from watersmeet import WatersmeetError

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, time: str, value: str, *values: tuple[int, int]) -> DataFrame:
    """Rows of (id, minute); the value tells them apart."""
    moment = "TIMESTAMP'2024-01-01 12:00:00Z' + make_dt_interval(0, 0, minute)"
    listed = ", ".join(f"({id}, {minute})" for id, minute in values)
    return spark.sql(
        f"SELECT id, {moment} AS {time}, id * 1000 + minute AS {value} FROM VALUES {listed} AS r(id, minute)"
    )


@pytest.fixture
def three(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    first = rows(spark, "a_time", "a", (1, 0), (1, 20), (2, 1), (3, 2), (4, 59))
    second = rows(spark, "b_time", "b", (1, 10), (1, 9), (2, 30), (4, 61))
    return first, second, rows(spark, "c_time", "c", (1, 12), (2, 3), (4, 65), (5, 5))


CHAIN = """
SELECT STREAM a.a, b.b, c.c FROM a LEFT JOIN b ON a.id = b.id
  AND b.b_time BETWEEN a.a_time - INTERVAL 10 MINUTES AND a.a_time + INTERVAL 10 MINUTES
LEFT JOIN c ON a.id = c.id AND c.c_time BETWEEN a.a_time AND a.a_time + INTERVAL 15 MINUTES
"""


def join_three(first: DataFrame, second: DataFrame, third: DataFrame, marks: DataFrame | None = None) -> DataFrame:
    pairs = ws.join(first, second, on="id", within="10 minutes", how="left")
    triples = ws.join(
        pairs, third, on="id", within=("0s", "15 minutes"), how="left", left_time="a_time", watermarks=marks
    )
    return triples.select("a", "b", "c")


def test_a_join_of_a_join_gives_what_one_query_gives(
    spark: SparkSession, tmp_path: Path, three: tuple[DataFrame, DataFrame, DataFrame]
) -> None:
    named = dict(zip("abc", three, strict=True))
    a, b, c = (f.withWatermark(f"{n}_time", "0 seconds") for n, f in named.items())
    expected = rows_of(ws.sql(CHAIN, a=a, b=b, c=c))
    assert rows_of(join_three(a, b, c)) == expected

    streams = [
        stream_files(tmp_path / n, [f.where(f"{n} % 2 = 0"), f.where(f"{n} % 2 = 1")]).withWatermark(
            f"{n}_time", "3 hours"
        )
        for n, f in named.items()
    ]
    ends = end_of_input(spark, tmp_path / "m", "left/left.a_time", "left/right.b_time", "right.c_time", batch=1)
    assert all_rows(join_three(*streams, marks=ends), tmp_path / "checkpoint") == expected


def test_the_outer_join_waits_for_the_sources_of_the_inner_one(spark: SparkSession, tmp_path: Path) -> None:
    """Were the watermark taken from the rows of the result, `b` would be late when the slow side comes up."""
    first = stream_files(
        tmp_path / "a", [rows(spark, "a_time", "a", (1, 0), (2, 50)), rows(spark, "a_time", "a", (9, 90))]
    )
    second = stream_files(tmp_path / "b", [rows(spark, "b_time", "b", (2, 51)), rows(spark, "b_time", "b", (1, 1))])
    third = stream_files(tmp_path / "c", [rows(spark, "c_time", "c", (9, 0)), rows(spark, "c_time", "c", (1, 2))])
    pairs = ws.join(
        first.withWatermark("a_time", "0 seconds"), second.withWatermark("b_time", "2 hours"), "id", within="10 minutes"
    )
    triples = ws.join(pairs, third.withWatermark("c_time", "2 hours"), "id", within="5 minutes", left_time="a_time")
    found = run_all(triples.select("a", "b", "c"), tmp_path / "checkpoint")
    assert [tuple(row) for batch in found for row in batch] == [(1000, 1001, 1002)]
    add_file(tmp_path / "c", rows(spark, "c_time", "c", (2, 52)))
    found = run_all(triples.select("a", "b", "c"), tmp_path / "checkpoint")
    assert [tuple(row) for batch in found for row in batch] == [(2050, 2051, 2052)], "continued from its checkpoint"


def test_every_call_takes_results_of_every_other(three: tuple[DataFrame, ...], tmp_path: Path) -> None:
    streams = {
        n: stream_files(tmp_path / n, [f]).withWatermark(f"{n}_time", "1 minute")
        for n, f in zip("abc", three, strict=True)
    }
    a, b, c = streams.values()
    made = {
        "interval": ws.join(a, b, "id", within="1 hour"),
        "window": ws.window_join(a, b, "id", left_window="COUNT 2", right_window="COUNT 2"),
        "sync": ws.sync_join(a=a, b=b),
        "asof": ws.asof_join(a, b, "id"),
        "sql": ws.sql("SELECT STREAM a.id, a.a_time, upper(string(a.a)) AS text FROM a WHERE a.id < 9", a=a),
        "table": ws.sql("SELECT TABLE a.id, count(*) AS n FROM a GROUP BY a.id", a=a),
    }
    times = {"interval": "a_time", "sync": "a_time", "asof": "a_time", "sql": "a_time"}
    shown: list[str] = []
    for name, result in made.items():
        key = "a_id" if name == "sync" else "left_id" if "left_id" in result.columns else "id"
        if name in times:
            time = times[name]
            shown += [str(ws.join(result, c, f"left.{key} = right.id", within="1 h", left_time=time).columns)]
            shown += [str(ws.join(c, result, f"left.id = right.{key}", within="1 h", right_time=time).columns)]
            shown += [str(ws.asof_join(result, c, f"left.{key} = right.id", left_time=time).columns)]
            shown += [str(ws.sync_join(result.withWatermark(time, "0 seconds"), c).columns)]
        else:
            shown += [str(ws.join(c, result, f"left.id = right.{key}").columns)] if name == "table" else []
        if name != "table":
            joined = ws.window_join(result, c, f"left.{key} = right.id", left_window="COUNT 1", right_window="COUNT 0")
            shown += [str(joined.columns)]
        kind = "TABLE" if name == "table" else "STREAM"
        again = ws.sql(f"SELECT {kind} r.{key}, 1 AS one FROM r WHERE r.{key} > 0", r=result)
        shown += [str(again.columns)]
    assert len(shown) == 4 * len(times) + 1 + 5 + 6


def test_settings_of_a_whole_query_must_agree_in_all_of_it(three: tuple[DataFrame, ...], tmp_path: Path) -> None:
    a, b, c = (
        stream_files(tmp_path / n, [f]).withWatermark(f"{n}_time", "1 minute")
        for n, f in zip("abc", three, strict=True)
    )
    limited = ws.join(a, b, "id", within="1 hour", max_rows=10)
    with pytest.raises(WatersmeetError, match="max_rows = "):
        ws.join(limited, c, "id", within="1 hour", left_time="a_time")
    assert ws.join(limited, c, "id", within="1 hour", left_time="a_time", max_rows=10).isStreaming
    with pytest.raises(WatersmeetError, match="shards = 3"):
        ws.join(ws.join(a, b, "id", within="1 h", shards=3), c, "id", within="1 h", left_time="a_time", shards=2)
    with pytest.raises(WatersmeetError, match="left_time = None") as refused:
        ws.join(ws.join(a, b, "id", within="1 h"), c, "id", within="1 h")
    assert "a_time" in str(refused.value) and 'write left_time="name"' in refused.value.refusals[0].hint
    with pytest.raises(WatersmeetError, match="UNBOUNDED_STATE") as refused:
        ws.join(a, b, "id")
    assert 'within="5 minutes"' in refused.value.refusals[0].hint
    with pytest.raises(WatersmeetError, match="WRONG_TIME_UNIT") as refused:
        ws.join(a, b, "id", within=5)
    assert 'within="5 seconds"' in refused.value.refusals[0].hint
    with pytest.raises(WatersmeetError, match="left_idle"):
        ws.join(ws.join(a, b, "id", within="1 h"), c, "id", within="1 h", left_time="a_time", left_idle="1 minute")
    with pytest.raises(WatersmeetError, match="MISSING_WATERMARK"):
        ws.join(ws.join(a, b, "id", within="1 h").select("*"), c, "id", within="1 h")


def test_two_queries_over_one_source_go_into_one(spark: SparkSession, tmp_path: Path) -> None:
    """Both count malformed rows of a source of the same name."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "1.json").write_text('{"id": 1, "t": "2024-01-01T12:00:00Z"}\nnot JSON\n')
    source = f"""CREATE STREAM s (id INT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 HOUR)
      USING json OPTIONS (path '{tmp_path / "s"}');"""
    one, two = (
        ws.sql(f"{source} SELECT STREAM s.id, s.t, {n} AS n FROM s", spark=spark, malformed="drop") for n in (1, 2)
    )
    found = all_rows(one.union(two).select("id", "n"), tmp_path / "union")
    assert found == {"(1, 1)": 1, "(1, 2)": 1}
    joined = ws.join(one, two, "id", within="1 minute").select("left_n", "right_n")
    assert all_rows(joined, tmp_path / "joined") == {"(1, 2)": 1}
    twice = ws.join(one, one, "left.id = right.id", within="1 minute").select(F.col("left_n"), F.col("right_n"))
    assert all_rows(twice, tmp_path / "twice") == {"(1, 1)": 1}
