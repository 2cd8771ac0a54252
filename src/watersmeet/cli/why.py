"""``why``: what became of rows of a source, of all rows, or what a row of a result was made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from watersmeet.answers import asking
from watersmeet.answers.question import question_of
from watersmeet.cli.failure import Format
from watersmeet.cli.output import print_text
from watersmeet.cli.run import Cluster, storage_folder
from watersmeet.cli.script import check_external_references, open_script
from watersmeet.cli.waiting import show_wait
from watersmeet.counts import format_count


@dataclass(frozen=True)
class WhyRequest:
    """What was typed: rows of a source, of the result, or all of them; of which query, None: of all."""

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
    storage = storage_folder(opened.project)
    from watersmeet.spark.sources.reading import resolve_options

    script = resolve_options(opened.script)
    queries = asking.find_queries(script, opened.queries, storage, f"watersmeet run {path} --once", request.query)
    ask: Callable[[asking.ReplayedQuery], Any]
    if request.source is not None:
        question = question_of(script.sources, request.source, request.values)
        queries = asking.queries_reading(queries, question)
        ask = lambda read: asking.answer(read, question)  # noqa: E731
    elif request.everything:
        ask = asking.summary
    else:
        queries = asking.queries_with_columns(queries, request.result)
        ask = lambda read: asking.find_provenance(read, request.result)  # noqa: E731
    typer.echo(f"Reading the input of {', '.join(target.name for target in queries)}.", err=True)
    answers: list[Any] = []
    with show_wait("Starting Spark"):
        spark = cluster.session(opened.project, storage, script)
    for query in queries:
        with show_wait(f"Reading the input of {query.name}"):
            read = asking.read(spark, query)
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
