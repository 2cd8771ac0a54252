"""Problems are sentences: each is found where it is, is not where it is not, and says what to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.tools.studio.page.histories import JOIN, batch, project, start_event, write

from watersmeet.metrics.history import QueryEvent
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.tools.studio.page.description import QueryDescription
from watersmeet.tools.studio.page.model import overview
from watersmeet.tools.studio.page.problems import Problem, ProblemAlerts, post_json, problems_of, spreads_of

NOW = 1_800_000_000.0


@pytest.fixture
def query(tmp_path: Path) -> QueryDescription:
    return project(tmp_path / "shop")


def find_problems(query: QueryDescription, *records: Progress | QueryEvent, now: float = NOW) -> list[Problem]:
    write(query.storage, *records)
    following = HistoryFollower(query.storage, query.name)
    following.poll()
    return problems_of(query, following, now)


def well(count: int = 10) -> list[Progress | QueryEvent]:
    return [start_event(NOW - 100), *(batch(number, NOW - 2 * (count - number)) for number in range(count))]


def test_a_query_that_is_well_has_none(query: QueryDescription) -> None:
    assert find_problems(query, *well()) == []


def test_a_silent_source_is_named_with_the_rows_that_wait_for_it(query: QueryDescription) -> None:
    later = [batch(10 + n, NOW - 240 + 2 * n, deliveries=0, kept=(12_408, 0)) for n in range(120)]
    [problem] = find_problems(query, start_event(NOW - 900), batch(9, NOW - 300), *later)
    assert problem.level == "wrong"
    assert problem.text == "deliveries has been silent for 4 min 59 s; 12,408 rows of orders wait for it."
    # The first IDLE AFTER of a join is an edit that has to be accepted: docs/changing.md.
    assert "`IDLE AFTER 1m`" in problem.advice and "`watersmeet run --accept`" in problem.advice


def test_a_source_that_never_brought_a_row_is_named(query: QueryDescription) -> None:
    batches = [batch(n, NOW - 240 + 2 * n, deliveries=0) for n in range(120)]
    assert find_problems(query, start_event(NOW - 240), *batches)[0].text.startswith(
        "deliveries has had no row yet; 900 rows"
    )


def test_an_idle_source_holds_nothing_back(query: QueryDescription) -> None:
    column = replace(query.columns["d.delivery_time"], idle=60_000_000)
    idle = replace(query, columns={**query.columns, "d.delivery_time": column})
    later = [batch(10 + n, NOW - 240 + 2 * n, deliveries=0) for n in range(120)]
    assert find_problems(idle, start_event(NOW - 900), batch(9, NOW - 300), *later) == []


def test_sources_are_not_blamed_when_no_row_comes_at_all(query: QueryDescription) -> None:
    [problem] = find_problems(query, *well(), now=NOW + 600)
    assert problem.text.startswith("No source has had a row for 10 min")


def test_a_failure_is_reported_with_its_reason(query: QueryDescription) -> None:
    failed = QueryEvent("failed", NOW + 1, "The disk is full.", 1)
    [problem] = find_problems(query, *well(), failed, now=NOW + 181)
    assert (problem.level, problem.text) == ("stopped", "joined failed 3 min ago: The disk is full.")
    assert str(query.checkpoint) in problem.advice


def test_restarts_are_counted(query: QueryDescription) -> None:
    retried = [replace(start_event(NOW - 30 + n), kind="retried", text="Kafka is away.") for n in range(2)]
    [problem] = find_problems(query, *well(), *retried, start_event(NOW - 20), batch(11, NOW - 1))
    assert problem.text == "joined failed and was restarted twice in the last 10 min: Kafka is away."


def test_a_process_that_is_gone_is_reported(query: QueryDescription) -> None:
    gone = [replace(one, process=2**22 + 1) if isinstance(one, QueryEvent) else one for one in well()]
    [problem] = find_problems(query, *gone, now=NOW + 60)
    assert "is gone; its last sign of life was 1 min 1 s ago" in problem.text


def test_late_rows_are_reported_of_the_side_that_has_them(query: QueryDescription) -> None:
    assert find_problems(query, start_event(NOW - 50), *(batch(n, NOW - 20 + 2 * n, late=3) for n in range(10))) == []
    [problem] = find_problems(query, *(batch(20 + n, NOW - 10 + n, late=70) for n in range(10)))
    assert problem.text == "730 rows were late in the last 10 min: 9.1% of those of orders."
    assert problem.advice.startswith("A larger lag in its WATERMARK would include them.")
    assert "`LATE INTO sink`" in problem.advice and "`watersmeet run --accept`" in problem.advice
    tardy = batch(31, NOW, late=70)
    known = replace(tardy, operators={JOIN: replace(tardy.operators[JOIN], lateness={"104": 70})})
    # Late by 67.1 s at most, beyond the lag of five minutes.
    assert "A lag of 6 min 8 s" in find_problems(query, known)[0].advice


def test_malformed_and_dropped_rows_are_reported(query: QueryDescription) -> None:
    bad = replace(batch(9, NOW - 1), malformed=3, malformed_of={"orders": 3}, dropped=5)
    texts = [problem.text for problem in find_problems(query, *well(), bad)]
    assert texts == [
        "3 rows of orders could not be read in the last 10 min.",
        "5 rows were dropped in the last 10 min: a limit removed them, or they have no usable key or time.",
    ]


def test_a_limit_is_reported_before_it_is_reached(query: QueryDescription) -> None:
    [problem] = find_problems(replace(query, max_rows=1200), *well())
    assert problem.text == f"{JOIN} keeps 1,100 rows; 1,200 is the limit."


def test_rows_that_have_to_wait_are_reported_with_where_the_time_goes(query: QueryDescription) -> None:
    slow = [replace(batch(20 + n, NOW - 10 + n), backpressure=0.5) for n in range(10)]
    [problem] = find_problems(query, start_event(NOW - 50), *slow)
    assert problem.text == "Rows arrive faster than joined takes them: 50% had to wait."


def test_a_join_in_which_nothing_ever_matches_is_reported(query: QueryDescription) -> None:
    alone = [replace(batch(n, NOW - 40 + n), matched=0, padded=40) for n in range(40)]
    assert (
        find_problems(query, start_event(NOW - 50), *alone)[0].text
        == "1,600 rows came out unmatched, and none ever matched."
    )


def test_a_side_that_is_far_behind_is_reported(query: QueryDescription) -> None:
    own = {"o.order_time": int(NOW * 1e6), "d.delivery_time": int((NOW - 7200) * 1e6)}
    [problem] = find_problems(query, *well(), replace(batch(11, NOW - 1), own=own))
    assert problem.text.startswith("deliveries is 2 h behind the other side")


def test_histograms_of_pairs_end_at_the_bound(query: QueryDescription) -> None:
    """A range of lengths ends up to a quarter beyond what is in it."""
    one = batch(0, NOW - 2)
    delays = {str(number): 10 for number in range(100, 130)}
    write(
        query.storage, start_event(NOW - 9), replace(one, operators={JOIN: replace(one.operators[JOIN], delays=delays)})
    )
    following = HistoryFollower(query.storage, query.name)
    following.poll()
    [histogram] = spreads_of(query, following)
    assert histogram["words"] == "99 % within 1 h, the bound is 1 h."
    bars = histogram["bars"]
    assert isinstance(bars, list)
    assert bars[-1]["until"] == 3_600_000_000 and sum(bar["count"] for bar in bars) == 300


@contextmanager
def webhook() -> Generator[tuple[str, list[dict[str, Any]], list[int]]]:
    """A server that takes alerts: its address, what it got, and the codes of its next answers, else 204."""
    got, codes = list[dict[str, Any]](), list[int]()

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            code = codes.pop(0) if codes else 204
            if code == 204:
                got.append(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Takes)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/alerts", got, codes
    finally:
        server.shutdown()
        server.server_close()


def test_each_problem_is_posted_when_it_begins_and_when_it_is_over(query: QueryDescription) -> None:
    news = list[str]()
    # What an earlier run left is not news.
    write(query.storage, replace(start_event(time.time() - 90), kind="failed", text="The disk is full."))
    with webhook() as (url, got, codes):
        alerts = ProblemAlerts("shop", [query], partial(post_json, url), news.append)
        alerts.look()
        assert got == []
        now = time.time() + 1
        bad = replace(batch(0, now), malformed=3, malformed_of={"orders": 3})
        write(query.storage, start_event(now), bad)
        codes.append(503)
        alerts.look()
        assert got == [] and len(news) == 1 and "503" in news[0] and "/alerts" not in news[0]
        for _ in range(2):
            alerts.look()
        [alert] = got
        assert alert["text"] == "shop, joined: 3 rows of orders could not be read in the last 10 min."
        named = {name: alert[name] for name in ("status", "project", "query", "level", "kind", "about")}
        assert named == {
            "status": "firing", "project": "shop", "query": "joined", "level": "wrong", "kind": "malformed_rows",
            "about": "orders",
        }  # fmt: skip
        # More of them are the same problem; ten minutes later it is over.
        write(query.storage, replace(batch(1, now + 1), malformed=1, malformed_of={"orders": 1}))
        alerts.look()
        write(query.storage, batch(2, now + 700))
        alerts.look()
        assert [one["status"] for one in got] == ["firing", "resolved"]
        write(query.storage, QueryEvent("failed", now + 701, "The disk is full.", os.getpid()))
        alerts.look(is_last=True)
        assert (got[-1]["level"], got[-1]["kind"]) == ("stopped", "failures") and "The disk is full." in got[-1]["text"]


def test_a_phase_is_that_of_batches_since_the_last_start(query: QueryDescription) -> None:
    following = HistoryFollower(query.storage, query.name)
    write(query.storage, start_event(NOW - 60), replace(batch(0, NOW - 50), phase="history"))
    following.poll()
    assert overview(query, following, NOW)["phase"] == "history"
    write(query.storage, start_event(NOW - 10))
    following.poll()
    assert overview(query, following, NOW)["phase"] == ""
