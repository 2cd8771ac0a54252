"""What a state of the first rows in an order holds: those that are shown, and of a table all others, too."""

from __future__ import annotations

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import REPLACED, Keeping, Kept


def spine(identity: Identity, name: str) -> Kept:
    """The rows that are shown, or all rows."""
    return Kept(0, "until others are before it" if name == "shown" else REPLACED, "weights")


KEPT = Keeping(("top",), spine)
