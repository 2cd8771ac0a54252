"""``check``: whether queries may run, without running them."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from watersmeet.cli.failure import Format
from watersmeet.cli.script import Opened, check_outside, open_script
from watersmeet.errors import Place


def check_project(path: Path, format: Format) -> None:
    """Print that all queries may run, with what their author should know."""
    opened = open_script(path)
    check_outside(opened)
    warnings = _warnings(opened)
    if format is Format.json:
        typer.echo(
            json.dumps({"queries": len(opened.queries), "warnings": [_as_json(*warning) for warning in warnings]})
        )
        return
    for message, place in warnings:
        where = f"{place.name}:{place.line}:{place.column}: " if place else ""
        typer.echo(f"{where}note: {message}")
    count = len(opened.queries)
    typer.echo(
        f"{opened.project.script_name}: {count} {'query' if count == 1 else 'queries'} can run, in bounded state."
    )


def _warnings(opened: Opened) -> list[tuple[str, Place | None]]:
    return [
        (warned.message, opened.project.in_file(opened.script.place(warned.span)))
        for query in opened.queries
        for warned in query.warnings
    ]


def _as_json(message: str, place: Place | None) -> dict[str, object]:
    return {"message": message, "place": place and {"file": place.name, "line": place.line, "column": place.column}}
