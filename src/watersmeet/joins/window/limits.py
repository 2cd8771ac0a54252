"""Which partitions a limit on partitions discards, and when.

Both limits discard the partition that was least recently inserted into. The *visits* of a window are its insertions in
order: first one for each partition it has, in the order of their last insertions, then one for each new row. The answer
is, per visit, the visit at which its partition is discarded before it is visited again; if it is not, the number of
visits.
"""

from __future__ import annotations

import numpy as np

from watersmeet.joins.core.matching import Ints, stable_order


def partition_limit_ends(partitions: Ints, limit: int) -> Ints:
    """The visits that end partitions if only ``limit`` partitions are kept; one number of ``partitions`` per visit.

    A partition goes when ``limit`` others have been visited since. A later visit k brings another partition exactly if
    the previous visit of the same partition is not after the visit asked about; every visit up to that one has such a
    previous visit, too. So the answer for visit i is a number of given rank among all visits whose previous visit is at
    most i.

    >>> partition_limit_ends(np.array([0, 1, 0, 2, 1]), 2).tolist()
    [5, 3, 4, 5, 5]
    """
    size = len(partitions)
    previous, following = _neighbours(partitions)
    by_previous = np.argsort(previous, kind="stable")
    visits = np.arange(size)
    visit_counts = np.searchsorted(previous[by_previous], visits, "right")
    rank = visits + limit
    queried = np.flatnonzero(visit_counts > rank)
    ends = np.full(size, size)
    ends[queried] = _select_by_rank(by_previous, visit_counts[queried], rank[queried])
    return np.where(following > ends, ends, size)


def row_limit_ends(partitions: Ints, held: Ints, evictor: Ints, evicted: Ints, limit: int) -> Ints:
    """The visits that end partitions if only ``limit`` rows are kept.

    ``held`` says how many rows each of the first visits stands for, those of partitions that the window already has.
    ``evictor`` are the visits that evict a row each, in order, ``evicted`` the visits that had brought those rows.

    Whether a partition is discarded depends on the sizes of all others, which depend on when they were discarded
    themselves: each visit needs the outcome of the one before, so this goes through the visits of the batch one by one.

    >>> row_limit_ends(np.array([0, 1, 0, 1]), np.array([2]), np.array([], int), np.array([], int), 3).tolist()
    [4, 2, 3, 4]
    """
    size, stored = len(partitions), len(held)
    ends = [size] * size
    names, killers, victims = partitions.tolist(), evictor.tolist(), evicted.tolist()
    recent: dict[int, int] = {name: visit for visit, name in enumerate(names[:stored])}
    rows: dict[int, int] = dict(zip(recent, held.tolist(), strict=True))
    start = dict.fromkeys(names, 0)
    total, at = sum(rows.values()), 0
    for visit in range(stored, size):
        name = names[visit]
        while at < len(killers) and killers[at] == visit:
            if victims[at] >= start[name]:
                rows[name] -= 1
                total -= 1
            at += 1
        recent.pop(name, None)
        recent[name] = visit
        rows[name] = rows.get(name, 0) + 1
        total += 1
        while total > limit:
            oldest = next(iter(recent))
            ends[recent.pop(oldest)] = visit
            total -= rows.pop(oldest)
            start[oldest] = visit + 1
    return np.array(ends, np.int64)


def discard_visits(partitions: Ints, ends: Ints) -> Ints:
    """Per visit, the first visit that discards what it brought: the next end in its partition, its own or a later one.

    >>> discard_visits(np.array([0, 1, 0, 1]), np.array([4, 2, 3, 4])).tolist()
    [3, 2, 3, 4]
    """
    size = len(partitions)
    order = stable_order(partitions)
    # Partition by partition in one pass: a higher partition's numbers all lie above those of a lower one.
    floor = partitions[order] * np.int64(size + 1)
    suffix = np.minimum.accumulate((ends[order] + floor)[::-1])[::-1] - floor
    result = np.empty(size, np.int64)
    result[order] = suffix
    return result


def _neighbours(partitions: Ints) -> tuple[Ints, Ints]:
    """Per visit, the visits of the same partition before and after it: -1 if there is none, or the number of visits."""
    size = len(partitions)
    order = stable_order(partitions)
    same = partitions[order][1:] == partitions[order][:-1]
    previous, following = np.full(size, -1), np.full(size, size)
    previous[order[1:][same]] = order[:-1][same]
    following[order[:-1][same]] = order[1:][same]
    return previous, following


def _select_by_rank(values: Ints, prefix: Ints, rank: Ints) -> Ints:
    """For each question, the value of that rank (from 0) among the first ``prefix`` values: a wavelet matrix.

    The values are split by one bit at a time, highest first, each half in the order it had; counting zeros tells where
    a stretch of values lies in either half.

    >>> _select_by_rank(np.array([2, 0, 3, 1]), np.array([3, 3, 4]), np.array([0, 2, 1])).tolist()
    [0, 3, 1]
    """
    low, high, rank, result = np.zeros_like(prefix), prefix, rank, np.zeros_like(prefix)
    for bit in reversed(range(max(len(values) - 1, 0).bit_length())):
        is_one = (values >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~is_one)])
        before, upto = zeros[low], zeros[high]
        is_zero = rank < upto - before
        low = np.where(is_zero, before, zeros[-1] + low - before)
        high = np.where(is_zero, upto, zeros[-1] + high - upto)
        rank = np.where(is_zero, rank, rank - (upto - before))
        result = np.where(is_zero, result, result | (1 << bit))
        values = np.concatenate([values[~is_one], values[is_one]])
    return result
