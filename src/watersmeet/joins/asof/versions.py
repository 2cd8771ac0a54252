"""The versions of an as-of join in one shard: runs sorted by key and time, in which the nearest version is found.

Invariants. A run never changes. New versions join the one small run, whose versions of no use leave at once; larger
runs are merged when there are several of about one size, and their versions of no use leave then. So a version is
rewritten once per size it passes through, and a run that nothing is added to costs a batch only what is looked up in
it. No lookup finds a version of no use: one that is nearer is there as well, or it is out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.condition import same
from watersmeet.joins.core.matching import LOWEST, Bools, Ints, stretches
from watersmeet.joins.core.operator import END_OF_INPUT, RIGHT, Store
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.runs import Entry, merged, put_run, read_run, remove_run

if TYPE_CHECKING:
    from watersmeet.joins.asof.operator import AsofJoin

Which = Literal["first", "last"]
"""Which one of several versions is meant, by time."""

SMALL = 1_024
"""Up to so many versions are rewritten whenever one of them comes or goes."""
MERGE_AT = 4
"""So many runs of about one size become one."""
REVIEW = "#review"
"""Beside the times of an entry: the horizon at which about half of a run may be of no use."""


@dataclass(frozen=True)
class Found:
    """For each probe the version that was found: its time, the source it is in (-1: none was) and its place there."""

    times: Ints
    source: Ints
    place: Ints

    @property
    def any(self) -> Bools:
        """Whether one was found."""
        return self.source >= 0


class Versions:
    """The versions during a step: `admit` once, then any number of `find`, then `keep`, perhaps `compact`."""

    def __init__(self, join: AsofJoin, store: Store, owner: str, entries: Sequence[Entry]) -> None:
        self.join = join
        self.store = store
        self.owner = owner
        self.layout = join.layouts[RIGHT]
        self.entries = list(entries)
        self.sources: dict[int, Rows] = {}
        self.new: Rows | None = None

    def __len__(self) -> int:
        return sum(entry.rows for entry in self.entries)

    def admit(self, rows: Rows, horizon: int) -> int:
        """Take in new versions, except those of no use; returns how many were second versions of a key and time."""
        rows = self.layout.sorted(rows)
        times = self.times(rows)
        reach = times if self.join.direction == "forward" else np.maximum(times, self.in_force(horizon))
        known = self.find(rows.codes, self.keys(rows, self.join.right.keys), times, reach, "last")
        useful = ~(self.is_expired(times, horizon) | (known.any & (known.times > times)))
        again = known.any[useful]
        rows = rows.where(useful)
        at, following = self.successors(rows)
        times = self.times(rows)
        again[following[times[at] == times[following]]] = True
        self.new = rows.where(~again) if not again.all() else None
        return int(again.sum())

    def find(self, codes: Ints, keys: list[pa.Array], low: Ints, high: Ints, which: Which) -> Found:
        """For each probe the first or last version of its key with ``low <= time <= high``."""
        found = Found(np.zeros(codes.size, np.int64), np.full(codes.size, -1), np.zeros(codes.size, np.int64))
        for number, rows in self.reached(codes, low, high):
            times = self.times(rows)
            probe, place = self.located(codes, keys, low, high, which, rows)
            better = times[place] > found.times[probe] if which == "last" else times[place] < found.times[probe]
            better |= found.source[probe] < 0
            probe, place = probe[better], place[better]
            found.times[probe], found.source[probe], found.place[probe] = times[place], number, place
        return found

    def located(
        self, codes: Ints, keys: list[pa.Array], low: Ints, high: Ints, which: Which, rows: Rows
    ) -> tuple[Ints, Ints]:
        """The probes that have such a version among these rows, and where it is."""
        found = stretches(rows.codes, self.times(rows), codes, low, high)
        probe, place, step = (found.probe, found.stop - 1, -1) if which == "last" else (found.probe, found.start, 1)
        if not keys:
            return probe, place
        theirs = self.keys(rows, self.join.right.keys)
        good = np.zeros(probe.size, np.bool_)
        open_ = np.arange(probe.size)
        while open_.size:
            equal = _equal(keys, probe[open_], theirs, place[open_])
            good[open_[equal]] = True
            # Another key with the same code is in the way: the next one may be it.
            open_ = open_[~equal]
            place[open_] += step
            open_ = open_[(place[open_] >= found.start[open_]) & (place[open_] < found.stop[open_])]
        return probe[good], place[good]

    def reached(self, codes: Ints, low: Ints, high: Ints) -> Iterator[tuple[int, Rows]]:
        """The runs that lie in reach of these probes at all, and the new versions, each with its number."""
        if not codes.size:
            return
        time = self.layout.sort_time
        lowest, highest = int(low.min()), int(high.max())
        first, last = int(codes.min()), int(codes.max())
        for number, entry in enumerate(self.entries):
            in_time = entry.lowest[time] <= highest and lowest <= entry.highest[time]
            if in_time and entry.lowest_code <= last and first <= entry.highest_code:
                yield number, self.source(number)
        if self.new is not None:
            yield len(self.entries), self.new

    def source(self, number: int) -> Rows:
        """The rows of that number: of a run, read once per step, or new."""
        if number == len(self.entries):
            assert self.new is not None
            return self.new
        if number not in self.sources:
            self.sources[number] = read_run(self.store, self.owner, self.entries[number], self.layout)
        return self.sources[number]

    def keep(self, horizon: int) -> None:
        """Store the new versions, and let those of no use leave where that is cheap."""
        small: list[int] = []
        entries: list[Entry] = []
        for number, entry in enumerate(self.entries):
            if self.is_expired(np.array([entry.highest[self.layout.sort_time]]), horizon)[0]:
                remove_run(self.store, self.owner, entry, flagged=False)
            elif entry.rows <= SMALL:
                small.append(number)
            elif entry.lowest.get(REVIEW, END_OF_INPUT) <= horizon:
                entries += self.rewritten([number], horizon)
            else:
                entries.append(entry)
        new = [] if self.new is None else [self.new]
        if new and len(new[0]) > SMALL:
            entries += self.written(self.useful(new.pop(), horizon), horizon)
        entries += self.rewritten(small, horizon, new)
        self.entries, self.sources, self.new = entries, dict[int, Rows](), None
        self.merge(horizon)

    def merge(self, horizon: int) -> None:
        """Make one run of several of about one size."""
        for tier in sorted({_tier(entry.rows) for entry in self.entries if entry.rows > SMALL}):
            group = [number for number, entry in enumerate(self.entries) if _tier(entry.rows) == tier]
            if len(group) >= MERGE_AT:
                one = self.rewritten(group, horizon)
                self.entries = [entry for n, entry in enumerate(self.entries) if n not in group] + one
                self.sources = dict[int, Rows]()

    def compact(self, horizon: int) -> Rows | None:
        """Let all versions of no use leave; returns the versions that there are."""
        self.entries, self.sources = self.rewritten(range(len(self.entries)), horizon), {}
        return self.source(0) if self.entries else None

    def replace_all(self, rows: Rows, horizon: int) -> None:
        """Let these versions be all that there are."""
        for entry in self.entries:
            remove_run(self.store, self.owner, entry, flagged=False)
        self.entries, self.sources = self.written(rows, horizon), {}

    def rewritten(self, numbers: Sequence[int], horizon: int, new: Sequence[Rows] = ()) -> list[Entry]:
        """Some runs and new versions as one run without the versions of no use, if anything changes by that."""
        parts = [*(self.source(number) for number in numbers), *new]
        if not parts:
            return []
        together = parts[0] if len(parts) == 1 else merged(parts, self.layout)[0]
        useful = self.useful(together, horizon)
        old = [self.entries[number] for number in numbers]
        if len(old) == len(parts) == 1 and len(useful) == len(together):
            return [self.reviewed(old[0], together, horizon)]
        for entry in old:
            remove_run(self.store, self.owner, entry, flagged=False)
        return self.written(useful, horizon)

    def written(self, rows: Rows, horizon: int) -> list[Entry]:
        """The rows as a stored run; no rows, no run."""
        if not len(rows):
            return []
        entry = self.reviewed(Entry.of(rows), rows, horizon)
        put_run(self.store, self.owner, entry, rows, None)
        return [entry]

    def reviewed(self, entry: Entry, rows: Rows, horizon: int) -> Entry:
        """The entry with the horizon at which another look at its run is worth while, if there is one."""
        times, tolerance = self.times(rows), self.join.tolerance
        looks: list[int] = []
        if self.join.direction == "forward":
            looks.append(_middle(times))
        else:
            looks += [] if tolerance is None else [_middle(times) + tolerance]
            later = times[times > self.in_force(horizon)]
            looks += [_middle(later)] if 2 * later.size >= times.size else []
        lowest = {name: time for name, time in entry.lowest.items() if name != REVIEW}
        return replace(entry, lowest={**lowest, REVIEW: min(looks) + 1} if looks else lowest)

    def useful(self, rows: Rows, horizon: int) -> Rows:
        """The versions that a question at or after the horizon may still get, as far as these rows tell."""
        times = self.times(rows)
        gone = self.is_expired(times, horizon)
        if self.join.direction != "forward":
            at, following = self.successors(rows)
            gone[at[times[following] <= self.in_force(horizon)]] = True
        return rows.where(~gone)

    def is_expired(self, times: Ints, horizon: int) -> Bools:
        """Which times are out of reach of every question at or after the horizon."""
        if horizon == END_OF_INPUT:
            return np.ones(times.size, np.bool_)
        if self.join.direction == "forward":
            return times <= horizon if self.join.strict else times < horizon
        if self.join.tolerance is None:
            return np.zeros(times.size, np.bool_)
        return times < horizon - self.join.tolerance

    def in_force(self, horizon: int) -> int:
        """Versions up to this time are in force at the horizon; of them, only the last of a key matters."""
        return max(int(LOWEST), horizon - 1) if self.join.strict else horizon

    def successors(self, rows: Rows) -> tuple[Ints, Ints]:
        """The places of rows that are followed by another of their key, and the places of those."""
        at = np.arange(len(rows))
        following = at + 1
        keys = self.keys(rows, self.join.right.keys)
        good = np.zeros(len(rows), np.bool_)
        open_ = at[:-1][rows.codes[1:] == rows.codes[:-1]]
        while open_.size:
            equal = _equal(keys, open_, keys, following[open_])
            good[open_[equal]] = True
            open_ = open_[~equal]
            following[open_] += 1
            open_ = open_[following[open_] < len(rows)]
            open_ = open_[rows.codes[following[open_]] == rows.codes[open_]]
        return at[good], following[good]

    def keys(self, rows: Rows, names: tuple[str, ...]) -> list[pa.Array]:
        """The key columns by which candidates are verified; none where equal codes say all."""
        return [] if self.join.is_exact else [rows.table.column(name) for name in names]

    def times(self, rows: Rows) -> Ints:
        """The times of versions."""
        return rows.times[self.layout.sort_time]


def _equal(keys: list[pa.Array], at: Ints, others: list[pa.Array], places: Ints) -> Bools:
    """Where all keys are equal, row by row."""
    equal = np.ones(at.size, np.bool_)
    for mine, theirs in zip(keys, others, strict=True):
        equal &= same(mine.take(pa.array(at)), theirs.take(pa.array(places)))
    return equal


def _middle(times: Ints) -> int:
    return int(np.partition(times, times.size // 2)[times.size // 2])


def _tier(rows: int) -> int:
    return 0 if rows <= SMALL else 1 + int(np.log(rows / SMALL) / np.log(MERGE_AT))
