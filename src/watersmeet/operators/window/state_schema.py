"""What a state of a window join holds: the rows in the window of each side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.inspect import ShardInspector, SpineRows
from watersmeet.operators.state.state_schema import SpineSchema, StateSchema, UnevenError


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    port = ("left", "right").index(name)
    window = identity["windows"][port]
    of = " in the same partition" if window["partition"] else ""
    match window["kind"]:
        case "count":
            ends = f"until {window['size']} later rows of their side{of} arrive"
        case "delta":
            ends = f"until a row of their side{of} arrives that differs by more than {window['size']}"
        case _:
            ends = f"for {window['size'] / 1_000_000:g} s by the clock"
    return SpineSchema(port, ends)


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """What shards knew, as one of them: rows are numbered anew, and partitions counted."""
    first = parts[0]
    if any(one.get("run") != first.get("run") for one in parts):
        raise UnevenError("its shards are not all at the same batch")
    # A row in any of them lets time go on.
    suspended = [all(one["suspended"][port] for one in parts) for port in (0, 1)]
    clocks = {
        name: pick((one[name] for one in parts if one.get(name) is not None), default=None)
        for name, pick in (("clock", max), ("first_clock", min))
    }
    sides = [look.rows(name, spine(identity, name)) for name in ("left", "right")]
    partitions = [_partitions(rows, identity["windows"][port]["partition"]) for port, rows in enumerate(sides)]
    number = sum(0 if rows is None else len(rows) for rows in sides)
    return {**first, **clocks, "number": number, "suspended": suspended, "partitions": partitions}


def _partitions(rows: SpineRows | None, columns: Sequence[str]) -> int:
    """How many partitions rows have; without any, all of them are one."""
    if rows is None or not len(rows):
        return 0
    return len(np.unique(key_ids(rows.table, tuple(columns)))) if columns else 1


STATE_SCHEMA = StateSchema(("window",), spine, numbers=numbers, arrival="#number")
