"""What can be opened: stories that come along, and the cases, projects and scripts of a folder.

Only what stands on the shelf is ever opened, by its number: a page cannot name a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from watersmeet.board.data import rows_of_files
from watersmeet.board.model import Board, BoardBatch, board_from_case
from watersmeet.project import SPEC_NAME, open_project
from watersmeet.testing.case import read_case

_NAME = re.compile(r"^name:\s*(.+?)\s*$", re.MULTILINE)
_SCRIPT = re.compile(r"^(sql|query):", re.MULTILINE)
_SKIPPED = frozenset({"node_modules", "storage", "__pycache__", "venv", "build", "dist", "golden"})
FIRST = "interval"
MOST_FILES = 3_000
"""How many files are looked at: the folder may be anything."""


@dataclass(frozen=True)
class BoardEntry:
    """Something to open: where it stands on the shelf, what it is called, and its file."""

    group: str
    title: str
    path: Path


def build_catalog(root: Path) -> list[BoardEntry]:
    """The stories, then what is found under a folder."""
    stories = Path(str(files("watersmeet.board") / "stories"))
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
