"""A second opinion: DuckDB finds the same pairs and the same lonely rows as `all_pairs`."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.strategies import Row, joins, rows, table

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant
from watersmeet.operators.core.operator import Port
from watersmeet.operators.interval.definition import all_pairs, multiset
from watersmeet.operators.interval.kernel import IntervalJoinOperator

JOIN = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "SEMI JOIN",
    "anti": "ANTI JOIN",
}


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        yield connection


def sql(condition: Condition) -> str:
    match condition:
        case ColumnRef(name):
            return f'"{name}"'
        case Constant(None):
            return "CAST(NULL AS BIGINT)"
        case Constant(bool() | int() | float() | Decimal() as value):
            return str(value)
        case Apply("not", (arg,)):
            return f"(NOT {sql(arg)})"
        case Apply("is_null", (arg,)):
            return f"({sql(arg)} IS NULL)"
        case Apply("<=>", (one, other)):
            return f"({sql(one)} IS NOT DISTINCT FROM {sql(other)})"
        case Apply(operator, args):
            return "(" + f" {operator} ".join(sql(arg) for arg in args) + ")"
        case _:
            raise NotImplementedError(condition)


def query(join: IntervalJoinOperator) -> str:
    parts = [f'"{join.right.time}" - "{join.left.time}" BETWEEN {join.lower} AND {join.upper}']
    parts += [f'"{one}" = "{other}"' for one, other in zip(join.left.keys, join.right.keys, strict=True)]
    parts += [f'NOT "{side.dead}"' for side in (join.left, join.right) if side.dead]
    parts += [sql(join.condition)] if join.condition is not None else []
    names = ", ".join(f'lefts."{name}"' for name in join.left.columns)
    names += "".join(f', rights."{name}"' for name in join.right.columns)
    return f"SELECT {names} FROM lefts {JOIN[join.kind]} rights ON {' AND '.join(parts)}"


def expect_agreement(
    database: duckdb.DuckDBPyConnection, join: IntervalJoinOperator, left: list[Row], right: list[Row]
) -> None:
    database.register("lefts", table("l", tuple(left)))
    database.register("rights", table("r", tuple(right)))
    assert multiset(database.execute(query(join)).fetchall()) == all_pairs(join, left, right)


@settings(
    derandomize=True,
    max_examples=examples(200),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_all_pairs_agrees_with_duckdb(database: duckdb.DuckDBPyConnection, data: st.DataObject) -> None:
    join = data.draw(joins())
    left, right = (data.draw(st.lists(rows(side, join.left.exact), max_size=12)) for side in "lr")
    expect_agreement(database, join, left, right)


@pytest.mark.parametrize("kind", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(("lower", "upper"), [(-3, -1), (1, 3), (0, 0), (-2, 2)])
def test_every_kind_and_sign_of_bound(database: duckdb.DuckDBPyConnection, kind: str, lower: int, upper: int) -> None:
    def side(s: str) -> Port:
        return Port((f"{s}.k", f"{s}.t"), (f"{s}.t",), (f"{s}.k",), f"{s}.code")

    def some(s: str) -> list[Row]:
        keys = (1, 2, None)
        times = (0, 1, 2, 3, 4, 5, None)
        other = {f"{s}.{c}": None for c in ("k2", "u", "v")}
        return [
            {f"{s}.k": k, f"{s}.t": t, f"{s}.code": k or 0, f"{s}.dead": False, **other} for k in keys for t in times
        ]

    join = IntervalJoinOperator(kind, side("l"), side("r"), lower, upper, ())  # pyright: ignore[reportArgumentType]
    expect_agreement(database, join, some("l"), some("r"))
