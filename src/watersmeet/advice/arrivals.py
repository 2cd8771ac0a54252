"""Rows of a source as they arrived: what advice is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Source

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NO_CODE = -1
"""The code of a row that meets nothing: a part of its key is NULL."""


@dataclass(frozen=True)
class SampledRows:
    """Rows in the order in which they arrived.

    - ``source``: what is declared of them
    - ``order``: how that order is known, for people
    - ``partition``: the number of the partition that each row came from, where partitions have marks of their own
    - ``is_all``: whether these are all rows there are; else the first of them
    """

    source: Source
    rows: pa.Table
    order: str = "the order in which they were given"
    partition: Ints | None = None
    is_all: bool = True

    @property
    def name(self) -> str:
        """What the source is called."""
        return self.source.name

    def column(self, name: str) -> pa.Array:
        """A column by its name, whatever the case, as one array."""
        own_name = next(own for own in self.rows.column_names if own.lower() == name.lower())
        return pa.chunked_array(self.rows.column(own_name)).combine_chunks()

    @property
    def column_bytes(self) -> dict[str, float]:
        """The bytes that the values of each column take on average, as Arrow has them."""
        rows = max(1, self.rows.num_rows)
        return {name: round(self.rows.column(name).nbytes / rows, 2) for name in self.rows.column_names}


def numbers_of(times: pa.Array) -> tuple[Ints, Bools]:
    """Event times as whole numbers, microseconds of moments and days; and which of them are there.

    >>> numbers_of(pa.array([3, None]))
    (array([3, 0]), array([ True, False]))
    """
    kind = times.type
    if pa.types.is_date(kind):
        times = times.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind):
        times = times.cast(pa.timestamp("us", kind.tz))
    is_there = np.asarray(times.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return np.asarray(times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64), is_there


def codes_of(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """A number per row, equal where the keys are; `NO_CODE` where a part of a key is NULL."""
    codes = [np.zeros(len(side[0]), np.int64) for side in (left, right)]
    for mine, other in zip(left, right, strict=True):
        encoded = _encode(mine, other)
        split = len(mine)
        size = int(encoded.max(initial=0)) + 1
        for number, part in enumerate((encoded[:split], encoded[split:])):
            is_dead = (part == NO_CODE) | (codes[number] == NO_CODE)
            codes[number] = np.where(is_dead, NO_CODE, codes[number] * size + part)
        # Made dense again, so that the product of many parts does not grow beyond a number.
        dense = np.unique(np.concatenate(codes), return_inverse=True)[1] - int(any((c == NO_CODE).any() for c in codes))
        codes = [dense[:split].astype(np.int64), dense[split:].astype(np.int64)]
    return codes[0], codes[1]


def _encode(left: pa.Array, right: pa.Array) -> Ints:
    kind = common_type(left.type, right.type)
    both: Any = pa.chunked_array([left.cast(kind), right.cast(kind)]).combine_chunks()
    indices = pc.dictionary_encode(both).indices.fill_null(NO_CODE)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which values of both can be compared exactly; None: they do not fit, or nobody would join by them.

    >>> common_type(pa.int32(), pa.int64()), common_type(pa.string(), pa.int64())
    (DataType(int64), None)
    """
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    if any(all(is_text(kind) for kind in (left, right)) for is_text in (_is_text, pa.types.is_binary)):
        return pa.string() if _is_text(left) else pa.binary()
    is_plain = pa.types.is_decimal(left) or pa.types.is_date(left) or pa.types.is_timestamp(left)
    return left if left == right and is_plain else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
