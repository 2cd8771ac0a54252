"""Deduplication: the first row of each group within a time, whose rows come out once and unchanged.

Definition. A row comes out unless one of its group has come out whose time is at most ``within`` before or after its
own. Groups are rows whose group columns are equal, where NULL equals NULL, NaN equals NaN and -0.0 equals 0.0. By
arrival that is decided at once, by the rows before it. By time it is decided once the watermark has passed the time of
the row, by the rows of its group with earlier times, and among equal times by arrival. Rows without a time, and those
that repeat another, are counted as dropped. See `definition`, one row at a time.

`STATE_SCHEMA` describes what a state holds: the keys of rows that came out, and the rows that wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, as_int64, distances, match, stretches
from watersmeet.operators.core.operator import Emission, StateStore, Watermarks
from watersmeet.operators.state.by_time import EventTimeStage, last_passed, next_number, release_rows
from watersmeet.operators.state.layout import FinalityBound, KeyedRows, RowLayout
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.state_schema import SpineSchema, StateSchema
from watersmeet.operators.state.table import BUDGET, CODE, StateTable, enforce_limit


@dataclass(frozen=True)
class DeduplicateOperator(EventTimeStage):
    """The first row of each group within a time: one port, whose rows come out once and unchanged.

    - ``within``: in the unit of the event time
    - ``order``: "arrival" or "time", the order in which rows count
    - ``shows_duplicates``: rows that are left out go to a side output, with the same columns

    >>> from watersmeet.tools.testing import MemoryStore
    >>> first, store = DeduplicateOperator(("k", "t"), ("k",), "t", 10), MemoryStore()
    >>> for times in ([1, 9], [11], [12]):
    ...     arrivals = {0: pa.table({"k": ["a"] * len(times), "t": times})}
    ...     print([table.to_pylist() for table in first.step(store, arrivals, {}).rows])
    [[{'k': 'a', 't': 1}]]
    []
    [[{'k': 'a', 't': 12}]]
    """

    name: ClassVar[str] = "deduplicate"

    within: int
    order: Literal["arrival", "time"] = "arrival"
    shows_duplicates: bool = False

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard."""
        shard = Shard(self, store, watermarks)
        finality = FinalityBound(self.time, last_passed(self.watermark(shard), self.within))
        shown = shard.state.spine(
            "first", self._key_layout, BUDGET, lambda rows, is_oldest: rows.where(finality.is_open(rows))
        )
        waiting = self.open_waiting(shard)
        new, numbers = self.admit(shard, arrivals.get(0))
        if self.order == "time":
            new = release_rows(waiting, new, last_passed(self.watermark(shard), 0))
        rows: tuple[pa.Table, ...] = ()
        if len(new):
            is_first = self._find_first(StateTable(shown), new)
            shard.counters.dropped[0] += len(new) - int(is_first.sum())
            if self.shows_duplicates and not is_first.all():
                left_out = pa.Table.from_batches([new.where(~is_first).table]).select(list(self.columns))
                shard.counters.unmatched.append((0, left_out))
            new = new.where(is_first)
            keys = pa.RecordBatch.from_arrays(
                [new.table.column(n) for n in self._key_layout.columns], names=list(self._key_layout.columns)
            )
            shown.add(self._key_layout.rows(keys))
            rows = (pa.Table.from_batches([new.table]).select(list(self.columns)),) if len(new) else ()
        shown.expire(finality)
        enforce_limit([StateTable(shown), StateTable(waiting)], self.max_rows)
        shard.counters.matched = len(new)
        return shard.close(self.output_watermarks(shard), rows, (len(shown) + len(waiting),), numbers)

    def _find_first(self, shown: StateTable, rows: KeyedRows) -> Bools:
        """A mask of the rows that, in the order in which they count, are the first of their group within the time."""
        stored = shown.read_rows(np.unique(rows.codes))
        keys = (
            pa.concat_tables(
                [
                    pa.Table.from_batches([part.table]).select(list(self.by))
                    for part in ((stored, rows) if len(stored) else (rows,))
                ],
                promote_options="permissive",
            )
            if self.by
            else None
        )
        count = len(stored)
        ids = np.zeros(count + len(rows), np.int64) if keys is None else key_ids(keys, self.by)
        times = rows.times[self.time]
        is_open = np.ones(len(rows), np.bool_)
        if count:
            before, old = ids[:count], stored.times[self.time]
            order = np.lexsort((old, before))
            low, high = _reach(times, self.within)
            is_open[match(before[order], old[order], ids[count:], low, high).probe] = False
        is_open[is_open] = first_rows(ids[count:][is_open], times[is_open], self.within)
        return is_open

    @cached_property
    def _key_layout(self) -> RowLayout:
        return RowLayout(tuple(dict.fromkeys((*self.by, self.time, CODE))), (self.time,), code=CODE)

    @property
    def duplicate_columns(self) -> tuple[str, ...]:
        """The columns of rows that repeat another, if these have a side output."""
        return self.columns if self.shows_duplicates else ()

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        stored = self.row_layout.columns if self.order == "time" else self._key_layout.columns
        return self.make_identity([stored], order=self.order, within=self.within)


def _reach(times: Ints, within: int) -> tuple[Ints, Ints]:
    """The earliest and the latest time that is so near to each time."""
    return np.maximum(times, LOWEST + within) - within, np.minimum(times, HIGHEST - within) + within


def first_rows(ids: Ints, times: Ints, within: int) -> Bools:
    """A mask of the rows that are the first of their group within the time, in the order in which they are given.

    >>> first_rows(np.zeros(5, np.int64), np.array([1, 9, 12, 11, 23]), 10).tolist()
    [True, False, True, False, True]
    """
    order = np.lexsort((times, ids))
    ids, times = ids[order], times[order]
    # Rows with a longer pause between them do not depend on each other; most rows are alone.
    is_head = np.ones(order.size + 1, np.bool_)
    is_head[1:-1] = (ids[1:] != ids[:-1]) | (distances(times[1:], times[:-1]) > within)
    is_first = np.ones(order.size, np.bool_)
    near = np.flatnonzero(~(is_head[:-1] & is_head[1:]))
    if near.size:
        order, ids, times, is_head = order[near], ids[near], times[near], is_head[near]
        # A row reaches those from `begin` to before `end`.
        _, begin, end = stretches(ids, times, ids, *_reach(times, within))
        heads = np.flatnonzero(is_head)
        is_in_order = is_head[1:] | (order[1:] > order[:-1])
        is_first[order] = _follow(heads, end) if is_in_order.all() else _divide(order, heads, begin, end)
    return is_first


def _follow(heads: Ints, end: Ints) -> Bools:
    """The first rows where all count in the order of time: behind each, the next one is the first that it misses.

    Each round goes twice as far as the one before it.
    """
    size = end.size
    is_first = np.zeros(size + 1, np.bool_)
    is_first[heads] = True
    following, beyond = np.append(end, size), np.append(heads[1:], size)
    while True:
        is_first[following[np.flatnonzero(is_first)]] = True
        if (following[heads] >= beyond).all():
            return is_first[:size]
        following = following[following]


def _divide(order: Ints, heads: Ints, begin: Ints, end: Ints) -> Bools:
    """The first rows where the order is any: the first of a stretch of time parts it into two that are independent.

    ``order``: numbers of the rows in the order in which they count.
    """
    is_first = np.zeros(order.size, np.bool_)
    by_number = np.argsort(order)
    order = np.empty(order.size, np.int64)
    order[by_number] = np.arange(order.size)
    low, high = heads, np.append(heads[1:], order.size)
    # The first of so many rows from each on: of 1, 2, 4, ... Those that would go beyond the last row are never read.
    of_width = [order.astype(np.int32 if order.size < 2**31 else np.int64)]
    for width in (1 << n for n in range(int((high - low).max(initial=1)).bit_length() - 1)):
        of_width.append(np.minimum(of_width[-1], np.append(of_width[-1][width:], of_width[-1][-width:])))
    of_widths = np.stack(of_width)
    while low.size:
        level = np.frexp(high - low)[1] - 1
        chosen = by_number[np.minimum(of_widths[level, low], of_widths[level, high - (1 << level)])]
        is_first[chosen] = True
        low, high = np.concatenate((low, end[chosen])), np.concatenate((begin[chosen], high))
        is_left = low < high
        low, high = low[is_left], high[is_left]
    return is_first


def spine(identity: Identity, name: str) -> SpineSchema:
    """The keys of rows that came out, or the rows that wait."""
    (port,), reach = identity["ports"], identity["within"] if name == "first" else 0
    until = "until the watermark has passed their time" + (" by the bound" if reach else "")
    return SpineSchema(
        0, until, expiry=lambda rows: {port["times"][0]: as_int64(rows.column(port["times"][0])) + reach}
    )


STATE_SCHEMA = StateSchema(("deduplicate",), spine, numbers=next_number, gives_stream=lambda identity: True)
