"""What a state of a join of tables holds: the rows of both."""

from __future__ import annotations

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    return SpineSchema(("left", "right").index(name), UNTIL_REPLACED, "weights")


STATE_SCHEMA = StateSchema(("merge", "block-nested"), spine)
