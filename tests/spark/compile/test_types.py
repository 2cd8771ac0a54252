"""Types are exact: every Spark type passes a join unchanged, and keys and conditions compare as Spark compares them."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.frames import all_rows, end_of_input, rows_of, stream_files, types_of

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.local.values import compares_as_spark
from watersmeet.operators.core.condition import Apply, ColumnRef, compare
from watersmeet.operators.core.rowwise import evaluate
from watersmeet.physical.ports import leaf_column
from watersmeet.queries import analyze, read_script
from watersmeet.schema import arrow_type
from watersmeet.spark.compile.types import SparkTypes
from watersmeet.spark.private.introspection import suppress_logs

pytestmark = pytest.mark.spark

IS_WHOLE = os.environ.get("WATERSMEET_CASES") == "all"
MODES = ["true", "false"] if IS_WHOLE else ["true"]
"""Whether Spark follows ANSI: the mode without it runs with `make cases`."""

VALUES = {
    "tiny": ("TINYINT", "CAST(-128 AS TINYINT)", "CAST(127 AS TINYINT)"),
    "small": ("SMALLINT", "CAST(-32768 AS SMALLINT)", "CAST(7 AS SMALLINT)"),
    "whole": ("INT", "-2147483647", "0"),
    "big": ("BIGINT", "9007199254740993", "-9223372036854775807"),
    "single": ("FLOAT", "CAST('NaN' AS FLOAT)", "CAST('-0.0' AS FLOAT)"),
    "double": ("DOUBLE", "CAST('NaN' AS DOUBLE)", "CAST('-0.0' AS DOUBLE)"),
    "huge": (
        "DECIMAL(38,18)",
        "12345678901234567890.123456789012345678BD",
        "CAST(-0.000000000000000001BD AS DECIMAL(38,18))",
    ),
    "day": ("DATE", "DATE'1582-10-15'", "DATE'9999-12-31'"),
    "moment": ("TIMESTAMP", "TIMESTAMP'2024-03-10 07:30:00.123456Z'", "TIMESTAMP'1969-12-31 23:59:59.999999Z'"),
    "clock": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2024-03-10 02:30:00.000001'", "TIMESTAMP_NTZ'1900-01-01 00:00:00'"),
    "bytes": ("BINARY", "X'00FF10'", "X''"),
    "text": ("STRING", "'żółć 🌊'", "''"),
    "flag": ("BOOLEAN", "true", "false"),
    "items": (
        "ARRAY<STRUCT<n: INT, at: TIMESTAMP>>",
        (
            "array(named_struct('n', 1, 'at', TIMESTAMP'2024-11-03 05:30:00.000001Z'), "
            "named_struct('n', null, 'at', null), null)"
        ),
        "array()",
    ),
    "lists": ("MAP<STRING, ARRAY<INT>>", "map('a', array(1, null), 'b', null, '', array())", "map()"),
    "nested": (
        "STRUCT<a: STRUCT<b: STRING, c: DECIMAL(5,2)>, d: ARRAY<TIMESTAMP>>",
        "named_struct('a', named_struct('b', null, 'c', 1.25BD), 'd', array(TIMESTAMP'2024-07-01 00:00:00Z', null))",
        "named_struct('a', null, 'd', null)",
    ),
    "span": (
        "INTERVAL DAY TO SECOND",
        "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
        "INTERVAL '-0 00:00:00.000001' DAY TO SECOND",
    ),
    "folded": ("STRING COLLATE UTF8_LCASE", "'Ab'", "'aB'"),
    "nothing": ("STRING", "NULL", "NULL"),
}


LITERALS = {name: (first, second, type_, "NULL") for name, (type_, first, second) in VALUES.items()}
"""Per column its first value, its second value, its type and NULL."""


@contextmanager
def session_zone(spark: SparkSession, zone: str) -> Generator[None]:
    """Another time zone of the session, for a while."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def side(spark: SparkSession, *ids: int) -> DataFrame:
    """One row of first values, one of second values and one of NULLs per id."""
    columns = [
        ", ".join(f"CAST({chosen[number]} AS {chosen[2]}) AS {name}" for name, chosen in LITERALS.items())
        for number in (0, 1, 3)
    ]
    rows = " UNION ALL ".join(f"SELECT {row}" for row in columns)
    moment = "TIMESTAMP'2024-03-10 07:00:00Z' AS t"
    return spark.sql(f"SELECT id, {moment}, v.* FROM VALUES {', '.join(f'({i})' for i in ids)} AS i(id), ({rows}) AS v")


def own_join(left: DataFrame, right: DataFrame, condition: str, how: str) -> DataFrame:
    """Spark's own batch join, the oracle."""
    return left.alias("left").join(right.alias("right"), F.expr(condition), how)


TIMES: dict[str, Any] = {"left_time": "t", "right_time": "t"}
ON_ID = "left.id = right.id"


KINDS_AND_ZONES = [("inner", "UTC"), ("full", "America/New_York")]


@pytest.mark.parametrize(("how", "zone"), KINDS_AND_ZONES)
def test_every_type_passes_a_join_of_batches(spark: SparkSession, how: str, zone: str) -> None:
    with session_zone(spark, zone):
        left, right = side(spark, 1, 2), side(spark, 2, 3)
        joined = ws.join(left, right, ON_ID, within="1 hour", how=how, **TIMES)
        expected = own_join(left, right, ON_ID, how)
        found = rows_of(joined)
        assert found == rows_of(expected)
        assert sum(found.values()) == (9 if how == "inner" else 15)
        assert [type_ for type_, _ in types_of(joined)] == [type_ for type_, _ in types_of(expected)]
        shown = "CAST(nested AS STRING) AS nested", "CAST(items AS STRING) AS items", "CAST(moment AS STRING) AS moment"
        one_side = ws.join(left, right.select("id", "t"), ON_ID, within="1 hour", how="left", **TIMES)
        own = own_join(left, right.select("id", "t"), ON_ID, "left")
        assert rows_of(one_side.selectExpr(*shown)) == rows_of(own.selectExpr(*shown)), "the same moments in this zone"


@pytest.mark.parametrize(("how", "zone"), KINDS_AND_ZONES)
def test_every_type_passes_a_join_of_streams(spark: SparkSession, tmp_path: Path, how: str, zone: str) -> None:
    with session_zone(spark, zone):
        left, right = side(spark, 1, 2), side(spark, 2, 3)
        streams = stream_files(tmp_path / "l", [left]), stream_files(tmp_path / "r", [right])
        marks = end_of_input(spark, tmp_path / "marks")
        joined = ws.join(*streams, ON_ID, within="1 hour", how=how, watermarks=marks, **TIMES)
        assert all_rows(joined, tmp_path / "checkpoint") == rows_of(own_join(left, right, ON_ID, how))
        assert types_of(joined) == [(f.dataType.json(), True) for stream in streams for f in stream.schema]


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_padded_sides_alone_become_nullable(spark: SparkSession, how: str) -> None:
    schema = "id INT NOT NULL, t TIMESTAMP NOT NULL, v ARRAY<INT> NOT NULL, w STRUCT<a: INT NOT NULL>"
    left, right = spark.createDataFrame([], schema), spark.createDataFrame([], schema)
    joined = ws.join(left, right, ON_ID, within="1 hour", how=how, **TIMES)
    assert types_of(joined) == types_of(own_join(left, right, ON_ID, how))


def rows_by_key(spark: SparkSession, type_: str, literals: str) -> DataFrame:
    """A row per literal; all rows have the same time."""
    rows = ", ".join(f"({number}, {literal})" for number, literal in enumerate(literals.split("; ")))
    return spark.sql(
        f"SELECT n, TIMESTAMP'2024-01-01 00:00:00Z' AS t, CAST(k AS {type_}) AS k FROM VALUES {rows} AS v(n, k)"
    )


KEYS = {
    "tinyint and bigint": ("TINYINT", "1; -128; 127; NULL", "BIGINT", "1; -128; 383; 127; NULL"),
    "int and decimal": ("INT", "1; 2; NULL", "DECIMAL(10,2)", "1.00; 2.50; NULL"),
    "int and double": ("INT", "1; 16777217; NULL", "DOUBLE", "1.0D; 16777216.0D; 16777217.0D"),
    "bigint and float": ("BIGINT", "1; 16777217; NULL", "FLOAT", "1.0D; 16777216.0D; NULL"),
    "string": ("STRING", "''; 'a'; 'A'; 'żółć'; NULL", "STRING", "'a'; ''; 'żółć'; 'a '; NULL"),
    "string and int": ("STRING", "'1'; ' 2'; '3'; NULL", "INT", "1; 2; 4; NULL"),
    "decimals of two scales": ("DECIMAL(10,2)", "1.50; -0.01; NULL", "DECIMAL(20,5)", "1.50000; 1.50001; -0.01; NULL"),
    "double": ("DOUBLE", "'NaN'; '-0.0'; '1.5'; 'Infinity'; NULL", "DOUBLE", "'NaN'; '0.0'; '1.5'; '-Infinity'; NULL"),
    "float and double": ("FLOAT", "'NaN'; '-0.0'; '0.1'; '0.5'", "DOUBLE", "'NaN'; '0.0'; '0.1'; '0.5'"),
    "date": ("DATE", "'2024-01-01'; '1582-10-15'; NULL", "DATE", "'2024-01-01'; '1582-10-14'; NULL"),
    "date and timestamp": (
        "DATE",
        "'2024-01-01'; '2024-01-02'; NULL",
        "TIMESTAMP",
        "'2024-01-01 00:00:00'; '2024-01-02 00:00:01'",
    ),
    "timestamp": (
        "TIMESTAMP",
        "'2024-01-01 00:00:00.000001'; '1960-01-01'; NULL",
        "TIMESTAMP",
        "'2024-01-01 00:00:00.000001'; '2024-01-01 00:00:00'; '1960-01-01'",
    ),
    "timestamp with and without zone": (
        "TIMESTAMP",
        "'2024-01-01 00:00:00'; NULL",
        "TIMESTAMP_NTZ",
        "'2024-01-01 00:00:00'; '2024-01-01 05:00:00'",
    ),
    "boolean": ("BOOLEAN", "true; false; NULL", "BOOLEAN", "true; true; NULL"),
    "binary": ("BINARY", "X''; X'00'; X'0000'; NULL", "BINARY", "X''; X'0000'; X'FF'; NULL"),
    "interval": (
        "INTERVAL DAY TO SECOND",
        "INTERVAL '1' DAY; INTERVAL '1' SECOND; NULL",
        "INTERVAL DAY TO SECOND",
        "INTERVAL '24' HOUR; INTERVAL '2' SECOND; NULL",
    ),
    "struct": (
        "STRUCT<a: INT, b: DOUBLE>",
        (
            "named_struct('a', 1, 'b', -0.0D); named_struct('a', null, 'b', double('NaN')); "
            "named_struct('a', 2, 'b', null); NULL"
        ),
        "STRUCT<a: INT, b: DOUBLE>",
        (
            "named_struct('a', 1, 'b', 0.0D); named_struct('a', null, 'b', double('NaN')); "
            "named_struct('a', null, 'b', null); NULL"
        ),
    ),
    "struct of other widths": (
        "STRUCT<a: INT>",
        "named_struct('a', 1); named_struct('a', 2)",
        "STRUCT<a: BIGINT>",
        "named_struct('a', 1L); named_struct('a', 3L)",
    ),
    "array": (
        "ARRAY<STRING>",
        "array(); array('a', null); array('a'); array('b', 'a'); NULL",
        "ARRAY<STRING>",
        "array(); array('a', null); array('a', 'a'); array('b', 'a'); NULL",
    ),
    "collated string": (
        "STRING COLLATE UTF8_LCASE",
        "'Ab'; 'aB'; 'c'; NULL",
        "STRING COLLATE UTF8_LCASE",
        "'AB'; 'C'; 'd'; NULL",
    ),
}


COMPARED = {
    "TINYINT": "1; 0; 127",
    "INT": "1; 0; 20240101; 16777217",
    "BIGINT": "1; 0; 9007199254740993",
    "FLOAT": "1.0; 0.5; 16777216.0",
    "DOUBLE": "1.0; 0.5; 'NaN'; 9007199254740992.0",
    "DECIMAL(10,2)": "1.00; 0.50; 0",
    "DECIMAL(38,0)": "1; 0; 9007199254740993",
    "BOOLEAN": "true; false",
    "STRING": "'1'; '01'; '1.0'; '0.50'; ' 1'; '20240101'; '2024-01-01'; '2024-01-01 00:00:00'; 'true'; 'x'; 'NaN'",
    "DATE": "'2024-01-01'; '2024-01-02'",
    "TIMESTAMP": "'2024-01-01 00:00:00'; '2024-01-01 00:00:01'",
    "TIMESTAMP_NTZ": "'2024-01-01 00:00:00'; '2024-01-01 00:00:01'",
    "BINARY": "X'31'; X''",
    "ARRAY<INT>": "array(1); array()",
    "ARRAY<BIGINT>": "array(1L); array()",
}


@contextmanager
def ansi_mode(spark: SparkSession, ansi: str) -> Generator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


@pytest.mark.parametrize("ansi", MODES)
def test_all_pairs_of_types_compare_in_the_type_in_which_spark_compares_them(spark: SparkSession, ansi: str) -> None:
    types = dict(enumerate(COMPARED))
    declared = ", ".join(f"c{n} {type_}" for n, type_ in types.items())
    streams = "".join(f"CREATE STREAM {s} (t BIGINT, {declared}, WATERMARK FOR t AS t - 0);" for s in "lr")
    script = read_script(f"{streams} SELECT STREAM l.t FROM l JOIN r WITHIN 1 ON l.c0 = r.c0;")
    arrays = [
        f"array({', '.join(f'CAST({v} AS {type_})' for v in COMPARED[type_].split('; '))}) AS a{n}"
        for n, type_ in types.items()
    ]
    with ansi_mode(spark, ansi):
        values = spark.range(1).selectExpr(*arrays)
        schema = spark.sql(
            f"SELECT 0L AS t, {', '.join(f'CAST(NULL AS {t}) AS c{n}' for n, t in types.items())}"
        ).schema
        asked = SparkTypes(spark, analyze(script)[0], script, {"l": schema, "r": schema})
        checks: list[str] = []
        for one, other in product(types, types) if IS_WHOLE else combinations_with_replacement(types, 2):
            left, right = leaf_column("l", f"c{one}"), leaf_column("r", f"c{other}")
            try:
                values.selectExpr(f"a{one}[0] = a{other}[0]")
            except AnalysisException:
                if one != other:
                    with pytest.raises(WatersmeetError):
                        asked.common_type(left, right)
                continue
            common = asked.common_type(left, right)
            # In ANSI mode a text that cannot be cast is an error, in Spark's own comparison too.
            mine, theirs = (f"filter(a{n}, v -> try_cast(v AS {common}) IS NOT NULL)" for n in (one, other))
            mine, theirs = (mine, theirs) if ansi == "true" else (f"a{one}", f"a{other}")
            own, ours = (
                f"transform({mine}, l -> transform({theirs}, r -> {equal}))"
                for equal in ("l = r", f"CAST(l AS {common}) = CAST(r AS {common})")
            )
            checks.append(f"{own} <=> {ours} AS `{types[one]} as {common} as {types[other]}`")
        assert len(checks) > (80 if IS_WHOLE else 40)
        found = values.selectExpr(*checks).collect()[0].asDict()
    assert [pair for pair, is_same in found.items() if not is_same] == []


def comparable_pairs(spark: SparkSession, operator: str) -> list[tuple[str, str]]:
    """The pairs of types of which Spark compares values, in one order of the two."""
    found: list[tuple[str, str]] = []
    for one, other in combinations_with_replacement(COMPARED, 2):
        try:
            with suppress_logs():
                spark.range(0).selectExpr(f"CAST(NULL AS {one}) {operator} CAST(NULL AS {other})")
        except AnalysisException:
            continue
        found.append((one, other))
    return found


def test_values_of_all_pairs_of_types_meet_as_in_spark(spark: SparkSession) -> None:
    """One join for all pairs; without ANSI, where a text that is not a number is NULL and no error."""

    def rows(s: str, place: int) -> DataFrame:
        types = list(dict.fromkeys(pair[place] for pair in pairs))
        own = [(n, pair[place], value) for n, pair in enumerate(pairs) for value in COMPARED[pair[place]].split("; ")]
        cells = [
            ", ".join([str(n), *(f"CAST({value if kind == type_ else 'NULL'} AS {kind})" for kind in types)])
            for n, type_, value in own
        ]
        names = ", ".join(["pair", *(f"{s}{n}" for n in range(len(types)))])
        inline = ", ".join(f"({row})" for row in cells)
        return spark.sql(f"SELECT TIMESTAMP'2024-01-01 00:00:00Z' AS t, * FROM VALUES {inline} AS v({names})")

    with ansi_mode(spark, "false"):
        pairs = comparable_pairs(spark, "=")
        assert len(pairs) > 50
        left, right = rows("l", 0), rows("r", 1)
        lefts, rights = (list(dict.fromkeys(pair[place] for pair in pairs)) for place in (0, 1))
        equal = " OR ".join(
            f"(left.pair = {n} AND left.l{lefts.index(one)} = right.r{rights.index(other)})"
            for n, (one, other) in enumerate(pairs)
        )
        condition = f"left.pair = right.pair AND ({equal})"
        joined = ws.join(left, right, condition, within="1 hour", **TIMES)
        found, expected = rows_of(joined), rows_of(own_join(left, right, condition, "inner"))
        assert (sorted(found - expected), sorted(expected - found)) == ([], [])
        assert len(expected) > 50


IN_THE_PROCESS = {
    ("TINYINT", "INT"), ("TINYINT", "BIGINT"), ("TINYINT", "FLOAT"), ("TINYINT", "DOUBLE"),
    ("TINYINT", "DECIMAL(10,2)"), ("TINYINT", "DECIMAL(38,0)"), ("INT", "BIGINT"), ("INT", "DOUBLE"),
    ("INT", "DECIMAL(10,2)"), ("INT", "DECIMAL(38,0)"), ("BIGINT", "DOUBLE"), ("BIGINT", "DECIMAL(10,2)"),
    ("BIGINT", "DECIMAL(38,0)"), ("FLOAT", "DOUBLE"), ("FLOAT", "DECIMAL(10,2)"), ("DOUBLE", "DECIMAL(10,2)"),
    ("DATE", "TIMESTAMP_NTZ"),
}  # fmt: skip
"""The pairs of two types that are compared without Spark."""


@pytest.mark.parametrize("ansi", MODES)
def test_pairs_of_types_compare_in_the_process_as_in_spark_or_not_at_all(spark: SparkSession, ansi: str) -> None:
    places = {type_: n for n, type_ in enumerate(COMPARED)}
    arrays = [
        f"array({', '.join(f'CAST({v} AS {type_})' for v in values.split('; '))}) AS a{places[type_]}"
        for type_, values in COMPARED.items()
    ]
    operators: tuple[Literal["=", "<"], ...] = ("=", "<")
    with ansi_mode(spark, ansi):
        pairs: list[tuple[str, str, Literal["=", "<"]]] = [
            (one, other, operator)
            for operator in operators
            for one, other in comparable_pairs(spark, operator)
            if compares_as_spark(arrow_type(one), arrow_type(other)) and (operator == "=" or "ARRAY" not in one)
        ]
        assert {(one, other) for one, other, _ in pairs if one != other} == IN_THE_PROCESS
        compared = [
            f"flatten(transform(a{places[one]}, l -> transform(a{places[other]}, r -> l {operator} r))) AS c{n}"
            for n, (one, other, operator) in enumerate(pairs)
        ]
        table = spark.range(1).selectExpr(*arrays).selectExpr("*", *compared).toArrow()
    for n, (one, other, operator) in enumerate(pairs):
        left, right, expected = (
            table.column(name)[0].values for name in (f"a{places[one]}", f"a{places[other]}", f"c{n}")
        )
        crossed = [(i, j) for i in range(len(left)) for j in range(len(right))]
        mine, theirs = (
            side.take(pa.array(at)) for side, at in zip((left, right), zip(*crossed, strict=True), strict=True)
        )
        assert compare(operator, mine, theirs).to_pylist() == expected.to_pylist(), (one, operator, other)
        rows = pa.table({"l": mine, "r": theirs}).to_pylist()
        by_row = [evaluate(Apply(operator, (ColumnRef("l"), ColumnRef("r"))), row) for row in rows]
        assert by_row == expected.to_pylist(), (one, operator, other)


@pytest.mark.parametrize(
    ("left_type", "left_keys", "right_type", "right_keys"),
    [
        ("INT", "1; 2; NULL", "STRING", "'1'; '01'; '1.0'; ' 2'; 'x'; NULL"),
        ("DOUBLE", "1.0D; 0.5D; NULL", "STRING", "'1'; '1.0'; '0.50'; 'x'; NULL"),
        ("STRING", "'2024-01-01'; '2024-1-1'; 'x'; NULL", "DATE", "DATE'2024-01-01'; NULL"),
    ],
)
def test_keys_of_two_types_match_as_in_spark_without_ansi(
    spark: SparkSession, left_type: str, left_keys: str, right_type: str, right_keys: str
) -> None:
    with ansi_mode(spark, "false"):
        left, right = rows_by_key(spark, left_type, left_keys), rows_by_key(spark, right_type, right_keys)
        joined = ws.join(left, right, "left.k = right.k", within="1 hour", how="full", **TIMES)
        assert rows_of(joined) == rows_of(own_join(left, right, "left.k = right.k", "full"))


@pytest.mark.parametrize("pair", KEYS)
def test_keys_of_every_comparable_type_match_as_in_spark(spark: SparkSession, pair: str) -> None:
    left_type, left_keys, right_type, right_keys = KEYS[pair]
    left, right = rows_by_key(spark, left_type, left_keys), rows_by_key(spark, right_type, right_keys)
    joined = ws.join(left, right, "left.k = right.k", within="1 hour", how="full", **TIMES)
    assert rows_of(joined) == rows_of(own_join(left, right, "left.k = right.k", "full"))


def test_a_key_of_many_columns_matches_as_in_spark(spark: SparkSession) -> None:
    left, right = side(spark, 1), side(spark, 1, 2)
    names = [name for name, (type_, *_) in VALUES.items() if "MAP" not in type_ and name != "nothing"]
    condition = " AND ".join(f"left.{name} = right.{name}" for name in ("id", *names))
    joined = ws.join(left, right, condition, within="1 hour", how="full", **TIMES)
    found = rows_of(joined)
    assert found == rows_of(own_join(left, right, condition, "full"))
    assert sum(found.values()) == 2 + 1 + 4, "two matches; a row with a NULL in its key stays alone"


RESIDUALS = (
    "left.i < right.d",
    "left.s = right.i AND left.id = right.id",
    "left.i BETWEEN right.i AND right.i + 1",
    "left.i > right.i AND left.b",
    "left.i <=> right.i",
    "left.d <=> right.d",
    "left.lc = right.lc",
    "left.m - right.m > INTERVAL 1 HOUR",
)
"""Conditions of a join each: parts of them become keys, or are those of one side alone."""

COMPARISONS = (
    "left.s > right.i",
    "left.day <= right.m",
    "left.m <> right.day",
    "left.i + right.i > 3",
    "left.i * 2 - right.d <= -right.i",
    "right.d <> 0 AND left.i / right.d > 1",
    "left.i % 3 = right.i % 2",
    "left.i < right.i OR left.d > right.d",
    "left.i < right.i OR left.b",
    "NOT (left.i < right.i)",
    "NOT (left.i = right.i AND left.d = right.d)",
    "(left.i + right.i) IS NULL",
    "(left.i > right.i) IS NOT NULL",
    "left.s <=> right.s OR left.b <> right.b",
    "left.d >= right.d",
    "left.d < right.d",
    "left.dec > right.dec",
    "left.dec + right.dec > 2",
    "left.i IN (1, 2) OR right.i = 3",
    "upper(left.s) < right.s",
    "left.m - INTERVAL 1 DAY < right.m",
)
"""Conditions that are compared row by row: one join has all of them, each for rows of its own."""

MIXED = """
SELECT id, TIMESTAMP'2024-01-01 00:00:00Z' AS t, i, CAST(d AS DOUBLE) AS d, CAST(s AS STRING) AS s,
       CAST(day AS DATE) AS day, CAST(m AS TIMESTAMP) AS m, b, CAST(dec AS {dec}) AS dec,
       CAST(s AS STRING COLLATE UTF8_LCASE) AS lc
FROM VALUES (1, 1, 'NaN', '1', '2024-01-01', '2024-01-01 00:00:00', true, 1.5),
            (1, 2, '0.5', '2', '2024-01-02', '2024-01-01 12:00:00', false, 1.49),
            (1, NULL, '-0.0', NULL, NULL, '2024-01-03', NULL, NULL),
            (1, 3, NULL, '10', '2024-01-03', NULL, true, -2.25),
            (1, 0, '0.0', '3', '2023-12-31', '2023-12-31', false, 0),
            (2, 5, '5', '5', '2024-01-05', '2024-01-05', true, 5),
            (NULL, 1, '1', '1', '2024-01-01', '2024-01-01', true, 1) AS v(id, i, d, s, day, m, b, dec)
"""

ONLY_SPARK = (
    "CASE WHEN left.i > right.i THEN true ELSE left.b END",
    "concat(left.s, right.s) LIKE '1%'",
    "coalesce(left.i, right.i) = 3",
    "right.dec <> 0 AND left.dec / right.dec = -0.666666667BD",
)
"""Conditions that an inner join leaves to Spark."""


@pytest.mark.parametrize(
    ("residual", "how"), [*((residual, "full") for residual in RESIDUALS), *((other, "inner") for other in ONLY_SPARK)]
)
def test_conditions_across_the_sides_are_those_of_spark(spark: SparkSession, residual: str, how: str) -> None:
    left = spark.sql(MIXED.format(dec="DECIMAL(10,2)"))
    right = spark.sql(MIXED.format(dec="DECIMAL(6,3)")).where("i <> 5 OR i IS NULL")
    condition = f"left.id = right.id AND ({residual})"
    joined = ws.join(left, right, condition, within="1 hour", how=how, **TIMES)
    found, expected = rows_of(joined), rows_of(own_join(left, right, condition, how))
    assert (sorted(found - expected), sorted(expected - found)) == ([], [])


def test_comparisons_across_the_sides_are_those_of_spark(spark: SparkSession) -> None:
    cases = spark.range(len(COMPARISONS)).withColumnRenamed("id", "case")
    left = spark.sql(MIXED.format(dec="DECIMAL(10,2)")).crossJoin(cases)
    right = spark.sql(MIXED.format(dec="DECIMAL(6,3)")).where("i <> 5 OR i IS NULL").crossJoin(cases)
    chosen = " OR ".join(f"(left.case = {number} AND ({text}))" for number, text in enumerate(COMPARISONS))
    condition = f"left.case = right.case AND left.id = right.id AND ({chosen})"
    joined = ws.join(left, right, condition, within="1 hour", how="full", **TIMES)
    result, expected = rows_of(joined), rows_of(own_join(left, right, condition, "full"))
    assert (sorted(result - expected), sorted(expected - result)) == ([], [])


@pytest.mark.parametrize("how", ["inner", "left", "right"])
def test_an_unknown_condition_is_no_match(spark: SparkSession, how: str) -> None:
    left = spark.sql(MIXED.format(dec="DECIMAL(10,2)"))
    condition = "left.id = right.id AND (left.i > right.i OR NOT (left.b AND right.b))"
    joined = ws.join(left, left, condition, within="1 hour", how=how, **TIMES)
    assert rows_of(joined) == rows_of(own_join(left, left, condition, how))


@pytest.mark.parametrize("type_", ["STRUCT<a: STRING COLLATE UTF8_LCASE>", "STRING COLLATE UNICODE_CI"])
def test_collations_that_only_spark_knows_are_refused(spark: SparkSession, type_: str) -> None:
    frame = spark.createDataFrame([], f"k {type_}, t TIMESTAMP")
    with pytest.raises(WatersmeetError) as caught:
        ws.join(frame, frame, on="left.k = right.k", within="1 hour", left_time="t", right_time="t")
    assert caught.value.getCondition() == "TYPE_MISMATCH"
    assert "CAST(x AS STRING)" in str(caught.value)


LCASE = "STRING COLLATE UTF8_LCASE"
TOLD_APART = {
    "GROUP BY or DISTINCT": (
        "SELECT TABLE {} AS k, count(*) AS n FROM s GROUP BY {}",
        "SELECT TABLE DISTINCT {} AS k FROM s",
        "SELECT TABLE k, n FROM (SELECT TABLE {} AS k, count(*) AS n FROM s GROUP BY {}) AS inside",
    ),
    "count(DISTINCT)": ("SELECT TABLE count(DISTINCT {}) AS n FROM s",),
    "PARTITION BY": ("SELECT TABLE v FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY {} ORDER BY v) <= 1",),
    "SELECT TABLE over a stream": ("SELECT TABLE {} AS _key, v FROM s",),
}


@pytest.mark.parametrize(("clause", "query"), [(clause, one) for clause, some in TOLD_APART.items() for one in some])
def test_a_collation_that_bytes_do_not_follow_is_refused_by_name(spark: SparkSession, clause: str, query: str) -> None:
    frame = spark.createDataFrame([], f"k {LCASE}, v INT")

    def build(key: str) -> None:
        ws.sql(f"CREATE STREAM s (k {LCASE}, v INT); {query.replace('{}', key)};", spark=spark, s=frame)

    # Of what Spark computes, only Spark knows the collation.
    with pytest.raises(WatersmeetError) as caught:
        build("lower(k)")
    (refusal,) = caught.value.refusals
    assert (refusal.condition, refusal.parameters["expression"]) == ("TYPE_MISMATCH", clause)
    assert "CAST(lower(x) AS STRING)" in refusal.hint
    build("CAST(lower(k) AS STRING)")
    build("CAST(k AS STRING)")


def test_a_primary_key_of_a_collation_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], f"k {LCASE}, v INT, _change STRING")

    def build(type_: str) -> None:
        given = frame.withColumn("k", F.expr(f"CAST(k AS {type_})"))
        ws.sql(f"CREATE TABLE s (k {type_}, v INT, PRIMARY KEY (k)); SELECT TABLE k, v FROM s;", spark=spark, s=given)

    with pytest.raises(WatersmeetError, match=r"PRIMARY KEY.*replace each other by the bytes of `k`"):
        build(LCASE)
    build("STRING")
