"""A physical plan as a DataFrame: scan, prepare, pack, meet, unpack, project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from watersmeet.joins.interval import PRESERVED
from watersmeet.joins.operator import NOW
from watersmeet.observe.progress import JOIN
from watersmeet.physical import JoinPlan, LateRows, PortPlan, QueryPlan, RelationPlan, ScanPlan, scan_plans
from watersmeet.plan.expressions import Expr, quote
from watersmeet.spark.exchange import (
    LATE_ROW,
    LATE_SHOWN,
    MARKS_COLUMN,
    PACKED_DDL,
    PART,
    Late,
    Pack,
    PackMarks,
    Unpack,
)
from watersmeet.spark.shards import labels
from watersmeet.spark.stateful import MET_DDL, ShardProcessor, Shards

KEEP = "#keep"


@dataclass(frozen=True)
class Met:
    """The records that come out of a join, and the schemas of the rows that went into its ports."""

    plan: JoinPlan
    records: DataFrame
    inputs: tuple[StructType, StructType]


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
    from outside; ``late`` says whether the result shows late rows, in the column ``_late``.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    shards: int
    marks: DataFrame | None = None
    late: LateRows = "counted"
    clock: Clock = "ticks"

    def query(self, plan: QueryPlan) -> Compiled:
        """The frames of a whole query."""
        frame, joins = self.relation(plan.relation)
        if joins:
            frame = self.joined(joins[-1], self.late_type(plan.relation))
        return Compiled(self.projected(plan, frame), joins)

    def projected(self, plan: QueryPlan, frame: DataFrame) -> DataFrame:
        """What of WHERE is left, and the columns of the result. Late rows stand apart from both."""
        shown = [F.col(LATE_SHOWN)] if LATE_SHOWN in frame.columns else []
        for part in plan.where:
            holds = F.expr(part.sql())
            frame = frame.where(holds | F.col(LATE_SHOWN).isNotNull() if shown else holds)
        return frame.select(*(F.expr(output.expr.sql()).alias(output.name) for output in plan.outputs), *shown)

    def relation(self, plan: RelationPlan) -> tuple[DataFrame, tuple[Met, ...]]:
        """The frame of a relation as it feeds a join, with what only travels along, and the joins in it."""
        if isinstance(plan, ScanPlan):
            return self.scan(plan), ()
        below = [self.relation(port.input) for port in plan.ports]
        met = self.meet(plan, [frame for frame, _ in below])
        return self.feeding(met), (*below[0][1], *below[1][1], met)

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
        return frame

    def meet(self, plan: JoinPlan, inputs: list[DataFrame]) -> Met:
        """Pack both inputs, shuffle them by shard and let the operator run."""
        shards = labels(1 if plan.ports[0].route == "one" else self.shards)
        frames = [self.prepared(port, frame) for port, frame in zip(plan.ports, inputs, strict=True)]
        packed = [_packed(n, port, frames[n], shards) for n, port in enumerate(plan.ports)]
        sources = tuple(dict.fromkeys(lag.column for port in plan.ports for lag in port.lags))
        moved = PackMarks(0, shards, frozenset({*sources, NOW}))
        streaming = any(frame.isStreaming for frame in frames)
        if self.marks is not None:
            packed.append(self.marks.mapInArrow(moved, PACKED_DDL))
        if streaming and plan.operator.needs_clock and self.clock == "ticks":
            packed.append(self.ticks().mapInArrow(moved, PACKED_DDL))
        schemas = (_as_before(frames[0], inputs[0]), _as_before(frames[1], inputs[1]))
        to_all = frozenset(n for n, port in enumerate(plan.ports) if port.route == "all")
        processor = ShardProcessor(
            plan.operator.for_shards(len(shards)), join_name(plan), _fingerprint(plan, schemas, shards),
            Shards(shards[0], to_all), () if streaming else plan.ports[0].times + plan.ports[1].times,
        )  # fmt: skip
        together = reduce(DataFrame.unionAll, packed).groupBy("shard")
        records = together.transformWithState(processor, MET_DDL, "Append", "None")
        return Met(plan, _observed(records, plan) if streaming else records, schemas)

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
        fields = [StructField(field.name, field.dataType) for field in _joined_schema(met)]
        schema = StructType([*fields, *along])
        late: Late = "passed" if self.late == "kept" else "dropped"
        frame = met.records.mapInArrow(Unpack(self.arrow(schema), marks=True, late=late), schema)
        if not met.plan.after:
            return frame
        travels = reduce(lambda a, b: a | b, (F.col(quote(field.name)).isNotNull() for field in along))
        return frame.withColumn(KEEP, _all_true(met.plan.after) | travels)

    def joined(self, met: Met, late: StructType | None = None) -> DataFrame:
        """The rows of a join's records; with ``late``, late rows as well, in a column of that type."""
        schema = _joined_schema(met)
        if late is not None:
            nullable = [StructField(f.name, f.dataType) for f in schema]
            schema = StructType([*nullable, StructField(LATE_SHOWN, late)])
        unpack = Unpack(self.arrow(schema), late="dropped" if late is None else "shown")
        frame = met.records.mapInArrow(unpack, schema)
        if not met.plan.after:
            return frame
        kept = _all_true(met.plan.after)
        return frame.where(kept if late is None else kept | F.col(LATE_SHOWN).isNotNull())

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


def _packed(number: int, port: PortPlan, frame: DataFrame, shards: tuple[int, ...]) -> DataFrame:
    by = port.code if port.route == "key" else port.times[0]
    keep = KEEP if KEEP in frame.columns else None
    pack = Pack(number, port.route, by, shards, port.lags, keep, tuple(frame.columns))
    return _plain(frame).mapInArrow(pack, PACKED_DDL)


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


def _joined_schema(met: Met) -> StructType:
    """The schema of a join's rows: a side that can be padded is nullable."""
    padded = tuple(reversed(PRESERVED[met.plan.analyzed.kind]))
    fields = {
        field.name: StructField(field.name, field.dataType, field.nullable or padded[port])
        for port, schema in enumerate(met.inputs)
        for field in schema
    }
    return StructType([fields[name] for name in met.plan.columns])


def _fingerprint(plan: JoinPlan, schemas: tuple[StructType, ...], shards: tuple[int, ...]) -> str:
    """What a state must have been written by, to be continued: the same operator, columns and shards."""
    identity = plan.operator.identity
    types = [(f.name, f.dataType.simpleString()) for schema in schemas for f in schema if repr(f.name) in identity]
    computed = [(c.name, c.sql()) for port in plan.ports for c in port.computed]
    predicates = [predicate.sql() for port in plan.ports for predicate in port.predicates]
    return hashlib.sha256(repr((identity, types, computed, predicates, shards)).encode()).hexdigest()


def _observed(met: DataFrame, plan: JoinPlan) -> DataFrame:
    """The records with their numbers summed up per batch, for the progress of the query."""
    names = [part.split()[0] for part in MET_DDL.split(", ")][3:-1]
    sums = [F.sum(name).alias(name) for name in names]
    return met.observe(f"{JOIN}{join_name(plan)}", *sums, F.min("watermarks").alias("watermarks"))


def join_name(plan: JoinPlan) -> str:
    """What people call a join: its sides."""
    left, right = ("+".join(scan.alias for scan in scan_plans(port.input)) for port in plan.ports)
    return f"{left} and {right}"
