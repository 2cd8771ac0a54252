"""One batch of a GROUP BY in one shard: arrivals are admitted and folded in, changes emitted, and groups closed.

The emitted rows are the changes of the table, and the groups that close with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.aggregate_values import aggregate_values, normalize_floats
from watersmeet.operators.core.aggregates import Function, function_of
from watersmeet.operators.core.changes import MULTIPLICITY, WEIGHT, concat_tables, consolidate_changes
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64
from watersmeet.operators.core.operator import Emission, StateOverflowError, StateStore, Watermarks
from watersmeet.operators.core.watermarks import delay_watermark
from watersmeet.operators.group.arrivals import (
    Accumulators,
    FoldPlan,
    Groups,
    encode_groups,
    first_columns,
    fold_arrivals,
    take_keys,
    window_ends,
)
from watersmeet.operators.group.fold import is_identical
from watersmeet.operators.group.groups import (
    ARRIVAL,
    END,
    KEEPS_ZERO_SIGN,
    OWN,
    TYPES,
    Members,
    is_empty,
    is_newest,
    move_rows,
    open_groups,
)
from watersmeet.operators.state.format import decode_schema, encode_schema
from watersmeet.operators.state.layout import NO_WATERMARK, FinalityBound, KeyedRows, to_record_batch
from watersmeet.operators.state.shard import EndCounts, Shard, ends_after, rows_to_close
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.table import enforce_limit

if TYPE_CHECKING:
    from watersmeet.operators.group.kernel import GroupByOperator


def step(
    grouping: GroupByOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Process one batch of one shard (see the definition at the top of `kernel`)."""
    shard = Shard(grouping, store, watermarks)
    finality = _finality_bound(grouping, shard)
    rows = _admit_arrivals(grouping, shard, arrivals.get(0))
    types = _argument_types(grouping, shard, rows)
    folding = FoldPlan() if types is None else FoldPlan.of(grouping, types)
    names = [name for fold in folding.names for name in fold]
    spine = open_groups(shard.state, grouping.keys, names, finality)
    counts = EndCounts.of(shard.state.directory.numbers)
    number = int(shard.state.directory.numbers.get("number", 0))
    keeps_zero_sign = shard.state.directory.is_blank or bool(shard.state.directory.numbers.get(KEEPS_ZERO_SIGN))
    members = _open_members(grouping, shard, finality)
    changes: tuple[pa.Table, ...] = ()
    if rows is not None:
        if grouping.session is not None and members is not None and grouping.time is not None:
            before = shard.watermarks_before.received.get(grouping.time, NO_WATERMARK)
            rows = move_rows(grouping, rows, members, before, number)
        groups = fold_arrivals(
            grouping, folding, rows, spine, members, number, begun=bool(counts.counts), keeps_zero_sign=keeps_zero_sign
        )
        number += rows.num_rows
        stored = encode_groups(spine.layout, groups)
        is_emptied = is_empty(stored.table, grouping.keys)
        is_open = np.ones(len(stored), np.bool_) if finality is None else finality.is_open(stored)
        # A group that closes with this batch is not stored, unless it is still to be emitted with the others.
        spine.add(stored.where((groups.was_stored | ~is_emptied) & (is_open | (grouping.emit == "final"))))
        counts = counts.with_changes(groups.ends, (~is_emptied).astype(np.int64) - groups.was_stored)
        if grouping.emit == "changes":
            changes = diff_groups(grouping, folding, groups, is_open, keeps_zero_sign=keeps_zero_sign)
    elif not grouping.keys and not counts.counts:
        counts, changes = EndCounts({int(HIGHEST): 1}), (make_initial_row(grouping),)
    if grouping.emit == "final" and finality is not None and types is not None:
        closed = rows_to_close(spine, finality, _previous_mark(grouping, shard), counts, grouping.before_end)
        changes = final_groups(grouping, folding, closed, keeps_zero_sign=keeps_zero_sign)
    spine.expire(finality)
    if members is not None:
        members.table.spine.expire(finality)
    counts = _close_counts(grouping, shard, counts, finality, spine, members, has_rows=rows is not None)
    total = counts.total
    if grouping.max_rows is not None and total > grouping.max_rows:
        raise StateOverflowError((total,), grouping.max_rows)
    if members is not None:
        enforce_limit([members.table], grouping.max_rows)
    shard.counters.matched = sum(table.num_rows for table in changes)
    directory_numbers = {
        **counts.numbers,
        **({"number": number} if members is not None else {}),
        **({KEEPS_ZERO_SIGN: 1} if keeps_zero_sign else {}),
        **({TYPES: _encode_types(grouping, types)} if grouping.emit == "final" and types is not None else {}),
    }
    return shard.close(
        _final_watermarks(grouping, shard.watermarks_after.received), changes, (total,), directory_numbers
    )


def _open_members(grouping: GroupByOperator, shard: Shard, finality: FinalityBound | None) -> Members | None:
    """The stored rows of the groups, if an aggregate must read all of them."""
    if grouping.session is not None:
        columns = [*(name for part in grouping.aggregates for name in part.inputs), OWN, ARRIVAL]
        return Members.of(shard.state, grouping.keys, columns, finality, keep_duplicates=False)
    columns = [name for part in grouping.all_rows_aggregates for name in part.inputs]
    # Without retractions, only a list distinguishes equal rows.
    keep_duplicates = not grouping.changes and any(
        function_of(part.function).fold == "list" for part in grouping.all_rows_aggregates
    )
    return (
        Members.of(shard.state, grouping.keys, columns, finality, keep_duplicates=keep_duplicates)
        if grouping.all_rows_aggregates
        else None
    )


def _admit_arrivals(grouping: GroupByOperator, shard: Shard, table: pa.Table | None) -> pa.RecordBatch | None:
    """The needed columns of the arrivals, in delivery order, without late rows; None: no rows are left."""
    if table is None:
        return None
    read = (*grouping.keys, *(name for part in grouping.aggregates for name in part.inputs))
    other_columns = (
        grouping.code, grouping.position, grouping.window_end, WEIGHT if grouping.changes else None,
        MULTIPLICITY if MULTIPLICITY in table.column_names else None,
    )  # fmt: skip
    columns = tuple(dict.fromkeys((*read, *(name for name in other_columns if name is not None))))
    # Without a column to read a batch would not know how many rows it has.
    rows = to_record_batch(table.select(list(columns or table.column_names[:1])))
    shard.counters.rows[0] = _count_rows(rows)
    if grouping.position is not None:
        rows = rows.take(pa.array(np.argsort(as_int64(rows.column(grouping.position)), kind="stable")))
    if grouping.time is not None:
        watermark = shard.watermarks_before.received.get(grouping.time, NO_WATERMARK)
        ends = (
            window_ends(grouping, rows) if grouping.window_end is None else as_int64(rows.column(grouping.window_end))
        )
        rows = rows.filter(pa.array(ends > watermark))
        shard.counters.late[0] = shard.counters.rows[0] - _count_rows(rows)
    return rows if rows.num_rows else None


def _count_rows(rows: pa.RecordBatch) -> int:
    """The number of rows, where a precombined row counts as its multiplicity."""
    return int(rows.column(MULTIPLICITY).to_numpy().sum()) if MULTIPLICITY in rows.schema.names else rows.num_rows


def _argument_types(grouping: GroupByOperator, shard: Shard, rows: pa.RecordBatch | None) -> pa.Schema | None:
    """The types of what the aggregates read, those of earlier batches without arrivals; None: they are not known.

    A batch without arrivals may close groups, whose values depend on these types.
    """
    if rows is not None:
        return rows.schema
    value = shard.state.directory.numbers.get(TYPES)
    if value is None:
        return None
    stored = decode_schema(value)
    names = grouping.canonical_names
    return pa.schema([(name, stored.field(names.canonical(name)).type) for name in _argument_names(grouping)])


def _argument_names(grouping: GroupByOperator) -> list[str]:
    return sorted({name for name in first_columns(grouping.aggregates) if name is not None})


def _encode_types(grouping: GroupByOperator, types: pa.Schema) -> str:
    names = grouping.canonical_names
    schema = pa.schema(sorted((names.canonical(name), types.field(name).type) for name in _argument_names(grouping)))
    return encode_schema(schema)


def _finality_bound(grouping: GroupByOperator, shard: Shard) -> FinalityBound | None:
    """The bound that says which groups close with this batch; None: groups never close."""
    if grouping.end_watermark is None:
        return None
    watermark = shard.watermarks_after.received.get(grouping.end_watermark, NO_WATERMARK)
    if watermark != NO_WATERMARK:
        watermark = delay_watermark(watermark, grouping.before_end)
    return FinalityBound(grouping.final_key or END, watermark)


def _previous_mark(grouping: GroupByOperator, shard: Shard) -> int:
    """The value of the time column up to which groups had closed before this batch."""
    watermark = shard.watermarks_before.received.get(str(grouping.time), NO_WATERMARK)
    return watermark if watermark == NO_WATERMARK else delay_watermark(watermark, grouping.before_end)


def _close_counts(
    grouping: GroupByOperator,
    shard: Shard,
    counts: EndCounts,
    finality: FinalityBound | None,
    spine: Spine,
    members: Members | None,
    *,
    has_rows: bool,
) -> EndCounts:
    """The counts of the groups that are left after a batch."""
    if grouping.final_key is not None and int(HIGHEST) in counts.counts and has_rows:
        # The state was written without that final key, or by other shards.
        if grouping.time is not None:
            for old in (spine, *(() if members is None else (members.table.spine,))):
                old.compact()
        counts = _count_ends(spine, grouping.final_key, grouping.before_end)
    if finality is not None:
        closed_by = shard.watermarks_after.received.get(str(grouping.end_watermark), NO_WATERMARK)
        counts = counts.open_after(closed_by)
        if grouping.max_rows is not None and counts.grain > 1 and counts.total > grouping.max_rows and has_rows:
            # The total may still count groups that have closed.
            counts = _count_ends(spine, finality.time, grouping.before_end).open_after(closed_by)
    return counts


def _count_ends(spine: Spine, time: str, before_end: int) -> EndCounts:
    """The number of groups by end time, counted from the state."""
    counts = EndCounts()
    for rows in spine.merge_runs():
        counts = counts.with_changes(ends_after(rows.times[time], before_end), np.ones(len(rows), np.int64))
    return counts


def _final_watermarks(grouping: GroupByOperator, received: Watermarks) -> Watermarks:
    """The watermarks that the grouping emits: groups at or before them no longer change."""
    if grouping.time is None:
        return {name: received[name] for name, _ in grouping.finality_outputs if name in received}
    if grouping.time not in received:
        return {}
    # A time of a stream may still come when it is at the watermark, and a closed group may not.
    next_ = 1 if grouping.emit == "final" else 0
    return {
        name: delay_watermark(received[grouping.time], behind - next_) for name, behind in grouping.finality_outputs
    }


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
