"""Assign rows to shards: the hash of the keys, which is Spark's ``xxhash64``, decides.

State is found by codes, so Spark and workers must compute the same ones. The hash of several columns is that of each in
turn, seeded with the hash so far; a NULL leaves it as it is, a struct is its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import OP, WEIGHT, row_codes
from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.matching import Bools, Ints, as_int64, stable_order
from watersmeet.operators.core.operator import Port

Route = Literal["key", "partition", "time", "spread", "all", "one"]
"""The route of a row: to the shard of its ``key`` (if that is NULL, to one that follows from its primary key or from
all its columns, see `route_codes`), to that of its ``partition`` (if that is NULL, all to one); without a key, to a
shard by its ``time``, or ``spread`` by all its columns (equal rows go the same way), or to ``all`` shards; or every row
to ``one`` shard.
"""

Hashes = npt.NDArray[np.uint64]
_Bytes, _Ints = npt.NDArray[np.uint8], npt.NDArray[np.int64]

SEED = 42
LONGEST_DECIMAL = 18
"""Spark keeps, and hashes, decimals of so many digits as one number of 64 bits."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
_LOW = np.uint64(0xFFFFFFFF)
_AT_ONCE = 16_384
"""So many rows stay in the cache of a core from one operation to the next."""


def code_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The hash of each row of these columns.

    >>> code_of([pa.array([1, None]), pa.array(["a", "a long text that has more than one stripe"])]).tolist()
    [-8527884376001292090, 1785739698554259205]
    """
    rows = len(columns[0])
    hashes = np.full(rows, SEED, np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, rows, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            for column in columns:
                hashes[part] = _hash_column(column.slice(start, _AT_ONCE), hashes[part])
    return hashes.view(np.int64)


def is_hashable(kind: Any) -> bool:
    """Whether `code_of` takes values of a type; floats and what is nested otherwise are left to Spark."""
    types = pa.types
    if types.is_struct(kind):
        return all(is_hashable(kind.field(n).type) for n in range(kind.num_fields))
    if types.is_decimal128(kind):
        return kind.precision <= LONGEST_DECIMAL
    is_number = types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_date32(kind)
    is_time = types.is_timestamp(kind) and kind.unit == "us"
    return is_number or is_time or types.is_string(kind) or types.is_binary(kind)


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    kind = column.type
    if pa.types.is_struct(kind):
        hashes = seeds
        for n in range(kind.num_fields):
            # `field` does not apply the struct's own NULLs; below they are.
            hashes = _hash_column(column.field(n), hashes)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(column, seeds)
    elif pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind):
        hashes = _hash_longs(_words(column), seeds)
    else:
        hashes = _hash_ints(_words(column), seeds)
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), seeds, hashes)
    return hashes


def _words(column: pa.Array) -> Hashes:
    """The values of fixed width as 64 bits, integers with their sign; arbitrary bits for NULL."""
    kind = column.type
    if pa.types.is_decimal(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64)
        return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    # A column without a value has no zeros that could be viewed.
    plain = column.cast(pa.int64()).fill_null(0) if column.null_count else column.cast(pa.int64())
    return plain.to_numpy(zero_copy_only=False).view(np.uint64)


def _hash_ints(values: Hashes, seeds: Hashes) -> Hashes:
    hashes = (seeds + _P5 + np.uint64(4)) ^ ((values & _LOW) * _P1)
    return _avalanche(_rotate_left(hashes, 23) * _P2 + _P3)


def _hash_longs(values: Hashes, seeds: Hashes) -> Hashes:
    return _avalanche(_mix_word(seeds + _P5 + np.uint64(8), values))


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    """Of all values the same step at once, as long as they are that long."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(starts)
    hashes = seeds + _P5
    long = np.flatnonzero(lengths >= 32)
    if long.size:
        hashes[long] = _hash_stripes(values, starts[long], lengths[long] // 32, seeds[long])
    hashes += lengths.astype(np.uint64)
    at, left = starts[:-1] + lengths // 32 * 32, lengths % 32
    for width in (8, 8, 8, 4, 1, 1, 1):
        long_enough = np.flatnonzero(left >= width)
        if long_enough.size:
            words = _words_at(values, at[long_enough], width)
            hashes[long_enough] = (
                _mix_word(hashes[long_enough], words)
                if width == 8
                else _mix_short_word(hashes[long_enough], words, width)
            )
            at[long_enough] += width
            left[long_enough] -= width
    return _avalanche(hashes)


def _hash_stripes(values: _Bytes, starts: _Ints, stripes: _Ints, seeds: Hashes) -> Hashes:
    """The hash of so many stripes of 32 bytes: those of the longest values go on alone."""
    order = np.argsort(-stripes, kind="stable")
    starts, stripes, seeds = starts[order], stripes[order], seeds[order]
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    for stripe in range(int(stripes[0])):
        count = int(np.searchsorted(-stripes, -stripe))
        for number, lane in enumerate(lanes):
            words = _words_at(values, starts[:count] + 32 * stripe + 8 * number, 8)
            lane[:count] = _rotate_left(lane[:count] + words * _P2, 31) * _P1
    hashes = (
        _rotate_left(lanes[0], 1) + _rotate_left(lanes[1], 7) + _rotate_left(lanes[2], 12) + _rotate_left(lanes[3], 18)
    )
    for lane in lanes:
        hashes = (hashes ^ (_rotate_left(lane * _P2, 31) * _P1)) * _P1 + _P4
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def _words_at(values: _Bytes, places: _Ints, width: int) -> Hashes:
    """So many bytes at each of these places, as one number."""
    selected = np.ascontiguousarray(values[places[:, None] + np.arange(width)])
    return selected.view(f"<u{width}").ravel().astype(np.uint64)


def _mix_short_word(hashes: Hashes, words: Hashes, width: int) -> Hashes:
    if width == 4:
        return _rotate_left(hashes ^ (words * _P1), 23) * _P2 + _P3
    return _rotate_left(hashes ^ (words * _P5), 11) * _P1


def _mix_word(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotate_left(hashes ^ (_rotate_left(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _rotate_left(values: Hashes, by: int) -> Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


# Which shard a row goes to: the same on its way through the exchange, when a state is rescaled, and in the process.
#
# Rows of one key meet in the shard of the key's code. A NULL key matches nothing, so its row may go to any shard, but
# it must always go to the same one: an outer join of tables shows it, and its next version or its delete must find it
# there. So a hash of other columns decides about such a row: of its primary key, or of all its columns.


def shard_of(codes: Ints, shards: int) -> Ints:
    """The position of each code's shard: the code well mixed, so that neighbouring keys spread.

    >>> shard_of(np.arange(6), 4).tolist()
    [0, 0, 0, 3, 1, 2]
    """
    mixed = codes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    is_power = shards & (shards - 1) == 0
    # A division takes several times as long.
    rest = mixed & np.uint64(shards - 1) if is_power else mixed % np.uint64(shards)
    return rest.astype(np.int64)


@dataclass(frozen=True)
class SkewedKeys:
    """Values of a key column that many rows of one side of a join have.

    The rows of that side are spread over all shards, by the same hash as rows with a NULL key. With ``is_copied`` it is
    the other side, of whose rows with these values every shard has a copy. A pair is found in the one shard that has
    the spread row. The column `COPY` marks all copies but the one in the shard of the key's code, so that a row is
    counted, and reported as late, once.
    """

    column: str
    values: tuple[int | str, ...]
    is_copied: bool = False

    def mask(self, rows: pa.Table | pa.RecordBatch) -> Bools:
        """The rows with one of the values, where they have the type of the column.

        >>> SkewedKeys("k", ("x", 1)).mask(pa.table({"k": ["x", None, "1"]})).tolist()
        [True, False, False]
        """
        column = rows.column(self.column)
        types = pa.types
        is_text = (
            types.is_string(column.type) or types.is_large_string(column.type) or types.is_string_view(column.type)
        )
        if not is_text and not types.is_integer(column.type):
            return np.zeros(len(column), np.bool_)
        # Both sides are compared alike, whatever the width of their integers.
        type_ = pa.string() if is_text else pa.int64()
        values = [value for value in self.values if isinstance(value, str) == is_text]
        is_skewed = pc.is_in(column.cast(type_), value_set=pa.array(values, type_), skip_nulls=True)
        return is_skewed.to_numpy() if isinstance(column, pa.ChunkedArray) else is_skewed.to_numpy(zero_copy_only=False)


COPY = "#copy"
"""The column that marks copies of rows with skewed keys; it exists only between the exchange and a step."""


def null_key_columns(port: Port, columns: Iterable[str], names: CanonicalNames) -> tuple[str, ...]:
    """The columns that decide about a row with a NULL key, in an order that no alias changes.

    >>> null_key_columns(Port((), upsert_key=("a.id",)), ("a.v", "a.id", OP), CanonicalNames())
    ('a.id',)
    """
    chosen = port.upsert_key or [name for name in columns if name not in (WEIGHT, OP)]
    return tuple(sorted(chosen, key=names.canonical))


def route_codes(
    rows: pa.Table | pa.RecordBatch, by: str, null_keys: Sequence[str], skew: SkewedKeys | None = None
) -> Ints:
    """The code that decides about the shard of each row: column ``by``, and where it is NULL a hash of ``null_keys``.

    So does this hash for rows of the side that is spread because of ``skew``.

    ``by`` is a code of keys (`Port.code`), of a partition or of a time, which Spark or the map side has computed.
    Without ``null_keys`` all rows with a NULL go the same way.

    >>> rows = pa.table({"k": [7, None, None], "id": ["a", "n/a", "n/a"]})
    >>> codes = route_codes(rows, "k", ["id"])
    >>> int(codes[0]), bool(codes[1] == codes[2])
    (7, True)
    """
    column = rows.column(by)
    codes = as_int64(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    is_spread = skew is not None and not skew.is_copied
    if not null_keys or not (column.null_count or is_spread):
        return codes
    nulls = column.is_null()
    by_row = nulls.to_numpy() if isinstance(nulls, pa.ChunkedArray) else nulls.to_numpy(zero_copy_only=False)
    if skew is not None and is_spread:
        by_row = by_row | skew.mask(rows)
    if not by_row.any():
        return codes
    codes = codes.copy()
    codes[by_row] = row_codes(rows.filter(pa.array(by_row)), null_keys)
    return codes


def split_rows(
    batch: pa.RecordBatch, codes: Ints, shards: int, skew: SkewedKeys | None = None
) -> list[pa.RecordBatch | None]:
    """Split rows by shard, in their order; None for a shard without rows.

    Every shard gets a copy of the rows that are copied because of ``skew``; then `COPY` marks copies.

    >>> [part and part.to_pydict() for part in split_rows(pa.record_batch({"k": [1, 3, 1]}), np.array([1, 3, 1]), 2)]
    [{'k': [1, 1]}, {'k': [3]}]
    >>> skew = SkewedKeys("k", (3,), is_copied=True)
    >>> parts = split_rows(pa.record_batch({"k": [1, 3, 1]}), np.array([1, 3, 1]), 2, skew)
    >>> [part and part.to_pydict() for part in parts]
    [{'k': [1, 1, 3], '#copy': [False, False, True]}, {'k': [3], '#copy': [False]}]
    """
    shard = shard_of(codes, shards)
    if skew is not None and skew.is_copied:
        home, rows = shard, np.arange(len(shard))
        copied = np.flatnonzero(skew.mask(batch))
        places = np.repeat(np.arange(shards), len(copied))
        copies = np.tile(copied, shards)
        is_away = home[copies] != places
        rows, shard = np.append(rows, copies[is_away]), np.append(shard, places[is_away])
        is_copy = np.arange(len(rows)) >= len(home)
        batch = batch.take(pa.array(rows)).append_column(COPY, pa.array(is_copy))
    ordered = batch.take(pa.array(stable_order(shard)))
    ends = np.cumsum(np.bincount(shard, minlength=shards)).tolist()
    starts = [0, *ends[:-1]]
    return [ordered.slice(start, end - start) if end > start else None for start, end in zip(starts, ends, strict=True)]
