"""The as-of join's entry: questions and versions by key."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.joins.asof.operator import AsofJoin, AsofKind
from watersmeet.joins.core.port import Port
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import PADDED, JoinPlan, PortInput, PortPlan, Route, ScanPlan, ViewPlan
from watersmeet.physical.ports import Keys, port_plan, unions_of
from watersmeet.physical.types import Types
from watersmeet.physical.window import padding_of


def plan_asof_join(join: AnalyzedAsofJoin, inputs: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of an as-of join of questions with the versions of a source."""
    assert not join.residual, "the analysis refuses conditions across the sides"
    operands = Operands((inputs[0].aliases, inputs[1].aliases), types)
    keys = Keys.of(join.keys, operands)
    versions = replace(inputs[1], plan=_filtered(join, inputs[1]))
    # Without a key every question may ask for every version: these go to all shards, questions are spread.
    routes: tuple[Route, Route] = ("key", "key") if keys.pairs else ("time", "all")
    ports = (
        port_plan(inputs[0], 0, operands, keys, join.left_only, inputs[0].needed, routes[0]),
        port_plan(versions, 1, operands, keys, (), versions.needed, routes[1]),
    )
    times = (str(join.left_time), str(join.right_time))
    sides = [_side(given, ports[p], p, times[p], keys) for p, given in enumerate((inputs[0], versions))]
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
        keys.why() if keys.pairs else spread,
        f"a left row waits until the watermark of {join.right_time} shows that its version is final",
    )
    return JoinPlan(ports, operator, (*sides[0].columns, *sides[1].columns), (), why, join, pads)


def _filtered(join: AnalyzedAsofJoin, given: PortInput) -> ScanPlan | ViewPlan:
    """The versions: what fails its own predicate is none, but its time moves the watermark like any other's."""
    assert isinstance(given.plan, ScanPlan | ViewPlan)
    return replace(given.plan, filters=(*given.plan.filters, *join.right_only))


def _side(given: PortInput, plan: PortPlan, port: int, time: str, keys: Keys) -> Port:
    times = tuple(dict.fromkeys((*given.times, time)))
    return Port(given.needed, times, keys.names(port), plan.code, keys.exact, plan.dead, late=given.late, compared=time)
