"""The identity of a state: data in canonical names, which aliases, outputs and wording do not change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant
from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.group.kernel import Aggregate, GroupByOperator
from watersmeet.operators.interval.kernel import IntervalJoinOperator


def interval(left: str, right: str, shown: str = "kv") -> IntervalJoinOperator:
    ports = [
        Port(tuple(f"{s}.{c}" for c in shown), (f"{s}.t",), (f"{s}.k",), f"{s}.k", exact=True) for s in (left, right)
    ]
    less = Apply("<", (ColumnRef(f"{left}.v"), ColumnRef(f"{right}.v")))
    names = tuple((f"{s}.{c}", f"{n}.{c}") for n, s in enumerate((left, right)) for c in "kvt")
    bounds = (Bound(f"{left}.t", f"{right}.t", 5), Bound(f"{right}.t", f"{left}.t", 5))
    unions = ((f"{left}.t", (f"{left}.t#0", f"{left}.t#1")),)
    return IntervalJoinOperator("inner", ports[0], ports[1], -5, 5, bounds, less, unions=unions, names=names)


def test_identity_is_json_and_knows_no_alias_and_no_order_of_outputs() -> None:
    one, other = interval("l", "r"), interval("a", "b", "vk")
    assert one.identity == other.identity == json.loads(json.dumps(one.identity))
    assert one.identity == replace(one.with_limit(3, "drop_oldest"), idle=(("l.t", 5),)).identity
    assert one.identity == replace(one, left=replace(one.left, late=("l.k",)), bounds=one.bounds[::-1]).identity
    for other in (
        replace(one, kind="left"),
        replace(one, upper=6),
        replace(one, condition=None),
        interval("l", "r", "k"),
    ):
        assert one.identity != other.identity


def test_a_grouping_does_not_depend_on_names_and_order_of_its_outputs() -> None:
    sums = (Aggregate("sum", ("v",), "a"), Aggregate("mean", ("v",), "b"))
    turned = (Aggregate("avg", ("v",), "x"), Aggregate("SUM", ("v",), "y"))
    assert (
        GroupByOperator(("k",), sums).identity
        == GroupByOperator(("k",), turned).identity
        != GroupByOperator(("k",), sums[:1]).identity
    )


a, b, two = ColumnRef("l.a"), ColumnRef("r.b"), Constant(2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Apply("<", (a, b)), Apply(">", (b, a))),
        (Apply("=", (a, b)), Apply("=", (b, a))),
        (
            Apply("and", (Apply("and", (Apply("<", (a, b)), Apply("is_null", (a,)))), Apply("=", (a, two)))),
            Apply("and", (Apply("=", (two, a)), Apply("and", (Apply("is_null", (a,)), Apply(">", (b, a)))))),
        ),
    ],
)
def test_conditions_that_differ_in_order_alone_are_one(one: Condition, other: Condition) -> None:
    assert CanonicalNames().condition(one) == CanonicalNames().condition(other)
    assert CanonicalNames().condition(Apply("-", (a, b))) != CanonicalNames().condition(Apply("-", (b, a)))
