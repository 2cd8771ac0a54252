"""A join in several shards, in the process: rows go to the shards to which the exchange on Spark sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, row_codes
from watersmeet.joins.core.codes import code_of, is_hashable
from watersmeet.joins.core.matching import Ints
from watersmeet.joins.core.operator import Emission, Family, Marks, Report
from watersmeet.joins.core.routing import null_key_columns, route_codes, split_rows
from watersmeet.local.store import MemoryStore
from watersmeet.physical import PortPlan


def key_codes(table: pa.Table, columns: Sequence[str]) -> Ints:
    """A hash of these columns: Spark's, or another one for types whose hash only Spark knows."""
    arrays = [table.column(name).combine_chunks() for name in columns]
    arrays = [pa.concat_arrays(one.chunks) if isinstance(one, pa.ChunkedArray) else one for one in arrays]
    return code_of(arrays) if all(is_hashable(one.type) for one in arrays) else row_codes(table, columns)


def step_in_shards(
    operator: Family,
    ports: Sequence[PortPlan],
    stores: Sequence[MemoryStore],
    tables: Mapping[int, pa.Table],
    marks: Marks,
) -> Emission:
    """One batch of an operator that has as many shards as stores, as one emission."""
    some = {place: table for place, table in tables.items() if table.num_rows}
    if len(stores) == 1:
        return operator.step(stores[0], some, marks)
    operator = operator.for_shards(len(stores))
    parts = {place: _split(operator, ports[place], place, table, len(stores)) for place, table in some.items()}
    emissions: list[Emission] = []
    for shard, store in enumerate(stores):
        arrivals = {port: part[shard] for port, part in parts.items() if part[shard].num_rows}
        emissions.append(operator.step(store, arrivals, marks))
    to_all = frozenset(place for place, port in enumerate(ports) if port.route == "all")
    return _merge_emissions(operator, to_all, emissions)


def _split(operator: Family, port: PortPlan, place: int, table: pa.Table, shards: int) -> list[pa.Table]:
    """The rows of a port that go to each shard."""
    if port.route == "all":
        return [table] * shards
    names = operator.canonical
    if port.route == "spread":
        columns = sorted((name for name in port.columns if name != WEIGHT), key=names.canonical)
        codes = key_codes(table, columns)
    elif port.shard_by:
        codes = key_codes(table, port.shard_by)
    else:
        by = port.times[0] if port.route == "time" else str(port.code)
        is_partition = port.route == "partition"
        side = operator.sides[place]
        codes = route_codes(table, by, () if is_partition else null_key_columns(side, port.columns, names))
    batch = table.combine_chunks().to_batches()[0]
    parts = split_rows(batch, codes, shards)
    return [table.slice(0, 0) if part is None else pa.Table.from_batches([part]) for part in parts]


def _merge_emissions(operator: Family, to_all: frozenset[int], emissions: Sequence[Emission]) -> Emission:
    """What the shards give, as one emission; rows of ports that go to all shards count in the first."""

    def counted(place: int, numbers: Sequence[int]) -> int:
        return numbers[0] if place in to_all else sum(numbers)

    state = tuple(
        counted(place, numbers)
        for place, numbers in enumerate(zip(*(one.report.state for one in emissions), strict=True))
    )
    partitions = tuple(
        counted(place, numbers) if operator.is_partitioned(place) else max(numbers)
        for place, numbers in enumerate(zip(*(one.report.partitions for one in emissions), strict=True))
    )
    watermarks: dict[str, int] = {}
    for one in emissions:
        for name, mark in one.report.watermarks.items():
            watermarks[name] = min(mark, watermarks.get(name, mark))
    late = tuple(
        (place, table)
        for shard, one in enumerate(emissions)
        for place, table in one.late
        if not shard or place not in to_all
    )
    return Emission(
        tuple(table for one in emissions for table in one.rows),
        late,
        Report(state=state, partitions=partitions, watermarks=watermarks),
        tuple(part for one in emissions for part in one.unmatched),
    )
