"""One batch of a grouping in one shard: which groups it touches, what they were, what they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, consolidated, joined_tables, key_ids, row_codes
from watersmeet.joins.core.condition import same
from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.group.fold import Count, Fold, Grouped, fold_of, numbers
from watersmeet.joins.group.state import CODE, END, GroupState
from watersmeet.joins.group.values import plain, values
from watersmeet.joins.state.layout import Layout, as_int64

if TYPE_CHECKING:
    from watersmeet.joins.group.operator import GroupBy


@dataclass(frozen=True)
class GroupBatch:
    """The rows of a batch in the order of arrival, and the folds that the aggregates need, each once.

    The first fold counts rows. ``uses`` says for each aggregate which fold it takes its value from, ``types`` what the
    type of its first column is.
    """

    grouping: GroupBy
    rows: pa.RecordBatch
    folds: tuple[Fold, ...]
    uses: tuple[int, ...]
    types: tuple[pa.DataType | None, ...]

    @staticmethod
    def of(grouping: GroupBy, table: pa.Table) -> GroupBatch:
        """The batch that these arrivals make."""
        aggregates = grouping.aggregates
        read = (*grouping.keys, *(name for part in aggregates for name in part.columns))
        further = (grouping.code, grouping.position, grouping.window_end, WEIGHT if grouping.changes else None)
        columns = tuple(dict.fromkeys((*read, *(name for name in further if name is not None))))
        # Without a column to read a batch would not know how many rows it has.
        rows = Layout(columns or tuple(table.column_names[:1]), (), "", None).rows(table).table
        if grouping.position is not None:
            rows = rows.take(pa.array(np.argsort(as_int64(rows.column(grouping.position)), kind="stable")))
        types = tuple(table.schema.field(part.columns[0]).type if part.columns else None for part in aggregates)
        wanted = [fold_of(a.function, a.columns, type_) for a, type_ in zip(aggregates, types, strict=True)]
        # In an order of their own, so that a state outlives the order and the names of what is shown.
        names = grouping.canonical
        told = {
            fold: repr(fold_of(a.function, tuple(names.listed(a.columns)), type_))
            for fold, a, type_ in zip(wanted, aggregates, types, strict=True)
        }
        folds = (Count(()), *sorted(told.keys() - {Count(())}, key=told.__getitem__))
        return GroupBatch(grouping, rows, folds, tuple(folds.index(fold) for fold in wanted), types)

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The names of all accumulators, one fold behind the other."""
        return tuple(name for number in range(len(self.folds)) for name in self._names(number))

    def in_time(self, mark: int) -> tuple[GroupBatch, int]:
        """The rows whose windows end after the mark, and how many do not."""
        if self.grouping.window_end is None:
            return self, 0
        alive = as_int64(self.rows.column(self.grouping.window_end)) > mark
        return replace(self, rows=self.rows.filter(pa.array(alive))), int((~alive).sum())

    def fold(self, state: GroupState) -> tuple[pa.Table, ...]:
        """Fold the rows into their groups; gives the old rows of the table that go, and the new ones that come."""
        if not self.rows.num_rows:
            return ()
        ids, first, codes = self._groups()
        given = self._keys(self.rows, pa.array(first))
        found, places = state.find(given, codes)
        is_known = places >= 0
        old = self._before(found, places)
        weights = self.rows.column(WEIGHT).to_numpy() if self.grouping.changes else np.ones(len(ids), np.int64)
        grouped = Grouped(self.rows, ids, len(codes), weights, is_known)
        new = [fold.fold(grouped, before) for fold, before in zip(self.folds, old, strict=True)]
        keys = given if found is None else _chosen(given, self._keys(found, pa.array(places, mask=~is_known)), is_known)
        is_gone = numbers(new[0][0]) == 0 if self.grouping.keys else np.zeros(len(codes), np.bool_)
        state.put(self._stored(keys, new, codes, first), is_known, is_gone)
        return self._changes(keys, (old, new), (self._is_shown(old) & is_known, self._is_shown(new) & ~is_gone))

    def _groups(self) -> tuple[Ints, Ints, Ints]:
        """For each row the number of its group, for each group its first row and its code; numbers are by code."""
        ids = key_ids(self.rows, self.grouping.keys)
        _, first, ids = np.unique(ids, return_index=True, return_inverse=True)
        if self.grouping.code is None:
            codes = (
                row_codes(self._keys(self.rows, pa.array(first)), self.grouping.keys) if self.grouping.keys else first
            )
        else:
            codes = as_int64(self.rows.column(self.grouping.code))[first]
        order = np.argsort(codes, kind="stable")
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        return number[ids], first[order], codes[order]

    def _keys(self, rows: pa.RecordBatch | pa.Table, positions: pa.Array) -> pa.RecordBatch:
        taken = [plain(_whole(rows.column(name)).take(positions)) for name in self.grouping.keys]
        return pa.RecordBatch.from_arrays(taken, names=list(self.grouping.keys))

    def _names(self, number: int) -> tuple[str, ...]:
        return tuple(f"#{number}.{place}" for place in range(self.folds[number].width))

    def _before(self, found: pa.Table | None, places: Ints) -> list[list[pa.Array]]:
        """The accumulators of each fold as they were, NULL for groups that were not there."""
        if found is None:
            return [[pa.nulls(len(places))] * fold.width for fold in self.folds]
        positions = pa.array(places, mask=places < 0)
        taken = found.take(positions)
        return [[_whole(taken.column(name)) for name in self._names(number)] for number in range(len(self.folds))]

    def _stored(self, keys: pa.RecordBatch, new: list[list[pa.Array]], codes: Ints, first: Ints) -> pa.Table:
        end = self.grouping.window_end
        ends = np.full(len(codes), HIGHEST) if end is None else as_int64(self.rows.column(end))[first]
        columns = [*keys.columns, *(part for fold in new for part in fold), pa.array(codes), pa.array(ends)]
        return pa.Table.from_arrays(columns, names=[*keys.schema.names, *self.accumulators, CODE, END])

    def _is_shown(self, accumulators: list[list[pa.Array]]) -> Bools:
        """Which groups the table shows: those with rows; without keys, the one there is."""
        return numbers(accumulators[0][0]) > 0 if self.grouping.keys else np.ones(len(accumulators[0][0]), np.bool_)

    def _changes(
        self,
        keys: pa.RecordBatch,
        accumulators: tuple[list[list[pa.Array]], list[list[pa.Array]]],
        is_shown: tuple[Bools, Bools],
    ) -> tuple[pa.Table, ...]:
        """The old rows that are shown no longer, with -1, and the new ones, with 1."""
        old, new = ([self._values(number, of) for number in range(len(self.uses))] for of in accumulators)
        changed = is_shown[0] != is_shown[1]
        for one, other in zip(old, new, strict=True):
            # What is equal but not the same bit by bit, deep inside, must be told: it would not cancel out later.
            changed |= True if pa.types.is_nested(other.type) else ~same(_like(one, other), other)
        tables = [
            self._told(keys, part, changed & shown, weight)
            for part, shown, weight in zip((old, new), is_shown, (-1, 1), strict=True)
        ]
        if any(pa.types.is_nested(column.type) for column in new) and all(table.num_rows for table in tables):
            together = joined_tables(tables)
            tables = [consolidated(together, together.column_names[:-1])]
        return tuple(table for table in tables if table.num_rows)

    def _values(self, number: int, accumulators: list[list[pa.Array]]) -> pa.Array:
        """The values of one aggregate."""
        part = self.grouping.aggregates[number]
        shown = f"{part.function}({', '.join(part.columns)})"
        return values(part.function, self.types[number], accumulators[self.uses[number]], shown)

    def _told(self, keys: pa.RecordBatch, columns: Sequence[pa.Array], some: Bools, weight: int) -> pa.Table:
        rows = pa.Table.from_arrays(
            [*keys.columns, *columns, pa.repeat(pa.scalar(weight, pa.int64()), len(some))],
            names=[*keys.schema.names, *self.grouping.extra],
        )
        return rows.filter(pa.array(some))


def _chosen(given: pa.RecordBatch, stored: pa.RecordBatch, is_known: Bools) -> pa.RecordBatch:
    """The keys of groups as they were stored, if they were, so that a row leaves exactly as it came; else as given."""
    positions = pa.array(np.arange(len(is_known)) + np.where(is_known, len(is_known), 0))
    columns = [
        pa.concat_arrays([new, old.cast(new.type)]).take(positions)
        for new, old in zip(given.columns, stored.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=given.schema.names)


def _like(one: pa.Array, other: pa.Array) -> pa.Array:
    return pa.nulls(len(one), other.type) if pa.types.is_null(one.type) else one.cast(other.type)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
