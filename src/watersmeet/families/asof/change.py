"""What may change of an as-of join while its state goes on: how far back a version may be."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.joins.core.operator import END_OF_INPUT, LEFT, RIGHT
from watersmeet.physical.change import Follows, Stage
from watersmeet.physical.difference import Change


def follows(stage: Stage, changes: Sequence[Change]) -> Sequence[Follows] | None:
    """What follows from another tolerance of a join that looks back; None: something else has changed, too."""
    before, after = stage.operators
    never = after["strict"] and after["tolerance"] == 0
    if before["direction"] != "backward" or never or any(change.path != ("tolerance",) for change in changes):
        return None
    was, now = before["tolerance"], after["tolerance"]
    left, right = (after["ports"][port]["time"] for port in (LEFT, RIGHT))
    told, side = stage.now, f"`{stage.now.side(stage.number, RIGHT)}`"
    change = f"the tolerance was {stage.was.amount(was, left)}, now it is {told.amount(now, left)}"
    if was is not None and (now is None or now > was):
        mark = None if stage.marks is None else stage.marks.get(left)
        if stage.marks is not None and mark is None:
            return [Follows(change, f"no version of {side} is gone yet")]
        which = "beyond the old tolerance"
        if mark is not None and mark != END_OF_INPUT:
            which = f"with {told.name(right)} before {told.moment(mark - was, right)}"
        gone = f"versions of {side} {which} may be gone, and do not come back"
        return [Follows(change, f"{gone}; answers that were given stay")]
    waiting = f"rows of `{told.side(stage.number, LEFT)}` that wait, and all that come, find nothing further away"
    return [Follows(change, f"{waiting}; answers that were given stay")]


CHANGE = follows
