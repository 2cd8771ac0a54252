"""The server of the board: a child process computes, and the page draws the result.

It opens nothing but the entries of its catalog, and writes nothing but the one file that it was told to save to. Who
is answered, `tools.studio.web` decides.

The catalog lists what can be opened: stories, and the cases, projects and scripts of a folder. A page opens an entry by
number and cannot name a path.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from watersmeet.errors import WatersmeetError
from watersmeet.project import SPEC_NAME, open_project
from watersmeet.tools.studio.board.answer import NOT_A_BOARD, TOO_MUCH, read_message, write_message
from watersmeet.tools.studio.board.model import (
    Board,
    BoardBatch,
    board_from_case,
    board_json,
    parse_board,
    rows_of_files,
)
from watersmeet.tools.studio.drawing import STYLE
from watersmeet.tools.studio.web import TYPES, build_application, file_endpoint, read_json
from watersmeet.tools.testing.case import read_case

_NAME = re.compile(r"^name:\s*(.+?)\s*$", re.MULTILINE)
_SCRIPT = re.compile(r"^(sql|query):", re.MULTILINE)
_SKIPPED = frozenset({"node_modules", "storage", "__pycache__", "venv", "build", "dist", "golden"})
FIRST = "interval"
MOST_SECONDS = 20.0
"""The time that a board may be computed."""
MOST_FILES = 3_000
"""The number of files that are looked at: the folder may be anything."""


@dataclass(frozen=True)
class BoardEntry:
    """An entry of the catalog: its section, its title, and its file."""

    group: str
    title: str
    path: Path


def build_catalog(root: Path) -> list[BoardEntry]:
    """The stories, then the entries found under a folder."""
    stories = Path(str(files("watersmeet.tools.studio.board") / "stories"))
    # The one that explains the most comes first.
    paths = sorted(stories.glob("*.yaml"), key=lambda path: (path.stem != FIRST, path.stem))
    entries = [BoardEntry("stories", _title(path.read_text("utf-8"), path), path) for path in paths]
    return [
        *entries,
        *(entry for entry in _scan_folder(root) if entry.path.resolve() not in {p.resolve() for p in paths}),
    ]


def open_board(path: Path) -> Board:
    """The board for a case, a script or the folder of a project; refused if it cannot be read.

    A script begins with the rows of its JSON files, as far as there are some.
    """
    if path.suffix in (".yaml", ".yml") and path.name != SPEC_NAME:
        return board_from_case(read_case(path))
    project = open_project(path)
    rows = rows_of_files(project)
    return Board(f"rows of {project.name}", project.text, batches=(BoardBatch(rows),), ends=bool(rows))


def _scan_folder(root: Path) -> Iterator[BoardEntry]:
    files_seen = 0
    projects: list[Path] = []
    for folder, below, names in os.walk(root):
        here = Path(folder)
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _SKIPPED)
        if SPEC_NAME in names:
            projects.append(here)
            yield BoardEntry(_group(here, root), f"{here.name}, the project", here)
        for name in sorted(names):
            files_seen += 1
            if files_seen > MOST_FILES:
                return
            entry = _entry(here / name, root, is_in_project=any(here.is_relative_to(project) for project in projects))
            if entry is not None:
                yield entry


def _entry(path: Path, root: Path, *, is_in_project: bool) -> BoardEntry | None:
    """A case or a script that belongs to no project; None for whatever else it is."""
    if path.suffix == ".sql" and not is_in_project:
        return BoardEntry(_group(path.parent, root), path.name, path)
    if path.suffix not in (".yaml", ".yml") or path.name == SPEC_NAME:
        return None
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    is_case = _NAME.search(text) is not None and _SCRIPT.search(text) is not None
    return BoardEntry(_group(path.parent, root), _title(text, path), path) if is_case else None


def _group(folder: Path, root: Path) -> str:
    return str(folder.relative_to(root)) if folder != root else "."


def _title(text: str, path: Path) -> str:
    match = _NAME.search(text)
    name = match[1].strip("\"'") if match is not None else ""
    return f"{path.stem}: {name}"


COOKIE = "watersmeet-board"


@dataclass(frozen=True)
class BoardSession:
    """The session of a board: its initial content, its catalog, the file it is saved to, and the limit of computing.

    ``token``: requests without it are rejected; empty: no token is required, and only requests to this machine's own
    name are answered, so that no other page can use a name that resolves to this machine.
    """

    first: Board
    catalog: list[BoardEntry]
    save: Path | None = None
    token: str = field(default="", repr=False)
    seconds: float = MOST_SECONDS


def application(session: BoardSession) -> ASGIApp:
    """The server, to be run by uvicorn or any other."""
    process = BoardProcess(session.seconds)
    routes = [
        Route("/", file_endpoint(_STATIC / "index.html")),
        Route("/static/lifetimes.css", _style),
        Route("/static/{name}", _static),
        Route("/first", _first_board(session)),
        Route("/shelf", _list_entries(session)),
        Route("/open/{number:int}", _open_entry(session)),
        Route("/answer", _post_handler(process, "answer"), methods=["POST"]),
        Route("/move", _post_handler(process, "move"), methods=["POST"]),
        Route("/save", _post_handler(process, "save", _save_to(session.save)), methods=["POST"]),
    ]
    return build_application(routes, session.token, COOKIE)


Handler = Callable[[Request], Awaitable[Response]]


_STATIC = files("watersmeet.tools.studio.board") / "static"
STATIC = frozenset(file.name for file in _STATIC.iterdir() if file.name.rpartition(".")[2] in TYPES)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    return (
        file_endpoint(_STATIC / name)(request) if name in STATIC else PlainTextResponse("There is no such file.", 404)
    )


async def _style(_: Request) -> Response:
    return Response(STYLE, media_type="text/css")


def _first_board(session: BoardSession) -> Handler:
    async def first_board(_: Request) -> Response:
        return JSONResponse(
            {"board": board_json(session.first), "saves": None if session.save is None else str(session.save)}
        )

    return first_board


def _list_entries(session: BoardSession) -> Handler:
    async def list_entries(_: Request) -> Response:
        return JSONResponse([{"group": entry.group, "title": entry.title} for entry in session.catalog])

    return list_entries


def _open_entry(session: BoardSession) -> Handler:
    async def open_entry(request: Request) -> Response:
        number = int(request.path_params["number"])
        if number >= len(session.catalog):
            return PlainTextResponse("There is no entry with that number.", 404)
        try:
            board = await run_in_threadpool(open_board, session.catalog[number].path)
        except WatersmeetError as error:
            return JSONResponse({"message": str(error)}, 422)
        return JSONResponse({"board": board_json(board)})

    return open_entry


def _post_handler(process: BoardProcess, task: str, finish: Finish = lambda answer: answer) -> Handler:
    """A handler of requests with a board, which the process computes; ``finish`` makes the answer of what it gives.

    One board is computed at a time. The request of a page that was closed or reloaded meanwhile is skipped, or its
    computation is ended.
    """

    async def handle(request: Request) -> Response:
        data = await read_json(request)
        try:
            parse_board(data["board"])
        except NOT_A_BOARD as error:
            return JSONResponse({"message": f"This is not a board: {error}"}, 400)
        answer = await process.compute(task, data, request.is_disconnected)
        if task == "answer" and answer.note:
            # What needs no computing is shown all the same: without its columns, a board could not be changed.
            answer = await process.compute(task, data | {"note": answer.note}, request.is_disconnected)
        try:
            answer = finish(answer) if answer.status == 200 else answer
        except OSError as error:
            return JSONResponse({"message": str(error)}, 422)
        return Response(answer.content, answer.status, media_type="application/json")

    return handle


def _save_to(path: Path | None) -> Finish:
    """Writes the board as a case to the file that was named when the server was started, or hands it out."""

    def save(answer: BoardAnswer) -> BoardAnswer:
        text = str(json.loads(answer.content)["text"])
        if path is not None:
            path.write_text(text, "utf-8")
        return BoardAnswer(200, json.dumps({"text": text, "path": None if path is None else str(path)}).encode())

    return save


POLL_SECONDS = 0.1
"""Seconds between two looks whether the page is still there."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from watersmeet.tools.studio.board.answer import answer_requests; "


@dataclass(frozen=True)
class BoardAnswer:
    """The status and the JSON of an answer; ``note`` says why the process was ended before it had one."""

    status: int
    content: bytes
    note: str = ""

    @staticmethod
    def of_note(note: str) -> BoardAnswer:
        """The answer where the process was ended."""
        return BoardAnswer(422, json.dumps({"message": note}).encode(), note)


Finish = Callable[[BoardAnswer], BoardAnswer]


class BoardProcess:
    """A process that computes one board at a time, since a thread could not be stopped.

    It is killed if its answer takes longer than so many ``seconds`` or the page does not wait for it any more. The next
    request starts another.
    """

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self.seconds = seconds
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], object] = lambda: None

    async def compute(self, task: str, data: Any, is_gone: Callable[[], Awaitable[bool]]) -> BoardAnswer:
        """Run a task of `answer.TASKS`, and return its answer or the reason of its failure."""
        async with self._turn:
            if await is_gone():
                return _GONE
            return await self._compute(json.dumps([task, data]).encode(), is_gone)

    async def _compute(self, request: bytes, is_gone: Callable[[], Awaitable[bool]]) -> BoardAnswer:
        # Appended once the process computes: on a busy machine it takes seconds to start.
        began: list[float] = []
        answer = asyncio.ensure_future(asyncio.to_thread(_exchange, self._start(), request, began.append))
        try:
            while not (await asyncio.wait([answer], timeout=POLL_SECONDS))[0]:
                if began and monotonic() > began[0] + self.seconds:
                    return BoardAnswer.of_note(f"The board computes for up to {self.seconds:g} seconds. {TOO_MUCH}")
                if await is_gone():
                    return _GONE
            return answer.result()
        except asyncio.CancelledError:
            # The server ends, which needs no stack trace.
            return _GONE
        finally:
            if not answer.done():
                self._stop()
                await asyncio.wait([answer])

    def _start(self) -> subprocess.Popen[bytes]:
        """The worker process, started if it is not running."""
        if self._process is None or self._process.poll() is not None:
            # The modules of this process, whatever lies in the working folder. Ctrl-C is for the server.
            command = [sys.executable, "-P", "-c", f"{_START}answer_requests({self.seconds})", *sys.path]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._stop = weakref.finalize(self, _stop, self._process)
        return self._process


_GONE = BoardAnswer(499, b'{"message": "The page is gone."}')


def _exchange(process: subprocess.Popen[bytes], request: bytes, begin: Callable[[float], None]) -> BoardAnswer:
    """Send a request to the process once it is ready, and wait for the answer."""
    assert process.stdin is not None and process.stdout is not None
    try:
        read_message(process.stdout)
        begin(monotonic())
        write_message(process.stdin, 0, request)
        return BoardAnswer(*read_message(process.stdout))
    except (OSError, EOFError, ValueError):  # also of a pipe that `_stop` has closed
        return BoardAnswer.of_note(f"Computing the board ended with exit code {process.wait()}. {TOO_MUCH}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
