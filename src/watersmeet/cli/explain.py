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
from watersmeet.counts import format_count
from watersmeet.errors import refuse
from watersmeet.explanation.asked import render_script, script_as_json, script_topologies
from watersmeet.explanation.physical import plan_details
from watersmeet.explanation.query import PlanDetails, query_as_json, query_topology, render_query
from watersmeet.explanation.svg import draw
from watersmeet.explanation.topology import Topology
from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.physical import plan_query, read_chaining
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery

Stage = Literal["plan", "analyzed", "physical"]
"""``plan``: what was asked, which needs no more than that the text can be read. ``analyzed``: with every name resolved,
and keys, bounds, filters and types found. ``physical``: also with the operators, the exchange and the columns read."""


@dataclass(frozen=True)
class RenderedScript:
    """A script in the three forms in which it can be shown."""

    text: str
    data: Sequence[dict[str, object]]
    graphs: Sequence[Topology]


def explain_project(path: Path, format: Format, stage: Stage = "physical", svg: Path | None = None) -> None:
    """Print every query as it is at a stage, or write all of them as a drawing."""
    explained = _render_parsed(_read(path)) if stage == "plan" else _render_analyzed(path, stage)
    if svg is not None:
        _write(svg, draw(explained.graphs))
        typer.echo(f"{svg}: {format_count(len(explained.graphs), 'query')} drawn.")
    elif format is Format.json:
        typer.echo(json.dumps(explained.data, indent=2))
    else:
        print_text(explained.text)


def _read(path: Path) -> Script:
    project, script = read_project(path)
    if not script.queries and not script.views:
        raise refuse("NO_QUERY", script=project.script_name)
    return script


def _render_parsed(script: Script) -> RenderedScript:
    return RenderedScript(
        render_script(script, FAMILIES), script_as_json(script, FAMILIES), script_topologies(script, FAMILIES)
    )


def _render_analyzed(path: Path, stage: Stage) -> RenderedScript:
    opened = open_script(path, sends="nothing resolved")
    sinks = opened.script.sinks
    pairs = [
        (
            query,
            (_physical_facts(query, opened.script) if stage == "physical" else PlanDetails(OPERATORS)).with_sinks(
                sinks
            ),
        )
        for query in opened.queries
    ]
    return RenderedScript(
        "\n\n".join(render_query(query, facts) for query, facts in pairs),
        [query_as_json(query, facts) for query, facts in pairs],
        [query_topology(query, facts) for query, facts in pairs],
    )


def _physical_facts(query: AnalyzedQuery, script: Script) -> PlanDetails:
    late = "kept" if query.late_into else "counted"
    return plan_details(plan_query(query, OPERATORS, late=late, chains=read_chaining(script)), OPERATORS)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None
