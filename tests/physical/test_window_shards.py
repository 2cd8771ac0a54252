"""When the work of a window join may be sharded: all rows of a partition, and all that may meet, in one shard."""

from __future__ import annotations

import pytest

from watersmeet.operators import OPERATORS
from watersmeet.physical import JoinPlan, plan_query
from watersmeet.queries import analyze, read_script

BY_KEY = "COUNT 5 PARTITION BY k"


def plan(left: str, right: str, on: str = "ON l.k = r.k", items: str = "l.v", order: str = "") -> JoinPlan:
    script = f"""
        CREATE STREAM l (k BIGINT, j STRING, v BIGINT) {order};
        CREATE STREAM r (k BIGINT, j STRING, v BIGINT) {order};
        SELECT STREAM {items} FROM l WINDOW ({left}) JOIN r WINDOW ({right}) {on};"""
    (query,) = analyze(read_script(script))
    relation = plan_query(query, OPERATORS).relation
    assert isinstance(relation, JoinPlan)
    return relation


@pytest.mark.parametrize(
    ("left", "right", "on"),
    [
        (BY_KEY, BY_KEY, "ON l.k = r.k"),
        (BY_KEY, "COUNT 0", "ON l.k = r.k"),
        (BY_KEY, "TIME 5s", "ON l.k = r.k"),
        ("TIME 5s", "TIME 9s", "ON l.k = r.k"),
        ("DELTA v 3 PARTITION BY j, k", BY_KEY, "ON l.k = r.k AND l.v < r.v"),
        ("COUNT 5 PARTITION BY k + 1", BY_KEY, "ON l.k + 1 = r.k"),
    ],
)
def test_sharded_by_what_partitions_have_in_common(left: str, right: str, on: str) -> None:
    found = plan(left, right, on)
    assert [port.route for port in found.ports] == ["partition", "partition"]
    assert found.why[1].startswith("sharded by ")


@pytest.mark.parametrize(
    ("left", "right", "on", "words"),
    [
        ("COUNT 5", BY_KEY, "ON l.k = r.k", "COUNT of l without PARTITION BY"),
        (BY_KEY, "DELTA v 3", "ON l.k = r.k", "DELTA of r without PARTITION BY"),
        (BY_KEY, "COUNT 5 PARTITION BY j", "ON l.k = r.k", "no equality"),
        ("COUNT 5 PARTITION BY k + 1", BY_KEY, "ON l.k = r.k", "no equality"),
        ("TIME 5s PARTITION BY j", "COUNT 0", "ON l.k = r.k", "no equality"),
        (f"{BY_KEY} PARTITION COUNT 9", BY_KEY, "ON l.k = r.k", "PARTITION COUNT of l"),
        (BY_KEY, f"{BY_KEY} PARTITION AGE 9s", "ON l.k = r.k", "PARTITION AGE of r"),
        (BY_KEY, f"{BY_KEY} TUPLE COUNT 9", "ON l.k = r.k", "TUPLE COUNT of r"),
        (BY_KEY, BY_KEY, "ON l.v < r.v", "without an equality"),
        (BY_KEY, BY_KEY, "", "without an equality"),
    ],
)
def test_else_one_shard_does_all(left: str, right: str, on: str, words: str) -> None:
    found = plan(left, right, on)
    assert [port.route for port in found.ports] == ["one", "one"]
    assert found.why[1].startswith("one shard: ") and words in found.why[1]


def test_of_several_equalities_only_those_of_partitions_decide() -> None:
    found = plan(BY_KEY, BY_KEY, "ON l.k = r.k AND l.j = r.j")
    assert [port.shard_by for port in found.ports] == [("l.k",), ("r.k",)]
    both = "COUNT 5 PARTITION BY j, k"
    assert [port.shard_by for port in plan(both, both, "ON l.k = r.k AND l.j = r.j").ports] == [(), ()]


def test_triggers_need_an_order_or_one_shard() -> None:
    assert plan(BY_KEY, BY_KEY, items="_seq").ports[0].route == "one"
    ordered = plan(BY_KEY, BY_KEY, items="_seq", order="ORDER BY v")
    assert ordered.ports[0].route == "partition" and ordered.ports[0].position is None
    assert plan(BY_KEY, "TIME 5s", items="_seq", order="ORDER BY v").ports[0].route == "one"


def test_without_an_order_the_reader_is_warned() -> None:
    assert any("no ORDER BY" in line for line in plan(BY_KEY, BY_KEY).why)
    assert not any("no ORDER BY" in line for line in plan(BY_KEY, BY_KEY, order="ORDER BY v").why)
