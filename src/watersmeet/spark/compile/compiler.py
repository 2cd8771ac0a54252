"""A physical plan as a DataFrame: scan, prepare, pack, meet, unpack, project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from watersmeet.catalog import Source
from watersmeet.formats.base import policy_for
from watersmeet.logical.query import AnalyzedBranch, AnalyzedTop
from watersmeet.metrics.metrics import REPORTS
from watersmeet.metrics.progress import JOIN_PREFIX
from watersmeet.operators.core.chain import Inlet, Link
from watersmeet.operators.core.changes import CHANGE, MULTIPLICITY, WEIGHT
from watersmeet.operators.core.operator import LOADED, NOW
from watersmeet.operators.core.routing import null_key_columns
from watersmeet.operators.state.shard import TwoSided
from watersmeet.physical import (
    JoinPlan,
    LateralPlan,
    LateRows,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
    join_name,
    join_plans,
    leaf_plans,
)
from watersmeet.physical.chaining import ChainedColumn, carry_columns, code_side, find_chained_link
from watersmeet.physical.columnar import columnar_path, holds_records, is_columnar_scan, sources_of_columns
from watersmeet.physical.identity import digest, stage_digest
from watersmeet.physical.nodes import LeafPlan
from watersmeet.physical.scans import late_columns
from watersmeet.schema import normalise_type, quote
from watersmeet.spark.compile.frames import (
    InputFrame,
    all_true,
    compile_lateral,
    compile_scan,
    compile_static_join,
    compile_union,
    compile_view,
    select_with_others,
    sql_with_others,
)
from watersmeet.spark.connectors import source_connector
from watersmeet.spark.connectors.reading import PackFiles, is_latest_first
from watersmeet.spark.connectors.record_columns import RecordPacking, record_decoder
from watersmeet.spark.exchange.columns import FILE, KEEP, Codes, ColumnPipeline, Precombine
from watersmeet.spark.exchange.output import OUTPUT_DDL
from watersmeet.spark.exchange.packing import (
    DUPLICATES_OUTPUT_COLUMN,
    LATE_OUTPUT_COLUMN,
    LATE_ROW,
    METRICS,
    ORDER,
    PACKED_DDL,
    PART,
    PARTITION,
    SHARD,
    UNMATCHED_OUTPUT_COLUMNS,
    WATERMARKS_COLUMN,
    LateMode,
    Pack,
    PackWatermarks,
    Repack,
    Unpack,
)
from watersmeet.spark.exchange.rows import (
    SIDE_OUTPUT_COLUMNS,
    JoinOutput,
    JoinSchema,
    complete_rows,
    ddl_field,
    explode_changes,
    is_row,
    output_schema,
    port_structs,
)
from watersmeet.spark.exchange.stateful import BYTES_PER_STEP, JoinStage, SampleRows, ShardProcessor, Shards
from watersmeet.spark.exchange.store import labels
from watersmeet.spark.private import unknown_spark
from watersmeet.spark.private.introspection import arrow_schema


@dataclass(frozen=True)
class Compiled:
    """A query on Spark: its result, and its joins, innermost first, whose records hold the late rows as well."""

    result: DataFrame
    joins: tuple[JoinOutput, ...]


@dataclass(frozen=True)
class OperatorInputs:
    """The inputs of one operator: its stages, innermost first, and their packed frames.

    ``below``: the joins whose rows it receives through the exchange.
    """

    stages: tuple[JoinStage, ...] = ()
    joins: tuple[JoinSchema, ...] = ()
    packed: tuple[DataFrame, ...] = ()
    below: tuple[JoinOutput, ...] = ()
    is_streaming: bool = False

    @property
    def ports(self) -> int:
        """The number of ports that the exchange has for it."""
        return sum(len(stage.ports) for stage in self.stages)


def select_branch(branch: AnalyzedBranch, result: DataFrame) -> DataFrame:
    """The rows of a branch, from those of the result that it shares with others."""
    changes = [F.col(CHANGE)] if CHANGE in result.columns else []
    names = [output.name for output in branch.query.outputs]
    if not branch.alias:
        return result.select(*(F.col(quote(name)) for name in names), *changes)
    columns = [F.col(quote(name)).alias(f"{branch.alias}.{name}") for name in result.columns if name != CHANGE]
    rows = result.select(*columns, *changes)
    if branch.where:
        rows = rows.where(F.expr(" AND ".join(part.sql() for part in branch.where)))
    return rows.select(*(F.expr(o.expr.sql()).alias(o.name) for o in branch.query.outputs), *changes)


Clock = Literal["ticks", "marks"]
"""The source of the wall clock: from a source of ticks, or from watermarks, as in a case."""


@dataclass(frozen=True)
class Compiler:
    """Builds the frames of a plan.

    ``frames`` holds the DataFrame of each source by its name; ``watermarks`` rows ``(column, value)`` that move
    watermarks from outside; ``late`` says whether the result shows late rows, in the column ``_late``; ``files`` the
    paths of sources that workers may read themselves; ``token`` the name by which a start finds the query again;
    ``sample_rows`` whether the metrics of a batch carry some sample rows; ``recovers`` whether the query is started
    again with Spark's reader if a worker meets a file that only Spark can read; ``cache_bytes`` how many bytes of the
    state an executor has at hand on its local disk, None: as many as it chooses.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    shards: int
    watermarks: DataFrame | None = None
    late: LateRows = "counted"
    clock: Clock = "ticks"
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    bytes_per_step: int = BYTES_PER_STEP
    token: str = ""
    sample_rows: SampleRows = "none"
    recovers: bool = False
    cache_bytes: int | None = None

    def compile_query(self, plan: QueryPlan) -> Compiled:
        """The frames of a whole query."""
        compiler = replace(self, files={n: f for n, f in self.files.items() if n in sources_of_columns(plan.relation)})
        rows = compiler.compile_rows(plan.relation)
        return Compiled(compiler.project(plan, rows.frame), rows.joins)

    def project(self, plan: QueryPlan, frame: DataFrame) -> DataFrame:
        """The rest of WHERE, and the columns of the result. Rows of side outputs are not rows of the result."""
        side_outputs = [name for name in SIDE_OUTPUT_COLUMNS if name in frame.columns]
        row = is_row(frame)
        if plan.where:
            holds = F.expr(" AND ".join(part.sql() for part in plan.where))
            frame = frame.where(holds | ~row if side_outputs else holds)
        outputs = [F.expr(sql_with_others(output.expr, frame)).alias(output.name) for output in plan.outputs]
        ports = [F.when(row, port).alias(name) for name, port in port_structs(plan)]
        weight = [F.col(quote(WEIGHT))] if plan.is_changelog else []
        columns = [*outputs, *ports, *weight, *(F.col(name) for name in side_outputs)]
        result = select_with_others(frame, plan.outputs, columns)
        return explode_changes(result) if plan.is_changelog else result

    def compile_rows(self, plan: RelationPlan, join: JoinOutput | None = None) -> InputFrame:
        """The frame of a relation that feeds no join: its rows, and its side outputs.

        ``join``: records of its last join that there are already.
        """
        match plan:
            case ScanPlan():
                return compile_scan(self.frames, plan, feeds=False)
            case ViewPlan():
                return compile_view(plan, self.compile_rows(plan.input, join), self.spark)
            case UnionPlan():
                return compile_union(plan, [self.compile_rows(side) for side in plan.inputs])
            case StaticJoinPlan():
                return compile_static_join(
                    plan, self.compile_rows(plan.stream, join), self.compile_rows(plan.table).frame
                )
            case LateralPlan():
                return compile_lateral(plan, self.compile_rows(plan.input, join))
            case JoinPlan():
                joins = self.compile_join(plan) if join is None else (join,)
                frame = self.output_rows(joins[-1], self.side_output_fields(plan))
                return InputFrame(frame, {f.name: f.nullable for f in frame.schema}, joins, feeds=False)

    def compile_input(self, plan: RelationPlan, *, in_order: bool = False) -> InputFrame:
        """The frame of a relation as it feeds a join, with what only travels along.

        ``in_order``: the order in which its rows arrive matters.
        """
        match plan:
            case ScanPlan():
                return compile_scan(self.frames, plan, feeds=True, in_order=in_order)
            case ViewPlan():
                return compile_view(plan, self.compile_input(plan.input, in_order=in_order), self.spark)
            case UnionPlan():
                return compile_union(plan, [self.compile_input(side, in_order=in_order) for side in plan.inputs])
            case StaticJoinPlan():
                stream = self.compile_input(plan.stream, in_order=in_order)
                return compile_static_join(plan, stream, self.compile_rows(plan.table).frame)
            case LateralPlan():
                return compile_lateral(plan, self.compile_input(plan.input, in_order=in_order))
            case JoinPlan():
                joins = self.compile_join(plan)
                return self.forward_rows(joins[-1], joins)

    def prepare_port(self, port: PortPlan, frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
        """The columns that go through the exchange, whose canonical ``names`` are known.

        For rows that are not kept nothing is computed but their times.
        """
        has_keep = KEEP in frame.columns
        times = {lag.column for lag in port.lags}
        columns = [F.col(quote(c)) if c in times else _guard_by_keep(quote(c), c, has_keep) for c in port.columns]
        columns += [_guard_by_keep(c.sql(), c.name, has_keep) for c in port.computed]
        if port.dead is not None:
            alive = " AND ".join(p.sql() for p in port.predicates)
            columns.append(_guard_by_keep(f"NOT coalesce({alive}, false)", port.dead, has_keep))
        columns += [
            F.col(quote(name))
            for name in (KEEP, WATERMARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER, FILE)
            if name in frame.columns
        ]
        frame = frame.select(*columns)
        for name, hashed in _hash_columns(port, frame.schema, names):
            columns_of = [F.col(quote(column)) for column in hashed]
            frame = frame.withColumn(name, F.xxhash64(*columns_of) if hashed else F.lit(0).cast("bigint"))
        return frame

    def compile_join(self, plan: JoinPlan) -> tuple[JoinOutput, ...]:
        """Pack the inputs, shuffle them by shard and let the operator run: the joins below, and those in it."""
        shards = labels(1 if plan.ports[0].route == "one" else self.shards)
        inputs = self.collect_inputs(plan, shards)
        to_all = frozenset(n for n, port in enumerate(plan.ports) if port.route == "all")
        # A batch DataFrame has no metrics.
        stages = inputs.stages if inputs.is_streaming else tuple(replace(s, metrics_name="") for s in inputs.stages)
        processor = ShardProcessor(
            stages, Shards(shards[0], to_all, len(shards)), self.bytes_per_step, self.sample_rows, self.cache_bytes
        )
        grouped = reduce(DataFrame.unionAll, inputs.packed).groupBy("shard")
        if not hasattr(grouped, "transformWithStateInPandas"):
            raise unknown_spark("`transformWithStateInPandas` in Spark Connect", "no join can run there", "4.1 to 4.3")
        records = grouped.transformWithStateInPandas(processor, OUTPUT_DDL, "Append", "None")
        if inputs.is_streaming:
            records = observe_metrics(records, self.observation_name(plan))
        return (*inputs.below, *(JoinOutput(join.plan, join.inputs, records) for join in inputs.joins))

    def collect_inputs(self, plan: JoinPlan, shards: tuple[int, ...]) -> OperatorInputs:
        """Collect the inputs of an operator: of a join, after those of the join chained to it, if any."""
        upstream, chained_port = (
            find_chained_link(plan),
            next((n for n, port in enumerate(plan.ports) if port.is_chained), None),
        )
        before = OperatorInputs() if upstream is None else self.collect_inputs(upstream.join, shards)
        names = dict(plan.operator.names)
        in_order = plan.operator.ports_in_arrival_order
        sides = {
            n: self.compile_input(port.input, in_order=n in in_order)
            for n, port in enumerate(plan.ports)
            if n != chained_port
        }
        frames = {n: self.prepare_port(plan.ports[n], one.frame, names) for n, one in sides.items()}
        ports = {before.ports + place: n for place, n in enumerate(sides)}
        own = {n: self.pack_port(number, plan, n, sides[n], frames[n], shards) for number, n in ports.items()}
        # Spark numbers operators and sources in the order of the ports.
        packed = [one for n in range(len(plan.ports)) for one in (before.packed if n == chained_port else (own[n],))]
        streaming = before.is_streaming or any(frame.isStreaming for frame in frames.values())
        packed += self.pack_watermarks(plan, shards, min(ports), streaming=streaming)
        schemas = {n: _row_schema(frame, sides[n]) for n, frame in frames.items()}
        stages, link = before.stages, Link(plan.operator.for_shards(len(shards)))
        if upstream is not None and chained_port is not None:
            carried_columns = carry_columns(plan, chained_port, upstream)
            schemas[chained_port] = _inlet_schema(output_schema(before.joins[-1]), carried_columns)
            inlet = Inlet(
                chained_port,
                self.arrow(schemas[chained_port]),
                tuple(one.column for one in carried_columns),
                upstream.watermarks,
            )
            link = replace(link, inlet=inlet)
            stages = (*stages[:-1], _with_key_code(stages[-1], code_side(plan, chained_port, upstream)))
        inputs = tuple(schemas[n] for n in range(len(plan.ports)))
        times = tuple(dict.fromkeys(time for port in plan.ports for time in port.times))
        metrics_name = f"{JOIN_PREFIX}{self.observation_name(plan)}"
        stage = JoinStage(
            link, join_name(plan), _digest(plan, inputs, shards), ports, metrics_name, times, () if streaming else times
        )
        below = (*before.below, *(join for one in sides.values() for join in one.joins))
        joins = (*before.joins, JoinSchema(plan, inputs))
        return OperatorInputs((*stages, stage), joins, tuple(packed), below, streaming)

    def observation_name(self, plan: JoinPlan) -> str:
        """The name under which the metrics of a join are reported: the join, the query and its identity."""
        return f"{join_name(plan)}#{self.token}.{digest(plan.identity)[:8]}"

    def pack_watermarks(
        self, plan: JoinPlan, shards: tuple[int, ...], number: int, *, streaming: bool
    ) -> list[DataFrame]:
        """Pack the watermarks from outside and the ticks of the clock for a port of a join."""
        names = {lag.source: lag.column for port in plan.ports for lag in port.lags}
        own = PackWatermarks(number, shards, {**names, NOW: NOW, LOADED: LOADED})
        packed: list[DataFrame] = []
        if self.watermarks is not None:
            packed.append(self.watermarks.mapInArrow(own, PACKED_DDL))
        if streaming and plan.operator.needs_clock and self.clock == "ticks":
            packed.append(self.ticks().mapInArrow(own, PACKED_DDL))
        if not streaming and plan.ports[0].route == "one":
            # Frames without rows have no tasks, so nothing else would visit the group of all rows.
            visit = self.spark.range(0, 1, 1, 1).selectExpr("'' AS column", "id AS value")
            packed.append(visit.mapInArrow(own, PACKED_DDL))
        return packed

    def pack_port(
        self,
        number: int,
        plan: JoinPlan,
        place: int,
        side: InputFrame,
        frame: DataFrame,
        shards: tuple[int, ...],
    ) -> DataFrame:
        """The rows of a port as records of the exchange; where nothing needs Spark before, they never become rows."""
        port, precombine = plan.ports[place], _make_precombine(plan, place, frame)
        keep = KEEP if KEEP in frame.columns else None
        pack = Pack(
            number, port.route, _shard_column(port), shards, port.lags, keep, tuple(frame.columns), port.position,
            null_keys=null_key_columns(plan.operator.ports[place], port.columns, plan.operator.canonical_names),
            skew=port.skew,
        )  # fmt: skip
        codes = tuple(_hash_columns(port, frame.schema, dict(plan.operator.names)))
        leaf = None if _is_collated(frame.schema, codes) else self.leaf_schema(port, side)
        passage = None if leaf is None else columnar_path(port, {f.name: _type_name(f.dataType) for f in leaf}.get)
        if leaf is not None and passage is not None:
            # Workers that read files know which one they read.
            own_fields = StructType([field for field in frame.schema if field.name != FILE])
            columns = ColumnPipeline(passage.steps, self.arrow(own_fields), codes, precombine)
            if columns.can_take(self.arrow(leaf)):
                further = (MULTIPLICITY,) if precombine is not None else (FILE,) if FILE in frame.columns else ()
                own = replace(pack, names=(*own_fields.names, *further))
                packed = self.pack_columns(passage.leaf, leaf, columns, own, side)
                if packed is not None:
                    return packed
        return _with_plain_names(frame).mapInArrow(replace(pack, precombine=precombine), PACKED_DDL)

    def leaf_schema(self, port: PortPlan, side: InputFrame) -> StructType | None:
        """The schema of the leaf of a port, if workers get columns: those of files, or of the records of a join."""
        relation = port.input.origin
        if isinstance(relation, JoinPlan):
            return self.forward_schema(side.joins[-1])
        if not isinstance(relation, ScanPlan) or relation.source.name not in self.files:
            return None
        fields = {field.name: field for field in self.frames[relation.source.name].schema}
        change = [fields[CHANGE]] if relation.changes is not None and CHANGE in fields else []
        named = [
            StructField(f"{relation.alias}.{name}", fields[name].dataType, fields[name].nullable)
            for name in relation.columns
        ]
        partition = [fields[PARTITION]] if PARTITION in fields else []
        return StructType([*named, *change, *partition])

    def pack_columns(
        self, leaf: ScanPlan | JoinPlan, schema: StructType, columns: ColumnPipeline, pack: Pack, side: InputFrame
    ) -> DataFrame | None:
        """The rows of a leaf as records of the exchange, gone over columns; None: its files need Spark."""
        if isinstance(leaf, JoinPlan):
            return side.joins[-1].records.mapInArrow(
                Repack(self.make_unpack(side.joins[-1]), columns, pack), PACKED_DDL
            )
        if not is_columnar_scan(leaf):
            return None
        names = tuple(field.name.removeprefix(f"{leaf.alias}.") for field in schema)
        if holds_records(leaf):
            return self.pack_records(leaf.source, schema, names, columns, pack)
        reader = source_connector(leaf.source).column_reader(names, self.arrow(schema), recovers=self.recovers)
        if reader is None:
            return None
        read = PackFiles(pack, reader, columns, is_latest_first(leaf.source.lowercase_options))
        return self.files[leaf.source.name].mapInArrow(read, PACKED_DDL)

    def pack_records(
        self, source: Source, schema: StructType, names: Sequence[str], columns: ColumnPipeline, pack: Pack
    ) -> DataFrame | None:
        """The records of a source as records of the exchange, decoded in workers; None: only Spark decodes them."""
        fields = zip(names, self.arrow(schema), strict=True)
        wanted = pa.schema([field.with_name(name) for name, field in fields if name != PARTITION])
        decoder = record_decoder(source, self.frames[source.name], wanted)
        if decoder is None:
            return None
        packing = RecordPacking(decoder, columns, pack, (*(f.name for f in schema),))
        policy, is_sampled = policy_for(source, "fail"), self.sample_rows == "some"
        return packing.apply(source, self.files[source.name], policy, with_example=is_sampled)

    def ticks(self) -> DataFrame:
        """The wall clock as a stream of watermarks, one a second."""
        ticks = self.spark.readStream.format("rate").option("rowsPerSecond", "1").load()
        return ticks.select(F.lit(NOW).alias("column"), F.unix_micros("timestamp").alias("value"))

    def forward_schema(self, join: JoinOutput) -> StructType:
        """The rows of a join as they go to the next one, with its watermarks, and late rows if they are kept."""
        passthrough = [StructField(WATERMARKS_COLUMN, StringType())]
        if self.late == "side_output":
            passthrough.append(StructField(LATE_ROW, BinaryType()))
        # What only travels along has NULL in the columns of a row.
        return StructType([*(StructField(field.name, field.dataType) for field in output_schema(join)), *passthrough])

    def make_unpack(self, join: JoinOutput) -> Unpack:
        """Build the step that unpacks those rows from the records of the join."""
        late: LateMode = "passed" if self.late == "side_output" else "dropped"
        return Unpack(self.arrow(self.forward_schema(join)), watermarks=True, late=late)

    def forward_rows(self, join: JoinOutput, joins: tuple[JoinOutput, ...]) -> InputFrame:
        """The rows of a join for the next one, with what travels along."""
        frame = complete_rows(join, join.records.mapInArrow(self.make_unpack(join), self.forward_schema(join)))
        rows = InputFrame(frame, {field.name: field.nullable for field in output_schema(join)}, joins)
        if not join.plan.post_filters:
            return rows
        passthrough = (name for name in (WATERMARKS_COLUMN, LATE_ROW) if name in frame.columns)
        is_passthrough = reduce(lambda a, b: a | b, (F.col(quote(name)).isNotNull() for name in passthrough))
        return rows.keep_where(all_true(join.plan.post_filters) | is_passthrough)

    def output_rows(self, join: JoinOutput, side_outputs: tuple[StructField, ...] = ()) -> DataFrame:
        """The rows of a join's records; those of side outputs are shown in columns of their own."""
        schema = output_schema(join)
        if side_outputs:
            schema = StructType([*(StructField(f.name, f.dataType) for f in schema), *side_outputs])
        names = [field.name for field in side_outputs]
        unpack = Unpack(self.arrow(schema), late="shown" if LATE_OUTPUT_COLUMN in names else "dropped")
        frame = complete_rows(join, join.records.mapInArrow(unpack, schema))
        if not join.plan.post_filters:
            return frame
        condition = all_true(join.plan.post_filters)
        return frame.where(reduce(lambda a, b: a | b, (F.col(name).isNotNull() for name in names), condition))

    def side_output_fields(self, plan: RelationPlan) -> tuple[StructField, ...]:
        """The side output columns of a result: late rows, unmatched rows, and repeated ones."""
        late = self.late_type(plan)
        fields = [] if late is None else [StructField(LATE_OUTPUT_COLUMN, late)]
        if isinstance(plan, JoinPlan):
            for name, port, wanted in zip(UNMATCHED_OUTPUT_COLUMNS, plan.ports, plan.has_side_outputs, strict=False):
                if wanted and isinstance(port.input, LeafPlan):
                    fields.append(StructField(name, self._row_type(port.input)))
            if isinstance(plan.analyzed, AnalyzedTop) and plan.operator.ports[0].unmatched:
                fields.append(StructField(DUPLICATES_OUTPUT_COLUMN, self._result_type(plan)))
        return tuple(fields)

    def late_type(self, plan: RelationPlan) -> StructType | None:
        """The type of a late row: its side, the watermark it missed, by how much, and the row under its alias."""
        if self.late == "counted":
            return None
        text = StringType()
        fields = [StructField("side", text), StructField("watermark", text), StructField("late_by", LongType())]
        rows = [StructField(leaf.alias, self._row_type(leaf)) for leaf in leaves_with_rows(plan)]
        return StructType([*fields, *rows])

    def _result_type(self, plan: JoinPlan) -> StructType:
        """The columns of the result of a stage, by the names that they have outside."""
        types = {f.name: f.dataType for f in self.compile_input(plan.ports[0].input).frame.schema}
        return StructType([StructField(name.partition(".")[2], types[name]) for name in plan.columns])

    def _row_type(self, leaf: LeafPlan) -> StructType:
        """The columns of a leaf, by their own names."""
        if not isinstance(leaf, ScanPlan):
            types = {f.name: f.dataType for f in self.compile_input(leaf).frame.schema}
            return StructType([StructField(c.removeprefix(f"{leaf.alias}."), types[c]) for c in late_columns(leaf)])
        frame = self.frames[leaf.parts[0].name if leaf.parts else leaf.source.name]
        types = {f.name.lower(): f.dataType for f in frame.schema}
        first = leaf.parts[0] if leaf.parts else leaf.source
        inner = {f.name: first.fields[i].name.lower() for i, f in enumerate(leaf.source.fields)}
        return StructType([StructField(column, types[inner[column]]) for column in leaf.columns])

    def arrow(self, schema: StructType) -> Any:
        """The Arrow schema in which Spark's workers receive rows of a schema."""
        return arrow_schema(schema, self.spark.conf.get("spark.sql.session.timeZone"))


def _shard_column(port: PortPlan) -> str | None:
    """The column that decides about the shard."""
    if port.route in ("one", "all"):
        return None
    return port.times[0] if port.route == "time" else SHARD if port.shard_by or port.route == "spread" else port.code


def _row_schema(prepared: DataFrame, side: InputFrame) -> StructType:
    """The schema of prepared rows: what cannot be NULL in a row is not nullable, for only rows that are kept go on."""
    fields = [StructField(f.name, f.dataType, side.nullable.get(f.name, f.nullable)) for f in prepared.schema]
    return StructType(fields)


def _inlet_schema(rows: StructType, carried_columns: tuple[ChainedColumn, ...]) -> StructType:
    """The schema in which rows of the join before arrive: its columns by other names, integers perhaps wider."""
    fields_by_name = {field.name: field for field in rows}
    fields: list[StructField] = []
    for carried_column in carried_columns:
        # What it does not show but hands on is the code of a key.
        field = fields_by_name.get(carried_column.column, StructField(carried_column.column, LongType()))
        type_ = (
            field.dataType
            if carried_column.type is None
            else ddl_field(carried_column.name, carried_column.type).dataType
        )
        fields.append(StructField(carried_column.name, type_, field.nullable))
    return StructType(fields)


def _with_key_code(stage: JoinStage, side: int | None) -> JoinStage:
    """The stage, whose rows also show the code of that side's keys, if the one behind it asks for that."""
    operator = stage.link.operator
    if side is None or not isinstance(operator, TwoSided):
        return stage
    return replace(stage, link=replace(stage.link, operator=operator.with_code(side)))


def _hash_columns(
    port: PortPlan, schema: StructType, names: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The columns of a port that are hashes, with their inputs; rows are found by them."""
    if port.route == "spread":
        # Equal rows go the same way: whether they come or go, and however their columns are ordered.
        ours = [f.name for f in schema if f.name in port.columns and f.name != WEIGHT and _is_hashable(f.dataType)]
        yield SHARD, tuple(sorted(ours, key=lambda column: names.get(column, column)))
    if port.hashed:
        yield str(port.code), port.hashed
    if port.shard_by:
        yield SHARD, port.shard_by


def _make_precombine(plan: JoinPlan, number: int, frame: DataFrame) -> Precombine | None:
    """The combiner of a port, if the operator counts equal rows and watermarks do not distinguish them."""
    # Late rows that only travel along may be equal, and each of them counts.
    if not plan.operator.can_precombine or {PART, PARTITION, LATE_ROW}.intersection(frame.columns):
        return None
    return Precombine(tuple(dict.fromkeys(lag.column for lag in plan.ports[number].lags)))


def _is_collated(schema: StructType, codes: Codes) -> bool:
    """Whether a hash is of text that is compared otherwise than by its bytes: only Spark knows how."""
    hashed = {column for _, columns in codes for column in columns}
    return any("collate" in field.dataType.simpleString() for field in schema if field.name in hashed)


def _type_name(type_: DataType) -> str:
    return normalise_type(type_.simpleString())


def _is_hashable(type_: DataType) -> bool:
    """Whether Spark can hash values of that type."""
    match type_:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return _is_hashable(type_.elementType)
        case StructType():
            return all(_is_hashable(field.dataType) for field in type_)
        case _:
            return True


def leaves_with_rows(plan: RelationPlan) -> tuple[LeafPlan, ...]:
    """The leaves of a plan whose rows can be late: sources, and views that do no more than compute from one."""
    leaves: list[LeafPlan] = []
    for leaf in leaf_plans(plan):
        is_inside = isinstance(leaf, ViewPlan) and (leaf.late or join_plans(leaf))
        leaves += leaves_with_rows(leaf.input) if isinstance(leaf, ViewPlan) and is_inside else (leaf,)
    return tuple(leaves)


def _with_plain_names(frame: DataFrame) -> DataFrame:
    """The frame with names that ``mapInArrow`` can look up."""
    return frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))


def _guard_by_keep(sql: str, name: str, filtered: bool) -> Column:
    return F.expr(f"IF({quote(KEEP)}, {sql}, NULL)" if filtered else sql).alias(name)


def _digest(plan: JoinPlan, schemas: tuple[StructType, ...], shards: tuple[int, ...]) -> str:
    """A digest that a state must match to be continued: the same stage, on columns of the same types."""
    types = {f.name: f.dataType.simpleString() for schema in schemas for f in schema}
    return stage_digest(plan, types, len(shards))


def observe_metrics(records: DataFrame, name: str) -> DataFrame:
    """The records of an operator, with an observation that collects the metrics of its joins in every batch.

    As text, not as numbers that Spark sums up: Spark would generate and compile code for these in every task.
    """
    texts = F.collect_list(F.when(F.col("kind") == METRICS, F.col("report")))
    return records.observe(f"{JOIN_PREFIX}{name}", texts.alias(REPORTS))
