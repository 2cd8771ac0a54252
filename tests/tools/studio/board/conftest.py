"""A board that is served, and the browser of the system that opens it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect

from watersmeet.tools.studio.board.model import Board, BoardBatch
from watersmeet.tools.studio.board.server import (
    MOST_SECONDS,
    BoardEntry,
    BoardSession,
    application,
    build_catalog,
    open_board,
)

STORIES = Path(__file__).parents[4] / "src" / "watersmeet" / "tools" / "studio" / "board" / "stories"

TABLES = "abc"
LARGE = Board(
    sql="".join(f"CREATE TABLE {name} (k INT, v INT); " for name in TABLES)
    + "SELECT TABLE count(*) AS n FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k",
    batches=(BoardBatch({name: tuple(("+", "1", str(row)) for row in range(130)) for name in TABLES}),),
)
"""A board with few enough rows and one result row, which counts two million combinations: that takes minutes."""

WAIT = 30_000
"""How long something may take to be seen, in milliseconds: the machine may have much else to do."""
expect.set_options(timeout=WAIT)

Serve = Callable[..., str]
"""Serves a board, and gives its address."""


@contextmanager
def serve_session(table: BoardSession) -> Generator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(table), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def serve() -> Generator[Serve]:
    """The address of a board with that on it; the shelf is that of the stories, if no other is given."""
    running: list[object] = []

    def start(
        first: Board | None = None,
        save: Path | None = None,
        token: str = "",
        shelf: list[BoardEntry] | None = None,
        seconds: float = MOST_SECONDS,
    ) -> str:
        board = open_board(STORIES / "interval.yaml") if first is None else first
        context = serve_session(
            BoardSession(board, build_catalog(STORIES) if shelf is None else shelf, save, token, seconds)
        )
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def context(browser: Browser) -> Generator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 1100}, accept_downloads=True)
    context.set_default_timeout(WAIT)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, serve: Serve) -> Generator[Page]:
    """A page that fails the test if its script fails, or if its policy stops something; closed before its server."""
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield page
    found = list(complaints)
    page.close()
    assert not found
