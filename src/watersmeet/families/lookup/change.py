"""What may change of a lookup join while its state goes on: whether rows wait for their table rows."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.physical.change import CLOCK, Follows, Stage
from watersmeet.physical.difference import Change


def follows(stage: Stage, changes: Sequence[Change]) -> Sequence[Follows] | None:
    """What follows from another way with table rows that come late; None: something else has changed, too."""
    found: list[Follows] = []
    for change in changes:
        if change.path == ("late_table",):
            found.append(_late(stage))
        elif change.path == CLOCK:
            found.append(_clock(stage, follows_it=change.now))
        else:
            return None
    return found


def _late(stage: Stage) -> Follows:
    after = stage.operators[1]
    side = f"`{stage.now.side(stage.number, 1 - int(after['table']))}`"
    if after["late_table"] == "ignore":
        change = f"rows of {side} were shown once more when their table rows came late, now they are not"
        return Follows(change, f"rows of {side} that wait are forgotten; they have come out alone")
    change = f"rows of {side} are shown once more when their table rows come late, and were not"
    return Follows(change, f"rows of {side} that came out alone until now are not shown once more")


def _clock(stage: Stage, *, follows_it: bool) -> Follows:
    sides = stage.now.sides(stage.number)
    if not follows_it:
        return Follows(
            f"the join of {sides} followed the clock, and does not now",
            "the clock ends no wait for a table row any more, and a side that is silent holds the result back",
        )
    return Follows(
        f"the join of {sides} follows the clock now, and did not",
        "rows wait for a table row no longer than is set, and a side is idle after as long as is set, if anything is",
    )


CHANGE = follows
