"""Rows that cannot be read: the query stops and names them, or they are counted, dropped and kept apart."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import watersmeet as ws
from watersmeet.catalog import Field, Source
from watersmeet.errors import WatersmeetError, refusal_in
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ORDERS = """{"id": 1, "t": "2024-01-01T00:00:00Z", "amount": 1.5}
{"id": 2, "t": "2024-01-01T00:00:01Z", "amount": "abc"}
garbage
{"id": 3, "t": "2024-01-01T00:00:02Z", "amount": 2.5}

garbage
{"foo": 4}
{"id": 4, "t": "2024-01-01T00:0"""
DELIVERIES = """order_id,t,courier
1,2024-01-01T00:00:00Z,x
x3,2024-01-01T00:00:02Z,y
3,2024-01-01T00:00:02Z
3,2024-01-01T00:00:02Z,z
"""
JOIN = "SELECT STREAM o.id, d.courier FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id"


def script(folder: Path, query: str, orders: str = "", header: str = "header 'true'") -> str:
    return f"""
        CREATE STREAM orders (id BIGINT, t TIMESTAMP, amount DOUBLE, WATERMARK FOR t AS t - INTERVAL '1 minute')
          USING json OPTIONS (path '{folder}/orders'{orders});
        CREATE STREAM deliveries (order_id BIGINT, t TIMESTAMP, courier STRING, WATERMARK FOR t AS t - INTERVAL '1m')
          USING csv OPTIONS (path '{folder}/deliveries', {header});
        CREATE SINK result USING parquet OPTIONS (path '{folder}/result');
        CREATE SINK unread USING json OPTIONS (path '{folder}/unread');
        INSERT INTO result {query};"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Spark reads paths as addresses, in which some of these characters mean something else.
    inside = tmp_path / "a +b%20c"
    for name, text in (("orders/o.json", ORDERS), ("deliveries/d.csv", DELIVERIES)):
        path = inside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return inside


def run(spark: SparkSession, folder: Path, text: str, storage: str = "storage") -> list[Progress]:
    seen: list[Progress] = []
    path = folder.parent / storage
    run_script(
        read_script(text), spark=spark, storage=path, trigger="end", listeners=Listeners(on_progress=seen.append)
    )
    return seen


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.rglob("*.json")):
        yield from (json.loads(line) for line in file.read_text().splitlines())


def test_malformed_rows_are_counted_and_separated_with_text_place_and_reason(spark: SparkSession, folder: Path) -> None:
    seen = run(spark, folder, script(folder, f"{JOIN} MALFORMED INTO unread"))
    assert {source: sum(one.malformed_of.get(source, 0) for one in seen) for source in ("orders", "deliveries")} == {
        "orders": 5, "deliveries": 2,
    }  # fmt: skip
    assert sum(one.malformed for one in seen) == 7
    found = Counter(
        (row["source"], row["place"].removeprefix(f"{folder}/"), row["reason"]) for row in rows_of(folder / "unread")
    )
    no_object = "it is not a JSON object of that form"
    assert found == Counter([
        ("orders", "orders/o.json, line 2", "`amount` is DOUBLE and the text has abc"),
        ("orders", "orders/o.json, line 3", no_object),
        ("orders", "orders/o.json, line 6", no_object),
        ("orders", "orders/o.json, line 8", no_object),
        ("orders", "orders/o.json", "it has none of the declared columns"),
        ("deliveries", "deliveries/d.csv, line 3", "`order_id` is BIGINT and the text has x3"),
        ("deliveries", "deliveries/d.csv, line 4", "it has another number of values than the 3 that are declared"),
    ])  # fmt: skip
    texts = {row["value"] for row in rows_of(folder / "unread")}
    assert {"garbage", '{"id": 4, "t": "2024-01-01T00:0', "x3,2024-01-01T00:00:02Z,y"} < texts
    result = spark.read.parquet(f"file:{folder}/result").select("id", "courier").collect()
    assert sorted(map(tuple, result)) == [(1, "x"), (3, "z")]


def test_a_malformed_row_stops_the_query_and_is_named(spark: SparkSession, folder: Path) -> None:
    (folder / "deliveries" / "d.csv").write_text("order_id,t,courier\n1,2024-01-01T00:00:00Z,x\n")
    # A column that the query does not ask for, and a row that its WHERE would drop.
    text = script(folder, f"{JOIN} WHERE o.amount > 100")
    with pytest.raises(WatersmeetError) as raised:
        run(spark, folder, text)
    refusal = raised.value.refusals[0]
    assert "A row of orders cannot be read" in refusal.message
    assert f"{folder}/orders/o.json, line " in refusal.message
    assert "malformed 'drop'" in refusal.hint
    # The hint works; so does the correction, in the same batch.
    other = script(folder, f"{JOIN} WHERE o.amount > 1", ", malformed 'drop'").replace("/result'", "/other'")
    seen = run(spark, folder, other, "other")
    assert sum(one.malformed for one in seen) == 5
    assert sum(one.rows_out for one in seen) == 2
    (folder / "orders" / "o.json").write_text('{"id": 1, "t": "2024-01-01T00:00:00Z", "amount": 101}\n')
    assert sum(one.rows_out for one in run(spark, folder, text)) == 1


def test_other_names_above_the_columns_stop_the_query(spark: SparkSession, folder: Path) -> None:
    (folder / "deliveries" / "d.csv").write_text("t,order_id,courier\n2024-01-01T00:00:00Z,1,x\n")
    with pytest.raises(WatersmeetError, match=r"CSV header does not conform to the schema.*d\.csv"):
        run(spark, folder, script(folder, JOIN, ", malformed 'drop'"))


def test_a_self_join_counts_its_source_once(spark: SparkSession, folder: Path) -> None:
    query = "SELECT STREAM a.id, b.amount FROM orders a JOIN orders b WITHIN 1h ON a.id = b.id"
    seen = run(spark, folder, script(folder, query, ", malformed 'drop'"))
    assert sum(one.malformed for one in seen) == 5


def test_the_call_has_it_as_an_argument(spark: SparkSession, folder: Path) -> None:
    text = "".join(script(folder, JOIN).split("CREATE SINK")[:1]) + JOIN
    frame = ws.sql(text, spark=spark, malformed="drop")
    query = (
        frame.writeStream.format("memory").queryName("read").trigger(availableNow=True)
        .option("checkpointLocation", str(folder.parent / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    assert sorted(map(tuple, spark.table("read").collect())) == [(1, "x"), (3, "z")]
    with pytest.raises(WatersmeetError, match="WRONG_ARGUMENT"):
        ws.sql(text, spark=spark, malformed="ignore")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("USING json OPTIONS (path '/x', malformed 'maybe')", "WRONG_OPTION"),
        ("USING parquet OPTIONS (path '/x', malformed 'drop')", "WRONG_OPTION"),
        ("USING json OPTIONS (path '/x', mode 'DROPMALFORMED')", "WRONG_OPTION"),
        ("USING csv OPTIONS (path '/x', mode 'PERMISSIVE')", "WRONG_OPTION"),
    ],
)
def test_options_that_would_hide_malformed_rows_are_refused(statement: str, condition: str) -> None:
    from watersmeet.formats import check_source

    [source] = read_script(f"CREATE STREAM s (id INT) {statement};").sources
    assert [refusal.condition for refusal in check_source(source)] == [condition]


# Records

RECORDS = Source(
    "events", (Field("id", "BIGINT", nullable=False), Field("name", "STRING")),
    options={"value.format": "json", "key.format": "long"},
)  # fmt: skip
KEY = (7).to_bytes(8, "big")
ODD = (
    "1e400", "1e2147483647", "1e-2147483648", "9223372036854775808", "NaN", "-Infinity", "true", '"1e2147483647"',
    '"99999999-01-01"', '"+294247-01-10T04:00:54.775808Z"', '"2024-01-01T00:00:00+99:99"', '"!"', "-", "[" * 2000,
)  # fmt: skip
"""What stands in a text for a value that few types have."""


def kafka(spark: SparkSession, *records: tuple[bytes | None, bytes | None]) -> DataFrame:
    rows = [(key, value, "events", 2, offset) for offset, (key, value) in enumerate(records)]
    return spark.createDataFrame(rows, "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")


def split(source: Source, frame: DataFrame) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows that can be read, and place, reason and text of the others."""
    from watersmeet.spark.connectors.malformed import count_malformed, readable_rows, select_malformed

    looked = count_malformed(source, frame, "drop")
    [apart] = select_malformed([source], {source.name: looked})
    told = apart.select("_malformed.place", "_malformed.reason", "_malformed.value").collect()
    return [tuple(row) for row in readable_rows(looked).drop("#partition").collect()], [tuple(row) for row in told]


def test_records_of_another_form_are_malformed(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.records import decode_records

    frame = kafka(
        spark, (KEY, b'{"id": 1, "name": "a"}'), (KEY, b"\xff\xfe"), (b"abc", b'{"id": 2}'), (None, b'{"id": "x"}'),
        (KEY, b'{"name": "no id"}'), (KEY, b"[1]"), (KEY, None), (None, b'{"id": 3, "more": 1}'), (KEY, b"17"),
    )  # fmt: skip
    rows, wrong = split(RECORDS, decode_records(RECORDS, frame))
    assert rows == [(1, "a", 7), (3, None, None)]
    no_object, place = "it is not a JSON object of that form", "events, partition 2, offset"
    assert wrong == [
        (f"{place} 1", no_object, "0xFFFE"),
        (f"{place} 2", "its key is a long of 8 bytes and has 3", '{"id": 2}'),
        (f"{place} 3", "`id` is BIGINT and the text has x", '{"id": "x"}'),
        (f"{place} 4", "`id` is NOT NULL and has no value", '{"name": "no id"}'),
        (f"{place} 5", no_object, "[1]"),
        (f"{place} 6", "it has no value", '{"_key":7}'),
        (f"{place} 8", no_object, "17"),
    ]


def test_a_record_that_stops_a_query_tells_where_it_is(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.malformed import count_malformed
    from watersmeet.spark.connectors.records import decode_records

    with pytest.raises(Exception, match="MALFORMED_ROW") as raised:
        count_malformed(RECORDS, decode_records(RECORDS, kafka(spark, (KEY, b"{"))), "fail").collect()
    refusal = refusal_in(str(raised.value))
    assert refusal is not None
    assert refusal.parameters["place"] == "events, partition 2, offset 0"


def test_keys_and_values_that_are_out_of_range_are_malformed(spark: SparkSession) -> None:
    """Each is read as Spark reads it, or is malformed; in ANSI mode a plain cast would stop the query."""
    from watersmeet.spark.connectors.records import decode_records

    long_key, small = b"\xff" * 9, (300).to_bytes(8, "big")
    source = replace(RECORDS, fields=(*RECORDS.fields, Field("_key", "TINYINT")))
    rows, wrong = split(
        source, decode_records(source, kafka(spark, *((key, b'{"id": 1}') for key in (KEY, long_key, small))))
    )
    assert rows == [(1, None, 7)]
    assert [reason for _, reason, _ in wrong] == [
        "its key is a long of 8 bytes and has 9", "its key is not a value of `_key`, which is TINYINT",
    ]  # fmt: skip
    types = ("INT", "DOUBLE", "DECIMAL(5,2)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY", "ARRAY<INT>", "VARIANT")
    for format_, columns in (("json", types), ("csv", types[:-2])):
        fields = (Field("id", "BIGINT"), *(Field(f"v{n}", type_) for n, type_ in enumerate(columns)))
        source = replace(RECORDS, fields=fields, options={"value.format": format_})
        places = range(len(columns))
        if format_ == "json":
            values = [f'{{"id": 1, "v{n}": {text}}}' for n in places for text in ODD]
        else:
            values = ["1," + "," * n + text.strip('"') + "," * (len(columns) - n - 1) for n in places for text in ODD]
        frame = decode_records(
            source, kafka(spark, *((None, value) for value in (*map(str.encode, values), b"\xff", b"")))
        )
        reasons = [row[0] for row in frame.select("`#reason`").collect()]
        assert len(reasons) == len(values) + 2
        ints, doubles = (reasons[n * len(ODD) : (n + 1) * len(ODD)] for n in range(2))
        assert all(ints) and any(doubles) and not all(doubles), "1e400 is beyond a DOUBLE"


def test_metadata_of_a_record_and_times_that_are_out_of_range_are_malformed(spark: SparkSession) -> None:
    """Spark would stop at the offset, and take the number of a time that overflows for another time."""
    from watersmeet.spark.connectors.records import decode_records

    fields = (Field("id", "BIGINT"), Field("t", "TIMESTAMP"), Field("_offset", "TINYINT"), Field("_key", "DOUBLE"))
    source = replace(RECORDS, fields=fields, options={"value.format": "json", "key.format": "double"})
    bits = struct.Struct(">d").pack
    most = (2**63 - 1) // 1_000_000
    seconds = ("1700000000", str(most), str(-most), str(most + 1), str(-most - 1), str(2**63 - 1), str(-(2**63)),
               str(2**63), "1700000000000000", '"2024-01-01T00:00:00Z"', "null")  # fmt: skip
    records = [(bits(1.5), f'{{"id": {n}, "t": {text}}}'.encode()) for n, text in enumerate(seconds)]
    records += [(bits(key), b'{"id": 1}') for key in (float("nan"), float("-inf"), -0.0, 5e-324)]
    records += [(bytes(7), b'{"id": 1}'), (b"", b'{"id": 1}'), (None, b'{"id": 1}')]
    frame = kafka(spark, *records).withColumn(
        "offset", F.expr("CASE WHEN offset < 16 THEN offset ELSE offset + 200 END")
    )
    shown = decode_records(source, frame).select("id", F.expr("unix_micros(t)"), "_offset", "_key", "`#reason`")
    rows = [tuple(row) for row in shown.collect()]
    reasons = [row[-1] for row in rows]
    wrong = [n for n, reason in enumerate(reasons) if reason is not None]
    assert wrong == [3, 4, 5, 6, 7, 8, 15, 16, 17]
    assert reasons[8] == "`t` is TIMESTAMP and the text has 1700000000000000"
    assert reasons[15:17] == [f"its key is a double of 8 bytes and has {n}" for n in (7, 0)]
    assert reasons[17] == "its offset is not a value of `_offset`, which is TINYINT"
    assert [row[1] for row in rows[:3]] == [1_700_000_000_000_000, most * 1_000_000, -most * 1_000_000]
    assert [str(row[3]) for row in rows[11:15]] == ["nan", "-inf", "-0.0", "5e-324"]


def test_a_value_that_does_not_fit_its_declared_type_stops_the_query(spark: SparkSession) -> None:
    """Of sources that bring their own types, with or without ANSI: there a plain cast would give another value."""
    from watersmeet.spark.connectors.reading import cast_columns

    source = Source("stock", (Field("id", "INT"), Field("n", "DECIMAL(3,1)"), Field("at", "DATE"), Field("s", "INT")))
    frame = spark.sql("SELECT id, CAST(2.5 AS DOUBLE) AS n, TIMESTAMP '2024-01-01 10:00:00' AS at, s "
                      "FROM VALUES (1L, '7'), (3000000000L, '8'), (2L, 'x') AS t (id, s)")  # fmt: skip
    columns = cast_columns(source, frame)
    [row] = frame.where("id = 1").select(*columns).collect()
    assert tuple(row) == (1, Decimal("2.5"), date(2024, 1, 1), 7)
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            for id_, column, found in ((3_000_000_000, "id", "BIGINT"), (2, "s", "STRING")):
                with pytest.raises(Exception, match="VALUE_OUT_OF_RANGE") as raised:
                    frame.where(f"id = {id_}").select(*columns).collect()
                refusal = refusal_in(str(raised.value))
                assert refusal is not None
                assert refusal.hint == f"declare `{column}` {found}, its type in the source."
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


ENVELOPE = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": [
            {"name": "id", "type": "int"},
            {"name": "price", "type": ["null", "double"]},
            {"name": "at", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}]},
            {"name": "moment", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.Timestamp"}]},
            {"name": "plain", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}]},
            {"name": "said", "type": ["null", "string"]},
        ]}]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip


def test_values_of_debezium_in_avro_that_are_out_of_range_are_malformed(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    fields = (*PRICED.fields, Field("moment", "TIMESTAMP"), Field("plain", "TIMESTAMP_NTZ"), Field("said", "TIMESTAMP"))
    options = {"value.format": "avro", "avro.schema": json.dumps(ENVELOPE)}
    source = replace(PRICED, fields=fields, options=options)
    far = (2**63 - 1, -(2**63))
    rows: list[dict[str, Any]] = [{"moment": number} for number in far] + [{"plain": number} for number in far]
    rows += [{"price": number} for number in (1.5, 1e300, float("nan"), float("inf"))]
    rows += [{"at": number} for number in (0, 2**31 - 1, -(2**31))]
    rows += [{"said": text} for text in ("2024-01-01T00:00:00Z", "+999999-01-01T00:00:00Z", "soon", "")]
    schema, records = fastavro.parse_schema(ENVELOPE), list[tuple[bytes | None, bytes | None]]()
    for n, row in enumerate(rows):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, {"op": "c", "before": None, "after": {"id": n, **row}})
        records.append((None, written.getvalue()))
    records += [(None, b"\xff"), (None, b"")]
    changes = debezium_changes(source, kafka(spark, *records).coalesce(1))
    found = changes.select("id", "`#reason`", "`#place`.offset").collect()
    assert [row[2] for row in found] == [*range(len(records))]
    wrong = {row[2]: row[1] for row in found if row[1] is not None}
    assert sorted(wrong) == [0, 1, 5, 6, 7, 12, 13, 14, 15, 16]
    assert "`moment` is TIMESTAMP and the text has 9223372036854775807" in wrong[0]


def test_a_table_needs_the_key_of_its_rows_and_deletes_by_it(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.records import decode_records

    source = replace(RECORDS, kind="table", primary_key=("id",), fields=(Field("id", "BIGINT"), *RECORDS.fields[1:]))
    frame = kafka(spark, (KEY, b'{"name": "a"}'), (KEY, None), (None, b'{"name": "b"}'), (None, None))
    rows, wrong = split(source, decode_records(source, frame))
    assert rows == [(7, "a", 7, "+"), (7, None, 7, "-")]
    assert [reason for _, reason, _ in wrong] == ["`id` is a primary key and has no value"] * 2


# Debezium

PRICED = Source(
    "prices", (Field("id", "INT"), Field("price", "DECIMAL(10,2)"), Field("at", "DATE")), kind="table",
    primary_key=("id",), changes="debezium",
)  # fmt: skip


def precise(digits: int) -> str:
    return base64.b64encode(digits.to_bytes(digits.bit_length() // 8 + 1, "big", signed=True)).decode()


def prices(spark: SparkSession, source: Source, *values: object, at: object = 19849) -> Any:
    from watersmeet.spark.connectors.debezium import debezium_changes

    records = [{"op": "c", "after": {"id": n, "price": value, "at": at}} for n, value in enumerate(values)]
    texts = spark.createDataFrame([(json.dumps(record),) for record in records], "value STRING").coalesce(1)
    rows, wrong = split(source, debezium_changes(source, texts))
    return [row[1] for row in rows], [reason for _, reason, _ in wrong]


def test_decimals_of_debezium_are_read_in_every_form_or_malformed(spark: SparkSession) -> None:
    as_precise = replace(PRICED, options={"debezium.decimal": "precise"})
    digits = (0, 5, -5, 500, -500, 127, 128, -128, -129, 9_999_999_999, -9_999_999_999)
    expected = [Decimal(n).scaleb(-2) for n in digits]
    assert prices(spark, as_precise, *map(precise, digits)) == (expected, [])
    scaled = [{"scale": 3, "value": precise(1230)}, {"scale": 0, "value": precise(-7)}, None, 2.5]
    assert prices(spark, as_precise, *scaled) == ([Decimal("1.23"), Decimal("-7.00"), None, Decimal("2.50")], [])
    wide = replace(as_precise, fields=(PRICED.fields[0], Field("price", "DECIMAL(38,0)"), PRICED.fields[2]))
    assert prices(spark, wide, precise(10**38 - 1), precise(1 - 10**38)) == ([10**38 - 1, 1 - 10**38], [])
    as_text = replace(PRICED, options={"debezium.decimal": "string"})
    assert prices(spark, as_text, "1234", "-1.5", 1234) == ([Decimal(1234), Decimal("-1.50"), Decimal(1234)], [])
    # Unsaid, what can only be a number is one; what may be bytes is not taken for a number.
    found, wrong = prices(spark, PRICED, "12.50", "-3", 1234, "AfQ=", "1234")
    assert found == [Decimal("12.50"), Decimal(-3), Decimal(1234)]
    assert len(wrong) == 2
    assert all("debezium.decimal 'precise'" in reason for reason in wrong)


def test_a_record_of_debezium_that_cannot_be_read_is_malformed(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    assert prices(spark, PRICED, 1.5, at="soon") == ([], ["`at` is DATE and the text has soon"])
    texts = ["garbage", '{"op": "c", "after": {"id": "x"}}', '{"op": "d", "before": {"id": 1}}']
    frame = spark.createDataFrame([(text,) for text in texts], "value STRING").coalesce(1)
    rows, wrong = split(PRICED, debezium_changes(PRICED, frame))
    assert rows == [(1, None, None, "-")]
    assert [value for _, _, value in wrong] == texts[:2]


def test_numbers_of_debezium_that_are_out_of_range_are_malformed(spark: SparkSession) -> None:
    """In Spark's ANSI mode a cast or a product that overflows would stop the query, and name no place."""
    from watersmeet.spark.connectors.debezium import debezium_changes

    far = (2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63)
    rows: list[dict[str, Any]] = [{name: number} for name in ("at", "moment", "plain") for number in far]
    rows += [{"price": {"scale": scale, "value": precise(1)}} for scale in (-(2**31), 2**31 - 1)]
    texts = [(json.dumps({"op": "c", "after": {"id": n, **row}}),) for n, row in enumerate(rows)]
    # Once for each unit: `at`, `moment` and `plain`, then the prices. Microseconds have room for all 64 bits.
    counts = {"millis": [5, 3, 3, 2], "micros": [5, 1, 1, 2], "nanos": [5, 1, 1, 2]}
    for unit, expected in counts.items():
        source = replace(
            PRICED, fields=(*PRICED.fields, Field("moment", "TIMESTAMP"), Field("plain", "TIMESTAMP_NTZ")),
            options={"debezium.time": unit, "debezium.decimal": "precise"},
        )  # fmt: skip
        changes = debezium_changes(source, spark.createDataFrame(texts, "value STRING").coalesce(1))
        reasons = [row[0] for row in changes.select("`#reason`").collect()]
        assert len(reasons) == len(rows)
        names = [reason.split("`")[1] for reason in reasons if reason is not None]
        assert [names.count(name) for name in ("at", "moment", "plain", "price")] == expected, unit


def test_malformed_rows_of_a_table_that_never_changes_stop_the_query_or_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, text in {
        "c": '{"id": 1, "name": "a"}\ngarbage\n',
        "s": '{"id": 1}\n',
        "t": '{"id": 1, "n": 5}\n',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(text)

    def script_of(option: str) -> str:
        return f"""
        CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id))
            USING json OPTIONS (path '{tmp_path}/c', static 'true'{option});
        CREATE STREAM s (id INT) USING json OPTIONS (path '{tmp_path}/s');
        CREATE TABLE t (id INT, n INT, PRIMARY KEY (id)) USING json OPTIONS (path '{tmp_path}/t');
        CREATE SINK looked USING json OPTIONS (path '{tmp_path}/looked');
        CREATE SINK joined USING json OPTIONS (path '{tmp_path}/joined', changes 'log');
        CREATE SINK unread USING json OPTIONS (path '{tmp_path}/unread');
        INSERT INTO looked SELECT STREAM s.id, c.name FROM s JOIN c ON s.id = c.id;
        INSERT INTO joined SELECT TABLE t.id, t.n, c.name FROM t JOIN c ON t.id = c.id
        """

    with pytest.raises(WatersmeetError, match="line 2") as caught:
        run(spark, tmp_path / "x", script_of("") + ";", "failing")
    assert {refusal.condition for refusal in caught.value.refusals} == {"QUERY_FAILED"}
    seen = run(spark, tmp_path / "x", script_of(", malformed 'drop'") + " MALFORMED INTO unread;")
    (tmp_path / "s/2.json").write_text('{"id": 1}\n')
    seen += run(spark, tmp_path / "x", script_of(", malformed 'drop'") + " MALFORMED INTO unread;")
    counted = Counter[str]()
    for one in seen:
        counted[one.query] += one.malformed
    # A copy is read once; what is only looked up is read for every batch.
    assert counted == {"looked": 2, "joined": 1}
    assert len(list((tmp_path / "looked").glob("*.json"))) == 2
    assert [row["value"] for row in rows_of(tmp_path / "unread")] == ["garbage"]
