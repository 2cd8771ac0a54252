"""The as-of join's entry: questions and versions by key."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.joins.asof.operator import AsofJoin, AsofKind
from watersmeet.physical.family import JoinPlanner
from watersmeet.physical.nodes import PADDED, JoinPlan, PortInput, Route, ScanPlan, ViewPlan
from watersmeet.physical.ports import On, padding_of, unions_of
from watersmeet.physical.types import Types


def plan(join: AnalyzedAsofJoin, inputs: tuple[PortInput, ...], types: Types) -> JoinPlan:
    """The plan of an as-of join of questions with the versions of a source."""
    assert not join.residual, "the analysis refuses conditions across the sides"
    # The versions' own predicate is a filter, so that nothing of it is left to flag.
    given = (inputs[0], replace(inputs[1], plan=_filtered(join, inputs[1])))
    on = On.of(replace(join, right_only=()), given, types)
    # Without a key every question may ask for every version: these go to all shards, questions are spread.
    routes: tuple[Route, Route] = ("key", "key") if on.keys.pairs else ("time", "all")
    ways = [on.way(given[p], p, routes[p]) for p in (0, 1)]
    sides = [
        replace(on.port(given[p], p, ways[p]), times=tuple(dict.fromkeys((*given[p].times, time))), compared=time)
        for p, time in enumerate((str(join.left_time), str(join.right_time)))
    ]
    pads = ("nulls", padding_of(join.defaults or "nulls", join.right))
    operator = AsofJoin(
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
    return JoinPlan(tuple(ways), operator, (*sides[0].columns, *sides[1].columns), (), why, join, pads)


def _filtered(join: AnalyzedAsofJoin, given: PortInput) -> ScanPlan | ViewPlan:
    """The versions: what fails its own predicate is none, but its time moves the watermark like any other's."""
    assert isinstance(given.plan, ScanPlan | ViewPlan)
    return replace(given.plan, filters=(*given.plan.filters, *join.right_only))


PLAN = JoinPlanner(plan, travel=lambda join, port: "rows")
