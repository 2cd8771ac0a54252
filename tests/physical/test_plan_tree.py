"""The tree protocol of physical plans, for every class of nodes, and who may look past it."""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path
from typing import cast, get_args

import pytest

from watersmeet.logical.passes.sinks import with_static_sources
from watersmeet.operators import OPERATORS
from watersmeet.physical import JoinPlan, QueryPlan, RelationPlan, ScanPlan, plan_query
from watersmeet.physical.nodes import PlanNode
from watersmeet.queries import analyze, read_script

SOURCE = Path(__file__).parents[2] / "src" / "watersmeet"

SCRIPT = """
CREATE STREAM orders (id BIGINT, country STRING, items ARRAY<BIGINT>, at TIMESTAMP,
                      WATERMARK FOR at AS at - INTERVAL '1' MINUTE) USING json OPTIONS (path 'orders');
CREATE STREAM returns (id BIGINT, country STRING, items ARRAY<BIGINT>, at TIMESTAMP,
                       WATERMARK FOR at AS at - INTERVAL '1' MINUTE) USING json OPTIONS (path 'returns');
CREATE STREAM deliveries (order_id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1' MINUTE)
  USING json OPTIONS (path 'deliveries');
CREATE TABLE countries (code STRING, name STRING, PRIMARY KEY (code))
  USING json OPTIONS (path 'countries', static 'true');
CREATE VIEW named AS SELECT STREAM o.id, o.at, c.name FROM orders o JOIN countries c ON o.country = c.code;
CREATE VIEW positions AS SELECT STREAM o.id, o.at, item FROM orders o LATERAL o.items AS item;
CREATE VIEW wanted AS SELECT STREAM o.id, o.at FROM orders o WHERE o.id > 0;
CREATE VIEW unwanted AS SELECT STREAM r.id, r.at FROM returns r;
CREATE VIEW moved AS SELECT STREAM * FROM (SELECT STREAM * FROM wanted UNION ALL SELECT STREAM * FROM unwanted) AS u;
SELECT STREAM n.id, n.name FROM named n JOIN deliveries d WITHIN 1h ON n.id = d.order_id;
SELECT STREAM p.id, p.item FROM positions p JOIN deliveries d WITHIN 1h ON p.id = d.order_id;
SELECT STREAM m.id FROM moved m JOIN deliveries d WITHIN 1h ON m.id = d.order_id;
"""


@cache
def _plans() -> list[QueryPlan]:
    queries = [with_static_sources(query, frozenset({"countries"})) for query in analyze(read_script(SCRIPT))]
    return [plan_query(query, OPERATORS) for query in queries]


@cache
def _nodes() -> list[RelationPlan]:
    return [node for plan in _plans() for node in plan.relation.walk()]


CLASSES: list[type[RelationPlan]] = list(get_args(RelationPlan))


def test_every_class_of_nodes_is_a_frozen_node_of_the_tree() -> None:
    assert {*PlanNode.__subclasses__()} == {*CLASSES}
    assert {type(node) for node in _nodes()} == {*CLASSES}
    for node in _nodes():
        with pytest.raises(dataclasses.FrozenInstanceError):
            node.filters = ()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_node_over_its_own_children_is_the_same(cls: type[RelationPlan]) -> None:
    nodes = [node for node in _nodes() if isinstance(node, cls)]
    assert nodes, f"the script has no {cls.__name__}"
    for node in nodes:
        assert node.with_children(node.children) == node
        assert node.transform(lambda one: one) is node


@pytest.mark.parametrize("cls", CLASSES)
def test_children_are_all_relations_in_the_fields_of_a_node(cls: type[RelationPlan]) -> None:
    for node in (node for node in _nodes() if isinstance(node, cls)):
        ports = node.ports if isinstance(node, JoinPlan) else ()
        values: list[object] = [
            getattr(part, field.name) for part in (node, *ports) for field in dataclasses.fields(part)
        ]
        below: list[object] = []
        for value in values:
            below += cast("tuple[object, ...]", value) if isinstance(value, tuple) else [value]
        assert [id(each) for each in below if isinstance(each, PlanNode)] == [id(child) for child in node.children]


@pytest.mark.parametrize("cls", CLASSES)
def test_with_children_refuses_another_number_of_children(cls: type[RelationPlan]) -> None:
    node = next(node for node in _nodes() if isinstance(node, cls))
    with pytest.raises((AssertionError, ValueError)):
        node.with_children((*node.children, node))


def test_transform_replaces_every_node_and_leaves_the_plan_alone() -> None:
    def rename(node: RelationPlan) -> RelationPlan:
        return dataclasses.replace(node, alias=f"{node.alias}2") if isinstance(node, ScanPlan) else node

    for plan in _plans():
        before = [scan.alias for scan in plan.relation.leaves]
        renamed = plan.relation.transform(rename)
        assert [scan.alias for scan in renamed.leaves] == [f"{alias}2" for alias in before]
        assert [scan.alias for scan in plan.relation.leaves] == before
        assert [type(node) for node in renamed.walk()] == [type(node) for node in plan.relation.walk()]


def test_walk_and_transform_give_children_before_their_node() -> None:
    for plan in _plans():
        seen: list[RelationPlan] = []
        plan.relation.transform(lambda node, seen=seen: seen.append(node) or node)
        assert [id(node) for node in seen] == [id(node) for node in plan.relation.walk()]
        for place, node in enumerate(seen):
            earlier = {id(each) for each in seen[:place]}
            assert all(id(child) in earlier for child in node.children)
        assert seen[-1] is plan.relation


def test_leaves_are_the_nodes_that_read_no_other() -> None:
    for node in _nodes():
        assert [id(leaf) for leaf in node.leaves] == [id(each) for each in node.walk() if not each.children]


def _names(node: ast.expr) -> set[str]:
    """The classes that an argument of isinstance names: one, a tuple of some, or a union."""
    return {
        name.id if isinstance(name, ast.Name) else name.attr
        for name in ast.walk(node)
        if isinstance(name, ast.Name | ast.Attribute)
    }


def _distinguishes_scans(tree: ast.AST) -> bool:
    compared: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass():
                compared.append(node.cls)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                compared.append(classes)
            case ast.Compare():
                compared += [node.left, *node.comparators]
            case _:
                pass
    return any("ScanPlan" in _names(each) for each in compared)


def test_the_search_finds_every_way_to_distinguish_scans() -> None:
    ways = [
        "isinstance(a, ScanPlan)",
        "isinstance(a, ViewPlan | ScanPlan)",
        "type(a) is ScanPlan",
        "isinstance(a, nodes.ScanPlan)",
    ]
    assert all(_distinguishes_scans(ast.parse(way)) for way in ways)
    assert _distinguishes_scans(ast.parse("match a:\n  case ScanPlan():\n    pass"))
    assert not _distinguishes_scans(ast.parse("def scan(plan: ScanPlan) -> None: ..."))


def test_at_most_three_modules_match_on_scans() -> None:
    modules = [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if _distinguishes_scans(ast.parse(path.read_text("utf-8")))
    ]
    assert len(modules) <= 3, modules
