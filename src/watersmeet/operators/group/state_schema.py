"""What a state of a grouping holds: a row per group with what is folded, and where they must be seen again its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, as_int64
from watersmeet.operators.group.groups import END, SIGNED, EndCounts
from watersmeet.operators.state.inspect import ShardInspector
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, ExpiryTimes, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The groups, or the rows of groups."""
    (port,) = identity["ports"]
    keys = tuple(port.get("keys", ()))
    times = port.get("times", ())
    if not times:
        ends = "forever" if not identity["changes"] else "until the last row of the group is deleted"
        return SpineSchema(
            0, ends if name == "groups" else UNTIL_REPLACED, "newest" if name == "groups" else "weights", keys=keys
        )
    ends, rule = "until the watermark reaches the end of the window", "newest" if name == "groups" else "weights"
    return SpineSchema(0, ends, rule, partial(_until, times[0]), keys)


def _until(time: str, rows: pa.RecordBatch) -> ExpiryTimes:
    # A window ends when the mark reaches its end, not when it passes it.
    return {time: as_int64(rows.column(END)) - 1} if END in rows.schema.names else {}


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """How many groups end when, and the next arrival of all."""
    rows = look.rows("groups", spine(identity, "groups"))
    ends = np.zeros(0, np.int64)
    if rows is not None:
        is_windowed = END in rows.table.schema.names
        ends = as_int64(rows.table.column(END)) if is_windowed else np.full(len(rows), HIGHEST)
    counted = EndCounts().with_changes(ends, np.ones(ends.size, np.int64))
    arrivals = [int(one["number"]) for one in parts if "number" in one]
    is_signed = all(one.get(SIGNED) for one in parts if one)
    return {
        **counted.numbers,
        **({"number": max(arrivals)} if arrivals else {}),
        **({SIGNED: 1} if is_signed else {}),
    }


STATE_SCHEMA = StateSchema(("group",), spine, numbers=numbers)
