"""Tables through the Python surface: changes in, changes out, tables that never change, and what can be NULL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.spark.frames import run_all, stream_files

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.logical.query import nullable
from watersmeet.queries import analyze, read_script

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE STREAM a (id BIGINT NOT NULL, t BIGINT NOT NULL, v STRING, WATERMARK FOR t AS t - 0);
CREATE STREAM b (id BIGINT NOT NULL, t BIGINT NOT NULL, w STRING, WATERMARK FOR t AS t - 0);
CREATE TABLE c (id BIGINT NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (id));
WITH kept AS (SELECT STREAM id, t, v, id AS again FROM a WHERE v IS NOT NULL);
"""
QUERIES = (
    "SELECT STREAM x.id, x.v, b.id AS b_id FROM kept x JOIN b ON x.id = b.id AND b.t = x.t",
    "SELECT STREAM x.id, x.again, b.id AS b_id FROM kept x LEFT JOIN b ON x.id = b.id AND b.t = x.t",
    "SELECT STREAM x.id, b.id AS b_id FROM kept x RIGHT JOIN b ON x.id = b.id AND b.t = x.t",
    "SELECT STREAM x.id, b.id AS b_id FROM kept x FULL JOIN b ON x.id = b.id AND b.t = x.t",
    "SELECT STREAM x.id, c.n, b.id AS b_id FROM kept x JOIN b ON x.id = b.id AND b.t = x.t LEFT JOIN c ON c.id = b.id",
    "SELECT STREAM a.id, c.n FROM a JOIN c ON a.id = c.id",
    "SELECT TABLE v, count(*) AS n, max(id) AS most FROM a GROUP BY v",
    "SELECT STREAM a.id, b.id AS b_id, _seq FROM a WINDOW (COUNT 1) LEFT JOIN b WINDOW (COUNT 1) PAD RIGHT WITH ZEROS",
)


def stream_of(spark: SparkSession, folder: Path, schema: str, *batches: Sequence[tuple[object, ...]]) -> DataFrame:
    """Rows as a stream of these batches."""
    return stream_files(folder, [spark.createDataFrame(rows, schema) for rows in batches])


@pytest.mark.parametrize("query", QUERIES)
def test_columns_that_no_join_makes_null_are_not_nullable(query: str, spark: SparkSession, tmp_path: Path) -> None:
    def empty(name: str, third: StructField) -> DataFrame:
        (tmp_path / name).mkdir()
        number = [StructField("id", LongType(), nullable=False)]
        number += [StructField("t", LongType(), nullable=False)] if name != "c" else []
        # A file source makes every column nullable, so the columns are declared again.
        frame = spark.readStream.schema(StructType([*number, third])).parquet(str(tmp_path / name))
        return frame.selectExpr(
            *(f"coalesce({f.name}, 0L) AS {f.name}" if not f.nullable else f.name for f in [*number, third])
        )

    frames: dict[str, Any] = {
        "a": empty("a", StructField("v", StringType())),
        "b": empty("b", StructField("w", StringType())),
        "c": empty("c", StructField("n", LongType(), nullable=False)),
    }
    found = ws.sql(SCRIPT + query, **frames).schema
    (analyzed,) = analyze(read_script(SCRIPT + query))
    shown = [field.nullable for field in found if field.name != "_change"]
    assert shown == list(nullable(analyzed))


@pytest.mark.parametrize(("how", "alone"), [("", []), ("LEFT ", [(3, "c", None)])])
def test_a_table_that_never_changes_is_looked_up(
    how: str, alone: list[tuple[object, ...]], spark: SparkSession, tmp_path: Path
) -> None:
    stream = stream_of(spark, tmp_path / "s", "id BIGINT, v STRING", [(1, "a"), (2, "b"), (3, "c"), (9, "d")])
    table = spark.createDataFrame([(1, "x"), (2, "y"), (2, "z")], "id BIGINT, name STRING")
    text = f"SELECT STREAM s.id, s.v, t.name FROM s {how}JOIN t ON s.id = t.id WHERE s.id < 9"
    rows = [row for batch in run_all(ws.sql(text, s=stream, t=table), tmp_path / "c") for row in batch]
    assert sorted(map(tuple, rows), key=str) == sorted([(1, "a", "x"), (2, "b", "y"), (2, "b", "z"), *alone], key=str)


def test_a_table_that_never_changes_has_no_changes(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(spark, tmp_path / "s", "id BIGINT, v STRING", [(1, "a")])
    table = spark.createDataFrame([(1, "x")], "id BIGINT, name STRING")
    text = """
    CREATE TABLE s (id BIGINT, v STRING, PRIMARY KEY (id));
    SELECT TABLE s.id, t.name FROM s JOIN t ON s.id = t.id;
    """
    with pytest.raises(WatersmeetError) as refused:
        ws.sql(text, s=stream, t=table)
    assert refused.value.refusals[0].condition == "STATIC_TABLE"
    assert refused.value.refusals[0].hint.startswith("give `t` as a streaming DataFrame")
    assert refused.value.refusals[0].parameters["table"] == "t"


def test_the_changes_of_a_join_come_out_with_their_signs(spark: SparkSession, tmp_path: Path) -> None:
    changes = ([(1, 7, "+"), (2, 7, "+")], [(2, 7, "-"), (3, 8, "+")])
    orders = stream_of(spark, tmp_path / "orders", "id BIGINT, customer BIGINT, _change STRING", *changes)
    upserts = ([(7, "Ann"), (8, "Bob")], [(7, "Anna")])
    customers = stream_of(spark, tmp_path / "customers", "id BIGINT, name STRING", *upserts)
    text = """
    CREATE TABLE orders (id BIGINT, customer BIGINT);
    CREATE TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id));
    SELECT TABLE o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id;
    """
    batches = run_all(ws.sql(text, orders=orders, customers=customers), tmp_path / "c")
    table: dict[tuple[object, ...], int] = {}
    for *row, change in (tuple(row) for batch in batches for row in batch):
        table[tuple(row)] = table.get(tuple(row), 0) + (1 if change == "+" else -1)
    assert {row: n for row, n in table.items() if n} == {(1, "Anna"): 1, (3, "Bob"): 1}


def test_an_aggregate_over_what_spark_would_cast_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(spark, tmp_path / "s", "id BIGINT, v STRING", [(1, "a")])
    with pytest.raises(WatersmeetError) as refused:
        ws.sql("SELECT TABLE id, sum(upper(v)) AS total FROM s GROUP BY id", s=stream)
    assert refused.value.refusals[0].condition == "TYPE_MISMATCH"
    assert "sum() does not take STRING" in str(refused.value)


def test_an_order_of_what_has_none_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(spark, tmp_path / "s", "id BIGINT, v ARRAY<BIGINT>", [(1, [1])])
    with pytest.raises(WatersmeetError) as refused:
        ws.sql("SELECT TABLE id FROM s ORDER BY v DESC LIMIT 3", s=stream)
    assert refused.value.refusals[0].condition == "TYPE_MISMATCH"
    assert "rows cannot be ordered by ARRAY<BIGINT>" in str(refused.value)
