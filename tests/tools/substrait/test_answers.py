"""What a plan is read as gives what its producer gives: the script, written as SQL, is asked of DuckDB."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.tools.substrait.substrait_plans import (
    COLUMNS,
    QUERIES,
    ROWS,
    PlanWithRows,
    by_datafusion,
    by_ibis,
    count_rows,
    ibis_names,
)

from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Item, Join, Query, Relation, Scan, Union
from watersmeet.schema import quote
from watersmeet.tools.substrait.relations import read_substrait

KINDS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


@pytest.mark.parametrize("about", QUERIES)
def test_datafusion_agrees(about: str) -> None:
    planned = by_datafusion(QUERIES[about])
    assert planned.rows and answer(planned) == planned.rows


@pytest.mark.parametrize("name", ibis_names())
def test_ibis_agrees(name: str) -> None:
    planned = by_ibis(name)
    assert planned.rows and answer(planned) == planned.rows


def answer(planned: PlanWithRows) -> Any:
    """What DuckDB answers to the query that the plan is read as."""
    import sqlglot

    (query,) = read_substrait(planned.plan, "plan").queries
    text = sqlglot.transpile(query_text(query), read="spark", write="duckdb")[0]
    return count_rows(duckdb().execute(text).fetchall())


@cache
def duckdb() -> Any:
    import duckdb

    connection = duckdb.connect()
    for table, columns in COLUMNS.items():
        connection.execute(f"CREATE TABLE {table} ({columns.replace('_NTZ', '')})")
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in ROWS[table][0])})", ROWS[table])
    return connection


def query_text(query: Query) -> str:
    """The query in Spark's SQL."""
    views = ", ".join(f"{quote(view.name)} AS ({query_text(view.query)})" for view in query.views)
    shown = [f"{text(i.expr)} AS {quote(i.name or '')}" if isinstance(i, Item) else "*" for i in query.items]
    where = f" WHERE {text(query.where)}" if query.where is not None else ""
    return f"{f'WITH {views} ' if views else ''}SELECT {', '.join(shown)} FROM {relation(query.relation)}{where}"


def relation(node: Relation) -> str:
    match node:
        case Scan():
            return f"{quote(node.source)} AS {quote(node.alias)}"
        case Union():
            return (
                f"({' UNION ALL '.join(f'SELECT * FROM {quote(s.source)}' for s in node.scans)}) AS {quote(node.alias)}"
            )
        case Join(left=left, right=right, kind=kind, on=Expr() as on):
            return f"{relation(left)} {KINDS[kind]} {relation(right)} ON {text(on)}"
        case _:
            raise AssertionError(node)


def text(expr: Expr) -> str:
    return expr.sql(lambda ref: ".".join(quote(part) for part in ref.parts))
