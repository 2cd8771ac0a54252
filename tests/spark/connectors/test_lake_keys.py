"""Keys of tables of Delta and Iceberg: MERGE compares the values of the result with those that a table has stored."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructType

from watersmeet.spark.connectors.lakes import find_lossy_keys


@pytest.mark.parametrize(
    ("stored", "own", "is_lossy"),
    [
        ("long", "integer", False), ("integer", "long", False), ("long", "double", True), ("double", "float", False),
        ("float", "double", True), ("float", "integer", True), ("decimal(9,2)", "decimal(10,2)", False),
        ("decimal(10,1)", "decimal(10,2)", True), ("decimal(12,3)", "decimal(12,2)", False),
        ("decimal(18,0)", "long", False), ("decimal(38,10)", "double", True), ("double", "decimal(10,2)", False),
        ("integer", "decimal(10,2)", True), ("integer", "decimal(10,0)", False), ("date", "timestamp", True),
        ("timestamp", "date", False), ("string", "string", False), ("string", "integer", False),
    ],
)  # fmt: skip
def test_a_key_is_lossy_if_the_table_rounds_it(stored: str, own: str, is_lossy: bool) -> None:
    table, rows = StructType().add("K", stored), StructType().add("k", own)
    assert bool(find_lossy_keys(table, rows, ["K"])) is is_lossy


def test_a_key_in_char_is_filled_with_spaces() -> None:
    rows = StructType().add("k", StringType())
    table = StructType().add("k", StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(5)"})
    assert find_lossy_keys(table, rows, ["k"]) == {"k": "char(5)"}
    assert find_lossy_keys(rows, rows, ["k"]) == {}
