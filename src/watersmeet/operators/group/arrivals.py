"""The folding of arrivals into groups: which folds a grouping needs, and the groups of a batch before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.aggregate_values import normalize_floats, normalize_keys, to_int64
from watersmeet.operators.core.aggregates import DISTINCT, function_of
from watersmeet.operators.core.changes import MULTIPLICITY, WEIGHT, first_positions, key_ids, row_codes
from watersmeet.operators.core.condition import null_safe_equal_at
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64, stable_order
from watersmeet.operators.group.fold import Count, Fold, GroupedRows, fold_of
from watersmeet.operators.group.groups import END, Members, find_groups, session_bounds
from watersmeet.operators.state.layout import KeyedRows, RowLayout
from watersmeet.operators.state.shard import ends_after
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.table import CODE

if TYPE_CHECKING:
    from watersmeet.operators.core.aggregates import Aggregate
    from watersmeet.operators.group.kernel import GroupByOperator


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
            fold: _accumulator_name(a, names.canonical_list) for fold, a in zip(wanted, aggregates, strict=True)
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


def fold_arrivals(
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
    batch_keys = take_keys(grouping, rows, pa.array(first), keeps_zero_sign=keeps_zero_sign)
    ends = window_ends(grouping, rows)[first]
    stored_groups, places = find_groups(spine, batch_keys, codes, None if grouping.session is None else ends)
    was_stored = places >= 0
    keys, old = batch_keys, [[pa.nulls(len(places))] * fold.width for fold in folding.folds]
    if stored_groups is not None:
        positions = pa.array(places, mask=~was_stored)
        keys = _prefer_stored_keys(
            batch_keys, take_keys(grouping, stored_groups, positions, keeps_zero_sign=keeps_zero_sign), was_stored
        )
        old = [[stored_groups.column(name).take(positions) for name in fold] for fold in folding.names]
    weights = _weights(grouping, rows)
    grouped = GroupedRows(rows, ids, len(codes), weights, was_stored)
    all_rows: tuple[GroupedRows, Ints] | None = None
    if members is not None:
        each = take_keys(grouping, rows, pa.array(np.arange(len(ids))), keeps_zero_sign=keeps_zero_sign)
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
        keys = take_keys(grouping, rows, pa.array(first), keeps_zero_sign=False)
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


def take_keys(
    grouping: GroupByOperator, rows: pa.RecordBatch, positions: pa.Array, *, keeps_zero_sign: bool
) -> pa.RecordBatch:
    """The keys of the rows at these positions, normalized as the state holds them."""
    normalize = normalize_keys if keeps_zero_sign else normalize_floats
    taken = [normalize(rows.column(name).take(positions)) for name in grouping.keys]
    return pa.RecordBatch.from_arrays(taken, names=list(grouping.keys))


def encode_groups(layout: RowLayout, groups: Groups) -> KeyedRows:
    """The groups in the layout of the state."""
    accumulators = (part for fold in groups.new for part in fold)
    columns = [*groups.keys.columns, *accumulators, pa.array(groups.codes), pa.array(groups.ends)]
    names = layout.columns if END in layout.columns else (*layout.columns, END)
    return layout.rows(pa.RecordBatch.from_arrays(columns, names=list(names)))


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


def _weights(grouping: GroupByOperator, rows: pa.RecordBatch) -> Ints:
    """The weight of each row, or its multiplicity."""
    if grouping.is_weighted or MULTIPLICITY in rows.schema.names:
        return as_int64(rows.column(WEIGHT if grouping.is_weighted else MULTIPLICITY))
    number: int = rows.num_rows
    return np.ones(number, np.int64)


def window_ends(grouping: GroupByOperator, rows: pa.RecordBatch) -> Ints:
    """The end of each row's window, or what else a group ends by; the highest number without."""
    if grouping.session is not None:
        return session_bounds(rows.column(grouping.session))[1]
    if grouping.final_key is not None:
        return ends_after(as_int64(rows.column(grouping.final_key)), grouping.before_end)
    end = grouping.window_end
    return np.full(len(rows), HIGHEST) if end is None else as_int64(rows.column(end))
