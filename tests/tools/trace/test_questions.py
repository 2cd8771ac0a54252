"""Questions about rows: what is refused before anything is read, near misses, and the log of a checkpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from watersmeet.catalog import Field, Source
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.spark.state.offset_log import read_log
from watersmeet.tools.trace.query import NearKeys
from watersmeet.tools.trace.questions import question_of

ORDERS = Source("orders", (Field("id", "BIGINT"), Field("item", "STRING"), Field("at", "TIMESTAMP")))


def watersmeet(*arguments: object) -> Result:
    environ = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    return CliRunner(env=environ).invoke(app, [str(argument) for argument in arguments], prog_name="watersmeet")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    assert watersmeet("init", tmp_path / "shop").exit_code == 0
    return tmp_path / "shop"


def has_run(shop: Path) -> Path:
    """A project whose checkpoint says that a batch has ended."""
    commits = shop / "storage" / "checkpoints" / "joined" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    return shop


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ordrs", "order_id=1"], "[UNKNOWN_SOURCE] There is no stream or table named `ordrs`."),
        (["orders", "order_di=1"], "[UNKNOWN_COLUMN] There is no column `order_di` in orders."),
        (["orders", "order_id=one"], "[WRONG_QUESTION] `order_id=one` is not a question about rows"),
        (["orders", "order_id"], "[WRONG_QUESTION] `order_id` is not a question about rows: it does not name a value."),
        (["--result", "order=1"], "[UNKNOWN_COLUMN] There is no column `order` in the result of joined."),
        (["--summary", "--query", "joind"], "[UNKNOWN_QUERY] There is no query that writes to `joind`."),
    ],
)
def test_questions_that_cannot_be_answered(shop: Path, arguments: list[str], expected: str) -> None:
    said = watersmeet("why", has_run(shop), *arguments)
    assert said.exit_code == 1
    assert expected in said.stderr
    assert "Hint: " in said.stderr


def test_a_project_that_never_ran(shop: Path) -> None:
    said = watersmeet("why", shop, "orders", "order_id=1")
    assert said.exit_code == 1
    assert "[NEVER_RAN] No row of joined has been processed yet" in said.stderr
    assert f"Hint: run it first: `watersmeet run {shop} --once`." in said.stderr


@pytest.mark.parametrize("arguments", [[], ["orders"], ["orders", "order_id=1", "--summary"]])
def test_malformed_questions_are_refused(shop: Path, arguments: list[str]) -> None:
    assert watersmeet("why", shop, *arguments).exit_code == 2


def test_values_are_read_in_the_types_of_their_columns() -> None:
    question = question_of([ORDERS], "ORDERS", ["ID=7", "item=a=b", "at=2026-03-02 08:00"])
    assert question.values == {"id": 7, "item": "a=b", "at": datetime(2026, 3, 2, 8, tzinfo=UTC)}
    assert question_of([ORDERS], "orders", ["item=null"]).values == {"item": None}
    with pytest.raises(WatersmeetError, match="WRONG_QUESTION"):
        question_of([ORDERS], "orders", ["at=noon"])


def test_values_of_parts_are_typed_as_json() -> None:
    source = Source("s", (Field("k", "STRUCT<id: BIGINT, city: STRING>"),))
    question = question_of([source], "s", ['k={"id": 2, "city": "Bern"}'])
    rows = pa.table({"k": pa.array([{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Bern"}, None])})
    assert question.row_mask(rows).to_pylist() == [False, True, False]
    assert str(question) == "k {id 2, city 'Bern'}"
    with pytest.raises(WatersmeetError, match="as JSON"):
        question_of([source], "s", ["k=Bern"])


@pytest.mark.parametrize(
    ("key", "other", "expected"),
    [
        (("Ab",), ("aB",), "by case"),
        (("a",), (" a",), "by blanks"),
        (("7",), ("007",), "by leading zeros"),
        ((7,), ("7",), "by type"),
        ((Decimal("1.5"),), (Decimal("150"),), "by scale"),
        ((datetime(2026, 1, 1, 12),), (datetime(2026, 1, 1, 11),), "by a time zone (1:00:00)"),
        (("x", "a"), ("x", "A"), "by case"),
        (("a",), ("b",), None),
        ((7,), (8,), None),
        ((96,), (9600,), None),
        ((datetime(2026, 1, 1, 12),), (datetime(2026, 1, 1, 11, 59),), None),
    ],
)
def test_near_misses(key: tuple[object, ...], other: tuple[object, ...], expected: str | None) -> None:
    found = NearKeys([("unlike",), other]).describe_nearest(key)
    assert found is None if expected is None else expected in str(found)


def offsets(checkpoint: Path, batch: int, *sources: object) -> None:
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    lines = [
        "v1",
        json.dumps({"batchTimestampMs": 1000 + batch}),
        *(json.dumps(one) if one else "-" for one in sources),
    ]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def test_the_log_of_a_checkpoint(tmp_path: Path) -> None:
    """Steps of files count by themselves, some are put together, and offsets of topics stand as they are."""
    offsets(tmp_path, 3, {"logOffset": 1}, {"t": {"0": 5}})
    offsets(tmp_path, 4, {"logOffset": 1}, {"t": {"0": 9}})
    offsets(tmp_path, 5, {"logOffset": 2}, {"t": {"0": 9}})
    (tmp_path / "offsets" / "6").write_text("not committed")
    files = tmp_path / "sources" / "0"
    files.mkdir(parents=True)
    entry = '{{"path":"file:///in/{}%20x.json","timestamp":0,"batchId":{}}}'
    (files / "1.compact").write_text("\n".join(["v1", entry.format("a", 0), entry.format("b", 1)]))
    (files / "2").write_text("\n".join(["v1", entry.format("c", 2)]))
    (files / "3").write_text("\n".join(["v1", entry.format("d", 3)]))
    topic = tmp_path / "sources" / "1"
    topic.mkdir()
    (topic / "0").write_text('0v1\n{"t":{"0":2}}')
    log = read_log(tmp_path)
    assert log.batches == (3, 4, 5)
    assert not log.is_whole
    assert log.clocks[4] == 1_004_000
    assert log.files == {"/in/a x.json": 3, "/in/b x.json": 3, "/in/c x.json": 5}
    assert [log.batch_of("t-0", offset) for offset in (1, 2, 4, 5, 8, 9)] == [None, 3, 3, 4, 4, None]
