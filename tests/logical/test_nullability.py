"""Which columns of a result can be null (LN-18, LN-V19)."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Field, Source
from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.nodes import JoinKind
from watersmeet.logical.query import GROUP, AnalyzedGroup, AnalyzedQuery, Output, nullable
from watersmeet.logical.relation import AnalyzedLateral, AnalyzedRelation, AnalyzedScan, AnalyzedView
from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin
from watersmeet.queries import analyze, read_script

STREAMS = """
CREATE STREAM l (id BIGINT NOT NULL, v STRING, t BIGINT NOT NULL, WATERMARK FOR t AS t - 0);
CREATE STREAM r (id BIGINT NOT NULL, v STRING, t BIGINT NOT NULL, WATERMARK FOR t AS t - 0);
"""


def nulls(sql: str) -> tuple[bool, ...]:
    [query] = analyze(read_script(STREAMS + sql, "q.sql"))
    return nullable(query)


def column(alias: str, name: str) -> Expr:
    return Expr("column", text="c", refs=(Reference((alias, name), 0, 1, alias, name),))


def scan(alias: str) -> AnalyzedScan:
    return AnalyzedScan(alias, Source(alias, (Field("id", "BIGINT", nullable=False), Field("v", "STRING"))))


def of(relation: AnalyzedRelation, *exprs: Expr, group: AnalyzedGroup | None = None) -> tuple[bool, ...]:
    return nullable(AnalyzedQuery(relation, tuple(Output("", expr) for expr in exprs), group=group))


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [("INNER", False, False), ("LEFT", False, True), ("RIGHT", True, False), ("FULL", True, True)],
)
def test_a_join_makes_null_what_it_can_pad(kind: str, left: bool, right: bool) -> None:
    sql = f"SELECT STREAM l.id, l.v, r.id AS other, r.v AS w FROM l {kind} JOIN r WITHIN 5 ON l.id = r.id;"
    assert nulls(sql) == (left, True, right, True)


@pytest.mark.parametrize("kind", ["LEFT SEMI", "LEFT ANTI"])
def test_a_join_that_shows_one_side_leaves_it_as_it_is(kind: str) -> None:
    assert nulls(f"SELECT STREAM l.id, l.v FROM l {kind} JOIN r WITHIN 5 ON l.id = r.id;") == (False, True)


def test_a_join_above_makes_null_what_one_below_does_not() -> None:
    sql = """
    SELECT STREAM l.id, r.id AS b, x.id AS c
    FROM l JOIN r WITHIN 5 ON l.id = r.id RIGHT JOIN r AS x ON x.id = r.id AND x.t BETWEEN l.t - 5 AND l.t + 5;
    """
    assert nulls(sql) == (True, True, False)


@pytest.mark.parametrize(
    ("pad", "found"),
    [
        ("", (False, True, True)),
        ("PAD RIGHT WITH ZEROS", (False, False, True)),
        ("PAD RIGHT WITH (id 0)", (False, False, True)),
        ("PAD RIGHT WITH (id NULL)", (False, True, True)),
        ("PAD RIGHT WITH (v 'none')", (False, True, True)),
    ],
)
def test_values_keep_a_column_of_a_window_join_as_it_was(pad: str, found: tuple[bool, ...]) -> None:
    windows = f"l WINDOW (COUNT 5) LEFT JOIN r WINDOW (COUNT 5) ON l.id = r.id {pad}"
    assert nulls(f"SELECT STREAM l.id, r.id AS other, r.v FROM {windows};") == found


def test_rows_with_an_output_of_their_own_pad_nothing() -> None:
    windows = "l WINDOW (COUNT 5) LEFT JOIN r WINDOW (COUNT 5) ON l.id = r.id"
    assert nulls(f"SELECT STREAM l.id, r.id AS other FROM {windows} UNMATCHED LEFT INTO alone;") == (False, False)


@pytest.mark.parametrize(
    ("join", "found"),
    [
        ("ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.id = r.id", (False, False)),
        ("LEFT ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.id = r.id", (False, True)),
        ("LEFT ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.id = r.id DEFAULT (id 0)", (False, False)),
    ],
)
def test_a_version_that_is_not_there_is_null_or_its_default(join: str, found: tuple[bool, ...]) -> None:
    assert nulls(f"SELECT STREAM l.id, r.id AS other FROM l {join};") == found


def test_a_sync_join_pads_nothing() -> None:
    assert nulls("SELECT STREAM l.id, r.id AS other, r.v FROM l SYNC JOIN r;") == (False, False, True)


def test_expressions() -> None:
    never = ["l.v IS NULL", "NOT (r.v IS NULL)", "5", "l.v <=> r.v"]
    perhaps = ["NULL", "l.id + 1", "upper(l.v)", "l.v = r.v", "l.v IS NULL OR l.v = 'x'"]
    named = ", ".join(f"{expr} AS c{n}" for n, expr in enumerate([*never, *perhaps]))
    found = nulls(f"SELECT STREAM {named} FROM l LEFT JOIN r WITHIN 5 ON l.id = r.id;")
    assert found == (False,) * len(never) + (True,) * len(perhaps)


@pytest.mark.parametrize(("kind", "found"), [("inner", (False, False)), ("left", (False, True))])
def test_joins_with_tables(kind: JoinKind, found: tuple[bool, ...]) -> None:
    shown = (column("l", "id"), column("r", "id"))
    assert of(AnalyzedLookupJoin(scan("l"), scan("r"), kind), *shown) == found
    assert of(AnalyzedTableJoin(scan("l"), scan("r"), kind), *shown) == found


def test_a_view_is_as_null_as_its_query_whatever_its_source_says() -> None:
    inner = AnalyzedQuery(
        AnalyzedTableJoin(scan("l"), scan("r"), "left"),
        (Output("a", column("l", "id")), Output("b", column("r", "id"))),
    )
    view = AnalyzedView("v", Source("v", (Field("a", ""), Field("b", ""))), inner)
    assert of(view, column("v", "a"), column("v", "B")) == (False, True)


def test_elements_and_groups() -> None:
    element = AnalyzedLateral(scan("l"), column("l", "v"), "e", Source("e", (Field("e", "INT"),)))
    assert of(element, column("l", "id"), column("e", "e")) == (False, True)
    count, most = Expr("aggregate", text="count"), Expr("aggregate", (column("l", "id"),), text="max")
    group = AnalyzedGroup((Output("k", column("l", "id")),), (Output("n", count), Output("m", most)))
    assert of(scan("l"), column(GROUP, "k"), column(GROUP, "n"), column(GROUP, "m"), group=group) == (
        False,
        False,
        True,
    )
