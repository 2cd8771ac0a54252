"""``explain``: how queries would run, at three stages, as a tree of text, as JSON or as a drawing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from watersmeet.cli.failure import Format
from watersmeet.cli.output import print_text
from watersmeet.cli.script import open_script, read_project
from watersmeet.counts import counted
from watersmeet.errors import refuse
from watersmeet.explanation.asked import asked_as_json, asked_topologies, render_asked
from watersmeet.explanation.physical import known
from watersmeet.explanation.query import Known, query_as_json, query_topology, render_query
from watersmeet.explanation.svg import draw
from watersmeet.explanation.topology import Topology
from watersmeet.families import FAMILIES, OPERATORS
from watersmeet.physical import plan_query, together_of
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery

Stage = Literal["plan", "analyzed", "physical"]
"""``plan``: what was asked, which needs no more than that the text can be read. ``analyzed``: with every name resolved,
and keys, bounds, filters and types found. ``physical``: also with the operators, the exchange and the columns read."""


@dataclass(frozen=True)
class Explained:
    """A script in the three forms in which it can be shown."""

    text: str
    data: Sequence[dict[str, object]]
    graphs: Sequence[Topology]


def explain_project(path: Path, format: Format, stage: Stage = "physical", svg: Path | None = None) -> None:
    """Print every query as it is at a stage, or write all of them as a drawing."""
    explained = _asked(_read(path)) if stage == "plan" else _analyzed(path, stage)
    if svg is not None:
        _write(svg, draw(explained.graphs))
        typer.echo(f"{svg}: {counted(len(explained.graphs), 'query')} drawn.")
    elif format is Format.json:
        typer.echo(json.dumps(explained.data, indent=2))
    else:
        print_text(explained.text)


def _read(path: Path) -> Script:
    project, script = read_project(path)
    if not script.queries and not script.views:
        raise refuse("NO_QUERY", script=project.script_name)
    return script


def _asked(script: Script) -> Explained:
    return Explained(
        render_asked(script, FAMILIES), asked_as_json(script, FAMILIES), asked_topologies(script, FAMILIES)
    )


def _analyzed(path: Path, stage: Stage) -> Explained:
    opened = open_script(path, sends="nothing resolved")
    sinks = opened.script.sinks
    pairs = [
        (query, (_planned(query, opened.script) if stage == "physical" else Known(OPERATORS)).with_sinks(sinks))
        for query in opened.queries
    ]
    return Explained(
        "\n\n".join(render_query(query, found) for query, found in pairs),
        [query_as_json(query, found) for query, found in pairs],
        [query_topology(query, found) for query, found in pairs],
    )


def _planned(query: AnalyzedQuery, script: Script) -> Known:
    late = "kept" if query.late_into else "counted"
    return known(plan_query(query, OPERATORS, late=late, together=together_of(script)), OPERATORS)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None
