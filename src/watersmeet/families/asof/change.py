"""What may change of an as-of join while its state goes on: how far away a version may be, whether deletes count."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.joins.asof.versions import VOID
from watersmeet.joins.core.operator import END_OF_INPUT, LEFT, RIGHT
from watersmeet.physical.change import Follows, Stage
from watersmeet.physical.difference import Change


def follows(stage: Stage, changes: Sequence[Change]) -> Sequence[Follows] | None:
    """What follows from another tolerance, and from deletes that count; None: something else has changed, too."""
    deletes = [change for change in changes if change.path in _OF_A_TABLE]
    if not deletes:
        return _tolerance(stage, changes)
    if not _are_deletes(deletes):
        return None
    rest = [change for change in changes if change not in deletes]
    further = _tolerance(stage, rest) if rest else ()
    return None if further is None else [_deletes(stage), *further]


_OF_A_TABLE = (("ports", RIGHT, "stored"), ("ports", RIGHT, "upsert_key"))
"""What differs where deletes of a table are no versions like others any more."""


def _are_deletes(changes: Sequence[Change]) -> bool:
    """Whether all that differs is that versions of a table say whether they are deletes."""
    was, now = ({change.path[-1]: getattr(change, name) for change in changes} for name in ("was", "now"))
    is_flagged = set(now.get("stored") or ()) - set(was.get("stored") or ()) == {VOID}
    return is_flagged and set(was["stored"]) < set(now["stored"]) and not was.get("upsert_key", True)


def _deletes(stage: Stage) -> Follows:
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    change = f"deletes of {side} were versions like others, now they end the version before"
    return Follows(change, f"deletes of {side} count from now on; rows that were deleted before may still be found")


def _tolerance(stage: Stage, changes: Sequence[Change]) -> Sequence[Follows] | None:
    before, after = stage.operators
    never = after["strict"] and after["tolerance"] == 0
    if never or any(change.path != ("tolerance",) for change in changes):
        return None
    was, now = before["tolerance"], after["tolerance"]
    left = after["ports"][LEFT]["time"]
    change = f"the tolerance was {stage.was.amount(was, left)}, now it is {stage.now.amount(now, left)}"
    asking = f"rows of `{stage.now.side(stage.number, LEFT)}` that wait, and all that come,"
    stay = "answers that were given stay, and so do rows that came out without one"
    if was is None or (now is not None and now < was):
        return [Follows(change, f"{asking} find nothing further away; {stay}")]
    if after["direction"] == "forward":
        # Which versions are kept does not depend on it.
        return [Follows(change, f"{asking} find what is so far away; {stay}")]
    return [Follows(change, f"{_gone(stage, was)}; {stay}")]


def _gone(stage: Stage, was: int) -> str:
    """Which versions a longer tolerance cannot bring back."""
    left, right = (stage.operators[1]["ports"][port]["time"] for port in (LEFT, RIGHT))
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    mark = None if stage.marks is None else stage.marks.get(left)
    if stage.marks is not None and mark is None:
        return f"no version of {side} is gone yet"
    which = "beyond the old tolerance"
    if mark is not None and mark != END_OF_INPUT:
        which = f"with {stage.now.name(right)} before {stage.now.moment(mark - was, right)}"
    return f"versions of {side} {which} may be gone, and do not come back"


CHANGE = follows
