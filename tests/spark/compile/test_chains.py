"""Chains of joins on Spark: what travels along with rows must not get into their way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.frames import stream_files

import watersmeet as ws
from watersmeet.errors import WatersmeetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHAIN = """SELECT STREAM a.id AS aid, b.t AS bt, c.t AS ct FROM a
    {first} b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + 5
    {second} c ON c.id = a.id AND c.t BETWEEN b.t AND b.t + 5"""


def frame(spark: SparkSession, *rows: tuple[int, int]) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("id", LongType(), nullable=False), StructField("t", LongType(), nullable=False)])
    return spark.createDataFrame(list(rows), schema)


def count_rows(result: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in result.collect())


def test_a_chain_over_columns_that_are_never_null(spark: SparkSession) -> None:
    a, b, c = frame(spark, (1, 10), (2, 10)), frame(spark, (1, 12)), frame(spark, (1, 14), (1, 15))
    found = ws.sql(CHAIN.format(first="JOIN", second="JOIN"), a=a, b=b, c=c)
    assert count_rows(found) == {(1, 12, 14): 1, (1, 12, 15): 1}


def test_rows_next_to_an_empty_join_are_padded(spark: SparkSession) -> None:
    a, b, c = frame(spark), frame(spark), frame(spark, (1, 14))
    found = ws.sql(CHAIN.format(first="JOIN", second="RIGHT JOIN"), a=a, b=b, c=c)
    assert count_rows(found) == {(None, None, 14): 1}


def test_another_key_expression_does_not_continue_the_state(spark: SparkSession, tmp_path: Path) -> None:
    def run(key: str) -> None:
        sides = [stream_files(tmp_path / name, [frame(spark, (1, 10))]) for name in ("left", "right")]
        joined = ws.join(*sides, on=key, within=5, left_time="t", right_time="t")
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run("left.id % 10 = right.id")
    with pytest.raises(WatersmeetError, match=r"the key was `left.id%10`, now it is `left.id%20`"):
        run("left.id % 20 = right.id")
