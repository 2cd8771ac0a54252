"""The interval join: two rows meet when their event times lie within constant bounds of each other.

Definition. A left row l and a right row r are a pair of the result when their keys are equal (NULL never is), the time
bounds hold, the rest of the condition is true, and neither was late. See `definition` for the same in slow and obvious
steps.

A batch is one instant of a shard:

1. A new row is late if one of its times is below the mark its column had received before the batch. It is dropped and
   counted, and never padded.
2. A new row that can never match (NULL key, NULL time, own predicate not true) is padded at once if its side is
   preserved.
3. The other new rows meet what the other side has in state, and each other.
4. The marks of the batch are folded in. Whatever has now expired leaves, new rows included; of a preserved side, the
   rows that never matched leave padded, in this same batch.

Nothing that is in time can satisfy the bounds of a row beyond its limit: that is what the limit says. So an expired
row may stay in its run until the whole run is dropped, and new rows of both sides may all meet, whether they arrive in
one batch or in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import ROWS_PER_PIECE
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import Bound
from watersmeet.joins.core.matching import Ints, Pairs, reach, shift_times, stretches
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, StateStore, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.two_sided import LEFT_ONLY, TwoSided, verify_pairs
from watersmeet.joins.interval.batch import MATCHED, stream, take_over
from watersmeet.joins.state.format import StateBlock
from watersmeet.joins.state.layout import KeyedRows, RowLayout

UNLIMITED = 2**63 - 1
"""The end of a range that no bound between the compared times limits; another pair of columns has the bound."""


@dataclass(frozen=True)
class IntervalJoinOperator(TwoSided):
    """An interval join, ready to run.

    The range matcher works on the compared times of the ports: ``lower <= right time - left time <= upper``. ``bounds``
    says how long rows live, and ``end_bounds`` the same of the ends that rows carry: bounds whose column is one of the
    ``ends`` of its port. ``condition`` is whatever else must hold; every bound and every life follows from the whole.
    """

    name: ClassVar[str] = "interval"

    lower: int
    upper: int
    bounds: tuple[Bound, ...]
    condition: Condition | None = None
    end_bounds: tuple[Bound, ...] = ()

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Go on with the state of a join with other bounds: what has expired by those is gone for good."""
        take_over(self, store, was)

    @property
    def can_split_batch(self) -> bool:
        """Whether the arrivals of a batch may come in several steps, the marks with the last.

        Marks decide who is late in the batch after and who has expired at the end of this one, so it makes no
        difference; but a limit must see the whole batch.
        """
        return self.max_rows is None

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means."""
        names = self.canonical_names
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            range=[self.lower, self.upper],
            # Whether bounds are strict is told by the range, or by the condition, and so is what ends a life.
            bounds=sorted(
                [*names.canonical_list((bound.column, bound.other)), bound.constant] for bound in self.bounds
            ),
            condition=names.condition(self.condition),
        )

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result."""
        return self.left.times if self.kind in LEFT_ONLY else (*self.left.times, *self.right.times)

    @property
    def waits(self) -> tuple[Bound, ...]:
        """Which column waits for which: an end has no marks, so that the times of its side stand for it."""
        pairs = ((side.times, bound) for side in self.sides for bound in self.end_bounds if bound.column in side.ends)
        return (*self.bounds, *(replace(bound, column=time) for times, bound in pairs for time in times))

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """The columns between whose marks and times bounds and lives stand."""
        named = (name for bound in self.waits for name in (bound.column, bound.other))
        return tuple(dict.fromkeys(named))

    def uniform_watermarks(self, uniform: frozenset[str]) -> frozenset[str]:
        """The columns that bounds hold back: what no bound mentions follows the rows that a shard keeps."""
        bounds = {column: [bound.other for bound in self.bounds if bound.column == column] for column in self.times}
        return frozenset(
            column for column, others in bounds.items() if others and uniform.issuperset((column, *others))
        )

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """What is stored of each side: what the result, the match and the condition still need, each column once."""
        return (
            _layout(self.left, tracked=self.tracks_matches[LEFT]),
            _layout(self.right, tracked=self.tracks_matches[RIGHT]),
        )

    def span(self, port: int) -> tuple[int | None, int | None]:
        """How far the times that rows of ``port`` meet are from their own; None: no bound says so."""
        lower, upper = self._span
        if port == LEFT:
            return lower, upper
        return None if upper is None else -upper, None if lower is None else -lower

    @cached_property
    def _span(self) -> tuple[int | None, int | None]:
        bounded = {(bound.column, bound.other) for bound in self.bounds}
        times = (self.left.time, self.right.time)
        lower = None if self.lower == -UNLIMITED and times[::-1] not in bounded else self.lower
        upper = None if self.upper == UNLIMITED and times not in bounded else self.upper
        return lower, upper

    def reach(self, port: int, rows: KeyedRows) -> tuple[Ints, Ints]:
        """From when to when rows of ``port`` meet those of the other side."""
        first, last = reach(rows.times[self.sides[port].time], *self.span(port))
        return first, self._latest_reach(port, rows, last)

    def pairs(self, left: KeyedRows, right: KeyedRows, probe: int, reach: tuple[Ints, Ints]) -> Iterator[Pairs]:
        """The pairs of a left and a right row for which keys, bounds and condition hold, some at a time.

        ``probe`` names the port that asks, whose rows have that ``reach``. In the result ``probe`` are positions in
        ``left``, ``build`` in ``right``.
        """
        probe_rows, build_rows = (left, right) if probe == LEFT else (right, left)
        spans = stretches(build_rows.codes, build_rows.times[self.sides[1 - probe].time], probe_rows.codes, *reach)
        for piece in spans.pieces(ROWS_PER_PIECE):
            pairs = verify_pairs(
                self.sides, self.condition, left, right, piece if probe == LEFT else Pairs(piece.build, piece.probe)
            )
            if pairs.probe.size:
                yield pairs

    def _latest_reach(self, port: int, rows: KeyedRows, high: Ints) -> Ints:
        """The latest time of the other side that rows of ``port`` reach, no later than their own ends."""
        for bound in self.end_bounds:
            if bound.column in self.sides[port].ends and bound.other == self.sides[1 - port].time:
                # Below the lowest time there is none; the condition denies what is at it.
                high = np.minimum(high, shift_times(rows.times[bound.column], bound.constant - bound.strict))
        return high

    def can_meet(self, port: int, rows: KeyedRows, block: StateBlock) -> bool:
        """Whether the new rows of ``port`` reach into the codes and times of a run of the other side at all."""
        if int(rows.codes[0]) > block.highest_code or int(rows.codes[-1]) < block.lowest_code:
            return False
        times = rows.times[self.left.time if port == LEFT else self.right.time]
        lower, upper = self.span(port)
        theirs = self.right.time if port == LEFT else self.left.time
        if lower is not None and int(times.min()) + lower > block.highest[theirs]:
            return False
        if upper is not None and block.lowest[theirs] > int(times.max()) + upper:
            return False
        # A block that was written before its ends counted does not know them.
        ends = ((block.highest.get(bound.column), bound) for bound in self.end_bounds if bound.other in rows.times)
        return all(end is None or end >= int(rows.times[bound.other].min()) - bound.constant for end, bound in ends)


def _layout(port: Port, *, tracked: bool) -> RowLayout:
    times = tuple(dict.fromkeys((*port.times, *port.ends)))
    columns = tuple(dict.fromkeys((*port.input_columns, *times)))
    return RowLayout(columns, times, port.time, port.code, notes=((MATCHED, "flag"),) if tracked else ())
