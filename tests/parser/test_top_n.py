"""The first rows of each group: QUALIFY, and the number of a row in a subquery."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import conjuncts
from watersmeet.logical.nodes import Query, Scan
from watersmeet.operators.core.order import MOST_RANKS
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


@pytest.mark.parametrize(
    ("where", "ranks", "is_shown", "rest"),
    [
        ("n = 2", (2, 1), False, 0), ("n BETWEEN 2 AND 4", (4, 1), False, 0), ("n > 3", (MOST_RANKS, 3), False, 0),
        ("n <= 5 AND n <= p", (5, 0), True, 1), ("n < 0", (0, 0), False, 0), ("k > 1", (MOST_RANKS, 0), True, 1),
        ("n <= 2.5", (MOST_RANKS, 0), True, 1),
    ],
)  # fmt: skip
def test_ranks_of_a_subquery_are_limited_by_where(
    where: str, ranks: tuple[int, int], is_shown: bool, rest: int
) -> None:
    found = query(f"SELECT TABLE k FROM (SELECT *, {NUMBER} AS n FROM b) AS s WHERE {where}")
    ranked = found.views[0].query
    assert (ranked.limit, ranked.offset) == ranks and len(conjuncts(found.where)) == rest
    assert ranked.rank == ("n" if is_shown else None)


def test_a_rank_in_select_keeps_its_place() -> None:
    found = query(f"SELECT TABLE k, {NUMBER} AS n, p FROM b QUALIFY n <= 3 AND p > 1")
    [view] = found.views
    assert found.where is not None and view.query.rank == "n" and view.query.limit == 3
    names = [getattr(item, "name", None) for item in view.query.views[0].query.items]
    assert names[:3] == [None, "n", None]


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
        (f"SELECT TABLE k FROM (SELECT k, {NUMBER} FROM b) AS s WHERE k > 1", "give it a name with AS"),
        (f"SELECT TABLE k, {NUMBER} AS n, {NUMBER} FROM b", "give it a name with AS"),
        (f"SELECT TABLE DISTINCT k, {NUMBER} AS n FROM b", "rank in a subquery"),
        (f"SELECT TABLE k, {NUMBER} AS n FROM b ORDER BY k LIMIT 2", "rank in a subquery"),
        (f"SELECT TABLE k, {NUMBER} AS n FROM b QUALIFY {NUMBER} <= 2", "QUALIFY n <= 10"),
        (f"SELECT TABLE k FROM b QUALIFY {NUMBER} <= - k", "PARTITION BY item ORDER BY price DESC) <= 10"),
        (f"SELECT TABLE k FROM b QUALIFY {NUMBER}", "PARTITION BY item ORDER BY price DESC) <= 10"),
        ("SELECT TABLE k FROM b QUALIFY ROW_NUMBER() OVER (PARTITION BY k) = 1", "ORDER BY price DESC"),
        ("SELECT TABLE k, percent_rank() OVER (ORDER BY k) AS r FROM b", "try_divide(RANK() OVER"),
        ("SELECT TABLE k, rank() OVER (ORDER BY k) FROM b", "give it a name with AS"),
        ("SELECT TABLE k FROM b ORDER BY k LIMIT 2 OFFSET k", "LIMIT 10 OFFSET 20"),
    ],
)
def test_wrong_top_n_queries_are_refused(text: str, hint: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        query(text)
    assert hint in str(caught.value)
