"""The rows of both benchmarks as CSV, which every contender reads: by batches, and in two halves of alternate rows.

Flink gives each file of a source to one reader and knows no order between files. Two files that advance together keep
both of its readers busy, with watermarks that are right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from bench.data import SIDES, START, Workload
from bench.running import data_of

HALVES = 2
PER_FIFTY = {"person": 1, "auction": 3, "bid": 46}
"""Of fifty events, how many are of each stream, as Nexmark has it."""
EVENTS_PER_SECOND = 10_000
"""Of event time."""
SIDE_ROWS = 10_000
FIRST = 1_000
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne", "Bend", "Kent")
_CHANNELS = ("apple", "google", "facebook", "baidu")


@dataclass(frozen=True)
class Written:
    """Where rows are: ``batches`` has a folder per stream with a file per batch, ``halves`` one with two files.

    ``headed``: one file per stream, with names above the columns and times in milliseconds.
    """

    batches: Path
    halves: Path
    headed: Path
    rows: int


def interval(workload: Workload) -> Written:
    """The two sides of the benchmark of the interval join."""
    given = data_of(workload)
    root = given / "csv"
    for side in SIDES:
        files = sorted((given / side).glob("*.parquet"))
        _write(root, side, (pq.read_table(file) for file in files))
        _write_headed(root / "headed" / side / "all.csv", (pq.read_table(file) for file in files))
    return Written(root / "batches", root / "halves", root / "headed", workload.rows)


def nexmark(events: int, batches: int, root: Path) -> Written:
    """Nexmark's people, auctions and bids."""
    folder = root / f"nexmark-{events}-{batches}"
    edges = np.linspace(0, events, batches + 1).astype(int)
    made = [] if _is_done(folder) else [_events(start, stop) for start, stop in pairwise(edges)]
    for name in PER_FIFTY:
        _write(folder, name, (one[name] for one in made))
    return Written(folder / "batches", folder / "halves", folder / "headed", events)


def _is_done(root: Path) -> bool:
    return all((root / f"{name}.done").exists() for name in PER_FIFTY)


def _write(root: Path, name: str, tables: Iterable[pa.Table]) -> None:
    if (root / f"{name}.done").exists():
        return
    batches, halves = (root / kind / name for kind in ("batches", "halves"))
    for folder in (batches, halves):
        folder.mkdir(parents=True, exist_ok=True)
    plain = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
    with (halves / "0.csv").open("wb") as one, (halves / "1.csv").open("wb") as other:
        for number, table in enumerate(tables):
            shown = _as_text(table)
            path = batches / f"{number:05}.csv"
            pyarrow.csv.write_csv(shown, path, plain)
            # The file source takes files in the order of their times.
            os.utime(path, (START + number,) * 2)
            rows = np.arange(shown.num_rows)
            for half, file in enumerate((one, other)):
                pyarrow.csv.write_csv(shown.filter(pa.array(rows % HALVES == half)), file, plain)
    (root / f"{name}.done").touch()


def _write_headed(path: Path, tables: Iterable[pa.Table]) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.concat_tables(tables)
    millis = table["ts"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    pyarrow.csv.write_csv(table.set_column(1, "ts", millis), path)


def _as_text(table: pa.Table) -> pa.Table:
    """Times as every system reads them."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            told = pc.strftime(
                table.column(at).cast(pa.timestamp("ms", field.type.tz), safe=False), "%Y-%m-%d %H:%M:%S"
            )
            table = table.set_column(at, field.name, told)
    return table


def _events(start: int, stop: int) -> dict[str, pa.Table]:
    """The events of those numbers, by stream."""
    rng = np.random.default_rng([7, start])
    number = np.arange(start, stop)
    turn = number % 50
    people, auctions = number[turn == 0], number[(turn > 0) & (turn <= 3)]
    bids = number[turn > 3]
    return {"person": _people(rng, people), "auction": _auctions(rng, auctions), "bid": _bids(rng, bids)}


def _times(number: np.ndarray) -> pa.Array:
    micros = START * 1_000_000 + number * (1_000_000 // EVENTS_PER_SECOND)
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def _named(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix), pa.array(numbers).cast(pa.string()), "")


def _one_of(rng: np.random.Generator, texts: tuple[str, ...], rows: int) -> pa.Array:
    return pa.array(texts).take(pa.array(rng.integers(0, len(texts), rows)))


def _people(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    own, rows = FIRST + number // 50, len(number)
    return pa.table(
        {
            "id": own, "name": _named("name of ", own), "email": _named("someone@", own), "card": _named("4000 ", own),
            "city": _one_of(rng, _CITIES, rows), "state": _one_of(rng, _STATES, rows), "at": _times(number),
            "extra": _named("extra ", own),
        }
    )  # fmt: skip


def _auctions(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    own, rows = _auction_ids(number), len(number)
    seller = FIRST + np.maximum(0, number // 50 - rng.integers(0, 100, rows))
    life = rng.integers(1, 20, rows) * EVENTS_PER_SECOND
    first = rng.integers(100, 10_000, rows)
    return pa.table(
        {
            "id": own, "item": _named("item ", own), "description": _named("a long description of item ", own),
            "initial_bid": first, "reserve": first * 2, "at": _times(number), "expires": _times(number + life),
            "seller": seller, "category": 10 + rng.integers(0, 5, rows), "extra": _named("extra ", own),
        }
    )  # fmt: skip


def _auction_ids(number: np.ndarray) -> np.ndarray:
    return FIRST + (number // 50) * 3 + np.clip(number % 50 - 1, 0, 2)


def _bids(rng: np.random.Generator, number: np.ndarray) -> pa.Table:
    rows, latest = len(number), _auction_ids(number)
    hot = rng.random(rows) < 0.5
    auction = np.where(
        hot, (latest - FIRST) // 100 * 100 + FIRST, np.maximum(FIRST, latest - rng.integers(0, 300, rows))
    )
    # Near each other no two prices are equal, so that the highest bid is one.
    price = (100 * 10 ** (6 * rng.random(rows))).astype(np.int64) * 1_000 + number % 1_000
    return pa.table(
        {
            "auction": auction, "bidder": FIRST + np.maximum(0, number // 50 - rng.integers(0, 1_000, rows)),
            "price": price, "channel": _one_of(rng, _CHANNELS, rows),
            "url": _named("https://www.example.com/item.htm?query=1&channel_id=", number % 1_000),
            "at": _times(number), "extra": _named("extra ", number % 100_000),
        }
    )  # fmt: skip
