"""Sides that are tables: as what their changes reach a join, and what of them it follows by itself."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.joins.core.changes import OP, POSITION, WEIGHT
from watersmeet.joins.core.port import Port
from watersmeet.physical.family import Travel
from watersmeet.physical.nodes import PortInput, PortPlan, Route
from watersmeet.physical.ports import On
from watersmeet.plan.relation import AnalyzedScan, ConditionalJoin


def changes_travel(join: ConditionalJoin, port: int) -> Travel:
    """How the changes of a side reach a join that can follow upserts by itself.

    The old and the new row of a primary key must meet in one shard, so the keys of the join must follow from it.
    """
    side = join.inputs[port]
    key = {name.lower() for name in side.source.primary_key} if isinstance(side, AnalyzedScan) else set[str]()
    named = [ref.name.lower() for pair in join.keys for ref in pair[port].references]
    return "upserts" if join.keys and key and key.issuperset(named) else "weights"


def changing_port(on: On, given: PortInput, port: int, route: Route) -> tuple[PortPlan, Port]:
    """The way of a side that is a table up to the exchange, and how the kernel finds its changes there."""
    side = on.join.inputs[port]
    upserts: tuple[str, ...] = ()
    if isinstance(side, AnalyzedScan) and changes_travel(on.join, port) == "upserts":
        fields = (side.source.field(name) for name in side.source.primary_key)
        upserts = tuple(f"{side.alias}.{field.name}" for field in fields if field is not None)
    way = on.way(given, port, route, (*upserts, OP) if upserts else (WEIGHT,))
    way = replace(way, position=POSITION) if upserts else way
    return way, replace(on.port(given, port, way), times=(), late=(), upsert_key=upserts)
