"""Scripts on Spark: sources and sinks by USING and OPTIONS, several queries, and runs that continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import watersmeet as ws
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners

pytestmark = pytest.mark.spark

ORDERS = [(1, "2024-01-01 12:00:00", "a"), (2, "2024-01-01 12:01:00", "b"), (3, "2024-01-01 12:02:00", "c")]
DELIVERIES = [(1, "2024-01-01 12:05:00", 10), (3, "2024-01-01 13:30:00", 30), (9, "2024-01-01 12:03:00", 90)]
MORE_ORDERS = [(4, "2024-01-01 13:45:00", "d")]
MORE_DELIVERIES = [(4, "2024-01-01 13:44:00", 40)]

JOINED = """
CREATE SINK joined USING {sink} OPTIONS (path '{out}/joined');
INSERT INTO joined
SELECT STREAM o.id, o.item, d.courier
FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id;
"""

COLUMNS = {
    "orders": "id BIGINT, t TIMESTAMP, item STRING, WATERMARK FOR t AS t - INTERVAL 30 MINUTES",
    "deliveries": "order_id BIGINT, t TIMESTAMP, courier INT, WATERMARK FOR t AS t - INTERVAL 30 MINUTES",
}


def write(spark: SparkSession, folder: Path, name: str, format_: str, rows: Sequence[tuple[object, ...]]) -> None:
    """One more batch of files of a source."""
    columns = {"orders": ("id", "t", "item"), "deliveries": ("order_id", "t", "courier")}[name]
    (folder / name).mkdir(parents=True, exist_ok=True)
    number = len(list((folder / name).iterdir()))
    if format_ == "parquet":
        frame = spark.createDataFrame(rows, columns).withColumn("t", F.col("t").cast("timestamp"))
        if name == "deliveries":
            frame = frame.selectExpr("order_id", "t", "INT(courier) AS courier")
        frame.coalesce(1).write.mode("append").parquet(str(folder / name))
        return
    lines = [
        ",".join(map(str, r)) if format_ == "csv" else json.dumps(dict(zip(columns, r, strict=True))) for r in rows
    ]
    (folder / name / f"{number}.{format_}").write_text("\n".join(lines) + "\n")


def declarations(folder: Path, using: str, options: str = "") -> str:
    """CREATE STREAM for both sources."""
    return "".join(
        f"CREATE STREAM {name} ({columns}) USING {using} OPTIONS (path '{folder}/{name}'{options});\n"
        for name, columns in COLUMNS.items()
    )


def run(spark: SparkSession, folder: Path, text: str, trigger: Trigger) -> list[Progress]:
    """Run a script; what was reported."""
    reported: list[Progress] = []
    run_script(
        read_script(text),
        spark=spark,
        storage=folder / "storage",
        trigger=trigger,
        listeners=Listeners(on_progress=reported.append),
    )
    return reported


def sink_rows(spark: SparkSession, path: Path, format_: str, schema: str) -> list[tuple[object, ...]]:
    """What a file sink holds."""
    rows = spark.read.format(format_).schema(schema).load(str(path)).collect()
    return sorted((tuple(row) for row in rows), key=str)


OUT = "id BIGINT, item STRING, courier INT"
ALL = [(1, "a", 10), (2, "b", None), (3, "c", None)]


@pytest.mark.parametrize(
    ("stored", "using", "options", "sink"),
    [
        ("json", "json", "", "parquet"),
        ("csv", "csv", "", "json"),
        ("parquet", "parquet", "", "orc"),
        ("txt", "text", ", value.format 'json'", "csv"),
    ],
)
def test_any_format_is_read_and_written(
    spark: SparkSession, tmp_path: Path, stored: str, using: str, options: str, sink: str
) -> None:
    write(spark, tmp_path, "orders", stored, ORDERS)
    write(spark, tmp_path, "deliveries", stored, DELIVERIES)
    run(spark, tmp_path, declarations(tmp_path, using, options) + JOINED.format(sink=sink, out=tmp_path), "end")
    assert sink_rows(spark, tmp_path / "joined", sink, OUT) == ALL


def test_a_run_continues_with_what_arrived_later(spark: SparkSession, tmp_path: Path) -> None:
    text = declarations(tmp_path, "json") + JOINED.format(sink="parquet", out=tmp_path)
    write(spark, tmp_path, "orders", "json", ORDERS)
    write(spark, tmp_path, "deliveries", "json", DELIVERIES)
    (first,) = run(spark, tmp_path, text, "available_now")
    assert (first.rows_in, first.matched, first.padded, first.late) == (6, 1, 0, 0)
    # The watermark of the deliveries is 13:00, that of an order at 12:00 is passed only beyond it.
    assert sink_rows(spark, tmp_path / "joined", "parquet", OUT) == [(1, "a", 10)]
    assert run(spark, tmp_path, text, "available_now") == [], "nothing new, nothing done"

    write(spark, tmp_path, "orders", "json", MORE_ORDERS)
    write(spark, tmp_path, "deliveries", "json", MORE_DELIVERIES)
    (second,) = run(spark, tmp_path, text, "available_now")
    # Marks are now 13:15 and 13:14: of 8 rows live order 4 and the deliveries 3 and 4.
    assert (second.rows_in, second.matched, second.padded, second.state_rows) == (2, 1, 2, 3)
    run(spark, tmp_path, text, "end")
    assert sink_rows(spark, tmp_path / "joined", "parquet", OUT) == [*ALL, (4, "d", 40)]


def test_two_queries_of_a_script_run_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path, "orders", "json", ORDERS)
    write(spark, tmp_path, "deliveries", "json", DELIVERIES)
    text = (
        declarations(tmp_path, "json")
        + JOINED.format(sink="parquet", out=tmp_path)
        + f"""
    CREATE SINK lonely USING json OPTIONS (path '{tmp_path}/lonely');
    INSERT INTO lonely
    SELECT STREAM d.order_id, upper('x') AS mark FROM orders o RIGHT JOIN deliveries d
    ON o.id = d.order_id AND d.t BETWEEN o.t AND o.t + INTERVAL 1 HOUR WHERE o.id IS NULL AND d.courier > 30;
    """
    )
    reported = run(spark, tmp_path, text, "end")
    assert {progress.query for progress in reported} == {"joined", "lonely"}
    assert sink_rows(spark, tmp_path / "joined", "parquet", OUT) == ALL
    assert sink_rows(spark, tmp_path / "lonely", "json", "order_id BIGINT, mark STRING") == [(9, "X")]
    assert sorted(path.name for path in (tmp_path / "storage" / "checkpoints").iterdir()) == ["joined", "lonely"]


def test_a_source_that_brings_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    text = """
    SET spark.sql.shuffle.partitions = 2;
    CREATE STREAM l (timestamp TIMESTAMP, value BIGINT, WATERMARK FOR timestamp AS timestamp - INTERVAL 0 SECONDS)
        USING `rate-micro-batch` OPTIONS (rowsPerBatch '5', numPartitions '1', startTimestamp '1000');
    CREATE STREAM r (value BIGINT, timestamp TIMESTAMP, WATERMARK FOR timestamp AS timestamp - INTERVAL 0 SECONDS)
        USING `rate-micro-batch` OPTIONS (rowsPerBatch '5', numPartitions '1', startTimestamp '1000');
    CREATE SINK pairs USING memory;
    INSERT INTO pairs SELECT STREAM l.value AS a, r.value AS b FROM l JOIN r WITHIN 1s ON l.value = r.value;
    """
    reported = run(spark, tmp_path, text, "available_now")
    assert reported and reported[0].matched == 5
    assert sorted(tuple(row) for row in spark.table("pairs").collect())[:5] == [(n, n) for n in range(5)]


def test_hundreds_of_conditions_and_thousands_of_values_run(spark: SparkSession) -> None:
    """Across the sides, over one side, and behind the join, in one query."""
    left = spark.createDataFrame([(1, 0, "x"), (2, 7, "y"), (3, 8, "z")], "id INT, v INT, s STRING")
    right = spark.createDataFrame([(1, 400), (2, 7), (3, 400)], "id INT, w INT")
    times = "TIMESTAMP '2024-01-01 12:00:00' AS t"
    across = " AND ".join(["w <> v"] * 500)
    behind = " OR ".join(f"coalesce(w, -1) = {n}" for n in range(-1, 499))
    values = ", ".join(f"'{n}'" for n in range(5_000))
    result = ws.sql(
        f"SELECT v, w FROM a LEFT JOIN b WITHIN 5s ON a.id = b.id AND {across} AND s NOT IN ({values}, 'z') "
        f"WHERE ({behind}) AND v IN ({', '.join(map(str, range(5_000)))})",
        a=left.selectExpr("*", times),
        b=right.selectExpr("*", times),
    )
    assert sorted(map(tuple, result.collect()), key=str) == [(0, 400), (7, None), (8, None)]
