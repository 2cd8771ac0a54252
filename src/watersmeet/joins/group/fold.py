"""How rows are folded into the aggregates of their groups, a batch at a time.

A fold keeps *accumulators* of each group, Arrow columns from which the values of one or more aggregates follow.
Accumulators are NULL where there is no group yet. Folding takes the accumulators of the groups that a batch touches and
gives those after it; whatever order the batches are cut in, the result is the same, but for the rounding of doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.group.aggregates import function_of
from watersmeet.joins.group.limbs import Limbs, carried, integers, limbs_of, squares

Doubles = npt.NDArray[np.float64]
Pick = Literal["least", "greatest", "first", "last"]

MOST_WEIGHT = 2**29
"""The weights of a batch add up to less: a limb times a weight then fits 64 bits, and so does a sum of them."""


@dataclass(frozen=True)
class Grouped:
    """The rows of a batch in the order of arrival, each with the number of its group; every group has a row."""

    table: pa.RecordBatch
    ids: Ints
    groups: int
    weights: Ints
    known: Bools
    """Per group, whether it was there before."""

    @cached_property
    def order(self) -> Ints:
        """The rows group by group, in the order of arrival within each."""
        return np.argsort(self.ids, kind="stable")

    @cached_property
    def starts(self) -> Ints:
        """Where in `order` each group begins."""
        return np.searchsorted(self.ids[self.order], np.arange(self.groups))

    def sums(self, values: npt.NDArray[np.int64]) -> Ints:
        """The sum of whole numbers per group."""
        return np.add.reduceat(values[self.order], self.starts)

    def double_sums(self, values: Doubles) -> Doubles:
        """The sum of doubles per group, in the order of arrival."""
        return np.add.reduceat(values[self.order], self.starts)


class Fold(Protocol):
    """Accumulators of one kind over certain columns."""

    @property
    def width(self) -> int:
        """How many accumulators there are."""
        ...

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The accumulators of the groups after these rows, from those before."""
        ...


def fold_of(function: str, columns: tuple[str, ...], kind: pa.DataType | None) -> Fold:
    """What an aggregate over these columns needs; ``kind`` is the type of the first of them.

    >>> fold_of("avg", ("x",), pa.int32())
    ExactSum(column='x', limbs=2)
    """
    found = function_of(function)
    match found.fold:
        case "count":
            return Count(columns, is_condition=found.name == "count_if")
        case "bits":
            return Bits(columns[0], found.name)
        case "moments":
            assert kind is not None
            return ExactMoments(columns[0]) if is_short(kind) else Moments(columns[0])
        case "sum":
            assert kind is not None
            if pa.types.is_floating(kind):
                return DoubleSum(columns[0])
            return ExactSum(columns[0], 4 if pa.types.is_decimal(kind) else 2)
        case "least" | "greatest" | "first" | "last":
            return Choice(columns, found.fold)


@dataclass(frozen=True)
class Count:
    """The number of rows in which no column is NULL or, for a condition, in which it is true."""

    columns: tuple[str, ...]
    is_condition: bool = False
    width: int = 1

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The counts after these rows."""
        counted = np.ones(len(rows.ids), np.bool_)
        for name in self.columns:
            column = rows.table.column(name)
            counted &= _true(column) if self.is_condition else _present(column)
        return [pa.array(rows.sums(rows.weights * counted) + numbers(old[0]))]


@dataclass(frozen=True)
class ExactSum:
    """How many values there are, and the limbs of their sum, for integers, intervals and decimals."""

    column: str
    limbs: int

    @property
    def width(self) -> int:
        """The count and the limbs."""
        return 1 + self.limbs

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        column = rows.table.column(self.column)
        count = rows.sums(rows.weights * _present(column)) + numbers(old[0])
        return [pa.array(count), *_added(rows, limbs_of(column), old[1:])]


@dataclass(frozen=True)
class DoubleSum:
    """How many values there are, the sum of the finite ones, and how many are NaN, infinite and negatively so.

    What is not finite is only counted, so that it can be taken back.
    """

    column: str
    width: int = 5

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        column = rows.table.column(self.column)
        values, weights = doubles_of(column), rows.weights * _present(column)
        finite = np.where(np.isfinite(values), values, 0.0)
        total = rows.double_sums(finite * weights.astype(np.float64)) + _doubles_before(old[1])
        odd = (np.isnan(values), np.isposinf(values), np.isneginf(values))
        count, *odds = (rows.sums(weights * kind) for kind in (np.ones(len(values), np.bool_), *odd))
        counts = [pa.array(new + numbers(before)) for new, before in zip(odds, old[2:], strict=True)]
        return [pa.array(count + numbers(old[0])), pa.array(total), *counts]


@dataclass(frozen=True)
class ExactMoments:
    """How many values there are, their sum and the sum of their squares, as limbs, for numbers that fit 64 bits.

    They are exact, so that what is taken back leaves no trace, however much larger than the rest it was.
    """

    column: str
    width: int = 7

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Counts and sums after these rows."""
        column = rows.table.column(self.column)
        limbs = limbs_of(column)[:2]
        # Of a decimal the second limb is not the last, so that it has no sign.
        values = integers(limbs)
        count = rows.sums(rows.weights * _present(column)) + numbers(old[0])
        first = _added(rows, np.stack([limbs[0], values >> 32]), old[1:3])
        return [pa.array(count), *first, *_added(rows, squares(values), old[3:])]


@dataclass(frozen=True)
class Moments:
    """How many values there are, their mean, the sum of the squares of what they are off it, and how many are odd.

    Odd are NaN and the infinite ones, which the others leave out. These are doubles: where values are taken back that
    are larger than the rest by many digits, so many digits of the rest are lost, as in any sum of doubles.
    """

    column: str
    width: int = 4

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """Mean and squares after these rows, computed around the mean before: small numbers, whatever the mean is."""
        column = rows.table.column(self.column)
        values, weights = doubles_of(column), rows.weights * _present(column)
        finite = np.isfinite(values)
        odd = rows.sums(weights * ~finite) + numbers(old[3])
        values, weights = np.where(finite, values, 0.0), weights * finite
        before = numbers(old[0]) - numbers(old[3])
        around = np.where(before > 0, _doubles_before(old[1]), self._first(rows, values, finite))
        off = values - around[rows.ids]
        weighted = off * weights.astype(np.float64)
        first, second = rows.double_sums(weighted), rows.double_sums(off * weighted)
        regular = before + rows.sums(weights)
        shift = first / np.where(regular == 0, 1, regular)
        squares = _doubles_before(old[2]) + second - first * shift
        # A sum of squares: what rounding leaves below zero, or beside a single value, is none.
        squares = np.where(regular > 1, np.maximum(squares, 0.0), 0.0)
        mean = np.where(regular > 0, around + shift, 0.0)
        return [pa.array(regular + odd), pa.array(mean), pa.array(squares), pa.array(odd)]

    def _first(self, rows: Grouped, values: Doubles, finite: Bools) -> Doubles:
        """A value of each group to compute around."""
        found = np.zeros(rows.groups)
        some = np.flatnonzero(finite)[::-1]
        found[rows.ids[some]] = values[some]
        return found


@dataclass(frozen=True)
class Choice:
    """The value of one row of the group, and of what the rows are ordered by, if that is another column.

    ``least`` and ``greatest`` pass over rows in which the ordered value is NULL, and among equals take the last to
    arrive. ``first`` and ``last`` go by arrival.
    """

    columns: tuple[str, ...]
    pick: Pick

    @property
    def width(self) -> int:
        """A value per column."""
        return len(self.columns)

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The values after these rows: what was chosen before competes as the earliest row of its group."""
        new = [rows.table.column(name) for name in self.columns]
        both = [pa.concat_arrays([_like(column, part), column]) for part, column in zip(old, new, strict=True)]
        ids = np.concatenate([np.arange(rows.groups), rows.ids])
        if self.pick in ("first", "last"):
            some = np.concatenate([rows.known, np.ones(len(rows.ids), np.bool_)])
            rank = np.arange(ids.size)
        else:
            some, rank = _present(both[-1]), _ranks(both[-1], backwards=self.pick == "least")
        chosen = _extreme(ids, rank, some, rows.groups, least=self.pick in ("least", "first"))
        positions = pa.array(chosen, mask=chosen < 0)
        return [column.take(positions) for column in both]


@dataclass(frozen=True)
class Bits:
    """The values of a group put together bit by bit; NULL if there are none."""

    column: str
    function: str
    width: int = 1

    def fold(self, rows: Grouped, old: Sequence[pa.Array]) -> list[pa.Array]:
        """The bits after these rows."""
        together = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}[self.function]
        nothing = -1 if self.function == "bit_and" else 0
        column = rows.table.column(self.column)
        values = column.cast(pa.int64()).fill_null(nothing).to_numpy(zero_copy_only=False)
        added = together.reduceat(values[rows.order], rows.starts)
        before = old[0].cast(pa.int64())
        some = (rows.sums(_present(column).astype(np.int64)) > 0) | _present(before)
        result = together(added, before.fill_null(nothing).to_numpy(zero_copy_only=False))
        return [pa.array(result, mask=~some).cast(column.type)]


def is_short(kind: pa.DataType) -> bool:
    """Whether values of that type are exact whole numbers of 64 bits, perhaps with a point in them."""
    return pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.precision <= 18)


def _added(rows: Grouped, limbs: Limbs, old: Sequence[pa.Array]) -> list[pa.Array]:
    """Sums, as limbs, after these rows."""
    if int(np.abs(rows.weights).sum()) >= MOST_WEIGHT:
        raise ArithmeticError(f"the weights of one batch add up to {MOST_WEIGHT} or more")
    before: Limbs = np.stack([numbers(part) for part in old])
    added = np.stack([rows.sums(limb * rows.weights) for limb in limbs])
    # Each sum is carried on its own: two limbs of 63 bits would not fit 64 together.
    return [pa.array(limb) for limb in carried(before + carried(added))]


def numbers(array: pa.Array) -> Ints:
    """Whole numbers, 0 for NULL."""
    return array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def doubles_of(array: pa.Array) -> Doubles:
    """Numbers as doubles, 0 for NULL."""
    # Arrow refuses integers and decimals that a double cannot hold, where Spark rounds.
    values = array if pa.types.is_floating(array.type) else array.cast(pa.float64(), safe=False)
    return values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def _doubles_before(array: pa.Array) -> Doubles:
    return array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def _present(array: pa.Array) -> Bools:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _true(array: pa.Array) -> Bools:
    return array.fill_null(False).to_numpy(zero_copy_only=False)


def _like(column: pa.Array, old: pa.Array) -> pa.Array:
    """Values kept from before with the type that the column has now."""
    return pa.nulls(len(old), column.type) if pa.types.is_null(old.type) else old.cast(column.type)


def _ranks(array: pa.Array, *, backwards: bool) -> Ints:
    """The place of each value among all, NaN above every number; of equal values the later has the greater place.

    ``backwards``: of equal values the later has the smaller place.
    """
    if pa.types.is_temporal(array.type) and not pa.types.is_date32(array.type):
        array = array.view(pa.int64())
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    turned = array.take(pa.array(np.arange(len(array))[::-1])) if backwards else array
    order = pc.sort_indices(turned).to_numpy()
    ranks = np.empty(len(array), np.int64)
    ranks[order] = np.arange(len(array))
    return ranks[::-1] if backwards else ranks


def _extreme(ids: Ints, rank: Ints, some: Bools, groups: int, *, least: bool) -> Ints:
    """For each group the position of its row with the least or greatest rank among some; -1 if it has none."""
    best = np.full(groups, np.iinfo(np.int64).max if least else -1)
    positions = np.flatnonzero(some)
    (np.minimum if least else np.maximum).at(best, ids[positions], rank[positions])
    chosen = np.full(groups, -1)
    hit = positions[rank[positions] == best[ids[positions]]]
    chosen[ids[hit]] = hit
    return chosen
