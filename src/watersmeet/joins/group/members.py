"""The rows of the groups of a shard, where an aggregate must see all of them to know its value.

From ``max`` no row can be taken back without the others, and ``count(DISTINCT x)`` must know which values it has seen.
For such aggregates the columns they read are kept: equal rows as one with their number, as in a table, and with the
number of the arrival that last brought one, which orders the rows of a group. A row that comes and goes leaves no
trace, in whatever batches it does.

Invariants. Equal rows of a group have equal codes, so what cancels out meets within one code. A group whose window has
ended is never asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, firsts, joined_tables, key_ids, row_ids
from watersmeet.joins.core.matching import LOWEST, Ints
from watersmeet.joins.group.fold import Grouped
from watersmeet.joins.group.groups import CODE, END
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import Layout, Over, Rows, one_batch
from watersmeet.joins.state.spine import State
from watersmeet.joins.state.table import Table

NUMBER = "#number"
"""The place in the order of arrival of the last row that made this one."""

BUDGET = Budget(block=262_144, balanced=True, chunk=262_144)


@dataclass(frozen=True)
class Members:
    """The rows of groups: ``keys``, then what the aggregates read; ``apart``: equal rows are not put together."""

    table: Table
    keys: tuple[str, ...]
    apart: bool = False

    @staticmethod
    def of(state: State, keys: Sequence[str], read: Sequence[str], over: Over | None, *, apart: bool) -> Members:
        """The members of the groups of a shard; ``over``: of which groups they are never asked for again."""

        def alive(rows: Rows, is_oldest: bool) -> Rows:
            rows = rows if apart else put_together(rows, is_whole=is_oldest)
            return rows if over is None else rows.where(over.left(rows))

        times = () if over is None else (over.time,)
        columns = tuple(dict.fromkeys((*keys, *read, CODE, *times)))
        layout = Layout(columns, times, code=CODE, numbers=(WEIGHT, NUMBER))
        return Members(Table(state.spine("members", layout, BUDGET, alive)), tuple(keys), apart)

    def add(self, rows: pa.RecordBatch, codes: Ints, ends: Ints, weights: Ints, number: int) -> int:
        """Take rows in, or out, in the order of arrival from this number on; returns the next number."""
        given = {name: rows.column(name) for name in rows.schema.names if name in self.table.layout.columns}
        numbers = np.where(weights > 0, number + np.arange(len(codes)), LOWEST)
        made = {CODE: pa.array(codes), END: pa.array(ends), WEIGHT: pa.array(weights), NUMBER: pa.array(numbers)}
        layout = self.table.layout
        table = pa.table({name: given[name] if name in given else made[name] for name in layout.written})
        rows_ = layout.sorted(layout.rows(table))
        self.table.spine.add(rows_ if self.apart else put_together(rows_, is_whole=False))
        return number + len(codes)

    def rows(self, codes: Ints) -> Rows:
        """All rows of these codes (sorted, each once), in the order of their codes."""
        rows = self.table.stored(codes)
        rows = rows if self.apart else put_together(rows)
        return rows.where(rows.weights > 0)

    def grouped(self, keys: pa.RecordBatch, codes: Ints) -> tuple[Grouped, Ints]:
        """All rows of these groups, in the order of arrival, and which of the groups have any: those it numbers."""
        rows = self.rows(np.unique(codes))
        rows = rows.take(np.argsort(rows.beside[NUMBER], kind="stable"))
        ids = np.zeros(len(rows), np.int64)
        if self.keys and len(rows):
            asked = pa.Table.from_batches([keys])
            both = joined_tables([asked, pa.Table.from_batches([rows.table]).select(list(self.keys))])
            numbers = key_ids(one_batch(both), self.keys)
            place = np.full(int(numbers.max()) + 1, -1)
            place[numbers[: len(codes)]] = np.arange(len(codes))
            ids = place[numbers[len(codes) :]]
            # Equal codes need not be equal keys.
            rows, ids = rows.where(ids >= 0), ids[ids >= 0]
        there, ids = np.unique(ids, return_inverse=True)
        none = np.zeros(len(there), np.bool_)
        return Grouped(rows.table, ids.astype(np.int64), len(there), rows.weights, none), there


def put_together(rows: Rows, *, is_whole: bool = True) -> Rows:
    """Rows in the order of their codes with equal ones as one: their weights added, and the last number.

    Those of weight zero are gone, if these are all the rows there are. If not, they say where a row came last that went
    and came again in between.
    """
    if len(rows) < 2:
        return rows.where(rows.weights != 0) if is_whole else rows
    again = rows.codes[1:] == rows.codes[:-1]
    shared = np.append(again, False) | np.append(False, again)
    weights, numbers = rows.weights.copy(), rows.beside[NUMBER].copy()
    many, first = np.flatnonzero(shared), np.zeros(0, np.int64)
    if many.size:
        some = rows.table.take(pa.array(many))
        # The code follows from other columns.
        which = row_ids(some.drop_columns([CODE]) if some.num_columns > 1 else some)
        first = firsts(which)
        totals, last = np.zeros(first.size, np.int64), np.full(first.size, LOWEST)
        np.add.at(totals, which, weights[many])
        np.maximum.at(last, which, numbers[many])
        weights[many] = 0
        weights[many[first]], numbers[many[first]] = totals, last
    stay = weights != 0 if is_whole else ~shared
    if not is_whole:
        stay[many[first]] = True
    return rows.with_beside(**{WEIGHT: weights, NUMBER: numbers}).where(stay)
