"""What a state of an as-of join holds: questions that wait, and versions."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.operator import LEFT, RIGHT
from watersmeet.joins.state.kept import Keeping, Kept, Until
from watersmeet.joins.state.layout import as_int64


def spine(identity: Identity, name: str) -> Kept:
    """The questions, or the versions."""
    if name == "versions":
        return Kept(RIGHT, "until no question can ask for it; one that a newer one has replaced leaves some time later")
    if identity["direction"] != "backward":
        return Kept(LEFT, "until no better version can come")
    left, right = (one["time"] for one in identity["ports"])
    return Kept(LEFT, "until no better version can come", until=partial(_until, left, right))


def _until(own: str, other: str, rows: pa.RecordBatch) -> Until:
    return {other: as_int64(rows.column(own))}


KEPT = Keeping(("as-of",), spine)
