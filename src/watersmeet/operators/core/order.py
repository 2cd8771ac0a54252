"""The order of rows by values of theirs, and the first of them.

Rows are ordered ascending or descending, NULLs first or last; NaN is greater than any number, and -0.0 equals 0.0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints

MOST_RANKS = 2**31 - 1
"""The limit of ranks where there is none: they are INTs, as in Spark."""


@dataclass(frozen=True)
class SortColumn:
    """A column that rows are ordered by."""

    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class TopN:
    """A top-N of a table: the first ``limit`` rows in an order, of each group ``by`` columns.

    >>> rows = pa.record_batch({"k": [1, 1, 1, 2], "n": [5, 7, 7, 1]})
    >>> TopN(("k",), (SortColumn("n", descending=True),), 1).find_candidates(rows).tolist()
    [False, True, True, True]
    """

    by: tuple[str, ...]
    order: tuple[SortColumn, ...]
    limit: int

    def find_candidates(self, rows: pa.RecordBatch) -> Bools:
        """A mask of the rows that may be among the first N, whatever arrives later: fewer than N rows precede them.

        Rows that are equal in the order do not precede each other.
        """
        size: int = rows.num_rows
        if not size:
            return np.zeros(0, np.bool_)
        groups = key_ids(rows, self.by) if self.by else np.zeros(size, np.int64)
        ranks = [ranks_of(rows.column(by.column), by) for by in self.order]
        candidates = np.arange(size)
        if self.limit == 1:
            # What another is before by what counts first need not be sorted.
            candidates = np.flatnonzero(are_least(ranks[0], groups))
        candidates = candidates[np.lexsort((*(rank[candidates] for rank in reversed(ranks)), groups[candidates]))]
        begins = _group_starts(groups[candidates])
        differs = begins.copy()
        for rank in ranks:
            differs |= _group_starts(rank[candidates])
        is_candidate = np.zeros(size, np.bool_)
        is_candidate[candidates] = _last_start(differs) - _last_start(begins) < self.limit
        return is_candidate


def are_least(ranks: Ints, groups: Ints) -> Bools:
    """A mask of the rows with the lowest rank of their group."""
    least = np.full(int(groups.max(initial=-1)) + 1, HIGHEST)
    np.minimum.at(least, groups, ranks)
    return ranks == least[groups]


def ranks_of(array: pa.Array, by: SortColumn) -> Ints:
    """For each value a number that is less where it comes first, and the same where values are equal."""
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type) and array.type != pa.uint64():
        places = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if places.min(initial=0) <= -HIGHEST or places.max(initial=0) >= HIGHEST - 1:
            # There must be a number for NULL beyond all of them, and each must have a negative.
            places = np.unique(places, return_inverse=True)[1].astype(np.int64)
    else:
        places = _places(array)
    places = -places if by.descending else places
    if not is_null.any():
        return places
    nowhere = int(np.abs(places).max(initial=0)) + 1
    return np.where(is_null, nowhere if by.nulls_last else -nowhere, places)


def _places(array: pa.Array) -> Ints:
    """The place of each value among all, the same where values are equal."""
    plain = array
    if pa.types.is_temporal(array.type) and not pa.types.is_date32(array.type):
        plain = array.view(pa.int64())
    elif pa.types.is_boolean(array.type):
        plain = array.cast(pa.int8())
    order = pc.sort_indices(plain).to_numpy()
    sorted_ = plain.take(pa.array(order))
    places = np.zeros(len(array), np.int64)
    if len(array) > 1:
        places[order[1:]] = np.cumsum(~null_safe_equal(sorted_.slice(1), sorted_.slice(0, len(array) - 1)))
    return places


def _group_starts(values: Ints) -> Bools:
    """A mask of the values that differ from the one before."""
    return np.append(True, values[1:] != values[:-1])


def _last_start(begins: Bools) -> Ints:
    """For each place the last one, up to it, where something begins."""
    return np.maximum.accumulate(np.where(begins, np.arange(begins.size), 0))
