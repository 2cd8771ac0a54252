"""What a state of the latest rows holds: one of each key."""

from __future__ import annotations

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import REPLACED, Keeping, Kept


def spine(identity: Identity, name: str) -> Kept:
    """The rows of the table."""
    return Kept(0, REPLACED, "weights")


KEPT = Keeping(("latest",), spine)
