"""A physical plan as a DataFrame: scan, prepare, pack, meet, unpack, project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from watersmeet.joins.operator import NOW
from watersmeet.joins.window import WindowJoin
from watersmeet.observe.progress import JOIN, port_names
from watersmeet.physical import JoinPlan, LateRows, PortPlan, QueryPlan, RelationPlan, ScanPlan, scan_plans
from watersmeet.physical.columnar import is_columnar
from watersmeet.plan.analyzed import AnalyzedWindowJoin
from watersmeet.plan.expressions import Expr, quote
from watersmeet.spark.columnar import PackFiles
from watersmeet.spark.exchange import (
    LATE_ROW,
    LATE_SHOWN,
    MARKS_COLUMN,
    PACKED_DDL,
    PART,
    SHARD,
    UNMATCHED_SHOWN,
    Late,
    Pack,
    PackMarks,
    Unpack,
)
from watersmeet.spark.rows import Met, completed, emitted_schema, port_structs
from watersmeet.spark.shards import labels
from watersmeet.spark.stateful import BYTES_PER_STEP, MET_DDL, NUMBERS, ShardProcessor, Shards

KEEP = "#keep"
APART = (LATE_SHOWN, *UNMATCHED_SHOWN)
"""The columns in which a result shows what is no row of it."""


@dataclass(frozen=True)
class Compiled:
    """A query on Spark: its result, and its joins, innermost first, whose records hold the late rows as well."""

    result: DataFrame
    joins: tuple[Met, ...]


Clock = Literal["ticks", "marks"]
"""Where the wall clock comes from: from a source of ticks, or from marks, as in a case."""


@dataclass(frozen=True)
class Compiler:
    """Builds the frames of a plan.

    ``frames`` holds the DataFrame of each source by its name; ``marks`` rows ``(column, value)`` that move watermarks
    from outside; ``late`` says whether the result shows late rows, in the column ``_late``; ``files`` the paths of
    sources that workers may read themselves.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    shards: int
    marks: DataFrame | None = None
    late: LateRows = "counted"
    clock: Clock = "ticks"
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    bytes_per_step: int = BYTES_PER_STEP

    def query(self, plan: QueryPlan) -> Compiled:
        """The frames of a whole query."""
        frame, joins = self.relation(plan.relation)
        if joins:
            frame = self.joined(joins[-1], self.apart(plan.relation))
        return Compiled(self.projected(plan, frame), joins)

    def projected(self, plan: QueryPlan, frame: DataFrame) -> DataFrame:
        """What of WHERE is left, and the columns of the result. Rows that are shown apart are no rows of the result."""
        apart = [name for name in APART if name in frame.columns]
        row = is_row(frame)
        for part in plan.where:
            holds = F.expr(part.sql())
            frame = frame.where(holds | ~row if apart else holds)
        outputs = [F.expr(output.expr.sql()).alias(output.name) for output in plan.outputs]
        ports = [F.when(row, port).alias(name) for name, port in port_structs(plan)]
        return frame.select(*outputs, *ports, *(F.col(name) for name in apart))

    def relation(self, plan: RelationPlan) -> tuple[DataFrame, tuple[Met, ...]]:
        """The frame of a relation as it feeds a join, with what only travels along, and the joins in it."""
        if isinstance(plan, ScanPlan):
            return self.scan(plan), ()
        below = [self.relation(port.input) for port in plan.ports]
        met = self.meet(plan, [frame for frame, _ in below])
        return self.feeding(met), (*(join for _, joins in below for join in joins), met)

    def scan(self, plan: ScanPlan) -> DataFrame:
        """A source's columns as ``alias.column``; with filters, also whether they keep the row.

        Rows that a filter drops go as far as the pack: their event times move the watermark like any other's.
        """
        names = [f"{plan.alias}.{column}" for column in plan.columns]
        if plan.parts:
            positions = [[f.name for f in plan.source.fields].index(column) for column in plan.columns]
            parts = [
                self.frames[part.name].select(*(F.col(quote(part.fields[i].name)) for i in positions), F.lit(n))
                for n, part in enumerate(plan.parts)
            ]
            frame = reduce(DataFrame.unionAll, parts).toDF(*names, PART)
        else:
            frame = self.frames[plan.source.name].select(*(F.col(quote(c)) for c in plan.columns)).toDF(*names)
        return frame.withColumn(KEEP, _all_true(plan.filters)) if plan.filters else frame

    def prepared(self, port: PortPlan, frame: DataFrame) -> DataFrame:
        """The columns that go through the exchange. For rows that are not kept nothing is computed but their times."""
        kept = KEEP in frame.columns
        times = {lag.column for lag in port.lags}
        columns = [F.col(quote(c)) if c in times else _if_kept(quote(c), c, kept) for c in port.columns]
        columns += [_if_kept(c.sql(), c.name, kept) for c in port.computed]
        if port.dead is not None:
            alive = " AND ".join(p.sql() for p in port.predicates)
            columns.append(_if_kept(f"NOT coalesce({alive}, false)", port.dead, kept))
        columns += [F.col(quote(name)) for name in (KEEP, MARKS_COLUMN, LATE_ROW, PART) if name in frame.columns]
        frame = frame.select(*columns)
        if port.hashed:
            frame = frame.withColumn(str(port.code), F.xxhash64(*(F.col(quote(k)) for k in port.hashed)))
        if port.shard_by:
            frame = frame.withColumn(SHARD, F.xxhash64(*(F.col(quote(k)) for k in port.shard_by)))
        return frame

    def meet(self, plan: JoinPlan, inputs: list[DataFrame]) -> Met:
        """Pack the inputs, shuffle them by shard and let the operator run."""
        shards = labels(1 if plan.ports[0].route == "one" else self.shards)
        frames = [self.prepared(port, frame) for port, frame in zip(plan.ports, inputs, strict=True)]
        packed = [self.packed(n, port, frames[n], shards) for n, port in enumerate(plan.ports)]
        sources = tuple(dict.fromkeys(lag.column for port in plan.ports for lag in port.lags))
        moved = PackMarks(0, shards, frozenset({*sources, NOW}))
        streaming = any(frame.isStreaming for frame in frames)
        if self.marks is not None:
            packed.append(self.marks.mapInArrow(moved, PACKED_DDL))
        if streaming and plan.operator.needs_clock and self.clock == "ticks":
            packed.append(self.ticks().mapInArrow(moved, PACKED_DDL))
        schemas = tuple(_as_before(*both) for both in zip(frames, inputs, strict=True))
        to_all = frozenset(n for n, port in enumerate(plan.ports) if port.route == "all")
        processor = ShardProcessor(
            plan.operator.for_shards(len(shards)), join_name(plan), _fingerprint(plan, schemas, shards),
            Shards(shards[0], to_all),
            () if streaming else tuple(time for port in plan.ports for time in port.times), self.bytes_per_step,
        )  # fmt: skip
        together = reduce(DataFrame.unionAll, packed).groupBy("shard")
        records = together.transformWithStateInPandas(processor, MET_DDL, "Append", "None")
        return Met(plan, _observed(records, plan) if streaming else records, schemas)

    def packed(self, number: int, port: PortPlan, frame: DataFrame, shards: tuple[int, ...]) -> DataFrame:
        """The rows of a port as records of the exchange; where nothing needs Spark before, from the files at once."""
        keep = KEEP if KEEP in frame.columns else None
        pack = Pack(number, port.route, _by(port), shards, port.lags, keep, tuple(frame.columns), port.position)
        if isinstance(port.input, ScanPlan) and port.input.source.name in self.files and is_columnar(port):
            columns = tuple(name.removeprefix(f"{port.input.alias}.") for name in port.columns)
            return self.files[port.input.source.name].mapInArrow(
                PackFiles(pack, columns, self.arrow(frame.schema)), PACKED_DDL
            )
        return _plain(frame).mapInArrow(pack, PACKED_DDL)

    def ticks(self) -> DataFrame:
        """The wall clock as a stream of marks, one a second."""
        ticks = self.spark.readStream.format("rate").option("rowsPerSecond", "1").load()
        return ticks.select(F.lit(NOW).alias("column"), F.unix_micros("timestamp").alias("value"))

    def feeding(self, met: Met) -> DataFrame:
        """The rows of a join for the next one, with its marks, and late rows if they are kept, travelling along."""
        along = [StructField(MARKS_COLUMN, StringType())]
        if self.late == "kept":
            along.append(StructField(LATE_ROW, BinaryType()))
        # What only travels along has NULL in the columns of a row.
        fields = [StructField(field.name, field.dataType) for field in emitted_schema(met)]
        schema = StructType([*fields, *along])
        late: Late = "passed" if self.late == "kept" else "dropped"
        unpacked = met.records.mapInArrow(Unpack(self.arrow(schema), marks=True, late=late), schema)
        frame = completed(met, unpacked)
        if not met.plan.after:
            return frame
        travels = reduce(lambda a, b: a | b, (F.col(quote(field.name)).isNotNull() for field in along))
        return frame.withColumn(KEEP, _all_true(met.plan.after) | travels)

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
        kept = _all_true(met.plan.after)
        return frame.where(reduce(lambda a, b: a | b, (F.col(name).isNotNull() for name in names), kept))

    def apart(self, plan: RelationPlan) -> tuple[StructField, ...]:
        """The columns in which a result shows what is no row of it: late rows, and rows that died alone."""
        late = self.late_type(plan)
        fields = [] if late is None else [StructField(LATE_SHOWN, late)]
        if isinstance(plan, JoinPlan) and isinstance(plan.analyzed, AnalyzedWindowJoin):
            for name, port, wanted in zip(UNMATCHED_SHOWN, plan.ports, plan.analyzed.unmatched, strict=True):
                if wanted and isinstance(port.input, ScanPlan):
                    fields.append(StructField(name, self._row_type(port.input)))
        return tuple(fields)

    def late_type(self, plan: RelationPlan) -> StructType | None:
        """How a result shows a late row: its side, the mark it missed, by how much, and the row under its alias."""
        if self.late == "counted":
            return None
        text = StringType()
        told = [StructField("side", text), StructField("watermark", text), StructField("late_by", LongType())]
        rows = [StructField(scan.alias, self._row_type(scan)) for scan in scan_plans(plan)]
        return StructType([*told, *rows])

    def _row_type(self, scan: ScanPlan) -> StructType:
        frame = self.frames[scan.parts[0].name if scan.parts else scan.source.name]
        types = {f.name.lower(): f.dataType for f in frame.schema}
        first = scan.parts[0] if scan.parts else scan.source
        inner = {f.name: first.fields[i].name.lower() for i, f in enumerate(scan.source.fields)}
        return StructType([StructField(column, types[inner[column]]) for column in scan.columns])

    def arrow(self, schema: StructType) -> Any:
        """The Arrow schema in which Spark's workers receive rows of a schema."""
        return to_arrow_schema(schema, timezone=self.spark.conf.get("spark.sql.session.timeZone"))


def is_row(frame: DataFrame) -> Column:
    """Whether a row of a result is one, and not something that is shown apart."""
    apart = (F.col(name).isNull() for name in APART if name in frame.columns)
    return reduce(lambda a, b: a & b, apart, F.lit(True))


def _by(port: PortPlan) -> str | None:
    """The column that decides about the shard."""
    if port.route in ("one", "all"):
        return None
    return port.times[0] if port.route == "time" else SHARD if port.shard_by else port.code


def _as_before(prepared: DataFrame, frame: DataFrame) -> StructType:
    """The schema of prepared rows: what was not nullable before still is not, for only rows that are kept go on."""
    before = {f.name: f.nullable for f in frame.schema}
    fields = [StructField(f.name, f.dataType, before.get(f.name, f.nullable)) for f in prepared.schema]
    return StructType(fields)


def _plain(frame: DataFrame) -> DataFrame:
    """The frame with names that ``mapInArrow`` can look up."""
    return frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))


def _all_true(parts: tuple[Expr, ...]) -> Column:
    return reduce(lambda a, b: a & b, (F.coalesce(F.expr(p.sql()), F.lit(False)) for p in parts), F.lit(True))


def _if_kept(sql: str, name: str, filtered: bool) -> Column:
    return F.expr(f"IF({quote(KEEP)}, {sql}, NULL)" if filtered else sql).alias(name)


def _fingerprint(plan: JoinPlan, schemas: tuple[StructType, ...], shards: tuple[int, ...]) -> str:
    """What a state must have been written by, to be continued: the same operator, columns and shards."""
    identity = plan.operator.identity
    types = [(f.name, f.dataType.simpleString()) for schema in schemas for f in schema if repr(f.name) in identity]
    computed = [(c.name, c.sql()) for port in plan.ports for c in port.computed]
    predicates = [predicate.sql() for port in plan.ports for predicate in port.predicates]
    routes = [(port.route, port.shard_by) for port in plan.ports]
    return hashlib.sha256(repr((identity, types, computed, predicates, routes, shards)).encode()).hexdigest()


def _observed(met: DataFrame, plan: JoinPlan) -> DataFrame:
    """The records with their numbers put together per batch, for the progress of the query."""
    numbers = [F.sum(name).alias(name) for name in ("matched", "written")]
    for name in NUMBERS:
        for port, side in enumerate(port_names(len(plan.ports))):
            fold = F.max if name == "partitions" and not is_partitioned(plan, port) else F.sum
            numbers.append(fold(F.get(name, F.lit(port))).alias(f"{name}_{side}"))
    return met.observe(f"{JOIN}{join_name(plan)}", *numbers, F.min("watermarks").alias("watermarks"))


def is_partitioned(plan: JoinPlan, port: int) -> bool:
    """Whether the shards have partitions of their own; else all have a share in one."""
    operator = plan.operator
    return isinstance(operator, WindowJoin) and bool(operator.sides[port].window.partition)


def join_name(plan: JoinPlan) -> str:
    """What people call a join: its sides."""
    names = ["+".join(scan.alias for scan in scan_plans(port.input)) for port in plan.ports]
    return " and ".join([", ".join(names[:-1]), names[-1]])
