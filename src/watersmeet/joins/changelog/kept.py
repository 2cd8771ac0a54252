"""What a state of a join of tables holds: the rows of both."""

from __future__ import annotations

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import REPLACED, Keeping, Kept


def spine(identity: Identity, name: str) -> Kept:
    """The rows of a side."""
    return Kept(("left", "right").index(name), REPLACED, "weights")


KEPT = Keeping(("merge", "block-nested"), spine)
