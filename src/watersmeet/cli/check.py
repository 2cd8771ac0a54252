"""``check``: whether queries may run, without running them."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from watersmeet.cli.failure import Format
from watersmeet.cli.script import Opened, check_outside, open_script
from watersmeet.errors import Place
from watersmeet.plan.bounds import bounds_in_words, bounds_of


def check_project(path: Path, format: Format) -> None:
    """Print that all queries may run, what bounds the state of each, and what their author should know."""
    opened = open_script(path)
    check_outside(opened)
    warnings = _warnings(opened)
    bounds = [(query.into or f"query{n}", bounds_of(query)) for n, query in enumerate(opened.queries, 1)]
    if format is Format.json:
        state = [
            {"query": name, "bounded_by": [{"by": b.by, "what": b.words} for b in found]} for name, found in bounds
        ]
        said = {"queries": len(opened.queries), "warnings": [_as_json(*w) for w in warnings], "state": state}
        typer.echo(json.dumps(said))
        return
    for message, place in warnings:
        where = f"{place.name}:{place.line}:{place.column}: " if place else ""
        typer.echo(f"{where}note: {message}")
    count = len(opened.queries)
    typer.echo(f"{opened.project.script_name}: {count} {'query' if count == 1 else 'queries'} can run.")
    for name, found in bounds:
        typer.echo(f"{name}: state {bounds_in_words(found)}.")


def _warnings(opened: Opened) -> list[tuple[str, Place | None]]:
    return [
        (warned.message, opened.project.in_file(opened.script.place(warned.span)))
        for query in opened.queries
        for warned in query.warnings
    ]


def _as_json(message: str, place: Place | None) -> dict[str, object]:
    return {"message": message, "place": place and {"file": place.name, "line": place.line, "column": place.column}}
