"""The load phase: with ``watersmeet.table.load = first``, stream rows wait until the tables they ask are caught up.

Tables are caught up once a batch had no row of them, or there is nothing left to read at all; or when they have been
read as far as they went at the start, which counts where they never stop changing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.formats import source_format
from watersmeet.physical import QueryPlan, join_plans, scan_plans

TABLE = "watersmeet.table:"
"""How the names of the observations begin that count the rows of tables."""

Offsets = Mapping[tuple[str, str], int]
"""How far topics have been read: an offset by topic and partition."""


def tables_to_load(plan: QueryPlan) -> tuple[Source, ...]:
    """The sources of the tables that are to be caught up before stream rows ask them."""
    tables: dict[str, Source] = {}
    for join in join_plans(plan.relation):
        for port in join.operator.ports_to_preload:
            for scan in scan_plans(join.ports[port].input):
                tables |= {source.name: source for source in scan.parts or (scan.source,)}
    return tuple(tables.values())


def observe_rows(frames: Mapping[str, DataFrame], tables: Sequence[Source]) -> dict[str, DataFrame]:
    """The frames, those of the tables counting their rows for the progress of the query."""
    rows = F.count(F.lit(1)).alias("rows")
    return {**frames, **{t.name: frames[t.name].observe(f"{TABLE}{t.name}", rows) for t in tables}}


@dataclass
class Loading:
    """How far the tables of a running query are, batch by batch as Spark reports them."""

    tables: tuple[Source, ...]
    is_done: bool = False
    rows: int = 0
    batches: int = 0
    goal: Offsets = field(default_factory=dict[tuple[str, str], int])

    @property
    def names(self) -> str:
        """The tables, as a list in a sentence."""
        *most, last = [table.name for table in self.tables]
        return f"{', '.join(most)} and {last}" if most else last

    def take(self, reported: Mapping[str, Any]) -> None:
        """Take in what Spark reports of a batch."""
        if not any(source["numInputRows"] for source in reported["sources"]):
            self.is_done = True
            return
        rows = table_rows(reported)
        self.rows += rows
        self.batches += 1
        self.is_done = rows == 0 or self._has_reached_start(reported)

    def _has_reached_start(self, reported: Mapping[str, Any]) -> bool:
        """Whether all that was there at the start has been read.

        Where nothing limits a batch, the second one has seen it: the first may have been planned before a restart.
        """
        formats = [source_format(table) for table in self.tables]
        if not any(format_.is_limited for format_ in formats):
            return self.batches > 1
        if not all(format_.topics for format_ in formats):
            return False
        topics = {topic for format_ in formats for topic in format_.topics}
        self.goal = self.goal or _offsets(reported, "latestOffset", topics)
        reached = _offsets(reported, "endOffset", topics)
        return bool(self.goal) and all(reached.get(place, -1) >= offset for place, offset in self.goal.items())


def table_rows(reported: Mapping[str, Any]) -> int:
    """How many rows of tables a batch had; a table without any may not be reported at all."""
    observed: Mapping[str, Any] = reported.get("observedMetrics") or {}
    total = 0
    for name, values in observed.items():
        if name.startswith(TABLE):
            metrics = cast("Mapping[str, Any]", values if isinstance(values, Mapping) else values.asDict())
            # Through Spark Connect, values come beside their schema.
            total += int(metrics["rows"] if "rows" in metrics else metrics["values"][0])
    return total


def _offsets(reported: Mapping[str, Any], which: str, topics: set[str]) -> dict[tuple[str, str], int]:
    latest: dict[tuple[str, str], int] = {}
    for source in reported["sources"]:
        offsets: Any = source.get(which)
        if isinstance(offsets, Mapping):
            by_topic = cast("Mapping[str, Mapping[str, int]]", offsets)
            for topic in topics & by_topic.keys():
                latest |= {(topic, partition): offset for partition, offset in by_topic[topic].items()}
    return latest
