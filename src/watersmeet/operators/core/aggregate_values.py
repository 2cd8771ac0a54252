"""The values of aggregates from the accumulators of their groups, in Spark's types, rounded as Spark does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.aggregates import arrow_result, function_of, sum_precision
from watersmeet.operators.core.exact_sums import (
    UNIT,
    Doubles,
    Limbs,
    as_integers,
    decimals,
    decode_numbers,
    divide,
    doubles,
    integers,
    is_within,
    round_to_double,
)
from watersmeet.operators.core.matching import Bools, Ints


def aggregate_values(  # noqa: PLR0911 - one case per fold
    function: str,
    type_: pa.DataType | None,
    accumulators: Sequence[pa.Array],
    name: str,
    constants: Sequence[float | str] = (),
) -> pa.Array:
    """The values of an aggregate; ``type_`` is that of its first column, ``name`` what an error calls it.

    Accumulators of the groups are as their fold leaves them; where they are NULL, the value is.

    >>> aggregate_values("avg", pa.int32(), [pa.array([2]), pa.array([7]), pa.array([0])], "a").to_pylist()
    [3.5]
    """
    aggregate = function_of(function)
    kind = aggregate.base_name
    if aggregate.fold == "count":
        return pa.array(to_int64(accumulators[0]))
    if aggregate.fold == "bits":
        return accumulators[0]
    if aggregate.fold == "moments":
        assert type_ is not None
        return _exact_moment(kind, type_, accumulators) if is_short(type_) else _moment(kind, accumulators)
    if aggregate.fold == "distinct":
        return pa.array(to_int64(accumulators[0]))
    if aggregate.fold in ("list", "set"):
        assert type_ is not None
        kind_ = pa.list_(type_)
        if kind == "listagg":
            return _join_texts(_cast_to(accumulators[0], kind_), str(constants[0]))
        return pc.coalesce(_cast_to(accumulators[0], kind_), pa.scalar([], kind_))
    if aggregate.fold == "percentile":
        assert type_ is not None
        return _cast_to(accumulators[0], arrow_result(function, (type_,)))
    if aggregate.fold != "sum":
        return normalize_nan(accumulators[0])
    assert type_ is not None
    if pa.types.is_floating(type_):
        return _double_total(kind, accumulators)
    limbs: Limbs = np.stack([to_int64(part) for part in accumulators[1:]])
    return _exact_total(kind, type_, to_int64(accumulators[0]), limbs, name)


def _exact_total(kind: str, type_: pa.DataType, count: Ints, limbs: Limbs, name: str) -> pa.Array:
    is_present = count > 0
    limbs = np.where(is_present, limbs, 0)
    result = arrow_result(kind, (type_,))
    if pa.types.is_decimal(type_):
        precision, scale = sum_precision(type_.precision, type_.scale)
        _check_range(limbs, 1 - 10**precision, 10**precision - 1, name, f"DECIMAL({precision},{scale})")
        if kind == "avg":
            limbs = divide(limbs, 10 ** (result.scale - type_.scale), np.where(is_present, count, 1))
            most = 10**result.precision - 1
            _check_range(limbs, -most, most, name, f"DECIMAL({result.precision},{result.scale})")
        return _null_unless(is_present, decimals(limbs, result))
    if kind == "avg" and not pa.types.is_duration(type_):
        return pa.array(doubles(limbs) / np.where(is_present, count, 1), mask=~is_present)
    shown = "INTERVAL DAY TO SECOND" if pa.types.is_duration(type_) else "BIGINT"
    _check_range(limbs, -(2**63), 2**63 - 1, name, shown)
    if kind == "avg":
        limbs = divide(limbs, 1, np.where(is_present, count, 1))
    return pa.array(integers(limbs), mask=~is_present).view(result)


def _join_texts(lists: pa.Array, separator: str) -> pa.Array:
    """The texts of each list with a separator between them; NULL for an empty list."""
    texts = pc.binary_join(lists, separator)
    return pc.if_else(pc.equal(pc.list_value_length(lists), 0), pa.scalar(None, pa.string()), texts)


def _check_range(limbs: Limbs, low: int, high: int, name: str, type_: str) -> None:
    fits = is_within(limbs, low, high)
    if not fits.all():
        digits = [int(limb) for limb in limbs[:, int(np.flatnonzero(~fits)[0])]]
        total = sum(limb << (32 * place) for place, limb in enumerate(digits))
        raise ArithmeticError(f"{name} overflows: {total} (without its point) does not fit {type_}")


def _double_total(kind: str, accumulators: Sequence[pa.Array]) -> pa.Array:
    count, nan, above, below = (to_int64(accumulators[i]) for i in (0, 2, 3, 4))
    total = round_to_double(accumulators[1], np.where(count > 0, count, 1) if kind == "avg" else None)
    total = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, total))
    total = np.where((nan > 0) | ((above > 0) & (below > 0)), np.nan, total)
    return normalize_floats(pa.array(total, mask=count <= 0))


def _moment(kind: str, accumulators: Sequence[pa.Array]) -> pa.Array:
    sums = zip(decode_numbers(accumulators[1]), decode_numbers(accumulators[2]), strict=True)
    counts = to_int64(accumulators[0])
    spreads = _spread(kind, counts, [_scale_sums(*pair) for pair in sums])
    has_non_finite = pa.array((to_int64(accumulators[3]) > 0) & (counts > 0))
    return pc.if_else(pc.and_(has_non_finite, spreads.is_valid()), pa.scalar(math.nan), spreads)


def _scale_sums(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int, int]:
    """A sum of doubles and one of their squares in one unit, and how many of that unit's squares make 1."""
    (place, total), (other, squares) = first, second
    # In the largest unit that both are whole in, so that numbers stay short.
    unit = min(place, other // 2)
    power = 64 * unit + 2 * UNIT
    scale = 1 << -power if power < 0 else 1
    more = max(power, 0)
    return (total << (32 * (place - unit) + more // 2)), (squares << (32 * (other - 2 * unit) + more)), scale


def _exact_moment(kind: str, type_: pa.DataType, accumulators: Sequence[pa.Array]) -> pa.Array:
    first = as_integers(np.stack([to_int64(part) for part in accumulators[1:3]]))
    second = as_integers(np.stack([to_int64(part) for part in accumulators[3:]]))
    unit = 10 ** (2 * type_.scale) if pa.types.is_decimal(type_) else 1
    return _spread(kind, to_int64(accumulators[0]), [(*sums, unit) for sums in zip(first, second, strict=True)])


def _spread(kind: str, counts: Ints, sums: Iterable[tuple[int, int, int]]) -> pa.Array:
    """Variances or deviations from sums, sums of squares and their unit, rounded once.

    The subtraction may cancel most digits, hence Python's integers, group by group.
    """
    less = 1 if kind.endswith("samp") else 0
    ratio = _divide_root if kind.startswith("stddev") else _divide
    spreads = [
        ratio(max(n * squares - total * total, 0), n * (n - less) * unit) if n > less else None
        for n, (total, squares, unit) in zip(counts.tolist(), sums, strict=True)
    ]
    return pa.array(spreads, pa.float64())


def _divide(dividend: int, divisor: int) -> float:
    try:
        return dividend / divisor
    except OverflowError:
        return math.inf


def _divide_root(dividend: int, divisor: int) -> float:
    """The double nearest to the square root of a quotient."""
    more = max(0, (divisor.bit_length() - dividend.bit_length() + 112) // 2)
    whole = (dividend << 2 * more) // divisor
    root = math.isqrt(whole)
    # At least 55 bits: the last, if anything follows, decides between two halves.
    return _divide(root | (root * root * divisor != dividend << 2 * more), 1 << more)


def _cast_to(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array.cast(kind)


def _null_unless(is_present: Bools, array: pa.Array) -> pa.Array:
    return array if is_present.all() else pc.if_else(pa.array(is_present), array, pa.scalar(None, array.type))


def is_short(kind: pa.DataType) -> bool:
    """Whether values of that type are exact whole numbers of 64 bits, perhaps with a point in them."""
    return pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.precision <= 18)


def to_int64(array: pa.Array) -> Ints:
    """Whole numbers, 0 for NULL."""
    return array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def to_doubles(array: pa.Array) -> Doubles:
    """Numbers as doubles, 0 for NULL."""
    # Arrow refuses integers and decimals that a double cannot hold, where Spark rounds.
    values = array if pa.types.is_floating(array.type) else array.cast(pa.float64(), safe=False)
    return values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def normalize_floats(array: pa.Array) -> pa.Array:
    """The array with -0.0 as 0.0 and one kind of NaN, so that equal values are identical.

    >>> normalize_floats(pa.array([-0.0])).to_pylist()
    [0.0]
    """
    if not pa.types.is_floating(array.type):
        return array
    return normalize_nan(pc.add(array, pa.scalar(0.0, array.type)))


def normalize_keys(array: pa.Array) -> pa.Array:
    """The same at every depth of structs and arrays, as Spark shows the keys of groups.

    >>> normalize_keys(pa.array([{"x": [-0.0]}, None])).to_pylist()
    [{'x': [0.0]}, None]
    """
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [normalize_keys(part) for part in array.flatten()]
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null()) if parts else array
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, normalize_keys(array.flatten()), kind, mask=array.is_null())
    return normalize_floats(array)


def normalize_nan(array: pa.Array) -> pa.Array:
    """The array with one kind of NaN, if it has any."""
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)


def value_ranks(array: pa.Array, *, backwards: bool) -> Ints:
    """The place of each value among all, NaN above every number; of equal values the later has the greater place.

    ``backwards``: of equal values the later has the smaller place.
    """
    if pa.types.is_temporal(array.type) and not pa.types.is_date32(array.type):
        array = array.view(pa.int64())
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    ordered = array.take(pa.array(np.arange(len(array))[::-1])) if backwards else array
    order = pc.sort_indices(ordered).to_numpy()
    ranks = np.empty(len(array), np.int64)
    ranks[order] = np.arange(len(array))
    return ranks[::-1] if backwards else ranks
