"""What a state of an as-of join holds: questions that wait, and versions."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import LEFT, RIGHT
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The questions, or the versions."""
    if name == "versions":
        return SpineSchema(RIGHT, "until no left row can need it; a replaced version may stay a little longer")
    if identity["direction"] != "backward":
        return SpineSchema(LEFT, "until no better version can arrive")
    left, right = (port["time"] for port in identity["ports"])
    return SpineSchema(LEFT, "until no better version can arrive", expiry=partial(_expiry_times, left, right))


def _expiry_times(own: str, other: str, rows: pa.RecordBatch) -> ExpiryTimes:
    return {other: as_int64(rows.column(own))}


STATE_SCHEMA = StateSchema(("as-of",), spine)
