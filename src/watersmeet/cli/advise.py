"""``advise``: which bound, which lag, which key, from the rows that are there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from watersmeet.cli.console import Format, print_text, show_wait
from watersmeet.cli.run import Cluster
from watersmeet.cli.script import read_project
from watersmeet.duration import format_count
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import OPERATORS
from watersmeet.physical import join_plans, plan_query
from watersmeet.project import Project, fill_columns, has_local_storage, resolve_paths, root_references, storage_folder
from watersmeet.queries import analyze
from watersmeet.tools.advise.pair import AdviceRequest, PairAdvice, advise_pair

if TYPE_CHECKING:
    from watersmeet.logical.nodes import Script
    from watersmeet.tools.advise.arrivals import JoinPair, SampledRows
    from watersmeet.tools.advise.report import Advice

ADVICE_FILE = "advice.json"
"""The file in the storage of a project with the findings, for forecasts."""
_NAME_CONDITIONS = frozenset({"UNKNOWN_SOURCE", "UNKNOWN_COLUMN", "AMBIGUOUS_COLUMN", "UNKNOWN_ALIAS", "UNKNOWN_TYPE"})
"""The conditions that are refused here too; all other errors of a query do not prevent reading rows."""


@dataclass(frozen=True)
class SampleOptions:
    """The number of rows to look at, and the share of pairs and rows that proposals are to keep."""

    sample: int
    keep: float


def advise_project(path: Path, options: SampleOptions, cluster: Cluster, format: Format, svg: Path | None) -> None:
    """Print what the rows of a project's sources say about its joins, or draw it."""
    project, script, queries = _read_queries(path)
    storage = cluster.storage(project, script)
    with tempfile.TemporaryDirectory(prefix="watersmeet-advise-") as folder:
        typer.echo("Reading rows with Spark ...", err=True)
        try:
            with show_wait("Working on it"):
                advice = _advice(project, script, queries, options, cluster, Path(folder))
        except WatersmeetError as error:
            raise project.relocate(error) from error
    storage.mkdir(parents=True, exist_ok=True)
    (storage / ADVICE_FILE).write_text(json.dumps(advice.data, indent=2) + "\n", "utf-8")
    if svg is not None:
        try:
            svg.write_text(advice.svg, "utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{svg} cannot be written: {error.strerror}") from None
        typer.echo(f"{svg}: {format_count(len(advice.pairs), 'pair')} drawn.")
    elif format is Format.json:
        typer.echo(json.dumps(advice.data, indent=2))
    else:
        print_text(str(advice))


def _read_queries(path: Path) -> tuple[Project, Script, tuple[AnalyzedQuery, ...]]:
    """A project and its script, which may not be able to run yet: bounds may be missing."""
    project, script = read_project(path)
    script, refusals = fill_columns(
        script, project.root, storage_folder(project) if has_local_storage(project) else None
    )
    if refusals:
        raise project.relocate(WatersmeetError(refusals))
    queries: tuple[AnalyzedQuery, ...] = ()
    try:
        queries = analyze(script)
    except WatersmeetError as error:
        refusals = [refusal for refusal in error.refusals if refusal.condition in _NAME_CONDITIONS]
    if refusals:
        raise project.relocate(WatersmeetError(refusals))
    return project, script, queries


def _advice(
    project: Project,
    script: Script,
    queries: tuple[AnalyzedQuery, ...],
    options: SampleOptions,
    cluster: Cluster,
    folder: Path,
) -> Advice:
    from watersmeet.tools.advise.arrivals import advise_table, join_pairs, skip_notes
    from watersmeet.tools.advise.report import Advice

    pairs = join_pairs(script)
    notes = [*skip_notes(script)]
    if not pairs:
        reason = " ".join(notes) or "It has no join, and declares fewer than two streams."
        raise refuse("NOTHING_TO_ADVISE", script=project.script_name, reason=reason)
    arrivals = _sample_arrivals(project, script, pairs, options.sample, cluster, folder)
    notes += [f"{part} is not an equality of two columns, so it is ignored." for pair in pairs for part in pair.unread]
    if any(query.where is not None for query in script.queries):
        notes.append("All rows of the sources are read, also those that WHERE removes.")
    bounds = dict(bound for query in queries for bound in current_bounds(query))
    advices: list[PairAdvice] = []
    for pair in (pair for pair in pairs if pair.is_of_streams):
        advised = advise_pair(_advice_request(pair, arrivals, bounds.get(pair.aliases)), options.keep)
        if advised is None:
            notes.append(_no_advice_reason(pair, arrivals))
        elif pair.keys or advised.chosen is not None or len(pairs) == 1:
            advices.append(advised)
    tables = [advise_table(table_arrivals) for table_arrivals in arrivals.values()]
    return Advice.of(advices, [table for table in tables if table is not None], notes)


def current_bounds(query: AnalyzedQuery) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """The bound of a query: the time before and after a row of one alias in which those of another may be."""
    for plan in join_plans(plan_query(query, OPERATORS).relation):
        family = getattr(plan.analyzed, "family", plan.operator.name)
        bounds = {life.port: life.bound for life in OPERATORS[family].forecast(plan)}
        later, earlier = bounds.get(0), bounds.get(1)
        if later is not None and earlier is not None:
            left, right = ([scan.alias for scan in port.input.leaves] for port in plan.ports)
            yield from (((mine, other), (earlier, later)) for mine in left for other in right)


def _advice_request(
    pair: JoinPair, arrivals: Mapping[str, SampledRows], bounds: tuple[int, int] | None
) -> AdviceRequest:
    return AdviceRequest(
        arrivals[pair.left.name], arrivals[pair.right.name], pair.keys, pair.kind, pair.aliases, bounds
    )


def _sample_arrivals(
    project: Project, script: Script, pairs: Sequence[JoinPair], rows: int, cluster: Cluster, folder: Path
) -> dict[str, SampledRows]:
    """The first rows of every source; the declaration stays as it was written."""
    from watersmeet.spark.connectors.reading import resolve_options
    from watersmeet.tools.advise.arrivals import sample_source

    placed = root_references(script, project.root.absolute())
    placed = resolve_paths(placed, project.root) if cluster.remote is None else placed
    spark = cluster.session(project, folder, script)
    placed = resolve_options(placed)
    sources = {source.name: source for source in placed.sources}
    used = {source.name: source for pair in pairs for source in (pair.left, pair.right)}
    samples = ((source, sample_source(spark, placed, sources[name], rows)) for name, source in used.items())
    return {source.name: replace(arrived, source=source) for source, arrived in samples}


def _no_advice_reason(pair: JoinPair, arrivals: Mapping[str, SampledRows]) -> str:
    empty = [name for name in (pair.left.name, pair.right.name) if not arrivals[name].rows.num_rows]
    if empty:
        return f"{' and '.join(dict.fromkeys(empty))}: no rows yet, so joins with it cannot be analyzed."
    return f"{pair.left.name} and {pair.right.name}: a side has no column that could be an event time."
