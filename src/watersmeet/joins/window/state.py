"""The state of a window join: the rows in its windows as immutable runs, and flags that say which of them are left.

Invariants. A run holds rows in order of arrival and never changes; a row's *home* is its place in all runs of its port
laid end to end. What changes lies beside the runs as one bit per home: whether the row is still in the window, and
whether it has matched. Runs that have become small or empty are merged or dropped, so their number grows with the
logarithm of the rows. The directory names a *version*, new with every batch: a worker may keep the decoded windows of a
version and is never wrong; it may also lose them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.core.operator import LEFT, NOW, RIGHT, RUN, Marks, Store
from watersmeet.joins.window.rows import NO_ROWS, Kept, Window

DIRECTORY = "window"
MERGE_AT = 4
"""So many runs of about one size become one."""
SMALLEST_TIER = 4_096
SPARSE = 4
"""A run of which less than one in so many rows is left is rewritten."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Run:
    """A run: its name, and how many rows it holds."""

    name: str
    rows: int


@dataclass(frozen=True)
class State:
    """What a shard knows between two batches.

    - ``number``: the number of the next arrival
    - ``clock``, ``first_clock``: the clock of the last batch, and the first there ever was
    - ``run``: the run of the query that wrote it; ``suspended``: per port, whether time evicts nothing for now
    - ``partitions``: how many partitions the window of each port has
    - ``owner``: names the shard to the cache of decoded windows; ``version``: which state of it this is
    """

    runs: tuple[tuple[Run, ...], ...] = ((), ())
    number: int = 0
    clock: int | None = None
    first_clock: int | None = None
    run: int | None = None
    suspended: tuple[bool, ...] = (False, False)
    partitions: tuple[int, ...] = (0, 0)
    owner: str = ""
    version: str = ""

    def hearing(self, marks: Marks) -> State:
        """The state once the clock and the run of this batch are known."""
        run, now = marks.get(RUN, self.run), marks.get(NOW)
        restarted = self.run is not None and run != self.run
        suspended = (True, True) if restarted else self.suspended
        if now is None:
            return replace(self, run=run, suspended=suspended)
        clock = now if self.clock is None else max(now, self.clock)
        first = clock if self.first_clock is None else self.first_clock
        return replace(self, run=run, suspended=suspended, clock=clock, first_clock=first)


def load(store: Store, kept: tuple[Kept, ...]) -> tuple[State, tuple[Window, ...]]:
    """The state of the shard, and what is in its windows."""
    value = store.get(DIRECTORY)
    if value is None:
        return State(owner=uuid4().hex), (NO_ROWS, NO_ROWS)
    read = cast("dict[str, Any]", json.loads(value))
    runs = tuple(tuple(Run(*run) for run in port) for port in read.pop("runs"))
    tuples = {name: tuple(read.pop(name)) for name in ("suspended", "partitions")}
    state = State(runs, **tuples, **read)
    cached = _cache.pop(state.owner, state.version)
    return state, cached or tuple(_read(store, port, runs[port], kept[port]) for port in (LEFT, RIGHT))


def save(store: Store, state: State, windows: tuple[Window, ...], kept: tuple[Kept, ...]) -> None:
    """Store what is in the windows at the end of a batch."""
    written = [_write(store, port, state.runs[port], windows[port], kept[port]) for port in (LEFT, RIGHT)]
    runs = tuple(runs for runs, _ in written)
    save_unchanged(store, replace(state, runs=runs, version=uuid4().hex), tuple(window for _, window in written))


def save_unchanged(store: Store, state: State, windows: tuple[Window, ...]) -> None:
    """Store what is known at the end of a batch that left the windows as they were."""
    directory = {**vars(state), "runs": [[[run.name, run.rows] for run in runs] for runs in state.runs]}
    store.put(DIRECTORY, json.dumps(directory).encode())
    _cache.put(state.owner, state.version, windows)


def _read(store: Store, port: int, runs: tuple[Run, ...], kept: Kept) -> Window:
    if not runs:
        return NO_ROWS
    total = sum(run.rows for run in runs)
    left, matched = _read_flags(store, port, total)
    parts: list[pa.RecordBatch] = []
    for run in runs:
        value = store.get(f"run/{run.name}")
        if value is None:
            raise RuntimeError(f"the state has no run {run.name}, which its directory lists")
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            parts.append(reader.read_next_batch())
    schema = parts[-1].schema
    together = pa.concat_batches([part if part.schema.equals(schema) else part.cast(schema) for part in parts])
    window = kept.window(together, np.arange(total), matched).take(left)
    return window.take(np.argsort(window.numbers, kind="stable"))


def _read_flags(store: Store, port: int, count: int) -> tuple[Bools, Bools]:
    """Which of the rows in all runs are left, and which of them have matched."""
    value = store.get(f"flags/{port}")
    if value is None:
        raise RuntimeError(f"the state has no flags for the runs of port {port}")
    bits = np.unpackbits(np.frombuffer(value, np.uint8).reshape(2, -1), axis=1, count=count).astype(np.bool_)
    return bits[0], bits[1]


def _put_flags(store: Store, port: int, window: Window, homes: Ints, count: int) -> None:
    bits = np.zeros((2, count), np.bool_)
    bits[0, homes] = True
    bits[1, homes] = window.matched
    store.put(f"flags/{port}", np.packbits(bits, axis=1).tobytes())


def _write(
    store: Store, port: int, runs: tuple[Run, ...], window: Window, kept: Kept
) -> tuple[tuple[Run, ...], Window]:
    """Store the rows that are in no run, merge runs that are due, and set the flags."""
    ends = np.cumsum([run.rows for run in runs], dtype=np.int64)
    new = len(runs)
    where = np.where(window.homes < 0, new, np.searchsorted(ends, window.homes, "right"))
    left = np.bincount(where, minlength=new + 1)
    groups = _groups([run.rows for run in runs], left[:new].tolist(), int(left[new]))
    stay = [index for index in range(new) if left[index] and index not in {i for group in groups for i in group}]
    result = [runs[index] for index in stay]
    homes = window.homes - _shifts(runs, stay)[where]
    for group in groups:
        chosen = np.flatnonzero(np.isin(where, group))
        homes[chosen] = sum(run.rows for run in result) + np.arange(chosen.size)
        result.append(_put(store, kept.batch(window.take(chosen))))
    for index in set(range(new)) - set(stay):
        store.remove(f"run/{runs[index].name}")
    _put_flags(store, port, window, homes, sum(run.rows for run in result))
    return tuple(result), replace(window, homes=homes)


def _shifts(runs: tuple[Run, ...], stay: list[int]) -> Ints:
    """By how much the homes in each run move when only some runs stay; the last number is for rows in no run."""
    shifts, gone = np.zeros(len(runs) + 1, np.int64), 0
    for index, run in enumerate(runs):
        shifts[index] = gone
        gone += 0 if index in stay else run.rows
    return shifts


def _groups(rows: list[int], left: list[int], new: int) -> list[list[int]]:
    """Which runs become one, the new rows being the last: enough of about one size, and those with few rows left.

    >>> _groups([10, 10, 9000, 10], [10, 0, 9000, 10], 10)
    [[4]]
    >>> _groups([10, 10, 9000, 10], [10, 10, 2000, 10], 10)
    [[0, 1, 2, 3, 4]]
    """
    tiers: dict[int, list[int]] = {}
    for index, count in enumerate([*left, new]):
        if count:
            tiers.setdefault(_tier(count), []).append(index)
    fresh = len(rows)
    groups: list[list[int]] = []
    for members in tiers.values():
        sparse = [index for index in members if index == fresh or left[index] * SPARSE < rows[index]]
        group = members if len(members) >= MERGE_AT else sparse
        if group:
            groups.append(group)
    return groups


def _tier(rows: int) -> int:
    return 0 if rows <= SMALLEST_TIER else 1 + int(np.log(rows / SMALLEST_TIER) / np.log(MERGE_AT))


def _put(store: Store, batch: pa.RecordBatch) -> Run:
    run = Run(uuid4().hex, batch.num_rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    store.put(f"run/{run.name}", sink.getvalue().to_pybytes())
    return run


class Cache:
    """The decoded windows of shards that this process has served, the least recently used dropped first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self.windows: OrderedDict[str, tuple[str, tuple[Window, ...], int]] = OrderedDict()

    def pop(self, owner: str, version: str) -> tuple[Window, ...] | None:
        """The windows of that version, if they are at hand; whatever is known of the shard is forgotten."""
        found = self.windows.pop(owner, None)
        if found is None:
            return None
        self.size -= found[2]
        return found[1] if found[0] == version else None

    def put(self, owner: str, version: str, windows: tuple[Window, ...]) -> None:
        """Keep the windows of a version."""
        self.pop(owner, version)
        size = sum(window.bytes for window in windows)
        self.windows[owner] = (version, windows, size)
        self.size += size
        while self.size > self.budget and self.windows:
            self.size -= self.windows.popitem(last=False)[1][2]


_cache = Cache(budget=512 * 1024 * 1024)
