"""What a state of a lookup join holds: the table, and rows of the stream that wait or are held back."""

from __future__ import annotations

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import REPLACED, Keeping, Kept


def spine(identity: Identity, name: str) -> Kept:
    """The rows of the table, or of the stream."""
    table = int(identity["table"])
    if name == "table":
        return Kept(table, REPLACED, "weights")
    if name == "held":
        return Kept(1 - table, "until the table is loaded")
    return Kept(1 - table, "until its table row comes, or until it has waited as long, or as many wait, as is set")


KEPT = Keeping(("lookup",), spine)
