"""The rows that a grouping emits: the changes of its table, and the groups that close with a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.aggregates import Function, function_of
from watersmeet.operators.core.changes import concat_tables, consolidate_changes
from watersmeet.operators.core.matching import Bools, Ints
from watersmeet.operators.group.arrivals import Accumulators, FoldPlan, Groups, take_keys
from watersmeet.operators.group.fold import is_identical, normalize_floats
from watersmeet.operators.group.groups import is_empty, is_newest
from watersmeet.operators.group.values import aggregate_values
from watersmeet.operators.state.layout import KeyedRows

if TYPE_CHECKING:
    from watersmeet.operators.group.kernel import GroupByOperator


def diff_groups(
    grouping: GroupByOperator, folding: FoldPlan, groups: Groups, is_open: Bools, *, keeps_zero_sign: bool
) -> tuple[pa.Table, ...]:
    """The retracted old rows, with -1, and the inserted new ones, with 1; ``is_open``: groups that have not closed.

    New rows of closed groups are left out if they cannot be in the requested top-N.
    """
    old, new = (
        _aggregate_columns(grouping, folding, accumulators, keeps_zero_sign=keeps_zero_sign)
        for accumulators in (groups.old, groups.new)
    )
    old = [_cast_like(one, other) for one, other in zip(old, new, strict=True)]
    visible = groups.visibility()
    changed = visible[0] != visible[1]
    for one, other in zip(old, new, strict=True):
        # Nested values that are equal but differ in their bits must be emitted: later retractions would not cancel out.
        changed |= True if pa.types.is_nested(other.type) else ~is_identical(one, other)
    is_retracted, is_inserted = (changed & some for some in visible)
    is_inserted[_find_outranked(grouping, groups.keys, new, np.flatnonzero(is_inserted & ~is_open))] = False
    tables = [
        _make_changes(grouping, groups.keys, part, some, weight)
        for part, some, weight in ((old, is_retracted, -1), (new, is_inserted, 1))
    ]
    if any(pa.types.is_nested(column.type) for column in new) and all(table.num_rows for table in tables):
        both = concat_tables(tables)
        tables = [consolidate_changes(both, both.column_names[:-1])]
    return tuple(table for table in tables if table.num_rows)


def final_groups(
    grouping: GroupByOperator, folding: FoldPlan, closed: KeyedRows | None, *, keeps_zero_sign: bool
) -> tuple[pa.Table, ...]:
    """The rows of groups that close with this batch, but for those that cannot be in the requested top-N."""
    if closed is None:
        return ()
    closed = closed.where(is_newest(closed, grouping.keys))
    closed = closed.where(~is_empty(closed.table, grouping.keys))
    if not len(closed):
        return ()
    keys = take_keys(grouping, closed.table, pa.array(np.arange(len(closed))), keeps_zero_sign=keeps_zero_sign)
    accumulators = [[closed.table.column(name) for name in fold] for fold in folding.names]
    values = _aggregate_columns(grouping, folding, accumulators, keeps_zero_sign=keeps_zero_sign)
    is_shown = np.ones(len(closed), np.bool_)
    is_shown[_find_outranked(grouping, keys, values, np.arange(len(closed)))] = False
    rows = pa.Table.from_arrays([*keys.columns, *values], names=[*keys.schema.names, *grouping.extra])
    return (rows.filter(pa.array(is_shown)),)


def _find_outranked(
    grouping: GroupByOperator, keys: pa.RecordBatch, columns: Sequence[pa.Array], final_rows: Ints
) -> Ints:
    """The positions of final rows that can never be in the requested top-N."""
    if grouping.requested_top_n is None or not final_rows.size:
        return final_rows[:0]
    outputs = [part.output for part in grouping.aggregates]
    by_name = dict(zip([*keys.schema.names, *outputs], [*keys.columns, *columns], strict=True))
    needed = dict.fromkeys((*grouping.requested_top_n.by, *(by.column for by in grouping.requested_top_n.order)))
    rows = pa.RecordBatch.from_arrays([by_name[name].take(pa.array(final_rows)) for name in needed], names=list(needed))
    return final_rows[~grouping.requested_top_n.find_candidates(rows)]


def _aggregate_columns(
    grouping: GroupByOperator, folding: FoldPlan, accumulators: Accumulators, *, keeps_zero_sign: bool
) -> list[pa.Array]:
    """The values of the aggregates."""
    columns = [
        aggregate_values(
            part.function, type_, accumulators[fold], f"{part.function}({', '.join(part.columns)})", part.constants
        )
        for part, type_, fold in zip(grouping.aggregates, folding.types, folding.fold_indices, strict=True)
    ]
    return columns if keeps_zero_sign else [normalize_floats(column) for column in columns]


def _make_changes(
    grouping: GroupByOperator, keys: pa.RecordBatch, columns: Sequence[pa.Array], is_shown: Bools, weight: int
) -> pa.Table:
    rows = pa.Table.from_arrays(
        [*keys.columns, *columns, pa.repeat(pa.scalar(weight, pa.int64()), len(is_shown))],
        names=[*keys.schema.names, *grouping.extra],
    )
    return rows.filter(pa.array(is_shown))


def make_initial_row(grouping: GroupByOperator) -> pa.Table:
    """The row of the group without keys before there are rows; the types of its values are not known yet."""
    shown = [_empty_value(function_of(part.function)) for part in grouping.aggregates]
    return _make_changes(grouping, pa.RecordBatch.from_arrays([], names=[]), shown, np.ones(1, np.bool_), 1)


def _empty_value(function: Function) -> pa.Array:
    """The value of an aggregate over no rows."""
    return pa.nulls(1) if function.nullable else pa.array([[]] if function.gives == "list" else [0])


def _cast_like(array: pa.Array, target: pa.Array) -> pa.Array:
    return pa.nulls(len(array), target.type) if pa.types.is_null(array.type) else array.cast(target.type)
