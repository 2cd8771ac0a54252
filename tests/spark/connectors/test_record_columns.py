"""JSON records that workers decode: the values of Spark for each, odd ones between them, and the same join."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import watersmeet as ws
from watersmeet.catalog import Field, Source
from watersmeet.codec.json_columns import JsonColumns
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.schema import quote
from watersmeet.spark.connectors.malformed import PACKED_RECORD, REASON, count_malformed
from watersmeet.spark.connectors.record_columns import (
    SAMPLE,
    PackPlainRecords,
    RecordPacking,
    read_block,
    record_decoder,
)
from watersmeet.spark.connectors.records import decode_records
from watersmeet.spark.exchange.columns import ColumnPipeline
from watersmeet.spark.exchange.packing import MARKED_ROWS, PARTITION, ROWS, Pack, from_blobs
from watersmeet.spark.private.checkpoint_files import records_in_blocks
from watersmeet.spark.private.introspection import arrow_schema
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

TYPES = {
    "n": "BIGINT", "i": "INT", "s": "SMALLINT", "b": "TINYINT", "d": "DOUBLE", "x": "DECIMAL(9,2)", "y": "DECIMAL(3,3)",
    "t": "TIMESTAMP", "w": "TIMESTAMP_NTZ", "day": "DATE", "is": "BOOLEAN", "text": "STRING",
}  # fmt: skip
DIGITS = ("0", "1", "12", "127", "128", "200", "999", "32767", "32768", "99999", "2147483647", "2147483648", "9" * 15,
          "9" * 16, "9" * 17, "9007199254740993", "9" * 18, "9223372036854775807", "9223372036854775808", "9" * 39,
          "007", "00", "1_000", "0x10", "")  # fmt: skip
FRACTIONS = ("", ".", ".0", ".5", ".25", ".125", ".005", ".1000000000000000055511151231257827", ".30000000000000004",
             ".0000000000000000001", "." + "9" * 25)  # fmt: skip
EXPONENTS = ("", "e5", "E5", "e+5", "e-5", "e00", "e99", "e-99", "e308", "e309", "e400", "e-400", "e", "e5.0")
DAYS = ("2026-03-02", "2024-02-29", "2026-02-29", "2000-02-29", "1900-02-29", "2026-04-31", "2026-12-31", "1582-10-10",
        "1600-01-01", "1599-12-31", "0001-01-01", "9999-12-31", "10000-01-01", "2026-13-01", "2026-00-10", "2026-3-2",
        "2026-03", "2026", "20260302", "+2026-03-02", "-0044-03-15", "2026-10-25", "2026-03-29")  # fmt: skip
HOURS = ("", "T10:00:00", "T02:30:00", "T23:59:59", "T24:00:00", "T23:59:60", " 10:00:00", "T10:00", "T10", "T1:2:3",
         "T10:00:00.", "T10:00:00.5", "T10:00:00.123", "T10:00:00.123456", "T10:00:00.1234567",
         "T10:00:00.123456789", "t10:00:00", "T10:00:00,5")  # fmt: skip
ZONES = ("", "Z", "z", "+00:00", "-00:00", "+02:00", "-17:59", "+18:00", "+18:01", "+0200", "+02", " UTC",
         "Europe/Paris", "[Europe/Paris]", "+02:00:00")  # fmt: skip
TEXTS = ("a", "", " ", "NaN", "null", "true", "\u00e4\u4e2d", "\U0001f600", "\ufffd", "\ufeff", "\u2028", "\x7f", "'",
         "\\u0041", "\\n", "\\\\", '\\"', "\\ud83d", "\\ud83d\\ude00", "\\x", "\t", "\n", "\x00", "}", "{", ",", '":',
         "12", "\u0085")  # fmt: skip
BARE = ("null", "NULL", "true", "false", "True", "TRUE", "tru", "NaN", "Infinity", "-Infinity", "+INF", "-0", "-0.0",
        "-0e1", "+1", "- 1", ".5", "1.", "{}", "[]", '{"a":1}', "[1,2]", "[null]", "undefined", "'a'", "", " 1", "1 ",
        "\t1", "1e0", '"1"', '"1.5"', '"true"', '"NaN"', '"Infinity"', "1500000000", "1500000000.5", "-1",
        "19000")  # fmt: skip
WHOLE = (
    b"", b" ", b"null", b"{}", b"[]", b"[{}]", b'{"n":1}{"n":2}', b'{"n":1} {"n":2}', b'{"n":1}\n{"n":2}', b'{"n":1},',
    b',{"n":1}', b'{"n":1', b'"n":1}', b'{"n":1}}', b'{{"n":1}}', b'{"n" :1}', b'{ "n":1}', b'{"n":1 }', b' {"n":1}',
    b'{"n":1} ', b'{"n":1}\n', b'\xef\xbb\xbf{"n":1}', b'{"n":1,}', b'{,"n":1}', b"{'n':1}", b"{n:1}", b'{"n"=1}',
    b'{"n":1;"i":2}', b'{"n":1 "i":2}', b'{"n":1,"n":2}', b'{"n":1,"n":null}', b'{"n":null,"n":1}', b'{"n":1,"n":"x"}',
    b'{"N":1}', b'{"n ":1}', b'{"":1}', b'{"\\u006e":1}', b'{"o":1}', b'{"o":1,"o":2,"n":3}', b'{"o":{"n":5},"n":3}',
    b'{"o":[{"n":5}],"n":3}', b'{"n":3,"o":"\\n"}', b'{"n":3,"o":1e999}', b'{"n":3,"o":-0}', b'{"n":3,"o":01}',
    b'{"n":3,"nn":4,"":5}', b'{"text":"\xff"}', b'{"n":3,"text":"\xc3"}', b'{"n":3,"text":"\xa4"}',
    b'{"n":3,"text":"\xc0\x80"}', b'{"n":3,"text":"\xed\xa0\xbd"}', b'{"n":3,"o":"\xff"}', b'{"\xff":1,"n":3}',
    b'{"\xc3\xa4":1,"n":3}', b'{"n":3,"text":"a\x00b"}', b'{"n":3}\x00', b'/* c */{"n":3}', b'{"n":3,//\n"i":4}',
    b'{"n":3,"o":' + b"9" * 2000 + b"}", b'{"n":3,"o":"' + b"x" * 2_000_000 + b'"}', b"garbage", b"12", b'"text"',
    b'{"n":3,"i":null,"d":null}', b'{"n":null,"i":null}', b'{"o":null}', b'{"n":null}',
)  # fmt: skip


def values(die: random.Random) -> Iterator[str]:
    """Texts of single values, plain and odd."""
    for sign in ("", "-"):
        yield from (sign + digits for digits in DIGITS)
        for _ in range(150):
            yield sign + die.choice(DIGITS) + die.choice(FRACTIONS) + die.choice(EXPONENTS)
    yield from (repr(die.uniform(-1, 1) * 10 ** die.randrange(-30, 30)) for _ in range(100))
    yield from (f"{die.randrange(-(10**8), 10**8) / 100}" for _ in range(50))
    yield from (f'"{day}"' for day in DAYS)
    yield from (f'"2026-03-02{hour}{zone}"' for hour in HOURS for zone in ZONES)
    for _ in range(150):
        yield f'"{die.choice(DAYS)}{die.choice(HOURS)}{die.choice(ZONES)}"'
    yield from (f'"{text}"' for text in TEXTS)
    yield from BARE


def records(seed: int) -> list[bytes | None]:
    """Each value under each name, in good company; then records of several values, and odd records."""
    die = random.Random(seed)
    texts = [*values(die)]
    made: list[bytes | None] = [None, *WHOLE]
    for number, text in enumerate(texts):
        # Whole numbers, times and texts are odd in different ways for each type.
        made += [f'{{"{name}":{text},"o":{number}}}'.encode() for name in TYPES if name != "o"]
    for _ in range(800):
        names = die.sample([*TYPES, "o", "p"], die.randrange(1, 6))
        colon, comma = die.choice([(":", ","), (": ", ", "), (":  ", ",")])
        made.append(("{" + comma.join(f'"{name}"{colon}{die.choice(texts)}' for name in names) + "}").encode())
    good = [
        json.dumps({"n": n, "d": n / 7, "text": f"t{n}", "t": f"2026-03-02T10:00:{n % 60:02}Z"}) for n in range(600)
    ]
    made += [text.encode() for text in good]
    die.shuffle(made)
    return made


def block_of(values: Sequence[bytes | None], partition: int, first: int, topic: str = "") -> bytes:
    """A block as `RecordBlocks.java` makes it, of records with consecutive offsets."""
    head = struct.pack("<iii", len(values), partition, len(topic.encode())) + topic.encode()
    places = struct.pack(f"<{len(values)}q", *range(first, first + len(values)))
    lengths = struct.pack(f"<{len(values)}i", *(-1 if value is None else len(value) for value in values))
    return head + places + lengths + b"".join(value or b"" for value in values)


def test_a_block_has_its_records() -> None:
    values = [b"a", None, b"", "\u00e4".encode(), b"b"]
    records = read_block(pa.py_buffer(block_of(values, 7, 2**40, "t\u00f6")), has_topic=True)
    assert records.to_pylist() == [
        {"value": value, "partition": 7, "offset": 2**40 + n, "topic": "t\u00f6"} for n, value in enumerate(values)
    ]
    assert read_block(pa.py_buffer(block_of([], 0, 0)), has_topic=False).num_rows == 0


def pack_plain(texts: Sequence[bytes | None]) -> tuple[int, list[bytes | None]]:
    """The number of rows that a worker packs of a batch of records, and the records that it hands on."""
    schema = pa.schema([("n", pa.int64()), (PARTITION, pa.string())])
    pack = Pack(0, "one", None, (0,), (), None, tuple(schema.names))
    decoder = JsonColumns({"n": "BIGINT"}, pa.schema([schema.field("n")]))
    packing = RecordPacking(decoder, ColumnPipeline((), schema), pack, tuple(schema.names))
    batch = pa.record_batch({"block": pa.array([block_of(texts, 0, 0)], pa.binary())})
    out = list(PackPlainRecords(packing, "t", in_blocks=True)(iter([batch])))
    blobs = [
        one["blob"]
        for part in out
        for one in part.column(0).drop_null().to_pylist()
        if one["kind"] in (ROWS, MARKED_ROWS)
    ]
    others = [row["value"] for part in out for row in part.to_pylist() if row[PACKED_RECORD] is None]
    return sum(from_blobs([blob]).num_rows for blob in blobs), others


def test_a_batch_goes_to_spark_where_most_of_a_sample_are_odd() -> None:
    plain, odd = b'{"n":1}', b'{"n":"\\u0031"}'
    few_odd = ([plain] * 9 + [odd]) * SAMPLE
    assert pack_plain(few_odd) == (9 * SAMPLE, [odd] * SAMPLE)
    # Plain records behind such a sample are handed on as they came, each once.
    mostly_odd = [odd] * SAMPLE + [plain] * SAMPLE
    assert pack_plain(mostly_odd) == (0, mostly_odd)
    half = ([plain, odd] * SAMPLE)[: SAMPLE + 1]
    assert pack_plain(half) == (half.count(plain), [odd] * half.count(odd))
    # Of a small batch there is no sample.
    assert pack_plain([odd] * 9 + [plain]) == (1, [odd] * 9)
    assert pack_plain([None, plain, b""]) == (1, [None, b""])


@pytest.mark.spark
def test_spark_puts_records_in_blocks(spark: SparkSession) -> None:
    """Each block has records of one partition of a topic, in their order."""
    rows = [
        (None if n % 5 == 0 else b"x" * (n % 7) + str(n).encode(), n // 20_000, 2**40 + n, "b" if n > 60_000 else "a")
        for n in range(70_000)
    ]
    rows += [(b"y" * 3_000_000, 4, 1, "b"), (b"z", 4, 2, "b")]
    records = spark.createDataFrame(rows, "value BINARY, partition INT, offset BIGINT, topic STRING").coalesce(1)
    for names, has_topic in (
        (["value", "partition", "offset", "topic"], True),
        (["value", "partition", "offset"], False),
    ):
        blocks = records_in_blocks(records.select(*names))
        assert blocks is not None
        read = [read_block(pa.py_buffer(bytes(row[0])), has_topic=has_topic) for row in blocks.collect()]
        assert all(block.num_rows <= 16_384 for block in read) and len(read) >= 6
        assert [tuple(row.values()) for row in pa.Table.from_batches(read).to_pylist()] == [
            row[: len(names)] for row in rows
        ]
    none = records_in_blocks(records.where("false").select("value", "partition", "offset"))
    assert none is not None and none.count() == 0


def read_by_spark(spark: SparkSession, source: Source, texts: Any) -> Any:
    """The declared columns of each record, in order, and the reason why Spark takes it for malformed."""
    table = pa.table({"value": texts, "offset": pa.array(range(len(texts)), pa.int64())})
    frame = spark.createDataFrame(table).withColumns({"topic": F.lit("t"), "partition": F.lit(0)})
    opened = count_malformed(source, decode_records(source, frame), "drop")
    columns = [F.col(quote(name)) for name in TYPES]
    return opened.select(F.col("`#place`.offset"), F.col(quote(REASON)), *columns).orderBy("offset").toArrow()


@pytest.mark.spark
@pytest.mark.parametrize(("zone", "seed"), [("UTC", 1), ("Europe/Berlin", 2), ("America/St_Johns", 3)])
def test_plain_records_have_the_values_of_spark(spark: SparkSession, zone: str, seed: int) -> None:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        fields = tuple(Field(name, type_) for name, type_ in TYPES.items())
        source = Source("events", fields, options={"value.format": "json"})
        texts = pa.array(records(seed), pa.binary())
        declared = spark.createDataFrame([], ", ".join(f"{quote(name)} {type_}" for name, type_ in TYPES.items()))
        decoder = record_decoder(source, declared, arrow_schema(declared.schema, zone))
        assert decoder is not None
        rows, is_plain = decoder.split(texts)
        plain = texts.filter(pa.array(is_plain))
        expected = read_by_spark(spark, source, plain)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    reasons = expected.column(REASON)
    assert reasons.null_count == len(plain) > 1_000, [t for t, r in zip(plain, reasons, strict=True) if r.is_valid][:5]
    for name in TYPES:
        ours, theirs = rows.column(name), expected.column(name).combine_chunks().cast(rows.column(name).type)
        if pa.types.is_timestamp(ours.type):
            # Python has no year 10000, which some of them are in elsewhere.
            ours, theirs = ours.view(pa.int64()), theirs.view(pa.int64())
        # Of a DOUBLE the sign of 0, too.
        pairs = enumerate(zip(map(repr, ours.to_pylist()), map(repr, theirs.to_pylist()), strict=True))
        assert not [(plain[n].as_py(), a, b) for n, (a, b) in pairs if a != b], name
        assert len(ours) - ours.null_count > 1, f"workers decode {name}"
    # Neighbours do not matter: any cut gives the same.
    for start in range(0, len(texts), 977):
        part, is_here = decoder.split(texts[start : start + 977])
        assert (is_here == is_plain[start : start + 977]).all()
        assert part.equals(rows.slice(int(is_plain[:start].sum()), part.num_rows))


def run(spark: SparkSession, text: str, folder: Path, trigger: Trigger) -> list[Progress]:
    seen: list[Progress] = []
    listeners = Listeners(on_progress=seen.append)
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger=trigger, listeners=listeners)
    return seen


def records_to_send(die: random.Random, numbers: range) -> list[Any]:
    """Rows of 50 keys, a second apart; one in seven is odd, and some of these are malformed."""
    sent: list[Any] = []
    for n in numbers:
        row = {"id": n % 50, "at": f"2026-03-02T10:{n // 60:02}:{n % 60:02}Z", "amount": n / 7, "item": f"i{n}"}
        text = json.dumps(row)
        odd = [text.replace('"id"', '"id":1,"id"', 1), text.replace("Z", ""), text.replace('"i', '"\\n')]
        odd += ["garbage", text.replace("amount", "other"), '{"id": "x"}', "{}", text.replace(" ", "  ")]
        text = die.choice(odd) if n % 7 == 0 else text
        sent.append(topics.Record(None, None if n % 90 == 0 else text.encode(), n % 2))
    return sent


@pytest.mark.spark
def test_a_join_of_topics_is_the_same_with_and_without_workers(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """A checkpoint begun in either way is continued in the other one."""
    sides = ("left", "right")
    name = f"record-columns-{tmp_path.name}"
    declared = "".join(
        f"CREATE STREAM {side}s (id BIGINT, at TIMESTAMP NOT NULL, amount DOUBLE, item STRING,"
        " WATERMARK FOR at AS at - INTERVAL 1 MINUTE) USING kafka OPTIONS ("
        f"kafka.bootstrap.servers '{kafka}', subscribe '{name}-{side}', startingOffsets 'earliest',"
        " value.format 'json', malformed 'drop');\n"
        for side in sides
    )
    query = """INSERT INTO result SELECT STREAM l.id, l.item, r.item AS other, r.amount
        FROM lefts l LEFT JOIN rights r ON l.id = r.id AND r.at BETWEEN l.at - INTERVAL 3 MINUTES AND l.at;"""
    malformed = {"on": 0, "off": 0}
    die = random.Random(5)
    halves = [{side: records_to_send(die, numbers) for side in sides} for numbers in (range(200), range(200, 400))]
    triggers: tuple[Trigger, ...] = ("available_now", "end")
    for number, (half, trigger) in enumerate(zip(halves, triggers, strict=True)):
        for side, sent in half.items():
            if not number:
                topics.create(kafka, f"{name}-{side}", 2)
            topics.send(kafka, f"{name}-{side}", sent)
        for begun, switch in (("on", ("on", "off")[number]), ("off", ("off", "on")[number])):
            sink = f"CREATE SINK result USING json OPTIONS (path '{tmp_path / begun}/result');"
            text = f"SET watersmeet.json_in_workers = {switch};\n{declared}{sink}{query}"
            malformed[begun] += sum(progress.malformed for progress in run(spark, text, tmp_path / begun, trigger))
    on, off = (
        sorted(line for file in (tmp_path / begun / "result").rglob("*.json") for line in file.read_text().splitlines())
        for begun in ("on", "off")
    )
    assert on == off != []
    assert malformed["on"] == malformed["off"] > 10


COLUMNS = "id BIGINT, n INT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE"
DECLARED = """CREATE STREAM {name} ({columns}) USING kafka
    OPTIONS (kafka.bootstrap.servers '{kafka}', subscribe '{topic}', value.format 'json'{more});"""
AS_OF = "SELECT STREAM a.id, b.n FROM a LEFT ASOF JOIN b MATCH_CONDITION (a.at >= b.at)"
WITHIN = "SELECT STREAM a.id, b.n FROM a JOIN b WITHIN 1h ON a.id = b.id"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "more", "query", "is_decoded"),
    [
        (COLUMNS, "", WITHIN, True),
        (COLUMNS, ", key.format 'bytes'", f"{WITHIN} WHERE a.n > 3", True),
        (COLUMNS, "", f"SET watersmeet.json_in_workers = off; {WITHIN}", False),
        (COLUMNS, ", key.format 'long'", WITHIN, False),
        (f"f FLOAT, {COLUMNS}", "", WITHIN, False),
        (f"f ARRAY<INT>, {COLUMNS}", "", WITHIN, False),
        (f"_offset BIGINT, {COLUMNS}", "", WITHIN, False),
        (COLUMNS, "", f"{WITHIN} WHERE sqrt(a.n) > 3", False),
        (COLUMNS, "", WITHIN.replace("a.id,", "a._key,"), False),
        (COLUMNS, "", f"{AS_OF} ON a.id = b.id", True),
    ],
)
def test_a_side_is_decoded_in_workers_only_where_that_changes_nothing(
    spark: SparkSession, kafka: str, columns: str, more: str, query: str, is_decoded: bool
) -> None:
    topic = f"record-columns-{abs(hash((columns, more, query)))}"
    topics.create(kafka, topic)
    own = DECLARED.format(name="a", columns=columns, kafka=kafka, topic=topic, more=more)
    other = DECLARED.format(name="b", columns=COLUMNS, kafka=kafka, topic=topic, more="")
    switch = "" if "SET" in query else "SET watersmeet.json_in_workers = on;"
    shown = ws.sql(f"{switch}{own}{other}{query};", spark=spark)
    plan = cast("Any", shown)._jdf.queryExecution().logical().toString()
    # The other side always is, but for the setting and the side of versions.
    is_other = 0 if "SET" in query or "ASOF" in query else 1
    assert plan.count("PackPlainRecords") == is_decoded + is_other
