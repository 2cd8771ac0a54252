"""Shard labels: small integers that Spark's hash spreads evenly over the shuffle partitions.

Spark puts a row with ``shard = n`` on partition ``pmod(murmur3(n), partitions)``. Labels 0 and 1 of two shards may
well fall on one partition of two; so labels are searched that fall on each partition in turn. They depend on the number
of shards alone, because the state is kept under them.

Spark calls an operator once for each group of rows, and that costs more than the join of a few rows. So some shards of
a partition come in one group, under the label of the first of them; the state of each stays under its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_MASK = 0xFFFFFFFF
SHARDS_PER_GROUP = 32
"""The records of a group wait together, up to a limit where an operator may take some of them before the others."""


def labels(shards: int) -> tuple[int, ...]:
    """As many labels as shards, label i on partition i of that many.

    >>> [spark_hash(label) % 4 for label in labels(4)]
    [0, 1, 2, 3]
    """
    by_partition: dict[int, int] = {}
    candidate = 0
    while len(by_partition) < shards:
        by_partition.setdefault(spark_hash(candidate) % shards, candidate)
        candidate += 1
    return tuple(by_partition[partition] for partition in range(shards))


def partition_of(label: int, partitions: int) -> int:
    """The partition on which Spark puts what has that label."""
    return spark_hash(label) % partitions


@cache
def group_labels(shards: tuple[int, ...], partitions: int | None) -> Mapping[int, int]:
    """For each shard the label under which it comes: all of a group are on one partition; None: each comes alone.

    >>> group_labels(labels(4), 2) == {label: labels(4)[place % 2] for place, label in enumerate(labels(4))}
    True
    """
    if partitions is None:
        return {shard: shard for shard in shards}
    on: dict[int, list[int]] = {}
    for shard in shards:
        on.setdefault(partition_of(shard, partitions), []).append(shard)
    return {
        shard: group[place - place % SHARDS_PER_GROUP] for group in on.values() for place, shard in enumerate(group)
    }


def spark_hash(value: int) -> int:
    """Spark's ``hash(value)`` of an INT: murmur3 with seed 42.

    >>> spark_hash(0)
    933211791
    """
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) * 0x1B873593 & _MASK
    h = 42 ^ k
    h = ((h << 13 | h >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h
