"""The as-of join's entry: questions and versions by key.

`FORECAST` says what the state will hold: questions until no better version can come, and versions that a question may
still choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from watersmeet.operators.asof.analyze import AnalyzedAsofJoin
from watersmeet.operators.asof.kernel import AsofJoinOperator, AsofKind
from watersmeet.operators.asof.versions import VOID
from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.operator import END_OF_INPUT, LEFT, RIGHT
from watersmeet.operators.core.routing import Route
from watersmeet.operators.explainer import PortRetention, lag_of
from watersmeet.physical.change import ChangeEffect, IdentityChange, StageEdit
from watersmeet.physical.nodes import PADDED, JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import JoinCondition, padding_of, unions_of


def plan(join: AnalyzedAsofJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of an as-of join of questions with the versions of a source."""
    on = JoinCondition.of(join, inputs, types)
    # Without a key every question may match every version: versions go to all shards, questions are spread.
    routes: tuple[Route, Route] = ("key", "key") if on.keys.pairs else ("time", "all")
    keys = _upsert_key(inputs[1])
    port_plans = [on.port_plan(inputs[p], p, routes[p], (OP,) if p == 1 and keys else ()) for p in (0, 1)]
    sides = [
        replace(
            on.operator_port(port_plans[p], p),
            times=tuple(dict.fromkeys((*inputs[p].times, time))),
            compared=time,
        )
        for p, time in enumerate((str(join.left_time), str(join.right_time)))
    ]
    if keys:
        port_plans[1] = replace(port_plans[1], position=POSITION)
        sides[1] = replace(sides[1], upsert_key=keys)
    pads = ("nulls", padding_of(join.defaults or "nulls", join.right))
    operator = AsofJoinOperator(
        cast("AsofKind", join.kind), sides[0], sides[1], join.direction, join.strict, join.tolerance,
        padded_column=None if pads[1] == "nulls" else PADDED,
        condition=on.condition,
        idle=inputs[0].idle + inputs[1].idle,
        unions=unions_of(inputs[0].lags + inputs[1].lags),
    )  # fmt: skip
    spread = "without a key, versions go to all shards and left rows are spread"
    why = (
        f"as-of join, {join.direction}: each left row gets the version that is valid at its time",
        on.keys.why() if on.keys.pairs else spread,
        f"a left row waits until the watermark of {join.right_time} proves that its version is final",
        *on.why_post_filters(),
    )
    columns = (*sides[0].columns, *sides[1].columns)
    return JoinPlan(tuple(port_plans), operator, columns, on.post_filters, why, join, pads)


def _upsert_key(side: PortPlan) -> tuple[str, ...]:
    """The primary key of the versions, if they are changes of a table."""
    versions = side.input.scan
    return versions.keys if versions is not None and versions.changes == "versions" else ()


PLAN = JoinPlanner(plan, changelog_mode=lambda join, port: "versions")


# The changes of an as-of join with which its state can continue: the tolerance, and whether deletes count.


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """Effects of another tolerance, or of counting deletes; None: another part has changed, too."""
    deletes = [change for change in changes if change.path in _OF_A_TABLE]
    if not deletes:
        return _tolerance_effects(stage, changes)
    if not _are_deletes(deletes):
        return None
    rest = [change for change in changes if change not in deletes]
    further = _tolerance_effects(stage, rest) if rest else ()
    return None if further is None else [_delete_effect(stage), *further]


_OF_A_TABLE = (("ports", RIGHT, "stored"), ("ports", RIGHT, "upsert_key"))
"""The parts of the identity that differ where deletes of a table are no longer versions."""


def _are_deletes(changes: Sequence[IdentityChange]) -> bool:
    """Whether all that differs is that versions of a table say whether they are deletes."""
    was, now = ({change.path[-1]: getattr(change, name) for change in changes} for name in ("was", "now"))
    is_flagged = set(now.get("stored") or ()) - set(was.get("stored") or ()) == {VOID}
    return is_flagged and set(was["stored"]) < set(now["stored"]) and not was.get("upsert_key", True)


def _delete_effect(stage: StageEdit) -> ChangeEffect:
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    change = f"deletes of {side} were ordinary versions, now they end the version before"
    return ChangeEffect(change, f"deletes of {side} count from now on; rows that were deleted before may still match")


def _tolerance_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    before, after = stage.operators
    never = after["strict"] and after["tolerance"] == 0
    if never or any(change.path != ("tolerance",) for change in changes):
        return None
    was, now = before["tolerance"], after["tolerance"]
    left = after["ports"][LEFT]["time"]
    change = f"the tolerance was {stage.was.amount(was, left)}, now it is {stage.now.amount(now, left)}"
    asking = f"waiting and new rows of `{stage.now.side(stage.number, LEFT)}`"
    stay = "rows that were emitted stay, with or without a match"
    if was is None or (now is not None and now < was):
        return [ChangeEffect(change, f"{asking} match nothing further away; {stay}")]
    if after["direction"] == "forward":
        # The set of stored versions does not depend on it.
        return [ChangeEffect(change, f"{asking} match versions that far away; {stay}")]
    return [ChangeEffect(change, f"{_version_loss(stage, was)}; {stay}")]


def _version_loss(stage: StageEdit, was: int) -> str:
    """Describe the versions that a longer tolerance cannot bring back."""
    left, right = (stage.operators[1]["ports"][port]["time"] for port in (LEFT, RIGHT))
    side = f"`{stage.now.side(stage.number, RIGHT)}`"
    watermark = None if stage.watermarks is None else stage.watermarks.get(left)
    if stage.watermarks is not None and watermark is None:
        return f"no version of {side} has been removed yet"
    which = "beyond the old tolerance"
    if watermark is not None and watermark != END_OF_INPUT:
        which = f"with {stage.now.name(right)} before {stage.now.moment(watermark - was, right)}"
    return f"versions of {side} {which} may have been removed, and do not come back"


CHANGE = change_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """Questions wait for the versions' watermark; versions are retained one per key, plus those within reach."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedAsofJoin)
    ahead = 0 if join.direction == "backward" else join.tolerance or 0
    back = join.tolerance or 0 if join.direction == "nearest" else 0
    return (
        PortRetention(0, "time", lag_of(plan, 1) + ahead, f"the lag of {join.right_time}", behind=1),
        PortRetention(1, "keys", law="the latest version of every key"),
        PortRetention(1, "time", lag_of(plan, 0) + back, f"the lag of {join.left_time}", behind=0),
    )


FORECAST = forecast
