"""Rows of a source as they arrived: what advice is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Source
from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration

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


Unit = Literal["time", "day", "number"]
"""What event times are: moments, counted in microseconds; days, which are a whole number of days apart; or numbers."""

_UNITS = ((DAY, "DAYS"), (HOUR, "HOURS"), (MINUTE, "MINUTES"), (SECOND, "SECONDS"), (MILLISECOND, "MILLISECONDS"))
_STEPS = 20
"""What is rounded up grows by at most one part in so many, but for lengths below so many of the smallest unit."""


def round_up(value: int, unit: Unit = "time") -> int:
    """The next length that can be said in few digits.

    >>> [round_up(seconds * SECOND) // SECOND for seconds in (0, 61, 3601, 100_000)]
    [0, 61, 3660, 100800]
    >>> round_up(1234, "number"), round_up(30 * HOUR, "day") // DAY
    (1250, 2)
    """
    if value <= 0:
        return 0
    size = DAY if unit == "day" else 1
    if unit == "time":
        size = next((size for size, _ in _UNITS if value >= _STEPS * size), 1)
    count = -(-value // size)
    # Of large counts the leading digits are enough.
    step = max(1, 5 * 10 ** (int(math.log10(count)) - 2)) if count >= 100 else 1
    return -(-count // step) * step * size


def interval(value: int, unit: Unit = "time") -> str:
    """A length as SQL has it.

    >>> interval(3720 * SECOND), interval(40, "number")
    ('INTERVAL 62 MINUTES', '40')
    """
    if unit == "number":
        return str(value)
    size, named = next(((size, named) for size, named in _UNITS if value and value % size == 0), (1, "MICROSECONDS"))
    return f"INTERVAL {value // size} {named}" if value else f"INTERVAL 0 {'DAYS' if unit == 'day' else 'SECONDS'}"


def format_length(value: float, unit: Unit = "time") -> str:
    """A length as people read it; of long ones only what matters.

    >>> format_length(3_723_456_789), format_length(5, "number")
    ('1 h 2 min', '5')
    """
    whole = round(value)
    if unit == "number":
        return f"{whole:,}"
    sizes = (DAY, HOUR, MINUTE, SECOND, MILLISECOND, 1)
    size = next((size for size in sizes if abs(whole) >= size), 1)
    finest = sizes[min(len(sizes) - 1, sizes.index(size) + 1)]
    return format_duration(round(whole / finest) * finest)


DELETES = ("-", "d", "delete", "D")
CHANGE = "_change"


@dataclass(frozen=True)
class TableAdvice:
    """A table: its rows, its keys, how many rows replace an earlier one, how many delete one."""

    arrivals: SampledRows
    rows: int
    keys: int
    replaced: int
    deleted: int

    @property
    def is_static(self) -> bool:
        """Whether nothing of it changed in what is there."""
        return self.rows > 0 and not self.replaced and not self.deleted


def advise_table(arrivals: SampledRows) -> TableAdvice | None:
    """Whether a table with a primary key ever changes; None if it has no key, or is read once as it is."""
    source = arrivals.source
    if source.kind != "table" or not source.primary_key or source.lowercase_options.get("static", "").lower() == "true":
        return None
    columns = [arrivals.column(name) for name in source.primary_key]
    codes, _ = codes_of(columns, columns)
    present = codes[codes != NO_CODE]
    keys = len(set(present.tolist()))
    deleted = 0
    names = {name.lower(): name for name in arrivals.rows.column_names}
    if CHANGE in names:
        change = arrivals.column(CHANGE)
        deleted = int(pc.sum(pc.is_in(change, value_set=pa.array(DELETES))).as_py() or 0)
    return TableAdvice(arrivals, len(codes), keys, len(present) - keys, deleted)
