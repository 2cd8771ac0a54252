"""What may change of an as-of join while its state goes on: how far away a version may be, whether deletes count."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.joins.asof.versions import VOID
from watersmeet.joins.core.operator import END_OF_INPUT, LEFT, RIGHT
from watersmeet.physical.change import ChangeEffect, StageEdit
from watersmeet.physical.difference import IdentityChange


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """What follows from another tolerance, and from deletes that count; None: something else has changed, too."""
    deletes = [change for change in changes if change.path in _OF_A_TABLE]
    if not deletes:
        return _tolerance_effects(stage, changes)
    if not _are_deletes(deletes):
        return None
    rest = [change for change in changes if change not in deletes]
    further = _tolerance_effects(stage, rest) if rest else ()
    return None if further is None else [_delete_effect(stage), *further]


_OF_A_TABLE = (("ports", RIGHT, "stored"), ("ports", RIGHT, "upsert_key"))
"""What differs where deletes of a table are no versions like others any more."""


def _are_deletes(changes: Sequence[IdentityChange]) -> bool:
    """Whether all that differs is that versions of a table say whether they are deletes."""
    was, now = ({change.path[-1]: getattr(change, name) for change in changes} for name in ("was", "now"))
    is_flagged = set(now.get("stored") or ()) - set(was.get("stored") or ()) == {VOID}
    return is_flagged and set(was["stored"]) < set(now["stored"]) and not was.get("upsert_key", True)


def _delete_effect(stage: StageEdit) -> ChangeEffect:
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    change = f"deletes of {side} were versions like others, now they end the version before"
    return ChangeEffect(
        change, f"deletes of {side} count from now on; rows that were deleted before may still be found"
    )


def _tolerance_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
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
        return [ChangeEffect(change, f"{asking} find nothing further away; {stay}")]
    if after["direction"] == "forward":
        # Which versions are kept does not depend on it.
        return [ChangeEffect(change, f"{asking} find what is so far away; {stay}")]
    return [ChangeEffect(change, f"{_version_loss(stage, was)}; {stay}")]


def _version_loss(stage: StageEdit, was: int) -> str:
    """Which versions a longer tolerance cannot bring back."""
    left, right = (stage.operators[1]["ports"][port]["time"] for port in (LEFT, RIGHT))
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    watermark = None if stage.watermarks is None else stage.watermarks.get(left)
    if stage.watermarks is not None and watermark is None:
        return f"no version of {side} is gone yet"
    which = "beyond the old tolerance"
    if watermark is not None and watermark != END_OF_INPUT:
        which = f"with {stage.now.name(right)} before {stage.now.moment(watermark - was, right)}"
    return f"versions of {side} {which} may be gone, and do not come back"


CHANGE = change_effects
