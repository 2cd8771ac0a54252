"""The states of the shards of one group, over Spark's own state store.

A request to Spark's store takes longer than a join of few rows. So the values that a batch will most likely read are
fetched for all shards at once, and its writes are buffered until all of them are done.

Shard labels are small integers that Spark's hash spreads evenly over the shuffle partitions: Spark puts a row with
``shard = n`` on partition ``pmod(murmur3(n), partitions)``, so labels are searched that fall on each partition in turn.
They depend only on the number of shards, because the state is stored under them. Spark calls an operator once per group
of rows, which costs more than joining a few rows, so several shards of a partition form one group under the label of
the first; the state of each stays under its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from watersmeet.operators.state.blocks import cache_run, runs_to_fetch
from watersmeet.operators.state.format import DIRECTORY, RUN
from watersmeet.spark.private.introspection import enter_state, state_partitions
from watersmeet.spark.private.transfer import decode_value, pipeline_requests, put

_MASK = 0xFFFFFFFF
SHARDS_PER_GROUP = 32
"""The records of a group are buffered together, up to a limit if the operator may split a batch."""


@cache
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
    """The partition to which Spark assigns a label."""
    return spark_hash(label) % partitions


@cache
def group_labels(shards: tuple[int, ...], partitions: int | None) -> Mapping[int, int]:
    """The label under which each shard is grouped: shards of a group are on one partition; None: no groups.

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


@cache
def group_members(shards: tuple[int, ...], partitions: int | None) -> Mapping[int, tuple[int, ...]]:
    """The shards of each group, by its label.

    >>> group_members((0, 1, 5), None)
    {0: (0,), 1: (1,), 5: (5,)}
    """
    members: dict[int, tuple[int, ...]] = {}
    for shard, label in group_labels(shards, partitions).items():
        members[label] = (*members.get(label, ()), shard)
    return members


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


# As types, not as text: the JVM would parse a text again in every task.
NAME = StructType([StructField("name", StringType())])
VALUE = StructType([StructField("value", BinaryType())])
WAITING = 4 * 2**20
"""Writes of a group are flushed once this many bytes are buffered."""
RUNS_PER_FETCH = 16
"""The number of runs fetched at once."""


class States:
    """The states of a group. Spark groups it under the label of one of its shards, whose state is current first."""

    def __init__(self, handle: StatefulProcessorHandle, state: Any, label: int) -> None:
        self.handle = handle
        self.state = state
        self.label = self.entered = label
        self.stores: list[SparkStore] = []
        self.waiting = 0

    def store(self, shard: int, prefix: str = "", owner: str = "") -> SparkStore:
        """The part of a shard's state with the name prefix ``prefix``; ``owner`` identifies it in caches."""
        self.stores.append(SparkStore(self, shard, prefix, owner))
        return self.stores[-1]

    def enter(self, shard: int) -> bool:
        """Make requests apply to the state of that shard; returns whether a request was needed."""
        if self.entered == shard:
            return False
        _check_place(shard, self.label)
        enter_state(self.handle, shard)
        self.entered = shard
        return True

    def fetch(self) -> None:
        """Fetch what a step will most likely read: the directories, then small runs that are not cached."""
        directories = self._fetch_values(
            [(store, DIRECTORY) for store in self.stores if DIRECTORY not in store.changed]
        )
        missing: list[tuple[SparkStore, str, str]] = []
        for (store, name), value in directories.items():
            store.fetched[name] = value
            missing += [] if value is None else [(store, *run) for run in runs_to_fetch(value)]
        # The first run shows how wide rows are.
        start, size = 0, 1
        while start < len(missing):
            some = missing[start : start + size]
            values = self._fetch_values([(store, RUN + name) for store, _, name in some])
            for store, owner, name in some:
                value = values[store, RUN + name]
                if value is not None and not cache_run(owner, name, value):
                    return
            start, size = start + size, RUNS_PER_FETCH

    def flush(self) -> None:
        """Write buffered changes."""
        self.waiting = 0
        with pipeline_requests(self.handle):
            for store in self.stores:
                store.write()

    def _fetch_values(self, names: Iterable[tuple[SparkStore, str]]) -> Mapping[tuple[SparkStore, str], bytes | None]:
        """Values of several stores in one round trip."""
        requests: list[tuple[SparkStore, str] | None] = []
        values: list[Any] = []
        with pipeline_requests(self.handle) as answers:
            for store, name in names:
                if self.enter(store.shard):
                    requests.append(None)
                    values.append(None)
                requests.append((store, name))
                values.append(self.state.getValue((store.prefix + name,)))
        if answers is not None:
            values = [decode_value(self.handle, answer) for answer in answers]
        return {
            request: None if value is None else bytes(value[0])
            for request, value in zip(requests, values, strict=True)
            if request is not None
        }


class SparkStore:
    """A shard's part of Spark's state store, as the store of an operator; all its names begin with ``prefix``.

    ``changed`` holds unwritten values, None where a name was removed; ``fetched`` holds prefetched values.
    """

    def __init__(self, states: States, shard: int, prefix: str, owner: str) -> None:
        self.states = states
        self.shard = shard
        self.prefix = prefix
        self.owner = owner
        self.fetched: dict[str, bytes | None] = {}
        self.changed: dict[str, bytes | None] = {}

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        if name in self.changed:
            return self.changed[name]
        if name in self.fetched:
            return self.fetched[name]
        self.states.enter(self.shard)
        value = self.states.state.getValue((self.prefix + name,))
        return None if value is None else bytes(value[0])

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name."""
        self._change(name, value)

    def remove(self, name: str) -> None:
        """Remove the value of that name."""
        self._change(name, None)

    def write(self) -> None:
        """Write buffered changes, one request per name; see `States.flush`."""
        if self.changed:
            self.states.enter(self.shard)
        for name, value in self.changed.items():
            if value is None:
                self.states.state.removeKey((self.prefix + name,))
            else:
                put(self.states.state, self.prefix + name, value)
        self.changed = {}

    def _change(self, name: str, value: bytes | None) -> None:
        self.fetched.pop(name, None)
        self.changed[name] = value
        self.states.waiting += len(value or b"")
        if self.states.waiting > WAITING:
            self.states.flush()


def _check_place(shard: int, label: int) -> None:
    """Fail where the state of a shard would not be in the partition of its group: the next batch would not find it.

    The task number does not give the partition: where two stages feed one, it counts the tasks of both.
    """
    partitions = state_partitions()
    if partitions is None or partition_of(shard, partitions) != partition_of(label, partitions):
        raise RuntimeError(f"shards {shard} and {label} are not on one of {partitions} partitions")
