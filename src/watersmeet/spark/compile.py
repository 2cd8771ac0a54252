"""A physical plan as a DataFrame: scan, prepare, pack, meet, unpack, project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.joins.interval import PRESERVED
from watersmeet.physical import JoinPlan, PortPlan, QueryPlan, RelationPlan, ScanPlan
from watersmeet.plan.expressions import Expr, quote
from watersmeet.spark.exchange import LATE, MARKS_COLUMN, PACKED_DDL, ROWS, Pack, PackMarks, Unpack
from watersmeet.spark.shards import labels
from watersmeet.spark.stateful import MET_DDL, ShardProcessor

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


@dataclass(frozen=True)
class Compiler:
    """Builds the frames of a plan.

    ``frames`` holds the DataFrame of each source by its name; ``marks`` rows ``(column, value)`` that move watermarks
    from outside.
    """

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    shards: int
    marks: DataFrame | None = None

    def query(self, plan: QueryPlan) -> Compiled:
        """The frames of a whole query."""
        frame, joins = self.relation(plan.relation, feeds_join=False)
        return Compiled(self.projected(plan, frame), joins)

    def projected(self, plan: QueryPlan, frame: DataFrame) -> DataFrame:
        """What of WHERE is left, and the columns of the result."""
        for part in plan.where:
            frame = frame.where(F.expr(part.sql()))
        return frame.select(*(F.expr(output.expr.sql()).alias(output.name) for output in plan.outputs))

    def relation(self, plan: RelationPlan, *, feeds_join: bool) -> tuple[DataFrame, tuple[Met, ...]]:
        """The frame of a relation and the joins in it. A frame that feeds a join keeps what only moves watermarks."""
        if isinstance(plan, ScanPlan):
            frame = self.scan(plan)
            return (frame if feeds_join else frame.where(F.col(quote(KEEP))).drop(KEEP)), ()
        below = [self.relation(port.input, feeds_join=True) for port in plan.ports]
        met = self.meet(plan, [frame for frame, _ in below])
        return self.joined(met, feeds_join=feeds_join), (*below[0][1], *below[1][1], met)

    def scan(self, plan: ScanPlan) -> DataFrame:
        """A source's columns as ``alias.column``, and whether WHERE keeps the row.

        Rows that WHERE drops go as far as the pack: their event times move the watermark like any other's.
        """
        frame = self.frames[plan.source.name]
        named = frame.select(*(F.col(quote(c)).alias(f"{plan.alias}.{c}") for c in plan.columns))
        return named.withColumn(KEEP, _all_true(plan.filters))

    def prepared(self, port: PortPlan, frame: DataFrame) -> DataFrame:
        """The columns that go through the exchange. For rows that WHERE drops nothing is computed but their times."""
        times = {column for column, _ in port.lags}
        asis = [F.col(quote(c)) if c in times else _if_kept(quote(c), c) for c in port.columns]
        computed = [_if_kept(c.sql(), c.name) for c in port.computed]
        columns = [*asis, *computed, F.col(KEEP)]
        if port.dead is not None:
            alive = " AND ".join(p.sql() for p in port.predicates)
            columns.append(_if_kept(f"NOT coalesce({alive}, false)", port.dead))
        if MARKS_COLUMN in frame.columns:
            columns.append(F.col(quote(MARKS_COLUMN)))
        frame = frame.select(*columns)
        if port.hashed:
            frame = frame.withColumn(str(port.code), F.xxhash64(*(F.col(quote(k)) for k in port.hashed)))
        return frame

    def meet(self, plan: JoinPlan, inputs: list[DataFrame]) -> Met:
        """Pack both inputs, shuffle them by shard and let the operator run."""
        shards = labels(self.shards if plan.ports[0].code is not None else 1)
        frames = [self.prepared(port, frame) for port, frame in zip(plan.ports, inputs, strict=True)]
        packed = [
            _plain(frame).mapInArrow(Pack(n, port.code, shards, port.lags, KEEP, tuple(frame.columns)), PACKED_DDL)
            for n, (port, frame) in enumerate(zip(plan.ports, frames, strict=True))
        ]
        sources = tuple(column for port in plan.ports for column, _ in port.lags)
        if self.marks is not None and sources:
            packed.append(self.marks.mapInArrow(PackMarks(0, shards, frozenset(sources)), PACKED_DDL))
        together = reduce(DataFrame.unionAll, packed)
        schemas = (frames[0].schema, frames[1].schema)
        ends = () if together.isStreaming else sources
        processor = ShardProcessor(plan.operator, _fingerprint(plan, schemas, shards), ends)
        records = together.groupBy("shard").transformWithState(processor, MET_DDL, "Append", "None")
        return Met(plan, _observed(records, plan) if together.isStreaming else records, schemas)

    def joined(self, met: Met, *, feeds_join: bool) -> DataFrame:
        """The rows of a join's records."""
        schema = _joined_schema(met)
        unpack = Unpack(self.arrow(schema), ROWS, feeds_join)
        if feeds_join:
            schema = StructType([*schema.fields, StructField(MARKS_COLUMN, StringType())])
        frame = met.records.mapInArrow(unpack, schema)
        kept = _all_true(met.plan.after)
        if feeds_join:
            return frame.withColumn(KEEP, kept | F.col(quote(MARKS_COLUMN)).isNotNull())
        return frame.where(kept) if met.plan.after else frame

    def late_rows(self, met: Met, port: int) -> DataFrame:
        """The rows of a port that came too late for a join."""
        schema = StructType([met.inputs[port][column] for column in met.plan.operator.late_columns[port]])
        return met.records.where(F.col("port") == port).mapInArrow(Unpack(self.arrow(schema), LATE), schema)

    def arrow(self, schema: StructType):
        """The Arrow schema in which Spark's workers receive rows of a schema."""
        return to_arrow_schema(schema, timezone=self.spark.conf.get("spark.sql.session.timeZone"))


def _plain(frame: DataFrame) -> DataFrame:
    """The frame with names that ``mapInArrow`` can look up."""
    return frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))


def _all_true(parts: tuple[Expr, ...]):
    return reduce(lambda a, b: a & b, (F.coalesce(F.expr(p.sql()), F.lit(False)) for p in parts), F.lit(True))


def _if_kept(sql: str, name: str):
    return F.expr(f"IF({quote(KEEP)}, {sql}, NULL)").alias(name)


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
    text = repr((plan.operator, [schema.simpleString() for schema in schemas], shards))
    return hashlib.sha256(text.encode()).hexdigest()


def _observed(met: DataFrame, plan: JoinPlan) -> DataFrame:
    """The records with their numbers summed up per batch, for the progress of the query."""
    names = [part.split()[0] for part in MET_DDL.split(", ")][3:-1]
    sums = [F.sum(name).alias(name) for name in names]
    return met.observe(observation_name(plan), *sums, F.min("watermarks").alias("watermarks"))


def observation_name(plan: JoinPlan) -> str:
    """The name under which the numbers of a join appear in a query's progress."""
    return "watersmeet:" + "+".join(sorted({column.split(".")[0] for column in plan.columns}))
