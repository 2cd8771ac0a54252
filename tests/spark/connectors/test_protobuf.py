"""Protobuf through a real broker: what comes in, what goes out, what is malformed, and refusals."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests import protobuf_messages

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.project import with_columns
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = pytest.mark.spark

_NUMBERS = count(1)
ORDER, BOX = (protobuf_messages.message_class(name) for name in ("shop.Order", "old.Box"))
COLUMNS = (
    "a_int64 BIGINT, a_fixed64 DECIMAL(20,0), kind STRING, at TIMESTAMP, takes INTERVAL DAY TO SECOND, note STRING, "
    "said INT, lines ARRAY<STRUCT<item: STRING, pieces: INT>>, counts MAP<STRING, BIGINT>"
)


@pytest.fixture
def topic(kafka: str) -> str:
    """The name of a topic that is not there yet."""
    return f"protobuf-{next(_NUMBERS)}"


def run(spark: SparkSession, text: str, folder: Path) -> None:
    script = with_columns(read_script(text))
    run_script(script, spark=spark, storage=folder / "storage", trigger="available_now")


def refusal_of(spark: SparkSession, text: str, folder: Path) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        run(spark, text, folder)
    return raised.value.refusals[0]


def order(number: int) -> Any:
    made = ORDER(a_int64=number, a_fixed64=2**64 - 1, kind=number % 3, a_string="nobody asks for it")
    made.at.FromJsonString("2026-03-02T10:00:00.000001Z")
    made.takes.FromJsonString("-1.5s")
    made.lines.add(item="lamp", pieces=number)
    made.counts["x"] = -number
    return made


@pytest.mark.smoke
def test_messages_come_and_go_and_what_is_none_is_separated(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    file = protobuf_messages.write_descriptors(tmp_path)
    said = ORDER(said=0)
    said.note.value = "is there"
    sent = [order(0), order(2), said]
    topics.create(kafka, topic, 1)
    values = [*(one.SerializeToString() for one in sent), b"\x08", b"garbage", None]
    topics.send(kafka, topic, [topics.Record(b"k", value) for value in values])
    topics.create(kafka, f"{topic}-boxes", 1)
    topics.send(kafka, f"{topic}-boxes", [topics.Record(b"k", BOX(stock={"id": 4}).SerializeToString())])
    messages = f"value.format 'protobuf', value.descriptor '{file}', value.message"
    read = f"kafka.bootstrap.servers '{kafka}', startingOffsets 'earliest', {messages}"
    write = f"kafka.bootstrap.servers '{kafka}', partitions '1', {messages}"
    orders = f"CREATE STREAM orders ({COLUMNS}) USING kafka OPTIONS (subscribe '{topic}', {read} 'shop.Order');\n"
    text = (
        f"{orders}CREATE STREAM boxes USING kafka OPTIONS (subscribe '{topic}-boxes', {read} 'old.Box');\n"
        f"CREATE SINK out USING kafka OPTIONS (topic '{topic}-out', delivery 'exactly_once', {write} 'shop.Order');\n"
        f"CREATE SINK bad USING json OPTIONS (path '{tmp_path / 'bad'}');\n"
        f"CREATE SINK shown USING json OPTIONS (path '{tmp_path / 'shown'}');\n"
        "INSERT INTO out SELECT STREAM * FROM orders MALFORMED INTO bad;\n"
        "INSERT INTO shown SELECT STREAM stock.id AS id, stock.pieces AS pieces, stock.place AS place FROM boxes;"
    )
    run(spark, text, tmp_path)
    found = [ORDER.FromString(record.value) for record in topics.read(kafka, f"{topic}-out")]
    for one in sent:
        one.ClearField("a_string")
    assert found == sent
    (shown,) = rows_of(tmp_path / "shown")
    assert shown == {"id": 4, "pieces": 7}, "what was left out has the default of its field, or is NULL"
    reasons = {(row["place"].rsplit(" ", 1)[1], row["reason"], row["value"]) for row in rows_of(tmp_path / "bad")}
    assert {(place, reason) for place, reason, _ in reasons} == {
        ("3", "its bytes are not a shop.Order"), ("4", "its bytes are not a shop.Order"), ("5", "it has no value"),
    }  # fmt: skip

    def refusal_for(columns: str, select: str = "*", message: str = "shop.Order") -> Refusal:
        sink = f"CREATE SINK out USING kafka OPTIONS (topic '{topic}-o', {write} '{message}');"
        source = orders.replace(COLUMNS, columns).replace("'earliest'", "'earliest', malformed 'drop'")
        return refusal_of(spark, f"{source}{sink} INSERT INTO out SELECT STREAM {select} FROM orders;", tmp_path / "no")

    wrong = refusal_for("a_int64 BIGINT, colour STRING")
    assert wrong.condition == "PROTOBUF_MESSAGE" and "shop.Order has no `colour`" in wrong.message
    assert "`a_int64`" in wrong.hint and wrong.place is not None
    assert "`a_int64`: it is int64, read as BIGINT, not INT" in refusal_for("a_int64 INT").message
    wrong = refusal_for(COLUMNS, message="shop.Oder")
    assert "no message `shop.Oder`" in wrong.message and "did you mean `shop.Order`?" in wrong.hint
    wrong = refusal_for(COLUMNS, "a_int64 AS id", "old.Stock")
    assert "`id`: the message requires it, but the column may be NULL" in wrong.message
    wrong = refusal_for(COLUMNS, "a_int64 - 1 AS a_uint32")
    reason = "`a_uint32` is uint32 but gets -1"
    expected = Refusal("PROTOBUF_VALUE", {"name": "out", "message": "shop.Order", "reason": reason})
    assert expected.message in wrong.message and wrong.hint == expected.hint


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.json")) for line in file.read_text().splitlines()]
