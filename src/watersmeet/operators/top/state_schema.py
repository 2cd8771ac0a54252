"""What a state of the first rows in an order holds: those that are shown, and of a table all others, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from watersmeet.operators.core.changes import WEIGHT, key_ids
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.state.inspect import ShardInspector
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows that are shown, or all rows."""
    return SpineSchema(0, "until other rows rank before them" if name == "shown" else UNTIL_REPLACED, "weights")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The next arrival of all, and how many rows are shown: of each group as many as may be."""
    rows = look.rows("rows", spine(identity, "rows"))
    shown = 0
    if rows is not None and len(rows):
        weights = as_int64(rows.table.column(WEIGHT))
        _, groups = np.unique(key_ids(rows.table, tuple(identity["by"])), return_inverse=True)
        counts = np.bincount(groups, weights).astype(np.int64)
        # With ties there is no number of rows that are shown at most.
        shown = int((counts if identity.get("ties") else np.minimum(counts, int(identity["limit"]))).sum())
    return {"number": max(int(part.get("number", 0)) for part in parts), "shown": shown}


STATE_SCHEMA = StateSchema(("top",), spine, numbers=numbers)
