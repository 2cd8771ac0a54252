"""``check``: whether queries may run, without running them. ``test``: run case files, and show which fail."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from watersmeet.catalog import Source
from watersmeet.cli.console import Format, exit_code, print_text, show_wait
from watersmeet.cli.script import OpenedScript, check_external_references, open_script
from watersmeet.duration import format_count
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats import history_source
from watersmeet.locations import Storage, has_scheme
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.check_declarations import find_suspicions
from watersmeet.logical.query import AnalyzedQuery, bounds_in_words, bounds_of
from watersmeet.logical.words import word
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query, read_sources
from watersmeet.physical.change import same_join_notes
from watersmeet.project import SPEC_NAME, Project, absolute_path, visible_files
from watersmeet.tools.testing import check_any_order, read_case, run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cli.run import Cluster
    from watersmeet.logical.nodes import Script
    from watersmeet.physical.change import ChangeEffect, EditKind
    from watersmeet.spark.run.prepare import Prepared


Edits = dict[str, tuple["EditKind | Literal['new']", "tuple[ChangeEffect, ...]"]]
"""By query, the class of its edits since it wrote its state, and what follows from them; ``new``: it has none yet."""


def check_on_spark(path: Path, cluster: Cluster, against: str | None = None) -> Edits:
    """Refuse all that would be refused when the queries of a project start. Nothing is written to its storage.

    ``against``: the storage with which they are compared; then edits that can be accepted are told and not refused.
    """
    from watersmeet.cli.run import storage_on
    from watersmeet.spark.private.files import open_storage

    opened = open_script(path, "absolute" if cluster.remote is None else "written")
    with tempfile.TemporaryDirectory(prefix="watersmeet-check-") as folder, show_wait("Starting Spark") as indicator:
        spark = cluster.session(opened.project, Path(folder), opened.script)
        indicator.wait_for("Checking the queries with Spark")
        if against is not None:
            storage = open_storage(spark, against).absolute()
            return _edits(open_script(path, "absolute", storage=storage), spark, storage)
        refusals = spark_refusals(opened, spark, storage_on(spark, opened.project), Path(folder))
    if refusals:
        raise opened.project.relocate(WatersmeetError(refusals))
    return {}


def _edits(opened: OpenedScript, spark: SparkSession, storage: Storage) -> Edits:
    from watersmeet.spark.run.prepare import StartOptions, prepare

    if not (storage / "checkpoints").is_dir():
        raise refuse("NO_CHECKPOINT", path=storage, reason="there are no checkpoints in it")
    try:
        prepared = prepare(opened.script, spark, storage, opened.queries, StartOptions("tell"))
    except WatersmeetError as error:
        prepared = _prepare_each(opened, spark, storage)
        for name, (kind, follows) in _edits_of(prepared).items():
            for line in _edit(kind, follows):
                print_text(f"{name}: {line}")
        raise opened.project.relocate(error) from error
    return _edits_of(prepared)


def _prepare_each(opened: OpenedScript, spark: SparkSession, storage: Storage) -> list[Prepared]:
    """The queries that can be prepared, where some cannot: those of a sink, which has a name of its own."""
    from watersmeet.spark.run.prepare import StartOptions, prepare

    prepared: list[Prepared] = []
    for parsed, query in zip(opened.script.queries, opened.queries, strict=True):
        if query.into is not None and len(opened.queries) > 1:
            with suppress(WatersmeetError):
                prepared += prepare(
                    replace(opened.script, queries=(parsed,)), spark, storage, (query,), StartOptions("tell")
                )
    return prepared


def _edits_of(prepared: Sequence[Prepared]) -> Edits:
    from watersmeet.physical.change import ChangeEffect
    from watersmeet.spark.state.owner import OWNER

    edits: Edits = {}
    for query in prepared:
        if query.rebuilding is not None:
            edits[query.name] = (
                "rebuilt",
                (ChangeEffect(query.rebuilding.difference, "; ".join(query.rebuilding.consequences)),),
            )
        else:
            kind = "continued" if query.follows else "free"
            edits[query.name] = kind if (query.checkpoint / OWNER).exists() else "new", query.follows
    return edits


def spark_refusals(opened: OpenedScript, spark: SparkSession, storage: Storage, empty: Path) -> list[Refusal]:
    """List the refusals that would stop these queries from starting now; ``empty`` is a folder without input."""
    script = opened.script
    refusals = _prepare_refusals(script, spark, storage, opened.queries)
    while True:
        # What reads a source that cannot be read is looked at as well, as if nothing had come from there.
        unread = {refusal.place.start for refusal in refusals if refusal.place is not None}
        readable = tuple(
            replace(source, format="json", options={"path": str(empty)}) if source.span.start in unread else source
            for source in script.sources
        )
        if readable == script.sources:
            return [*refusals, *_find_missing_inputs(opened, spark, {refusal.place for refusal in refusals})]
        script = replace(script, sources=readable)
        further = _prepare_refusals(script, spark, storage)
        refusals += [refusal for refusal in further if refusal not in refusals and not _is_of_checkpoint(refusal)]


def _find_missing_inputs(
    opened: OpenedScript, spark: SparkSession, reported: Container[Place | None]
) -> Iterator[Refusal]:
    """List the inputs that sources name but that do not exist, except for sources at the places in ``reported``."""
    from watersmeet.spark.connectors import source_connector
    from watersmeet.spark.connectors.reading import resolve_options

    script = resolve_options(opened.script)
    used = {source.name for query in opened.queries for source in read_sources(plan_query(query, OPERATORS).relation)}
    for source in script.sources:
        place = script.place(source.span)
        if source.name in used and source.format is not None and place not in reported:
            for part in (source, *([history_source(source)] if source.history is not None else [])):
                yield from (replace(refusal, place=place) for refusal in source_connector(part).check_exists(spark))


def _prepare_refusals(
    script: Script, spark: SparkSession, storage: Storage, analyzed: Sequence[AnalyzedQuery] | None = None
) -> list[Refusal]:
    from watersmeet.spark.run.prepare import prepare

    try:
        prepare(script, spark, storage, analyzed)
    except WatersmeetError as error:
        return list(error.refusals)
    return []


def _is_of_checkpoint(refusal: Refusal) -> bool:
    return "checkpoint" in refusal.parameters


def check_project(path: Path, format: Format, cluster: Cluster | None = None, against: str | None = None) -> None:
    """Print that all queries may run, what bounds the state of each, and what their author should know.

    With a ``cluster``, Spark is asked for all that only it can tell; ``against``: the storage whose states they would
    go on with.
    """
    opened = (
        open_script(path, further=_likely_mistakes, sends="nothing resolved")
        if cluster is None
        else open_script(path, further=_unknown_options)
    )
    check_external_references(opened)
    edits = {} if cluster is None else check_on_spark(path, cluster, against)
    warnings = _find_absent_folders(opened) if cluster is None else []
    warnings += _warnings(opened, may_add=cluster is None and _may_add_functions(opened.project, opened.script))
    bounds = [(query.into or f"query{n}", query.sinks, bounds_of(query)) for n, query in enumerate(opened.queries, 1)]
    read = [source for source in opened.script.sources if source.read_from]
    if format is Format.json:
        state = [
            {"query": name, "sinks": list(sinks), "bounded_by": [{"by": b.by, "what": b.words} for b in query_bounds]}
            for name, sinks, query_bounds in bounds
        ]
        result: dict[str, object] = {
            "queries": len(opened.queries),
            "warnings": [_as_json(*w) for w in warnings],
            "state": state,
            "columns": {source.name: {"read_from": source.read_from, "columns": _columns(source)} for source in read},
        }
        if edits:
            result["edits"] = [_edit_as_json(name, kind, follows) for name, (kind, follows) in edits.items()]
        typer.echo(json.dumps(result))
        return
    for source in read:
        print_text(f"{source.name}: columns of {source.read_from}: {', '.join(_columns(source))}.")
    for message, place in warnings:
        where = f"{place.name}:{place.line}:{place.column}: " if place else ""
        print_text(f"{where}note: {message}")
    typer.echo(f"{opened.project.script_name}: {format_count(len(opened.queries), 'query')} can run.")
    for name, sinks, state_bounds in bounds:
        if len(sinks) > 1:
            shared = f"{format_count(len(sinks), 'sink')}, one query: {', '.join(sinks)}"
            print_text(f"{shared}; it is computed once, and its checkpoint is {name}.")
        print_text(f"{name}: state {bounds_in_words(state_bounds)}." if state_bounds else f"{name}: keeps no state.")
    for name, (kind, follows) in edits.items():
        for line in _edit(kind, follows):
            print_text(f"{name}: {line}")


_EDITS = {
    "new": "it has no state there and would start from the beginning.",
    "free": "it would continue with its state.",
    "continued": "it would continue with its state if you accept this: `watersmeet run --accept`.",
    "rebuilt": "its state must be rebuilt: `watersmeet run --rebuild`.",
}
"""The message about a query, by the class of its edits."""


def _edit(kind: str, follows: tuple[ChangeEffect, ...]) -> Iterator[str]:
    """Return the messages about the edits of a query."""
    yield from (f"{effect.change}: {effect.consequence}." for effect in follows)
    yield _EDITS[kind]


def _edit_as_json(name: str, kind: str, follows: tuple[ChangeEffect, ...]) -> dict[str, object]:
    effects = [{"change": effect.change, "consequence": effect.consequence} for effect in follows]
    return {"query": name, "class": kind, "follows": effects}


def _warnings(opened: OpenedScript, *, may_add: bool) -> list[tuple[str, Place | None]]:
    warned = [warned for query in opened.queries for warned in query.warnings]
    likely = find_suspicions(opened.script, may_add_functions=may_add)
    placed = ((w.message, opened.project.in_file(opened.script.place(w.span))) for w in (*warned, *likely.warnings))
    return list(dict.fromkeys((*placed, *_same_joins(opened))))


def _find_absent_folders(opened: OpenedScript) -> list[tuple[str, Place | None]]:
    """Notes on files of this machine that queries read and that are not there: a run would refuse them."""
    used = {source.name for query in opened.queries for source in read_sources(plan_query(query, OPERATORS).relation)}
    missing: list[tuple[str, Place | None]] = []
    declared = opened.script.sources
    histories = tuple(history_source(source) for source in declared if source.history is not None)
    for source in (*declared, *histories):
        path = source.options.get("path", "")
        if source.name not in used or not path or has_scheme(path) or any(sign in path for sign in "*?[{$"):
            continue
        if not Path(absolute_path(path, opened.project.root)).exists():
            place = opened.project.in_file(opened.script.place(source.span))
            missing.append((f"{source.name} reads {path}, which does not exist.", place))
    return missing


def _same_joins(opened: OpenedScript) -> Iterator[tuple[str, Place | None]]:
    """The notes on joins that several queries compute, each at the later query."""
    names = [query.into or f"query{number}" for number, query in enumerate(opened.queries, 1)]
    plans = {name: plan_query(query, OPERATORS) for name, query in zip(names, opened.queries, strict=True)}
    spans = {name: query.into_span for name, query in zip(names, opened.script.queries, strict=True)}
    for name, note in same_join_notes(plans):
        yield note, opened.project.in_file(opened.script.place(spans[name]))


def _likely_mistakes(project: Project, script: Script) -> tuple[Refusal, ...]:
    return find_suspicions(script, may_add_functions=_may_add_functions(project, script)).refusals


def _unknown_options(project: Project, script: Script) -> Iterator[Refusal]:
    """Return the likely mistakes that Spark does not report, because it ignores options that it does not know."""
    likely = find_suspicions(script, may_add_functions=True).refusals
    return (refusal for refusal in likely if refusal.condition == "WRONG_OPTION")


def _may_add_functions(project: Project, script: Script) -> bool:
    """Whether the settings of a project may bring functions that are not Spark's own: extensions, catalogs, jars."""
    settings = (*project.configuration, *(setting.name for setting in script.settings))
    return project.catalog is not None or any(name.lower().startswith(_MAY_ADD) for name in settings)


_MAY_ADD = (
    "spark.sql.extensions",
    "spark.sql.catalog",
    "spark.jars",
    "spark.hive",
    "spark.hadoop.hive",
    "spark.remote",
)


def _columns(source: Source) -> list[str]:
    return [f"{word(field.name)} {field.type}" for field in source.fields if not field.hidden]


def _as_json(message: str, place: Place | None) -> dict[str, object]:
    return {"message": message, "place": place and {"file": place.name, "line": place.line, "column": place.column}}


Verdict = Literal["passed", "failed", "not run", "varies", "unreadable"]
"""``not run``: only Spark could evaluate the case's SQL, and it was not to run on Spark. ``varies``: the query goes by
the order of arrival, and gives other rows in another order."""

AT_ONCE = 3
"""The number of cases that run on Spark at a time: a batch of few rows is mostly waiting."""

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "not run": 0, "varies": 0, "failed": 1, "unreadable": 2}


def run_cases(paths: list[Path], on: Literal["spark", "kernel", "any order"], master: str | None) -> None:
    """Run all cases under the paths; exits with 1 if one failed, 2 if a file could not be read.

    ``any order``: on the kernels, also with other batches, orders, restarts and numbers of shards.
    """
    files = [file for path in paths for file in case_files(path)]
    with show_wait("Starting Spark") if on == "spark" else nullcontext():
        spark = _session(master) if on == "spark" else None
    verdicts: Counter[Verdict] = Counter()
    with ThreadPoolExecutor(AT_ONCE if on == "spark" else 1) as pool:
        for verdict, text in pool.map(partial(_judge, on=on, spark=spark), files):
            verdicts[verdict] += 1
            print_text(text)
    typer.echo(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    raise typer.Exit(max(map(EXIT_CODES.__getitem__, verdicts)))


def case_files(path: Path) -> list[Path]:
    """The case files that a path stands for: itself, or all of a folder."""
    if not path.exists():
        raise refuse("FILE_NOT_FOUND", path=path, hint="name a case file or a folder of them, such as `cases`.")
    files = [f for f in visible_files(path, "*.y*ml") if f.name != SPEC_NAME] if path.is_dir() else [path]
    if not files:
        raise refuse("WRONG_CASE", path=path, reason="the folder holds no .yaml file")
    return files


def _session(master: str | None) -> SparkSession:
    from watersmeet.spark.session import session

    return session(master)


def _judge(file: Path, on: Literal["spark", "kernel", "any order"], spark: SparkSession | None) -> tuple[Verdict, str]:
    """The verdict on a case, and that in words; of a failed one with its difference."""
    try:
        case = read_case(file)
        result = check_any_order(case) if on == "any order" else run_case(case, on, spark)
    except WatersmeetError as error:
        verdict: Verdict = "unreadable" if exit_code(error) == 2 else "failed"
        return verdict, f"{verdict:<11} {file}\n{error}"
    lines = [f"{result.status:<11} {file}: {result.case.name}", *([result.detail] if result.detail else [])]
    return result.status, "\n".join(lines)
