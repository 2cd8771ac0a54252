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

from watersmeet.operators.core.changes import WEIGHT, concat_tables, first_positions, key_ids, row_ids
from watersmeet.operators.core.matching import LOWEST, Ints
from watersmeet.operators.group.fold import GroupedRows
from watersmeet.operators.group.groups import CODE, END
from watersmeet.operators.state.budget import Budget
from watersmeet.operators.state.layout import FinalityBound, KeyedRows, RowLayout, to_record_batch
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.state.table import StateTable

NUMBER = "#number"
"""The place in the order of arrival of the last row that made this one."""

BUDGET = Budget(block=262_144, balanced=True, chunk=262_144)


@dataclass(frozen=True)
class Members:
    """The rows of groups: ``keys``, then what the aggregates read.

    ``keep_duplicates``: equal rows are not put together.
    """

    table: StateTable
    keys: tuple[str, ...]
    keep_duplicates: bool = False

    @staticmethod
    def of(
        state: ShardState,
        keys: Sequence[str],
        read: Sequence[str],
        finality: FinalityBound | None,
        *,
        keep_duplicates: bool,
    ) -> Members:
        """The members of the groups of a shard; ``finality``: of which groups they are never asked for again."""

        def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
            rows = rows if keep_duplicates else merge_equal_rows(rows, is_whole=is_oldest)
            return rows if finality is None else rows.where(finality.is_open(rows))

        times = () if finality is None else (finality.time,)
        columns = tuple(dict.fromkeys((*keys, *read, CODE, *times)))
        layout = RowLayout(columns, times, code=CODE, numbers=(WEIGHT, NUMBER))
        return Members(StateTable(state.spine("members", layout, BUDGET, alive)), tuple(keys), keep_duplicates)

    def add(self, rows: pa.RecordBatch, codes: Ints, ends: Ints, weights: Ints, number: int) -> int:
        """Take rows in, or out, in the order of arrival from this number on; returns the next number."""
        columns = {name: rows.column(name) for name in rows.schema.names if name in self.table.layout.columns}
        numbers = np.where(weights > 0, number + np.arange(len(codes)), LOWEST)
        computed = {CODE: pa.array(codes), END: pa.array(ends), WEIGHT: pa.array(weights), NUMBER: pa.array(numbers)}
        layout = self.table.layout
        table = pa.table({name: columns[name] if name in columns else computed[name] for name in layout.run_columns})
        stored = layout.sort(layout.rows(table))
        self.table.spine.add(stored if self.keep_duplicates else merge_equal_rows(stored, is_whole=False))
        return number + len(codes)

    def rows(self, codes: Ints) -> KeyedRows:
        """All rows of these codes (sorted, each once), in the order of their codes."""
        rows = self.table.read_rows(codes)
        rows = rows if self.keep_duplicates else merge_equal_rows(rows)
        return rows.where(rows.weights > 0)

    def group_members(self, keys: pa.RecordBatch, codes: Ints) -> tuple[GroupedRows, Ints]:
        """All rows of these groups, in the order of arrival, and which of the groups have any: those it numbers."""
        rows = self.rows(np.unique(codes))
        rows = rows.take(np.argsort(rows.attributes[NUMBER], kind="stable"))
        ids = np.zeros(len(rows), np.int64)
        if self.keys and len(rows):
            requested = pa.Table.from_batches([keys])
            both = concat_tables([requested, pa.Table.from_batches([rows.table]).select(list(self.keys))])
            numbers = key_ids(to_record_batch(both), self.keys)
            place = np.full(int(numbers.max()) + 1, -1)
            place[numbers[: len(codes)]] = np.arange(len(codes))
            ids = place[numbers[len(codes) :]]
            # Equal codes need not be equal keys.
            rows, ids = rows.where(ids >= 0), ids[ids >= 0]
        present, ids = np.unique(ids, return_inverse=True)
        existed = np.zeros(len(present), np.bool_)
        return GroupedRows(rows.table, ids.astype(np.int64), len(present), rows.weights, existed), present


def merge_equal_rows(rows: KeyedRows, *, is_whole: bool = True) -> KeyedRows:
    """Rows in the order of their codes with equal ones as one: their weights added, and the last number.

    Those of weight zero are gone, if these are all the rows there are. If not, they say where a row came last that went
    and came again in between.
    """
    if len(rows) < 2:
        return rows.where(rows.weights != 0) if is_whole else rows
    is_repeat = rows.codes[1:] == rows.codes[:-1]
    shared = np.append(is_repeat, False) | np.append(False, is_repeat)
    weights, numbers = rows.weights.copy(), rows.attributes[NUMBER].copy()
    positions, first = np.flatnonzero(shared), np.zeros(0, np.int64)
    if positions.size:
        repeated = rows.table.take(pa.array(positions))
        # The code follows from other columns.
        ids = row_ids(repeated.drop_columns([CODE]) if repeated.num_columns > 1 else repeated)
        first = first_positions(ids)
        totals, last = np.zeros(first.size, np.int64), np.full(first.size, LOWEST)
        np.add.at(totals, ids, weights[positions])
        np.maximum.at(last, ids, numbers[positions])
        weights[positions] = 0
        weights[positions[first]], numbers[positions[first]] = totals, last
    is_retained = weights != 0 if is_whole else ~shared
    if not is_whole:
        is_retained[positions[first]] = True
    return rows.with_attributes(**{WEIGHT: weights, NUMBER: numbers}).where(is_retained)
