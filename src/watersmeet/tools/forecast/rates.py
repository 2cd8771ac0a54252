"""Rates of rows: given, found by ``watersmeet advise``, or measured in earlier runs of the query."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from watersmeet.errors import refuse
from watersmeet.locations import Storage
from watersmeet.metrics.progress import Progress
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.shard_metrics import port_names
from watersmeet.physical import QueryPlan, ScanPlan, join_name, join_plans

Origin = Literal["given", "sampled", "runs"]
"""Where a rate comes from. ``sampled``: ``watersmeet advise`` has counted rows per event time; ``runs``: the batches of
the last runs did."""

_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*/\s*(s|sec|second|min|m|minute|h|hour|d|day)\s*")
_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400}


@dataclass(frozen=True)
class Rate:
    """Rows per second of event time of a source, and what else is known of its rows.

    ``widths``: the bytes of each column's values on average. ``heaviest``: the share of the heaviest key.
    """

    per_second: float
    origin: Origin = "given"
    widths: Mapping[str, float] = field(default_factory=dict[str, float])
    heaviest: float = 0.0


def parse_rate(text: str) -> float:
    """Rows per second, from a text such as ``2e6/s`` or ``500/min``.

    >>> parse_rate("2e6/s"), parse_rate("90/min")
    (2000000.0, 1.5)
    """
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise refuse("WRONG_RATE", rate=text)
    return float(match[1]) / _SECONDS.get(match[2], 86400)


def parse_rates(texts: Sequence[str]) -> dict[str, Rate]:
    """Rates by the names of sources, in small letters, from texts such as ``orders=1000/s``; "" is for all others.

    >>> parse_rates(["orders=60/min", "5/s"])[""].per_second
    5.0
    """
    rates: dict[str, Rate] = {}
    for text in texts:
        name, equals, rate = text.rpartition("=")
        rates[name.strip().lower() if equals else ""] = Rate(parse_rate(rate))
    return rates


def read_sampled_rates(path: Storage) -> dict[str, Rate]:
    """The rates that ``watersmeet advise`` has stored; empty if it has not run, or times are numbers."""
    try:
        advice: dict[str, Any] = json.loads(path.read_text("utf-8"))
        sides = [pair[side] for pair in advice["pairs"] if pair["unit"] != "number" for side in ("left", "right")]
        return {side["source"].lower(): _side_rate(side) for side in sides}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _side_rate(side: dict[str, Any]) -> Rate:
    heaviest = side["heaviest_keys"]
    return Rate(side["rows_per_unit"] * 1e6, "sampled", side["column_bytes"], heaviest[0][1] if heaviest else 0.0)


RECENT = 500
"""The number of latest batches that are used."""
SECOND = 1_000_000


@dataclass(frozen=True)
class ObservedRates:
    """Observations of sources, by their names in small letters.

    ``rates``: rows per second of event time. ``behind``: by how many microseconds the newest times of a source were
    behind those of the most advanced source. ``keys``: the rows of a table, which are its keys.
    """

    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    behind: Mapping[str, int] = field(default_factory=dict[str, int])
    keys: Mapping[str, int] = field(default_factory=dict[str, int])


def observe_rates(batches: Sequence[Progress], plan: QueryPlan) -> ObservedRates:
    """The observations of a query's sources in its batches, oldest first; sources without times are left out."""
    some = batches[-RECENT:]
    if not some:
        return ObservedRates()
    scans = plan.relation.leaves
    rates = {scan.source_name.lower(): rate for scan in scans if (rate := _rate(some, scan)) is not None}
    newest = {scan.source_name.lower(): time for scan in scans if (time := _newest(some[-1], scan)) is not None}
    ahead = max(newest.values(), default=0)
    return ObservedRates(
        rates, {name: ahead - time for name, time in newest.items() if time < ahead}, _keys(some[-1], plan)
    )


def merge_rates(observations: Sequence[ObservedRates], sampled: Mapping[str, Rate]) -> ObservedRates:
    """The observations of several queries; sampled rates add the widths of rows and the heaviest keys."""
    merged = ObservedRates()
    for observed in observations:
        merged = ObservedRates(
            {**merged.rates, **observed.rates}, {**merged.behind, **observed.behind}, {**merged.keys, **observed.keys}
        )
    rates = {
        name: replace(rate, widths=sampled[name].widths, heaviest=sampled[name].heaviest) if name in sampled else rate
        for name, rate in merged.rates.items()
    }
    return replace(merged, rates={**sampled, **rates})


def _columns(scan: ScanPlan) -> list[str]:
    return [f"{scan.alias}.{mark.column}" for mark in scan.source.watermarks]


def _rate(batches: Sequence[Progress], scan: ScanPlan) -> Rate | None:
    """Rows that came while the watermark of a source moved, by how far it did."""
    name = scan.source_name
    for column in _columns(scan):
        watermarks = [
            (place, watermark)
            for place, batch in enumerate(batches)
            if (watermark := _watermark(batch, column)) is not None
        ]
        if len(watermarks) > 1 and watermarks[-1][1] > watermarks[0][1]:
            rows = sum(batch.sources.get(name, 0) for batch in batches[watermarks[0][0] + 1 : watermarks[-1][0] + 1])
            if rows:
                return Rate(rows * SECOND / (watermarks[-1][1] - watermarks[0][1]), "runs")
    return None


def _watermark(batch: Progress, column: str) -> int | None:
    watermark = batch.own.get(column)
    return watermark if watermark is not None and watermark != END_OF_INPUT and column in batch.temporal else None


def _newest(batch: Progress, scan: ScanPlan) -> int | None:
    """The newest time of a source: its watermark is behind that by its lag."""
    times = [
        mark + watermark.lag.value
        for column, watermark in zip(_columns(scan), scan.source.watermarks, strict=True)
        if (mark := _watermark(batch, column)) is not None
    ]
    return max(times, default=None)


def _keys(batch: Progress, plan: QueryPlan) -> dict[str, int]:
    keys: dict[str, int] = {}
    for join in join_plans(plan.relation):
        numbers = batch.operators.get(join_name(join))
        for side, port in zip(port_names(len(join.ports)), join.ports, strict=True):
            scan = port.input.scan
            if numbers is not None and side in numbers.sides and scan is not None and scan.changes:
                keys[scan.source.name.lower()] = numbers.sides[side].state_rows
    return {name: rows for name, rows in keys.items() if rows}
