"""Which operator joins tables, and what of ON becomes its keys and its condition (FT-V0, FT-4)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.local.cells import CHANGE
from watersmeet.local.query import LocalQuery
from watersmeet.logical.query import nullable
from watersmeet.operators import OPERATORS
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator, NestedLoopJoinOperator
from watersmeet.operators.core.condition import columns_of
from watersmeet.operators.core.operator import LOADED
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.latest.kernel import LatestOperator
from watersmeet.operators.lookup.kernel import LookupJoinOperator
from watersmeet.physical import JoinPlan, QueryPlan, join_plans, plan_query
from watersmeet.queries import analyze, read_script

TABLES = """
CREATE TABLE l (a INT, b INT, c INT, c1 INT, c2 INT, s STRING);
CREATE TABLE r (a INT, b INT, c1 INT, c2 INT, c3 INT, s STRING);
CREATE TABLE k (id INT NOT NULL, fk INT, v STRING, PRIMARY KEY (id));
CREATE TABLE m (id INT NOT NULL, fk INT, v STRING, PRIMARY KEY (id));
CREATE STREAM e (id INT NOT NULL, n INT);
"""


def plan_of(sql: str) -> QueryPlan:
    [query] = analyze(read_script(TABLES + sql, "q.sql"))
    return plan_query(query, OPERATORS)


def only_join(sql: str) -> JoinPlan:
    [join] = join_plans(plan_of(sql).relation)
    return join


@pytest.mark.parametrize(
    ("on", "keys", "residual"),
    [
        ("l.c1 = r.c2", 1, set()),
        ("r.c2 = l.c1", 1, set()),
        ("l.c1 = r.c2 AND l.c2 < r.c3", 1, {"l.c2", "r.c3"}),
        ("trim(l.s) = trim(r.s)", 1, set()),
        ("l.c1 + 1 = r.c2 * 2", 1, set()),
        ("l.a = r.a AND l.b = r.b AND l.c > 3", 2, set()),
        ("l.a = r.a AND (l.b = r.b OR l.c > 3)", 1, {"l.b", "r.b", "l.c"}),
    ],
)
def test_an_equality_between_the_tables_makes_a_merge_join(on: str, keys: int, residual: set[str]) -> None:
    operator = only_join(f"SELECT TABLE l.a FROM l JOIN r ON {on};").operator
    assert isinstance(operator, ChangelogJoinOperator)
    assert (len(operator.left.keys), len(operator.right.keys)) == (keys, keys)
    # What the condition computes of one side is a column of that side with a name of its own.
    assert bool(residual) == (operator.condition is not None)
    read = columns_of(operator.condition) if operator.condition is not None else frozenset[str]()
    assert {name for name in read if not name.startswith("#")} <= residual


def test_a_condition_of_one_side_is_part_of_the_match() -> None:
    join = only_join("SELECT TABLE l.a FROM l LEFT JOIN r ON l.a = r.a AND l.c > 3;")
    assert isinstance(join.operator, ChangelogJoinOperator)
    assert (join.operator.left.dead, join.operator.right.dead) == ("#dead", None)
    assert [predicate.sql() for predicate in join.ports[0].predicates] == ["(`l.c` > 3)"]


@pytest.mark.parametrize(
    "on",
    [
        "l.c2 < r.c3",
        "l.c1 = r.c2 OR l.c2 < r.c3",
        "NOT l.c1 = r.c2",
        "l.c1 % r.c2 = 0",
        "1 = 1",
        "l.c1 = 5 AND l.c1 = l.c2",
    ],
)
def test_anything_else_is_block_nested_and_says_so(on: str) -> None:
    join = only_join(f"SELECT TABLE l.a FROM l JOIN r ON {on};")
    assert isinstance(join.operator, NestedLoopJoinOperator)
    assert join.why[0].startswith("block-nested join")
    assert any("would make it a merge join" in line for line in join.why)


@pytest.mark.parametrize(
    ("kind", "routes"),
    [
        ("INNER", ("spread", "all")),
        ("LEFT", ("spread", "all")),
        ("RIGHT", ("all", "spread")),
        ("FULL", ("one", "one")),
        ("LEFT SEMI", ("spread", "all")),
        ("LEFT ANTI", ("spread", "all")),
    ],
)
def test_rows_of_a_block_nested_join_are_routed_by_its_kind(kind: str, routes: tuple[str, str]) -> None:
    shown = "r.a" if kind == "RIGHT" else "l.a"
    join = only_join(f"SELECT TABLE {shown} FROM l {kind} JOIN r ON l.c2 < r.c3;")
    assert tuple(port.route for port in join.ports) == routes


@pytest.mark.parametrize(
    ("on", "operators"),
    [
        # The key of the join is the primary key, so the join itself finds the row that an upsert replaces.
        ("k.id = m.id", [ChangelogJoinOperator]),
        ("k.fk = m.id", [LatestOperator, ChangelogJoinOperator]),
        ("k.fk = m.fk", [LatestOperator, LatestOperator, ChangelogJoinOperator]),
        ("k.id < m.id", [LatestOperator, LatestOperator, NestedLoopJoinOperator]),
    ],
)
def test_an_upsert_whose_join_key_can_change_is_first_found_by_its_primary_key(on: str, operators: list[type]) -> None:
    joins = join_plans(plan_of(f"SELECT TABLE k.v FROM k JOIN m ON {on};").relation)
    assert [type(join.operator) for join in joins] == operators


def test_a_view_that_only_leaves_out_is_read_like_its_table() -> None:
    sql = "CREATE VIEW w AS SELECT TABLE id, v FROM k WHERE v > 'a'; SELECT TABLE w.v FROM w JOIN m ON w.id = m.id;"
    assert [type(join.operator) for join in join_plans(plan_of(sql).relation)] == [ChangelogJoinOperator]


def test_stages_of_a_query_over_both() -> None:
    sql = """
    CREATE VIEW sums AS SELECT TABLE e.id, sum(e.n) AS n FROM e GROUP BY e.id;
    SELECT STREAM e.id, sums.n, k.v FROM e LEFT JOIN sums ON e.id = sums.id LEFT JOIN k ON e.id = k.id;
    """
    joins = join_plans(plan_of(sql).relation)
    assert [type(join.operator) for join in joins] == [GroupByOperator, LookupJoinOperator, LookupJoinOperator]


# LN-V19, between tables and of lookups.
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT TABLE k.id, m.id AS other FROM k JOIN m ON k.id = m.id;", (False, False)),
        ("SELECT TABLE k.id, m.id AS other FROM k LEFT JOIN m ON k.id = m.id;", (False, True)),
        ("SELECT TABLE k.id, m.id AS other FROM k RIGHT JOIN m ON k.id = m.id;", (True, False)),
        ("SELECT TABLE k.id, m.id AS other FROM k FULL JOIN m ON k.id = m.id;", (True, True)),
        ("SELECT STREAM e.id, k.id AS other FROM e JOIN k ON e.id = k.id;", (False, False)),
        ("SELECT STREAM e.id, k.id AS other FROM e LEFT JOIN k ON e.id = k.id;", (False, True)),
        ("SELECT STREAM e.id, k.id AS other FROM k RIGHT JOIN e ON e.id = k.id;", (False, True)),
    ],
)
def test_join_with_tables_makes_columns_null(sql: str, expected: tuple[bool, ...]) -> None:
    [query] = analyze(read_script(TABLES + sql, "q.sql"))
    assert nullable(query) == expected


# LN-V20, between tables and of lookups.
@pytest.mark.parametrize(
    ("relation", "before", "after"),
    [
        ("k JOIN m ON k.id = m.id WHERE k.v = 'x' AND m.v = 'y' AND k.v < m.v", ["k.v", "m.v"], 1),
        ("k LEFT JOIN m ON k.id = m.id WHERE k.v = 'x' AND m.v = 'y'", ["k.v"], 1),
        ("k RIGHT JOIN m ON k.id = m.id WHERE k.v = 'x' AND m.v = 'y'", ["m.v"], 1),
        ("k FULL JOIN m ON k.id = m.id WHERE k.v = 'x' AND m.v = 'y'", [], 2),
        ("e JOIN k ON e.id = k.id WHERE e.n > 1 AND k.v = 'x'", ["e.n", "k.v"], 0),
        ("e LEFT JOIN k ON e.id = k.id WHERE e.n > 1 AND k.v = 'x'", ["e.n"], 1),
        ("k RIGHT JOIN e ON e.id = k.id WHERE e.n > 1 AND k.v IS NULL", ["e.n"], 1),
    ],
)
def test_parts_of_where_move_before_a_join_with_tables(relation: str, before: list[str], after: int) -> None:
    plan = plan_of(f"SELECT 1 AS one FROM {relation};")
    [join] = join_plans(plan.relation)
    moved = [
        ref.column for port in join.ports for part in getattr(port.input, "filters", ()) for ref in part.references
    ]
    assert (moved, len(plan.where)) == (before, after)


def test_a_stream_is_held_back_until_its_table_is_loaded() -> None:
    sql = "SET watersmeet.table.load = first; SELECT STREAM e.id, k.v FROM e LEFT JOIN k ON e.id = k.id;"
    query = LocalQuery(plan_of(sql), "kernel")
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([0, 0], pa.int32())})
    changes = pa.table({"id": pa.array([1], pa.int32()), "fk": pa.array([None], pa.int32()), "v": ["x"], CHANGE: ["+"]})
    nothing = {"e": rows.slice(0, 0), "k": changes.slice(0, 0)}
    assert query.step({**nothing, "e": rows}, {}).rows.num_rows == 0
    query.restart()
    assert query.step({**nothing, "k": changes}, {}).rows.num_rows == 0
    shown = query.step(nothing, {LOADED: 1}).rows.to_pylist()
    assert sorted(shown, key=str) == [{"id": 1, "v": "x"}, {"id": 2, "v": None}]
