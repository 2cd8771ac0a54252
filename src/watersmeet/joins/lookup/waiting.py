"""Stream rows that wait for their table row: runs by code, from which rows leave when they are shown or forgotten.

Invariants. Rows are numbered in the order in which they were looked up, and the clock never goes back, so whatever is
forgotten, by age or because too many wait, are the rows below a number: the *floor*. Rows that were shown again are
flagged beside their run. Neither rewrites a run; runs of about one size are merged, and only rows that still wait stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from watersmeet.joins.core.matching import LOWEST, Bools, Ints
from watersmeet.joins.core.operator import Store
from watersmeet.joins.state.layout import Layout, Rows
from watersmeet.joins.state.runs import Entry, merged, put_flags, put_run, read_flags, read_run, remove_run

NUMBER, ARRIVED = "#number", "#arrived"
"""int64 columns: a row's place in the order of arrival, and the clock then; `LOWEST` before there was one."""

_NAME = "waiting"
MERGE_AT = 4
"""So many runs of about one size become one."""
SMALLEST_TIER = 4_096


class Waiting:
    """The rows that wait in a shard during a step; `save` once, last."""

    def __init__(self, store: Store, owner: str, layout: Layout, entries: Sequence[Entry]) -> None:
        self.store = store
        self.owner = owner
        self.layout = layout
        self.entries = list(entries)
        stored: dict[str, Any] = json.loads(store.get(_NAME) or b"{}")
        self.next: int = stored.get("next", 0)
        self.floor: int = stored.get("floor", 0)
        self.alive: dict[str, int] = stored.get("alive", {})
        self.rows: dict[str, Rows] = {}
        self.shown: dict[str, Bools] = {}
        self.fresh: set[str] = set()
        self.changed: set[str] = set()
        self.written = 0

    def __len__(self) -> int:
        return sum(self.alive.values())

    def numbered(self, rows: int) -> Ints:
        """The numbers of so many rows that come next."""
        self.next += rows
        return np.arange(self.next - rows, self.next)

    def of(self, codes: Ints) -> Iterator[tuple[Entry, Ints]]:
        """The rows of these codes (sorted, each once) that wait: runs, and positions in each."""
        for entry in list(self.entries):
            first, beyond = np.searchsorted(codes, [entry.lowest_code, entry.highest_code + 1])
            if first == beyond:
                continue
            rows = self.read(entry)
            found = np.minimum(np.searchsorted(codes, rows.codes), codes.size - 1)
            positions = np.flatnonzero((codes[found] == rows.codes) & self._is_alive(entry))
            if positions.size:
                yield entry, positions

    def read(self, entry: Entry) -> Rows:
        """The rows of a run."""
        if entry.name not in self.rows:
            self.rows[entry.name] = read_run(self.store, self.owner, entry, self.layout)
        return self.rows[entry.name]

    def remove(self, entry: Entry, positions: Ints) -> None:
        """Let rows of a run, which wait, wait no longer."""
        flags = self._flags(entry).copy()
        flags[positions] = True
        self.shown[entry.name] = flags
        self.alive[entry.name] -= positions.size
        self.changed.add(entry.name)

    def add(self, rows: Rows) -> None:
        """Let further rows wait."""
        if not len(rows):
            return
        rows = self.layout.sorted(rows)
        entry = Entry.of(rows)
        self.entries.append(entry)
        self.rows[entry.name], self.shown[entry.name] = rows, np.zeros(len(rows), np.bool_)
        self.alive[entry.name] = len(rows)
        self.fresh.add(entry.name)

    def forget_before(self, clock: int, first: int) -> None:
        """Forget the rows that came before that clock; those from before there was one came with the ``first``."""
        floor = self.floor
        for entry in self.entries:
            lowest, highest = (_or_first(entry_[ARRIVED], first) for entry_ in (entry.lowest, entry.highest))
            if highest < clock:
                floor = max(floor, entry.highest[NUMBER] + 1)
            elif lowest < clock:
                times = self.read(entry).times
                arrived = np.where(times[ARRIVED] == LOWEST, first, times[ARRIVED])
                floor = max(floor, int(times[NUMBER][arrived < clock].max()) + 1)
        self._raise(floor)

    def forget(self, rows: int) -> None:
        """Forget so many rows, the first to have come, of those that wait."""
        numbers = np.zeros(0, np.int64)
        for entry in sorted(self.entries, key=lambda entry: entry.lowest[NUMBER]):
            if np.count_nonzero(numbers < entry.lowest[NUMBER]) >= rows:
                break
            numbers = np.concatenate([numbers, self.read(entry).times[NUMBER][self._is_alive(entry)]])
        self._raise(int(np.sort(numbers)[rows - 1]) + 1)

    def save(self) -> tuple[Entry, ...]:
        """Store what is new, drop runs in which nobody waits, merge those that have become many."""
        for entry in [entry for entry in self.entries if not self.alive[entry.name]]:
            self._drop(entry)
        self._merge()
        for entry in self.entries:
            if entry.name in self.fresh:
                put_run(self.store, self.owner, entry, self.read(entry), self._flags(entry))
                self.written += entry.rows
            elif entry.name in self.changed:
                put_flags(self.store, entry, self._flags(entry))
        stored = {"next": self.next, "floor": self.floor, "alive": self.alive}
        self.store.put(_NAME, json.dumps(stored).encode())
        return tuple(self.entries)

    def _raise(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        for entry in self.entries:
            if entry.highest[NUMBER] < floor:
                self.alive[entry.name] = 0
            elif entry.lowest[NUMBER] < floor:
                self.alive[entry.name] = int(np.count_nonzero(self._is_alive(entry)))

    def _is_alive(self, entry: Entry) -> Bools:
        alive = ~self._flags(entry)
        return alive if entry.lowest[NUMBER] >= self.floor else alive & (self.read(entry).times[NUMBER] >= self.floor)

    def _flags(self, entry: Entry) -> Bools:
        if entry.name not in self.shown:
            self.shown[entry.name] = read_flags(self.store, entry)
        return self.shown[entry.name]

    def _drop(self, entry: Entry) -> None:
        self.entries.remove(entry)
        del self.alive[entry.name]
        if entry.name not in self.fresh:
            remove_run(self.store, self.owner, entry, flagged=True)

    def _merge(self) -> None:
        tiers: dict[int, list[Entry]] = {}
        for entry in self.entries:
            tiers.setdefault(_tier(entry.rows), []).append(entry)
        for group in (group for group in tiers.values() if len(group) >= MERGE_AT):
            parts = [self.read(entry).where(self._is_alive(entry)) for entry in group]
            for entry in group:
                self._drop(entry)
            self.add(merged(parts, self.layout)[0])


def _or_first(arrived: int, first: int) -> int:
    return first if arrived == LOWEST else arrived


def _tier(rows: int) -> int:
    return 0 if rows <= SMALLEST_TIER else 1 + int(np.log(rows / SMALLEST_TIER) / np.log(MERGE_AT))
