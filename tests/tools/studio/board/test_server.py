"""Who is answered by the server of the board, and what it takes."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.tools.studio.board.conftest import STORIES, Serve

from watersmeet.tools.studio.board import server
from watersmeet.tools.studio.board.answer import MOST_COMPUTED, BoardView
from watersmeet.tools.studio.board.model import Board
from watersmeet.tools.studio.board.server import board_json, open_board
from watersmeet.tools.testing import parse_case, run_case

JSON = {"Content-Type": "application/json"}


def asked(
    address: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if sent is None else "POST", path, sent, headers or {})
    response = connection.getresponse()
    said = response.read().decode()
    connection.close()
    return response.status, dict(response.getheaders()), said


def posted(address: str, path: str, **data: Any) -> Any:
    status, _, said = asked(address, path, data, JSON)
    assert status == 200, said
    return json.loads(said)


def test_every_answer_allows_no_script_but_its_own(serve: Serve) -> None:
    address = serve()
    for path in ("/", "/static/board.js", "/static/lives.css", "/first", "/shelf", "/nothing", "/open/9999"):
        _, headers, _ = asked(address, path)
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_name_that_was_made_to_point_here_gets_nothing(serve: Serve, host: str) -> None:
    assert asked(serve(), "/first", headers={"Host": host})[0] == 421


def test_another_page_may_not_ask(serve: Serve) -> None:
    address = serve()
    board = {"board": board_json(open_board(STORIES / "interval.yaml"))}
    assert asked(address, "/answer", board, {**JSON, "Origin": "http://evil.example"})[0] == 403
    assert asked(address, "/answer", board, {**JSON, "Origin": address})[0] == 200
    # A form of another page could send text without being asked who it is.
    assert asked(address, "/answer", board, {"Content-Type": "text/plain"})[0] == 415


def test_elsewhere_a_token_is_asked_for(serve: Serve) -> None:
    address = serve(token="s3cret")
    assert asked(address, "/first")[0] == 401
    assert asked(address, "/?token=wrong")[0] == 401
    status, headers, _ = asked(address, "/?token=s3cret")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert asked(address, "/first", headers={"Cookie": cookie.partition(";")[0], "Host": "example.org"})[0] == 200


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/..%2Fserver.py", "/static/server.py", "/open/9999"])
def test_nothing_is_opened_but_what_stands_on_the_shelf(serve: Serve, path: str) -> None:
    assert asked(serve(), path)[0] == 404


@pytest.mark.parametrize(
    "sent",
    [b"no json", b"[]", b"{}", b'{"board": 5}', b'{"board": {"unknown": 1}}', b'{"board": {"batches": [{"rows": 1}]}}'],
)
def test_what_is_no_board_is_refused(serve: Serve, sent: bytes) -> None:
    status, _, said = asked(serve(), "/answer", sent, JSON)
    assert status == 400
    assert "This is not a board" in said


def test_too_much_is_refused(serve: Serve) -> None:
    address = serve()
    assert asked(address, "/answer", b" " * 4_000_001, JSON)[0] == 413
    rows = [["1", "a", "2026-03-02 08:00"]] * 2_001
    status, _, said = asked(address, "/answer", {"board": {"batches": [{"rows": {"orders": rows}}]}}, JSON)
    assert (status, "room for 2,000 rows" in said) == (400, True)


def test_a_board_is_saved_only_where_it_was_told_to(serve: Serve, tmp_path: Path) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    handed_out = posted(serve(), "/save", board=board)
    assert handed_out["path"] is None
    assert run_case(parse_case(handed_out["text"]), "kernel").status == "passed"
    target = tmp_path / "late.yaml"
    assert posted(serve(save=target), "/save", board=board)["path"] == str(target)
    assert target.read_text("utf-8") == handed_out["text"]
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_run_is_not_saved_and_says_why(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml")) | {"sql": "SELECT STREAM nothing FROM nowhere"}
    status, _, said = asked(serve(), "/save", {"board": board}, JSON)
    assert status == 422
    assert "UNKNOWN_SOURCE" in said


def test_a_row_is_moved_to_a_moment(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    nine = 1_772_442_000_000_000
    said = posted(serve(), "/move", board=board, batch=2, source="deliveries", row=0, to=nine + 20 * 60_000_000)
    assert said["board"]["batches"][2]["rows"]["deliveries"] == [["2", "hill", "2026-03-02 09:20"]]
    moved = next(row for row in said["answer"]["rows"] if row["batch"] == 2)
    assert moved["what"] == "alive"


def test_more_rows_than_a_board_computes_with_are_not_computed(serve: Serve) -> None:
    board = board_json(open_board(STORIES / "interval.yaml"))
    source, rows = next((name, rows) for name, rows in board["batches"][0]["rows"].items() if rows)
    board["batches"][0]["rows"][source] = rows[:1] * (MOST_COMPUTED + 1)
    said = posted(serve(), "/answer", board=board)
    assert "results" not in said
    assert f"up to {MOST_COMPUTED} rows" in said["note"]


def test_one_board_is_computed_at_a_time_and_none_for_a_page_that_is_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, running, goes_on = list[str](), threading.Event(), threading.Event()

    def slowly(board: Board, _: BoardView) -> dict[str, str]:
        computed.append(board.name)
        running.set()
        assert goes_on.wait(60)
        return {"name": board.name}

    monkeypatch.setattr(server, "evaluate_board", slowly)
    address, board = serve(), board_json(open_board(STORIES / "interval.yaml"))

    def send(name: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.request("POST", "/answer", json.dumps({"board": {**board, "name": name}}), JSON)
        return connection

    first = send("first")
    assert running.wait(60)
    send("gone").close()
    last = send("last")
    # Whatever the server would begin beside the first, it has begun by the time it answers someone else.
    assert asked(address, "/first")[0] == 200
    assert computed == ["first"]
    goes_on.set()
    assert json.loads(first.getresponse().read()) == {"name": "first"}
    assert json.loads(last.getresponse().read()) == {"name": "last"}
    assert computed == ["first", "last"]


@pytest.mark.parametrize("headers", [{"Host": "[::1"}, {"Host": "localhost:1:2"}, {"Host": "a b"}, {"Host": ""}])
def test_a_malformed_host_is_refused_as_such(serve: Serve, headers: dict[str, str]) -> None:
    assert asked(serve(), "/first", headers=headers)[0] == 400
    assert asked(serve(token="s3cret"), "/first", headers=headers)[0] == 400


def test_a_malformed_origin_may_not_ask(serve: Serve) -> None:
    assert asked(serve(), "/first", headers={"Origin": "http://[::1"})[0] == 403


@pytest.mark.parametrize("sent", [b"[" * 100_000, b'{"board": ' + b'{"a": ' * 50_000])
def test_what_is_nested_too_deeply_is_refused(serve: Serve, sent: bytes) -> None:
    status, _, said = asked(serve(), "/answer", sent, JSON)
    assert (status, "This is not a board" in said) == (400, True)


def test_no_more_is_read_than_a_board_may_have(serve: Serve) -> None:
    """An answer comes before the body has ended: it is not kept until it has."""
    for head in (b"Content-Length: 99999999999", b"Transfer-Encoding: chunked"):
        with socket.create_connection(urlsplit(serve()).netloc.split(":"), timeout=20) as connection:
            lines = (b"POST /answer HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", head, b"", b"")
            connection.sendall(b"\r\n".join(lines))
            if head.endswith(b"chunked"):
                piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
                for _ in range(5):
                    connection.sendall(piece)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
