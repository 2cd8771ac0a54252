"""A physical plan as a DataFrame: scan, prepare, pack, meet, unpack, project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

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

from watersmeet.formats import source_format
from watersmeet.formats.feed import CHANGE
from watersmeet.joins.core.chain import Inlet, Link
from watersmeet.joins.core.changes import COPIES, WEIGHT
from watersmeet.joins.core.operator import LOADED, NOW
from watersmeet.joins.core.routing import null_key_columns
from watersmeet.joins.core.two_sided import TwoSided
from watersmeet.observe.progress import JOIN
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
from watersmeet.physical.columnar import is_file_of_columns, passage_of, sources_of_columns
from watersmeet.physical.identity import digest, stage_digest
from watersmeet.physical.leaves import late_columns
from watersmeet.physical.nodes import LeafPlan
from watersmeet.physical.together import Carried, carried, code_side, way_inside
from watersmeet.plan.expressions import quote
from watersmeet.spark.compile.frames import (
    APART,
    Fed,
    all_true,
    changes_shown,
    exploded,
    is_row,
    looked_up,
    scanned,
    united,
    viewed,
)
from watersmeet.spark.exchange.alike import Alike
from watersmeet.spark.exchange.columns import KEEP, Codes, Columns
from watersmeet.spark.exchange.leaving import MET_DDL
from watersmeet.spark.exchange.observed import observed
from watersmeet.spark.exchange.packing import (
    LATE_ROW,
    LATE_SHOWN,
    MARKS_COLUMN,
    ORDER,
    PACKED_DDL,
    PART,
    PARTITION,
    SHARD,
    UNMATCHED_SHOWN,
    Late,
    Pack,
    PackMarks,
    Repack,
    Unpack,
)
from watersmeet.spark.exchange.rows import Meeting, Met, completed, ddl_field, emitted_schema, port_structs
from watersmeet.spark.exchange.shards import labels
from watersmeet.spark.exchange.stateful import BYTES_PER_STEP, RowsTold, ShardProcessor, Shards, Stage
from watersmeet.spark.private import unknown
from watersmeet.spark.private.told import arrow_schema
from watersmeet.spark.sources.columnar import PackFiles
from watersmeet.type_names import normalised


@dataclass(frozen=True)
class Compiled:
    """A query on Spark: its result, and its joins, innermost first, whose records hold the late rows as well."""

    result: DataFrame
    joins: tuple[Met, ...]


@dataclass(frozen=True)
class Gathered:
    """What meets in one operator: its stages, innermost first, and their inputs, packed.

    ``below``: the joins whose rows come to it through the exchange.
    """

    stages: tuple[Stage, ...] = ()
    meetings: tuple[Meeting, ...] = ()
    packed: tuple[DataFrame, ...] = ()
    below: tuple[Met, ...] = ()
    is_streaming: bool = False

    @property
    def ports(self) -> int:
        """How many ports the exchange has for it."""
        return sum(len(stage.ports) for stage in self.stages)


Clock = Literal["ticks", "marks"]
"""Where the wall clock comes from: from a source of ticks, or from marks, as in a case."""


@dataclass(frozen=True)
class Compiler:
    """Builds the frames of a plan.

    ``frames`` holds the DataFrame of each source by its name; ``marks`` rows ``(column, value)`` that move watermarks
    from outside; ``late`` says whether the result shows late rows, in the column ``_late``; ``files`` the paths of
    sources that workers may read themselves; ``token`` the name by which a start finds the query again;
    ``told`` whether some rows are told of with the numbers of a batch; ``recovers`` whether the query is started again
    with Spark's reader if a worker meets a file that only Spark can read.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    shards: int
    marks: DataFrame | None = None
    late: LateRows = "counted"
    clock: Clock = "ticks"
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    bytes_per_step: int = BYTES_PER_STEP
    token: str = ""
    told: RowsTold = "none"
    recovers: bool = False

    def query(self, plan: QueryPlan) -> Compiled:
        """The frames of a whole query."""
        compiler = replace(self, files={n: f for n, f in self.files.items() if n in sources_of_columns(plan.relation)})
        fed = compiler.rows(plan.relation)
        return Compiled(compiler.projected(plan, fed.frame), fed.joins)

    def projected(self, plan: QueryPlan, frame: DataFrame) -> DataFrame:
        """What of WHERE is left, and the columns of the result. Rows that are shown apart are no rows of the result."""
        apart = [name for name in APART if name in frame.columns]
        row = is_row(frame)
        if plan.where:
            holds = F.expr(" AND ".join(part.sql() for part in plan.where))
            frame = frame.where(holds | ~row if apart else holds)
        outputs = [F.expr(output.expr.sql()).alias(output.name) for output in plan.outputs]
        ports = [F.when(row, port).alias(name) for name, port in port_structs(plan)]
        weight = [F.col(quote(WEIGHT))] if plan.is_changelog else []
        result = frame.select(*outputs, *ports, *weight, *(F.col(name) for name in apart))
        return changes_shown(result) if plan.is_changelog else result

    def rows(self, plan: RelationPlan, met: Met | None = None) -> Fed:
        """The frame of a relation that feeds no join: its rows, and what is shown apart.

        ``met``: records of its last join that there are already.
        """
        match plan:
            case ScanPlan():
                return scanned(self.frames, plan, feeds=False)
            case ViewPlan():
                return viewed(plan, self.rows(plan.input, met), self.spark)
            case UnionPlan():
                return united(plan, [self.rows(one) for one in plan.inputs])
            case StaticJoinPlan():
                return looked_up(plan, self.rows(plan.stream, met), self.rows(plan.table).frame)
            case LateralPlan():
                return exploded(plan, self.rows(plan.input, met))
            case JoinPlan():
                joins = self.meet(plan) if met is None else (met,)
                frame = self.joined(joins[-1], self.apart(plan))
                return Fed(frame, {f.name: f.nullable for f in frame.schema}, joins, feeds=False)

    def feeding(self, plan: RelationPlan) -> Fed:
        """The frame of a relation as it feeds a join, with what only travels along."""
        match plan:
            case ScanPlan():
                return scanned(self.frames, plan, feeds=True)
            case ViewPlan():
                return viewed(plan, self.feeding(plan.input), self.spark)
            case UnionPlan():
                return united(plan, [self.feeding(one) for one in plan.inputs])
            case StaticJoinPlan():
                return looked_up(plan, self.feeding(plan.stream), self.rows(plan.table).frame)
            case LateralPlan():
                return exploded(plan, self.feeding(plan.input))
            case JoinPlan():
                joins = self.meet(plan)
                return self.passed_on(joins[-1], joins)

    def prepared(self, port: PortPlan, frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
        """The columns that go through the exchange, whose canonical ``names`` are known.

        For rows that are not kept nothing is computed but their times.
        """
        kept = KEEP in frame.columns
        times = {lag.column for lag in port.lags}
        columns = [F.col(quote(c)) if c in times else _if_kept(quote(c), c, kept) for c in port.columns]
        columns += [_if_kept(c.sql(), c.name, kept) for c in port.computed]
        if port.dead is not None:
            alive = " AND ".join(p.sql() for p in port.predicates)
            columns.append(_if_kept(f"NOT coalesce({alive}, false)", port.dead, kept))
        columns += [
            F.col(quote(name))
            for name in (KEEP, MARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER)
            if name in frame.columns
        ]
        frame = frame.select(*columns)
        for name, hashed in _codes(port, frame.schema, names):
            columns_of = [F.col(quote(column)) for column in hashed]
            frame = frame.withColumn(name, F.xxhash64(*columns_of) if hashed else F.lit(0).cast("bigint"))
        return frame

    def meet(self, plan: JoinPlan) -> tuple[Met, ...]:
        """Pack the inputs, shuffle them by shard and let the operator run: the joins below, and those in it."""
        shards = labels(1 if plan.ports[0].route == "one" else self.shards)
        gathered = self.gathered(plan, shards)
        to_all = frozenset(n for n, port in enumerate(plan.ports) if port.route == "all")
        # Of a batch of its own nobody is told anything.
        stages = gathered.stages if gathered.is_streaming else tuple(replace(s, told_as="") for s in gathered.stages)
        processor = ShardProcessor(stages, Shards(shards[0], to_all, len(shards)), self.bytes_per_step, self.told)
        together = reduce(DataFrame.unionAll, gathered.packed).groupBy("shard")
        if not hasattr(together, "transformWithStateInPandas"):
            raise unknown("`transformWithStateInPandas` in Spark Connect", "no join can run there", "4.1 to 4.3")
        records = together.transformWithStateInPandas(processor, MET_DDL, "Append", "None")
        if gathered.is_streaming:
            records = observed(records, self.observed_as(plan))
        return (*gathered.below, *(Met(one.plan, one.inputs, records) for one in gathered.meetings))

    def gathered(self, plan: JoinPlan, shards: tuple[int, ...]) -> Gathered:
        """What meets in an operator: a join, after the one that feeds it and runs there too, if there is one."""
        way, inside = way_inside(plan), next((n for n, port in enumerate(plan.ports) if port.inside), None)
        before = Gathered() if way is None else self.gathered(way.join, shards)
        names = dict(plan.operator.names)
        fed = {n: self.feeding(port.input) for n, port in enumerate(plan.ports) if n != inside}
        frames = {n: self.prepared(plan.ports[n], one.frame, names) for n, one in fed.items()}
        ports = {before.ports + place: n for place, n in enumerate(fed)}
        own = {n: self.packed(number, plan, n, fed[n], frames[n], shards) for number, n in ports.items()}
        # Spark numbers operators and sources in the order of the ports.
        packed = [one for n in range(len(plan.ports)) for one in (before.packed if n == inside else (own[n],))]
        streaming = before.is_streaming or any(frame.isStreaming for frame in frames.values())
        packed += self.moved(plan, shards, min(ports), streaming=streaming)
        schemas = {n: _as_rows(frame, fed[n]) for n, frame in frames.items()}
        stages, link = before.stages, Link(plan.operator.for_shards(len(shards)))
        if way is not None and inside is not None:
            along = carried(plan, inside, way)
            schemas[inside] = _handed_on(emitted_schema(before.meetings[-1]), along)
            inlet = Inlet(inside, self.arrow(schemas[inside]), tuple(one.column for one in along), way.marks)
            link = replace(link, inlet=inlet)
            stages = (*stages[:-1], _showing(stages[-1], code_side(plan, inside, way)))
        inputs = tuple(schemas[n] for n in range(len(plan.ports)))
        times = tuple(dict.fromkeys(time for port in plan.ports for time in port.times))
        told_as = f"{JOIN}{self.observed_as(plan)}"
        stage = Stage(
            link, join_name(plan), _digest(plan, inputs, shards), ports, told_as, times, () if streaming else times
        )
        below = (*before.below, *(join for one in fed.values() for join in one.joins))
        meetings = (*before.meetings, Meeting(plan, inputs))
        return Gathered((*stages, stage), meetings, tuple(packed), below, streaming)

    def observed_as(self, plan: JoinPlan) -> str:
        """The name under which its numbers are told: what people call it, whose it is, and which one it is."""
        return f"{join_name(plan)}#{self.token}.{digest(plan.identity)[:8]}"

    def moved(self, plan: JoinPlan, shards: tuple[int, ...], number: int, *, streaming: bool) -> list[DataFrame]:
        """What moves the marks of a join besides its rows: marks from outside, and ticks of the clock; at that port."""
        names = {lag.source: lag.column for port in plan.ports for lag in port.lags}
        own = PackMarks(number, shards, {**names, NOW: NOW, LOADED: LOADED})
        moved: list[DataFrame] = []
        if self.marks is not None:
            moved.append(self.marks.mapInArrow(own, PACKED_DDL))
        if streaming and plan.operator.needs_clock and self.clock == "ticks":
            moved.append(self.ticks().mapInArrow(own, PACKED_DDL))
        if not streaming and plan.ports[0].route == "one":
            # Frames without rows have no tasks, and nobody else would visit the group of all.
            visit = self.spark.range(0, 1, 1, 1).selectExpr("'' AS column", "id AS value")
            moved.append(visit.mapInArrow(own, PACKED_DDL))
        return moved

    def packed(
        self,
        number: int,
        plan: JoinPlan,
        place: int,
        fed: Fed,
        frame: DataFrame,
        shards: tuple[int, ...],
    ) -> DataFrame:
        """The rows of a port as records of the exchange; where nothing needs Spark before, they never become rows."""
        port, alike = plan.ports[place], _alike(plan, place, frame)
        keep = KEEP if KEEP in frame.columns else None
        pack = Pack(
            number, port.route, _by(port), shards, port.lags, keep, tuple(frame.columns), port.position,
            null_keys=null_key_columns(plan.operator.sides[place], port.columns, plan.operator.canonical),
        )  # fmt: skip
        codes = tuple(_codes(port, frame.schema, dict(plan.operator.names)))
        leaf = None if _is_collated(frame.schema, codes) else self.leaf_of(port, fed)
        passage = None if leaf is None else passage_of(port, {f.name: _type_name(f.dataType) for f in leaf}.get)
        if leaf is not None and passage is not None:
            columns = Columns(passage.steps, self.arrow(frame.schema), codes, alike)
            if columns.can_take(self.arrow(leaf)):
                own = pack if alike is None else replace(pack, names=(*pack.names, COPIES))
                packed = self.packed_as_columns(passage.leaf, leaf, columns, own, fed)
                if packed is not None:
                    return packed
        return _plain(frame).mapInArrow(replace(pack, alike=alike), PACKED_DDL)

    def leaf_of(self, port: PortPlan, fed: Fed) -> StructType | None:
        """What workers get of the leaf of a port, if that are columns: those of files, or of the records of a join."""
        relation = port.input
        while isinstance(relation, ViewPlan | LateralPlan):
            relation = relation.input
        if isinstance(relation, JoinPlan):
            return self.travelling(fed.joins[-1])
        if not isinstance(relation, ScanPlan) or relation.source.name not in self.files:
            return None
        fields = {field.name: field for field in self.frames[relation.source.name].schema}
        told = [fields[CHANGE]] if relation.changes is not None and CHANGE in fields else []
        named = [
            StructField(f"{relation.alias}.{name}", fields[name].dataType, fields[name].nullable)
            for name in relation.columns
        ]
        return StructType([*named, *told])

    def packed_as_columns(
        self, leaf: ScanPlan | JoinPlan, schema: StructType, columns: Columns, pack: Pack, fed: Fed
    ) -> DataFrame | None:
        """The rows of a leaf as records of the exchange, gone over columns; None: its files need Spark."""
        if isinstance(leaf, JoinPlan):
            return fed.joins[-1].records.mapInArrow(Repack(self.unpack(fed.joins[-1]), columns, pack), PACKED_DDL)
        if not is_file_of_columns(leaf):
            return None
        names = tuple(field.name.removeprefix(f"{leaf.alias}.") for field in schema)
        reader = source_format(leaf.source).column_reader(names, self.arrow(schema), recovers=self.recovers)
        if reader is None:
            return None
        return self.files[leaf.source.name].mapInArrow(PackFiles(pack, reader, columns), PACKED_DDL)

    def ticks(self) -> DataFrame:
        """The wall clock as a stream of marks, one a second."""
        ticks = self.spark.readStream.format("rate").option("rowsPerSecond", "1").load()
        return ticks.select(F.lit(NOW).alias("column"), F.unix_micros("timestamp").alias("value"))

    def travelling(self, met: Met) -> StructType:
        """The rows of a join as they go to the next one, with its marks, and late rows if they are kept."""
        along = [StructField(MARKS_COLUMN, StringType())]
        if self.late == "kept":
            along.append(StructField(LATE_ROW, BinaryType()))
        # What only travels along has NULL in the columns of a row.
        return StructType([*(StructField(field.name, field.dataType) for field in emitted_schema(met)), *along])

    def unpack(self, met: Met) -> Unpack:
        """What gets those rows out of the records of the join."""
        late: Late = "passed" if self.late == "kept" else "dropped"
        return Unpack(self.arrow(self.travelling(met)), marks=True, late=late)

    def passed_on(self, met: Met, joins: tuple[Met, ...]) -> Fed:
        """The rows of a join for the next one, with what travels along."""
        frame = completed(met, met.records.mapInArrow(self.unpack(met), self.travelling(met)))
        fed = Fed(frame, {field.name: field.nullable for field in emitted_schema(met)}, joins)
        if not met.plan.after:
            return fed
        along = (name for name in (MARKS_COLUMN, LATE_ROW) if name in frame.columns)
        travels = reduce(lambda a, b: a | b, (F.col(quote(name)).isNotNull() for name in along))
        return fed.kept(all_true(met.plan.after) | travels)

    def joined(self, met: Met, apart: tuple[StructField, ...] = ()) -> DataFrame:
        """The rows of a join's records; those that stand ``apart`` are shown in columns of their own."""
        schema = emitted_schema(met)
        if apart:
            schema = StructType([*(StructField(f.name, f.dataType) for f in schema), *apart])
        names = [field.name for field in apart]
        unpack = Unpack(self.arrow(schema), late="shown" if LATE_SHOWN in names else "dropped")
        frame = completed(met, met.records.mapInArrow(unpack, schema))
        if not met.plan.after:
            return frame
        kept = all_true(met.plan.after)
        return frame.where(reduce(lambda a, b: a | b, (F.col(name).isNotNull() for name in names), kept))

    def apart(self, plan: RelationPlan) -> tuple[StructField, ...]:
        """The columns in which a result shows what is no row of it: late rows, and rows that died alone."""
        late = self.late_type(plan)
        fields = [] if late is None else [StructField(LATE_SHOWN, late)]
        if isinstance(plan, JoinPlan):
            for name, port, wanted in zip(UNMATCHED_SHOWN, plan.ports, plan.apart, strict=False):
                if wanted and isinstance(port.input, LeafPlan):
                    fields.append(StructField(name, self._row_type(port.input)))
        return tuple(fields)

    def late_type(self, plan: RelationPlan) -> StructType | None:
        """How a result shows a late row: its side, the mark it missed, by how much, and the row under its alias."""
        if self.late == "counted":
            return None
        text = StringType()
        told = [StructField("side", text), StructField("watermark", text), StructField("late_by", LongType())]
        rows = [StructField(leaf.alias, self._row_type(leaf)) for leaf in fed_by_rows(plan)]
        return StructType([*told, *rows])

    def _row_type(self, leaf: LeafPlan) -> StructType:
        """The columns of a leaf, by their own names."""
        if not isinstance(leaf, ScanPlan):
            types = {f.name: f.dataType for f in self.feeding(leaf).frame.schema}
            return StructType([StructField(c.removeprefix(f"{leaf.alias}."), types[c]) for c in late_columns(leaf)])
        frame = self.frames[leaf.parts[0].name if leaf.parts else leaf.source.name]
        types = {f.name.lower(): f.dataType for f in frame.schema}
        first = leaf.parts[0] if leaf.parts else leaf.source
        inner = {f.name: first.fields[i].name.lower() for i, f in enumerate(leaf.source.fields)}
        return StructType([StructField(column, types[inner[column]]) for column in leaf.columns])

    def arrow(self, schema: StructType) -> Any:
        """The Arrow schema in which Spark's workers receive rows of a schema."""
        return arrow_schema(schema, self.spark.conf.get("spark.sql.session.timeZone"))


def _by(port: PortPlan) -> str | None:
    """The column that decides about the shard."""
    if port.route in ("one", "all"):
        return None
    return port.times[0] if port.route == "time" else SHARD if port.shard_by or port.route == "spread" else port.code


def _as_rows(prepared: DataFrame, fed: Fed) -> StructType:
    """The schema of prepared rows: what cannot be NULL in a row is not nullable, for only rows that are kept go on."""
    fields = [StructField(f.name, f.dataType, fed.nullable.get(f.name, f.nullable)) for f in prepared.schema]
    return StructType(fields)


def _handed_on(rows: StructType, along: tuple[Carried, ...]) -> StructType:
    """The schema in which rows of the join before arrive: its columns by other names, integers perhaps wider."""
    known = {field.name: field for field in rows}
    fields: list[StructField] = []
    for one in along:
        # What it does not show but hands on is the code of a key.
        field = known.get(one.column, StructField(one.column, LongType()))
        type_ = field.dataType if one.type is None else ddl_field(one.name, one.type).dataType
        fields.append(StructField(one.name, type_, field.nullable))
    return StructType(fields)


def _showing(stage: Stage, side: int | None) -> Stage:
    """The stage, whose rows also show the code of that side's keys, if the one behind it asks for that."""
    operator = stage.link.operator
    if side is None or not isinstance(operator, TwoSided):
        return stage
    return replace(stage, link=replace(stage.link, operator=operator.with_code(side)))


def _codes(port: PortPlan, schema: StructType, names: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The columns of a port that are hashes, and of which: whoever computes them, these are found by."""
    if port.route == "spread":
        # Equal rows go the same way: whether they come or go, and however their columns are ordered.
        ours = [f.name for f in schema if f.name in port.columns and f.name != WEIGHT and _is_hashable(f.dataType)]
        yield SHARD, tuple(sorted(ours, key=lambda column: names.get(column, column)))
    if port.hashed:
        yield str(port.code), port.hashed
    if port.shard_by:
        yield SHARD, port.shard_by


def _alike(plan: JoinPlan, number: int, frame: DataFrame) -> Alike | None:
    """What puts rows of a port together, if the operator takes one for others and marks do not tell them apart."""
    # Late rows that only travel along may be equal, and each of them counts.
    if not plan.operator.takes_alike or {PART, PARTITION, LATE_ROW}.intersection(frame.columns):
        return None
    return Alike(tuple(dict.fromkeys(lag.column for lag in plan.ports[number].lags)))


def _is_collated(schema: StructType, codes: Codes) -> bool:
    """Whether a hash is of text that is compared otherwise than by its bytes: only Spark knows how."""
    hashed = {column for _, columns in codes for column in columns}
    return any("collate" in field.dataType.simpleString() for field in schema if field.name in hashed)


def _type_name(type_: DataType) -> str:
    return normalised(type_.simpleString())


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


def fed_by_rows(plan: RelationPlan) -> tuple[LeafPlan, ...]:
    """The leaves of a plan whose rows can be late: sources, and views that do no more than compute from one."""
    found: list[LeafPlan] = []
    for leaf in leaf_plans(plan):
        inside = isinstance(leaf, ViewPlan) and join_plans(leaf)
        found += fed_by_rows(leaf.input) if isinstance(leaf, ViewPlan) and inside else (leaf,)
    return tuple(found)


def _plain(frame: DataFrame) -> DataFrame:
    """The frame with names that ``mapInArrow`` can look up."""
    return frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))


def _if_kept(sql: str, name: str, filtered: bool) -> Column:
    return F.expr(f"IF({quote(KEEP)}, {sql}, NULL)" if filtered else sql).alias(name)


def _digest(plan: JoinPlan, schemas: tuple[StructType, ...], shards: tuple[int, ...]) -> str:
    """What a state must have been written by, to be continued: the same stage, on columns of the same types."""
    types = {f.name: f.dataType.simpleString() for schema in schemas for f in schema}
    return stage_digest(plan, types, len(shards))
