"""Tables of Delta and Iceberg that two drivers write to: no row is lost or doubled, and one of the two stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.matrix.lakes import FORMATS, catalog, rows

from watersmeet.catalog import Sink
from watersmeet.errors import WatersmeetError
from watersmeet.formats.base import Changes
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.sinks import SinkTarget, Write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 15
"""How long a driver is paused at most."""
KINDS = [(format_, changes) for format_ in FORMATS for changes in (None, "log", "upsert")]


@dataclass
class Table:
    """A table that drivers write to: one row of each id, whose number is the batch that it came in."""

    spark: SparkSession
    folder: Path
    format: str
    changes: Changes | None

    @property
    def options(self) -> dict[str, str]:
        return {"path": f"{self.folder}/out"} if self.format == "delta" else {"table": "reef.shop.out"}

    def driver(self, checkpoint: str = "checkpoint") -> Write:
        """What a driver writes with that has just started."""
        sink = Sink("out", self.format, self.options)
        target = SinkTarget(sink, "query", self.folder / checkpoint, self.changes, ("id",) if self.changes else ())
        return sink_connector(target).writer()

    def plan(self, checkpoint: str = "checkpoint", **planned_at: int) -> None:
        """Let a checkpoint have planned batches: ``_3=1000`` is batch 3, at that time."""
        folder = self.folder / checkpoint
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text('{"id":"run"}')
        for name, moment in planned_at.items():
            (folder / "offsets" / name[1:]).write_text(f'v1\n{{"batchTimestampMs":{moment}}}\n-')

    def batch(self, *ids: int, spark: SparkSession | None = None) -> DataFrame:
        weight = "" if self.changes is None else f", 1L AS `{WEIGHT}`"
        listed = ", ".join(map(str, ids))
        return (spark or self.spark).sql(f"SELECT id, 'x' AS name{weight} FROM VALUES {listed} AS t (id)")

    @property
    def ids(self) -> list[int]:
        if self.format == "delta":
            found = self.spark.read.format("delta").load(f"{self.folder}/out")
        else:
            self.spark.sql("REFRESH TABLE reef.shop.out")
            found = self.spark.table("reef.shop.out")
        return [row[0] for row in rows(found.select("id"))]

    def has(self, id_: int) -> bool:
        with suppress(PySparkException):
            return id_ in self.ids
        return False


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1] or 'rows'}")
def table(request: pytest.FixtureRequest, lakes: SparkSession, tmp_path: Path) -> Iterator[Table]:
    # A session keeps a catalog that it has used, so each test has a session.
    session = lakes.newSession()
    catalog(session, "reef", tmp_path)
    yield Table(session, tmp_path, *request.param)


def condition_of(call: Callable[[], Any]) -> str:
    with pytest.raises(WatersmeetError) as raised:
        call()
    return raised.value.refusals[0].condition


def test_a_driver_that_was_paused_does_not_write_what_its_rival_has_written(table: Table) -> None:
    paused, rival = table.driver(), table.driver()
    table.plan(_0=1000, _1=2000)
    paused(table.batch(0), 0)
    # Batch 1 is planned, and the driver is paused: its rival repeats that batch, and goes on.
    rival(table.batch(1), 1)
    table.plan(_2=3000)
    rival(table.batch(2), 2)
    paused(table.batch(1), 1)
    assert table.ids == [0, 1, 2]
    table.plan(_3=4000)
    rival(table.batch(3), 3)
    assert table.ids == [0, 1, 2, 3]


def test_of_two_drivers_on_two_copies_of_a_checkpoint_one_stops(table: Table) -> None:
    paused, rival = table.driver(), table.driver("copy")
    table.plan(_0=1000)
    table.plan("copy", _0=1000, _1=2000, _2=3000)
    paused(table.batch(0), 0)
    rival(table.batch(1), 1)
    rival(table.batch(2), 2)
    # It wakes, and plans the same number over other rows.
    table.plan(_1=2500)
    assert condition_of(lambda: paused(table.batch(1, 2), 1)) == "SINK_AHEAD_OF_CHECKPOINT"
    assert table.ids == [0, 1, 2]
    table.plan("copy", _3=4000)
    rival(table.batch(3), 3)
    assert table.ids == [0, 1, 2, 3]


@pytest.mark.parametrize("is_copy", [False, True], ids=["checkpoint", "copy"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_driver_is_paused_while_it_writes(table: Table, number: int, is_copy: bool) -> None:
    paused, rival = table.driver(), table.driver("copy" if is_copy else "checkpoint")
    for checkpoint, moment in (("checkpoint", 5000), ("copy", 6000)):
        table.plan(checkpoint, **{f"_{before}": 1000 + before for before in range(number)}, **{f"_{number}": moment})
    for before in range(number):
        paused(table.batch(before), before)
    begun, wakes = table.folder / "begun", table.folder / "wakes"

    def wait(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            begun.touch()
            while not wakes.exists():
                time.sleep(0.05)
            yield part

    session = table.spark.newSession()
    catalog(session, "reef", table.folder)
    slow = table.batch(number, spark=session).coalesce(1)
    slow = slow.mapInPandas(wait, slow.schema)
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(paused, slow, number)
        while not begun.exists() and not writing.done():
            time.sleep(0.05)
        overtaking = threads.submit(rival, table.batch(number), number)
        # One JVM has one cache for both, so where a merge uses it the rival cannot end before the other goes on.
        until = time.monotonic() + SECONDS
        while not table.has(number) and not overtaking.done() and time.monotonic() < until:
            time.sleep(0.05)
        wakes.touch()
        errors = [written.exception() for written in (writing, overtaking)]
    stopped = [
        error.refusals[0].condition if isinstance(error, WatersmeetError) else error for error in errors if error
    ]
    assert stopped == (["SINK_AHEAD_OF_CHECKPOINT"] if is_copy else [])
    assert table.ids == [*range(number + 1)]


def test_a_table_that_others_write_to_as_well(table: Table) -> None:
    driver = table.driver()
    table.plan(_0=1000, _1=2000)
    driver(table.batch(0), 0)
    name = "reef.shop.out" if table.format == "iceberg" else f"delta.`{table.folder}/out`"
    table.spark.sql(f"DELETE FROM {name} WHERE id = 0")
    driver(table.batch(1), 1)
    driver(table.batch(1), 1)
    assert table.ids == [1]


@pytest.mark.parametrize("table", [kind for kind in KINDS if kind[1] == "upsert"], indirect=True)
def test_a_first_batch_that_fails_after_its_table_was_made_is_written_again(table: Table) -> None:
    table.plan(_0=1000)
    with pytest.raises(Exception, match="KEY_NOT_UNIQUE"):
        table.driver()(table.batch(0).unionAll(table.batch(0).selectExpr("id", "'y' AS name", f"`{WEIGHT}`")), 0)
    table.driver()(table.batch(0), 0)
    assert table.ids == [0]
