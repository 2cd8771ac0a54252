"""Why rows did not join, of a query that has run: the counts are those of its progress, and each row has its reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import watersmeet as ws
from watersmeet.cli.app import app
from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Script
from watersmeet.metrics.progress import Progress
from watersmeet.queries import analyze, read_script
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.trace import questions
from watersmeet.tools.trace.questions import question_of

pytestmark = pytest.mark.spark

ORDERS = [
    ["1 lamp 10 08:00", "2 rug 20 08:05", "3 kettle -1 08:06", "null cup 3 08:07", "not json"],
    ["4 pen 5 09:30", "5 bag 5 09:00"],
    ["6 hat 5 08:10", "7 mat 5 10:00", "8 fan 5 09:55"],
]
DELIVERIES = [["1 north 08:30"], ["2 west 09:45", "8 east 09:40"], ["7 south 10:30", "5 east 09:05"]]

SQL = """
CREATE STREAM orders (order_id BIGINT, item STRING, amount BIGINT, order_time TIMESTAMP,
    WATERMARK FOR order_time AS order_time - INTERVAL 10 MINUTES
) USING json OPTIONS (path '{folder}/orders', maxFilesPerTrigger '1', malformed 'drop');
CREATE STREAM deliveries (order_id BIGINT, courier STRING, delivery_time TIMESTAMP,
    WATERMARK FOR delivery_time AS delivery_time - INTERVAL 5 MINUTES
) USING json OPTIONS (path '{folder}/deliveries', maxFilesPerTrigger '1');
CREATE SINK joined USING json OPTIONS (path '{folder}/joined');
INSERT INTO joined SELECT STREAM o.order_id, upper(o.item) AS item, d.courier
FROM orders o LEFT JOIN deliveries d ON o.order_id = d.order_id
    AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 1 HOUR
WHERE abs(o.amount) = o.amount;
"""


def order(text: str) -> str:
    if text == "not json":
        return text
    key, item, amount, time = text.split()
    return f'{{"order_id": {key}, "item": "{item}", "amount": {amount}, "order_time": "2026-03-02T{time}:00Z"}}'


def delivery(text: str) -> str:
    key, courier, time = text.split()
    return f'{{"order_id": {key}, "courier": "{courier}", "delivery_time": "2026-03-02T{time}:00Z"}}'


def write_lines(folder: Path, name: str, number: int, lines: list[str]) -> None:
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / f"{number}.json"
    path.write_text("".join(f"{line}\n" for line in lines))
    # Spark reads the oldest file first.
    os.utime(path, (1_000_000 + number, 1_000_000 + number))


@dataclass
class Shop:
    """A project that has run, and what Spark reported of it."""

    folder: Path
    script: Script
    progress: list[Progress]
    query: questions.RecordedQuery
    read: questions.ReplayedQuery
    spark: Any

    def answer(self, source: str, *values: str) -> str:
        return questions.answer(self.read, question_of(self.script.sources, source, values)).text()


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    from watersmeet.spark.run.running import run_script

    folder = tmp_path_factory.mktemp("why")
    for number, (orders, deliveries) in enumerate(zip(ORDERS, DELIVERIES, strict=True)):
        write_lines(folder, "orders", number, [order(text) for text in orders])
        write_lines(folder, "deliveries", number, [delivery(text) for text in deliveries])
    script = read_script(SQL.format(folder=folder))
    progress: list[Progress] = []
    storage = folder / "storage"
    run_script(
        script, spark=spark, storage=storage, trigger="available_now", listeners=Listeners(on_progress=progress.append)
    )
    [query] = questions.find_queries(script, analyze(script), storage, "", None)
    yield Shop(folder, script, progress, query, questions.read(spark, query), spark)


def test_the_summary_adds_up_to_the_progress(shop: Shop) -> None:
    found = questions.summary(shop.read)
    told = shop.read.build_lineage()
    assert len({one.batch for one in told.arrivals}) == 3
    assert found.counts["late"] == sum(one.late for one in shop.progress) == 2
    assert found.counts["padded"] == sum(one.padded for one in shop.progress)
    assert found.counts["alive"] == shop.progress[-1].state_rows
    assert found.counts["malformed"] == sum(one.malformed for one in shop.progress) == 1
    assert len(told.matches) == sum(one.matched for one in shop.progress) == 2
    assert sum(group.rows for group in found.groups) == found.counts["rows in"] == 14
    reasons = {(group.side, group.reason) for group in found.groups}
    assert reasons >= {("o", "filtered"), ("o", "null key"), ("o", "late"), ("o", "out of bounds"), ("d", "late")}
    assert len(told.results) == sum(one.rows_out for one in shop.progress)
    assert "rows" in found.text()
    assert found.data()["counts"] == dict(found.counts)


@pytest.mark.parametrize(
    ("order_id", "expected"),
    [
        ("1", ["matched", "It matched the deliveries row (order_id 1, courier 'north'"]),
        ("2", ["padded", "but its delivery_time is 40 min too late"]),
        ("3", ["filtered", "abs(o.amount) = o.amount (o.amount is -1) is not true"]),
        ("NULL", ["null key", "padded"]),
        ("5", ["could not match it. It was late by 35 min"]),
        ("6", ["late", "It was late by 1 h 10 min", "(order_id 4, item 'pen'", "moved it there in batch 1"]),
        ("8", ["its delivery_time is 15 min too early"]),
        ("9", ["No row of orders that was read has order_id 9."]),
    ],
)
def test_each_row_has_its_reason(shop: Shop, order_id: str, expected: list[str]) -> None:
    said = shop.answer("orders", f"order_id={order_id}")
    for part in expected:
        assert part in said


def test_a_row_of_the_result_is_followed_back(shop: Shop) -> None:
    made = questions.find_provenance(shop.read, ["item=LAMP"])
    [place] = made.places
    rows = {one.number: one for one in made.lineage.arrivals}
    parts = [rows[number] for number in made.lineage.results[place].arrivals]
    assert [(one.source, one.batch, Path(one.where).name) for one in parts] == [
        ("orders", 0, "0.json"),
        ("deliveries", 0, "0.json"),
    ]
    assert "watermark of d.delivery_time then: 2026-03-02 08:25:00" in made.text()


def test_rows_not_read_yet_or_gone_are_reported_as_such(shop: Shop) -> None:
    write_lines(shop.folder, "orders", 9, [order("77 new 1 11:00")])
    (shop.folder / "deliveries" / "0.json").rename(shop.folder / "kept")
    later = replace(shop, read=questions.read(shop.spark, shop.query))
    (shop.folder / "kept").rename(shop.folder / "deliveries" / "0.json")
    (shop.folder / "orders" / "9.json").unlink()
    said = later.answer("orders", "order_id=77")
    assert "(order_id 77, item 'new', amount 1, order_time 2026-03-02 11:00:00) is in orders, but no batch" in said
    assert "Unknown: 1 file of deliveries that the query has read is gone" in said


JOIN = """SELECT STREAM o.id, d.courier FROM orders o LEFT JOIN deliveries d
ON o.id = d.id AND d.at BETWEEN o.at AND o.at + 5"""


def test_rows_of_dataframes(shop: Shop) -> None:
    """Over whole DataFrames nothing is late, and the end of the input closes every life."""
    spark = shop.spark
    orders = spark.createDataFrame([("a", 1), ("b", 2)], "id STRING, at BIGINT")
    deliveries = spark.createDataFrame([("a", "north", 3), ("B", "west", 4)], "id STRING, courier STRING, at BIGINT")
    alone = ws.why(JOIN, "orders", {"id": "b"}, orders=orders, deliveries=deliveries)
    assert "padded" in str(alone)
    assert "But there is 'B', which differs by case." in str(alone)
    met = ws.why(JOIN, "Orders", {"ID": "a"}, orders=orders, deliveries=deliveries)
    assert [fate.what for fate in met.lineage.of(met.rows[0])] == ["matched", "expired"]
    with pytest.raises(WatersmeetError, match="WRONG_QUESTION"):
        ws.why(JOIN, "orders", {"at": "noon"}, orders=orders, deliveries=deliveries)
    with pytest.raises(WatersmeetError, match="UNKNOWN_COLUMN"):
        ws.why(JOIN, "orders", {"it": 1}, orders=orders, deliveries=deliveries)


def test_rows_of_a_checkpoint(shop: Shop) -> None:
    """A program names the checkpoint of its query, and declares what the query has read."""
    text = SQL.format(folder=shop.folder)
    found = ws.why(text, "orders", {"order_id": 6}, checkpoint=str(shop.query.checkpoint), spark=shop.spark)
    assert "It was late by 1 h 10 min" in str(found)
    with pytest.raises(WatersmeetError, match="NEVER_RAN"):
        ws.why(text, "orders", {"order_id": 6}, checkpoint=shop.folder / "nothing", spark=shop.spark)
    stream = shop.spark.readStream.schema("id STRING, at BIGINT").json(str(shop.folder / "orders"))
    with pytest.raises(WatersmeetError, match="WRONG_ARGUMENT"):
        ws.why(JOIN, "orders", {"id": "a"}, orders=stream, deliveries=stream)


def test_unanswerable_questions_are_refused(shop: Shop) -> None:
    """Keys of different types are compared by Spark's rules alone."""
    orders = shop.spark.createDataFrame([("1", 1)], "id STRING, at BIGINT")
    deliveries = shop.spark.createDataFrame([(1, "north", 3)], "id BIGINT, courier STRING, at BIGINT")
    with pytest.raises(WatersmeetError, match="NOT_TOLD"):
        ws.why(JOIN, "orders", {"id": "1"}, orders=orders, deliveries=deliveries)


def test_the_answer_tells_the_story_of_a_row(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents show what the command says of the project that `init` writes."""
    from watersmeet.cli.run import Cluster
    from watersmeet.spark.run.running import run_script

    monkeypatch.chdir(tmp_path)

    def ours(*_: object) -> object:
        return spark

    # The session of the tests, in place of one more.
    monkeypatch.setattr(Cluster, "session", ours)
    assert CliRunner().invoke(app, ["init", "shop"]).exit_code == 0
    opened = open_script(Path("shop"), "absolute")
    storage = tmp_path / "shop" / "storage"
    run_script(opened.script, analyzed=opened.queries, spark=spark, storage=storage, trigger="available_now")
    page = (Path(__file__).parents[3] / "docs" / "why.md").read_text("utf-8")
    shown = re.findall(r"^\$ watersmeet (why shop .*)\n((?:.|\n)*?)^```$", page, re.MULTILINE)
    assert len(shown) == 3
    for command, expected in shown:
        said = CliRunner().invoke(app, command.split())
        assert said.stdout.replace(f"{tmp_path}/", "") == expected
        found = json.loads(CliRunner().invoke(app, [*command.split(), "--format", "json"]).stdout)
        assert [one["query"] for one in found] == ["joined"]
