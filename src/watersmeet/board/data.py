"""The first rows of a project's own files, to begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from watersmeet.board.cells import cell_text
from watersmeet.catalog import Source
from watersmeet.project import Project, absolute_path
from watersmeet.queries import read_readable

MOST = 12
"""How many rows of a source are shown: more than that, nobody moves by hand."""


def rows_of_files(project: Project) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The first rows of each source that reads JSON files of this machine, as cells; nothing of any other."""
    script = read_readable(project.text, project.script_name)[0]
    rows_by_source = {
        source.name: tuple(_rows(source, project.root)) for source in script.sources if source.format == "json"
    }
    return {name: rows for name, rows in rows_by_source.items() if rows}


def _rows(source: Source, root: Path) -> Iterator[tuple[str, ...]]:
    path = Path(absolute_path(source.lowercase_options.get("path", ""), root))
    sign = ("+",) if source.kind == "table" else ()
    rows = (row for file in (sorted(path.glob("*.json")) if path.is_dir() else ()) for row in _objects(file))
    for _, row in zip(range(MOST), rows, strict=False):
        values = {name.lower(): value for name, value in row.items()}
        yield (*sign, *(cell_text(values.get(field.name.lower())) for field in source.fields))


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield cast("dict[str, Any]", row)
