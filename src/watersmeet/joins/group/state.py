"""The groups of a shard: runs of groups with their accumulators, in which the newest run that has a group wins.

A batch's groups become a run, sorted by code and stored in blocks, each a value of its own; the directory says which
codes and ends of windows each block spans. A question goes through the runs from the newest to the oldest, reads the
blocks that its codes fall into, and is done with a group where it first finds it.

Invariants. A run has each group at most once. Runs are in the order of their age, and only neighbours are merged. A
group that is gone is stored as such until no older run can have it. Blocks whose windows have all ended are dropped
whole: their groups are never asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import key_ids
from watersmeet.joins.core.condition import same
from watersmeet.joins.core.matching import Bools, Ints, Pairs, match
from watersmeet.joins.core.operator import Marks, Store
from watersmeet.joins.state.layout import Layout, Rows, as_int64
from watersmeet.joins.state.runs import Directory, Entry, put_run, read_run, remove_run

DIRECTORY, COUNTS = "directory", "counts"
CODE, END, GONE = "#code", "#end", "#gone"
"""Columns of a stored group besides its keys and accumulators: its code, the end of its window in microseconds (the
highest number: it has none), and whether it is gone."""

BLOCK = 65_536
"""So many groups at most are in one block."""
MERGE_AT = 4
"""So many neighbouring runs of about one size become one."""
SMALLEST_TIER = 4_096


class GroupState:
    """The groups of a shard during a step: `find`, `put`, `forget_until`, then `save` once.

    ``columns`` are the keys and the accumulators; whoever neither finds nor puts need not know them.
    """

    def __init__(self, store: Store, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self.store = store
        self.keys = tuple(keys)
        self.layout = Layout((*columns, CODE, END, GONE), (END,), END, CODE)
        self.directory = Directory.from_bytes(store.get(DIRECTORY), 0)
        self.runs = [list(run) for run in self.directory.entries]
        read = cast("dict[str, int]", json.loads(store.get(COUNTS) or b"{}"))
        self.counts = {int(end): number for end, number in read.items()}
        self.written = 0

    def __len__(self) -> int:
        return sum(self.counts.values())

    def find(self, keys: pa.RecordBatch, codes: Ints) -> tuple[pa.Table | None, Ints]:
        """Stored groups, and of each of these groups its place among them; -1: it is not there.

        The groups asked for differ, and are in the order of their codes.
        """
        places = np.full(len(codes), -1)
        parts: list[pa.RecordBatch] = []
        found = 0
        open_ = np.arange(len(codes))
        for run in reversed(self.runs):
            for entry in run:
                asked = open_[_spanned(codes[open_], entry)]
                if not asked.size:
                    continue
                rows = self._read(entry)
                pairs = self._pairs(rows, keys, codes, asked)
                parts.append(rows.table.take(pa.array(pairs.build)))
                places[pairs.probe] = found + np.arange(pairs.probe.size)
                found += pairs.probe.size
            open_ = open_[places[open_] < 0]
        if not parts:
            return None, places
        table = _together(parts)
        there = np.flatnonzero(places >= 0)
        places[there[table.column(GONE).to_numpy()[places[there]]]] = -1
        return table, places

    def put(self, groups: pa.Table, before: Bools, gone: Bools) -> None:
        """Store groups in the order of their codes, with `CODE` and `END`: they take the place of what there was.

        ``before`` says which were there, ``gone`` which no longer are.
        """
        self._count(as_int64(groups.column(END).combine_chunks()), (~gone).astype(np.int64) - before)
        told = np.flatnonzero(before | ~gone)
        table = groups.append_column(GONE, pa.array(gone)).take(pa.array(told))
        rows = self.layout.rows(table)
        if len(rows):
            self.runs.append(self._stored(rows))
        self._merge()

    def forget_until(self, mark: int) -> None:
        """Forget the groups whose windows end at or before the mark."""
        for run in self.runs:
            for entry in [entry for entry in run if entry.highest[END] <= mark]:
                run.remove(entry)
                remove_run(self.store, self.directory.owner, entry, flagged=False)
        self.runs = [run for run in self.runs if run]
        self.counts = {end: number for end, number in self.counts.items() if end > mark}

    def save(self, received: Marks, active: Marks) -> None:
        """Store the directory, with the marks that it is to remember."""
        entries = tuple(tuple(run) for run in self.runs)
        self.store.put(DIRECTORY, replace(self.directory, entries=entries, received=received, active=active).to_bytes())
        self.store.put(COUNTS, json.dumps(self.counts).encode())

    def _pairs(self, rows: Rows, keys: pa.RecordBatch, codes: Ints, asked: Ints) -> Pairs:
        """Which of the groups asked for are which of these rows."""
        found = match(rows.codes, np.zeros(len(rows), np.int64), codes[asked], *np.zeros((2, asked.size), np.int64))
        pairs = Pairs(asked[found.probe], found.build)
        for name in self.keys:
            mine = keys.column(name).take(pa.array(pairs.probe))
            pairs = pairs.where(same(mine, rows.table.column(name).take(pa.array(pairs.build)).cast(mine.type)))
        return pairs

    def _count(self, ends: Ints, changes: Ints) -> None:
        some, which = np.unique(ends, return_inverse=True)
        sums = np.bincount(which, changes, some.size).astype(np.int64)
        for end, change in zip(some.tolist(), sums.tolist(), strict=True):
            self.counts[end] = self.counts.get(end, 0) + change
        self.counts = {end: number for end, number in self.counts.items() if number}

    def _read(self, entry: Entry) -> Rows:
        return read_run(self.store, self.directory.owner, entry, self.layout)

    def _stored(self, rows: Rows) -> list[Entry]:
        """The rows, which are in the order of their codes, as the blocks of a new run."""
        entries: list[Entry] = []
        for start in range(0, len(rows), BLOCK):
            block = rows.take(np.arange(start, min(start + BLOCK, len(rows))))
            entries.append(Entry.of(block))
            put_run(self.store, self.directory.owner, entries[-1], block, None)
        self.written += len(rows)
        return entries

    def _merge(self) -> None:
        """Merge the newest runs as long as so many of about one size are neighbours."""
        while True:
            tiers = [_tier(sum(entry.rows for entry in run)) for run in self.runs]
            first = len(tiers)
            while first and tiers[first - 1] <= tiers[-1]:
                first -= 1
            if len(tiers) - first < MERGE_AT:
                return
            merging, self.runs = self.runs[first:], self.runs[:first]
            rows = self._newest(merging, is_oldest=first == 0)
            for entry in (entry for run in merging for entry in run):
                remove_run(self.store, self.directory.owner, entry, flagged=False)
            if len(rows):
                self.runs.append(self._stored(rows))

    def _newest(self, runs: Sequence[Sequence[Entry]], *, is_oldest: bool) -> Rows:
        """Each group of these neighbouring runs once, as the newest of them has it, in the order of codes."""
        newest_first = [self._read(entry) for run in reversed(runs) for entry in run]
        rows = self.layout.rows(_together([part.table for part in newest_first]))
        rows = rows.take(np.argsort(rows.codes, kind="stable"))
        again = np.zeros(len(rows), np.bool_)
        again[1:] = rows.codes[1:] == rows.codes[:-1]
        several = np.flatnonzero(again | np.append(again[1:], False))
        if several.size:
            # Equal codes need not be equal keys.
            shared = rows.table.take(pa.array(several))
            _, first = np.unique(key_ids(shared, self.keys), return_index=True)
            stay = ~np.isin(np.arange(len(rows)), several)
            stay[several[first]] = True
            rows = rows.where(stay)
        return rows.where(~rows.table.column(GONE).to_numpy(zero_copy_only=False)) if is_oldest else rows


def _spanned(codes: Ints, entry: Entry) -> slice:
    """Which of the codes, which are in order, a block may have."""
    first = np.searchsorted(codes, entry.lowest_code, "left")
    return slice(int(first), int(np.searchsorted(codes, entry.highest_code, "right")))


def _together(parts: Sequence[pa.RecordBatch]) -> pa.Table:
    # Runs may differ in what does not change a value, such as the time zone a session shows timestamps in.
    schema = parts[0].schema
    return pa.concat_tables([pa.Table.from_batches([part]).cast(schema) for part in parts])


def _tier(rows: int) -> int:
    return 0 if rows <= SMALLEST_TIER else 1 + int(np.log(rows / SMALLEST_TIER) / np.log(MERGE_AT))
