"""Rows in the state that wait for their time: short runs in the order of time, from which rows leave for good.

Invariants. A run holds only rows that are there: when rows leave, the rest of their run takes its place. Runs are
short, and rows that leave together are near each other in time, so a batch rewrites about what it touches. Nothing is
written before `close`, so that what changes several times in a batch is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.core.operator import Marks, Store
from watersmeet.joins.state.layout import Layout, Rows
from watersmeet.joins.state.runs import Entry, merged, put_run, read_run, remove_run

LONGEST = 8_192
"""So many rows at most are in one run."""
SHORT_RUNS = 8
"""More runs that are at most half full than this become as few as they can."""


@dataclass(eq=False)
class _Run:
    """A run with its ranges of time. Without an entry it has not been written yet, without rows not been read."""

    entry: Entry | None
    rows: Rows | None
    size: int
    lowest: Marks
    highest: Marks


class Timeline:
    """Rows of one kind, during a step. Its runs may overlap in time."""

    def __init__(self, store: Store, owner: str, layout: Layout, entries: Sequence[Entry]) -> None:
        self.store = store
        self.owner = owner
        self.layout = layout
        self.runs = [_Run(entry, None, entry.rows, entry.lowest, entry.highest) for entry in entries]

    def __len__(self) -> int:
        return sum(run.size for run in self.runs)

    def earliest(self, name: str) -> int | None:
        """The earliest time in a column; None if there are no rows."""
        return min((run.lowest[name] for run in self.runs), default=None)

    def between(self, low: int, high: int) -> Iterator[Rows]:
        """The rows with times within ``low`` and ``high``, both included, run by run."""
        for run in self._within(low, high):
            rows = self._rows(run)
            times = rows.times[self.layout.sort_time]
            first, beyond = np.searchsorted(times, low, "left"), np.searchsorted(times, high, "right")
            if first < beyond:
                yield rows.take(np.arange(first, beyond))

    def at(self, times: Ints) -> Iterator[tuple[Rows, Ints]]:
        """The rows of these times, which are ascending and no two the same, with the positions of their times."""
        for run in self._within(int(times[0]), int(times[-1])) if times.size else ():
            rows = self._rows(run)
            positions, hit = _located(times, rows.times[self.layout.sort_time])
            if hit.any():
                yield rows.where(hit), positions[hit]

    def has(self, times: Ints) -> Bools:
        """Which of these times, which are ascending, rows have."""
        found = np.zeros(times.size, np.bool_)
        for run in self._within(int(times[0]), int(times[-1])) if times.size else ():
            found |= _located(self._rows(run).times[self.layout.sort_time], times)[1]
        return found

    def add(self, rows: Rows) -> None:
        """Take in further rows, in any order."""
        rows = self.layout.sorted(rows)
        for start in range(0, len(rows), LONGEST):
            self.runs.append(_unwritten(rows.take(np.arange(start, min(start + LONGEST, len(rows))))))

    def remove_at(self, times: Ints) -> list[Rows]:
        """Let the rows of these times, which are ascending, leave; returns them."""
        if not times.size:
            return []
        name = self.layout.sort_time
        return self.remove(int(times[0]), int(times[-1]), lambda rows: _located(times, rows.times[name])[1])

    def remove(self, low: int, high: int, leaving: Callable[[Rows], Bools]) -> list[Rows]:
        """Let rows leave, of runs that have times within ``low`` and ``high``; returns them."""
        left: list[Rows] = []
        for run in self._within(low, high):
            rows = self._rows(run)
            leaves = leaving(rows)
            if leaves.any():
                left.append(rows.where(leaves))
                self._discard(run)
                self.runs += [_unwritten(rows.where(~leaves))] if not leaves.all() else []
        return left

    def close(self) -> tuple[Entry, ...]:
        """Write what has changed, and return what there is now."""
        short = [run for run in self.runs if 2 * run.size <= LONGEST]
        if len(short) > SHORT_RUNS:
            together = merged([self._rows(run) for run in short], self.layout)[0]
            for run in short:
                self._discard(run)
            self.add(together)
        return tuple(self._written(run) for run in self.runs)

    def _within(self, low: int, high: int) -> list[_Run]:
        time = self.layout.sort_time
        return [run for run in self.runs if run.lowest[time] <= high and run.highest[time] >= low]

    def _rows(self, run: _Run) -> Rows:
        if run.rows is None:
            assert run.entry is not None
            run.rows = read_run(self.store, self.owner, run.entry, self.layout)
        return run.rows

    def _written(self, run: _Run) -> Entry:
        if run.entry is None:
            run.entry = Entry.of(self._rows(run))
            put_run(self.store, self.owner, run.entry, self._rows(run), None)
        return run.entry

    def _discard(self, run: _Run) -> None:
        self.runs.remove(run)
        if run.entry is not None:
            remove_run(self.store, self.owner, run.entry, flagged=False)


def _unwritten(rows: Rows) -> _Run:
    lowest = {name: int(times.min()) for name, times in rows.times.items()}
    highest = {name: int(times.max()) for name, times in rows.times.items()}
    return _Run(None, rows, len(rows), lowest, highest)


def _located(ascending: Ints, values: Ints) -> tuple[Ints, Bools]:
    """Where each value is, if it is there, and whether it is."""
    if not ascending.size:
        return np.zeros(values.size, np.int64), np.zeros(values.size, np.bool_)
    positions = np.minimum(np.searchsorted(ascending, values), ascending.size - 1)
    return positions, ascending[positions] == values
