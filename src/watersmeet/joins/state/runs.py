"""State as sorted runs: immutable, uniquely named stretches of rows, and a small directory that says what each holds.

Invariants. A run never changes; what changes (which rows have matched) is kept beside it as flags. A run's name is
used once
ever, so a worker may keep decoded runs from batch to batch and is never wrong; it may also lose them at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, Ints, merge_order, sort_order
from watersmeet.joins.core.operator import Marks, Store
from watersmeet.joins.state.cache import RunCache

MICROS_PER_DAY = 86_400_000_000
DIRECTORY = "directory"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

_cache = RunCache()


def share_runs(folder: Path) -> None:
    """Keep decoded runs in a folder that all workers of this machine share."""
    global _cache
    if _cache.folder != folder:
        _cache = RunCache(folder=folder)


@dataclass(frozen=True)
class Rows:
    """Rows of one side in the order of a run, with their codes and times at hand as numpy arrays."""

    table: pa.RecordBatch
    codes: Ints
    times: Mapping[str, Ints]

    def __len__(self) -> int:
        return self.table.num_rows

    def take(self, positions: Ints) -> Rows:
        """The rows at these positions, in that order."""
        return Rows(
            self.table.take(pa.array(positions)),
            self.codes[positions],
            {name: values[positions] for name, values in self.times.items()},
        )

    def where(self, keep: Bools) -> Rows:
        """The rows for which ``keep`` is true, in the order they have."""
        return self if bool(keep.all()) else self.take(np.flatnonzero(keep))


@dataclass(frozen=True)
class Layout:
    """Which columns of a side are codes and times, and by which time its runs are sorted."""

    columns: tuple[str, ...]
    times: tuple[str, ...]
    sort_time: str
    code: str | None

    def rows(self, table: pa.Table | pa.RecordBatch) -> Rows:
        """The table's columns as rows, in the order they have."""
        batch = _one_batch(table.select(list(self.columns)))
        codes = np.zeros(batch.num_rows, np.int64) if self.code is None else as_int64(batch.column(self.code))
        return Rows(batch, codes, {name: as_int64(batch.column(name)) for name in self.times})

    def sorted(self, rows: Rows) -> Rows:
        """The rows in the order of a run."""
        return rows.take(sort_order(rows.codes, rows.times[self.sort_time]))


@dataclass(frozen=True)
class Entry:
    """What the directory knows of a run: its ranges, enough to leave it alone when it cannot matter."""

    name: str
    rows: int
    lowest: Marks
    highest: Marks
    lowest_code: int = int(LOWEST)
    highest_code: int = int(HIGHEST)

    @staticmethod
    def of(rows: Rows) -> Entry:
        """A new name for these rows, which are in the order of a run, and their ranges."""
        return Entry(
            uuid4().hex,
            len(rows),
            {name: int(values.min()) for name, values in rows.times.items()},
            {name: int(values.max()) for name, values in rows.times.items()},
            int(rows.codes[0]),
            int(rows.codes[-1]),
        )

    def to_json(self) -> list[Any]:
        """The entry as it is stored."""
        return [self.name, self.rows, dict(self.lowest), dict(self.highest), self.lowest_code, self.highest_code]


@dataclass(frozen=True)
class Directory:
    """The runs of each port, oldest first, the marks of the shard, and when its columns were last heard of.

    ``owner`` names the shard to the cache of decoded runs, which forgets what the directory no longer lists.
    """

    entries: tuple[tuple[Entry, ...], ...]
    received: Marks = field(default_factory=dict[str, int])
    emitted: Marks = field(default_factory=dict[str, int])
    active: Marks = field(default_factory=dict[str, int])
    owner: str = field(default_factory=lambda: uuid4().hex)

    def to_bytes(self) -> bytes:
        """The directory as it is stored."""
        runs = [[entry.to_json() for entry in port] for port in self.entries]
        marks = {"received": dict(self.received), "emitted": dict(self.emitted), "active": dict(self.active)}
        return json.dumps({"owner": self.owner, "runs": runs, **marks}).encode()

    @staticmethod
    def from_bytes(value: bytes | None, ports: int) -> Directory:
        """The directory that was stored, or an empty one."""
        if value is None:
            return Directory(((),) * ports)
        read = cast("dict[str, Any]", json.loads(value))
        entries = tuple(tuple(Entry(*entry) for entry in port) for port in read["runs"])
        found = Directory(entries, read["received"], read["emitted"], read["active"], read["owner"])
        _cache.retain(found.owner, frozenset(entry.name for port in entries for entry in port))
        return found


def put_run(store: Store, owner: str, entry: Entry, rows: Rows, matched: Bools | None) -> None:
    """Store a run, and its flags if its side keeps any."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.table.schema, options=_COMPRESSED) as writer:
        writer.write_batch(rows.table)
    store.put(f"run/{entry.name}", sink.getvalue().to_pybytes())
    if matched is not None:
        put_flags(store, entry, matched)
    _cache.put(owner, entry.name, rows.table)


def read_run(store: Store, owner: str, entry: Entry, layout: Layout) -> Rows:
    """The rows of a run, decoded or from the cache."""
    cached = _cache.find(owner, entry.name)
    if cached is not None:
        return layout.rows(cached)
    value = store.get(f"run/{entry.name}")
    if value is None:
        raise RuntimeError(f"the state has no run {entry.name}, which its directory lists")
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        run = reader.read_next_batch()
    _cache.put(owner, entry.name, run)
    return layout.rows(run)


def put_flags(store: Store, entry: Entry, matched: Bools) -> None:
    """Store which rows of a run have matched."""
    store.put(f"flags/{entry.name}", np.packbits(matched).tobytes())


def read_flags(store: Store, entry: Entry) -> Bools:
    """Which rows of a run have matched."""
    value = store.get(f"flags/{entry.name}")
    if value is None:
        raise RuntimeError(f"the state has no flags for the run {entry.name}")
    return np.unpackbits(np.frombuffer(value, np.uint8), count=entry.rows).astype(np.bool_)


def remove_run(store: Store, owner: str, entry: Entry, *, flagged: bool) -> None:
    """Forget a run and its flags."""
    store.remove(f"run/{entry.name}")
    if flagged:
        store.remove(f"flags/{entry.name}")
    _cache.drop(owner, entry.name)


def merged(parts: list[Rows], layout: Layout) -> tuple[Rows, Ints]:
    """Several runs as one, and the positions in their concatenation that its rows come from."""
    # Runs of one side may differ in what does not change a value, such as the time zone a session shows timestamps in.
    schema = parts[-1].table.schema
    table = pa.concat_tables([pa.Table.from_batches([part.table]).cast(schema) for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    times = {name: np.concatenate([part.times[name] for part in parts]) for name in layout.times}
    together = Rows(_one_batch(table), codes, times)
    order = merge_order(codes, times[layout.sort_time])
    return together.take(order), order


def as_int64(array: pa.Array) -> Ints:
    """An event time or code as int64: TIMESTAMP and DATE in microseconds, NULL as the highest value."""
    kind = array.type
    if pa.types.is_date32(kind):
        array = pc.multiply(array.cast(pa.int32()).cast(pa.int64()), pa.scalar(MICROS_PER_DAY, pa.int64()))
    elif pa.types.is_timestamp(kind):
        array = array.view(pa.int64())
    elif not pa.types.is_int64(kind):
        array = array.cast(pa.int64())
    if array.null_count:
        array = pc.fill_null(array, int(HIGHEST))
    return array.to_numpy(zero_copy_only=False)


def _one_batch(table: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(table, pa.RecordBatch):
        return table
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise RuntimeError("a shard's batch holds more than 2 GiB in one column; use more shards or smaller batches")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
