"""Inputs of a forecast: measured costs, sizes of rows, units; and rates of rows, given, sampled or measured.

A row is written once when it arrives, and once more for every merge that it survives. An arriving row is searched in
every run of the other side that its bounds reach.

Rates come from the caller, from ``watersmeet advise``, or from earlier runs of the query.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import Storage
from watersmeet.metrics.progress import Progress
from watersmeet.operators.core.operator import END_OF_INPUT, port_names
from watersmeet.physical import QueryPlan, ScanPlan, join_name, join_plans
from watersmeet.schema import arrow_type


@dataclass(frozen=True)
class Costs:
    """Costs on a machine. Seconds are those of a core, except ``batch`` and ``stage``, which no core shortens.

    - ``batch``: a batch without rows: offsets, planning, logs, commits; ``stage``: each further operator
    - ``columns``: a row of 28 bytes from a file that workers read as columns; ``scanned``: one that Spark reads
    - ``byte``: each further byte of a row
    - ``result``: an output row; ``shard``: the call of a shard in a batch; ``task``: a map task without a row
    - ``probe``: the search for a row in one run of the other side; ``read``: a byte of a run that is not cached
    - ``mark``: a record with the watermarks of one map task alone: made and shuffled; ``record``: one of rows
    - ``merged``: the watermarks of one map task, merged in one group of shards
    - ``record_bytes``: the size of such a record without its rows
    - ``worker``: bytes of a Python worker without rows; ``jvm``: bytes of Spark's own process when idle
    - ``executor_native``, ``core_native``: bytes of an executor outside the heap of its JVM, and of each of its cores:
      native memory of the JVM, RocksDB, and Python workers with the rows of a batch
    - ``copies``: how often rows are in a worker's memory at once; ``piece``: bytes of a batch that are joined at once
    - ``mapped``: the maximum bytes of decoded runs that the workers of a machine have in memory
    - ``cached``: the maximum bytes of decoded runs on its local disk, by default as many as it has memory
    - ``part``: bytes that are read for a row that matches in a run that is not there
    - ``stored``: bytes on disk per byte of a row in Arrow: compressed, with RocksDB's overhead
    """

    commit: str
    machine: str
    batch: float
    stage: float
    columns: float
    scanned: float
    byte: float
    result: float
    shard: float
    task: float
    probe: float
    read: float
    mark: float
    merged: float
    record: float
    record_bytes: int
    worker: int
    jvm: int
    executor_native: int
    core_native: int
    copies: float
    piece: int
    mapped: int
    cached: float
    part: int
    stored: float

    def bytes_read(self, state: float, matches: float, machines: int = 1) -> float:
        """The bytes that a batch with so many matches reads of a state that is not all cached: parts that match."""
        away = max(0.0, state - machines * self.cached)
        return min(away, matches * self.part * away / state) if away else 0.0

    def per_row(self, bytes: float, *, columns: bool) -> float:
        """Seconds of a core for a row of so many bytes."""
        return (self.columns if columns else self.scanned) + self.byte * max(0.0, bytes - NARROW)


NARROW = 28.0
"""Bytes of the rows whose costs were measured first: a key, a time, two numbers."""

MEASURED = Costs(
    commit="2a42d9a",
    machine="two cores of a small virtual machine, Spark 4.3.0, Python 3.11, Java 17, local[2]",
    batch=0.17,
    stage=0.35,
    columns=1.15e-6,
    scanned=2.2e-6,
    byte=4.4e-8,
    result=0.33e-6,
    shard=0.004,
    task=0.05,
    probe=7e-8,
    read=1.5e-8,
    mark=2.2e-5,
    merged=2e-6,
    record=1.5e-4,
    record_bytes=900,
    worker=95_000_000,
    jvm=1_300_000_000,
    executor_native=500 * 2**20,
    core_native=620 * 2**20,
    copies=14.0,
    piece=64 * 2**20,
    mapped=2 * 2**30,
    cached=64e9,
    part=2**20,
    stored=1.1,
)
"""Seconds per batch, row, byte and result are from one run of the section `forecast` of ``make bench`` on a quiet
machine, those of a shard from `shards` (2 ms in small batches, 4.5 ms in large ones); a later run of `forecast` checks
them (docs/forecast.md). What a further operator and a task without rows take is from older runs on a busy one, and so
is memory. ``read`` is from one run with and without runs at hand, ``probe`` from a search in a sorted million, records
and watermarks from ``watersmeet plan --simulate``, with what a shuffle adds as an estimate. ``cached`` assumes machines
with 64 GB of memory."""


TEXT = 24.0
"""Bytes of a value of no fixed length, if nothing is known of it; its place among the others is counted in."""
VALID = 1 / 8
"""The NULL bit of a value."""


def row_bytes(columns: Iterable[tuple[str, str | None]], widths: Mapping[str, float]) -> float:
    """The bytes of a row with columns of those names and types; ``known``: what values of a column have on average.

    >>> row_bytes([("id", "BIGINT"), ("name", "STRING"), ("note", "STRING")], {"note": 100.0})
    132.125
    """
    return sum(widths.get(name.lower(), widths.get(name, width_of(type_))) for name, type_ in columns)


def width_of(type_: str | None) -> float:
    """The bytes of a value of that type; of an unknown one, those of a number."""
    if type_ is None:
        return 8 + VALID
    try:
        return arrow_type(type_).bit_width / 8 + VALID
    except (ValueError, WatersmeetError):
        return TEXT


_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)i?[bB]?\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def parse_size(text: str) -> float:
    """Bytes, from a text such as ``200B`` or ``1.5kB``; a thousand of one unit is one of the next.

    >>> parse_size("200B"), parse_size("1.5 kB")
    (200.0, 1500.0)
    """
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise refuse("WRONG_SIZE", size=text)
    return float(match[1]) * 1000 ** _POWERS[match[2].upper()]


def format_quantity(value: float, unit: str = "") -> str:
    """A number with its unit, in three digits.

    >>> format_quantity(7_200_000_000, "rows"), format_quantity(1.5e12, "B")
    ('7.2 G rows', '1.5 TB')
    >>> format_quantity(0.123, "s"), format_quantity(96)
    ('0.123 s', '96')
    """
    for size, prefix in _STEPS:
        if abs(value) >= size and unit:
            gap = "" if unit.startswith("B") else " "
            return f"{value / size:.3g} {prefix}{gap}{unit}"
    return f"{value:,.3g} {unit}".strip() if unit else f"{value:,.0f}"


MERGE_AT, LARGEST = 4, 250_000
"""Runs of about one size that become one, and the rows from which on a run is merged no further."""


def times_written(rows_per_run: float, rows_alive: float) -> float:
    """The number of times that a row of a shard is written that comes in runs of so many rows, while so many are alive.

    Runs grow by four, as long as they are alive and not too large.

    >>> times_written(1000, 1500), times_written(1000, 20_000), times_written(300_000, 10_000_000)
    (1.0, 3.0, 1.0)
    """
    if rows_per_run <= 0 or rows_per_run > LARGEST:
        return 1.0
    most = min(rows_alive, MERGE_AT * LARGEST)
    return 1.0 + max(0, int(math.log(max(1.0, most / rows_per_run), MERGE_AT)))


FULL_RUN = 700_000
"""Rows of a run that is merged no further, about."""


def runs_alive(rows_per_run: float, rows_alive: float) -> float:
    """The number of runs of a side of a shard: up to three of each size, and then the large ones.

    >>> runs_alive(1000, 1000), round(runs_alive(1000, 7_000_000))
    (1.0, 16)
    """
    if rows_per_run <= 0 or rows_alive <= rows_per_run:
        return 1.0
    if rows_per_run > LARGEST:
        return rows_alive / rows_per_run
    sizes = math.log(max(1.0, min(rows_alive, FULL_RUN) / rows_per_run), MERGE_AT)
    return max(1.0, 1.5 * sizes + max(0.0, rows_alive - FULL_RUN) / FULL_RUN)


Origin = Literal["given", "sampled", "runs"]
"""The origin of a rate. ``sampled``: ``watersmeet advise`` has counted rows per event time; ``runs``: the batches of
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
