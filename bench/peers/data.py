"""The rows of both benchmarks as files: by batches, and in two halves of alternate rows; as Parquet and as CSV.

Flink gives each file of a source to one reader and does not order files. Two files that advance at the same rate keep
both of its readers busy, with correct watermarks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from bench.data import SIDES, START, Workload
from bench.running import data_of

HALVES = 2
Format = Literal["parquet", "csv"]
PER_FIFTY = {"person": 1, "auction": 3, "bid": 46}
"""The number of events of each stream among fifty, as in Nexmark."""
EVENTS_PER_SECOND = 10_000
"""Of event time."""
TABLE_ROWS = 10_000
"""Of the table that q13 looks up."""
FIRST = 1_000
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne", "Bend", "Kent")
_CHANNELS = ("apple", "google", "facebook", "baidu")


@dataclass(frozen=True)
class RowFiles:
    """The folders of rows: ``batches`` has a folder per stream with a file per batch, ``halves`` one with two files.

    ``with_header``: CSV for Pathway, one file per stream, with a header and times in milliseconds.
    """

    root: Path
    rows: int
    format: Format

    @property
    def batches(self) -> Path:
        return self.root / self.format / "batches"

    @property
    def halves(self) -> Path:
        return self.root / self.format / "halves"

    @property
    def with_header(self) -> Path:
        return self.root / "headed"


def interval(workload: Workload, format_: Format) -> RowFiles:
    """The two sides of the interval join, times in whole milliseconds, the resolution of Flink's watermarks."""
    folder = data_of(workload)
    target = RowFiles(folder / "peers-in-ms", workload.rows, format_)
    for side in SIDES:
        files = sorted((folder / side).glob("*.parquet"))
        _write(target, side, map(_in_milliseconds, files))
        _write_with_header(target.with_header / side / "all.csv", map(_in_milliseconds, files))
    return target


def _in_milliseconds(file: Path) -> pa.Table:
    table = pq.read_table(file)
    place = table.schema.get_field_index("ts")
    kind = table.schema.field(place).type
    whole = table.column(place).cast(pa.timestamp("ms", kind.tz), safe=False).cast(kind)
    return table.set_column(place, table.schema.field(place), whole)


def nexmark(events: int, batches: int, root: Path, format_: Format, streams: Iterable[str]) -> RowFiles:
    """The requested streams of Nexmark (people, auctions, bids), and the table that q13 looks up."""
    target = RowFiles(root / f"nexmark-{events}-in-{batches}", events, format_)
    edges = np.linspace(0, events, batches + 1).astype(int)
    for name in sorted(PER_FIFTY.keys() & set(streams)):
        _write(target, name, (_events(name, start, stop) for start, stop in pairwise(edges)))
    _write(target, "side", [_table()])
    return target


def _write(target: RowFiles, name: str, tables: Iterable[pa.Table]) -> None:
    done = target.batches / f"{name}.done"
    if done.exists():
        return
    batches, halves = (folder / name for folder in (target.batches, target.halves))
    for folder in (batches, halves):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers: list[Any] = []
        for number, table in enumerate(tables):
            path = batches / f"{number:05}.{target.format}"
            with _writer(path, table, target.format) as writer:
                writer.write_table(_as_format(table, target.format))
            # The file source takes files in the order of their times.
            os.utime(path, (START + number,) * 2)
            if not writers:
                paths = (halves / f"{half}.{target.format}" for half in range(HALVES))
                writers = [stack.enter_context(_writer(path, table, target.format)) for path in paths]
            for half, writer in enumerate(writers):
                rows = pa.array(np.arange(table.num_rows) % HALVES == half)
                writer.write_table(_as_format(table.filter(rows), target.format))
    done.touch()


def _writer(path: Path, table: pa.Table, format_: Format) -> Any:
    schema = _as_format(table.slice(0, 0), format_).schema
    if format_ == "parquet":
        return pq.ParquetWriter(path, schema)
    plain = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    return pyarrow.csv.CSVWriter(path, schema, write_options=plain)


def _as_format(table: pa.Table, format_: Format) -> pa.Table:
    return table if format_ == "parquet" else _as_text(table)


def _write_with_header(path: Path, tables: Iterable[pa.Table]) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.concat_tables(tables)
    millis = table["ts"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    # Pathway has an `id` of its own.
    pyarrow.csv.write_csv(table.set_column(1, "ts", millis).rename_columns({"id": "key"}), path)


def _as_text(table: pa.Table) -> pa.Table:
    """The table with its times as text that every system reads."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            texts = pc.strftime(
                table.column(at).cast(pa.timestamp("ms", field.type.tz), safe=False), "%Y-%m-%d %H:%M:%S"
            )
            table = table.set_column(at, field.name, texts)
    return table


def _events(stream: str, start: int, stop: int) -> pa.Table:
    """Those of a stream among the events of these numbers."""
    rng = np.random.default_rng([7, list(PER_FIFTY).index(stream), start])
    number = np.arange(start, stop)
    turn = number % 50
    if stream == "person":
        return _people(rng, number[turn == 0])
    return _auctions(rng, number[(turn > 0) & (turn <= 3)]) if stream == "auction" else _bids(rng, number[turn > 3])


def _times(number: np.ndarray) -> pa.Array:
    micros = START * 1_000_000 + number * (1_000_000 // EVENTS_PER_SECOND)
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def _prefix(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix), pa.array(numbers).cast(pa.string()), "")


def _one_of(rng: np.random.Generator, texts: tuple[str, ...], rows: int) -> pa.Array:
    return pa.array(texts).take(pa.array(rng.integers(0, len(texts), rows)))


def _people(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    own, rows = FIRST + number // 50, len(number)
    return pa.table(
        {
            "id": own, "name": _prefix("name of ", own), "email": _prefix("someone@", own),
            "card": _prefix("4000 ", own), "city": _one_of(rng, _CITIES, rows), "state": _one_of(rng, _STATES, rows),
            "at": _times(number), "extra": _prefix("extra ", own),
        }
    )  # fmt: skip


def _auctions(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    own, rows = _auction_ids(number), len(number)
    seller = FIRST + np.maximum(0, number // 50 - rng.integers(0, 100, rows))
    life = rng.integers(1, 20, rows) * EVENTS_PER_SECOND
    first = rng.integers(100, 10_000, rows)
    return pa.table(
        {
            "id": own, "item": _prefix("item ", own), "description": _prefix("a long description of item ", own),
            "initial_bid": first, "reserve": first * 2, "at": _times(number), "expires": _times(number + life),
            "seller": seller, "category": 10 + rng.integers(0, 5, rows), "extra": _prefix("extra ", own),
        }
    )  # fmt: skip


def _table() -> pa.Table:
    """The table that q13 looks up: it is there before the first bid."""
    key = np.arange(TABLE_ROWS)
    at = pa.array(np.full(TABLE_ROWS, START * 1_000_000), pa.timestamp("us", tz="UTC"))
    return pa.table({"key": key, "value": _prefix("value ", key), "at": at})


def _auction_ids(number: np.ndarray) -> np.ndarray:
    return FIRST + (number // 50) * 3 + np.clip(number % 50 - 1, 0, 2)


def _bids(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    rows, latest = len(number), _auction_ids(number)
    hot = rng.random(rows) < 0.5
    auction = np.where(
        hot, (latest - FIRST) // 100 * 100 + FIRST, np.maximum(FIRST, latest - rng.integers(0, 300, rows))
    )
    # Prices that are near each other differ, so that the highest bid is unique.
    price = (100 * 10 ** (6 * rng.random(rows))).astype(np.int64) * 1_000 + number % 1_000
    return pa.table(
        {
            "auction": auction, "bidder": FIRST + np.maximum(0, number // 50 - rng.integers(0, 1_000, rows)),
            "price": price, "channel": _one_of(rng, _CHANNELS, rows),
            "url": _prefix("https://www.example.com/item.htm?query=1&channel_id=", number % 1_000),
            "at": _times(number), "extra": _prefix("extra ", number % 100_000),
        }
    )  # fmt: skip
