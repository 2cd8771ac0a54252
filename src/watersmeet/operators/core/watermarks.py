"""Watermarks of a join: those received per column, and the lifetimes that follow from them (HZ-16 to HZ-19).

``received`` holds the latest watermark of each watermarked column; a column without an entry has received none. A row
is late when one of its times is below the received watermark of that column, and expired when one of its times is below
the limit of that column. Both comparisons are strict: a row exactly at the watermark is in time, and a row exactly at
the limit is alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints
from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Watermarks


@dataclass(frozen=True)
class Bound:
    """``column >= other - constant``: a row is stored until the watermark of ``other`` less ``constant`` passes it.

    ``strict``: ``>`` in place of ``>=``, so that a row is stored until that watermark reaches it.
    """

    column: str
    other: str
    constant: int
    strict: bool = False


@dataclass(frozen=True)
class WatermarkState:
    """The watermarks received so far, and the limits they set."""

    received: Watermarks
    limits: Watermarks

    @staticmethod
    def of(received: Watermarks, bounds: Sequence[Bound]) -> WatermarkState:
        """The watermarks of a join with these bounds.

        >>> WatermarkState.of({"r.t": 10}, [Bound("l.t", "r.t", 4)]).limits
        {'l.t': 6}
        >>> WatermarkState.of({"r.t": 10}, [Bound("l.t", "r.t", 4, strict=True)]).limits
        {'l.t': 7}
        """
        limits: dict[str, int] = {}
        for bound in bounds:
            if bound.other in received:
                # Times are whole numbers, so a strict bound is the closed one that is a unit tighter.
                limit = delay_watermark(received[bound.other], bound.constant - bound.strict)
                limits[bound.column] = max(limit, limits.get(bound.column, limit))
        return WatermarkState(dict(received), limits)

    def merge(self, watermarks: Watermarks, bounds: Sequence[Bound]) -> WatermarkState:
        """With further watermarks; a watermark never goes back."""
        merged = {**self.received, **{k: max(v, self.received.get(k, v)) for k, v in watermarks.items() if k != NOW}}
        return WatermarkState.of(merged, bounds)

    def is_late(self, times: Mapping[str, Ints], rows: int) -> Bools:
        """A mask of the rows with a time below a received watermark of their own side."""
        return _below_any(times, self.received, rows)

    def lateness(self, times: Mapping[str, Ints], rows: int) -> tuple[pa.Array, pa.Array]:
        """For rows that are all late: which watermark each missed, and by how much; NULL where its side had ended."""
        which = np.full(rows, -1)
        by = np.zeros(rows, np.int64)
        ended = np.zeros(rows, np.bool_)
        for number, (column, values) in enumerate(times.items()):
            below = (which < 0) & _below_any({column: values}, self.received, rows)
            which[below] = number
            watermark = self.received.get(column, 0)
            by[below] = distance_behind(watermark, values[below])
            ended |= below & (watermark == END_OF_INPUT)
        return pa.array(list(times)).take(pa.array(which)), pa.array(by, mask=ended)

    def is_expired(self, times: Mapping[str, Ints], rows: int) -> Bools:
        """A mask of the rows that can no longer match."""
        return _below_any(times, self.limits, rows)

    def has_expired(self, times: Watermarks) -> bool:
        """Whether a row with these times is expired; rows are, if the latest of their times are, or the earliest."""
        return any(c in self.limits and _is_below(t, self.limits[c]) for c, t in times.items())

    def output_watermarks(
        self,
        columns: Sequence[str],
        bounded: frozenset[str],
        earliest: Watermarks,
        before: Watermarks,
        windows: Watermarks,
    ) -> Watermarks:
        """The watermarks of the join's output: ``min(received, limit)`` per column, so that all shards agree (HZ-34).

        A column that no bound mentions has no limit; it follows the ``earliest`` row that is still kept, so that a join
        further on does not stall (and never goes back ``before`` what was emitted). ``windows``: by column, how far
        behind its watermark rows may still come, since their windows are open.
        """
        out: dict[str, int] = {}
        ended = all(self.received.get(column) == END_OF_INPUT for column in columns)
        for column in columns:
            if column not in self.received or (column in bounded and column not in self.limits):
                continue
            hold = self.limits[column] if column in bounded else earliest.get(column, END_OF_INPUT)
            received = self.received[column]
            lag = windows.get(column, 0) if received != END_OF_INPUT else 0
            watermark = min(max(received - lag, int(LOWEST)), hold)
            if watermark == END_OF_INPUT and not ended:
                # As long as a side goes on, rows padded for the other come with NULL in its columns: they are not late.
                watermark -= 1
            out[column] = max(watermark, before.get(column, watermark))
        return out


PARTITION = "#@"
"""The separator between the name of a watermark and the partition of a source with its own watermarks."""

PAUSED = "#paused"
"""The suffix for the name of a column whose last batch covered so much time that it did not count as silence."""

Unions = Sequence[tuple[str, tuple[str, ...]]]


def with_partitions(
    unions: Unions, idle: Sequence[tuple[str, int]], watermark_names: Iterable[str]
) -> tuple[Unions, Sequence[tuple[str, int]]]:
    """Add the partitions of sources whose watermarks have been received to the unions and idle times.

    A column is a union of its partitions, each of which may be silent as long as the column may.

    >>> with_partitions([], [("a", 9)], ["a#@t-1", "a#@t-0", "b"])
    ([('a', ('a#@t-0', 'a#@t-1'))], [('a', 9), ('a#@t-0', 9), ('a#@t-1', 9)])
    """
    parts: dict[str, list[str]] = {}
    for name in sorted(name for name in watermark_names if PARTITION in name):
        parts.setdefault(name.partition(PARTITION)[0], []).append(name)
    if not parts:
        return unions, idle
    # They come first: a union of sources is made of what they give.
    inner = [(column, tuple(names)) for column, names in parts.items()]
    return [*inner, *unions], [*idle, *((name, after) for column, after in idle for name in parts.get(column, ()))]


def derive_watermarks(
    watermarks: Watermarks,
    unions: Unions,
    idle: Sequence[tuple[str, int]],
    bounds: Sequence[Bound],
    received: Watermarks,
    active: Watermarks,
    *,
    slowest: bool = False,
) -> tuple[Watermarks, Watermarks]:
    """The watermarks of a batch with those that follow from them, and when each column last received one.

    A column that several sources feed is as far as the slowest of its parts, once all have been heard of. What has been
    silent for its idle time by the wall clock no longer holds anything back: a part follows the other parts, a column
    the columns that wait for it: the latest of them, or the ``slowest`` that is not silent itself, where they also wait
    for each other. Such a watermark is one like any other: what comes later and is older is late.

    >>> derive_watermarks({"a": 5}, [("u", ("a", "b"))], [], [], {"b": 3}, {})
    ({'a': 5, 'u': 3}, {})
    """
    out = dict(watermarks)
    fresh = set(watermarks)
    for column, parts in unions:
        fresh |= {column} if any(part in fresh for part in parts) else set()
    silent, active_since = _find_idle(watermarks.get(NOW), fresh, idle, active)
    for column, parts in unions:
        for part in (part for part in parts if part in silent):
            _follow(out, part, [other for other in parts if other != part], received)
        latest = [_latest(out, part, received) for part in parts]
        if None not in latest:
            earliest = min(watermark for watermark in latest if watermark is not None)
            out[column] = max(earliest, out.get(column, earliest))
    for column in (column for column, _ in idle if column in silent):
        others = [bound.column for bound in bounds if bound.other == column]
        awake = [other for other in others if other not in silent] if slowest else []
        _follow(out, column, awake or others, received, slowest=bool(awake))
    return out, active_since


def _find_idle(
    now: int | None, fresh: set[str], idle: Sequence[tuple[str, int]], active: Watermarks
) -> tuple[set[str], Watermarks]:
    """Find the columns that have been silent for too long, and the time since which each is active.

    The silence of a column is the time covered by the batches that bring no event time of it: the time since the batch
    before, by the clock, which advances only with its ticks. A batch that covers a whole idle time or more may follow a
    pause of the query, which says nothing about its sources. So it does not count, unless the one before did so, too.
    """
    if not idle:
        return set(), active
    clock = active.get(NOW) if now is None else now
    if clock is None:
        return set(), active
    active_since, covered = {**active, NOW: clock}, clock - active.get(NOW, clock)
    for column, after in idle:
        paused = f"{column}{PAUSED}"
        if column in fresh or column not in active:
            active_since[column] = clock
        elif covered >= after and paused not in active:
            active_since |= {column: active[column] + covered, paused: 1}
            continue
        if covered or column in fresh:
            active_since.pop(paused, None)
    return {
        column for column, after in idle if column not in fresh and clock - active_since[column] >= after
    }, active_since


def _follow(
    out: dict[str, int], column: str, others: Sequence[str], received: Watermarks, *, slowest: bool = False
) -> None:
    latest = [_latest(out, other, received) for other in others]
    watermarks = [watermark for watermark in latest if watermark is not None]
    if watermarks and not (slowest and None in latest):
        watermark = min(watermarks) if slowest else max(watermarks)
        out[column] = max(watermark, out.get(column, watermark))


def _latest(watermarks: Watermarks, column: str, received: Watermarks) -> int | None:
    values = [source[column] for source in (watermarks, received) if column in source]
    return max(values, default=None)


def delay_watermark(watermark: int, constant: int) -> int:
    """The watermark that stays so far behind another; that of an input that has ended stays there."""
    return END_OF_INPUT if watermark == END_OF_INPUT else watermark_behind(watermark, constant)


def watermark_behind(time: int, lag: int) -> int:
    """The watermark that a time gives: so far behind it, as a number of 64 bits. No time is the end of input.

    >>> watermark_behind(-(2**63), 5) == -(2**63), watermark_behind(2**63 - 1, 0) == END_OF_INPUT - 1
    (True, True)
    """
    return max(int(LOWEST), min(time - lag, END_OF_INPUT - 1))


def distance_behind(watermark: int, times: Ints) -> Ints:
    """The distances of times behind a watermark that is after them; the highest number where they are further."""
    by = watermark - times
    return np.where(by < 0, HIGHEST, by)


def _is_below(time: int, limit: int) -> bool:
    return time < limit or limit == END_OF_INPUT


def _below_any(times: Mapping[str, Ints], limits: Watermarks, rows: int) -> Bools:
    below = np.zeros(rows, dtype=np.bool_)
    for column, values in times.items():
        limit = limits.get(column)
        if limit == END_OF_INPUT:
            return np.ones(rows, dtype=np.bool_)
        if limit is not None:
            below |= values < limit
    return below


@dataclass(frozen=True)
class WatermarkLag:
    """A watermarked column of a source: how far its mark stays behind the latest time, and what the mark is called.

    In a union each part has marks of its own: ``part`` says whose this is. ``origin`` is what the column is called at
    its source, which marks from outside speak of; it differs from ``column`` behind a view.
    """

    column: str
    lag: int
    watermark: str
    part: int | None = None
    origin: str = ""

    @property
    def source(self) -> str:
        """The column as marks from outside name it."""
        return self.origin or self.column
