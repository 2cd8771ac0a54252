"""``check --deep``: what only Spark can tell of queries, without starting one.

Types and functions of all expressions, paths, topics, formats, sinks, and whose checkpoints there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from watersmeet.cli.script import OpenedScript, open_script
from watersmeet.cli.waiting import show_wait
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats import source_format
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query, read_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cli.run import Cluster
    from watersmeet.physical.change import ChangeEffect, EditKind
    from watersmeet.plan.nodes import Script


Edits = dict[str, tuple["EditKind | Literal['new']", "tuple[ChangeEffect, ...]"]]
"""By query, the class of its edits since it wrote its state, and what follows from them; ``new``: it has none yet."""


def check_on_spark(path: Path, cluster: Cluster, against: Path | None = None) -> Edits:
    """Refuse all that would be refused when the queries of a project start. Nothing is written to its storage.

    ``against``: the storage with which they are compared; then edits that can be accepted are told and not refused.
    """
    from watersmeet.project import storage_folder

    opened = open_script(path, "absolute" if cluster.remote is None else "written")
    with tempfile.TemporaryDirectory(prefix="watersmeet-check-") as folder, show_wait("Starting Spark") as indicator:
        spark = cluster.session(opened.project, Path(folder), opened.script)
        indicator.wait_for("Checking the queries with Spark")
        if against is not None:
            return _edits(opened, spark, against.absolute())
        refusals = spark_refusals(opened, spark, storage_folder(opened.project), Path(folder))
    if refusals:
        raise opened.project.relocate(WatersmeetError(refusals))
    return {}


def _edits(opened: OpenedScript, spark: SparkSession, storage: Path) -> Edits:
    from watersmeet.physical.change import ChangeEffect
    from watersmeet.spark.run.owner import OWNER
    from watersmeet.spark.run.prepare import prepare

    if not (storage / "checkpoints").is_dir():
        raise refuse("NO_CHECKPOINT", path=storage, reason="there are no checkpoints in it")
    try:
        prepared = prepare(opened.script, spark, storage, accepting="tell")
    except WatersmeetError as error:
        raise opened.project.relocate(error) from error
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


def spark_refusals(opened: OpenedScript, spark: SparkSession, storage: Path, empty: Path) -> list[Refusal]:
    """What speaks against starting these queries now; ``empty`` is a folder without input."""
    script = opened.script
    refusals = _prepare_refusals(script, spark, storage)
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
    """What sources name and is not there; ``reported``: the places of those of which something is known to be wrong."""
    from watersmeet.spark.sources.reading import resolve_options

    script = resolve_options(opened.script)
    used = {source.name for query in opened.queries for source in read_sources(plan_query(query, OPERATORS).relation)}
    for source in script.sources:
        place = script.place(source.span)
        if source.name in used and source.format is not None and place not in reported:
            yield from (replace(refusal, place=place) for refusal in source_format(source).check_exists(spark))


def _prepare_refusals(script: Script, spark: SparkSession, storage: Path) -> list[Refusal]:
    from watersmeet.spark.run.prepare import prepare

    try:
        prepare(script, spark, storage)
    except WatersmeetError as error:
        return list(error.refusals)
    return []


def _is_of_checkpoint(refusal: Refusal) -> bool:
    return "checkpoint" in refusal.parameters
