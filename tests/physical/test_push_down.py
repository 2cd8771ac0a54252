"""Where only the first rows of a table are asked for, the stage that feeds it knows it, if nothing is between them."""

from __future__ import annotations

import pytest

from watersmeet.operators import OPERATORS
from watersmeet.operators.core.order import TopN
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.physical import WHY, join_plans, plan_query
from watersmeet.physical.identity import identity_of, stage_digest
from watersmeet.queries import analyze, read_script

BIDS = """
CREATE STREAM bids (auction BIGINT, price BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - 0s);
CREATE VIEW counts AS SELECT TABLE auction, {shown}, count(*) AS n
FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), INTERVAL '10' SECONDS)) GROUP BY auction, window_start, window_end{having};
"""
RANK = "QUALIFY RANK() OVER (PARTITION BY since ORDER BY n DESC) <= 3"
SINCE = "window_start AS since"


def top_n_request(script: str) -> TopN | None:
    (query,) = analyze(read_script(script))
    (group,) = (
        join for join in join_plans(plan_query(query, OPERATORS).relation) if isinstance(join.operator, GroupByOperator)
    )
    assert isinstance(group.operator, GroupByOperator)
    assert (WHY in group.why) == (group.operator.requested_top_n is not None)
    return group.operator.requested_top_n


@pytest.mark.parametrize(
    ("shown", "behind", "by"),
    [
        (SINCE, f"SELECT TABLE auction, n FROM counts {RANK};", ("#group.k1",)),
        (f"{SINCE}, 2 AS two", f"SELECT TABLE auction, n + 1 AS more FROM counts {RANK};", ("#group.k1",)),
        (SINCE, "SELECT TABLE auction, n FROM counts ORDER BY n DESC NULLS FIRST LIMIT 3;", ()),
    ],
)
def test_the_first_rows_of_groups_that_end(shown: str, behind: str, by: tuple[str, ...]) -> None:
    request = top_n_request(BIDS.format(shown=shown, having="") + behind)
    assert request is not None
    assert (request.by, request.limit, [one.column for one in request.order]) == (by, 3, ["#group.a0"])


@pytest.mark.parametrize(
    ("shown", "having", "behind"),
    [
        (SINCE, " HAVING count(*) > 1", f"SELECT TABLE auction, n FROM counts {RANK};"),
        (SINCE, "", f"SELECT TABLE auction, n FROM counts WHERE n > 1 {RANK};"),
        (SINCE, "", f"SELECT TABLE auction, n FROM counts {RANK.replace('ORDER BY n', 'ORDER BY n % 5')};"),
        ("date_trunc('HOUR', window_start) AS since", "", f"SELECT TABLE auction, n FROM counts {RANK};"),
        (SINCE, "", "SELECT TABLE since, max(n) AS n FROM counts GROUP BY since;"),
    ],
)
def test_stages_between_decide_about_push_down(shown: str, having: str, behind: str) -> None:
    script = BIDS.format(shown=shown, having=having) + behind
    queries = analyze(read_script(script))
    groups = [join.operator for query in queries for join in join_plans(plan_query(query, OPERATORS).relation)]
    assert all(one.requested_top_n is None for one in groups if isinstance(one, GroupByOperator))


def test_groups_that_never_end_are_handed_on() -> None:
    script = "CREATE STREAM bids (auction BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - 0s);"
    script += "CREATE VIEW counts AS SELECT TABLE auction, count(*) AS n FROM bids GROUP BY auction;"
    assert top_n_request(script + "SELECT TABLE auction, n FROM counts ORDER BY n DESC LIMIT 1;") is None


def test_a_state_from_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    script = BIDS.format(shown=SINCE, having="") + f"SELECT TABLE auction, n FROM counts {RANK};"
    (query,) = analyze(read_script(script))
    now = plan_query(query, OPERATORS)
    monkeypatch.setattr("watersmeet.physical.push_down_top_n", lambda plan: plan)
    before = plan_query(query, OPERATORS)
    assert now != before
    assert identity_of(now, 4) == identity_of(before, 4)
    for one, other in zip(join_plans(now.relation), join_plans(before.relation), strict=True):
        assert stage_digest(one, {}, 4) == stage_digest(other, {}, 4)
