"""An operator in several shards, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
from tests.operators.table_strategies import tuples

from watersmeet.local.query import MemoryStore, key_codes, step_in_shards
from watersmeet.operators.changelog.definition import freeze_bits
from watersmeet.operators.core.operator import Emission, StreamOperator, Watermarks
from watersmeet.operators.core.routing import Route, SkewedKeys
from watersmeet.physical import PortPlan, RelationPlan


class Sharded:
    """An operator in some shards, whose ports are routed by their codes, or in the way that is given.

    ``shard_by``: per port the columns whose hash decides about the shard, where its code does not; ``skew``: per port
    the keys whose rows are in all shards.
    """

    def __init__(
        self,
        operator: StreamOperator,
        shards: int,
        routes: tuple[Route, ...] = (),
        shard_by: tuple[tuple[str, ...], ...] = (),
        skew: tuple[SkewedKeys, ...] = (),
    ) -> None:
        self.operator = operator
        self.stores = [MemoryStore() for _ in range(shards)]
        self.ports = [
            PortPlan(
                cast("RelationPlan", None),
                side.columns,
                code=side.code,
                route=routes[n] if routes else "key",
                times=side.times,
                shard_by=shard_by[n] if shard_by else (),
                skew=skew[n] if skew else None,
            )
            for n, side in enumerate(operator.ports)
        ]

    def restart(self) -> None:
        self.stores = [store.restart() for store in self.stores]

    def step(self, tables: dict[int, pa.Table], marks: Watermarks) -> Emission:
        return step_in_shards(self.operator, self.ports, self.stores, tables, marks)


def changed(emission: Emission) -> Counter[tuple[Any, ...]]:
    """The changes that came out of all shards."""
    found: Counter[tuple[Any, ...]] = Counter()
    for table in emission.rows:
        for row in tuples(table):
            found[tuple(freeze_bits(value) for value in row[:-1])] += row[-1]
    return Counter({row: number for row, number in found.items() if number})


def with_code(table: pa.Table, code: str, keys: Sequence[str]) -> pa.Table:
    """The rows with the code of their keys, as it is sent through the exchange."""
    place = table.column_names.index(code) if code in table.column_names else None
    codes = pa.array(key_codes(table, keys))
    return table.append_column(code, codes) if place is None else table.set_column(place, code, codes)
