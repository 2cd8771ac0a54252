"""``explain``: how queries would run, at three stages, as a tree of text, as JSON or as a drawing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from watersmeet.cli.console import Format, print_text, show_wait
from watersmeet.cli.run import Cluster
from watersmeet.cli.script import check_external_references, open_script, read_project
from watersmeet.duration import format_count
from watersmeet.errors import refuse
from watersmeet.locations import is_local
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.physical import plan_query, read_chaining
from watersmeet.tools.explain.parsed import render_script, script_as_json, script_topologies
from watersmeet.tools.explain.physical import plan_details
from watersmeet.tools.explain.query import PlanDetails, query_as_json, query_topology, render_query
from watersmeet.tools.explain.svg import draw
from watersmeet.tools.explain.topology import Topology
from watersmeet.tools.trace import questions
from watersmeet.tools.trace.questions import question_of

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
    late = "side_output" if query.late_into else "counted"
    return plan_details(plan_query(query, OPERATORS, late=late, chains=read_chaining(script)), OPERATORS)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class WhyRequest:
    """The request as typed: rows of a source, of the result, or all rows; of one query, or of all if it is None."""

    source: str | None = None
    values: Sequence[str] = ()
    result: Sequence[str] = ()
    everything: bool = False
    query: str | None = None

    def check(self) -> None:
        """That it is one question."""
        kinds = [self.source is not None, bool(self.result), self.everything]
        if sum(kinds) != 1:
            raise typer.BadParameter("give a SOURCE with values, --result or --summary")
        if self.source is not None and not self.values:
            raise typer.BadParameter(f"give the rows of {self.source} as COLUMN=VALUE")


def why_project(path: Path, request: WhyRequest, cluster: Cluster, format: Format) -> None:
    """Answer a question about the rows of a project that has run."""
    request.check()
    opened = open_script(path, "absolute")
    check_external_references(opened)
    storage = cluster.storage(opened.project, opened.script)
    if not is_local(storage):
        opened = open_script(path, "absolute", storage=storage)
    from watersmeet.spark.connectors.reading import resolve_options

    script = resolve_options(opened.script)
    queries = questions.find_queries(script, opened.queries, storage, f"watersmeet run {path} --once", request.query)
    ask: Callable[[questions.ReplayedQuery], Any]
    if request.source is not None:
        question = question_of(script.sources, request.source, request.values)
        queries = questions.queries_reading(queries, question)
        ask = lambda read: questions.answer(read, question)  # noqa: E731
    elif request.everything:
        ask = questions.summary
    else:
        queries = questions.queries_with_columns(queries, request.result)
        ask = lambda read: questions.find_provenance(read, request.result)  # noqa: E731
    typer.echo(f"Reading the input of {', '.join(target.name for target in queries)}.", err=True)
    answers: list[Any] = []
    with show_wait("Starting Spark"):
        spark = cluster.session(opened.project, storage, script)
    for query in queries:
        with show_wait(f"Reading the input of {query.name}"):
            read = questions.read(spark, query)
        followed = (
            f"{format_count(read.rows, 'row')} of {format_count(len(read.replay.batches), 'batch')} of {query.name}"
        )
        typer.echo(f"Tracing {followed}.", err=True)
        with show_wait("Tracing rows"):
            answers.append(ask(read))
    if format is Format.json:
        print_text(json.dumps([answer.data() for answer in answers], indent=2, ensure_ascii=False))
    else:
        print_text("\n\n".join(answer.text() for answer in answers))
