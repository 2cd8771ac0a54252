"""Which shard a row goes to: the same on its way through the exchange, when a state is rescaled, and in the process.

Rows of one key meet in the shard of the key's code. A NULL key matches nothing, so its row may go to any shard, but it
must always go to the same one: an outer join of tables shows it, and its next version or its delete must find it there.
So a hash of other columns decides about such a row: of its primary key, or of all its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import OP, WEIGHT, row_codes
from watersmeet.joins.core.identity import CanonicalNames
from watersmeet.joins.core.matching import Ints, stable_order
from watersmeet.joins.core.port import Port
from watersmeet.joins.state.layout import as_int64


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


def null_key_columns(port: Port, columns: Iterable[str], names: CanonicalNames) -> tuple[str, ...]:
    """The columns that decide about a row with a NULL key, in an order that no alias changes.

    >>> null_key_columns(Port((), upsert_key=("a.id",)), ("a.v", "a.id", OP), CanonicalNames())
    ('a.id',)
    """
    chosen = port.upsert_key or [name for name in columns if name not in (WEIGHT, OP)]
    return tuple(sorted(chosen, key=names.canonical))


def route_codes(rows: pa.Table | pa.RecordBatch, by: str, null_keys: Sequence[str]) -> Ints:
    """The code that decides about the shard of each row: column ``by``, and where it is NULL a hash of ``null_keys``.

    Without ``null_keys`` all rows with a NULL go the same way.

    >>> rows = pa.table({"k": [7, None, None], "id": ["a", "n/a", "n/a"]})
    >>> codes = route_codes(rows, "k", ["id"])
    >>> int(codes[0]), bool(codes[1] == codes[2])
    (7, True)
    """
    column = rows.column(by)
    codes = as_int64(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    if not column.null_count or not null_keys:
        return codes
    is_null = column.is_null()
    codes = codes.copy()
    codes[is_null.to_numpy() if isinstance(is_null, pa.ChunkedArray) else is_null.to_numpy(zero_copy_only=False)] = (
        row_codes(rows.filter(is_null), null_keys)
    )
    return codes


def split_rows(batch: pa.RecordBatch, codes: Ints, shards: int) -> list[pa.RecordBatch | None]:
    """The rows of each shard, in the order they have; None where there are none.

    >>> [part and part.to_pydict() for part in split_rows(pa.record_batch({"k": [1, 3, 1]}), np.array([1, 3, 1]), 2)]
    [{'k': [1, 1]}, {'k': [3]}]
    """
    shard = shard_of(codes, shards)
    ordered = batch.take(pa.array(stable_order(shard)))
    ends = np.cumsum(np.bincount(shard, minlength=shards)).tolist()
    starts = [0, *ends[:-1]]
    return [ordered.slice(start, end - start) if end > start else None for start, end in zip(starts, ends, strict=True)]
