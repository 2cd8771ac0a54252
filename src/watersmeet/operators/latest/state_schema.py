"""What a state of the latest rows holds: one of each key."""

from __future__ import annotations

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of the table."""
    return SpineSchema(0, UNTIL_REPLACED, "weights")


STATE_SCHEMA = StateSchema(("latest",), spine)
