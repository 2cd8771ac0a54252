"""Prepare queries for their start: the queries of a script with their frames, targets and checkpoints.

Everything that can be refused is refused here, for all queries together, before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Sink, Source, Span, StreamHistory
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.formats import sink_format, source_format
from watersmeet.formats.base import CONSOLE, NOTHING, MalformedPolicy
from watersmeet.formats.base import SHOWN as MALFORMED_SHOWN
from watersmeet.locations import Storage, checkpoint_at, is_local, location_of
from watersmeet.logical.nodes import Query, Script
from watersmeet.logical.passes.check_declarations import check_references
from watersmeet.logical.passes.sinks import static_tables_outside_joins, with_histories, with_static_sources
from watersmeet.logical.query import AnalyzedBranch, AnalyzedQuery
from watersmeet.physical.change import ChangeEffect
from watersmeet.physical.identity import scan_names
from watersmeet.physical.nodes import read_sources as read_sources_of
from watersmeet.queries import analyze
from watersmeet.spark.compile.compiler import Compiler, select_branch
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.history import find_ended_histories, find_gaps, is_seam_ahead, phase_of
from watersmeet.spark.connectors.malformed import observe_malformed, readable_rows, select_malformed
from watersmeet.spark.connectors.reading import find_unread, read_source, read_sources, resolve_options
from watersmeet.spark.connectors.sinks import NewColumns, SinkTarget, check_target, target_of
from watersmeet.spark.connectors.static import Static, copies_of, copy_read, observe_rows, static_tables, tables_to_load
from watersmeet.spark.exchange.packing import LATE_OUTPUT_COLUMN
from watersmeet.spark.exchange.stateful import SampleRows
from watersmeet.spark.leases import NO_LEASES, Leases
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.private.writers import sources_of
from watersmeet.spark.refusals import is_unknown_format, unwritable_sink
from watersmeet.spark.run.build import (
    Built,
    PlannedQuery,
    cache_bytes,
    chain_groups,
    check_provider,
    compile_plan,
    plan_on,
)
from watersmeet.spark.run.rebuild import RebuildPlan, plan_rebuild
from watersmeet.spark.run.starts import (
    Accepting,
    SinkAhead,
    check_clocks,
    continue_checkpoint,
    is_ahead,
    read_owner,
    rebuild_reason,
    take_sinks,
)
from watersmeet.spark.session.workers import shard_count
from watersmeet.spark.state.checkpoint import clear_leftovers
from watersmeet.spark.state.offset_log import read_log
from watersmeet.spark.state.owner import Owner

ACCEPT_HINT = "run it with `--accept`, or undo the change."
REBUILD_HINT = "rebuild its state from its sources with `watersmeet run --rebuild`"
WATERMARKS_SCHEMA = "column STRING, value BIGINT"


@dataclass(frozen=True)
class ResultOutput:
    """A target of a query's result, the place of its sink in the script, and the branch that leads there, if any."""

    target: SinkTarget
    place: Place | None
    branch: AnalyzedBranch | None = None

    def rows(self, result: DataFrame) -> DataFrame:
        """The rows that go there, of those of the result or of a batch."""
        return result if self.branch is None else select_branch(self.branch, result)


@dataclass(frozen=True)
class Prepared:
    """A query of a script that may start: its frames, its target, its checkpoint and its watermarks from outside.

    ``outputs``: the targets of its rows; several if it has branches. ``others``: the targets of side outputs.
    ``tables``: the tables that are loaded before stream rows look them up. ``static``: the tables of which a copy is
    kept. ``malformed``: the frames of malformed rows, if they are kept.
    ``follows``: the consequences of changes since its checkpoint was written, and ``owner`` the owner of the checkpoint
    once they are accepted; None: the present one. ``rebuilding``: its state is rebuilt before it starts. ``ahead``: the
    targets that have batches which the checkpoint does not have, and that are rewound. ``live``: the same query once
    the history of its streams has been read to its end; None: it has none, or that has been read. ``seams``: the
    streams with a history of which it has not read anything else yet.
    """

    name: str
    built: Built
    outputs: tuple[ResultOutput, ...]
    watermark_folder: Storage
    others: Mapping[str, SinkTarget] = field(default_factory=dict[str, SinkTarget])
    tables: tuple[Source, ...] = ()
    static: tuple[Static, ...] = ()
    malformed: tuple[DataFrame, ...] = ()
    follows: tuple[ChangeEffect, ...] = ()
    owner: Owner | None = None
    rebuilding: RebuildPlan | None = None
    ahead: tuple[SinkTarget, ...] = ()
    live: Prepared | None = None
    seams: tuple[Source, ...] = ()

    @property
    def current(self) -> Prepared:
        """The query in the phase that it is in."""
        return self if self.live is None or phase_of(self.checkpoint) == "history" else self.live

    def with_leases(self, leases: Leases) -> Prepared:
        """The same, with sinks that commit batches only while this run has its leases."""
        others = {column: replace(other, leases=leases) for column, other in self.others.items()}
        outputs = tuple(replace(output, target=replace(output.target, leases=leases)) for output in self.outputs)
        live = None if self.live is None else self.live.with_leases(leases)
        return replace(self, outputs=outputs, others=others, live=live)

    @property
    def target(self) -> SinkTarget:
        """The first target of its rows."""
        return self.outputs[0].target

    @property
    def place(self) -> Place | None:
        """The place of that sink in the script."""
        return self.outputs[0].place

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that its checkpoint records: none for a query without branches."""
        return tuple(output.target.sink.name for output in self.outputs if output.branch is not None)

    @property
    def result(self) -> DataFrame:
        """The rows of the query, with its side outputs in separate columns."""
        result = self.built.compiled.result
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), self.malformed, result)

    @property
    def rows(self) -> DataFrame:
        """The rows of the query, without its side outputs."""
        return self.built.compiled.result.drop(*self.others)

    @property
    def checkpoint(self) -> Storage:
        """The folder where Spark keeps its progress."""
        return self.target.checkpoint

    @property
    def endpoints(self) -> list[Source | Sink]:
        """The sources that the query reads and the sinks that it writes to."""
        scans = self.built.plan.relation.leaves
        sources = [source for scan in scans for source in scan.parts or (scan.source,)]
        targets = (*(output.target for output in self.outputs), *self.others.values())
        return [*sources, *(target.sink for target in targets)]

    @property
    def times(self) -> tuple[str, ...]:
        """All watermarked columns of its sources, by the names that watermarks from outside use."""
        return tuple(scan_names(self.built.plan).values())


@dataclass(frozen=True)
class Inputs:
    """The inputs of all queries of a script. Static tables are among the ``frames`` as streams.

    ``history``: the frames of streams with a history while that is read.
    """

    frames: Mapping[str, DataFrame]
    files: Mapping[str, DataFrame]
    static: Mapping[str, Static]
    history: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])

    @property
    def before(self) -> Inputs:
        """The same while the history of streams is read."""
        return replace(self, frames={**self.frames, **self.history})

    @property
    def with_batches(self) -> dict[str, DataFrame]:
        """The frames, those of static tables as they are read."""
        return {**self.frames, **{name: table.rows for name, table in self.static.items()}}

    def with_default_policy(self, policy: MalformedPolicy) -> Inputs:
        """The same where that is done with malformed rows of static tables which do not say it themselves."""
        return replace(self, static={name: table.with_default_policy(policy) for name, table in self.static.items()})


@dataclass(frozen=True)
class StartOptions:
    """The options with which the queries of a script start.

    - ``accepting``: how to start queries that have changed since their checkpoint was written, but can continue
    - ``sample_rows``: whether the progress of a batch carries some sample rows
    - ``ahead``: how to start with sinks that have batches which the checkpoint, restored from an older copy, lacks
    - ``new_columns``: how to start with columns that the table of a sink lacks
    - ``leases``: the leases of the run on a storage that other machines reach, which sinks check
    """

    accepting: Accepting = "refuse"
    sample_rows: SampleRows = "none"
    ahead: SinkAhead = "refuse"
    leases: Leases = NO_LEASES
    new_columns: NewColumns = "refuse"


def prepare(
    script: Script,
    spark: SparkSession,
    storage: Storage,
    analyzed: Sequence[AnalyzedQuery] | None = None,
    options: StartOptions = StartOptions(),  # noqa: B008 - it is frozen
    by_spark: Collection[str] = (),
    planned: Mapping[str, PlannedQuery] | None = None,
) -> list[Prepared]:
    """Return all queries of a script, or raise one error with every reason not to start them.

    ``analyzed``: the analyzed queries, if there are any yet. ``by_spark``: sources whose files only Spark may read.
    ``planned``: the plans of queries, by name, if they were prepared before.
    """
    check_provider(spark)
    refusals: list[Refusal] = []
    with _collect_refusals(refusals):
        analyzed = analyzed or analyze(script)
    with _collect_refusals(refusals):
        check_references(script)
        script = resolve_options(script)
        inputs = _inputs(script, spark, storage, by_spark)
        prepared: list[Prepared] = []
        for number, (parsed, query) in enumerate(zip(script.queries, analyzed or (), strict=False), 1):
            with _collect_refusals(refusals):
                name = parsed.into or f"query{number}"
                preparation = _Preparation(script, parsed, name, spark, storage, inputs, options)
                prepared.append(preparation.run(query, (planned or {}).get(name)))
        refusals += _find_gaps(script, spark, prepared)
    if refusals:
        raise WatersmeetError(refusals)
    return [query.with_leases(options.leases) for query in prepared]


def _find_gaps(script: Script, spark: SparkSession, prepared: Sequence[Prepared]) -> Iterator[Refusal]:
    """The refusals of topics that no longer have all that follows the history, each topic once."""
    seams = {source.name: (source, not query.checkpoint.exists()) for query in prepared for source in query.seams}
    for source, is_new in seams.values():
        span = source.span if source.history is None else source.history.span
        for refusal in find_gaps(spark, [source], is_new=is_new):
            yield replace(refusal, place=script.place(span))


@contextmanager
def _collect_refusals(refusals: list[Refusal]) -> Generator[None]:
    """Collect the refusals of the block, each once: analysis and reading both find wrong options."""
    try:
        yield
    except WatersmeetError as error:
        refusals += [refusal for refusal in error.refusals if refusal not in refusals]


@dataclass(frozen=True)
class _Continuation:
    """The way in which a query continues its checkpoint; see `Prepared`."""

    owner: Owner | None = None
    follows: tuple[ChangeEffect, ...] = ()
    rebuilding: RebuildPlan | None = None


@dataclass(frozen=True)
class _Preparation:
    """The preparation of one query of a script."""

    script: Script
    parsed: Query
    name: str
    spark: SparkSession
    storage: Storage
    inputs: Inputs
    options: StartOptions

    @property
    def checkpoint(self) -> Storage:
        """The folder where Spark keeps the progress of the query."""
        return checkpoint_at(self.storage, self.name)

    @property
    def restart_hint(self) -> str:
        """The hint for starting the query without its checkpoint."""
        return _new_start_hint(self.parsed)

    @property
    def default_policy(self) -> MalformedPolicy:
        """The policy for malformed rows whose source has none: they are dropped if a side output shows them."""
        shows_malformed = any(side_output.column == MALFORMED_SHOWN for side_output in self.parsed.side_outputs)
        return "drop" if shows_malformed else "fail"

    def run(self, query: AnalyzedQuery, planned: PlannedQuery | None) -> Prepared:
        """Prepare the query, or refuse to start it."""
        if is_local(self.checkpoint):
            clear_leftovers(self.checkpoint)
        restored = self._restore_histories()
        if restored:
            query = with_histories(query, restored)
            return self._with_histories(restored).run(query, planned)
        recorded = read_owner(self.spark, self.checkpoint, self.restart_hint)
        inputs = self.inputs.with_default_policy(self.default_policy)
        is_before = bool(inputs.history) and phase_of(self.checkpoint) == "history"
        analyzed, read, static = _with_static_tables(query, inputs.before if is_before else inputs)
        built, tables, unread = self._compile(analyzed, read, recorded, planned)
        read_before = {source.name for source in read_sources_of(built.plan.relation) if source.history is not None}
        # First what cannot be accepted, then what can.
        _check_copies(static, self.storage, self.checkpoint, self.name, self.script, self.restart_hint)
        going_on = _Continuation() if recorded is None else self._continue(built, query, recorded)
        outputs, others, rewinds = self._targets(query)
        rows = built.compiled.result.drop(*others)
        for output in outputs:
            sink_connector(output.target).check_rows(output.rows(rows), output.place)
        seams = [source for source in self.script.sources if source.name in read_before]
        seams = seams if seams and is_seam_ahead(self.checkpoint) else []
        prepared = Prepared(
            self.name, built, outputs, self._watermark_folder, others, tables, static, unread,
            going_on.follows, going_on.owner, going_on.rebuilding, rewinds, seams=tuple(seams),
        )  # fmt: skip
        if is_before and read_before:
            analyzed, read, _ = _with_static_tables(query, inputs)
            built, _, unread = self._compile(analyzed, read, recorded, built.planned)
            prepared = replace(prepared, live=replace(prepared, built=built, malformed=unread))
        owner = going_on.owner
        if recorded is not None and owner is not None and owner.clocks != recorded.clocks:
            sources, folder = sources_of(prepared.result.writeStream), folder_of(self.spark, self.checkpoint)
            check_clocks(folder, str(self.checkpoint), recorded, owner, sources, self.restart_hint)
        return prepared

    def _restore_histories(self) -> Mapping[str, StreamHistory]:
        """The histories that the checkpoint is past and that are not declared any more, by source in small letters."""
        ended, frames = find_ended_histories(self.checkpoint), self.inputs.frames
        without = {s.name.lower() for s in self.script.sources if s.history is None and s.name in frames}
        return {name: history for name, history in ended.items() if name in without}

    def _with_histories(self, histories: Mapping[str, StreamHistory]) -> _Preparation:
        """The same, with these histories declared, which have been read."""
        sources = tuple(replace(s, history=histories.get(s.name.lower(), s.history)) for s in self.script.sources)
        script = resolve_options(replace(self.script, sources=sources))
        restored = [source for source in script.sources if source.name.lower() in histories]
        frames = {source.name: read_source(self.spark, script, source, "live") for source in restored}
        return replace(self, script=script, inputs=replace(self.inputs, frames={**self.inputs.frames, **frames}))

    def _compile(
        self, query: AnalyzedQuery, read: Mapping[str, DataFrame], recorded: Owner | None, planned: PlannedQuery | None
    ) -> tuple[Built, tuple[Source, ...], tuple[DataFrame, ...]]:
        """The query as a DataFrame, the tables that are loaded first, and the malformed rows if they are kept."""
        is_sampled = self.options.sample_rows == "some"
        looked = observe_malformed(self.script, read, self.default_policy, with_example=is_sampled)
        frames = {name: readable_rows(frame) for name, frame in looked.items()}
        built, tables = self._build(query, frames, recorded, planned)
        shows_malformed = self.default_policy == "drop"
        scanned = {scan.source.name for scan in built.plan.relation.leaves} if shows_malformed else set[str]()
        unread = select_malformed([source for source in self.script.sources if source.name in scanned], looked)
        return built, tables, unread

    @property
    def _watermark_folder(self) -> Storage:
        return self.storage / "marks" / self.name

    @property
    def _unread(self) -> Mapping[str, DataFrame]:
        """The files and records that workers read themselves.

        Where a side output shows malformed rows, Spark decodes all records.
        """
        if self.default_policy == "fail":
            return self.inputs.files
        records = {source.name for source in self.script.sources if source_format(source).has_partitions}
        return {name: frame for name, frame in self.inputs.files.items() if name not in records}

    def _build(
        self,
        query: AnalyzedQuery,
        frames: Mapping[str, DataFrame],
        recorded: Owner | None,
        planned: PlannedQuery | None,
    ) -> tuple[Built, tuple[Source, ...]]:
        """The query as a DataFrame, and the tables that are loaded before stream rows look them up."""
        script, spark = self.script, self.spark
        # A pattern need not match anything yet, so the folder is made when there is a watermark to write.
        pattern = location_of(self._watermark_folder / "*.json")
        watermarks = spark.readStream.schema(WATERMARKS_SCHEMA).json(pattern)
        compiler = Compiler(
            spark, frames, shard_count(script, spark, recorded and recorded.shards), watermarks,
            "counted" if self.parsed.late_into is None else "side_output", files=self._unread,
            sample_rows=self.options.sample_rows, recovers=True, cache_bytes=cache_bytes(script, spark),
        )  # fmt: skip
        chaining = chain_groups(script, spark, "on") if recorded is None else recorded.operator_chains
        planned = planned or plan_on(script, query, compiler, chaining=chaining)
        compiler = replace(compiler, watermarks=_rename_watermarks(watermarks, scan_names(planned.plan)))
        tables = tables_to_load(planned.plan)
        return compile_plan(script, planned, replace(compiler, frames=observe_rows(frames, tables))), tables

    def _continue(self, built: Built, query: AnalyzedQuery, recorded: Owner) -> _Continuation:
        """The way in which the query continues the checkpoint of a recorded owner, or a refusal."""
        sinks = tuple(branch.sink for branch in query.branches)
        now, accepting = Owner((built.signature,), sinks=sinks), self.options.accepting
        difference = rebuild_reason(recorded, now, accepting)
        if difference is not None:
            plan = plan_rebuild(
                self.spark, self.script, self.storage, self.checkpoint, self.name, built, recorded, difference
            )
            return _Continuation(rebuilding=plan)
        owner, follows = continue_checkpoint(
            self.spark, self.checkpoint, recorded, now, accepting, self.restart_hint, ACCEPT_HINT, REBUILD_HINT
        )
        added = take_sinks(self.name, str(self.checkpoint), recorded, sinks, accepting, ACCEPT_HINT)
        if sinks and sinks != recorded.sinks:
            owner = replace(owner, sinks=sinks)
        return _Continuation(None if owner is recorded else owner, (*follows, *added))

    def _targets(
        self, query: AnalyzedQuery
    ) -> tuple[tuple[ResultOutput, ...], dict[str, SinkTarget], tuple[SinkTarget, ...]]:
        """The targets of the rows, those of side outputs, and those of them that are rewound."""
        script, parsed, spark = self.script, self.parsed, self.spark
        outputs = tuple(self._branch_output(*pair) for pair in zip(parsed.branches, query.branches, strict=True))
        if not outputs:
            sink = NOTHING if parsed.is_in_parts else _sink(script, parsed.into, parsed.into_span, spark)
            outputs = (ResultOutput(target_of(sink, self.name, query, self.checkpoint), script.place(sink.span)),)
        new_columns = self.options.new_columns
        outputs = tuple(replace(each, target=replace(each.target, new_columns=new_columns)) for each in outputs)
        others = {
            column: SinkTarget(_sink(script, into, span, spark), f"{self.name} {column}", self.checkpoint)
            for column, into, span in _others(parsed)
            if into is not None
        }
        places = [(output.target, output.place) for output in outputs]
        places += [(other, script.place(other.sink.span)) for other in others.values()]
        for target, place in places:
            check_target(target, place, spark)
        ahead = self.options.ahead
        return outputs, others, tuple(target for target, place in places if is_ahead(target, spark, ahead, place))

    def _branch_output(self, parsed: Query, branch: AnalyzedBranch) -> ResultOutput:
        """The target of a branch: one with the name that its INSERT would have alone."""
        sink = _sink(self.script, parsed.into, parsed.into_span, self.spark)
        target = target_of(sink, branch.sink, branch.query, self.checkpoint)
        return ResultOutput(target, self.script.place(sink.span), branch)


def _with_static_tables(
    query: AnalyzedQuery, inputs: Inputs
) -> tuple[AnalyzedQuery, Mapping[str, DataFrame], tuple[Static, ...]]:
    """The query, its frames and the tables to keep a copy of: none where streams look up all tables that never change.

    Spark looks these up by itself. In any other place a table must come as a stream, which only its copy is.
    """
    rewritten = with_static_sources(query, frozenset(name.lower() for name in inputs.static))
    if not inputs.static or any(static_tables_outside_joins(rewritten.relation)):
        return query, inputs.frames, tuple(inputs.static.values())
    return rewritten, inputs.with_batches, ()


def _check_copies(
    static: Sequence[Static], storage: Storage, checkpoint: Storage, query: str, script: Script, restart_hint: str
) -> None:
    """Refuse to read another copy of a table than the query has read: it would keep the rows of both."""
    for table in static:
        if any(folder != table.folder for folder, _ in copies_of(table.source, storage)):
            difference = copy_read(table, storage, read_log(checkpoint).files)
            if difference is not None:
                place, name = script.place(table.source.span), table.source.name
                raise refuse(
                    "STATIC_TABLE_CHANGED", place, query=query, table=name, difference=difference, command=restart_hint
                )


def _rename_watermarks(watermarks: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Watermarks from outside, their columns as the query calls them."""
    if not names:
        return watermarks
    called = F.create_map(*(F.lit(text) for column, name in names.items() for text in (name, column)))
    column = F.coalesce(F.try_element_at(called, F.col("column")), F.col("column"))
    return watermarks.select(column.alias("column"), "value")


def _new_start_hint(query: Query) -> str:
    """The hint for a start without the checkpoint. Its output must be separate: a sink remembers its batches."""
    if query.into is None:
        return "run it with another storage folder (`storage` in watersmeet.yml)."
    own = [branch.into or "" for branch in query.branches] or [query.into]
    sinks = [*own, *(sink for _, sink, _ in _others(query) if sink is not None)]
    if len(sinks) == 1:
        return f"have it write to a new sink, with another name and path than `{query.into}`."
    named = " and ".join(f"`{sink}`" for sink in sinks)
    return f"have it write to new sinks, with other names and paths than {named}."


def _inputs(script: Script, spark: SparkSession, storage: Storage, by_spark: Collection[str]) -> Inputs:
    """The frames of all sources."""
    static = static_tables(spark, script, storage)
    streams = {name: table.stream for name, table in static.items()}
    frames = read_sources(spark, script, streams, "live")
    history = {
        source.name: read_source(spark, script, source, "history")
        for source in script.sources
        if source.history is not None and source.name in frames
    }
    return Inputs(frames, find_unread(spark, script, {}, by_spark), static, history)


def _others(query: Query) -> Iterator[tuple[str, str | None, Span]]:
    """The columns that show what has a sink of its own, with the name of that sink."""
    yield LATE_OUTPUT_COLUMN, query.late_into, query.late_into_span
    yield from ((side_output.column, side_output.sink, side_output.span) for side_output in query.side_outputs)


def _sink(script: Script, name: str | None, span: Span, spark: SparkSession) -> Sink:
    """The sink of that name; a query that names none shows its rows on the console."""
    if name is None:
        return CONSOLE
    sinks = {sink.name.lower(): sink for sink in script.sinks}
    if name.lower() not in sinks:
        raise refuse("UNKNOWN_SINK", script.place(span), sink=name, suggestion=did_you_mean(name, sinks))
    sink = sinks[name.lower()]
    if not sink_format(sink).is_spark_format:
        return sink
    try:
        # Spark looks the format up before anything else, so this fails for other reasons than the format at worst.
        with suppress_logs():
            _ = spark.readStream.format(sink.format).load().isStreaming
    except Exception as error:
        if is_unknown_format(error):
            raise unwritable_sink(sink, script.place(sink.span), error) from error
    return sink
