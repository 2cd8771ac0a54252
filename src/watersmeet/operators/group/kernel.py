"""GROUP BY: rows or changes in, the changes of a table with one row per group out.

Definition. A group is made of the rows whose key columns are equal, where NULL equals NULL, NaN equals NaN and -0.0
equals 0.0. The table shows each group that has rows: its keys, then an aggregate per column. Without key columns there
is one group, which is shown from the first batch on, also without rows: then its counts are 0, its lists and sets are
empty, and every other aggregate is NULL.

Input with weights is a changelog: a row counts as often as its weight says, and a negative weight retracts rows. For
aggregates that cannot be retracted (`Function.retractable`), the state holds the rows of the groups (`members`), with
the columns that the aggregates read. Where order matters, a row has the position of its last arrival, and equal rows
share one position. A group without rows disappears.

A batch emits the changes of the table: ``-`` the old row of a group, ``+`` its new one, and no change where they are
the same.

With a window, each row belongs to a window of event time, which is part of the key. A batch is one instant of a shard:
rows whose window ends at or before the watermark known before the batch are late, dropped and counted; the others are
folded in; then the watermarks of the batch are applied. Groups whose window ends at or before the watermark are dropped
from the state; their last row remains valid.

A stream can also be grouped by the start of a window of known length, or by its end: the groups then close by that key,
and the state needs no further column.

The bounds of windows have watermarks behind a grouping: no row of the table changes any more in which one of them is at
or before its watermark. A grouping over such a table whose keys have such a column closes groups by it, as by windows.

Where the consumer only needs the top-N, the row of a group that closes with a batch is left out if at least N rows of
other groups that close with it in this shard rank before it: none of these is ever retracted, so the row can never be
in the top-N.

Where the result is a stream (``emit`` is ``"final"``), a group is emitted once, without a weight, by the batch whose
watermark closes it, and never retracted; a group whose event time is NULL closes at the end of input. The watermark of
the result is just behind the last group that has closed.

A session window grows: each row brings its own window, and windows of one key that overlap or touch merge into one,
from the first start to the last end, whose row replaces theirs. Closed sessions do not merge.

Values are Spark's: ``sum`` of integers is a BIGINT, that of decimals exact, ``avg`` of decimals rounded half up; a
value that does not fit its type is an `ArithmeticError`. Sums, averages, variances and deviations are computed exactly
over the current rows and rounded once: they do not depend on order, batches, or rows that were retracted. In ``min_by``
and ``max_by``, the last row to arrive wins among equals. See `definition`, one row at a time.

`STATE_SCHEMA` describes what a state holds: a row per group with its accumulators and, where an aggregate needs them,
the rows of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.aggregates import (
    DISTINCT,
    Function,
    arrow_result,
    canonical_name,
    function_of,
    is_aggregate,
    needs_all_rows,
)
from watersmeet.operators.core.changes import (
    MULTIPLICITY,
    WEIGHT,
    concat_tables,
    consolidate_changes,
    first_positions,
    key_ids,
    row_codes,
)
from watersmeet.operators.core.condition import null_safe_equal_at
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64, stable_order
from watersmeet.operators.core.operator import (
    Emission,
    Emit,
    Port,
    StateOverflowError,
    StateStore,
    StreamOperator,
    Watermarks,
)
from watersmeet.operators.core.order import SortColumn, TopN
from watersmeet.operators.core.watermarks import delay_watermark
from watersmeet.operators.group.fold import (
    Count,
    Fold,
    GroupedRows,
    fold_of,
    is_identical,
    normalize_floats,
    normalize_keys,
    to_int64,
)
from watersmeet.operators.group.groups import (
    ARRIVAL,
    END,
    KEEPS_ZERO_SIGN,
    OWN,
    TYPES,
    Members,
    find_groups,
    is_empty,
    is_newest,
    move_rows,
    open_groups,
    session_bounds,
)
from watersmeet.operators.group.values import aggregate_values
from watersmeet.operators.state.format import decode_schema, encode_schema
from watersmeet.operators.state.layout import NO_WATERMARK, FinalityBound, KeyedRows, RowLayout, to_record_batch
from watersmeet.operators.state.shard import EndCounts, Shard, ends_after, rows_to_close
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.state_schema import (
    UNTIL_REPLACED,
    ExpiryTimes,
    ShardInspector,
    SpineSchema,
    StateSchema,
)
from watersmeet.operators.state.table import CODE, enforce_limit


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a group: the function by its SQL name, the columns it is applied to, and the result's name.

    ``count`` of no columns is ``count(*)``. ``min_by`` and ``max_by`` take two columns: the value, then the sort key.
    ``order``: what the rows of a group are ordered by, before their arrival, where the function depends on it; a
    percentile counts from the other end where it is descending. ``constants``: the fractions of percentiles, or the
    separator of texts.
    """

    function: str
    columns: tuple[str, ...]
    output: str
    order: tuple[SortColumn, ...] = ()
    constants: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        if not is_aggregate(self.function):
            raise ValueError(f"{self.function} is not an aggregate of a grouping")

    @property
    def kind(self) -> str:
        """The function's name among its synonyms."""
        return canonical_name(self.function)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads: its arguments, and what it orders rows by."""
        return (*self.columns, *(by.column for by in self.order))

    def describe(self, names: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """The function, its columns, order and constants as texts, with other names for the columns."""
        order = zip(names([by.column for by in self.order]), self.order, strict=True)
        keys = [f"ORDER BY {name}{' DESC' * by.descending}{' NULLS LAST' * by.nulls_last}" for name, by in order]
        return [self.kind, *names(self.columns), *keys, *map(repr, self.constants)]


@dataclass(frozen=True)
class GroupByOperator(StreamOperator):
    """A GROUP BY, ready to run: one port.

    The emission has the ``keys``, then the output of each aggregate, then ``#weight``: 1 for an inserted row, -1 for a
    retracted one.

    - ``keys``: the key columns, of any type; -0.0 is emitted as 0.0 in their floats, at every depth
    - ``aggregates``: the aggregates, in the order of their columns
    - ``code``: an int64 column that is equal wherever the keys are equal, NULLs included; None: it is computed
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column with the delivery order of a batch's rows, if ``first`` or ``last`` needs it; None: the
      rows are in that order
    - ``window_end``: a TIMESTAMP column with the end of the row's window, which follows from the keys; None: no windows
    - ``time``: the name of the watermark that closes windows; with it there is a ``window_end``, or a ``final_key``
    - ``session``: the key column of session windows, a start and an end: windows of equal other keys merge where they
      touch; arrivals then carry no weights, and the state stores the rows themselves
    - ``final_key``: a time column among the keys by which groups become final. Of a changelog it is also the name of
      its watermark; of a stream it is ``before_end`` the end of a window that the watermark of ``time`` closes
    - ``before_end``: a length in the unit of the key, 0 for the end itself
    - ``finality_outputs``: the watermarks that are emitted, each with its delay behind the one that closes windows; for
      a changelog, the watermarks of all such keys, as received
    - ``requested_top_n``: the top-N that the consumer needs, by columns of the emission; None: all rows
    - ``emit``: the changes of the table, or each group once, when it closes; the emission then has no ``#weight``
    - ``max_rows``: the maximum number of groups; one more fails the batch, since a group cannot be dropped

    >>> from watersmeet.tools.testing import MemoryStore
    >>> grouping = GroupByOperator(("k",), (Aggregate("count", (), "n"), Aggregate("sum", ("v",), "total")))
    >>> store = MemoryStore()
    >>> for values in ([3, 4], [5]):
    ...     arrivals = {0: pa.table({"k": ["a"] * len(values), "v": values})}
    ...     for table in grouping.step(store, arrivals, {}).rows:
    ...         print(table.to_pylist())
    [{'k': 'a', 'n': 2, 'total': 7, '#weight': 1}]
    [{'k': 'a', 'n': 2, 'total': 7, '#weight': -1}]
    [{'k': 'a', 'n': 3, 'total': 12, '#weight': 1}]
    """

    name: ClassVar[str] = "group"

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    code: str | None = None
    changes: bool = False
    position: str | None = None
    window_end: str | None = None
    time: str | None = None
    session: str | None = None
    final_key: str | None = None
    finality_outputs: tuple[tuple[str, int], ...] = ()
    before_end: int = 0
    requested_top_n: TopN | None = None
    emit: Emit = "changes"

    def __post_init__(self) -> None:
        is_bound = self.final_key is not None and not self.changes
        if self.final_key is not None and (
            is_bound != (self.time is not None) or self.window_end is not None or self.final_key not in self.keys
        ):
            raise ValueError("what is settled is a key of a table without windows of its own, or a bound of a window")
        if (self.window_end is None) != (self.time is None) and not is_bound:
            raise ValueError("a window has an end and a mark that ends it")
        if self.session is not None and (self.changes or self.time is None or self.session not in self.keys):
            raise ValueError("sessions are those of a stream, in a key that is a window")
        if self.emit == "final" and self.time is None:
            raise ValueError("groups that are emitted once are closed by the watermark of an event time")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @cached_property
    def all_rows_aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates that must see all rows of a group to know their value."""
        return tuple(part for part in self.aggregates if needs_all_rows(part.function, changes=self.is_weighted))

    @property
    def can_precombine(self) -> bool:
        """Whether one arrival may represent several equal ones: no aggregate depends on arrival order or stores rows.

        Such an arrival carries its count in `MULTIPLICITY`.
        """
        folds = {function_of(part.function).fold for part in self.aggregates}
        is_plain = self.position is None and not self.is_weighted and not self.all_rows_aggregates
        return is_plain and folds <= {"count", "sum", "moments", "least", "greatest"}

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """The watermark names of its final keys, where the input is a changelog."""
        return tuple(name for name, _ in self.finality_outputs) if self.time is None else ()

    @property
    def end_watermark(self) -> str | None:
        """The watermark that closes groups; None: groups never close."""
        return self.final_key if self.time is None else self.time

    def with_top_n(self, top_n: TopN) -> Self:
        """The same, if its groups end."""
        return self if self.end_watermark is None else replace(self, requested_top_n=top_n)

    @property
    def is_weighted(self) -> bool:
        """Whether rows can be retracted: those of a changelog, and those that move from one session to another."""
        return self.changes or self.session is not None

    @property
    def other_keys(self) -> tuple[str, ...]:
        """The keys within which sessions merge."""
        return tuple(name for name in self.keys if name != self.session)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port, if an aggregate depends on arrival order."""
        return frozenset() if self.position is None else frozenset({0})

    @property
    def ports(self) -> tuple[Port]:
        """The one there is; late rows are only counted."""
        return (Port(self.keys, () if self.time is None else (self.time,), self.keys, self.code),)

    @property
    def extra(self) -> tuple[str, ...]:
        """The outputs of the aggregates, and the weight, if groups are retracted."""
        return (*(part.output for part in self.aggregates), *((WEIGHT,) if self.emit == "changes" else ()))

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the aggregates, and of a weight."""
        types = (
            arrow_result(part.function, tuple(schemas[0].field(name).type for name in part.columns))
            for part in self.aggregates
        )
        return (*types, *((pa.int64(),) if self.emit == "changes" else ()))

    @property
    def identity(self) -> Identity:
        """The part of the grouping that determines the meaning of its state; names and order of its outputs do not."""
        names = self.canonical_names
        return self.make_identity(
            [self.keys],
            aggregates=sorted(part.describe(names.canonical_list) for part in self.aggregates),
            changes=self.changes,
            window_end=names.canonical_or_none(self.window_end),
            # Omitted without sessions, so that identities from before sessions existed stay equal.
            **({} if self.session is None else {"session": names.canonical_or_none(self.session)}),
            **({} if self.emit == "changes" else {"emit": self.emit}),
        )


# One batch of a GROUP BY in one shard: the groups it touches, with their accumulators before and after.


Accumulators = Sequence[Sequence[pa.Array]]
"""The accumulators of some groups, fold by fold."""


@dataclass(frozen=True)
class FoldPlan:
    """The folds that aggregates need, each once: the first counts rows.

    ``fold_indices``: for each aggregate, the fold that it takes its value from. ``types``: for each aggregate, the type
    of its first column. ``state_names``: the name of each fold's accumulators in the state. ``all_rows_folds``: the
    folds that read all rows of a group.
    """

    folds: tuple[Fold, ...] = ()
    fold_indices: tuple[int, ...] = ()
    types: tuple[pa.DataType | None, ...] = ()
    state_names: tuple[str, ...] = ()
    all_rows_folds: frozenset[Fold] = frozenset()

    @staticmethod
    def of(grouping: GroupByOperator, schema: pa.Schema) -> FoldPlan:
        """The folds that the aggregates need for arrivals with that schema."""
        aggregates = grouping.aggregates
        types = tuple(schema.field(name).type if name else None for name in first_columns(aggregates))
        wanted = [
            fold_of(a.function, a.columns, type_, a.order, a.constants)
            for a, type_ in zip(aggregates, types, strict=True)
        ]
        # The state has its own names, so that it survives a change of the order and names of the outputs.
        names = grouping.canonical_names
        names_by_fold: dict[Fold, str] = {Count(()): "count()"}
        names_by_fold |= {
            fold: _accumulator_name(a, names.canonical_list)
            for fold, a in zip(wanted, aggregates, strict=True)
        }
        folds = tuple(names_by_fold)
        all_rows_folds = frozenset(
            fold for fold, a in zip(wanted, aggregates, strict=True) if a in grouping.all_rows_aggregates
        )
        return FoldPlan(
            folds, tuple(folds.index(fold) for fold in wanted), types, tuple(names_by_fold.values()), all_rows_folds
        )

    @property
    def names(self) -> list[list[str]]:
        """The names of the accumulators, fold by fold."""
        named_folds = zip(self.folds, self.state_names, strict=True)
        return [[f"{name}#{place}" for place in range(fold.width)] for fold, name in named_folds]


def first_columns(aggregates: Sequence[Aggregate]) -> tuple[str | None, ...]:
    """The first column of each aggregate; None: it is applied to none."""
    return tuple(part.columns[0] if part.columns else None for part in aggregates)


def _accumulator_name(part: Aggregate, names: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """The name that aggregates with the same accumulators share: that of their fold, or of their own kind."""
    aggregate = function_of(part.function)
    # A separator is put between the values of a list that others share.
    part = part if aggregate.fold == "percentile" else replace(part, constants=())
    kind = aggregate.name if aggregate.fold in ("count", "bits", "percentile") else aggregate.fold
    kind = f"{aggregate.fold}{DISTINCT}" if aggregate.is_distinct else kind
    return f"{kind}({', '.join(part.describe(names)[1:])})"


@dataclass(frozen=True)
class Groups:
    """The groups that a batch touches, ordered by code, with their accumulators before and after the batch.

    ``was_stored``: which were in the state before; the group without keys exists from the first batch on, even without
    rows. ``ends``: the ends of their windows, `HIGHEST` without windows.
    """

    keys: pa.RecordBatch
    codes: Ints
    ends: Ints
    was_stored: Bools
    old: Accumulators
    new: Accumulators

    def visibility(self) -> tuple[Bools, Bools]:
        """Masks of the groups that the table showed before and shows now: those with rows, or the only one."""
        if not self.keys.num_columns:
            return self.was_stored, np.ones(len(self.codes), np.bool_)
        return self.was_stored & (to_int64(self.old[0][0]) > 0), to_int64(self.new[0][0]) > 0


def step(
    grouping: GroupByOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Process one batch of one shard (see the definition at the top of this module)."""
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
        groups = _fold_arrivals(
            grouping, folding, rows, spine, members, number, begun=bool(counts.counts), keeps_zero_sign=keeps_zero_sign
        )
        number += rows.num_rows
        stored = _encode_groups(spine.layout, groups)
        is_emptied = is_empty(stored.table, grouping.keys)
        is_open = np.ones(len(stored), np.bool_) if finality is None else finality.is_open(stored)
        # A group that closes with this batch is not stored, unless it is still to be emitted with the others.
        spine.add(stored.where((groups.was_stored | ~is_emptied) & (is_open | (grouping.emit == "final"))))
        counts = counts.with_changes(groups.ends, (~is_emptied).astype(np.int64) - groups.was_stored)
        if grouping.emit == "changes":
            changes = _diff_groups(grouping, folding, groups, is_open, keeps_zero_sign=keeps_zero_sign)
    elif not grouping.keys and not counts.counts:
        counts, changes = EndCounts({int(HIGHEST): 1}), (_make_initial_row(grouping),)
    if grouping.emit == "final" and finality is not None and types is not None:
        closed = rows_to_close(spine, finality, _previous_mark(grouping, shard), counts, grouping.before_end)
        changes = _final_groups(grouping, folding, closed, keeps_zero_sign=keeps_zero_sign)
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


def _finality_bound(grouping: GroupByOperator, shard: Shard) -> FinalityBound | None:
    """The bound that says which groups close with this batch; None: groups never close."""
    if grouping.end_watermark is None:
        return None
    watermark = shard.watermarks_after.received.get(grouping.end_watermark, NO_WATERMARK)
    if watermark != NO_WATERMARK:
        watermark = delay_watermark(watermark, grouping.before_end)
    return FinalityBound(grouping.final_key or END, watermark)


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


def _previous_mark(grouping: GroupByOperator, shard: Shard) -> int:
    """The value of the time column up to which groups had closed before this batch."""
    watermark = shard.watermarks_before.received.get(str(grouping.time), NO_WATERMARK)
    return watermark if watermark == NO_WATERMARK else delay_watermark(watermark, grouping.before_end)


def _final_groups(
    grouping: GroupByOperator, folding: FoldPlan, closed: KeyedRows | None, *, keeps_zero_sign: bool
) -> tuple[pa.Table, ...]:
    """The rows of groups that close with this batch, but for those that cannot be in the requested top-N."""
    if closed is None:
        return ()
    closed = closed.where(is_newest(closed, grouping.keys))
    closed = closed.where(~is_empty(closed.table, grouping.keys))
    if not len(closed):
        return ()
    keys = _take_keys(grouping, closed.table, pa.array(np.arange(len(closed))), keeps_zero_sign=keeps_zero_sign)
    accumulators = [[closed.table.column(name) for name in fold] for fold in folding.names]
    values = _aggregate_columns(grouping, folding, accumulators, keeps_zero_sign=keeps_zero_sign)
    is_shown = np.ones(len(closed), np.bool_)
    is_shown[_find_outranked(grouping, keys, values, np.arange(len(closed)))] = False
    rows = pa.Table.from_arrays([*keys.columns, *values], names=[*keys.schema.names, *grouping.extra])
    return (rows.filter(pa.array(is_shown)),)


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
        ends = _ends(grouping, rows) if grouping.window_end is None else as_int64(rows.column(grouping.window_end))
        rows = rows.filter(pa.array(ends > watermark))
        shard.counters.late[0] = shard.counters.rows[0] - _count_rows(rows)
    return rows if rows.num_rows else None


def _count_rows(rows: pa.RecordBatch) -> int:
    """The number of rows, where a precombined row counts as its multiplicity."""
    return int(rows.column(MULTIPLICITY).to_numpy().sum()) if MULTIPLICITY in rows.schema.names else rows.num_rows


def _weights(grouping: GroupByOperator, rows: pa.RecordBatch) -> Ints:
    """The weight of each row, or its multiplicity."""
    if grouping.is_weighted or MULTIPLICITY in rows.schema.names:
        return as_int64(rows.column(WEIGHT if grouping.is_weighted else MULTIPLICITY))
    number: int = rows.num_rows
    return np.ones(number, np.int64)


def _fold_arrivals(
    grouping: GroupByOperator,
    folding: FoldPlan,
    rows: pa.RecordBatch,
    spine: Spine,
    members: Members | None,
    number: int,
    *,
    begun: bool,
    keeps_zero_sign: bool,
) -> Groups:
    """The groups of these rows, with the rows folded in; ``begun``: this is not the first batch.

    Rows that an aggregate must read again are added to ``members``, numbered from ``number``.
    """
    ids, first, codes = _assign_groups(grouping, rows)
    batch_keys = _take_keys(grouping, rows, pa.array(first), keeps_zero_sign=keeps_zero_sign)
    ends = _ends(grouping, rows)[first]
    stored_groups, places = find_groups(spine, batch_keys, codes, None if grouping.session is None else ends)
    was_stored = places >= 0
    keys, old = batch_keys, [[pa.nulls(len(places))] * fold.width for fold in folding.folds]
    if stored_groups is not None:
        positions = pa.array(places, mask=~was_stored)
        keys = _prefer_stored_keys(
            batch_keys, _take_keys(grouping, stored_groups, positions, keeps_zero_sign=keeps_zero_sign), was_stored
        )
        old = [[stored_groups.column(name).take(positions) for name in fold] for fold in folding.names]
    weights = _weights(grouping, rows)
    grouped = GroupedRows(rows, ids, len(codes), weights, was_stored)
    all_rows: tuple[GroupedRows, Ints] | None = None
    if members is not None:
        each = _take_keys(grouping, rows, pa.array(np.arange(len(ids))), keeps_zero_sign=keeps_zero_sign)
        columns = {name: rows.column(name) for name in rows.schema.names} | dict(
            zip(grouping.keys, each.columns, strict=True)
        )
        members.add(pa.RecordBatch.from_pydict(columns), codes[ids], ends[ids], weights, number)
        all_rows = members.group_members(keys, codes)
    new = [
        _fold_all_rows(fold, all_rows, grouped)
        if all_rows is not None and fold in folding.all_rows_folds
        else fold.fold(grouped, before)
        for fold, before in zip(folding.folds, old, strict=True)
    ]
    return Groups(keys, codes, ends, was_stored if grouping.keys else np.full(len(codes), begun), old, new)


def _ends(grouping: GroupByOperator, rows: pa.RecordBatch) -> Ints:
    """The end of each row's window, or what else a group ends by; the highest number without."""
    if grouping.session is not None:
        return session_bounds(rows.column(grouping.session))[1]
    if grouping.final_key is not None:
        return ends_after(as_int64(rows.column(grouping.final_key)), grouping.before_end)
    end = grouping.window_end
    return np.full(len(rows), HIGHEST) if end is None else as_int64(rows.column(end))


def _fold_all_rows(fold: Fold, all_rows: tuple[GroupedRows, Ints], arrived: GroupedRows) -> list[pa.Array]:
    """The accumulators of a fold over all rows of the groups of ``arrived``; NULL for a group without rows."""
    rows, present = all_rows
    places = np.full(arrived.groups, -1)
    places[present] = np.arange(present.size)
    if not present.size:
        # No rows are left: fold any row, only for the types.
        zero = np.zeros(1, np.int64)
        rows = GroupedRows(arrived.table.slice(0, 1), zero, 1, zero + 1, np.zeros(1, np.bool_))
    positions = pa.array(places, mask=places < 0)
    return [column.take(positions) for column in fold.fold(rows, [pa.nulls(rows.groups)] * fold.width)]


def _assign_groups(grouping: GroupByOperator, rows: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
    """The group number of each row, and the first row and the code of each group; groups are numbered by code."""
    code = grouping.code if grouping.session is None else CODE
    # Those of sessions are of their other keys.
    if code is not None and grouping.session is None:
        by_code = _assign_groups_by_code(grouping, rows, as_int64(rows.column(code)))
        if by_code is not None:
            return by_code
    ids = key_ids(rows, grouping.keys)
    first = first_positions(ids)
    if code is not None:
        codes = as_int64(rows.column(code))[first]
    else:
        # Whether -0.0 is shown as 0.0 makes no difference to a code.
        keys = _take_keys(grouping, rows, pa.array(first), keeps_zero_sign=False)
        codes = row_codes(keys, grouping.keys) if grouping.keys else first
    order = stable_order(codes)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[ids], first[order], codes[order]


def _assign_groups_by_code(
    grouping: GroupByOperator, rows: pa.RecordBatch, codes: Ints
) -> tuple[Ints, Ints, Ints] | None:
    """The same where equal codes imply equal keys, which is quicker to check; None: some keys differ."""
    order = stable_order(codes)
    codes = codes[order]
    repeats = np.flatnonzero(codes[1:] == codes[:-1]) + 1
    keys = [rows.column(name) for name in grouping.keys]
    if not null_safe_equal_at(keys, order[repeats], keys, order[repeats - 1]).all():
        return None
    begins = np.ones(len(codes), np.bool_)
    begins[repeats] = False
    ids = np.empty(len(codes), np.int64)
    ids[order] = np.cumsum(begins) - 1
    return ids, order[begins], codes[begins]


def _take_keys(
    grouping: GroupByOperator, rows: pa.RecordBatch, positions: pa.Array, *, keeps_zero_sign: bool
) -> pa.RecordBatch:
    normalize = normalize_keys if keeps_zero_sign else normalize_floats
    taken = [normalize(rows.column(name).take(positions)) for name in grouping.keys]
    return pa.RecordBatch.from_arrays(taken, names=list(grouping.keys))


def _encode_groups(layout: RowLayout, groups: Groups) -> KeyedRows:
    """The groups in the layout of the state."""
    accumulators = (part for fold in groups.new for part in fold)
    columns = [*groups.keys.columns, *accumulators, pa.array(groups.codes), pa.array(groups.ends)]
    names = layout.columns if END in layout.columns else (*layout.columns, END)
    return layout.rows(pa.RecordBatch.from_arrays(columns, names=list(names)))


def _diff_groups(
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


def _make_initial_row(grouping: GroupByOperator) -> pa.Table:
    """The row of the group without keys before there are rows; the types of its values are not known yet."""
    shown = [_empty_value(function_of(part.function)) for part in grouping.aggregates]
    return _make_changes(grouping, pa.RecordBatch.from_arrays([], names=[]), shown, np.ones(1, np.bool_), 1)


def _empty_value(function: Function) -> pa.Array:
    """The value of an aggregate over no rows."""
    return pa.nulls(1) if function.nullable else pa.array([[]] if function.gives == "list" else [0])


def _prefer_stored_keys(new_keys: pa.RecordBatch, stored_keys: pa.RecordBatch, was_stored: Bools) -> pa.RecordBatch:
    """The keys as stored, so that a retraction equals the emitted row; new groups keep the given keys."""
    positions = pa.array(np.arange(len(was_stored)) + np.where(was_stored, len(was_stored), 0))
    columns = [
        pa.concat_arrays([new, old.cast(new.type)]).take(positions) if _has_floats(new.type) else new
        for new, old in zip(new_keys.columns, stored_keys.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=new_keys.schema.names)


def _has_floats(kind: pa.DataType) -> bool:
    """Whether a type holds floats, of which -0.0 and 0.0 are equal."""
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _cast_like(array: pa.Array, target: pa.Array) -> pa.Array:
    return pa.nulls(len(array), target.type) if pa.types.is_null(array.type) else array.cast(target.type)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The groups, or the rows of groups."""
    (port,) = identity["ports"]
    keys = tuple(port.get("keys", ()))
    times = port.get("times", ())
    if not times:
        ends = "forever" if not identity["changes"] else "until the last row of the group is deleted"
        return SpineSchema(
            0, ends if name == "groups" else UNTIL_REPLACED, "newest" if name == "groups" else "weights", keys=keys
        )
    ends, rule = "until the watermark reaches the end of the window", "newest" if name == "groups" else "weights"
    return SpineSchema(0, ends, rule, partial(_until, times[0]), keys)


def _until(time: str, rows: pa.RecordBatch) -> ExpiryTimes:
    # A window closes when the watermark reaches its end, not when it passes it.
    return {time: as_int64(rows.column(END)) - 1} if END in rows.schema.names else {}


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The number of groups by end time, and the next arrival number of all shards."""
    rows = look.rows("groups", spine(identity, "groups"))
    ends = np.zeros(0, np.int64)
    if rows is not None:
        is_windowed = END in rows.table.schema.names
        ends = as_int64(rows.table.column(END)) if is_windowed else np.full(len(rows), HIGHEST)
    counted = EndCounts().with_changes(ends, np.ones(ends.size, np.int64))
    arrivals = [int(part["number"]) for part in parts if "number" in part]
    types = [part[TYPES] for part in parts if TYPES in part]
    all_keep = all(part.get(KEEPS_ZERO_SIGN) for part in parts if part)
    return {
        **counted.numbers,
        **({"number": max(arrivals)} if arrivals else {}),
        **({KEEPS_ZERO_SIGN: 1} if all_keep else {}),
        **({TYPES: types[0]} if types else {}),
    }


STATE_SCHEMA = StateSchema(("group",), spine, numbers=numbers)
