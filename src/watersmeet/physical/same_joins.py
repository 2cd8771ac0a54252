"""Joins that several queries of a script compute, each on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watersmeet.operators.core.identity import Identity
from watersmeet.physical.identity import canonical_json, identity_of
from watersmeet.physical.nodes import QueryPlan, read_sources


def same_join_notes(plans: Mapping[str, QueryPlan]) -> Iterator[tuple[str, str]]:
    """The queries whose joins an earlier one computes too, each with a note that says so."""
    first: dict[str, str] = {}
    for name, plan in plans.items():
        joins = _joins_of(identity_of(plan, 1))
        if joins is None:
            continue
        other = first.setdefault(joins, name)
        if other != name:
            sources = " and ".join(dict.fromkeys(source.name for source in read_sources(plan.relation)))
            cost = "each query reads, joins and keeps the rows separately, and may count different rows as late"
            yield name, f"{other} and {name} compute the same join of {sources}: {cost}."


def _joins_of(identity: Identity) -> str | None:
    """What a query joins and how, whatever it filters before and shows of it; None: it joins nothing."""
    stages = [_plain(stage) for stage in identity["stages"] if len(stage["ports"]) > 1]
    return canonical_json([[source["reads"] for source in identity["sources"]], stages]) if stages else None


def _plain(stage: Identity) -> dict[str, Any]:
    """A join without which columns it keeps, and which rows are left out before it."""
    operator = stage["operator"]
    ports = [{name: value for name, value in port.items() if name != "stored"} for port in operator["ports"]]
    sides = [{name: value for name, value in port.items() if name != "filters"} for port in stage["ports"]]
    return {"operator": {**operator, "ports": ports}, "ports": sides}
