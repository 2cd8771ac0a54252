"""Problems are sentences: each is found where it is, is not where it is not, and says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.studio.page.histories import JOIN, batch, project, started, write

from watersmeet.metrics.history import QueryEvent
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.tools.studio.page.description import QueryDescription
from watersmeet.tools.studio.page.problems import Problem, problems_of

NOW = 1_800_000_000.0


@pytest.fixture
def query(tmp_path: Path) -> QueryDescription:
    return project(tmp_path / "shop")


def found(query: QueryDescription, *records: Progress | QueryEvent, now: float = NOW) -> list[Problem]:
    write(query.storage, *records)
    following = HistoryFollower(query.storage, query.name)
    following.poll()
    return problems_of(query, following, now)


def well(count: int = 10) -> list[Progress | QueryEvent]:
    return [started(NOW - 100), *(batch(number, NOW - 2 * (count - number)) for number in range(count))]


def test_a_query_that_is_well_has_none(query: QueryDescription) -> None:
    assert found(query, *well()) == []


def test_a_silent_source_is_named_with_the_rows_that_wait_for_it(query: QueryDescription) -> None:
    later = [batch(10 + n, NOW - 240 + 2 * n, deliveries=0, kept=(12_408, 0)) for n in range(120)]
    [problem] = found(query, started(NOW - 900), batch(9, NOW - 300), *later)
    assert problem.level == "wrong"
    assert problem.text == "deliveries has been silent for 4 min 59 s; 12,408 rows of orders wait for it."
    assert "`IDLE AFTER 1m`" in problem.advice


def test_a_source_that_never_brought_a_row_is_named(query: QueryDescription) -> None:
    batches = [batch(n, NOW - 240 + 2 * n, deliveries=0) for n in range(120)]
    assert found(query, started(NOW - 240), *batches)[0].text.startswith("deliveries has had no row yet; 900 rows")


def test_an_idle_source_holds_nothing_back(query: QueryDescription) -> None:
    column = replace(query.columns["d.delivery_time"], idle=60_000_000)
    idle = replace(query, columns={**query.columns, "d.delivery_time": column})
    later = [batch(10 + n, NOW - 240 + 2 * n, deliveries=0) for n in range(120)]
    assert found(idle, started(NOW - 900), batch(9, NOW - 300), *later) == []


def test_sources_are_not_blamed_when_no_row_comes_at_all(query: QueryDescription) -> None:
    [problem] = found(query, *well(), now=NOW + 600)
    assert problem.text.startswith("No source has had a row for 10 min")


def test_a_failure_is_reported_with_its_reason(query: QueryDescription) -> None:
    failed = QueryEvent("failed", NOW + 1, "The disk is full.", 1)
    [problem] = found(query, *well(), failed, now=NOW + 181)
    assert (problem.level, problem.text) == ("stopped", "joined failed 3 min ago: The disk is full.")
    assert str(query.checkpoint) in problem.advice


def test_restarts_are_counted(query: QueryDescription) -> None:
    retried = [replace(started(NOW - 30 + n), kind="retried", text="Kafka is away.") for n in range(2)]
    [problem] = found(query, *well(), *retried, started(NOW - 20), batch(11, NOW - 1))
    assert problem.text == "joined failed and was restarted twice in the last 10 min: Kafka is away."


def test_a_process_that_is_gone_is_reported(query: QueryDescription) -> None:
    gone = [replace(one, process=2**22 + 1) if isinstance(one, QueryEvent) else one for one in well()]
    [problem] = found(query, *gone, now=NOW + 60)
    assert "is gone; its last sign of life was 1 min 1 s ago" in problem.text


def test_late_rows_are_reported_of_the_side_that_has_them(query: QueryDescription) -> None:
    assert found(query, started(NOW - 50), *(batch(n, NOW - 20 + 2 * n, late=3) for n in range(10))) == []
    [problem] = found(query, *(batch(20 + n, NOW - 10 + n, late=70) for n in range(10)))
    assert problem.text == "730 rows were late in the last 10 min, 5.2% of orders."
    assert problem.advice.startswith("A larger lag in its WATERMARK would include them.")
    assert "`LATE INTO sink`" in problem.advice
    tardy = batch(31, NOW, late=70)
    known = replace(tardy, operators={JOIN: replace(tardy.operators[JOIN], lateness={"104": 70})})
    # Late by 67.1 s at most, beyond the lag of five minutes.
    assert "A lag of 6 min 8 s" in found(query, known)[0].advice


def test_malformed_and_dropped_rows_are_reported(query: QueryDescription) -> None:
    bad = replace(batch(9, NOW - 1), malformed=3, malformed_of={"orders": 3}, dropped=5)
    texts = [problem.text for problem in found(query, *well(), bad)]
    assert texts == [
        "3 rows of orders could not be read in the last 10 min.",
        "5 rows were dropped in the last 10 min: a limit removed them, or they have no usable key or time.",
    ]


def test_a_limit_is_reported_before_it_is_reached(query: QueryDescription) -> None:
    [problem] = found(replace(query, max_rows=1200), *well())
    assert problem.text == f"{JOIN} keeps 1,100 rows; 1,200 is the limit."


def test_rows_that_have_to_wait_are_reported_with_where_the_time_goes(query: QueryDescription) -> None:
    slow = [replace(batch(20 + n, NOW - 10 + n), backpressure=0.5) for n in range(10)]
    [problem] = found(query, started(NOW - 50), *slow)
    assert problem.text == "Rows arrive faster than joined takes them: 50% had to wait."


def test_a_join_in_which_nothing_ever_matches_is_reported(query: QueryDescription) -> None:
    alone = [replace(batch(n, NOW - 40 + n), matched=0, padded=40) for n in range(40)]
    assert found(query, started(NOW - 50), *alone)[0].text == "1,600 rows came out unmatched, and none ever matched."


def test_a_side_that_is_far_behind_is_reported(query: QueryDescription) -> None:
    own = {"o.order_time": int(NOW * 1e6), "d.delivery_time": int((NOW - 7200) * 1e6)}
    [problem] = found(query, *well(), replace(batch(11, NOW - 1), own=own))
    assert problem.text.startswith("deliveries is 2 h behind the other side")
