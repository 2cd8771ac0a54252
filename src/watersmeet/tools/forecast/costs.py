"""Costs as measured: the constants of all formulas, sizes of rows, units, and how often a row is written.

A row is written once when it arrives, and once more for every merge that it survives. An arriving row is searched in
every run of the other side that its bounds reach.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.schema import arrow_type


@dataclass(frozen=True)
class Costs:
    """Costs on a machine. Seconds are those of a core, except ``batch`` and ``stage``, which no core shortens.

    - ``batch``: a batch without rows: offsets, planning, logs, commits; ``stage``: each further operator
    - ``columns``: a row of 28 bytes from a file that workers read as columns; ``scanned``: one that Spark reads
    - ``byte``: each further byte of a row
    - ``result``: an output row; ``shard``: the call of a shard in a batch; ``task``: a map task without a row
    - ``probe``: the search for a row in one run of the other side; ``read``: a byte of a run that is not cached
    - ``mark``: a record of watermarks of one map task for one shard: made, shuffled, merged; ``record``: one of rows
    - ``record_bytes``: the size of such a record without its rows
    - ``worker``: bytes of a Python worker without rows; ``jvm``: bytes of Spark's own process when idle
    - ``copies``: how often rows are in a worker's memory at once; ``piece``: bytes of a batch that are joined at once
    - ``mapped``: the maximum bytes of decoded runs that the workers of a machine cache
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
    record: float
    record_bytes: int
    worker: int
    jvm: int
    copies: float
    piece: int
    mapped: int
    stored: float

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
    mark=2.5e-5,
    record=1.5e-4,
    record_bytes=900,
    worker=95_000_000,
    jvm=1_300_000_000,
    copies=14.0,
    piece=256 * 2**20,
    mapped=2 * 2**30,
    stored=1.1,
)
"""Seconds per batch, row, byte and result are from one run of the section `forecast` of ``make bench`` on a quiet
machine, those of a shard from `shards` (2 ms in small batches, 4.5 ms in large ones); a later run of `forecast` checks
them (docs/forecast.md). What a further operator and a task without rows take is from older runs on a busy one, and so
is memory. ``read`` is from one run with and without runs at hand, ``probe`` from a search in a sorted million, records
and watermarks from ``watersmeet plan --simulate``, with what a shuffle adds as an estimate."""


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
    """How often a row of a shard is written that comes in runs of so many rows, while so many are alive.

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
    """How many runs a side of a shard has: up to three of each size, and then the large ones.

    >>> runs_alive(1000, 1000), round(runs_alive(1000, 7_000_000))
    (1.0, 16)
    """
    if rows_per_run <= 0 or rows_alive <= rows_per_run:
        return 1.0
    if rows_per_run > LARGEST:
        return rows_alive / rows_per_run
    sizes = math.log(max(1.0, min(rows_alive, FULL_RUN) / rows_per_run), MERGE_AT)
    return max(1.0, 1.5 * sizes + max(0.0, rows_alive - FULL_RUN) / FULL_RUN)
