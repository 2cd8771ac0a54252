"""What a state of a sync join holds: rows whose time is not complete, and times that have left and could come again."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a port that wait, or the times that were seen there."""
    kind, _, number = name.partition("/")
    port = int(number)
    if kind == "seen":
        return SpineSchema(port, "until the watermark of their side passes their time")
    times = [port_identity["time"] for port_identity in identity["ports"]]
    if len(times) > 2:
        return SpineSchema(port, "until the watermark of a side without a match passes their time")
    return SpineSchema(
        port,
        "until the watermark of the other side passes their time",
        expiry=partial(_expiry_times, times[port], times[1 - port]),
    )


def _expiry_times(own: str, other: str, rows: pa.RecordBatch) -> ExpiryTimes:
    return {other: as_int64(rows.column(own))}


STATE_SCHEMA = StateSchema(("sync",), spine)
