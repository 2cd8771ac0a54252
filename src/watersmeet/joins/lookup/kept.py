"""What a state of a lookup join holds: the table, and rows of the stream that wait or are held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import REPLACED, Keeping, Kept
from watersmeet.joins.state.look import Look


def spine(identity: Identity, name: str) -> Kept:
    """The rows of the table, or of the stream."""
    table = int(identity["table"])
    if name == "table":
        return Kept(table, REPLACED, "weights")
    if name == "held":
        return Kept(1 - table, "until the table is loaded")
    return Kept(1 - table, "until its table row comes, or until it has waited as long, or as many wait, as is set")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: Look) -> Mapping[str, Any]:
    """The first clock of all."""
    firsts = [one["first"] for one in parts if "first" in one]
    return {"first": min(firsts)} if firsts else {}


KEPT = Keeping(("lookup",), spine, numbers=numbers)
