"""Late rows as an output of their own, the limit on the state, and another number of partitions, on Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE STREAM a (id BIGINT, t BIGINT, x STRING, WATERMARK FOR t AS t - 2)
    USING json OPTIONS (path '{folder}/a', maxFilesPerTrigger '1');
CREATE STREAM b (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 2)
    USING json OPTIONS (path '{folder}/b', maxFilesPerTrigger '1');
CREATE STREAM c (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 2)
    USING json OPTIONS (path '{folder}/c', maxFilesPerTrigger '1');
CREATE SINK joined USING json OPTIONS (path '{folder}/joined');
CREATE SINK late USING json OPTIONS (path '{folder}/late');
"""


def arrive(folder: Path, stream: str, number: int, *rows: tuple[Any, ...]) -> None:
    names = ("id", "t", "x")
    (folder / stream).mkdir(exist_ok=True)
    text = "".join(json.dumps(dict(zip(names, row, strict=False))) + "\n" for row in rows)
    path = folder / stream / f"{number}.json"
    path.write_text(text)
    # The file source takes files in the order of their times.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run(spark: SparkSession, folder: Path, query: str, settings: str = "", script: str = SCRIPT) -> list[Progress]:
    seen: list[Progress] = []
    run_script(
        read_script(settings + script.format(folder=folder) + query),
        spark=spark,
        storage=folder / "storage",
        trigger="end",
        listeners=Listeners(on_progress=seen.append),
    )
    return seen


def sink_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.json")) for line in file.read_text().splitlines()]


def test_late_rows_of_a_chain_go_to_a_sink_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, "a", 1, (1, 10, "one"), (2, 20, "two"))
    arrive(tmp_path, "b", 1, (1, 11))
    arrive(tmp_path, "c", 1, (1, 12))
    arrive(tmp_path, "a", 2, (3, 15, "late"))
    arrive(tmp_path, "c", 2, (1, 5))
    query = """INSERT INTO joined SELECT STREAM a.id, a.x, b.t AS bt, c.t AS ct FROM a
        LEFT JOIN b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + 3
        LEFT JOIN c ON a.id = c.id AND c.t BETWEEN a.t AND a.t + 3
        LATE INTO late;"""
    progress = run(spark, tmp_path, query)
    assert sorted((row["id"], row["x"], row.get("ct")) for row in sink_rows(tmp_path / "joined")) == [
        (1, "one", 12),
        (2, "two", None),
    ]
    late = {row["side"]: row for row in sink_rows(tmp_path / "late")}
    assert late["a"]["a"] == {"id": 3, "t": 15, "x": "late"}
    assert (late["a"]["watermark"], late["a"]["late_by"]) == ("a.t", 3)
    assert (late["c"]["c"], late["c"]["late_by"]) == ({"id": 1, "t": 5}, 5)
    assert len(sink_rows(tmp_path / "late")) == 2
    assert sum(one.late for one in progress) == 2
    assert sum(one.rows_out for one in progress) == 2


@pytest.mark.parametrize("slide", ["", ", '5 seconds'"])
def test_late_rows_go_once_through_windows_of_views_and_results(
    spark: SparkSession, tmp_path: Path, slide: str
) -> None:
    def at(second: int) -> str:
        return f"2026-03-01T10:00:{second}Z"

    arrive(tmp_path, "a", 1, (1, at(10), "one"), (2, at(20), "two"))
    arrive(tmp_path, "b", 1, (1, at(11)), (2, at(21)))
    arrive(tmp_path, "c", 1, (1, at(12)), (2, at(22)))
    arrive(tmp_path, "a", 2, (3, at(15), "late"), (3, at(15), "late"))
    arrive(tmp_path, "c", 2, (1, at(16)))
    query = f"""CREATE VIEW timed AS
        SELECT STREAM a.id, a.t, a.x, window(a.t, '10 seconds'{slide}).end AS until
        FROM a LEFT JOIN b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 3 SECONDS;
        INSERT INTO joined SELECT STREAM timed.id, timed.until, window(c.t, '10 seconds'{slide}).end AS ended
        FROM timed JOIN c ON timed.id = c.id AND c.t BETWEEN timed.t AND timed.t + INTERVAL 3 SECONDS LATE INTO late;"""
    script = SCRIPT.replace("t BIGINT", "t TIMESTAMP").replace("t - 2", "t - INTERVAL 2 SECONDS")
    progress = run(spark, tmp_path, query, script=script)
    assert sorted({row["id"] for row in sink_rows(tmp_path / "joined")}) == [1, 2]
    assert len(sink_rows(tmp_path / "joined")) == (8 if slide else 2)
    late = Counter((row["side"], row[row["side"]]["id"]) for row in sink_rows(tmp_path / "late"))
    assert late == {("a", 3): 2, ("c", 1): 1}
    assert sum(one.late for one in progress) == 3


def test_late_rows_of_window_functions_and_deduplication_go_to_sinks_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, rows in enumerate([[(1, 10, "one"), (2, 20, "two")], [(1, 21, "one"), (3, 15, "late"), (4, 30, "x")]]):
        arrive(tmp_path, "a", number, *rows)
        # Files of Parquet go through workers as columns, JSON goes through Spark.
        pq.write_table(pa.table(dict(zip("idx", zip(*rows, strict=True), strict=True))), tmp_path / f"{number}.parquet")
        os.utime(tmp_path / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    script = """
        CREATE STREAM p (i BIGINT, d BIGINT, x STRING, WATERMARK FOR d AS d - 2)
            USING parquet OPTIONS (path '{folder}/*.parquet', maxFilesPerTrigger '1');
        CREATE SINK sums USING json OPTIONS (path '{folder}/sums');
        CREATE SINK late_sums USING json OPTIONS (path '{folder}/late_sums');
        CREATE VIEW once AS SELECT STREAM id, t FROM a
          QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY t) = 1 WITHIN 5;
    """
    query = """
        INSERT INTO joined SELECT STREAM id, lag(id) OVER (ORDER BY t) AS before FROM once LATE INTO late;
        INSERT INTO sums SELECT STREAM i, sum(i) OVER (PARTITION BY x ORDER BY d) AS s FROM p LATE INTO late_sums;
    """
    progress = run(spark, tmp_path, query, script=SCRIPT + script)
    joined = Counter((row["id"], row.get("before")) for row in sink_rows(tmp_path / "joined"))
    assert joined == Counter([(1, None), (2, 1), (1, 2), (4, 1)])
    [late] = sink_rows(tmp_path / "late")
    assert late == {"side": "a", "watermark": "t", "late_by": 3, "a": {"id": 3, "t": 15, "x": "late"}}
    assert sorted((row["i"], row["s"]) for row in sink_rows(tmp_path / "sums")) == [(1, 1), (1, 2), (2, 2), (4, 4)]
    [late] = sink_rows(tmp_path / "late_sums")
    assert late == {"side": "p", "watermark": "p.d", "late_by": 3, "p": {"i": 3, "d": 15, "x": "late"}}
    assert sum(one.late for one in progress) == 2


def test_the_limit_fails_and_a_higher_one_continues(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        arrive(tmp_path, "a", number, *((i, number * 10, "x") for i in range(20)))
        arrive(tmp_path, "b", number, (1, number * 10))
    query = """INSERT INTO joined SELECT STREAM a.id, a.t, b.t AS bt FROM a
        LEFT JOIN b ON a.id = b.id AND b.t BETWEEN a.t - 50 AND a.t + 50;"""
    with pytest.raises(WatersmeetError) as caught:
        run(spark, tmp_path, query, "SET watersmeet.state.max_rows = 44;")
    assert "a and b" in str(caught.value) and "max_rows" in str(caught.value)
    run(spark, tmp_path, query, "SET watersmeet.state.max_rows = 1000;")
    joined = spark.read.json(str(tmp_path / "joined")).collect()
    assert len(joined) == 3 * 19 + 3 * 3


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_without_an_equality_every_kind_is_what_spark_says(spark: SparkSession, how: str) -> None:
    left = spark.createDataFrame([(i, i * 3) for i in range(30)], "l BIGINT, lt BIGINT")
    right = spark.createDataFrame([(i, i * 7) for i in range(20)], "r BIGINT, rt BIGINT")
    condition = "left.lt >= right.rt - 4 AND left.lt < right.rt + 2"
    ours = ws.join(left, right, on=condition, how=how, left_time="lt", right_time="rt", shards=3)
    from pyspark.sql.functions import expr

    theirs = left.alias("left").join(right.alias("right"), expr(condition), how)
    assert count_rows(ours) == count_rows(theirs)


def count_rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())
