"""Rates of the last runs, and states that leave their forecast: each with its likely reason, and none without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.studio.page.histories import JOIN, batch, project, start_event, write
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.physical import QueryPlan
from watersmeet.tools.forecast.inputs import observe_rates
from watersmeet.tools.forecast.query import ForecastMonitor, forecast_alerts
from watersmeet.tools.studio.page.description import QueryDescription
from watersmeet.tools.studio.page.problems import problems_of

NOW = 1_800_000_000.0
HOUR = 3_600_000_000
FORECAST = 400 / 4 * 3900
"""Rows of orders: 400 every four seconds, for an hour and the lag of five minutes."""


@pytest.fixture
def query(tmp_path: Path) -> QueryDescription:
    return project(tmp_path / "shop")


@pytest.fixture
def plan(query: QueryDescription) -> QueryPlan:
    assert query.plan is not None
    return query.plan


def batches(count: int, kept: int, orders: int = 400, behind: int = 0, first: int = 0) -> list[Progress]:
    """Batches of four seconds each; the watermark of deliveries may be further behind."""
    found: list[Progress] = []
    for number in range(first, first + count):
        one = batch(number, NOW + 4 * number, orders=orders, kept=(kept, 200))
        own = {**one.own, "d.delivery_time": one.own["d.delivery_time"] - behind}
        operators = {JOIN: replace(one.operators[JOIN], fullest=(kept + 200) // 2)}
        found.append(replace(one, own=own, operators=operators))
    return found


def reasons(plan: QueryPlan, told: Sequence[Progress]) -> list[str]:
    return [one.reason for one in forecast_alerts(plan, told)]


def test_rates_are_rows_by_the_time_that_they_moved(plan: QueryPlan) -> None:
    seen = observe_rates(batches(20, 900), plan)
    assert seen.rates["orders"].per_second == pytest.approx(100)
    assert seen.rates["deliveries"].per_second == pytest.approx(75)
    # The lags are equal, and the watermark of deliveries is a minute behind.
    assert seen.behind == {"deliveries": 60_000_000}
    assert observe_rates(batches(1, 900), plan).rates == observe_rates([], plan).rates == {}


def test_a_state_of_its_forecast_has_not_left_it(plan: QueryPlan) -> None:
    assert reasons(plan, batches(20, int(1.9 * FORECAST))) == []
    assert reasons(plan, batches(20, 900)) == [], "it has not grown yet"
    assert reasons(plan, batches(4, int(3 * FORECAST))) == [], "after a few batches nothing is known"


def test_a_watermark_that_holds_back(plan: QueryPlan) -> None:
    [found] = forecast_alerts(plan, batches(20, int(3 * FORECAST), behind=2 * HOUR))
    assert str(found) == (
        "o and d keeps 1,170,000 rows of orders, 3.0 times the 390,000 of the forecast. "
        "The watermark of d.delivery_time holds them back: it is 2 h 1 min behind that of o.order_time."
    )


def test_a_side_that_has_brought_no_time(plan: QueryPlan) -> None:
    told = [
        replace(one, own={"o.order_time": one.own["o.order_time"]}, silent=frozenset({"d.delivery_time"}))
        for one in batches(20, int(3 * FORECAST))
    ]
    assert reasons(plan, told) == ["They wait for a watermark of d.delivery_time, which has no time yet."]


def test_rows_that_come_faster_than_before(plan: QueryPlan) -> None:
    told = [*batches(100, 900), *batches(10, int(3.5 * FORECAST), orders=2000, first=100)]
    assert reasons(plan, told) == ["orders has 5.0 times the rate that it had before."]


def test_rows_that_live_longer(plan: QueryPlan) -> None:
    [reason] = reasons(plan, batches(20, int(3 * FORECAST)))
    assert reason.startswith("Rows are kept longer than the bound and the lag of d.delivery_time")


def test_a_shard_that_is_fuller_than_others(plan: QueryPlan) -> None:
    told = batches(20, 9_800)
    numbers = replace(told[-1].operators[JOIN], shards=8, fullest=9_000)
    [reason] = reasons(plan, [*told[:-1], replace(told[-1], operators={JOIN: numbers})])
    assert reason == "One of its 8 shards has 9,000 of 10,000 rows: a key is heavy."


def test_a_run_tells_once_and_the_page_as_long_as_it_is_so(query: QueryDescription, plan: QueryPlan) -> None:
    large = batches(21, int(3 * FORECAST), behind=2 * HOUR)
    write(query.storage, start_event(NOW), *large[:18])
    run = ForecastMonitor({"joined": plan}, query.storage)
    assert [len(run.new_alerts(one)) for one in large[18:]] == [1, 0, 0], "what earlier runs did counts"
    assert run.new_alerts(batch(21, NOW + 84)) == []
    assert len(run.new_alerts(large[-1])) == 1, "it had come back"
    following = HistoryFollower(query.storage, "joined")
    following.poll()
    [problem] = [one for one in problems_of(query, following, NOW + 80) if "of the forecast" in one.text]
    assert problem.level == "watch" and "holds them back" in problem.text


def test_a_forecast_takes_the_rates_of_the_last_runs(query: QueryDescription) -> None:
    write(query.storage, start_event(NOW), *batches(20, 900))
    asked = ["explain", str(query.storage.parent), "--forecast"]
    told = CliRunner(env={"COLUMNS": "120"}).invoke(app, asked).stdout
    assert "orders 100 rows/s (of the last runs), deliveries 75 rows/s (of the last runs)" in told
    assert "behind   deliveries 1 min" in told
    # An hour, five minutes of lag, and the minute that deliveries are behind.
    assert "396 k rows" in told
    typed = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*asked, "--rate", "7/s"]).stdout
    assert "every other source 7 rows/s (given)" in typed and "of the last runs" not in typed
