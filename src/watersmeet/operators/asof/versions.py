"""The versions of an as-of join in one shard: sorted by key and time, with their expiry.

An obsolete version is removed when its run is merged, or when rewriting its run is worth it. Until then it does no
harm: no question chooses it, since a nearer one exists, or it is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.condition import null_safe_equal_at
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, stretches
from watersmeet.operators.core.operator import END_OF_INPUT, RIGHT
from watersmeet.operators.state.format import StateBlock
from watersmeet.operators.state.layout import Budget, KeyedRows
from watersmeet.operators.state.spine import ShardState, Spine

if TYPE_CHECKING:
    from watersmeet.operators.asof.kernel import AsofJoinOperator

Which = Literal["first", "last"]
"""The first or the last of several versions, by time."""

BUDGET = Budget(smallest_tier=1_024, smallest_at=2, sparse=1, in_order=True)
"""Up to so many versions are rewritten whenever one of them comes or goes."""

VOID = "#void"
"""bool: from the time of this version on its key has no row that a question could get."""


@dataclass(frozen=True)
class VersionMatches:
    """For each probe the version that was found: its time, the block it is in (-1: none was) and its place there."""

    times: Ints
    source: Ints
    place: Ints

    @property
    def is_found(self) -> Bools:
        """Whether one was found."""
        return self.source >= 0


@dataclass(frozen=True)
class Versions:
    """The versions during a step."""

    join: AsofJoinOperator
    spine: Spine

    @staticmethod
    def of(join: AsofJoinOperator, state: ShardState, horizon: Callable[[], int]) -> Versions:
        """The versions in a shard; ``horizon`` is the earliest time that a question may still have."""

        def alive(rows: KeyedRows, _: bool) -> KeyedRows:
            return rows.where(versions.is_useful(rows, horizon()))

        versions = Versions(join, state.spine("versions", join.layouts[RIGHT], BUDGET, alive))
        return versions

    def admit(self, rows: KeyedRows, horizon: int) -> tuple[KeyedRows, int]:
        """Of new versions, in the order of delivery, those of use, and how many were second ones of a key and time."""
        rows = self.spine.layout.sort(rows)
        times = self.times(rows)
        reach = times if self.join.direction == "forward" else np.maximum(times, self.in_force(horizon))
        latest = self.find(rows.codes, self.keys(rows, self.join.right.keys), times, reach, "last")
        wanted = ~(self.is_expired(times, horizon) | (latest.is_found & (latest.times > times)))
        rows, times, again = rows.where(wanted), times[wanted], latest.is_found[wanted]
        at, following = self.successors(rows)
        is_second = times[at] == times[following]
        again[following[is_second]] = True
        gone = again.copy()
        if self.join.upserts:
            gone[:] = False
            gone[at[is_second]] = True
        if self.join.direction != "forward":
            gone[at[~is_second & (times[following] <= self.in_force(horizon))]] = True
        return rows.where(~gone), int(again.sum())

    def find(self, codes: Ints, keys: list[pa.Array], low: Ints, high: Ints, which: Which) -> VersionMatches:
        """For each probe the first or last version of its key with ``low <= time <= high``."""
        matches = VersionMatches(
            np.zeros(codes.size, np.int64), np.full(codes.size, -1), np.zeros(codes.size, np.int64)
        )
        for number, rows in self._blocks_in_reach(codes, low, high):
            times = self.times(rows)
            probe, place = self._locate_versions(codes, keys, low, high, which, rows)
            # Of equal times the newer run counts: only changes of a table come twice.
            better = times[place] >= matches.times[probe] if which == "last" else times[place] <= matches.times[probe]
            better |= matches.source[probe] < 0
            probe, place = probe[better], place[better]
            matches.times[probe], matches.source[probe], matches.place[probe] = times[place], number, place
        return matches

    def take_columns(self, matches: VersionMatches, which: Bools) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """The versions that were found, in parts, with the positions of their probes.

        Their columns are those of the result, then what else the condition needs.
        """
        blocks, which = self.spine.blocks, which & matches.is_found
        side = self.join.right
        columns = side.columns if self.join.condition is None else tuple(dict.fromkeys((*side.columns, *side.operands)))
        for number in np.flatnonzero(np.bincount(matches.source[which])).tolist():
            probes = np.flatnonzero(which & (matches.source == number))
            yield probes, self.spine.take_columns(blocks[number], columns, matches.place[probes])

    def is_void(self, matches: VersionMatches, which: Bools) -> Bools:
        """A mask of the matched versions that are void."""
        void, which = np.zeros(which.size, np.bool_), which & matches.is_found
        if self.join.has_void:
            blocks = self.spine.blocks
            for number in np.flatnonzero(np.bincount(matches.source[which])).tolist():
                probes = np.flatnonzero(which & (matches.source == number))
                flags = self.spine.take_columns(blocks[number], (VOID,), matches.place[probes]).column(0)
                void[probes] = flags.to_numpy(zero_copy_only=False)
        return void

    def prune(self, before: int, after: int) -> None:
        """Let versions of no use leave where that is cheap, or worth while now that the horizon has come so far."""
        for block in self.spine.blocks:
            if self.is_expired(np.array([block.highest[self.join.right.time]]), after)[0]:
                self.spine.drop(block)
            elif block.rows <= self.spine.budget.smallest_tier or self._is_worth_a_look(block, before, after):
                self.spine.remove(block, ~self.is_useful(self.spine.read(block), after))

    def _is_worth_a_look(self, block: StateBlock, before: int, after: int) -> bool:
        """Whether the horizon has just passed the middle of a block, where about half may be of no use, or its end."""
        low, high = block.lowest[self.join.right.time], block.highest[self.join.right.time]
        passed = [(self.in_force(before), self.in_force(after))]
        if self.join.tolerance is not None and self.join.direction != "forward":
            passed.append((before - self.join.tolerance - 1, after - self.join.tolerance - 1))
        return any(start < time <= stop for start, stop in passed for time in ((low + high) // 2, high))

    def is_useful(self, rows: KeyedRows, horizon: int) -> Bools:
        """A mask of the versions that a question at or after the horizon may still choose, judging by these rows."""
        times = self.times(rows)
        gone = self.is_expired(times, horizon)
        at, following = self.successors(rows)
        # Rows of one key and time are there in the order in which they came.
        gone[at[times[following] == times[at]]] = True
        if self.join.direction != "forward":
            gone[at[times[following] <= self.in_force(horizon)]] = True
        return ~gone

    def is_expired(self, times: Ints, horizon: int) -> Bools:
        """A mask of the times that are out of reach of every question at or after the horizon."""
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

    def successors(self, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The places of rows that are followed by another of their key, and the places of those."""
        at = np.arange(len(rows))
        following = at + 1
        keys = self.keys(rows, self.join.right.keys)
        good = np.zeros(len(rows), np.bool_)
        open_ = at[:-1][rows.codes[1:] == rows.codes[:-1]]
        while open_.size:
            equal = null_safe_equal_at(keys, open_, keys, following[open_])
            good[open_[equal]] = True
            open_ = open_[~equal]
            following[open_] += 1
            open_ = open_[following[open_] < len(rows)]
            open_ = open_[rows.codes[following[open_]] == rows.codes[open_]]
        return at[good], following[good]

    def keys(self, rows: KeyedRows, names: tuple[str, ...]) -> list[pa.Array]:
        """The key columns by which candidates are verified; none where equal codes say all."""
        return [] if self.join.is_exact else [rows.table.column(name) for name in names]

    def times(self, rows: KeyedRows) -> Ints:
        """The times of versions."""
        return rows.times[self.join.right.time]

    def _locate_versions(
        self, codes: Ints, keys: list[pa.Array], low: Ints, high: Ints, which: Which, rows: KeyedRows
    ) -> tuple[Ints, Ints]:
        """The probes that have such a version among these rows, and where it is."""
        spans = stretches(rows.codes, self.times(rows), codes, low, high)
        probe, place, step = (spans.probe, spans.stop - 1, -1) if which == "last" else (spans.probe, spans.start, 1)
        if not keys:
            return probe, place
        theirs = self.keys(rows, self.join.right.keys)
        good = np.zeros(probe.size, np.bool_)
        open_ = np.arange(probe.size)
        while open_.size:
            equal = null_safe_equal_at(keys, probe[open_], theirs, place[open_])
            good[open_[equal]] = True
            # Another key with the same code is in the way: the next one may be it.
            open_ = open_[~equal]
            place[open_] += step
            open_ = open_[(place[open_] >= spans.start[open_]) & (place[open_] < spans.stop[open_])]
        return probe[good], place[good]

    def _blocks_in_reach(self, codes: Ints, low: Ints, high: Ints) -> Iterator[tuple[int, KeyedRows]]:
        """The blocks that lie in reach of these probes at all, each with its number."""
        if not codes.size:
            return
        time = self.join.right.time
        lowest, highest = int(low.min()), int(high.max())
        first, last = int(codes.min()), int(codes.max())
        for number, block in enumerate(self.spine.blocks):
            in_time = block.lowest[time] <= highest and lowest <= block.highest[time]
            if in_time and block.lowest_code <= last and first <= block.highest_code:
                yield number, self.spine.index(block) if self.join.is_exact else self.spine.read(block)
