"""The server of the board: it computes, and the page draws the result.

It opens nothing but the entries of its catalog, and writes nothing but the one file that it was told to save to. Who
is answered, `tools.studio.web` decides.

The catalog lists what can be opened: stories, and the cases, projects and scripts of a folder. A page opens an entry by
number and cannot name a path.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from watersmeet.errors import WatersmeetError
from watersmeet.local.cells import FAILURES, NeedsSparkError
from watersmeet.project import SPEC_NAME, open_project
from watersmeet.tools.studio.board.answer import BoardView, evaluate_board, export_case, move_row
from watersmeet.tools.studio.board.model import (
    Board,
    BoardBatch,
    WrongBoardError,
    board_from_case,
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
MOST_FILES = 3_000
"""How many files are looked at: the folder may be anything."""


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
    """The session of a board: its initial content, its catalog, and the file it is saved to.

    ``token``: requests without it are rejected; empty: no token is required, and only requests to this machine's own
    name are answered, so that no other page can use a name that resolves to this machine.
    """

    first: Board
    catalog: list[BoardEntry]
    save: Path | None = None
    token: str = field(default="", repr=False)


def application(session: BoardSession) -> ASGIApp:
    """The server, to be run by uvicorn or any other."""
    turn = asyncio.Lock()
    routes = [
        Route("/", file_endpoint(_STATIC / "index.html")),
        Route("/static/lives.css", _style),
        Route("/static/{name}", _static),
        Route("/first", _first_board(session)),
        Route("/shelf", _list_entries(session)),
        Route("/open/{number:int}", _open_entry(session)),
        Route("/answer", _post_handler(_evaluate, turn), methods=["POST"]),
        Route("/move", _post_handler(_move, turn), methods=["POST"]),
        Route("/save", _post_handler(_save_handler(session), turn), methods=["POST"]),
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


def _post_handler(compute: Callable[[Board, Mapping[str, Any]], Any], turn: asyncio.Lock) -> Handler:
    """A handler of requests with a board.

    One board is computed at a time. The request of a page that was closed or reloaded meanwhile is skipped.
    """

    async def handle(request: Request) -> Response:
        data = await read_json(request)
        try:
            board = parse_board(data["board"])
        except (WrongBoardError, ValueError, KeyError, TypeError, RecursionError) as error:
            return JSONResponse({"message": f"This is not a board: {error}"}, 400)
        try:
            async with turn:
                if await request.is_disconnected():
                    return PlainTextResponse("The page is gone.", 499)
                return JSONResponse(await run_in_threadpool(compute, board, data))
        except (WrongBoardError, WatersmeetError, NeedsSparkError, OSError, *FAILURES) as error:
            return JSONResponse({"message": str(error)}, 422)
        except RecursionError:
            return JSONResponse({"message": "A value or an expression is nested too deeply."}, 400)

    return handle


def _evaluate(board: Board, params: Mapping[str, Any]) -> Any:
    return evaluate_board(board, _view(params))


def _move(board: Board, params: Mapping[str, Any]) -> Any:
    """The board with a row at another time, and the answer to it."""
    moved_board = move_row(board, int(params["batch"]), str(params["source"]), int(params["row"]), int(params["to"]))
    return {"board": board_json(moved_board), "answer": evaluate_board(moved_board, _view(params))}


def _view(params: Mapping[str, Any]) -> BoardView:
    return BoardView(int(params.get("step", 0)), min(4000.0, float(params.get("width", 1000))))


def _save_handler(session: BoardSession) -> Callable[[Board, Mapping[str, Any]], Any]:
    """The board as a case: written to the file that was named when the server was started, or handed out."""

    def save(board: Board, _: Mapping[str, Any]) -> Any:
        text = export_case(board)
        if session.save is not None:
            session.save.write_text(text, "utf-8")
        return {"text": text, "path": None if session.save is None else str(session.save)}

    return save


def board_json(board: Board) -> dict[str, Any]:
    """The board as a page has it."""
    batches = [
        {
            "rows": {name: [list(row) for row in rows] for name, rows in batch.rows.items()},
            "marks": dict(batch.marks),
            "now": batch.now,
            "restart": batch.restart,
        }
        for batch in board.batches
    ]
    return {"name": board.name, "sql": board.sql, "query": board.query, "batches": batches} | {
        "ends": board.ends,
        "ordered": board.ordered,
    }
