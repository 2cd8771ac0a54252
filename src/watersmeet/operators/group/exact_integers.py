"""Exact whole numbers of any size, many at once: limbs of 32 bits, lowest first, as rows of an int64 array.

Invariants. All limbs but the last are within 0 and 2**32 - 1 once `carry`; the last has the sign and may grow beyond
32 bits, so that sums of many numbers never overflow. A decimal is its unscaled number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core.matching import Bools, Ints

Limbs = npt.NDArray[np.int64]
"""One column per number, one row per limb."""

_BITS = 32
_MASK = 2**_BITS - 1


def limbs_of(array: pa.Array) -> Limbs:
    """The numbers of integers, durations (two limbs) or decimals (four); what stands for NULL is 0.

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
    return np.stack([values & _MASK, values >> _BITS])


def carry(limbs: Limbs) -> Limbs:
    """The same numbers with all limbs but the last in their range.

    >>> carry(np.array([[2**33 + 1], [0]])).tolist()
    [[1], [2]]
    """
    rows = [limbs[0]]
    for limb in limbs[1:]:
        rows.append(limb + (rows[-1] >> _BITS))
        rows[-2] = rows[-2] & _MASK
    return np.stack(rows)


def is_within(limbs: Limbs, low: int, high: int) -> Bools:
    """Which carried numbers are at least ``low`` and at most ``high``.

    >>> is_within(np.array([[4, 5], [0, 0]]), -4, 4).tolist()
    [True, False]
    """
    return _is_less(limbs, high + 1) & ~_is_less(limbs, low)


def integers(limbs: Limbs) -> Ints:
    """Carried numbers of two limbs, which fit 64 bits, as such."""
    return (limbs[1] << _BITS) | limbs[0]


def decimals(limbs: Limbs, type_: pa.DataType) -> pa.Array:
    """Carried numbers of four limbs, which fit the precision, as decimals.

    >>> decimals(np.array([[125], [0], [0], [0]]), pa.decimal128(5, 2)).to_pylist()
    [Decimal('1.25')]
    """
    words = np.empty((limbs.shape[1], 4), np.uint32)
    for i in range(4):
        words[:, i] = (limbs[i] & _MASK).astype(np.uint32)
    return pa.Array.from_buffers(type_, limbs.shape[1], [None, pa.py_buffer(words.tobytes())])


def doubles(limbs: Limbs) -> npt.NDArray[np.float64]:
    """Carried numbers as doubles.

    >>> doubles(np.array([[0], [-1]])).tolist()
    [-4294967296.0]
    """
    # From the highest limb down: of the digits that a double cannot hold, only the lowest are rounded.
    total = np.zeros(limbs.shape[1])
    for i in reversed(range(limbs.shape[0])):
        total = total + np.ldexp(limbs[i].astype(np.float64), _BITS * i)
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
    result[-1] += whole[limbs.shape[0]] << _BITS if whole.shape[0] > limbs.shape[0] else 0
    return carry(np.where(negative, -result, result))


def squares(values: Ints) -> Limbs:
    """The squares of numbers of 64 bits, as four limbs that are not carried: each is below 2**34.

    >>> as_integers(carry(squares(np.array([-3, 2**62])))) == [9, 2**124]
    True
    """
    low, high = values & _MASK, values >> _BITS
    small, mixed, large = (low.astype(np.uint64) ** 2), low * high, high * high
    first, second = (small & np.uint64(_MASK)).astype(np.int64), (small >> np.uint64(_BITS)).astype(np.int64)
    middle = (2 * (mixed & _MASK), 2 * (mixed >> _BITS))
    return np.stack([first, second + middle[0], middle[1] + (large & _MASK), large >> _BITS])


def as_integers(limbs: Limbs) -> list[int]:
    """Carried numbers as Python has them.

    >>> as_integers(np.array([[1], [-1]]))
    [-4294967295]
    """
    rows = [limb.tolist() for limb in limbs]
    return [sum(limb << (_BITS * place) for place, limb in enumerate(number)) for number in zip(*rows, strict=True)]


def _is_less(limbs: Limbs, bound: int) -> Bools:
    last = limbs.shape[0] - 1
    parts = [(bound >> (_BITS * i)) & _MASK for i in range(last)] + [bound >> (_BITS * last)]
    less = np.zeros(limbs.shape[1], np.bool_)
    for limb, part in zip(limbs, parts, strict=True):
        less = (limb < part) | ((limb == part) & less)
    return less
