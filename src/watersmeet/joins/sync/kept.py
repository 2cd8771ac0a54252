"""What a state of a sync join holds: rows whose time is not complete, and times that have left and could come again."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import Keeping, Kept, Until
from watersmeet.joins.state.layout import as_int64


def spine(identity: Identity, name: str) -> Kept:
    """The rows of a port that wait, or the times that were seen there."""
    what, _, number = name.partition("/")
    port = int(number)
    if what == "seen":
        return Kept(port, "until the watermark of its side has passed it")
    times = [one["time"] for one in identity["ports"]]
    if len(times) > 2:
        return Kept(port, "until the watermark of a side without its time has passed it")
    return Kept(
        port, "until the watermark of the other side has passed it", until=partial(_until, times[port], times[1 - port])
    )


def _until(own: str, other: str, rows: pa.RecordBatch) -> Until:
    return {other: as_int64(rows.column(own))}


KEPT = Keeping(("sync",), spine)
