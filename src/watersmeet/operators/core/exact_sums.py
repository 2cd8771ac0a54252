"""Exact sums of doubles, of their squares and of whole numbers of any size, many at once.

Every double is a whole number of `UNIT`, so a sum of doubles is a whole number too: one of up to some 70 limbs of 32
bits, of which only those between its lowest and its highest digit are stored, a handful for most. Sums are rounded only
when they are shown, so retracted values, order and batches leave no trace.

A number is stored as words of four bytes, little-endian: the *place* of its lowest limb, then its limbs from there on,
in two's complement. The lowest is not 0, and there are no more than the sign needs; the number 0 has no words.

Whole numbers are limbs of 32 bits, lowest first, as rows of an int64 array. After `carry` all limbs but the last are
within 0 and 2**32 - 1; the last has the sign and may grow beyond 32 bits, so sums of many numbers never overflow. A
decimal is its unscaled number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core.matching import Bools, Ints

Limbs = npt.NDArray[np.int64]
"""One column per number, one row per limb."""

_INTEGER_BITS = 32
_INTEGER_MASK = 2**_INTEGER_BITS - 1


def limbs_of(array: pa.Array) -> Limbs:
    """The limbs of integers, durations (two limbs) or decimals (four); NULL is 0.

    >>> limbs_of(pa.array([-1, 2**32, None])).tolist()
    [[4294967295, 0, 0], [-1, 1, 0]]
    """
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(array.type):
        words = np.frombuffer(array.buffers()[1], np.uint32).reshape(-1, 4)[array.offset : array.offset + len(array)]
        parts = [words[:, i].astype(np.int64) for i in range(3)]
        last = np.ascontiguousarray(words[:, 3]).view(np.int32).astype(np.int64)
        return np.where(present, np.stack([*parts, last]), 0)
    whole = array.view(pa.int64()) if pa.types.is_duration(array.type) else array.cast(pa.int64())
    values = whole.fill_null(0).to_numpy(zero_copy_only=False)
    return np.stack([values & _INTEGER_MASK, values >> _INTEGER_BITS])


def carry(limbs: Limbs) -> Limbs:
    """The same numbers with all limbs but the last in their range.

    >>> carry(np.array([[2**33 + 1], [0]])).tolist()
    [[1], [2]]
    """
    rows = [limbs[0]]
    for limb in limbs[1:]:
        rows.append(limb + (rows[-1] >> _INTEGER_BITS))
        rows[-2] = rows[-2] & _INTEGER_MASK
    return np.stack(rows)


def is_within(limbs: Limbs, low: int, high: int) -> Bools:
    """A mask of the carried numbers that are at least ``low`` and at most ``high``.

    >>> is_within(np.array([[4, 5], [0, 0]]), -4, 4).tolist()
    [True, False]
    """
    return _is_less(limbs, high + 1) & ~_is_less(limbs, low)


def integers(limbs: Limbs) -> Ints:
    """Carried numbers of two limbs, which fit 64 bits, as such."""
    return (limbs[1] << _INTEGER_BITS) | limbs[0]


def decimals(limbs: Limbs, type_: pa.DataType) -> pa.Array:
    """Carried numbers of four limbs, which fit the precision, as decimals.

    >>> decimals(np.array([[125], [0], [0], [0]]), pa.decimal128(5, 2)).to_pylist()
    [Decimal('1.25')]
    """
    words = np.empty((limbs.shape[1], 4), np.uint32)
    for i in range(4):
        words[:, i] = (limbs[i] & _INTEGER_MASK).astype(np.uint32)
    return pa.Array.from_buffers(type_, limbs.shape[1], [None, pa.py_buffer(words.tobytes())])


def doubles(limbs: Limbs) -> npt.NDArray[np.float64]:
    """Carried numbers as doubles.

    >>> doubles(np.array([[0], [-1]])).tolist()
    [-4294967296.0]
    """
    # From the highest limb down: of the digits that a double cannot hold, only the lowest are rounded.
    total = np.zeros(limbs.shape[1])
    for i in reversed(range(limbs.shape[0])):
        total = total + np.ldexp(limbs[i].astype(np.float64), _INTEGER_BITS * i)
    return total


def divide(limbs: Limbs, scale: int, by: Ints) -> Limbs:
    """Carried numbers times ``scale`` divided by positive numbers below 2**47, halves rounded away from zero.

    >>> divide(np.array([[5, 1], [0, 0]]), 10, np.array([4, 3])).tolist()
    [[13, 3], [0, 0]]
    """
    if by.size and int(by.max()) >= 2**47:
        raise ArithmeticError("an average over 2^47 rows or more")
    negative = limbs[-1] < 0
    magnitude = carry(np.where(negative, -limbs, limbs))
    # Halves of limbs, so that a remainder and the next digit fit 63 bits together.
    top = magnitude[-1]
    lower = [part for limb in magnitude[:-1] for part in (limb & 0xFFFF, limb >> 16)]
    digits = np.stack([*lower, top & 0xFFFF, (top >> 16) & 0xFFFF, (top >> 32) & 0xFFFF, np.zeros_like(top)]) * scale
    for i in range(1, digits.shape[0]):
        digits[i] += digits[i - 1] >> 16
        digits[i - 1] &= 0xFFFF
    remainder = np.zeros_like(top)
    for i in reversed(range(digits.shape[0])):
        digits[i], remainder = np.divmod((remainder << 16) | digits[i], by)
    digits[0] += 2 * remainder >= by
    # A digit may be 2**16 after rounding; the carry below takes care of it.
    pairs = [digits[i] + (digits[i + 1] << 16) for i in range(0, digits.shape[0] - 1, 2)]
    whole = carry(np.stack(pairs))
    result = np.concatenate([whole[: limbs.shape[0] - 1], whole[limbs.shape[0] - 1 :][:1]])
    result[-1] += whole[limbs.shape[0]] << _INTEGER_BITS if whole.shape[0] > limbs.shape[0] else 0
    return carry(np.where(negative, -result, result))


def squares(values: Ints) -> Limbs:
    """The squares of numbers of 64 bits, as four limbs that are not carried: each is below 2**34.

    >>> as_integers(carry(squares(np.array([-3, 2**62])))) == [9, 2**124]
    True
    """
    low, high = values & _INTEGER_MASK, values >> _INTEGER_BITS
    small, mixed, large = (low.astype(np.uint64) ** 2), low * high, high * high
    first, second = (
        (small & np.uint64(_INTEGER_MASK)).astype(np.int64),
        (small >> np.uint64(_INTEGER_BITS)).astype(np.int64),
    )
    middle = (2 * (mixed & _INTEGER_MASK), 2 * (mixed >> _INTEGER_BITS))
    return np.stack([first, second + middle[0], middle[1] + (large & _INTEGER_MASK), large >> _INTEGER_BITS])


def as_integers(limbs: Limbs) -> list[int]:
    """Carried numbers as Python has them.

    >>> as_integers(np.array([[1], [-1]]))
    [-4294967295]
    """
    rows = [limb.tolist() for limb in limbs]
    return [
        sum(limb << (_INTEGER_BITS * place) for place, limb in enumerate(number)) for number in zip(*rows, strict=True)
    ]


def _is_less(limbs: Limbs, bound: int) -> Bools:
    last = limbs.shape[0] - 1
    parts = [(bound >> (_INTEGER_BITS * i)) & _INTEGER_MASK for i in range(last)] + [bound >> (_INTEGER_BITS * last)]
    less = np.zeros(limbs.shape[1], np.bool_)
    for limb, part in zip(limbs, parts, strict=True):
        less = (limb < part) | ((limb == part) & less)
    return less


Doubles = npt.NDArray[np.float64]

UNIT = -1074
"""Doubles are multiples of two to this power, and their squares of two to twice of it."""

GROUPS_AT_ONCE = 16_384
"""As wide as the widest number are only so many others in memory."""

ROWS_AT_ONCE = 32_768
"""The number of values that are decomposed at once, in arrays that fit the processor's cache."""

_BITS, _MASK = 32, 2**32 - 1
_HEAD = 5
"""The number of highest limbs that determine rounding, of a number or its quotient by a count below 2**47; of the
others only whether they are zero matters.
"""


def add_doubles(
    old: pa.Array, ids: Ints, values: Doubles, weights: Ints, *, power: Literal[1, 2] = 1, up: int = 0
) -> pa.Array:
    """Stored numbers, NULL for 0, to which finite doubles, or their squares, are added as often as their weights say.

    ``ids`` say to which number, and are in order. The weights of each number add up to less than 2**29, so that sums of
    limbs fit 64 bits. ``up``: all are so many bits higher.
    """
    # A zero has no place: it would stand below all others.
    is_nonzero = np.isfinite(values) & (values != 0.0) & (weights != 0)
    if not is_nonzero.all():
        ids, values, weights = ids[is_nonzero], values[is_nonzero], weights[is_nonzero]
    parts: list[pa.Array] = []
    for start in range(0, len(old), GROUPS_AT_ONCE):
        first, last = (int(np.searchsorted(ids, edge)) for edge in (start, start + GROUPS_AT_ONCE))
        terms = _Terms(ids[first:last] - start, values[first:last], weights[first:last], power, up)
        parts.append(_add_terms(_Words.of(old.slice(start, GROUPS_AT_ONCE)), terms))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def frame_sums(values: Doubles, low: Ints, high: Ints, old: pa.Array | None = None) -> pa.Array:
    """The sums of the finite values from each ``low`` to before ``high``, each plus an ``old`` number, NULL for 0.

    >>> sums = frame_sums(np.array([1e16, 0.1, -1e16]), np.array([0, 0]), np.array([1, 3]))
    >>> round_to_double(sums).tolist()
    [1e+16, 0.1]
    """
    places = np.flatnonzero(np.isfinite(values) & (values != 0.0))
    terms = _Terms(places, values[places], np.ones(places.size, np.int64), 1, 0)
    words = _Words.of(pa.nulls(low.size, pa.binary()) if old is None else old)
    reach = [*([terms.reach] if places.size else []), *([words.reach] if words.sizes.any() else [])]
    if not reach:
        return pa.array([b""] * low.size, pa.binary())
    first = min(begin for begin, _ in reach)
    # Two more limbs hold carries and the sign.
    span = max(end for _, end in reach) - first + 2
    totals = np.zeros((span, values.size + 1), np.int64)
    terms = _Terms(places + 1, values[places], np.ones(places.size, np.int64), 1, 0)
    terms.add_to(totals.reshape(-1), first, values.size + 1)
    np.cumsum(totals, axis=1, out=totals)
    parts: list[pa.Array] = []
    for start in range(0, low.size, GROUPS_AT_ONCE):
        some = slice(start, start + GROUPS_AT_ONCE)
        sums = totals[:, high[some]] - totals[:, low[some]]
        _Words.of(pa.nulls(sums.shape[1], pa.binary()) if old is None else old[some]).add_to(sums, first)
        parts.append(_encode_words(first, carry(sums)))
    return pa.concat_arrays(parts)


@dataclass(frozen=True)
class _Terms:
    """The terms of a sum: finite doubles that are not 0, or their squares."""

    ids: Ints
    values: Doubles
    weights: Ints
    power: Literal[1, 2]
    up: int

    @property
    def reach(self) -> tuple[int, int]:
        """The place of the lowest limb of all, and that behind the highest."""
        sizes = np.abs(self.values)
        _, places, _ = self._decompose(np.array([sizes.min(), sizes.max()]))
        return int(places[0]) >> 5, (int(places[1]) >> 5) + 2 * self.power + 1

    def _decompose(self, values: Doubles) -> tuple[Ints, Ints, Bools]:
        """Absolute doubles as whole numbers, how many bits up the numbers themselves or their squares stand, signs."""
        bits = values.view(np.int64)
        exponent, fraction = (bits >> 52) & 0x7FF, bits & (2**52 - 1)
        mantissa = np.where(exponent > 0, fraction | 2**52, fraction)
        return mantissa, self.power * (np.maximum(exponent, 1) - 1) + self.up, bits < 0

    def add_to(self, flat: Ints, low: int, size: int) -> None:
        """Add them to limbs that begin at a place, of so many numbers."""
        for start in range(0, len(self.ids), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            mantissa, above, negative = self._decompose(self.values[some])
            weights = self.weights[some]
            if self.power == 1:
                weights = np.where(negative, -weights, weights)
                limbs = [mantissa & _MASK, mantissa >> _BITS]
            else:
                limbs = list(carry(squares(mantissa)))
            at, shift, rest = ((above >> 5) - low) * size + self.ids[some], above & (_BITS - 1), 0
            for limb in limbs:
                moved = limb << shift
                np.add.at(flat, at, ((moved & _MASK) + rest) * weights)
                rest, at = moved >> _BITS, at + size
            np.add.at(flat, at, rest * weights)


@dataclass(frozen=True)
class _Words:
    """Stored numbers: the words of all, and of each where it begins and how many it has."""

    words: npt.NDArray[np.uint32]
    starts: Ints
    sizes: Ints

    @staticmethod
    def of(array: pa.Array) -> _Words:
        if pa.types.is_null(array.type) or not len(array):
            return _Words(np.zeros(0, np.uint32), *np.zeros((2, len(array)), np.int64))
        if array.null_count:
            array = array.fill_null(b"")
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64) // 4
        words = np.zeros(0, np.uint32) if data is None else np.frombuffer(data, np.uint32, int(ends[-1]))
        return _Words(words, ends[:-1], np.diff(ends))

    @property
    def places(self) -> Ints:
        """The places of the lowest limbs of those that are not 0."""
        return self.words[self.starts[self.sizes > 0]].view(np.int32).astype(np.int64)

    @property
    def reach(self) -> tuple[int, int]:
        """The place of the lowest limb of all, of which one is not 0, and that behind the highest."""
        limbs = self.sizes[self.sizes > 0] - 1
        return int(self.places.min()), int((self.places + limbs).max())

    def add_to(self, dense: Limbs, low: int) -> None:
        """Add them to as many numbers, whose limbs begin at a place."""
        filled = np.flatnonzero(self.sizes)
        if not filled.size:
            return
        limbs = self.sizes[filled] - 1
        owner = np.repeat(np.arange(filled.size), limbs)
        at = np.arange(owner.size) - np.repeat(np.cumsum(limbs) - limbs, limbs)
        limb_values = self.words[self.starts[filled][owner] + 1 + at].astype(np.int64)
        last = np.cumsum(limbs) - 1
        limb_values[last] = limb_values[last].astype(np.int32)
        dense[self.places[owner] - low + at, filled[owner]] += limb_values


def _add_terms(old: _Words, terms: _Terms) -> pa.Array:
    size = len(old.sizes)
    reach = [*([terms.reach] if terms.ids.size else []), *([old.reach] if old.sizes.any() else [])]
    if not reach:
        return pa.array([b""] * size, pa.binary())
    low = min(first for first, _ in reach)
    # Two more limbs hold carries and the sign.
    dense = np.zeros((max(last for _, last in reach) - low + 2, size), np.int64)
    old.add_to(dense, low)
    terms.add_to(dense.reshape(-1), low, size)
    return _encode_words(low, carry(dense))


def _encode_words(low: int, dense: Limbs) -> pa.Array:
    """Carried numbers whose limbs begin at the place ``low`` and whose last limb is nothing but the sign."""
    span, size = len(dense), len(dense[0])
    sign = dense[-1] & _MASK
    filled = dense != 0
    first = filled.argmax(0)
    is_zero = ~filled[first, np.arange(size)]
    differs = (dense[:-1] != sign)[::-1]
    last = np.where(differs.any(0), span - 2 - differs.argmax(0), 0)
    last = np.maximum(last, first)
    last += (dense[last, np.arange(size)] ^ sign) >> 31 & 1
    words = np.empty((size, span + 1), np.uint32)
    words[:, 0] = (first + low).astype(np.int32).view(np.uint32)
    words[:, 1:] = (dense & _MASK).astype(np.uint32).T
    column = np.arange(-1, span)
    is_used = ((column >= first[:, None]) & (column <= last[:, None])) | (column < 0)
    is_used[is_zero] = False
    ends = np.zeros(size + 1, np.int32)
    np.cumsum(np.where(is_zero, 0, 4 * (last - first + 2)), dtype=np.int32, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(ends), pa.py_buffer(words[is_used])])


def round_to_double(array: pa.Array, by: Ints | None = None) -> Doubles:
    """Stored sums of doubles, or their parts by positive counts, as the doubles nearest to them, of two the even one.

    >>> values = np.array([1e16, 0.1, -1e16])
    >>> round_to_double(add_doubles(pa.nulls(1), np.zeros(3, np.int64), values, np.ones(3, np.int64)))
    array([0.1])
    """
    result = np.empty(len(array))
    for start in range(0, len(array), GROUPS_AT_ONCE):
        some = slice(start, start + GROUPS_AT_ONCE)
        result[some] = _round_words(_Words.of(array[some]), None if by is None else by[some])
    return result


def _round_words(words: _Words, by: Ints | None) -> Doubles:
    head, negative, more = _head(words)
    top = np.zeros(len(words.sizes), np.int64)
    top[words.sizes > 0] = words.places
    top += words.sizes - 2
    if by is not None:
        head, rest = _divide_head(head, by)
        more = more | rest
    result = _nearest(head, (top - _HEAD + 1) * _BITS + UNIT, more)
    return np.where(negative, -result, result)


def _head(words: _Words) -> tuple[Limbs, Bools, Bools]:
    """The highest limbs of the absolute numbers, lowest first; which are negative; and which have digits below."""
    limbs = np.zeros((_HEAD, len(words.sizes)), np.int64)
    for number in range(_HEAD):
        positions = np.flatnonzero(words.sizes > number + 1)
        limbs[_HEAD - 1 - number, positions] = words.words[
            words.starts[positions] + words.sizes[positions] - 1 - number
        ]
    negative = limbs[-1] >> (_BITS - 1) == 1
    more = words.sizes > _HEAD + 1
    # The lowest limb is not 0: if it is below the head, nothing is carried into the head.
    inverted = limbs ^ _MASK
    inverted[0] += ~more
    return carry(np.where(negative, inverted, limbs)), negative, more


def _divide_head(head: Limbs, by: Ints) -> tuple[Limbs, Bools]:
    """Positive numbers by counts, and whether something is left."""
    if by.size and int(by.max()) >= 2**47:
        raise ArithmeticError("an average over 2^47 rows or more")
    # Limbs, or halves of them, so that a remainder and the next digit fit 63 bits together.
    width = 32 if not by.size or int(by.max()) < 2**31 else 16
    result, rest = np.zeros_like(head), np.zeros_like(by)
    for number in reversed(range(_HEAD)):
        for above in range(_BITS - width, -1, -width):
            digits = (rest << width) | ((head[number] >> above) & (2**width - 1))
            part = digits // by
            rest = digits - part * by
            result[number] |= part << above
    return result, rest != 0


def _nearest(head: Limbs, power: Ints, more: Bools) -> Doubles:
    """The doubles nearest to positive numbers times two to a power; ``more``: whether digits follow."""
    size = len(more)
    all_ = np.arange(size)
    padded = np.concatenate([np.zeros((2, size), np.int64), head])
    top = _HEAD + 1 - (head != 0)[::-1].argmax(0)
    first = padded[top, all_]
    length = np.frexp(first.astype(np.float64))[1].astype(np.int64)
    second = (padded[top - 1, all_].astype(np.uint64) << np.uint64(_BITS)) | padded[top - 2, all_].astype(np.uint64)
    # 63 bits, the highest of them set, then whether others follow: more than the 53 that stay.
    leading = (first << (63 - length)) | (second >> (length + 1).astype(np.uint64)).astype(np.int64)
    more = more | (second << (63 - length).astype(np.uint64) != 0)
    for place in range(_HEAD - 1):
        more |= (place < top - 4) & (head[place] != 0)
    leading |= more
    highest = power + (top - 2) * _BITS + length - 1
    # Below the smallest normal number a double has fewer digits.
    fewer = np.clip(-1022 - highest, 0, 54)
    cut = np.minimum(10 + fewer, 63)
    leading = np.where(fewer > 53, 0, leading)
    whole, half = leading >> cut, np.left_shift(1, cut - 1)
    rest = leading - (whole << cut)
    whole += (rest > half) | ((rest == half) & (whole & 1 == 1))
    with np.errstate(over="ignore"):
        return np.ldexp(whole.astype(np.float64), (highest - 62 + cut).astype(np.int32))


def decode_numbers(array: pa.Array) -> list[tuple[int, int]]:
    """Stored numbers as Python has them: the place of the lowest limb, and the number from there on."""
    words = _Words.of(array)
    data, ends = words.words.tobytes(), 4 * (words.starts + words.sizes)
    places = np.zeros(len(ends), np.int64)
    places[words.sizes > 0] = words.places
    begins = np.minimum(4 * words.starts + 4, ends)
    whole = int.from_bytes
    return [
        (place, whole(data[begin:end], "little", signed=True))
        for place, begin, end in zip(places.tolist(), begins.tolist(), ends.tolist(), strict=True)
    ]
