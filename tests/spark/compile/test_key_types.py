"""Keys of two types: codes and keys of both sides are equal exactly where Spark says that the values are equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.spark.compile.test_types import COMPARED, MODES, ansi_mode

from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.routing import code_of, is_hashable
from watersmeet.physical.ports import JoinKeys, Operands, leaf_column
from watersmeet.queries import analyze, read_script
from watersmeet.spark.compile.types import SparkTypes
from watersmeet.spark.private.introspection import suppress_logs

pytestmark = pytest.mark.spark

MORE = {
    "SMALLINT": "1; 127; -1",
    "INT": "16777216; -1",
    "BIGINT": "16777216; 16777217; 9007199254740992; 9223372036854775807",
    "FLOAT": "'NaN'; '-0.0'; 0.0; 'Infinity'; 9007199254740992.0",
    "DOUBLE": "'-0.0'; 0.0; 16777217.0; 16777216.0; 'Infinity'; 9223372036854775807",
    "DECIMAL(20,5)": "1.00000; 0.50000; 0.50001; 0",
    "DECIMAL(38,0)": "9007199254740992; 9223372036854775807",
    "STRING": "'-0.0'; '0'; '9007199254740993'; '16777217'; 'TRUE'; 'X'; 'x '; ''; 'Infinity'",
    "STRING COLLATE UTF8_LCASE": (
        # Both small sigmas are one letter there, and the capital I with a dot is two.
        "'x'; 'X'; 'Ab'; 'aB'; ''; 'a\u03a3'; 'a\u03c3'; 'a\u03c2'; '\u03a3'; '\u03c2'; '\u0130'; 'i\u0307'"
    ),
    "DATE": "'1582-10-15'",
    "TIMESTAMP": "'1582-10-15 00:00:00'; '2024-01-01 00:00:00.000001'",
    "TIMESTAMP_NTZ": "'1582-10-15 00:00:00'; '2024-01-01 00:00:00.000001'",
    "BINARY": "X'00'; X'0000'; X'78'",
    "INTERVAL DAY TO SECOND": "INTERVAL '1' DAY; INTERVAL '24' HOUR; INTERVAL '1' SECOND",
    "ARRAY<DOUBLE>": "array(double('-0.0')); array(0.0D); array(double('NaN')); array(1.0D); array(null)",
    "STRUCT<a: DOUBLE>": "named_struct('a', double('-0.0')); named_struct('a', 0.0D); named_struct('a', null)",
}
SAMPLES = {
    type_: [*"; ".join(filter(None, (COMPARED.get(type_), MORE.get(type_)))).split("; "), "NULL"]
    for type_ in (*COMPARED, *(type_ for type_ in MORE if type_ not in COMPARED))
}
"""Values of each type, and NULL."""


@dataclass(frozen=True)
class TypePair:
    """Two types, how the key of each side is computed of a value, and whether the key is its own code."""

    types: tuple[str, str]
    templates: tuple[str, str]
    common: str
    exact: bool


def type_pairs(spark: SparkSession) -> Iterator[TypePair]:
    """All pairs of types that Spark compares, each in one order of the two sides."""
    names = {type_: f"c{n}" for n, type_ in enumerate(SAMPLES)}
    declared = ", ".join(f"{name} {type_}" for type_, name in names.items())
    streams = "".join(f"CREATE STREAM {s} (t BIGINT, {declared}, WATERMARK FOR t AS t - 0);" for s in "lr")
    script = read_script(f"{streams} SELECT STREAM l.t FROM l JOIN r WITHIN 1 ON l.c0 = r.c0;")
    nulls = ", ".join(f"CAST(NULL AS {type_}) AS {name}" for type_, name in names.items())
    schema = spark.sql(f"SELECT 0L AS t, {nulls}").schema
    types = SparkTypes(spark, analyze(script)[0], script, {"l": schema, "r": schema})
    empty = spark.createDataFrame([], schema)
    for number, pair in enumerate(combinations_with_replacement(SAMPLES, 2)):
        one, other = pair if number % 2 else pair[::-1]
        try:
            with suppress_logs():
                empty.selectExpr(f"{names[one]} = {names[other]}")
        except AnalysisException:
            continue
        left, right = leaf_column("l", names[one]), leaf_column("r", names[other])
        operands = Operands((frozenset("l"), frozenset("r")), types)
        exact = JoinKeys.of([(left, right)], operands).exact
        yield TypePair((one, other), operands.comparable(left, right), types.common_type(left, right), exact)


def repeat(array: pa.Array, times: int, *, each: bool) -> pa.Array:
    """An array so many times, or each of its values so many times in a row."""
    places = np.arange(len(array))
    return array.take(pa.array(np.repeat(places, times) if each else np.tile(places, times)))


@pytest.mark.parametrize("ansi", MODES)
def test_keys_of_all_pairs_of_types_are_equal_where_spark_says_so(spark: SparkSession, ansi: str) -> None:
    arrays = [
        f"array({', '.join(f'CAST({value} AS {type_})' for value in values)}) AS c{n}"
        for n, (type_, values) in enumerate(SAMPLES.items())
    ]
    places = {type_: n for n, type_ in enumerate(SAMPLES)}
    with ansi_mode(spark, ansi):
        values = spark.range(1).selectExpr(*arrays)
        pairs = list(type_pairs(spark))
        columns: list[str] = []
        for n, pair in enumerate(pairs):
            # In ANSI mode a text that cannot be cast is an error, in Spark's own comparison too.
            castable = f"v -> v IS NULL OR {ansi} = false OR try_cast(v AS {pair.common}) IS NOT NULL"
            sides = [f"filter(c{places[type_]}, {castable})" for type_ in pair.types]
            for s, side, template in zip("lr", sides, pair.templates, strict=True):
                columns.append(f"transform({side}, v -> {template.format('v')}) AS {s}{n}")
                columns.append(f"transform({side}, v -> xxhash64({template.format('v')})) AS {s}code{n}")
            columns.append(f"flatten(transform({sides[0]}, l -> transform({sides[1]}, r -> l = r))) AS equal{n}")
        table = values.selectExpr(*columns).toArrow()
    assert len(pairs) > 80
    expect_keys(pairs, table)


def expect_keys(pairs: list[TypePair], table: pa.Table) -> None:
    """Every pair of values has equal codes and equal keys if Spark says that they are equal, and only then."""
    matches = 0
    for n, pair in enumerate(pairs):
        left, right, expected = (table.column(name)[0].values for name in (f"l{n}", f"r{n}", f"equal{n}"))
        codes: list[np.ndarray] = []
        for s, keys in (("l", left), ("r", right)):
            hashes = table.column(f"{s}code{n}")[0].values.to_numpy()
            if is_hashable(keys.type):
                assert code_of([keys]).tolist() == hashes.tolist(), pair
            codes.append(as_int64(keys) if pair.exact else hashes)
        mine, theirs = repeat(left, len(right), each=True), repeat(right, len(left), each=False)
        # As the kernel matches: rows with a NULL key are left out, and an exact key is not compared again.
        is_equal = np.array([one.is_valid and other.is_valid for one, other in zip(mine, theirs, strict=True)])
        is_equal &= pair.exact | null_safe_equal(mine, theirs)
        has_code = np.repeat(codes[0], len(right)) == np.tile(codes[1], len(left))
        said = np.array([value is True for value in expected.to_pylist()])
        matches += int(said.sum())
        wrong = np.flatnonzero((is_equal & has_code) != said)
        assert [(pair, mine[int(i)].as_py(), theirs[int(i)].as_py()) for i in wrong] == []
    assert matches > 300
