"""The first rows of each group: QUALIFY, and the number of a row in a subquery."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import conjuncts
from watersmeet.logical.nodes import Query, Scan
from watersmeet.queries import read_script

NUMBER = "ROW_NUMBER() OVER (PARTITION BY k, upper(s) ORDER BY p DESC, q)"


def query(text: str) -> Query:
    [found] = read_script(f"CREATE STREAM b (k INT, s STRING, p INT, q INT); {text};").queries
    return found


def first(found: Query) -> tuple[int | None, tuple[str, ...], list[tuple[str, bool]]]:
    return found.limit, found.by, [(by.expr.sql(lambda ref: ref.parts[-1]), by.descending) for by in found.order]


@pytest.mark.parametrize(("sign", "limit"), [("<= 10", 10), ("< 10", 9), ("= 1", 1)])
def test_qualify_leaves_the_first_rows(sign: str, limit: int) -> None:
    found = query(f"SELECT TABLE k, p AS q FROM b WHERE p > 0 QUALIFY {NUMBER} {sign}")
    # Among what it is ordered by, a name is that of SELECT.
    assert first(found) == (limit, ("#by0", "#by1"), [("p", True), ("p", False)])
    [view] = found.views
    assert isinstance(found.relation, Scan) and found.relation.source == view.name
    assert len(view.query.items) == 6 and len(conjuncts(view.query.where)) == 1


def test_rank_lets_equal_rows_have_one_place() -> None:
    found = query("SELECT TABLE k FROM b QUALIFY RANK() OVER (PARTITION BY s ORDER BY p DESC) <= 2")
    assert found.ties and first(found) == (2, ("#by0",), [("p", True)])


@pytest.mark.parametrize("where", ["n <= 3", "3 >= n", "s.N < 4", "4 > n"])
def test_a_number_in_a_subquery_is_one_in_where(where: str) -> None:
    found = query(
        f"SELECT TABLE k FROM (SELECT *, {NUMBER} AS n FROM b WHERE p > 0) AS s WHERE {where} AND k > 1 AND q = 2"
    )
    assert found.limit is None and len(conjuncts(found.where)) == 2
    assert first(found.views[0].query) == (3, ("#by0", "#by1"), [("p", True), ("q", False)])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"SELECT TABLE k, {NUMBER} AS n FROM b", "WHERE name <= 10"),
        (f"SELECT TABLE k FROM (SELECT k, {NUMBER} FROM b) AS s WHERE k > 1", "name it with AS"),
        (f"SELECT TABLE k FROM (SELECT k, {NUMBER} AS n FROM b) AS s WHERE k > 1", "write `WHERE n <= 10`"),
        (f"SELECT TABLE k FROM (SELECT k, {NUMBER} AS n FROM b) AS s WHERE n > 1", "write `WHERE n <= 10`"),
        (f"SELECT TABLE k FROM (SELECT k, {NUMBER} AS n FROM b) AS s WHERE n = 2", "write `WHERE n <= 10`"),
        (f"SELECT TABLE k, n FROM (SELECT k, {NUMBER} AS n FROM b) AS s WHERE n <= 2", "leave it out of SELECT"),
        (f"SELECT TABLE k FROM b QUALIFY {NUMBER} <= - k", "PARTITION BY item ORDER BY price DESC) <= 10"),
        (f"SELECT TABLE k FROM b QUALIFY {NUMBER}", "PARTITION BY item ORDER BY price DESC) <= 10"),
        ("SELECT TABLE k FROM b QUALIFY ROW_NUMBER() OVER (PARTITION BY k) = 1", "ORDER BY price DESC"),
        ("SELECT TABLE k, dense_rank() OVER (ORDER BY k) AS r FROM b", "leave OVER out"),
        ("SELECT TABLE k, rank() OVER (ORDER BY k) AS r FROM b", "use QUALIFY"),
    ],
)
def test_wrong_top_n_queries_are_refused(text: str, hint: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        query(text)
    assert hint in str(caught.value)
