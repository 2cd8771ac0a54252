"""What aggregates show: their values from the accumulators of their groups, in Spark's types, rounded as Spark does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.group.aggregates import function_of, widened
from watersmeet.joins.group.fold import Doubles, is_short, numbers
from watersmeet.joins.group.limbs import Limbs, as_integers, decimals, divided, doubles, integers, is_within
from watersmeet.joins.group.types import arrow_result


def values(function: str, type_: pa.DataType | None, accumulators: Sequence[pa.Array], name: str) -> pa.Array:
    """The values of an aggregate; ``type_`` is that of its first column, ``name`` what an error calls it.

    Accumulators of the groups are as their fold leaves them; where they are NULL, the value is.

    >>> values("avg", pa.int32(), [pa.array([2]), pa.array([7]), pa.array([0])], "a").to_pylist()
    [3.5]
    """
    found = function_of(function)
    kind = found.name
    if found.fold in ("count", "bits"):
        return accumulators[0]
    if found.fold == "moments":
        assert type_ is not None
        return _exact_moment(kind, type_, accumulators) if is_short(type_) else _moment(kind, accumulators)
    if found.fold != "sum":
        return plain(accumulators[0])
    assert type_ is not None
    if pa.types.is_floating(type_):
        return _double(kind, accumulators)
    limbs: Limbs = np.stack([numbers(part) for part in accumulators[1:]])
    return _exact(kind, type_, numbers(accumulators[0]), limbs, name)


def plain(array: pa.Array) -> pa.Array:
    """The array with -0.0 as 0.0 and one kind of NaN: what is equal then also looks the same.

    >>> plain(pa.array([-0.0])).to_pylist()
    [0.0]
    """
    if not pa.types.is_floating(array.type):
        return array
    positive = pc.add(array, pa.scalar(0.0, array.type))
    return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), array.type), positive)


def _exact(kind: str, type_: pa.DataType, count: Ints, limbs: Limbs, name: str) -> pa.Array:
    some = count > 0
    limbs = np.where(some, limbs, 0)
    result = arrow_result(kind, (type_,))
    if pa.types.is_decimal(type_):
        precision, scale = widened(type_.precision, type_.scale)
        _check(limbs, 1 - 10**precision, 10**precision - 1, name, f"DECIMAL({precision},{scale})")
        if kind == "avg":
            limbs = divided(limbs, 10 ** (result.scale - type_.scale), np.where(some, count, 1))
            most = 10**result.precision - 1
            _check(limbs, -most, most, name, f"DECIMAL({result.precision},{result.scale})")
        return _where(some, decimals(limbs, result))
    if kind == "avg" and not pa.types.is_duration(type_):
        return pa.array(doubles(limbs) / np.where(some, count, 1), mask=~some)
    shown = "INTERVAL DAY TO SECOND" if pa.types.is_duration(type_) else "BIGINT"
    _check(limbs, -(2**63), 2**63 - 1, name, shown)
    if kind == "avg":
        limbs = divided(limbs, 1, np.where(some, count, 1))
    return pa.array(integers(limbs), mask=~some).view(result)


def _check(limbs: Limbs, low: int, high: int, name: str, type_: str) -> None:
    fits = is_within(limbs, low, high)
    if not fits.all():
        digits = [int(limb) for limb in limbs[:, int(np.flatnonzero(~fits)[0])]]
        found = sum(limb << (32 * place) for place, limb in enumerate(digits))
        raise ArithmeticError(f"{name} overflows: {found} (without its point) does not fit {type_}")


def _double(kind: str, accumulators: Sequence[pa.Array]) -> pa.Array:
    count, nan, above, below = (numbers(accumulators[i]) for i in (0, 2, 3, 4))
    total = _doubles(accumulators[1])
    total = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, total))
    total = np.where((nan > 0) | ((above > 0) & (below > 0)), np.nan, total)
    if kind == "avg":
        total = total / np.where(count > 0, count, 1)
    return plain(pa.array(total, mask=count <= 0))


def _moment(kind: str, accumulators: Sequence[pa.Array]) -> pa.Array:
    count, odd, squares = numbers(accumulators[0]), numbers(accumulators[3]), _doubles(accumulators[2])
    by = count - 1 if kind.endswith("samp") else count
    result = squares / np.where(by > 0, by, 1)
    result = np.where(odd > 0, np.nan, np.sqrt(result) if kind.startswith("stddev") else result)
    return plain(pa.array(result, mask=by <= 0))


def _exact_moment(kind: str, type_: pa.DataType, accumulators: Sequence[pa.Array]) -> pa.Array:
    """Variances and deviations from sums and sums of squares, rounded once.

    What is subtracted may be as large as what it is subtracted from, hence Python's integers, group by group.
    """
    count = numbers(accumulators[0]).tolist()
    first = as_integers(np.stack([numbers(part) for part in accumulators[1:3]]))
    second = as_integers(np.stack([numbers(part) for part in accumulators[3:]]))
    unit = 10 ** (2 * type_.scale) if pa.types.is_decimal(type_) else 1
    less = 1 if kind.endswith("samp") else 0
    found = [
        (n * squares - total * total) / (n * (n - less) * unit) if n > less else None
        for n, total, squares in zip(count, first, second, strict=True)
    ]
    result = pa.array(found, pa.float64())
    return pc.sqrt(result) if kind.startswith("stddev") else result


def _doubles(array: pa.Array) -> Doubles:
    return array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def _where(some: Bools, array: pa.Array) -> pa.Array:
    return array if some.all() else pc.if_else(pa.array(some), array, pa.scalar(None, array.type))
