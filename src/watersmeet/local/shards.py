"""A join in several shards, in the process: rows go to the shards to which the exchange on Spark sends them.

`MemoryStore` is the state of one shard in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import WEIGHT, row_codes
from watersmeet.operators.core.matching import Ints
from watersmeet.operators.core.operator import Emission, StepReport, StreamOperator, Watermarks
from watersmeet.operators.core.routing import code_of, is_hashable, null_key_columns, route_codes, split_rows
from watersmeet.physical import PortPlan


class MemoryStore:
    """Values by name in a dictionary, for running a join's steps in the process.

    >>> store = MemoryStore()
    >>> store.put("a", b"1")
    >>> store.get("a"), store.get("b")
    (b'1', None)
    """

    def __init__(self, values: Mapping[str, bytes] | None = None, owner: str | None = None) -> None:
        self._values = dict(values or {})
        self.owner = uuid4().hex if owner is None else owner

    @property
    def values(self) -> Mapping[str, bytes]:
        """All values by name, as they are now."""
        return dict(self._values)

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name; a copy, so that nothing outside can change it later."""
        self._values[name] = bytes(value)

    def remove(self, name: str) -> None:
        """Forget the value of that name, if there is one."""
        self._values.pop(name, None)

    def restart(self) -> MemoryStore:
        """The store after a restart: the same values, and nothing else from memory."""
        return MemoryStore({name: bytes(bytearray(value)) for name, value in self._values.items()}, self.owner)


def key_codes(table: pa.Table, columns: Sequence[str]) -> Ints:
    """A hash of these columns: Spark's, or another one for types whose hash only Spark knows."""
    if not columns:
        # A cross join whose result shows no column of that side.
        return np.zeros(table.num_rows, np.int64)
    arrays = [table.column(name).combine_chunks() for name in columns]
    arrays = [pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array for array in arrays]
    return code_of(arrays) if all(is_hashable(array.type) for array in arrays) else row_codes(table, columns)


def step_in_shards(
    operator: StreamOperator,
    ports: Sequence[PortPlan],
    stores: Sequence[MemoryStore],
    tables: Mapping[int, pa.Table],
    watermarks: Watermarks,
) -> Emission:
    """One batch of an operator that has as many shards as stores, as one emission."""
    some = {place: table for place, table in tables.items() if table.num_rows}
    if len(stores) == 1:
        return operator.step(stores[0], some, watermarks)
    operator = operator.for_shards(len(stores))
    parts = {place: _split(operator, ports[place], place, table, len(stores)) for place, table in some.items()}
    emissions: list[Emission] = []
    for shard, store in enumerate(stores):
        arrivals = {port: part[shard] for port, part in parts.items() if part[shard].num_rows}
        emissions.append(operator.step(store, arrivals, watermarks))
    to_all = frozenset(place for place, port in enumerate(ports) if port.route == "all")
    return _merge_emissions(operator, to_all, emissions)


def _split(operator: StreamOperator, port: PortPlan, place: int, table: pa.Table, shards: int) -> list[pa.Table]:
    """The rows of a port that go to each shard."""
    if port.route == "all":
        return [table] * shards
    names = operator.canonical_names
    if port.route == "spread":
        columns = sorted((name for name in port.columns if name != WEIGHT), key=names.canonical)
        codes = key_codes(table, columns)
    elif port.shard_by:
        codes = key_codes(table, port.shard_by)
    else:
        by = port.times[0] if port.route == "time" else str(port.code)
        is_partition = port.route == "partition"
        side = operator.ports[place]
        codes = route_codes(table, by, () if is_partition else null_key_columns(side, port.columns, names))
    batch = table.combine_chunks().to_batches()[0]
    parts = split_rows(batch, codes, shards)
    return [table.slice(0, 0) if part is None else pa.Table.from_batches([part]) for part in parts]


def _merge_emissions(operator: StreamOperator, to_all: frozenset[int], emissions: Sequence[Emission]) -> Emission:
    """The emissions of the shards as one; rows of ports that go to all shards count in the first."""

    def merge_counts(place: int, numbers: Sequence[int]) -> int:
        return numbers[0] if place in to_all else sum(numbers)

    state = tuple(
        merge_counts(place, numbers)
        for place, numbers in enumerate(zip(*(emission.report.state for emission in emissions), strict=True))
    )
    partitions = tuple(
        merge_counts(place, numbers) if operator.is_partitioned(place) else max(numbers)
        for place, numbers in enumerate(zip(*(emission.report.partitions for emission in emissions), strict=True))
    )
    watermarks: dict[str, int] = {}
    for emission in emissions:
        for name, watermark in emission.report.watermarks.items():
            watermarks[name] = min(watermark, watermarks.get(name, watermark))
    late = tuple(
        (place, table)
        for shard, emission in enumerate(emissions)
        for place, table in emission.late
        if not shard or place not in to_all
    )
    return Emission(
        tuple(table for emission in emissions for table in emission.rows),
        late,
        StepReport(state=state, partitions=partitions, watermarks=watermarks),
        tuple(part for emission in emissions for part in emission.unmatched),
    )
