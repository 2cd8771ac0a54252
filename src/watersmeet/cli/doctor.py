"""``doctor``: whether a cluster can run the queries of a project, before the first run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from watersmeet.cli.console import REFUSED, Format, print_text, show_wait
from watersmeet.cli.script import OpenedScript, check_external_references, open_script
from watersmeet.duration import align_columns, format_count
from watersmeet.errors import WatersmeetError
from watersmeet.locations import StorageError, local_path, location_of
from watersmeet.project import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cli.run import Cluster
    from watersmeet.spark.session.doctor import CheckResult


def examine_cluster(path: Path, cluster: Cluster, format: Format) -> None:
    """Print what was checked; exits with 1 if something would stop the queries of the project."""
    with show_wait("Reading the queries"):
        opened = open_script(path, "absolute" if cluster.remote is None else "written")
        check_external_references(opened)
    results: list[CheckResult] = []
    with tempfile.TemporaryDirectory(prefix="watersmeet-doctor-") as folder, show_wait("Starting Spark") as indicator:
        spark = cluster.session(opened.project, Path(folder), opened.script)
        from watersmeet.spark.session.doctor import diagnose, needs_of
        from watersmeet.spark.session.workers import parallel_tasks
        from watersmeet.tools.forecast.cluster import native_bytes

        indicator.wait_for("Asking the executors")
        storage = location_of(absolute_path(opened.project.storage, opened.project.root))
        sinks = {sink.name for sink in opened.script.sinks}
        needs = replace(needs_of(storage, _options(opened), sinks), native=native_bytes)
        for result in diagnose(spark, needs, parallel_tasks(spark) or DEFAULT_TASKS):
            results.append(result)
            indicator.wait_for(f"After the check of {result.check}")
        results += _query_checks(opened, spark, Path(folder))
    _show(results, format)
    if any(result.status == "problem" for result in results):
        raise typer.Exit(REFUSED)


DEFAULT_TASKS = 8
"""The number of tasks that a cluster is taken to run at once if it does not say, as with Spark Connect."""


def _options(opened: OpenedScript) -> Mapping[str, Mapping[str, str]]:
    """The options of the sources and sinks that the queries use; a sink needs the folder above its own."""
    from watersmeet.spark.connectors.reading import resolve_options

    script = resolve_options(opened.script)
    sinks = {sink for query in opened.queries for sink in query.sinks}
    options = {source.name: source.options for source in script.sources if source.format is not None}
    return options | {sink.name: _above(sink.options) for sink in script.sinks if sink.name in sinks}


def _above(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a sink, its path replaced by the nearest folder that exists."""

    def nearest_folder(path: str) -> str:
        local = Path(local_path(path))
        if not local.is_absolute():
            return path
        return str(next((folder for folder in (local, *local.parents) if folder.exists()), local))

    return {name: nearest_folder(value) if name.lower() == "path" else value for name, value in options.items()}


def _query_checks(opened: OpenedScript, spark: SparkSession, empty: Path) -> Iterable[CheckResult]:
    """Check that the queries can start, as `check --deep` does."""
    from watersmeet.cli.check import spark_refusals
    from watersmeet.cli.run import storage_on
    from watersmeet.spark.session.doctor import CheckResult

    try:
        refusals = spark_refusals(opened, spark, storage_on(spark, opened.project), empty)
    except StorageError:
        # The check of the storage has said so.
        yield CheckResult("queries", "note", "not checked: their storage cannot be reached")
        return
    error = opened.project.relocate(WatersmeetError(refusals))
    for refusal in error.refusals:
        yield CheckResult("queries", "problem", refusal.message, refusal.hint)
    if not refusals:
        yield CheckResult("queries", "ok", f"{format_count(len(opened.queries), 'query')} can run")


def _show(results: list[CheckResult], format: Format) -> None:
    if format is Format.json:
        typer.echo(json.dumps({"checks": [asdict(result) for result in results]}))
        return
    lines = align_columns([(result.status, result.check, result.message) for result in results])
    for line, result in zip(lines, results, strict=True):
        print_text(line)
        if result.hint:
            print_text(f"         hint: {result.hint}")
    problems = sum(result.status == "problem" for result in results)
    summary = format_count(problems, "problem") if problems else "no problem"
    print_text(f"{format_count(len(results), 'check')}, {summary}.")
