"""The answers of an as-of join: the best version known of a question, and whether a better one may still come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.joins.asof.versions import VersionMatches, Versions, Which
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, Ints, reach
from watersmeet.joins.core.operator import END_OF_INPUT
from watersmeet.joins.state.layout import KeyedRows, as_int64

if TYPE_CHECKING:
    from watersmeet.joins.asof.operator import AsofJoinOperator


@dataclass(frozen=True)
class Answers:
    """What the versions say to questions; those that may still come have times at or after the ``watermark``."""

    join: AsofJoinOperator
    versions: Versions
    watermark: int

    def find(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The best version known of each question, and whether the question is settled."""
        match self.join.direction:
            case "backward":
                matches, is_final = self._backward(rows)
            case "forward":
                matches, is_final = self._forward(rows)
            case "nearest":
                matches, is_final = self._nearest(rows)
        return matches, is_final | (self.watermark == END_OF_INPUT)

    def _backward(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The last version before each question, and whether no later one can come before it."""
        low, high = self._reach_back(rows)
        matches = self._find(rows, low, high, "last")
        is_final = (self.watermark > high) | (low > high)
        return matches, is_final if self.join.upserts else is_final | (matches.is_found & (matches.times == high))

    def _forward(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The first version after each question, and whether no earlier one can come after it."""
        low, high = self._reach_forward(rows)
        matches = self._find(rows, low, high, "first")
        is_first = (matches.times == low) | (self.watermark >= matches.times)
        if self.join.upserts:
            is_first = self.watermark > matches.times
        return matches, np.where(matches.is_found, is_first, (self.watermark > high) | (low > high))

    def _nearest(self, rows: KeyedRows) -> tuple[VersionMatches, Bools]:
        """The nearest version of each question, and whether no nearer one can come."""
        times = rows.times[self.join.left.time]
        back, on = (
            self._find(rows, *self._reach_back(rows), "last"),
            self._find(rows, *self._reach_forward(rows), "first"),
        )
        # Unsigned: two times may be further apart than a signed number tells.
        behind, ahead = (times - back.times).view(np.uint64), (on.times - times).view(np.uint64)
        earlier = back.is_found & (~on.is_found | (behind <= ahead))
        matches = VersionMatches(
            np.where(earlier, back.times, on.times),
            np.where(earlier, back.source, on.source),
            np.where(earlier, back.place, on.place),
        )
        distance = np.where(earlier, behind, ahead)
        room = (np.int64(HIGHEST) - times).view(np.uint64)
        nearer = times + np.minimum(distance, room).view(np.int64) - 1
        # A version of a table may be replaced as long as one of its time may come.
        nearer = np.maximum(nearer, matches.times) if self.join.upserts else nearer
        last = np.where(matches.is_found, nearer, np.maximum(self._reach_back(rows)[1], self._reach_forward(rows)[1]))
        none = matches.is_found & ((distance == 0) | (self.join.strict & earlier & (distance == 1)))
        none &= not self.join.upserts
        if self.join.strict:
            # The time of the question itself is none at which a version could come, and none is before the lowest.
            none |= (last == times) & (times == LOWEST)
            last = np.where(last == times, times - 1, last)
        return matches, none | (self.watermark > last) | (self.join.strict and self.join.tolerance == 0)

    def _reach_back(self, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or before each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        return reach(times, None if tolerance is None else -tolerance, -int(self.join.strict))

    def _reach_forward(self, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or after each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        return reach(times, int(self.join.strict), tolerance)

    def _find(self, rows: KeyedRows, low: Ints, high: Ints, which: Which) -> VersionMatches:
        """For each question the first or last version of its key between two times."""
        keys = self.versions.keys(rows, self.join.left.keys)
        return self.versions.find(question_codes(self.join, rows), keys, low, high, which)


def question_codes(join: AsofJoinOperator, rows: KeyedRows) -> Ints:
    """The codes of questions, which are not sorted by them."""
    code = join.left.code
    return np.zeros(len(rows), np.int64) if code is None else as_int64(rows.table.column(code))
