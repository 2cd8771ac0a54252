"""Who meets whom in a batch of a window join, and which rows die alone, in the order in which they come out.

Each side's rows are laid out by (code, arrival). The rows that an arrival meets are then a stretch of the other side:
equal code, arrived before, not ended yet. Where rows of a code end in another order than they came, the stretch begins
at the first row that has not ended, and those within it that have are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.joins.core.condition import holds, same
from watersmeet.joins.core.matching import Bools, Ints, stable_order
from watersmeet.joins.core.operator import LEFT, RIGHT
from watersmeet.joins.window.lives import Lives

if TYPE_CHECKING:
    from watersmeet.joins.window.operator import WindowJoin

ROWS_PER_PIECE = 250_000
"""About so many candidates are looked at, and come out, at a time: few enough for the processor's caches."""

Ports = npt.NDArray[np.int8]
Positions = npt.NDArray[np.int32]
"""Positions and triggers of rows that may come out. A shard's window has fewer than 2**31 rows."""
NO_PORT = -1


@dataclass
class Facing:
    """One side, laid out by code and arrival. Positions are places in this layout.

    ``order`` says which row, in order of arrival, is at each position; ``floors`` are numbers that lie further apart
    from code to code than triggers do. So ``arrived``, the row's own trigger, and ``latest``, the highest end among the
    rows of its code up to there, rise over all positions when counted from the floor.
    """

    lives: Lives
    order: Ints
    floors: Ints
    arrived: Ints
    latest: Ints
    ends: Ints
    matched: Bools

    def __post_init__(self) -> None:
        self._laid_out: pa.RecordBatch | None = None

    @cached_property
    def places(self) -> Ints:
        """The position of each row, in order of arrival."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(self.order))
        return places

    @cached_property
    def is_in_turn(self) -> bool:
        """Whether rows of a code end in the order in which they came."""
        return bool((self.latest == self.ends + self.floors).all())

    @property
    def has_matched(self) -> Bools:
        """Which rows have matched by now, in order of arrival."""
        return self.matched[self.places]

    def moments(self, join: WindowJoin) -> Ints:
        """When the rows came, position by position: by the clock if both windows go by it, else by arrivals."""
        rows = self.lives.rows
        return (rows.clocks if join.by_clock else rows.numbers)[self.order]

    def lay_out(self) -> None:
        """Put the rows themselves in this order, which pays if many are read more than once."""
        self._laid_out = self.lives.rows.table.take(pa.array(self.order))

    def column(self, name: str, positions: Positions, missing: Bools | None = None) -> pa.Array:
        """A column of the rows at these positions; NULL where a row is missing."""
        table = self.lives.rows.table
        if not table.num_rows:
            return pa.nulls(len(positions), table.column(name).type)
        if self._laid_out is not None:
            return self._laid_out.column(name).take(pa.array(positions, mask=missing))
        return table.column(name).take(pa.array(self.order[positions], mask=missing))


@dataclass(frozen=True)
class Triggers:
    """The triggers of a batch: the port of each, the position of the arrival there, and the stretch that it meets."""

    ports: Ports
    places: Positions
    low: Positions
    high: Positions


@dataclass(frozen=True)
class Found:
    """Rows that come out: the trigger of each, its positions on either side, and the port it lacks, if any."""

    triggers: Positions
    left: Positions
    right: Positions
    lacks: Ports

    def where(self, keep: Bools) -> Found:
        """Only the rows for which ``keep`` is true."""
        if keep.all():
            return self
        return Found(self.triggers[keep], self.left[keep], self.right[keep], self.lacks[keep])

    def take(self, order: Ints) -> Found:
        """The rows in that order."""
        return Found(self.triggers[order], self.left[order], self.right[order], self.lacks[order])


def face(both: tuple[Lives, Lives]) -> tuple[Facing, Facing]:
    """Both sides laid out by one numbering of their codes; rows that can never match come after all others."""
    codes = pa.array(np.concatenate([lives.rows.codes for lives in both])).dictionary_encode()
    numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    left, right = np.split(numbers, [len(both[LEFT].rows)])
    count = len(codes.dictionary)
    return _face(both[LEFT], left, count), _face(both[RIGHT], right, count)


def stretches(facing: tuple[Facing, Facing], ports: Ports) -> Triggers:
    """What each arrival meets: the positions from ``low`` up to ``high`` on the other side."""
    low, high, places = (np.zeros(len(ports), np.int32) for _ in range(3))
    for port in (LEFT, RIGHT):
        mine, other = facing[port], facing[1 - port]
        # In the order of the layout, so that each search begins where the one before ended.
        new = np.flatnonzero(mine.order >= mine.lives.old)
        triggers = mine.lives.triggers[mine.order[new]]
        places[triggers] = new
        alive = ~mine.lives.rows.dead[mine.order[new]]
        triggers, asked = triggers[alive], mine.arrived[new[alive]]
        high[triggers] = np.searchsorted(other.arrived, asked, "right")
        low[triggers] = np.searchsorted(other.latest, asked, "right")
    return Triggers(ports, places, low, high)


def pieces(join: WindowJoin, facing: tuple[Facing, Facing], triggers: Triggers) -> Iterator[tuple[Found, Found]]:
    """The pairs, and the rows that die alone, piece by piece in order of the triggers.

    A row dies alone or not by what came of all triggers before its end, so it is noted along the way who has matched.
    """
    counts = triggers.high - triggers.low
    for port in (LEFT, RIGHT):
        if counts[triggers.ports == 1 - port].sum() > len(facing[port].order):
            facing[port].lay_out()
    leaving = _leaving(join, facing)
    for start, stop in pairwise(_edges(counts)):
        pairs = _meeting(join, facing, _candidates(facing, triggers, start, stop))
        for port, positions in ((LEFT, pairs.left), (RIGHT, pairs.right)):
            if join.preserved[port]:
                facing[port].matched[positions] = True
        first, beyond = (int(np.searchsorted(leaving.triggers, edge)) for edge in (start, stop))
        gone = leaving.take(np.arange(first, beyond))
        yield pairs, gone.where(~_has_matched(facing, gone))


def _edges(counts: Positions) -> list[int]:
    """Where to cut the triggers so that a piece has about so many candidates as it may; a trigger is never cut.

    >>> _edges(np.array([0, 200_000, 100_000, 900_000, 10, 0], np.int32))
    [0, 3, 4, 6]
    """
    total = np.cumsum(counts, dtype=np.int64)
    full = np.arange(ROWS_PER_PIECE, int(total[-1]), ROWS_PER_PIECE)
    cuts = np.searchsorted(total, full) + 1
    return np.unique(np.concatenate([[0], cuts, [len(counts)]])).tolist()


def _face(lives: Lives, codes: Ints, count: int) -> Facing:
    codes = np.where(lives.rows.dead, count, codes)
    order = stable_order(codes)
    floors = codes[order] * np.int64(lives.forever + 1)
    # What came before the batch came before all of it: a trigger below 1 is as good as 0.
    arrived = np.maximum(lives.triggers, 0)[order] + floors
    ends = lives.ends[order]
    latest = np.maximum.accumulate(ends + floors)
    return Facing(lives, order, floors, arrived, latest, ends, lives.rows.matched[order])


def _candidates(facing: tuple[Facing, Facing], triggers: Triggers, start: int, stop: int) -> Found:
    """The pairs of equal codes in which one arrives, at the triggers from ``start`` up to ``stop``, while one lives."""
    counts = triggers.high[start:stop] - triggers.low[start:stop]
    shift = triggers.low[start:stop] - (np.cumsum(counts, dtype=np.int32) - counts)
    trigger = np.repeat(np.arange(start, stop, dtype=np.int32), counts)
    stored = np.arange(len(trigger), dtype=np.int32) + np.repeat(shift, counts)
    arriving = np.repeat(triggers.places[start:stop], counts)
    is_left = np.repeat(triggers.ports[start:stop] == LEFT, counts)
    left, right = np.where(is_left, arriving, stored), np.where(is_left, stored, arriving)
    found = Found(trigger, left, right, np.full(len(trigger), NO_PORT, np.int8))
    if facing[LEFT].is_in_turn and facing[RIGHT].is_in_turn:
        return found
    ends = np.where(is_left, facing[RIGHT].ends[right], facing[LEFT].ends[left])
    return found.where(ends > trigger)


def _meeting(join: WindowJoin, facing: tuple[Facing, Facing], found: Found) -> Found:
    """Those of the candidates that have equal keys and for which the condition holds."""
    if not len(found.triggers):
        return found
    if not join.left.exact:
        for mine, theirs in zip(join.left.keys, join.right.keys, strict=True):
            values = facing[LEFT].column(mine, found.left)
            found = found.where(same(values, facing[RIGHT].column(theirs, found.right)))
    if join.condition is None or not len(found.triggers):
        return found
    ours = frozenset(join.stored[LEFT])

    def column(name: str) -> pa.Array:
        return facing[LEFT].column(name, found.left) if name in ours else facing[RIGHT].column(name, found.right)

    return found.where(holds(join.condition, column, len(found.triggers)))


def _leaving(join: WindowJoin, facing: tuple[Facing, Facing]) -> Found:
    """The rows of preserved sides that leave and may come out, in the order in which they do."""
    parts: list[Found] = []
    numbers: list[Ints] = []
    for port in (LEFT, RIGHT):
        lives, places = facing[port].lives, facing[port].places
        gone = ~lives.stay & join.preserved[port]
        if not join.emit_discarded:
            gone &= ~lives.discarded
        at, none = places[gone].astype(np.int32), np.zeros(np.count_nonzero(gone), np.int32)
        left, right = (at, none) if port == LEFT else (none, at)
        ends = lives.ends[gone].astype(np.int32)
        parts.append(Found(ends, left, right, np.full(len(at), 1 - port, np.int8)))
        numbers.append(lives.rows.numbers[gone])
    together = joined(*parts)
    return together.take(np.lexsort((np.concatenate(numbers), together.triggers)))


def joined(one: Found, other: Found) -> Found:
    """The rows of one, then of the other."""
    return Found(
        np.concatenate([one.triggers, other.triggers]),
        np.concatenate([one.left, other.left]),
        np.concatenate([one.right, other.right]),
        np.concatenate([one.lacks, other.lacks]),
    )


def _has_matched(facing: tuple[Facing, Facing], alone: Found) -> Bools:
    result = np.zeros(len(alone.triggers), np.bool_)
    for port, positions in ((LEFT, alone.left), (RIGHT, alone.right)):
        mine = alone.lacks == 1 - port
        result[mine] = facing[port].matched[positions[mine]]
    return result
