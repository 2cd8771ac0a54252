"""The table of aggregates says of each what Spark's own analyser says: its type, and whether it can be NULL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import watersmeet as ws
from watersmeet.operators.core.aggregates import FUNCTIONS, NAMES, function_of, result_type
from watersmeet.schema import normalise_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = ["TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)", "BOOLEAN", "STRING", "DATE",
         "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "INTERVAL DAY TO SECOND"]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(NAMES))
def test_types_and_nullability_are_those_of_spark(spark: SparkSession, name: str) -> None:
    function = function_of(name)
    columns = [f"CAST(NULL AS {type_}) AS c{n}" for n, type_ in enumerate(TYPES)]
    frame = spark.sql(f"SELECT {', '.join(columns)}")
    taken = [(n, type_) for n, type_ in enumerate(TYPES) if result_type(name, (type_,) * function.args) is not None]
    assert taken
    calls = [f"{_call(name, [f'c{n}'] * function.args)} AS r{n}" for n, _ in taken]
    for field, (_, type_) in zip(frame.selectExpr(*calls).schema, taken, strict=True):
        assert normalise_type(field.dataType.simpleString()) == normalise_type(
            str(result_type(name, (type_,) * function.args))
        )
        assert field.nullable == function.nullable


def _call(name: str, args: list[str]) -> str:
    called, _, how = name.partition(" ")
    if called.startswith("percentile"):
        part = "array(0.25, 0.5)" if how == "list" else "0.5"
        in_group = f"{called}({part}) WITHIN GROUP (ORDER BY {args[0]})"
        return f"percentile({args[0]}, {part})" if called == "percentile" else in_group
    if how == "filtered":
        return f"{called}({args[0]}) FILTER (WHERE {args[1]})"
    return f"{called}({how} {', '.join(args)})"


@pytest.mark.spark
def test_the_group_of_all_is_there_without_rows(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "x DOUBLE, d DECIMAL(10,2)")
    found = ws.sql("SELECT TABLE count(*) AS n, sum(x) AS x, sum(d) AS d FROM t", t=empty)
    assert [tuple(row) for row in found.collect()] == [(0, None, None, "+")]
    assert dict(found.dtypes)["d"] == "decimal(20,2)"


@pytest.mark.spark
def test_each_function_has_one_row() -> None:
    assert len(NAMES) == sum(1 + len(function.aliases) for function in FUNCTIONS)
