"""What the commits of a Delta or Iceberg table say of the batches that they are.

Each commit of ours carries a text: which query and run wrote it, the batch, and when Spark planned that. Commits of
earlier versions, and of the streaming sinks of both formats, have the number of the batch alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from watersmeet.spark.sinks.outputs import drain_batch
from watersmeet.spark.sinks.positions import BatchPlans, Position
from watersmeet.spark.sinks.table_sinks import SinkTarget, plans_of, run_of

HISTORY = 1000
"""So many commits are looked through for the last one of a query."""


@dataclass(frozen=True)
class Commit:
    """A batch in a table. ``had_rows``: whether the table held rows of others before the first batch of the query."""

    position: Position
    had_rows: bool = False

    def to_text(self, writer: str) -> str:
        """The commit as text."""
        stored = {"batch": self.position.batch, "planned_at": self.position.planned_at, "had_rows": self.had_rows}
        return json.dumps({"watersmeet": writer, **stored})

    @staticmethod
    def from_text(text: str | None, writer: str) -> Commit | None:
        """The commit that a text is of; None: it is not one of that writer.

        >>> Commit.from_text(Commit(Position(7, 1000), True).to_text("me"), "me")
        Commit(position=Position(batch=7, planned_at=1000), had_rows=True)
        >>> Commit.from_text("by hand", "me")
        """
        with suppress(ValueError, TypeError, KeyError):
            stored: dict[str, Any] = json.loads(text or "")
            if stored["watersmeet"] == writer:
                return Commit(Position(stored["batch"], stored["planned_at"]), stored["had_rows"])
        return None


def writer_of(target: SinkTarget) -> str:
    """Under what the batches of a query are known to a table."""
    return f"watersmeet {target.query} {run_of(target.checkpoint)}"


def commits_of(rows: Callable[[], DataFrame]) -> Iterator[Any]:
    """The commits of a table, the latest first; none, if the table is not there or the session cannot read them."""
    try:
        yield from rows().limit(HISTORY).collect()
    except PySparkException:
        return


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """Let a session have settings meanwhile."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@dataclass
class LakeMerger:
    """Merges the batches of a query into a table, and knows the last one.

    ``find``: the last commit of the query; ``has_rows``: whether the table holds rows; ``merge``: what merges a batch,
    given the text of its commit and whether a key that comes must be new.
    """

    target: SinkTarget
    find: Callable[[SparkSession], Commit | None]
    has_rows: Callable[[SparkSession], bool]
    merge: Callable[[DataFrame, int, str, bool], None]
    last: Commit | None = None
    is_known: bool = False

    def write(self, batch: DataFrame, number: int) -> None:
        """Merge a batch, unless the table has it."""
        spark = batch.sparkSession
        if not self.is_known:
            self.last, self.is_known = self.find(spark), True
        plans: BatchPlans = plans_of(batch, self.target)
        position = None if self.last is None else self.last.position
        hint = self.target.format.recovery_hint(self.target, number - 1)
        if plans.has_batch(position, number, self.target.sink.name, hint):
            drain_batch(batch)
            return
        had_rows = self.last.had_rows if self.last is not None else number == 0 and self.has_rows(spark)
        # Whether a batch is repeated that an earlier version merged is not known: its keys may be there.
        is_strict = not had_rows and (self.last is not None or number == 0)
        commit = Commit(plans.position(number), had_rows)
        self.merge(batch, number, commit.to_text(writer_of(self.target)), is_strict)
        self.last = commit


def table_has_rows(rows: Callable[[], DataFrame]) -> bool:
    """Whether a table is there and holds rows."""
    try:
        return not rows().isEmpty()
    except PySparkException:
        return False
