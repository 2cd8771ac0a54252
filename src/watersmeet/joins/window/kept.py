"""What a state of a window join holds: the rows in the window of each side."""

from __future__ import annotations

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.state.kept import Keeping, Kept


def spine(identity: Identity, name: str) -> Kept:
    """The rows of a side."""
    port = ("left", "right").index(name)
    window = identity["windows"][port]
    of = " of its partition" if window["partition"] else ""
    match window["kind"]:
        case "count":
            ends = f"until {window['size']} later rows of its side{of} have come"
        case "delta":
            ends = f"until a row of its side{of} comes that is more than {window['size']} away from it"
        case _:
            ends = f"for {window['size'] / 1_000_000:g} s by the clock"
    return Kept(port, ends)


KEPT = Keeping(("window",), spine)
