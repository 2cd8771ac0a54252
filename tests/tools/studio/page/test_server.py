"""The server of the page: what it answers, whom, and how quickly."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.tools.studio.page.histories import batch, project, start_event, write
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.history import LARGEST, history_file, progress_as_json
from watersmeet.tools.studio.page.description import QueryDescription
from watersmeet.tools.studio.page.model import RowSamples
from watersmeet.tools.studio.page.server import Watch, serve_page
from watersmeet.tools.trace.live import questions_of


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    found = urlsplit(address)
    connection = HTTPConnection(found.hostname or "", found.port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, told, answer.read().decode()


def values(address: str, path: str) -> Any:
    return json.loads(ask(address, path)[2])


@pytest.fixture
def query(tmp_path: Path) -> QueryDescription:
    return project(tmp_path / "shop")


@pytest.fixture
def page(query: QueryDescription) -> Iterator[str]:
    with serve_page(Watch("shop", [query], lambda: "up 1\n"), 0, "127.0.0.1") as address:
        yield address


def test_the_page_shows_what_the_history_has(query: QueryDescription, page: str) -> None:
    now = time.time()
    write(query.storage, start_event(now - 20), *(batch(n, now - 20 + 2 * n) for n in range(10)))
    data = values(page, "/api/query/joined")
    assert (data["rows_in"], data["matched"], data["state_rows"], data["life"]) == (
        7000,
        2500,
        1100,
        "runs",
    )
    assert data["operators"]["o and d"]["sides"]["left"]["name"] == "orders"
    assert data["held"] == "deliveries holds the others back, by 1 min. 900 rows of orders wait for it."
    # An hour before the watermark of deliveries.
    earliest = datetime.fromtimestamp(int(now - 2 - 360 - 3600), UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert f"the earliest rows of orders that may still come out are from {earliest}" in data["next"]
    newest = {one["column"]: one["newest"] for one in data["marks"]}
    # The lag of both is five minutes.
    assert int(newest["o.order_time"]) == int((now - 2 - 300 + 300) * 1_000_000)
    write(query.storage, batch(10, now))
    assert values(page, "/api/project")["queries"][0]["rows_in"] == 7700
    assert {box["id"] for box in values(page, "/api/drawing/joined")["boxes"]} == {
        "source1",
        "source2",
        "join1",
        "sink1",
    }
    assert ask(page, "/api/query/nothing")[0] == 404
    assert ask(page, "/metrics")[2] == "up 1\n"


def test_changes_are_reported_as_they_happen(query: QueryDescription, page: str) -> None:
    found = urlsplit(page)
    connection = HTTPConnection(found.hostname or "", found.port, timeout=20)
    connection.request("GET", "/api/changes")
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    first = answer.readline()
    write(query.storage, batch(0, time.time()))
    answer.readline()
    assert first.startswith(b"data: ") and answer.readline() not in (first, b"\n")
    connection.close()


def test_the_last_word_is_how_each_query_is(query: QueryDescription) -> None:
    write(query.storage, start_event(time.time() - 9), batch(0, time.time()))
    with serve_page(Watch("shop", [query]), 0, "127.0.0.1") as page:
        found = urlsplit(page)
        connection = HTTPConnection(found.hostname or "", found.port, timeout=20)
        connection.request("GET", "/api/changes")
        answer = connection.getresponse()
        answer.readline()
        write(query.storage, replace(start_event(time.time()), kind="ended"))
    assert b'event: end\ndata: {"joined": "ended"}\n' in answer.read()
    connection.close()


def test_generated_names_are_not_shown(query: QueryDescription, page: str) -> None:
    one = batch(0, time.time())
    hidden = {"#loaded": 1, "o.order_time#@orders-0": 5, "begun.#t": 7}
    write(
        query.storage,
        start_event(time.time() - 9),
        replace(one, own={**one.own, **hidden}, marks={**one.marks, **hidden}),
    )
    assert "#" not in ask(page, "/api/query/joined")[2]
    held = values(page, "/api/query/joined")["held"]
    assert held == "deliveries holds the others back, by 1 min. 900 rows of orders wait for it."


def test_a_share_of_late_rows_is_one_of_the_rows_that_can_be_late(query: QueryDescription, page: str) -> None:
    """In a chain of joins these are more than its sources had."""
    one = batch(0, time.time(), late=7)
    chain = {"o and d": one.operators["o and d"], "o+d and c": one.operators["o and d"]}
    write(query.storage, start_event(time.time() - 9), replace(one, operators=chain, late=14))
    data = values(page, "/api/query/joined")
    assert (data["rows_in"], data["late"], data["late_of"]) == (700, 14, 1400)


def test_server_answers_this_machine_and_its_own_names_only(page: str) -> None:
    port = urlsplit(page).port
    assert ask(page, "/")[0] == 200
    assert ask(page, "/", Host=f"localhost:{port}")[0] == 200
    # A name that someone made to point here.
    assert ask(page, "/", Host=f"rebound.example:{port}")[0] == 421
    assert ask(page, "/", Host=f"[::1]:{port}")[0] == 200
    for malformed in ("[::1", "localhost:1:2", "localhost/x", ""):
        assert ask(page, "/", Host=malformed)[0] == 400
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(page, "/api/project", method)[0] == 405


def test_the_page_has_the_rules_of_the_board(page: str) -> None:
    """Another site, several hosts, and more than may be sent: one guard is before both."""
    assert ask(page, "/api/project", Origin="http://rebound.example")[0] == 403
    assert ask(page, "/api/project", Origin=page.rstrip("/"))[0] == 200
    found = urlsplit(page)
    for head, status in (
        ("Host: localhost", 400),
        ("Content-Length: 99999999999", 413),
    ):
        with socket.create_connection((found.hostname or "", found.port or 0), timeout=20) as connection:
            connection.sendall(f"GET /api/project HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
            assert connection.recv(100).startswith(f"HTTP/1.1 {status}".encode()), head


def test_every_answer_says_what_a_browser_may_do_with_it(page: str) -> None:
    for path in ("/", "/page.js", "/uplot.css", "/api/project", "/nothing"):
        headers = ask(page, path)[1]
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_hidden_rows_cannot_be_questioned(query: QueryDescription) -> None:
    rows, asked = RowSamples(), list[tuple[str, dict[str, str | None], int]]()
    told = replace(batch(0, time.time()), examples={"o and d": {"padded": [{"o.order_id": "3", "d.courier": None}]}})
    write(query.storage, told)
    watch = Watch("shop", [query], rows=rows)
    watch.take(told)
    with serve_page(watch, 0, "127.0.0.1") as address:
        [kind] = values(address, "/api/query/joined")["rows"]["kinds"]
        number = kind["rows"][0]["number"]
        assert values(address, f"/api/why/joined?row={number}")["text"].startswith("Spark is not ready yet")

        def ask_it(name: str, row: Mapping[str, str | None], read: int) -> str:
            asked.append((name, dict(row), read))
            return "<b>It did not match.</b>"

        watch.ask = ask_it
        assert values(address, f"/api/why/joined?row={number}") == {"text": "<b>It did not match.</b>"}
        assert asked == [("joined", {"o.order_id": "3", "d.courier": None}, 700)]
        for wrong in ("/api/why/joined?row=99", "/api/why/joined?row=x", "/api/why/joined", "/api/why/other?row=0"):
            assert ask(address, wrong)[0] == 404
        assert ask(address, f"/api/why/joined?row={number}", Host="rebound.example")[0] == 421
    with serve_page(watch, 0, "0.0.0.0", "hush") as address:
        assert ask(address.replace("0.0.0.0", "127.0.0.1"), f"/api/why/joined?row={number}")[0] == 401
    assert len(asked) == 1


def test_a_row_is_identified_by_what_is_shown_of_it(query: QueryDescription) -> None:
    assert query.plan is not None
    shown = {"o.order_id": "3", "o.item": "x" * 200, "o.order_time": "2026-03-02 08:20:00+00:00", "d.courier": None}
    [question] = questions_of(query.plan, shown)
    assert str(question) == "order_id 3 and order_time 2026-03-02 08:20:00", "a text that was cut says nothing"
    assert question.source.name == "orders"
    [other] = questions_of(query.plan, {"o.order_id": None, "o.item": None, "d.order_id": "4", "d.courier": None})
    assert (other.source.name, other.values) == ("deliveries", {"order_id": 4, "courier": None})
    assert questions_of(query.plan, {"o.order_id": None, "x.y": "1"}) == []


def test_on_another_address_a_token_is_needed(query: QueryDescription) -> None:
    with serve_page(Watch("shop", [query]), 0, "0.0.0.0", "hush") as address:
        here = address.replace("0.0.0.0", "127.0.0.1")
        assert address.endswith("/?token=hush")
        assert ask(here, "/")[0] == ask(here, "/api/project")[0] == ask(here, "/page.js")[0] == 401
        assert ask(here, "/?token=wrong")[0] == 401
        status, headers, _ = ask(here, "/?token=hush")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert ask(here, "/", Cookie=cookie.partition(";")[0])[0] == 200
        assert ask(here, "/api/project", Authorization="Bearer hush")[0] == 200
    with (
        serve_page(Watch("shop", [query]), 0, "0.0.0.0") as one,
        serve_page(Watch("shop", [query]), 0, "0.0.0.0") as other,
    ):
        made = [urlsplit(address).query for address in (one, other)]
        assert all(len(token) > 20 for token in made) and made[0] != made[1]


def test_the_page_is_quick_with_ten_queries_and_fifty_thousand_batches(query: QueryDescription) -> None:
    queries = [replace(query, name=f"query{n}") for n in range(10)]
    # A file that has been thinned out as often as it must be for that: of its 4,000 lines the newer half are batches.
    lines = [replace(batch(n, 1_700_000_000.0 + n), batches=24 if n < 2000 else 1) for n in range(4000)]
    first = history_file(query.storage, "query0")
    first.parent.mkdir(parents=True)
    first.write_text("".join(f"{json.dumps(progress_as_json(one))}\n" for one in lines))
    assert LARGEST / 2 < first.stat().st_size < 1.2 * LARGEST
    for other in queries[1:]:
        history_file(query.storage, other.name).write_bytes(first.read_bytes())
    with serve_page(Watch("shop", queries), 0, "127.0.0.1") as address:
        began = time.monotonic()
        data = values(address, "/api/project")
        opened = time.monotonic() - began
        assert [one["batches"] for one in data["queries"]] == [50_000] * 10
        began = time.monotonic()
        status, _, text = ask(address, "/api/query/query7")
        shown = time.monotonic() - began
    assert status == 200 and len(json.loads(text)["series"]["at"]) <= 300 and len(text) < 300_000
    # All of it is read once; from then on it is quick.
    assert opened < 20.0 and shown < 2.0, (opened, shown)


def test_a_port_that_is_taken_is_refused_before_anything_starts(query: QueryDescription) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(WatersmeetError, match=r"PAGE_ADDRESS.*another process listens there"),
            serve_page(Watch("shop", [query]), port, "127.0.0.1"),
        ):
            pass
        result = CliRunner().invoke(app, ["run", str(query.storage.parent), "--page", str(port)])
    assert result.exit_code == 1 and "PAGE_ADDRESS" in result.output
    assert not (query.storage / "spark.log").exists()


def test_missing_server_of_pages_is_refused(query: QueryDescription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.cli.studio.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["page", str(query.storage.parent)])
    assert result.exit_code == 1 and "PAGE_NOT_INSTALLED" in result.output and "watersmeet[ui]" in result.output
