"""What may change of a lookup join while its state goes on: whether rows wait for their table rows."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.physical.change import CLOCK, ChangeEffect, StageEdit
from watersmeet.physical.difference import IdentityChange


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """What follows from another way with table rows that come late; None: something else has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        if change.path == ("late_table",):
            effects.append(_late_effect(stage))
        elif change.path == CLOCK:
            effects.append(_clock_effect(stage, follows_it=change.now))
        else:
            return None
    return effects


def _late_effect(stage: StageEdit) -> ChangeEffect:
    after = stage.operators[1]
    side = f"`{stage.now.side(stage.number, 1 - int(after['table']))}`"
    if after["late_table"] == "ignore":
        change = f"rows of {side} were shown once more when their table rows came late, now they are not"
        return ChangeEffect(change, f"rows of {side} that wait are forgotten; they have come out alone")
    change = f"rows of {side} are shown once more when their table rows come late, and were not"
    return ChangeEffect(change, f"rows of {side} that came out alone until now are not shown once more")


def _clock_effect(stage: StageEdit, *, follows_it: bool) -> ChangeEffect:
    sides = stage.now.sides(stage.number)
    if not follows_it:
        return ChangeEffect(
            f"the join of {sides} followed the clock, and does not now",
            "the clock ends no wait for a table row any more, and a side that is silent holds the result back",
        )
    return ChangeEffect(
        f"the join of {sides} follows the clock now, and did not",
        "rows wait for a table row no longer than is set, and a side is idle after as long as is set, if anything is",
    )


CHANGE = change_effects
