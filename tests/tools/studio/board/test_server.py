"""Who is answered by the server of the board, and what it takes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.tools.studio.board.conftest import LARGE, STORIES, Serve

from watersmeet.tools.studio.board import server
from watersmeet.tools.studio.board.answer import MOST_COMPUTED, MOST_RESULTS
from watersmeet.tools.studio.board.model import board_json
from watersmeet.tools.studio.board.server import open_board
from watersmeet.tools.testing import parse_case, run_case

JSON = {"Content-Type": "application/json"}


def request(
    address: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if sent is None else "POST", path, sent, headers or {})
    response = connection.getresponse()
    said = response.read().decode()
    connection.close()
    return response.status, dict(response.getheaders()), said


def post(address: str, path: str, **data: Any) -> Any:
    status, _, said = request(address, path, data, JSON)
    assert status == 200, said
    return json.loads(said)


def test_every_answer_allows_no_script_but_its_own(serve: Serve) -> None:
    address = serve()
    for path in ("/", "/static/board.js", "/static/lifetimes.css", "/first", "/shelf", "/nothing", "/open/9999"):
        _, headers, _ = request(address, path)
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_name_that_was_made_to_point_here_gets_nothing(serve: Serve, host: str) -> None:
    assert request(serve(), "/first", headers={"Host": host})[0] == 421


def test_another_page_may_not_ask(serve: Serve) -> None:
    address = serve()
    board = {"board": board_json(open_board(STORIES / "interval.yaml"))}
    assert request(address, "/answer", board, {**JSON, "Origin": "http://evil.example"})[0] == 403
    assert request(address, "/answer", board, {**JSON, "Origin": address})[0] == 200
    # A form of another page could send text without being asked who it is.
    assert request(address, "/answer", board, {"Content-Type": "text/plain"})[0] == 415


def test_on_another_address_a_token_is_required(serve: Serve) -> None:
    address = serve(token="s3cret")
    assert request(address, "/first")[0] == 401
    assert request(address, "/?token=wrong")[0] == 401
    status, headers, _ = request(address, "/?token=s3cret")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert request(address, "/first", headers={"Cookie": cookie.partition(";")[0], "Host": "example.org"})[0] == 200


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/..%2Fserver.py", "/static/server.py", "/open/9999"])
def test_server_opens_only_entries_of_the_catalog(serve: Serve, path: str) -> None:
    assert request(serve(), path)[0] == 404


@pytest.mark.parametrize(
    "sent",
    [b"no json", b"[]", b"{}", b'{"board": 5}', b'{"board": {"unknown": 1}}', b'{"board": {"batches": [{"rows": 1}]}}'],
)
def test_malformed_boards_are_refused(serve: Serve, sent: bytes) -> None:
    status, _, said = request(serve(), "/answer", sent, JSON)
    assert status == 400
    assert "This is not a board" in said


def test_too_much_is_refused(serve: Serve) -> None:
    address = serve()
    assert request(address, "/answer", b" " * 4_000_001, JSON)[0] == 413
    rows = [["1", "a", "2026-03-02 08:00"]] * 2_001
    status, _, said = request(address, "/answer", {"board": {"batches": [{"rows": {"orders": rows}}]}}, JSON)
    assert (status, "room for 2,000 rows" in said) == (400, True)


def test_a_board_is_saved_only_at_its_path(serve: Serve, tmp_path: Path) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    handed_out = post(serve(), "/save", board=board)
    assert handed_out["path"] is None
    assert run_case(parse_case(handed_out["text"]), "kernel").status == "passed"
    target = tmp_path / "late.yaml"
    assert post(serve(save=target), "/save", board=board)["path"] == str(target)
    assert target.read_text("utf-8") == handed_out["text"]
    assert list(tmp_path.iterdir()) == [target]


def test_boards_that_cannot_run_are_not_saved_and_say_why(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml")) | {"sql": "SELECT STREAM nothing FROM nowhere"}
    status, _, said = request(serve(), "/save", {"board": board}, JSON)
    assert status == 422
    assert "UNKNOWN_SOURCE" in said


def test_a_row_is_moved_to_a_moment(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    nine = 1_772_442_000_000_000
    said = post(serve(), "/move", board=board, batch=2, source="deliveries", row=0, to=nine + 20 * 60_000_000)
    assert said["board"]["batches"][2]["rows"]["deliveries"] == [["2", "hill", "2026-03-02 09:20"]]
    moved = next(row for row in said["answer"]["rows"] if row["batch"] == 2)
    assert moved["what"] == "alive"


def test_more_rows_than_a_board_computes_with_are_not_computed(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    source, rows = next((name, rows) for name, rows in board["batches"][0]["rows"].items() if rows)
    board["batches"][0]["rows"][source] = rows[:1] * (MOST_COMPUTED + 1)
    said = post(serve(), "/answer", board=board)
    assert "results" not in said
    assert f"up to {MOST_COMPUTED} rows" in said["note"]


def test_a_result_with_more_rows_than_a_board_shows_is_not_traced(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    rows = {"orders": [["1", "tea", "2026-03-02 08:00"]] * 71, "deliveries": [["1", "hill", "2026-03-02 08:00"]] * 71}
    said = post(serve(), "/answer", board=board | {"batches": [{"rows": rows}]})
    assert "results" not in said
    assert said["note"].startswith(f"The board shows up to {MOST_RESULTS:,} result rows, and there are 5,041. Remove")


def send(address: str, board: dict[str, Any]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    connection.request("POST", "/answer", json.dumps({"board": board}), JSON)
    return connection


def test_a_board_that_takes_too_long_is_given_up_and_can_be_changed(serve: Serve) -> None:
    address = serve(seconds=0.5)
    said = post(address, "/answer", board=board_json(LARGE))
    assert said["note"].startswith("The board computes for up to 0.5 seconds. Remove some rows")
    # So that rows can be removed.
    assert [source["name"] for source in said["sources"]] == ["a", "b", "c"]


def test_a_computation_ends_with_the_page_that_waits_for_it(serve: Serve) -> None:
    address = serve(seconds=3600)
    before = children()
    first = send(address, board_json(LARGE))
    while not (process := children() - before):
        time.sleep(0.01)
    first.close()
    # It would take minutes if the first one were still computed.
    assert "results" in post(address, "/answer", board=board_json(open_board(STORIES / "interval.yaml")))
    assert children().isdisjoint(process)


def test_a_process_that_dies_is_reported_and_the_next_board_is_answered(serve: Serve) -> None:
    address = serve(seconds=3600)
    before = children()
    first = send(address, board_json(LARGE))
    while not (process := children() - before):
        time.sleep(0.01)
    os.kill(process.pop(), signal.SIGKILL)
    assert "ended with exit code -9. Remove" in json.loads(first.getresponse().read())["note"]
    assert "results" in post(address, "/answer", board=board_json(open_board(STORIES / "interval.yaml")))


def children() -> set[int]:
    """The processes that this one started and that have not ended."""
    listed = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,ppid=,stat=,args="], stdout=subprocess.PIPE, check=True, text=True
    )
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return {
        int(pid) for pid, parent, state, command in rows
        if int(parent) == os.getpid() and not state.startswith("Z") and "answer_requests" in command
    }  # fmt: skip


def test_one_board_is_computed_at_a_time_and_none_for_a_page_that_is_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, running, goes_on = list[str](), threading.Event(), threading.Event()

    def slowly(_: object, request: bytes, __: object) -> server.BoardAnswer:
        name = json.loads(request)[1]["board"]["name"]
        computed.append(name)
        running.set()
        assert goes_on.wait(60)
        return server.BoardAnswer(200, json.dumps({"name": name}).encode())

    monkeypatch.setattr(server, "_exchange", slowly)
    address, board = serve(), board_json(open_board(STORIES / "interval.yaml"))
    first = send(address, board | {"name": "first"})
    assert running.wait(60)
    send(address, board | {"name": "gone"}).close()
    last = send(address, board | {"name": "last"})
    # Whatever the server would begin beside the first, it has begun by the time it answers someone else.
    assert request(address, "/first")[0] == 200
    assert computed == ["first"]
    goes_on.set()
    assert json.loads(first.getresponse().read()) == {"name": "first"}
    assert json.loads(last.getresponse().read()) == {"name": "last"}
    assert computed == ["first", "last"]


@pytest.mark.parametrize("headers", [{"Host": "[::1"}, {"Host": "localhost:1:2"}, {"Host": "a b"}, {"Host": ""}])
def test_a_malformed_host_is_refused_as_such(serve: Serve, headers: dict[str, str]) -> None:
    assert request(serve(), "/first", headers=headers)[0] == 400
    assert request(serve(token="s3cret"), "/first", headers=headers)[0] == 400


def test_a_malformed_origin_may_not_ask(serve: Serve) -> None:
    assert request(serve(), "/first", headers={"Origin": "http://[::1"})[0] == 403


@pytest.mark.parametrize("sent", [b"[" * 100_000, b'{"board": ' + b'{"a": ' * 50_000])
def test_deep_nesting_is_refused(serve: Serve, sent: bytes) -> None:
    status, _, said = request(serve(), "/answer", sent, JSON)
    assert (status, "This is not a board" in said) == (400, True)


def test_no_more_is_read_than_a_board_may_have(serve: Serve) -> None:
    """An answer comes before the body has ended: it is not kept until it has."""
    for head in (b"Content-Length: 99999999999", b"Transfer-Encoding: chunked"):
        url = urlsplit(serve())
        with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
            lines = (b"POST /answer HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", head, b"", b"")
            connection.sendall(b"\r\n".join(lines))
            if head.endswith(b"chunked"):
                piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
                for _ in range(5):
                    connection.sendall(piece)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
