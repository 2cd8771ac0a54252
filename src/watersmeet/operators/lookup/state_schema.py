"""What a state of a lookup join holds: the table, and rows of the stream that wait or are held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.inspect import ShardInspector
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of the table, or of the stream."""
    table = int(identity["table"])
    if name == "table":
        return SpineSchema(table, UNTIL_REPLACED, "weights")
    if name == "held":
        return SpineSchema(1 - table, "until the table is loaded")
    return SpineSchema(1 - table, "until a table row arrives, or a limit on time or rows is reached")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The first clock of all."""
    clocks = [part["first"] for part in parts if "first" in part]
    return {"first": min(clocks)} if clocks else {}


STATE_SCHEMA = StateSchema(("lookup",), spine, numbers=numbers)
