"""What may start: the queries of a script with their frames, where each writes to, and its checkpoint.

Everything that can be refused is refused here, for all queries together, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from watersmeet.catalog import Sink, Source, Span
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.formats import sink_format
from watersmeet.formats.showing import CONSOLE, NOTHING
from watersmeet.physical import LateRows, scan_plans, view_plans
from watersmeet.plan.nodes import Query, Script
from watersmeet.queries import analyze
from watersmeet.spark.compile.build import Built, build
from watersmeet.spark.exchange.packing import LATE_SHOWN, UNMATCHED_SHOWN
from watersmeet.spark.exchange.rows import PORT_SHOWN
from watersmeet.spark.refusals import is_unknown_format, unwritten
from watersmeet.spark.run.owner import Owner
from watersmeet.spark.run.starts import read_owner
from watersmeet.spark.session import unlogged
from watersmeet.spark.sinks.table_sinks import Target, target_of
from watersmeet.spark.sources.columnar import find_files
from watersmeet.spark.sources.loading import counted, tables_first
from watersmeet.spark.sources.reading import read_sources
from watersmeet.spark.sources.static import Static, static_tables
from watersmeet.type_names import is_moment

MARKS_SCHEMA = "column STRING, value BIGINT"


@dataclass(frozen=True)
class Prepared:
    """A query of a script that may start: its frames, where it writes to, its checkpoint and its marks from outside.

    ``others``: the targets of what columns of the result show beside its rows. ``tables``: those that are to be caught
    up before stream rows ask them. ``static``: the tables of which a copy is kept.
    """

    name: str
    built: Built
    target: Target
    place: Place | None
    marks: Path
    others: Mapping[str, Target] = field(default_factory=dict[str, Target])
    tables: tuple[Source, ...] = ()
    static: tuple[Static, ...] = ()

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far it is."""
        return self.target.checkpoint

    @property
    def temporal(self) -> frozenset[str]:
        """The watermarked columns that hold timestamps or dates."""
        scans = scan_plans(self.built.plan.relation)
        found = {c for s in scans for c, field in _times(s.alias, s.source) if is_moment(field)}
        for view in view_plans(self.built.plan.relation):
            found |= {outer for inner, outer in view.marks if inner in found}
        return frozenset(found)

    @property
    def times(self) -> tuple[str, ...]:
        """All watermarked columns of its sources."""
        return tuple(c for s in scan_plans(self.built.plan.relation) for c, _ in _times(s.alias, s.source))


@dataclass(frozen=True)
class Inputs:
    """What all queries of a script read. Static tables are among the ``frames`` as streams."""

    frames: Mapping[str, DataFrame]
    files: Mapping[str, DataFrame]
    static: Mapping[str, Static]

    @property
    def with_batches(self) -> dict[str, DataFrame]:
        """The frames, those of static tables as they are read."""
        return {**self.frames, **{name: table.rows for name, table in self.static.items()}}


def prepare(script: Script, spark: SparkSession, storage: Path) -> list[Prepared]:
    """All queries of a script, or one error with all that speaks against starting them."""
    inputs = _inputs(script, spark, storage)
    refusals: list[Refusal] = []
    found: list[Prepared] = []
    for number, query in enumerate(script.queries, 1):
        try:
            name = query.into or f"query{number}"
            found.append(_prepared(replace(script, queries=(query,)), name, spark, storage, inputs))
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)
    return found


def _prepared(script: Script, name: str, spark: SparkSession, storage: Path, inputs: Inputs) -> Prepared:
    (query,) = script.queries
    checkpoint, marks = storage / "checkpoints" / name, storage / "marks" / name
    anew = _anew(query)
    recorded = read_owner(spark, checkpoint, anew)
    late: LateRows = "counted" if query.late_into is None else "kept"
    # A pattern need not match anything yet, so the folder is made when there is a mark to write.
    moved = spark.readStream.schema(MARKS_SCHEMA).json(str(marks / "*.json"))

    def made(frames: Mapping[str, DataFrame]) -> Built:
        shards = None if recorded is None else recorded.shards
        (built,) = build(spark, script, frames, marks=moved, shards=shards, late=late, files=inputs.files)
        return built

    frames, static = inputs.frames, inputs.static
    if static and _is_looked_up(made, inputs):
        frames, static = inputs.with_batches, dict[str, Static]()
    built = made(frames)
    tables = tables_first(built.plan)
    if tables:
        built = made(counted(frames, tables))
    if recorded is not None:
        recorded.check(Owner((built.told,)), str(checkpoint), anew)
    sink = NOTHING if _is_ports_only(query) else _sink(script, query.into, query.into_span, spark)
    target, place = target_of(sink, name, built.query, checkpoint), script.place(sink.span)
    others = {
        c: Target(_sink(script, into, span, spark), f"{name} {c}", checkpoint)
        for c, into, span in _others(query)
        if into is not None
    }
    for one in (target, *others.values()):
        one.format.check_target(one, script.place(one.sink.span))
    return Prepared(name, built, target, place, marks, others, tables, tuple(static.values()))


def _anew(query: Query) -> str:
    """How to start a query without its checkpoint. What it wrote must stay apart: a sink remembers its batches."""
    if query.into is None:
        return "run it with another storage folder (`storage` in watersmeet.yml)."
    return f"let it write into a sink of its own, with another name and path than `{query.into}`."


def _is_looked_up(made: Callable[[Mapping[str, DataFrame]], Built], inputs: Inputs) -> bool:
    """Whether streams look up all static tables of a query, which Spark can do by itself, without a copy."""
    try:
        return made(inputs.with_batches).compiled.result.isStreaming
    except WatersmeetError as error:
        if all(refusal.condition != "STATIC_TABLE" for refusal in error.refusals):
            raise
        return False


def _inputs(script: Script, spark: SparkSession, storage: Path) -> Inputs:
    """The frames of all sources; if one cannot be read, whatever else is wrong with the script is reported too."""
    try:
        static = static_tables(spark, script, storage / "static")
        frames = read_sources(spark, script, {name: table.stream for name, table in static.items()})
        return Inputs(frames, find_files(spark, script, {}), static)
    except WatersmeetError as unread:
        try:
            analyze(script, {}, inputs="streams")
        except WatersmeetError as error:
            # What is wrong with options both of them know.
            unread_only = [refusal for refusal in unread.refusals if refusal not in error.refusals]
            raise WatersmeetError((*error.refusals, *unread_only)) from error
        raise


def _is_ports_only(query: Query) -> bool:
    """Whether only the ports of a SYNC JOIN are written."""
    return query.into is None and bool(query.ports_into)


def _others(query: Query) -> Iterator[tuple[str, str | None, Span]]:
    """The columns that show what has a sink of its own, with the name of that sink."""
    yield LATE_SHOWN, query.late_into, query.late_into_span
    yield UNMATCHED_SHOWN[0], query.unmatched_left_into, query.unmatched_left_span
    yield UNMATCHED_SHOWN[1], query.unmatched_right_into, query.unmatched_right_span
    yield from ((f"{PORT_SHOWN}{number}", name, span) for number, (name, span) in enumerate(query.ports_into, 1))


def _sink(script: Script, name: str | None, span: Span, spark: SparkSession) -> Sink:
    """The sink of that name; a query that names none shows its rows on the console."""
    if name is None:
        return CONSOLE
    sinks = {sink.name.lower(): sink for sink in script.sinks}
    if name.lower() not in sinks:
        raise refuse("UNKNOWN_SINK", script.place(span), sink=name, suggestion=did_you_mean(name, sinks))
    sink = sinks[name.lower()]
    if not sink_format(sink).is_of_spark:
        return sink
    try:
        # Spark looks the format up before anything else, so this fails for other reasons than the format at worst.
        with unlogged():
            _ = spark.readStream.format(sink.format).load().isStreaming
    except Exception as error:
        if is_unknown_format(error):
            raise unwritten(sink, script.place(sink.span), error) from error
    return sink


def _times(alias: str, source: Source) -> Iterator[tuple[str, str]]:
    for watermark in source.watermarks:
        found = source.field(watermark.column)
        if found is not None:
            yield f"{alias}.{watermark.column}", found.type
