"""Metrics of each operator of a query in a batch (FT-7, FT-8, FT-11).

A micro-batch has no queues between its operators whose length could be measured. So the gauges mean:

- ``busy``: the share of the batch's time that the operator's shards spent computing, of all the time they could have
  had: the cores they can use at once, times the seconds of the batch. Waiting for Spark to bring rows or to take them
  is not computing; reading and writing the state is.
- ``backpressure``: 1 if a source had more waiting than the batch took, as far as it tells; else the share of the rows
  of the batch that were not processed in the time in which they had come. A batch goes through all operators, so it is
  the same for all of them.
- ``health``: 1. No operator is unhealthy by itself: what fails stops its query, which has no batch then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from watersmeet.operators.core.operator import HISTOGRAMS, ShardMetrics, merge_shard_metrics

Health = Literal[0, 1]
"""1: its query runs; 0: it has failed."""

ROUNDED = 0.05
"""Spark reports rates with one digit after the point, so they may be less by so much."""


COUNTED: Mapping[str, str] = {"merge": "sum"}
"""The property of numbers that add up over batches; of the rest the latest counts."""


def name_in_reports(number: str) -> Mapping[str, str]:
    """The property of a number that shards report under this name, per port or not."""
    return {"reported": number}


def sum_reported(metrics: type[Any], observed: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The numbers of a class that shards report, of several operators together."""
    return {
        number.name: sum_number(observed, number.metadata["reported"])
        for number in fields(metrics)
        if "reported" in number.metadata
    }


@dataclass(frozen=True)
class SideMetrics:
    """Metrics of one side of an operator in a batch; the names are those of `OperatorMetrics`.

    ``stored``: rows that were written to the state, including those of merged runs; ``bytes``: their size there.
    """

    rows: int = field(default=0, metadata=COUNTED)
    late: int = field(default=0, metadata=COUNTED)
    padded: int = field(default=0, metadata=COUNTED)
    dropped: int = field(default=0, metadata=COUNTED)
    state_rows: int = 0
    stored: int = field(default=0, metadata=COUNTED)
    bytes: int = field(default=0, metadata=COUNTED)

    @property
    def state_bytes(self) -> int | None:
        """About the bytes that its rows take in the state, by what rows took that were written; None: not known yet.

        >>> SideMetrics(state_rows=10, stored=4, bytes=100).state_bytes
        250
        """
        return round(self.state_rows * self.bytes / self.stored) if self.stored else 0 if not self.state_rows else None


@dataclass(frozen=True)
class OperatorMetrics:
    """Metrics of one operator in a batch.

    - ``kind``: the name of its family; empty if it is not known
    - ``events``: rows that it emitted, including padded ones and those of `UNMATCHED ... INTO`, without late rows
    - ``events_processed``: rows that it received
    - ``seconds``: the compute time of all shards; ``shards``: their number; ``fullest``: the stored rows of the shard
      that stores most; ``cache_bytes``: the bytes of decoded states, of all queries, in the cache of that of
      its executors that has most of them
    - ``matched``, ``padded``, ``late``, ``dropped``, ``state_rows``, ``written``: as in `Progress`
    - ``delays``, ``lateness``: histograms of the time between the rows of a matched pair, and of how late rows were:
      counts by the number of a range (`watersmeet.operators.core.matching`), of a sample where there are many
    - ``sides``: some of the metrics by side, ``left`` and ``right`` or ``1``, ``2``, ...
    """

    kind: str = ""
    busy: float = 0.0
    backpressure: float = 0.0
    health: Health = 1
    events: int = field(default=0, metadata={**COUNTED, **name_in_reports("emitted")})
    events_processed: int = field(default=0, metadata={**COUNTED, **name_in_reports("rows")})
    matched: int = field(default=0, metadata={**COUNTED, **name_in_reports("matched")})
    padded: int = field(default=0, metadata={**COUNTED, **name_in_reports("padded")})
    late: int = field(default=0, metadata={**COUNTED, **name_in_reports("late")})
    dropped: int = field(default=0, metadata={**COUNTED, **name_in_reports("dropped")})
    state_rows: int = field(default=0, metadata=name_in_reports("state"))
    written: int = field(default=0, metadata={**COUNTED, **name_in_reports("written")})
    seconds: float = field(default=0.0, metadata=COUNTED)
    shards: int = 0
    fullest: int = field(default=0, metadata=name_in_reports("fullest"))
    cache_bytes: int = field(default=0, metadata=name_in_reports("cache"))
    delays: Mapping[str, int] = field(default_factory=dict[str, int])
    lateness: Mapping[str, int] = field(default_factory=dict[str, int])
    sides: Mapping[str, SideMetrics] = field(default_factory=dict[str, SideMetrics])


def operator_metrics(
    observed: Mapping[str, Any], seconds: float, backpressure: float, cores: int | None = None
) -> OperatorMetrics:
    """The numbers of an operator in what was observed of it in a batch that took so many seconds.

    ``cores``: how many tasks Spark runs at the same time; None: not known, then each shard is taken to have its own.

    >>> found = operator_metrics({"seconds": 1.5, "shards": 4, "rows_left": 3, "rows_right": 2}, 2.0, 0.0, cores=2)
    >>> found.busy, found.events_processed
    (0.375, 5)
    """
    shards = int(observed.get("shards") or 0)
    computed = float(observed.get("seconds") or 0.0)
    numbers: dict[str, Any] = {name: _spread(observed.get(name)) for name in HISTOGRAMS}
    numbers |= sum_reported(OperatorMetrics, [observed])
    return OperatorMetrics(
        kind=observed.get("operator") or "",
        busy=busy_share(computed, seconds, shards if cores is None else min(shards, cores)),
        backpressure=backpressure,
        seconds=round(computed, 6),
        shards=shards,
        sides=_sides(observed),
        **numbers,
    )


def _spread(counts: Mapping[str, float] | None) -> dict[str, int]:
    """The ranges that hold something.

    >>> _spread({"1": 2.0, "7": 0.4}), _spread(None)
    ({'1': 2}, {})
    """
    return {number: round(count) for number, count in (counts or {}).items() if count >= 0.5}


def _sides(observed: Mapping[str, Any]) -> dict[str, SideMetrics]:
    """The metrics of each side.

    >>> _sides({"rows_left": 3, "state_left": 2, "rows_right": None})["left"]
    SideMetrics(rows=3, late=0, padded=0, dropped=0, state_rows=2, stored=0, bytes=0)
    """

    def number(name: str, side: str) -> int:
        return int(observed.get(f"{name}_{side}") or 0)

    sides = [name.removeprefix("rows_") for name in observed if name.startswith("rows_")]
    return {side: SideMetrics(*(number(name, side) for name in _SIDE_NUMBERS)) for side in sides}


_SIDE_NUMBERS = tuple("state" if side.name == "state_rows" else side.name for side in fields(SideMetrics))
"""The fields of `SideMetrics` as shards report them."""


def sum_number(observed: Sequence[Mapping[str, Any]], number: str) -> int:
    """A number of several operators together; where there is one per port, of all ports.

    >>> sum_number([{"late_left": 1, "late_right": None}, {"late_1": 2, "latest": 9}], "late")
    3
    """
    numbers = (v for values in observed for n, v in values.items() if n == number or n.startswith(f"{number}_"))
    return sum(int(value or 0) for value in numbers)


def busy_share(computed: float, seconds: float, at_once: int) -> float:
    """The share of a batch's time that shards computed, if so many of them can do so at once.

    >>> busy_share(3.0, 2.0, 2), busy_share(0.0, 0.0, 0)
    (0.75, 0.0)
    """
    possible = seconds * at_once
    # A batch is timed by the driver, a shard by its worker: a clock that runs ahead must not give more than all of it.
    return round(min(1.0, computed / possible), 4) if possible > 0 else 0.0


def backpressure_of(reported: Mapping[str, Any]) -> float:
    """The backpressure of a query in what Spark reports of a batch.

    >>> batch = {"durationMs": {"triggerExecution": 4000}}
    >>> backpressure_of(batch | {"sources": [{"endOffset": '{"t": 5}', "latestOffset": '{"t": 9}'}]})
    1.0
    >>> backpressure_of(batch | {"sources": [{"numInputRows": 1000, "inputRowsPerSecond": 500.05}]})
    0.5
    """
    # Of the sources: through Spark Connect the query itself does not tell its rows.
    sources: Sequence[Mapping[str, Any]] = reported.get("sources") or ()
    if any(_has_more(source) for source in sources):
        return 1.0
    seconds = float(reported["durationMs"].get("triggerExecution", 0)) / 1000
    came = sum(float(source.get("inputRowsPerSecond") or 0.0) - ROUNDED for source in sources)
    # Zero, or not a number, for the first batch: Spark does not know how long its rows took to arrive.
    if not came > 0 or seconds <= 0:
        return 0.0
    processed = sum(int(source.get("numInputRows") or 0) for source in sources) / seconds
    return round(max(0.0, 1 - processed / came), 4)


def backlog_of(reported: Mapping[str, Any]) -> dict[str, int]:
    """The rows of each topic that were there when the batch was planned and that it did not take; others do not tell.

    >>> ends = {"endOffset": '{"orders": {"0": 5, "1": 7}}', "latestOffset": '{"orders": {"0": 9, "1": 7}}'}
    >>> backlog_of({"sources": [ends, {"endOffset": '{"logOffset": 3}', "latestOffset": "null"}]})
    {'orders': 4}
    """
    backlog: dict[str, int] = {}
    for source in reported.get("sources") or ():
        end, latest = (_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
        if not (isinstance(end, dict) and isinstance(latest, dict)):
            continue
        for topic, offsets in cast("dict[str, Any]", latest).items():
            end_offsets: Any = cast("dict[str, Any]", end).get(topic)
            if isinstance(offsets, dict) and isinstance(end_offsets, dict):
                read_offsets = cast("dict[str, int]", end_offsets)
                waiting = sum(n - read_offsets.get(p, n) for p, n in cast("dict[str, int]", offsets).items())
                backlog[topic] = max(backlog.get(topic, 0), waiting)
    return backlog


def _has_more(source: Mapping[str, Any]) -> bool:
    """Whether a source had more than the batch took when the batch was planned; sources of files never tell."""
    end, latest = (_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
    return end is not None and latest is not None and end != latest


def _offset(written: Any) -> Any:
    """An offset as a value, in which the order of names does not matter."""
    try:
        return json.loads(written) if isinstance(written, str) else written
    except ValueError:
        return written


REPORTS = "reports"
"""The number of an observation that holds the texts of all tasks."""


def by_join(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The numbers of each join, from the texts of all tasks.

    >>> from watersmeet.operators.core.operator import to_text
    >>> by_join(to_text("a and b", {"sum": {"rows": rows}}) for rows in (1, 2))
    {'a and b': {'rows': 3}}
    """
    reports: dict[str, list[ShardMetrics]] = {}
    for text in texts:
        read = json.loads(text)
        reports.setdefault(read.pop("join"), []).append(read)
    return {
        join: {
            name: number for numbers in merge_shard_metrics(shard_reports).values() for name, number in numbers.items()
        }
        for join, shard_reports in reports.items()
    }
