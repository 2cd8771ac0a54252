"""The rows of a table in one shard, as sorted runs of weighted rows.

A batch's changes become a run, sorted by code. The table is the sum of its runs: a row that was inserted in one and
taken back in another is not there. A run is stored in blocks, each a value of its own, and a directory says which codes
each block spans, so that a question reads the blocks its codes fall into and finds its rows there by binary search.

Invariants. Equal rows have equal codes, so what cancels out meets within one code. A block never changes and its name
is used once ever. Runs of about one size are merged, and all of them when the smaller ones together hold as much as the
largest: a row is rewritten about once per size it passes through, there are never many runs, and what is stored is
about twice what the table holds at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import OP, POSITION, key_ids
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Ints
from watersmeet.joins.core.operator import Store
from watersmeet.joins.state.runs import Directory, Entry, put_run, read_run, remove_run
from watersmeet.joins.state.table_rows import TableLayout, TableRows, together


@dataclass(frozen=True)
class Sizes:
    """How a table is stored.

    - ``block``: rows of a stored value at most. Codes are hashes, so a batch of changes touches every block of a large
      table: what a block costs besides its matches must be small against the batch, and blocks therefore few
    - ``merge_at``: so many runs of about one size become one; runs of up to ``smallest_tier`` rows are of one size
    - ``chunk``: about so many rows are held in memory at once
    """

    block: int = 262_144
    merge_at: int = 4
    smallest_tier: int = 4_096
    chunk: int = 262_144


SIZES = Sizes()

MOST = "#most"
"""Beside the entry of a block: how many rows one code has in it at most."""

BLOCKS_AT_HAND = 64
"""So many blocks are held in a step for further questions: most ask twice, for old rows and for matches."""

Run = tuple[Entry, ...]
"""The blocks of a run, in the order of their codes."""


class TableState:
    """A table in one shard during a step: any number of questions and `apply`, then `save` once.

    ``summed``: a number is kept beside each row, which may change though the row does not.

    >>> from watersmeet.testing import MemoryStore
    >>> store, layout = MemoryStore(), TableLayout(("k", "v"), "k")
    >>> state = TableState(store, "prices", layout)
    >>> state.apply(layout.rows(pa.table({"k": [1, 2], "v": ["a", "b"]})))
    >>> state.save()
    >>> TableState(store, "prices", layout).matching(np.array([2, 3])).table.to_pylist()
    [{'k': 2, 'v': 'b'}]
    """

    def __init__(
        self, store: Store, name: str, layout: TableLayout, sizes: Sizes = SIZES, *, summed: bool = False
    ) -> None:
        self.store = store
        self.name = f"table/{name}"
        self.layout = layout
        self.sizes = sizes
        self.summed = summed
        stored = Directory.from_bytes(store.get(self.name), 0)
        self.owner = stored.owner
        self.runs: list[Run] = list(stored.entries)
        self.fresh: dict[str, TableRows] = {}
        self.at_hand: dict[str, TableRows] = {}
        self.changed: dict[str, Ints] = {}
        self.is_changed = False
        self.written = 0

    def __len__(self) -> int:
        """How many rows are stored; those that cancel out but have not met yet count, too."""
        return sum(entry.rows for run in self.runs for entry in run)

    def matching(self, codes: Ints) -> TableRows:
        """The rows of these codes (sorted, each once), consolidated and in the order of their codes."""
        parts: list[TableRows] = []
        for entry, start, stop in self.located(codes):
            parts += self.read(entry).of_codes(codes[start:stop])
        return self.layout.consolidated(together(parts)) if parts else self.layout.nothing

    def counts(self, codes: Ints) -> Ints:
        """At least how many rows there are for each of these codes (sorted, each once): what is stored, or a bound.

        A bound that is low enough is taken from the directory, so that nothing is read for it.
        """
        most = sum(max(entry.highest.get(MOST, entry.rows) for entry in run) for run in self.runs)
        if most * codes.size <= self.sizes.chunk:
            return np.full(codes.size, most)
        found = np.zeros(codes.size, np.int64)
        for entry, start, stop in self.located(codes):
            stored, some = self.read(entry).codes, codes[start:stop]
            found[start:stop] += np.searchsorted(stored, some, "right") - np.searchsorted(stored, some, "left")
        return found

    def located(self, codes: Ints) -> Iterator[tuple[Entry, int, int]]:
        """The blocks that may hold rows of these sorted codes, with the stretch of the codes that each may hold."""
        for run in self.runs if codes.size else ():
            starts = np.searchsorted(codes, np.array([entry.lowest_code for entry in run]), "left")
            stops = np.searchsorted(codes, np.array([entry.highest_code for entry in run]), "right")
            for number in np.flatnonzero(starts < stops):
                yield run[number], int(starts[number]), int(stops[number])

    def blocks(self) -> Iterator[TableRows]:
        """All rows of the table, each once, some at a time, in the order of their codes."""
        yield from self.merged(self.runs)

    def stored(self) -> Iterator[tuple[Entry, TableRows]]:
        """The rows as they are stored, block by block: what cancels out may be in two of them."""
        for run in self.runs:
            for entry in run:
                yield entry, self.read(entry)

    def apply(self, changes: TableRows) -> None:
        """Add changes, consolidated or not: they become a run."""
        changes = changes.by_code()
        run: list[Entry] = []
        for start in range(0, len(changes), self.sizes.block):
            rows = changes.slice(start, start + self.sizes.block)
            entry = _entry(rows)
            self.fresh[entry.name] = rows
            run.append(entry)
        if run:
            self.runs.append(tuple(run))
            self.is_changed = True

    def put_sums(self, entry: Entry, sums: Ints) -> None:
        """Change the numbers beside the rows of a block."""
        if entry.name in self.fresh:
            self.fresh[entry.name] = replace(self.fresh[entry.name], sums=sums)
        else:
            self.changed[entry.name] = sums

    def save(self) -> None:
        """Merge runs that have become many, and store what is new."""
        runs = list(self.runs)
        for group in groups([sum(entry.rows for entry in run) for run in runs], self.sizes):
            self.merge([runs[number] for number in group])
        for run in self.runs:
            for entry in run:
                if entry.name in self.fresh:
                    self.put(entry, self.fresh[entry.name])
        for name, sums in self.changed.items():
            self.store.put(f"sums/{name}", _packed(sums))
        if self.is_changed:
            self.store.put(self.name, Directory(tuple(self.runs), owner=self.owner).to_bytes())
        self.fresh, self.changed, self.is_changed = {}, {}, False

    def compact(self) -> None:
        """Merge all runs, so that nothing is stored that cancels out."""
        if self.runs:
            self.merge(list(self.runs))

    def merge(self, runs: list[Run]) -> None:
        """Let one run take the place of several; written block by block, so that it is never in memory whole."""
        run: list[Entry] = []
        carried = self.layout.nothing
        for rows in self.merged(runs):
            carried = together([carried, rows]) if len(carried) else rows
            while len(carried) >= self.sizes.block:
                run.append(self.put_new(carried.slice(0, self.sizes.block)))
                carried = carried.slice(self.sizes.block, len(carried))
        if len(carried):
            run.append(self.put_new(carried))
        for entry in (entry for old in runs for entry in old):
            self.forget(entry)
        self.runs = [*(old for old in self.runs if old not in runs), *([tuple(run)] if run else [])]
        self.is_changed = True

    def merged(self, runs: Sequence[Run]) -> Iterator[TableRows]:
        """The sum of some runs, each row once, by ranges of codes that fit in memory."""
        for low, high in _ranges([entry for run in runs for entry in run], self.sizes.chunk):
            parts: list[TableRows] = []
            for entry in (entry for run in runs for entry in run):
                if entry.lowest_code <= high and low <= entry.highest_code:
                    rows = self.read(entry)
                    start = 0 if low <= entry.lowest_code else int(np.searchsorted(rows.codes, low, "left"))
                    stop = len(rows) if entry.highest_code <= high else int(np.searchsorted(rows.codes, high, "right"))
                    parts += [rows.slice(start, stop)] if start < stop else []
            found = self.layout.consolidated(together(parts)) if parts else self.layout.nothing
            if len(found):
                yield found

    def read(self, entry: Entry) -> TableRows:
        """The rows of a block, and the numbers beside them if they are kept."""
        rows = self.fresh.get(entry.name)
        if rows is not None:
            return rows
        rows = self.at_hand.get(entry.name)
        if rows is None:
            rows = self.layout.of(read_run(self.store, self.owner, entry, self.layout.stored))
            if len(self.at_hand) >= BLOCKS_AT_HAND:
                self.at_hand.clear()
            self.at_hand[entry.name] = rows
        return replace(rows, sums=self.read_sums(entry)) if self.summed else rows

    def read_sums(self, entry: Entry) -> Ints:
        """The numbers beside the rows of a block."""
        if entry.name in self.changed:
            return self.changed[entry.name]
        value = self.store.get(f"sums/{entry.name}")
        if value is None:
            raise RuntimeError(f"the state has no sums for the block {entry.name}")
        return _unpacked(value, entry.rows)

    def put_new(self, rows: TableRows) -> Entry:
        """Store rows as a new block."""
        entry = _entry(rows)
        self.put(entry, rows)
        return entry

    def put(self, entry: Entry, rows: TableRows) -> None:
        """Store a block."""
        put_run(self.store, self.owner, entry, rows.stored, None)
        if self.summed:
            assert rows.sums is not None
            self.store.put(f"sums/{entry.name}", _packed(rows.sums))
        self.written += len(rows)

    def forget(self, entry: Entry) -> None:
        """Remove a block, unless it was never stored."""
        self.changed.pop(entry.name, None)
        self.at_hand.pop(entry.name, None)
        if self.fresh.pop(entry.name, None) is None:
            remove_run(self.store, self.owner, entry, flagged=False)
            if self.summed:
                self.store.remove(f"sums/{entry.name}")


def upserted(state: TableState, table: pa.Table, key: Sequence[str]) -> TableRows:
    """What upserts and deletes by key change in a table: -old, +new, consolidated; nothing where both are equal.

    ``table`` has the state's columns, `OP`, and `POSITION` (without: rows are in order of delivery). Of several changes
    of one key the last counts. A row's code must follow from its key. The state is left as it is: `apply` the changes.

    >>> from watersmeet.testing import MemoryStore
    >>> state = TableState(MemoryStore(), "prices", TableLayout(("k", "v"), "k"))
    >>> state.apply(upserted(state, pa.table({"k": [1, 1], "v": ["a", "b"], OP: [1, 1]}), ["k"]))
    >>> found = upserted(state, pa.table({"k": [1], "v": ["c"], OP: [1]}), ["k"])
    >>> found.table["v"].to_pylist(), found.weights.tolist()
    (['b', 'c'], [-1, 1])
    """
    if not table.num_rows:
        return state.layout.nothing
    names, ids = table.schema.names, key_ids(table, key)
    order = np.argsort(table.column(POSITION).to_numpy(), kind="stable") if POSITION in names else np.arange(len(table))
    last = np.full(table.num_rows, -1)
    # Of several assignments to one place, numpy lets the last stand.
    last[ids[order]] = order
    latest = table.take(pa.array(np.sort(last[last >= 0])))
    new = state.layout.rows(latest.select(list(state.layout.columns)))
    old = state.matching(np.unique(new.codes))
    both = together([new, old])
    keys = key_ids(both.table, key)
    replaced = np.flatnonzero(np.isin(keys[len(new) :], keys[: len(new)])) + len(new)
    inserted = np.flatnonzero(latest.column(OP).to_numpy() > 0)
    weights = np.where(np.arange(len(both)) < len(new), both.weights, -both.weights)
    changes = replace(both, weights=weights).take(np.concatenate([replaced, inserted]))
    return state.layout.consolidated(changes)


def chunked(codes: Ints, counts: Ints, size: int) -> Iterator[Ints]:
    """Codes in stretches for which there are few more than ``size`` rows each, unless one code alone has more.

    >>> [part.tolist() for part in chunked(np.array([3, 5, 8, 9]), np.array([2, 2, 9, 0]), 4)]
    [[3, 5], [8], [9]]
    """
    if codes.size:
        before = (np.cumsum(counts) - counts) // size
        yield from np.split(codes, np.flatnonzero(np.diff(before)) + 1)


def groups(rows: list[int], sizes: Sizes) -> list[list[int]]:
    """Which runs become one, given how many rows each has: all, or those of about one size where there are many.

    >>> groups([9, 1, 1, 1, 1], Sizes(merge_at=4, smallest_tier=1)), groups([3, 1, 1, 1], Sizes(smallest_tier=1))
    ([[1, 2, 3, 4]], [[0, 1, 2, 3]])
    """
    if len(rows) > 1 and sum(rows) - max(rows) >= max(max(rows), sizes.smallest_tier):
        return [list(range(len(rows)))]
    found = [[number] for number in range(len(rows))]
    while True:
        tiers: dict[int, list[list[int]]] = {}
        for group in found:
            tiers.setdefault(_tier(sum(rows[number] for number in group), sizes), []).append(group)
        full = next((tier for tier in tiers.values() if len(tier) >= sizes.merge_at), None)
        if full is None:
            return [group for group in found if len(group) > 1]
        found = [group for group in found if group not in full] + [[number for group in full for number in group]]


def _entry(rows: TableRows) -> Entry:
    edges = np.flatnonzero(rows.codes[1:] != rows.codes[:-1]) + 1
    most = int(np.diff(edges, prepend=0, append=len(rows)).max())
    return replace(Entry.of(rows.stored), highest={MOST: most})


def _tier(rows: int, sizes: Sizes) -> int:
    if rows <= sizes.smallest_tier:
        return 0
    return 1 + int(math.log(rows / sizes.smallest_tier, max(2, sizes.merge_at)))


def _ranges(entries: list[Entry], size: int) -> list[tuple[int, int]]:
    """Ranges of codes, first to last, that cover all entries, each with about ``size`` rows."""
    found: list[tuple[int, int]] = []
    low, rows = int(LOWEST), 0
    for entry in sorted(entries, key=lambda entry: entry.highest_code):
        rows += entry.rows
        if rows >= size and entry.highest_code >= low:
            found.append((low, entry.highest_code))
            low, rows = entry.highest_code + 1, 0
    return [*found, (low, int(HIGHEST))] if low <= int(HIGHEST) else found


def _packed(sums: Ints) -> bytes:
    return pa.compress(sums.tobytes(), codec="lz4", asbytes=True)


def _unpacked(value: bytes, rows: int) -> Ints:
    return np.frombuffer(pa.decompress(value, decompressed_size=8 * rows, codec="lz4", asbytes=True), np.int64)
