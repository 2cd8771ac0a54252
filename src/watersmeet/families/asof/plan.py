"""The as-of join's entry: questions and versions by key."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.joins.asof.operator import AsofJoinOperator, AsofKind
from watersmeet.joins.core.changes import OP, POSITION
from watersmeet.physical.family import JoinPlanner
from watersmeet.physical.nodes import PADDED, JoinPlan, PortInput, Route, ScanPlan
from watersmeet.physical.ports import JoinCondition, padding_of, unions_of
from watersmeet.physical.types import Types


def plan(join: AnalyzedAsofJoin, inputs: tuple[PortInput, ...], types: Types) -> JoinPlan:
    """The plan of an as-of join of questions with the versions of a source."""
    assert not join.residual, "the analysis refuses conditions across the sides"
    on = JoinCondition.of(join, inputs, types)
    # Without a key every question may ask for every version: these go to all shards, questions are spread.
    routes: tuple[Route, Route] = ("key", "key") if on.keys.pairs else ("time", "all")
    keys = _upsert_key(inputs[1])
    port_plans = [on.port_plan(inputs[p], p, routes[p], (OP,) if p == 1 and keys else ()) for p in (0, 1)]
    sides = [
        replace(
            on.operator_port(inputs[p], p, port_plans[p]),
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
        idle=inputs[0].idle + inputs[1].idle,
        unions=unions_of(inputs[0].lags + inputs[1].lags),
    )  # fmt: skip
    spread = "without a key the versions go to all shards, the questions are spread"
    why = (
        f"as-of join, {join.direction}: each left row gets the version that its time asks for",
        on.keys.why() if on.keys.pairs else spread,
        f"a left row waits until the watermark of {join.right_time} shows that its version is final",
    )
    return JoinPlan(tuple(port_plans), operator, (*sides[0].columns, *sides[1].columns), (), why, join, pads)


def _upsert_key(port_input: PortInput) -> tuple[str, ...]:
    """The primary key of the versions, if they are changes of a table."""
    versions = port_input.plan
    return versions.keys if isinstance(versions, ScanPlan) and versions.changes == "versions" else ()


PLAN = JoinPlanner(plan, changelog_mode=lambda join, port: "versions")
