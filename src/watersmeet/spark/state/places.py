"""In which of so many shards the rows of a state belong: where the exchange would send them if they came now."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints
from watersmeet.operators.core.routing import route_codes, shard_of
from watersmeet.operators.state.reshard import ShardAssignment
from watersmeet.operators.state.state_schema import StateSchema, UnevenError

CODE = "#code"
_OF_STREAMS = frozenset({"interval"})
"""Operators of which no row is ever taken back: where such a row is spread to does not matter."""


def make_shard_assignment(stage: Identity, keeping: StateSchema, shards: int) -> ShardAssignment:
    """Where the rows of a stage belong."""
    operator = stage["operator"]
    check_resharding(stage)

    def assign_shards(spine: str, batch: pa.RecordBatch) -> Ints | None:
        port = keeping.spine(operator, spine).port
        match stage["ports"][port]["route"]:
            case "all":
                return None
            case "spread":
                return np.arange(batch.num_rows, dtype=np.int64) % np.int64(shards)
            case "time":
                own = operator["ports"][port]
                by = own.get("time") or own["times"][0]
            case _:
                by = _code(operator, port, batch, spine)
        return shard_of(route_codes(batch, by, _null_keys(stage, port, batch)), shards)

    return assign_shards


def _null_keys(stage: Identity, port: int, batch: pa.RecordBatch) -> list[str]:
    """The columns that decide about rows with a NULL key; any will do where such rows are never taken back."""
    if stage["ports"][port]["route"] == "partition":
        return []
    ports = stage["operator"].get("ports", ())
    upsert_key: list[str] = ports[port].get("upsert_key", []) if port < len(ports) else []
    return upsert_key or sorted(name for name in batch.schema.names if name != WEIGHT)


def is_unsharded(stage: Identity) -> bool:
    """Whether a stage has one shard, whatever their number."""
    return stage["ports"][0]["route"] == "one"


def check_resharding(stage: Identity) -> None:
    """Raise what speaks against another number of shards."""
    operator = stage["operator"]
    for port in stage["ports"]:
        if port["sharded by"]:
            raise UnevenError("its windows are partitioned by a part of its keys, whose hash is not in the state")
        if port["route"] == "spread" and operator["family"] not in _OF_STREAMS:
            raise UnevenError("it joins tables without an equality, whose rows are spread by all their columns")


def _code(operator: Identity, port: int, batch: pa.RecordBatch, spine: str) -> str:
    ports = operator.get("ports", ())
    own_code = ports[port].get("code") if port < len(ports) else None
    for name in (own_code, CODE):
        if name is not None and name in batch.schema.names:
            return name
    raise UnevenError(f"the rows of `{spine}` do not show how they were spread")
