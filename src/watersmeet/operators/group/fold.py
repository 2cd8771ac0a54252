"""Folds rows into the aggregates of their groups, a batch at a time.

A fold has *accumulators* of each group, Arrow columns from which the values of one or more aggregates follow.
Accumulators are NULL where there is no group yet. Folding maps the accumulators of the groups that a batch touches to
those after it; the result does not depend on how the batches are cut, and sums do not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core import exact_sums as wide
from watersmeet.operators.core.aggregate_values import (
    is_short,
    normalize_floats,
    normalize_nan,
    to_doubles,
    to_int64,
    value_ranks,
)
from watersmeet.operators.core.aggregates import LIST, function_of
from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.exact_sums import Doubles, Limbs, carry, integers, limbs_of, squares
from watersmeet.operators.core.matching import Bools, Ints, stable_order
from watersmeet.operators.core.order import SortColumn, ranks_of

Pick = Literal["least", "greatest", "first", "last"]

MOST_WEIGHT = 2**29
"""The weights of a batch add up to less: a limb times a weight then fits 64 bits, and so does a sum of them."""


@dataclass(frozen=True)
class GroupedRows:
    """The rows of a batch in the order of arrival, each with the number of its group; every group has a row."""

    table: pa.RecordBatch
    ids: Ints
    groups: int
    weights: Ints
    was_stored: Bools
    """Per group, whether it was there before."""

    @cached_property
    def order(self) -> Ints:
        """The rows group by group, in the order of arrival within each."""
        return stable_order(self.ids)

    @cached_property
    def starts(self) -> Ints:
        """The positions in `order` at which groups begin."""
        return np.searchsorted(self.ids[self.order], np.arange(self.groups))

    def sums(self, values: npt.NDArray[np.int64]) -> Ints:
        """The sum of whole numbers per group."""
        totals = np.zeros(self.groups, np.int64)
        np.add.at(totals, self.ids, values)
        return totals

    def doubles(self, column: str) -> GroupedDoubles:
        """The values of a column as doubles, group by group."""
        array = self.table.column(column)
        weights = (self.weights * _is_present(array))[self.order]
        return GroupedDoubles(self, self.ids[self.order], to_doubles(array)[self.order], weights)


@dataclass(frozen=True)
class GroupedDoubles:
    """Doubles in the order of their groups, as often as their weights say: not at all for NULL."""

    rows: GroupedRows
    ids: Ints
    values: Doubles
    weights: Ints

    @cached_property
    def _is_all_finite(self) -> bool:
        return bool(np.isfinite(self.values).all())

    @property
    def count(self) -> Ints:
        """The number per group."""
        return np.add.reduceat(self.weights, self.rows.starts)

    def count_kind(self, kind: Callable[[Doubles], Bools]) -> Ints:
        """The number of those of a kind that is not finite, per group."""
        if self._is_all_finite:
            return np.zeros(self.rows.groups, np.int64)
        return np.add.reduceat(self.weights * kind(self.values), self.rows.starts)

    def add_to(self, old: pa.Array, power: Literal[1, 2] = 1) -> pa.Array:
        """Exact sums of the finite ones, or of their squares, after these."""
        _check_weights(self.weights)
        return wide.add_doubles(old, self.ids, self.values, self.weights, power=power)


class Fold(Protocol):
    """Accumulators of one kind over certain columns."""

    @property
    def width(self) -> int:
        """The number of accumulators."""
        ...

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The accumulators of the groups after these rows, from those before."""
        ...


def fold_of(  # noqa: PLR0911 - one case per fold
    function: str,
    columns: tuple[str, ...],
    kind: pa.DataType | None,
    order: tuple[SortColumn, ...] = (),
    constants: tuple[float | str, ...] = (),
) -> Fold:
    """The fold of an aggregate over these columns; ``kind`` is the type of the first of them.

    ``order``: what orders the rows of a group for it; ``constants``: the fractions of percentiles.

    >>> fold_of("avg", ("x",), pa.int32())
    ExactSum(column='x', limbs=2)
    """
    aggregate = function_of(function)
    if aggregate.is_distinct:
        return DistinctFold(fold_of(aggregate.base_name, columns, kind), columns)
    fractions = tuple(each for each in constants if isinstance(each, float))
    match aggregate.fold:
        case "count":
            return Count(columns, is_condition=aggregate.name == "count_if")
        case "bits":
            return Bits(columns[0], aggregate.name)
        case "moments":
            assert kind is not None
            return ExactMoments(columns[0]) if is_short(kind) else Moments(columns[0])
        case "sum":
            assert kind is not None
            if pa.types.is_floating(kind):
                return DoubleSum(columns[0])
            return ExactSum(columns[0], 4 if pa.types.is_decimal(kind) else 2)
        case "first" | "last" if order:
            return OrderedChoice(columns, order, aggregate.fold)
        case "least" | "greatest" | "first" | "last":
            return Choice(columns, aggregate.fold)
        case "distinct":
            return CountDistinct(columns)
        case "list" | "set":
            return Collect(columns[0], is_set=aggregate.fold == "set", order=order)
        case "percentile":
            is_discrete = aggregate.name.startswith("percentile_disc")
            return Percentile(columns[0], fractions, order, is_discrete, is_list=aggregate.name.endswith(LIST))


@dataclass(frozen=True)
class Count:
    """The number of rows in which no column is NULL or, for a condition, in which it is true."""

    columns: tuple[str, ...]
    is_condition: bool = False
    width: int = 1

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The counts after these rows."""
        is_counted = np.ones(len(rows.ids), np.bool_)
        for name in self.columns:
            column = rows.table.column(name)
            is_counted &= _is_true(column) if self.is_condition else _is_present(column)
        return [pa.array(rows.sums(rows.weights * is_counted) + to_int64(old[0]))]


@dataclass(frozen=True)
class ExactSum:
    """The number of values, and the limbs of their sum, for integers, intervals and decimals."""

    column: str
    limbs: int

    @property
    def width(self) -> int:
        """The count and the limbs."""
        return 1 + self.limbs

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        column = rows.table.column(self.column)
        count = rows.sums(rows.weights * _is_present(column)) + to_int64(old[0])
        return [pa.array(count), *_add_limbs(rows, limbs_of(column), old[1:])]


@dataclass(frozen=True)
class DoubleSum:
    """The number of values, the exact sum of the finite ones, and the numbers of NaN, infinity and negative infinity.

    Non-finite values are only counted, so that they can be retracted.
    """

    column: str
    width: int = 5

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        values = rows.doubles(self.column)
        new_counts = [values.count_kind(kind) for kind in (np.isnan, np.isposinf, np.isneginf)]
        counts = [pa.array(new + to_int64(before)) for new, before in zip(new_counts, old[2:], strict=True)]
        return [pa.array(values.count + to_int64(old[0])), values.add_to(old[1]), *counts]


@dataclass(frozen=True)
class ExactMoments:
    """The number of values, their sum and the sum of their squares, as limbs, for numbers that fit 64 bits.

    They are exact, so a retracted value leaves no trace, however much larger than the rest it was.
    """

    column: str
    width: int = 7

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        column = rows.table.column(self.column)
        limbs = limbs_of(column)[:2]
        # Of a decimal the second limb is not the last, so that it has no sign.
        values = integers(limbs)
        count = rows.sums(rows.weights * _is_present(column)) + to_int64(old[0])
        first = _add_limbs(rows, np.stack([limbs[0], values >> 32]), old[1:3])
        return [pa.array(count), *first, *_add_limbs(rows, squares(values), old[3:])]


@dataclass(frozen=True)
class Moments:
    """The number of values, exact sums of the finite ones and of their squares, and how many are not finite."""

    column: str
    width: int = 4

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        values = rows.doubles(self.column)
        odd = values.count_kind(lambda some: ~np.isfinite(some)) + to_int64(old[3])
        squares = values.add_to(old[2], power=2)
        return [pa.array(values.count + to_int64(old[0])), values.add_to(old[1]), squares, pa.array(odd)]


@dataclass(frozen=True)
class Choice:
    """The value of one row of the group, and of what the rows are ordered by, if that is another column.

    ``least`` and ``greatest`` pass over rows in which the ordered value is NULL, and among equals take the last to
    arrive. ``first`` and ``last`` go by arrival; a second column says which rows they see.
    """

    columns: tuple[str, ...]
    pick: Pick

    @property
    def width(self) -> int:
        """A value per column."""
        return len(self.columns)

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The values after these rows: the earlier choice competes as the earliest row of its group."""
        new = [rows.table.column(name) for name in self.columns]
        both = [pa.concat_arrays([_cast_like(column, part), column]) for part, column in zip(old, new, strict=True)]
        ids = np.concatenate([np.arange(rows.groups), rows.ids])
        if self.pick in ("first", "last"):
            some = np.concatenate([rows.was_stored, np.ones(len(rows.ids), np.bool_)])
            some = some & _is_true(both[1]) if len(both) > 1 else some
            rank = np.arange(ids.size)
        else:
            some, rank = _is_present(both[-1]), value_ranks(both[-1], backwards=self.pick == "least")
        chosen = _extreme(ids, rank, some, rows.groups, least=self.pick in ("least", "first"))
        positions = pa.array(chosen, mask=chosen < 0)
        return [column.take(positions) for column in both]


@dataclass(frozen=True)
class OrderedChoice:
    """The value of the first or last row of a group in an order, the earliest or latest to arrive among equals.

    A second column says which rows it sees.
    """

    columns: tuple[str, ...]
    order: tuple[SortColumn, ...]
    pick: Literal["first", "last"]

    @property
    def width(self) -> int:
        """A value per column, and per column of the order."""
        return len(self.columns) + len(self.order)

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The values after these rows: the earlier choice competes as the earliest row of its group."""
        new = [rows.table.column(name) for name in (*self.columns, *(by.column for by in self.order))]
        both = [pa.concat_arrays([_cast_like(column, part), column]) for part, column in zip(old, new, strict=True)]
        ids = np.concatenate([np.arange(rows.groups), rows.ids])
        some = np.concatenate([rows.was_stored, np.ones(len(rows.ids), np.bool_)])
        some = some & _is_true(both[1]) if len(self.columns) > 1 else some
        rank = np.empty(ids.size, np.int64)
        rank[_sort_rows(both[len(self.columns) :], self.order)] = np.arange(ids.size)
        chosen = _extreme(ids, rank, some, rows.groups, least=self.pick == "first")
        positions = pa.array(chosen, mask=chosen < 0)
        return [column.take(positions) for column in both]


@dataclass(frozen=True)
class Bits:
    """The values of a group combined bit by bit; NULL if it has no values."""

    column: str
    function: str
    width: int = 1

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The bits after these rows."""
        ufunc = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}[self.function]
        neutral = -1 if self.function == "bit_and" else 0
        column = rows.table.column(self.column)
        values = column.cast(pa.int64()).fill_null(neutral).to_numpy(zero_copy_only=False)
        if self.function == "bit_xor":
            # Equal rows may stand as one: an even number of them puts every bit back.
            values = np.where(rows.weights % 2 == 0, neutral, values)
        added = ufunc.reduceat(values[rows.order], rows.starts)
        before = old[0].cast(pa.int64())
        is_present = (rows.sums(_is_present(column).astype(np.int64)) > 0) | _is_present(before)
        result = ufunc(added, before.fill_null(neutral).to_numpy(zero_copy_only=False))
        return [pa.array(result, mask=~is_present).cast(column.type)]


@dataclass(frozen=True)
class CountDistinct:
    """The number of different values in which no column is NULL; it sees all rows of a group at once."""

    columns: tuple[str, ...]
    width: int = 1

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The counts of these rows only."""
        some = np.ones(len(rows.ids), np.bool_)
        for name in self.columns:
            some &= _is_present(rows.table.column(name))
        ids = _first_distinct(rows, self.columns, some)
        return [pa.array(np.bincount(rows.ids[ids], minlength=rows.groups))]


@dataclass(frozen=True)
class DistinctFold:
    """Another fold over the distinct values of a group; it sees all rows of a group at once."""

    inner: Fold
    columns: tuple[str, ...]

    @property
    def width(self) -> int:
        """That of the other."""
        return self.inner.width

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The accumulators of these rows only."""
        # NULL is a value here, so that every group has one; the other passes it over.
        places = _first_distinct(rows, self.columns, np.ones(len(rows.ids), np.bool_))
        table = rows.table.take(pa.array(places))
        distinct = GroupedRows(table, rows.ids[places], rows.groups, np.ones(places.size, np.int64), rows.was_stored)
        return self.inner.fold(distinct, [pa.nulls(rows.groups)] * self.width)


@dataclass(frozen=True)
class Collect:
    """The values that are not NULL: as they arrived, or as a set in their own order; it sees all rows at once.

    ``order``: what orders them before that.
    """

    column: str
    is_set: bool
    width: int = 1
    order: tuple[SortColumn, ...] = ()

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The values of these rows only."""
        column = rows.table.column(self.column)
        some = _is_present(column)
        if self.is_set:
            places = _first_distinct(rows, (self.column,), some)
            places = places[np.argsort(value_ranks(column.take(pa.array(places)), backwards=False), kind="stable")]
            counts = np.ones(places.size, np.int64)
        else:
            places = np.flatnonzero(some)
            counts = rows.weights[places]
        if self.order:
            keys = [rows.table.column(by.column).take(pa.array(places)) for by in self.order]
            order = _sort_rows(keys, self.order)
            places, counts = places[order], counts[order]
        order = stable_order(rows.ids[places])
        places, counts = places[order], counts[order]
        sizes = np.zeros(rows.groups, np.int64)
        np.add.at(sizes, rows.ids[places], counts)
        values = column.take(pa.array(np.repeat(places, counts)))
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        # A set has one of equal values, and 0.0 for -0.0, as in Spark; a list has what came.
        return [pa.ListArray.from_arrays(offsets, normalize_floats(values) if self.is_set else normalize_nan(values))]


@dataclass(frozen=True)
class Percentile:
    """Exact percentiles of the values that are not NULL, as Spark computes them; it sees all rows at once.

    ``fractions``: where they are, from 0 to 1; ``is_discrete``: each is one of the values, and none is interpolated.
    """

    column: str
    fractions: tuple[float, ...]
    order: tuple[SortColumn, ...] = ()
    is_discrete: bool = False
    is_list: bool = False
    width: int = 1

    def fold(self, rows: GroupedRows, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The percentiles of these rows only."""
        column = rows.table.column(self.column)
        places = np.flatnonzero(_is_present(column) & (rows.weights > 0))
        by = self.order[0] if self.order else SortColumn(self.column)
        ranks, ids = ranks_of(column.take(pa.array(places)), by), rows.ids[places]
        order = np.lexsort((ranks, ids))
        places, ranks, ids = places[order], ranks[order], ids[order]
        values = _round_to_doubles(column.take(pa.array(places)))
        counts = np.zeros(rows.groups, np.int64)
        np.add.at(counts, ids, rows.weights[places])
        ends = np.cumsum(rows.weights[places])
        before = np.cumsum(counts) - counts
        present = np.flatnonzero(counts)
        results = [
            self._percentile(fraction, values, ranks, ends, counts[present], before[present])
            for fraction in self.fractions
        ]
        numbers = np.stack(results, axis=1).ravel() if results else np.zeros(0)
        if pa.types.is_duration(column.type):
            shown = pa.array(numbers.astype(np.int64)).view(column.type)
        else:
            shown = normalize_floats(pa.array(numbers))
        if self.is_list:
            offsets = np.arange(present.size + 1) * len(self.fractions)
            shown = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), shown)
        positions = np.full(rows.groups, -1)
        positions[present] = np.arange(present.size)
        return [shown.take(pa.array(positions, mask=positions < 0))]

    def _percentile(
        self, fraction: float, values: Doubles, ranks: Ints, ends: Ints, counts: Ints, before: Ints
    ) -> Doubles:
        """A percentile per group; ``ends``: how many values there are up to each, ``before``: up to each group."""
        if self.is_discrete:
            number = np.maximum(np.ceil(counts * fraction).astype(np.int64), 1)
            return values[np.searchsorted(ends, before + number)]
        position = (counts - 1) * fraction
        lower, higher = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
        low, high = (np.searchsorted(ends, before + number + 1) for number in (lower, higher))
        with np.errstate(invalid="ignore", over="ignore"):
            between = values[low] + (position - lower) * (values[high] - values[low])
        return np.where(ranks[low] == ranks[high], values[low], between)


def _round_to_doubles(array: pa.Array) -> Doubles:
    """Numbers as the nearest doubles, intervals as microseconds."""
    if pa.types.is_duration(array.type):
        return array.view(pa.int64()).to_numpy().astype(np.float64)
    # Arrow multiplies decimals by a power of ten, which rounds twice.
    return to_doubles(array.cast(pa.string()).cast(pa.float64()) if pa.types.is_decimal(array.type) else array)


def _sort_rows(columns: Sequence[pa.Array], order: Sequence[SortColumn]) -> Ints:
    """The positions of rows in an order, of equal ones the earlier first."""
    return np.lexsort([ranks_of(column, by) for column, by in zip(columns, order, strict=True)][::-1])


def _add_limbs(rows: GroupedRows, limbs: Limbs, old: Sequence[pa.Array]) -> list[pa.Array]:
    """Sums, as limbs, after these rows."""
    _check_weights(rows.weights)
    before: Limbs = np.stack([to_int64(part) for part in old])
    added = np.stack([rows.sums(limb * rows.weights) for limb in limbs])
    # Each sum is carried on its own: two limbs of 63 bits would not fit 64 together.
    return [pa.array(limb) for limb in carry(before + carry(added))]


def _check_weights(weights: Ints) -> None:
    """Refuse weights so large that sums of limbs would not fit 64 bits."""
    if int(np.abs(weights).sum()) >= MOST_WEIGHT:
        raise ArithmeticError(f"the weights of one batch add up to {MOST_WEIGHT} or more")


def is_identical(left: pa.Array, right: pa.Array) -> Bools:
    """A mask of the places where values are identical, none of them nested: -0.0 is not identical to 0.0, though equal.

    >>> is_identical(pa.array([0.0, -0.0, None]), pa.array([-0.0, -0.0, None])).tolist()
    [False, True, True]
    """
    equal = null_safe_equal(left, right)
    if not pa.types.is_floating(left.type):
        return equal
    signs = [
        np.signbit(part.fill_null(0.0).to_numpy(zero_copy_only=False)) for part in map(normalize_nan, (left, right))
    ]
    return equal & (signs[0] == signs[1])


def _first_distinct(rows: GroupedRows, columns: Sequence[str], some: Bools) -> Ints:
    """Of some rows the first of each group with the same values."""
    places = np.flatnonzero(some)
    ids = key_ids(rows.table.select(list(columns)).take(pa.array(places)), columns) if places.size else places
    pairs = rows.ids[places] * (int(ids.max(initial=0)) + 1) + ids
    return places[np.unique(pairs, return_index=True)[1]]


def _is_present(array: pa.Array) -> Bools:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _is_true(array: pa.Array) -> Bools:
    return array.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)


def _cast_like(column: pa.Array, old: pa.Array) -> pa.Array:
    """Stored values cast to the current type of the column."""
    return pa.nulls(len(old), column.type) if pa.types.is_null(old.type) else old.cast(column.type)


def _extreme(ids: Ints, rank: Ints, some: Bools, groups: int, *, least: bool) -> Ints:
    """For each group the position of its row with the least or greatest rank among some; -1 if it has none."""
    best = np.full(groups, np.iinfo(np.int64).max if least else -1)
    positions = np.flatnonzero(some)
    (np.minimum if least else np.maximum).at(best, ids[positions], rank[positions])
    chosen = np.full(groups, -1)
    hit = positions[rank[positions] == best[ids[positions]]]
    chosen[ids[hit]] = hit
    return chosen
