"""Values at and around the ends of every type, from every reader: the exact value, or a malformed row.

What is expected is computed here from the text alone. All values of a reader are in one query.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Field, Source
from watersmeet.errors import refusal_in
from watersmeet.formats import feed_of, source_format

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

Reader = Literal["json files", "json records", "csv files", "csv records"]
ALL = os.environ.get("WATERSMEET_CASES") == "all"
"""Whether records, too, have every value in every nesting, as files always have."""
MALFORMED = None
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
MOST_SECONDS = (2**63 - 1) // 10**6
LAST_FLOAT, LAST_DOUBLE = 2**128 - 2**103, 2**1024 - 2**970
"""The first numbers that round to infinity."""


@dataclass(frozen=True)
class Case:
    """A text for a value of a type, and what it is: the text of the value as `text_of` has it, or MALFORMED."""

    type: str
    text: str
    is_quoted: bool
    expected: str | None


def integers(die: random.Random) -> Iterator[Case]:
    for type_, bits in BITS.items():
        least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        ends = [end + step for end in (least, most, 2**bits - 1, -(2**bits), 0, 2**63, 2**64) for step in (-1, 0, 1)]
        near = [die.randrange(2 * least, 2 * most) for _ in range(20)]
        for number in (*ends, *near):
            yield Case(type_, str(number), False, str(number) if least <= number <= most else MALFORMED)
        yield Case(type_, "1e2", False, MALFORMED)
        yield Case(type_, "x", True, MALFORMED)


def fractions(die: random.Random) -> Iterator[Case]:
    for type_, first in (("FLOAT", LAST_FLOAT), ("DOUBLE", LAST_DOUBLE)):
        around = [str(sign * (first + step)) for sign in (1, -1) for step in (-1, 0, 1)]
        powers = [f"{die.choice('-+').strip('+')}{die.randrange(1, 10)}.5e{die.randrange(-60, 420)}" for _ in range(30)]
        for text in ("0.0", "1.5", "1e400", "-1e400", "1E+39", "1e308", "1.7976931348623157e308", *around, *powers):
            exact = Fraction(text)
            yield Case(type_, text, False, repr(_round(exact, type_)) if abs(exact) < first else MALFORMED)
        yield Case(type_, "NaN", True, "nan")
        yield Case(type_, "x1", True, MALFORMED)
        for text in ("Infinity", "-Infinity"):
            yield Case(type_, text, True, repr(float(text)))


def _round(exact: Fraction, type_: str) -> float:
    """The nearest number of a type, of a FLOAT too: none of those here is half-way between two."""
    if type_ == "DOUBLE":
        return float(exact)
    number = np.float32(float(exact)) if abs(exact) < 3.4e38 else np.float32(np.sign(float(exact))) * np.finfo("f4").max
    return float(number)


def decimals(die: random.Random) -> Iterator[Case]:
    texts = ["999.99", "999.994", "999.995", "1000", "-999.99", "-999.995", "0.004", "0.005", "1e2", "1e400", "1e3"]
    texts += [str(Decimal(die.randrange(-200_000, 200_000)).scaleb(-2)) for _ in range(20)]
    for text in texts:
        number = (
            Decimal(text).quantize(Decimal("0.01"), ROUND_HALF_UP) if abs(Decimal(text)) < 10**9 else Decimal(10**9)
        )
        yield Case("DECIMAL(5,2)", text, False, str(number) if abs(number) < 1000 else MALFORMED)
    yield Case("DECIMAL(38,0)", str(10**38 - 1), False, str(10**38 - 1))
    yield Case("DECIMAL(38,0)", str(10**38), False, MALFORMED)


def times(die: random.Random) -> Iterator[Case]:
    last, first = "+294247-01-10T04:00:54.775807", "-290308-12-21T19:59:05.224192"
    beyond = ("+294247-01-10T04:00:54.775808", "-290308-12-21T19:59:05.224191", "+294248-01-01T00:00:00", "soon", "")
    moments = [datetime.fromisoformat(f"{die.randrange(1, 10_000):04}-03-0{die.randrange(1, 10)}") for _ in range(10)]
    plain = {moment.isoformat(): (moment - datetime(1970, 1, 1)).days * 86_400 * 10**6 for moment in moments}
    for type_, zone in (("TIMESTAMP", "Z"), ("TIMESTAMP_NTZ", "")):
        for text, micros in ({last: 2**63 - 1, first: -(2**63)} | plain).items():
            yield Case(type_, f"{text}{zone}", True, str(micros))
        for text in beyond:
            yield Case(type_, text and f"{text}{zone}", True, MALFORMED)
    days = {"+5881580-07-11": 2**31 - 1, "-5877641-06-23": -(2**31), "2024-02-29": 19_782}
    for text, day in days.items():
        yield Case("DATE", text, True, str(day))
    for text in (
        "+5881580-07-12",
        "-5877641-06-22",
        "2023-02-29",
        "20240229",
        "2147483647",
        "2147483648",
        "99999999-01-01",
    ):
        yield Case("DATE", text, True, MALFORMED)


def seconds(die: random.Random) -> Iterator[Case]:
    """Numbers for times, which only JSON has."""
    ends = [end + step for end in (0, MOST_SECONDS, -MOST_SECONDS, 2**63, -(2**63), 10**15) for step in (-1, 0, 1)]
    for number in (*ends, 2026, *(die.randrange(-(2**63), 2**63) for _ in range(10)), 1_700_000_000, 1_700_000_000_000):
        yield Case("TIMESTAMP", str(number), False, str(number * 10**6) if abs(number) <= MOST_SECONDS else MALFORMED)
        yield Case("TIMESTAMP_NTZ", str(number), False, MALFORMED)
        yield Case("DATE", str(number), False, MALFORMED)
    yield Case("TIMESTAMP", "1.5", False, MALFORMED)
    # Text of four digits is a year.
    yield Case("TIMESTAMP", "2026", True, str((date(2026, 1, 1) - date(1970, 1, 1)).days * 86_400 * 10**6))


def others(die: random.Random) -> Iterator[Case]:
    for text in ("true", "false"):
        yield Case("BOOLEAN", text, False, text)
    for text in ("2", "-1"):
        yield Case("BOOLEAN", text, False, MALFORMED)
    for text in ("x", "ü", "0" * 50, "1e400"):
        yield Case("STRING", text, True, text)
    months, micros = 2**31 - 1, 2**63 - 1
    yield Case("INTERVAL YEAR TO MONTH", f"INTERVAL '{months // 12}-{months % 12}' YEAR TO MONTH", True, str(months))
    yield Case("INTERVAL YEAR TO MONTH", f"INTERVAL '{months // 12}-{months % 12 + 1}' YEAR TO MONTH", True, MALFORMED)
    day_time = "INTERVAL '106751991 04:00:54.77580{}' DAY TO SECOND"
    yield Case("INTERVAL DAY TO SECOND", day_time.format(7), True, str(micros))
    yield Case("INTERVAL DAY TO SECOND", day_time.format(8), True, MALFORMED)


def binaries(die: random.Random) -> Iterator[Case]:
    for length in range(5):
        data = die.randbytes(length)
        yield Case("BINARY", base64.b64encode(data).decode(), True, data.hex().upper())
    yield Case("BINARY", "!", True, MALFORMED)


def text_of(value: Column, type_: str) -> Column:
    """A value as a text that only this value has."""
    match type_:
        case "TIMESTAMP" | "TIMESTAMP_NTZ":
            value = F.unix_micros(value.cast("timestamp"))
        case "DATE":
            value = F.unix_date(value)
        case "FLOAT":
            value = value.cast("double")
        case "BINARY":
            value = F.hex(value)
        case "INTERVAL YEAR TO MONTH":
            value = F.expr("1") * F.extract(F.lit("YEAR"), value) * 12 + F.extract(F.lit("MONTH"), value)
        case "INTERVAL DAY TO SECOND":
            days = F.extract(F.lit("DAY"), value).cast("bigint") * 86_400_000_000
            hours = (F.extract(F.lit("HOUR"), value) * 60 + F.extract(F.lit("MINUTE"), value)).cast(
                "bigint"
            ) * 60_000_000
            value = days + hours + (F.extract(F.lit("SECOND"), value) * 1_000_000).cast("bigint")
        case _:
            pass
    return value.cast("string")


NESTED = "ARRAY<STRUCT<m: MAP<STRING, {}>>>"
WRAPS = {"{}": "{}", NESTED: '[{{"m": {{"k": {}}}}}]'}
"""The types around a type, and the JSON around its value."""


def innermost(column: Column, wrap: str) -> Column:
    return column[0]["m"]["k"] if wrap == NESTED else column


def check(frame: DataFrame, columns: dict[tuple[str, str], str], cases: list[Case]) -> None:
    """Compare what was read with what is expected of each case; the row of a case has its number as ``id``."""
    values = [text_of(innermost(F.col(name), wrap), type_) for (type_, wrap), name in columns.items()]
    found = {row[0]: tuple(row)[1:] for row in frame.select("id", F.coalesce(*values), "`#reason`").collect()}
    assert found.keys() == set(range(len(cases)))
    wrong: list[tuple[Case, Any]] = []
    for number, case in enumerate(cases):
        value, reason = found[number]
        if case.type in ("FLOAT", "DOUBLE") and value is not None:
            value = repr(float(value))
        if (case.expected is None) != (reason is not None) or (reason is None and value != case.expected):
            wrong.append((case, found[number]))
    assert wrong == []


@pytest.mark.parametrize("reader", ["json files", "json records", "csv files", "csv records"])
def test_a_text_is_its_exact_value_or_malformed(spark: SparkSession, tmp_path: Path, reader: Reader) -> None:
    from watersmeet.spark.connectors.malformed import load_text
    from watersmeet.spark.connectors.records import decode_records

    die, is_json = random.Random(reader), reader.startswith("json")
    makers = (integers, fractions, decimals, times, others, *((seconds, binaries) if is_json else ()))
    plain = [case for make in makers for case in make(die) if is_json or case.text]
    wraps = [*WRAPS][: None if ALL or reader == "json files" else 1] if is_json else ["{}"]
    pairs = [(case, wrap) for wrap in wraps for case in plain]
    columns: dict[tuple[str, str], str] = {}
    for case, wrap in pairs:
        columns.setdefault((case.type, wrap), f"v{len(columns)}")
    texts, cases = list[str](), list[Case]()
    for case, wrap in pairs:
        name, number = columns[case.type, wrap], len(texts)
        if is_json:
            value = json.dumps(case.text) if case.is_quoted else case.text
            texts.append(f'{{"id": {number}, "{name}": {WRAPS[wrap].format(value)}}}')
        else:
            texts.append(",".join([str(number), *(case.text if other == name else "" for other in columns.values())]))
        is_infinite = case.type in ("FLOAT", "DOUBLE") and "Infinity" in case.text
        # A file of CSV does not tell such a text from a number that is too large.
        cases.append(
            Case(case.type, case.text, case.is_quoted, MALFORMED) if is_infinite and reader == "csv files" else case
        )
    fields = (Field("id", "BIGINT"), *(Field(name, wrap.format(type_)) for (type_, wrap), name in columns.items()))
    source = Source("s", fields, options={"value.format": reader.split()[0]})
    if reader.endswith("records"):
        rows = [(None, text.encode(), "t", 0, n) for n, text in enumerate(texts)]
        kafka = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"
        frame = decode_records(source, spark.createDataFrame(rows, kafka).coalesce(1))
    else:
        (tmp_path / "values.txt").write_text("\n".join(texts))
        source = Source("s", fields, kind="table", format=reader.split()[0], options={"static": "true"})
        schema = ", ".join(f"`{field.name}` {field.type}" for field in fields)
        frame = load_text(spark, source, schema, {"path": f"file:{tmp_path}"}, is_json=is_json)
    check(frame, columns, cases)


def test_values_in_the_names_of_folders_have_their_declared_types(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.connectors.malformed import load_text

    folder = tmp_path / "n=7" / "at=2026-03-02 08%3A00%3A00"
    folder.mkdir(parents=True)
    (folder / "values.json").write_text('{"id": 1, "m": 100}\n{"id": 2, "m": 200}')
    fields = (Field("id", "BIGINT"), Field("m", "TINYINT"), Field("n", "TINYINT"), Field("at", "TIMESTAMP"))
    source = Source("s", fields, kind="table", format="json", options={"static": "true"})
    schema = ", ".join(f"`{field.name}` {field.type}" for field in fields)
    frame = load_text(spark, source, schema, {"path": f"file:{tmp_path}"}, is_json=True)
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema][:4] == [
        ("id", "bigint"), ("m", "tinyint"), ("n", "tinyint"), ("at", "timestamp"),
    ]  # fmt: skip
    rows = frame.selectExpr("id", "m", "n", "date_format(at, 'yyyy-MM-dd HH:mm')").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, 100, 7, "2026-03-02 08:00"), (2, None, 7, "2026-03-02 08:00")]


FILES = [
    ("parquet", "INT", "TINYINT"), ("parquet", "INT", "SMALLINT"), ("parquet", "SMALLINT", "TINYINT"),
    ("orc", "INT", "TINYINT"), ("orc", "BIGINT", "SMALLINT"), ("orc", "BIGINT", "INT"), ("orc", "DOUBLE", "FLOAT"),
]  # fmt: skip
"""Of a format, a type in its files, and one with less room that Spark reads it as."""


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_a_value_of_a_file_is_exact_or_stops_the_query(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    from watersmeet.spark.connectors import decode_changes, source_connector

    """With or without ANSI, whose casts would give another value; also inside of other types."""
    pairs = [(stored, declared) for name, stored, declared in FILES if name == format_]
    rows: list[dict[str, Any]] = []
    for column, (stored, declared) in enumerate(pairs):
        if declared == "FLOAT":
            ends: list[Any] = [3.4028234663852886e38, -3.4028234663852886e38, 1e300, -1e39, float("inf"), 1.5]
            fits = [abs(end) < 1e39 or end == float("inf") for end in ends]
        else:
            most, room = 2 ** (BITS[declared] - 1), 2 ** (BITS[stored] - 1)
            ends = [most - 1, -most, most, -most - 1, 2 * most - 1, -2 * most, room - 1, -room, 0]
            ends = [end for end in ends if -room <= end < room]
            fits = [-most <= end < most for end in ends]
        rows += [{"column": column, "value": end, "fits": is_fit} for end, is_fit in zip(ends, fits, strict=True)]
    wraps = {
        "{}": "{}",
        "ARRAY<{}>": "array({})",
        "STRUCT<v: {}>": "named_struct('v', {})",
        "MAP<STRING, {}>": "map('k', {})",
    }
    names = {(n, wrap): f"v{n}_{m}" for n in range(len(pairs)) for m, wrap in enumerate(wraps)}
    frame = spark.createDataFrame(
        [(n, row["column"], float(row["value"]), str(row["value"])) for n, row in enumerate(rows)],
        "id BIGINT, number INT, real DOUBLE, text STRING",
    )
    columns: list[Column] = []
    for (n, wrap), name in names.items():
        value = (
            f"CASE WHEN number = {n} THEN CAST({'real' if pairs[n][0] == 'DOUBLE' else 'text'} AS {pairs[n][0]}) END"
        )
        columns.append(F.expr(wraps[wrap].format(value)).alias(name))
    frame.select("id", *columns).coalesce(1).write.format(format_).save(f"file:{tmp_path}/files")
    fields = (Field("id", "BIGINT"), *(Field(name, wrap.format(pairs[n][1])) for (n, wrap), name in names.items()))
    source = Source("s", fields, kind="table", format=format_, options={"static": "true"})
    schema = feed_of(source).schema(source_format(source))
    loaded = source_connector(source).load(spark, schema, {"path": f"file:{tmp_path}/files"})
    good = [n for n, row in enumerate(rows) if row["fits"]]
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            for row in decode_changes(source, loaded.where(F.col("id").isin(good))).collect():
                expected = rows[row["id"]]
                values = [row[f"v{expected['column']}_{m}"] for m in range(4)]
                assert [values[0], values[1][0], values[2]["v"], values[3]["k"]] == [expected["value"]] * 4
            bad = [n for n, row in enumerate(rows) if not row["fits"]]
            assert len(bad) >= 4
            # One column of one row at a time, since the first value stops the query.
            for m, number in enumerate(random.Random(ansi).sample(bad, 4)):
                column = f"v{rows[number]['column']}_{m}"
                with pytest.raises(Exception, match="VALUE_OUT_OF_RANGE") as raised:
                    decode_changes(source, loaded.where(F.col("id") == number)).select(column).collect()
                refusal = refusal_in(str(raised.value))
                assert refusal is not None and refusal.parameters["column"] == column
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


TEXTS = {
    "TINYINT": (["-128", "127", " 7"], ["128", "x", "1.5", ""]),
    "INT": (["-2147483648", "2147483647"], ["2147483648", "x"]),
    "BIGINT": (["9223372036854775807"], ["9223372036854775808", "n/a"]),
    "DECIMAL(4,2)": (["12.34", "-0.5"], ["100.00", "x"]),
    "BOOLEAN": (["true", "false"], ["x", "7"]),
    "DATE": (["2024-02-29"], ["2024-02-30", "x"]),
}
"""By the declared type, texts that are values of it, and texts that are not. NaN has no text in ORC's reader, so FLOAT
and DOUBLE are read as such."""


def test_a_text_of_an_orc_file_is_a_value_or_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's reader gives NULL for a text that it cannot convert."""
    from watersmeet.spark.connectors import decode_changes, source_connector

    rows = [(type_, text, text in good) for type_, (good, bad) in TEXTS.items() for text in (*good, *bad)]
    names = {type_: f"v{n}" for n, type_ in enumerate(TEXTS)}
    frame = spark.createDataFrame([(n, *row[:2]) for n, row in enumerate(rows)], "id BIGINT, type STRING, text STRING")
    columns = [F.expr(f"CASE WHEN type = '{type_}' THEN text END").alias(name) for type_, name in names.items()]
    inside = [F.expr(f"CASE WHEN type = '{type_}' THEN array(text) END").alias(f"a{n}") for type_, n in names.items()]
    frame.select("id", *columns, *inside).coalesce(1).write.orc(f"file:{tmp_path}/a b")
    fields = [Field("id", "BIGINT"), *(Field(name, type_) for type_, name in names.items())]
    fields += [Field(f"a{name}", f"ARRAY<{type_}>") for type_, name in names.items()]
    source = Source("s", tuple(fields), kind="table", format="orc", options={"static": "true"})
    loaded = source_connector(source).load(
        spark, feed_of(source).schema(source_format(source)), {"path": f"file:{tmp_path}/a b"}
    )
    good = [n for n, row in enumerate(rows) if row[2]]
    read = decode_changes(source, loaded.where(F.col("id").isin(good))).collect()
    assert len(read) == len(good)
    for row in read:
        type_, text, _ = rows[row["id"]]
        name = names[type_]
        [[expected]] = spark.sql(f"SELECT CAST('{text}' AS {type_})").collect()
        assert repr(row[name]) == repr(row[f"a{name}"][0]) == repr(expected)
    for n, (type_, _, fits) in enumerate(rows):
        column = random.Random(n).choice([names[type_], f"a{names[type_]}"])
        if not fits:
            with pytest.raises(Exception, match="VALUE_OUT_OF_RANGE") as raised:
                decode_changes(source, loaded.where(F.col("id") == n)).select(column).collect()
            refusal = refusal_in(str(raised.value))
            assert refusal is not None and refusal.parameters["column"] == column
            assert str(refusal.parameters["where"]).startswith(f", in {tmp_path}/a b/part-")


def test_values_of_an_orc_file_are_exact(spark: SparkSession, tmp_path: Path) -> None:
    """Also those of folders, and inside of other types."""
    from watersmeet.spark.connectors import decode_changes, source_connector

    rows = spark.sql("""
        SELECT * FROM VALUES
          (1, -128Y, -32768S, 2147483647, 9223372036854775807L, 1.1F, 0.1D, 12345678901234567890123456789012345.678BD,
           true, DATE '0001-01-01', MAP(7, -0.0D), TIMESTAMP '1900-01-01 00:00:00', 3),
          (2, 127Y, 32767S, -2147483648, -9223372036854775808L, 3.4028234E38F, 4.9E-324D, -0.001BD,
           false, DATE '9999-12-31', MAP(8, CAST('NaN' AS DOUBLE)), TIMESTAMP '2024-06-01 12:00:00.123456', 4),
          (3, NULL, NULL, NULL, NULL, CAST('-Infinity' AS FLOAT), 1.7976931348623157E308D, NULL,
           NULL, NULL, NULL, NULL, 4)
        AS t (id, b, s, i, l, f, d, n, o, day, m, at, p)""").selectExpr(
        "id", "b", "s", "i", "l", "f", "d", "CAST(n AS DECIMAL(38,3)) AS n", "o", "day", "m", "at",
        "named_struct('x', l, 'y', array(f, d)) AS nested", "p",
    )  # fmt: skip
    rows.coalesce(1).write.partitionBy("p").orc(f"file:{tmp_path}/files")
    fields = tuple(Field(f.name, f.dataType.simpleString()) for f in rows.schema)
    source = Source("s", fields, kind="table", format="orc", options={"static": "true"})
    loaded = source_connector(source).load(
        spark, feed_of(source).schema(source_format(source)), {"path": f"file:{tmp_path}/files"}
    )
    read = decode_changes(source, loaded).select(*rows.columns).orderBy("id")
    assert [(f.name, f.dataType.simpleString()) for f in read.schema] == [
        (f.name, f.dataType.simpleString()) for f in rows.schema
    ]
    assert list(map(repr, read.collect())) == list(map(repr, rows.orderBy("id").collect()))


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_a_decimal_of_a_parquet_file_is_exact_or_stops_the_query(
    spark: SparkSession, tmp_path: Path, vectorized: str
) -> None:
    """Spark's reader of rows gives NULL for one with too many digits; files with many columns always have that one."""
    from watersmeet.spark.connectors import decode_changes, source_connector

    values = ["999.99", "-999.99", "1000.00", "-123456789012345.67"]
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(values)], "id BIGINT, text STRING")
    stored = frame.selectExpr("id", "CAST(text AS DECIMAL(20,2)) AS v", "array(CAST(text AS DECIMAL(20,2))) AS a")
    stored.coalesce(1).write.parquet(f"file:{tmp_path}/files")
    fields = (Field("id", "BIGINT"), Field("v", "DECIMAL(5,2)"), Field("a", "ARRAY<DECIMAL(5,2)>"))
    source = Source("s", fields, kind="table", format="parquet", options={"static": "true"})
    setting = "spark.sql.parquet.enableVectorizedReader"
    spark.conf.set(setting, vectorized)
    try:
        loaded = source_connector(source).load(
            spark, feed_of(source).schema(source_format(source)), {"path": f"file:{tmp_path}/files"}
        )
        read = decode_changes(source, loaded.where("id < 2")).orderBy("id").collect()
        assert [(row["v"], row["a"]) for row in read] == [(Decimal(text), [Decimal(text)]) for text in values[:2]]
        for number, column in ((2, "v"), (3, "v"), (2, "a"), (3, "a")):
            with pytest.raises(Exception, match="VALUE_OUT_OF_RANGE") as raised:
                decode_changes(source, loaded.where(f"id = {number}")).select(column).collect()
            refusal = refusal_in(str(raised.value))
            assert refusal is not None and refusal.parameters["column"] == column
            assert str(refusal.parameters["where"]).startswith(f", in {tmp_path}/files/part-")
    finally:
        spark.conf.unset(setting)


def test_workers_read_parquet_as_types_with_as_much_room_only(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from watersmeet.spark.connectors.parquet import ParquetColumns, UnlikeSparkError

    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
             pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(20, 0), pa.timestamp("ms"),
             pa.timestamp("us"), pa.date32()]  # fmt: skip
    reads = 0
    for stored in kinds:
        path = str(tmp_path / "values.parquet")
        if pa.types.is_integer(stored):
            bits, signed = stored.bit_width, pa.types.is_signed_integer(stored)
            ends: list[Any] = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1]
        elif pa.types.is_floating(stored):
            ends = [
                float(end) for end in (np.finfo(stored.to_pandas_dtype()).max, np.finfo(stored.to_pandas_dtype()).min)
            ]
        elif pa.types.is_decimal(stored):
            ends = [Decimal(10**stored.precision - 1).scaleb(-stored.scale)]
        else:
            ends = [-1, 0, 1]
        values = pa.array(ends, stored)
        pq.write_table(pa.table({"v": values}), path, store_schema=False)
        for declared in (kind for kind in kinds if kind != pa.timestamp("ms")):
            reader = ParquetColumns("s", ("v",), pa.schema([("v", declared)]), str(tmp_path))
            try:
                reader.check(path)
            except UnlikeSparkError:
                continue
            read = pa.concat_arrays([batch.column(0) for batch in reader.read(path)])
            assert [Fraction(_number(v)) for v in read] == [Fraction(_number(v)) for v in values], (stored, declared)
            reads += 1
    assert reads > len(kinds)


def _number(value: Any) -> Any:
    """A value as a number: times in microseconds, dates in days."""
    if pa.types.is_timestamp(value.type):
        return value.cast(pa.timestamp("us")).value
    return value.value if pa.types.is_date32(value.type) else value.as_py()


def test_values_of_records_in_avro_are_exact_or_malformed() -> None:
    from watersmeet.codec.avro_schema import read_schema
    from watersmeet.codec.avro_values import AvroDecoder

    numbers = [
        end + step for end in (-(2**31), -(2**15), -128, 0, 127, 255, 2**15, 2**16, 2**31 - 1) for step in (-1, 0, 1)
    ]
    numbers = [number for number in numbers if -(2**31) <= number < 2**31]
    schema = read_schema('{"type": "record", "name": "R", "fields": [{"name": "v", "type": "int"}]}')
    records = pa.array([_varint((number << 1) ^ (number >> 63)) for number in numbers])
    for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)):
        decoded = AvroDecoder(schema, pa.struct([("v", kind)])).rows(records)
        fits = [-(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in numbers]
        assert [not bad for bad in decoded.bad.tolist()] == fits
        read = decoded.values.field(0).to_pylist()
        assert [value for value, fit in zip(read, fits, strict=True) if fit] == [
            number for number, fit in zip(numbers, fits, strict=True) if fit
        ]


def _varint(number: int) -> bytes:
    """A whole number as Avro and Protobuf write it, in 64 bits."""
    number &= 2**64 - 1
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("timestamps", (-62_135_596_800, 253_402_300_799)), ("durations", (-315_576_000_000, 315_576_000_000))],
)
def test_times_of_records_in_protobuf_are_exact_or_malformed(kind: str, limit: tuple[int, int]) -> None:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from watersmeet.formats.protobuf import values

    ends = [end + step for end in (*limit, 0, 2**62) for step in (-1, 0, 1)]
    ends += [2**63 - 1, -(2**63), -(2**63) + 1, MOST_SECONDS, MOST_SECONDS + 1, -MOST_SECONDS - 1]
    made = Timestamp if kind == "timestamps" else Duration
    messages = values.ParsedMessages(
        [made(seconds=end) for end in ends], np.arange(len(ends)), np.zeros(len(ends), bool)
    )
    read = getattr(values, kind)(messages).cast(pa.int64()).to_pylist()
    fits = [limit[0] <= end <= limit[1] for end in ends]
    assert [not bad for bad in messages.bad.tolist()] == fits
    assert [value for value, fit in zip(read, fits, strict=True) if fit] == [
        end * 10**6 for end, fit in zip(ends, fits, strict=True) if fit
    ]


def test_values_of_debezium_and_of_keys_are_exact_or_malformed(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes
    from watersmeet.spark.connectors.records import decode_records

    numbers = [-129, -128, -1, 0, 127, 128, 200, 255, 256]
    fields = (Field("id", "BIGINT"), Field("n", "TINYINT"), Field("d", "DOUBLE"))
    source = Source("s", fields, kind="table", primary_key=("id",), changes="debezium")
    rows = [{"id": n, "n": number} for n, number in enumerate(numbers)]
    texts = [json.dumps({"op": "c", "after": row}) for row in rows]
    texts += [json.dumps({"payload": {"op": "c", "after": row}}) for row in rows]
    texts += ['{"op": "c", "after": {"id": 1, "d": 1e400}}', '{"op": "c", "after": {"id": 1, "d": "Infinity"}}']
    frame = spark.createDataFrame([(text,) for text in texts], "value STRING").coalesce(1)
    read = [tuple(row) for row in debezium_changes(source, frame).select("n", "`#reason`").collect()]
    fits = [*[-128 <= number <= 127 for number in numbers] * 2, False, True]
    assert [reason is None for _, reason in read] == fits
    assert [value for value, reason in read if reason is None][:-1] == [n for n in numbers if -128 <= n <= 127] * 2

    keyed = Source(
        "k", (Field("n", "TINYINT"), Field("x", "STRING")), kind="table", primary_key=("n",),
        options={"value.format": "json"},
    )  # fmt: skip
    records = [(json.dumps({"n": number}).encode(), b'{"x": "a"}', "t", 0, n) for n, number in enumerate(numbers)]
    kafka = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"
    found = decode_records(keyed, spark.createDataFrame(records, kafka).coalesce(1)).select("n").collect()
    # A row without a value of its primary key is malformed.
    assert [row[0] for row in found] == [number if -128 <= number <= 127 else None for number in numbers]


def test_a_value_out_of_range_stops_a_query_with_its_file_line_and_text(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.errors import WatersmeetError
    from watersmeet.queries import read_script
    from watersmeet.spark.run.running import run_script

    lines = ('{"id": 1, "t": "2024-01-01T00:00:00Z"}', "", '{"id": 2, "more": 1, "t": 1700000000000000}', '{"id": 3}')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "o.json").write_text("\n".join(lines))
    text = f"""
        CREATE STREAM o (id BIGINT, t TIMESTAMP, n TINYINT) USING json OPTIONS (path '{tmp_path}/in');
        CREATE SINK r USING parquet OPTIONS (path '{tmp_path}/out');
        INSERT INTO r SELECT STREAM id FROM o;"""
    with pytest.raises(WatersmeetError) as raised:
        run_script(read_script(text), spark=spark, storage=tmp_path / "storage", trigger="end")
    [refusal] = raised.value.refusals
    assert f"{tmp_path}/in/o.json, line 3: `t` is TIMESTAMP and the text has 1700000000000000" in refusal.message
