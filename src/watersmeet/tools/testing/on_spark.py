"""A case on Spark: one file per source and batch, read one per micro-batch, so that batches fall as the case says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.catalog import Source
from watersmeet.errors import refusal_in, refuse
from watersmeet.formats.records import ddl
from watersmeet.local.cells import CHANGE
from watersmeet.local.query import BatchOutput
from watersmeet.locations import location_of
from watersmeet.logical.nodes import Script
from watersmeet.operators.core.operator import StepReport, Watermarks
from watersmeet.operators.state.shard import LATE_BY, LATE_COLUMN
from watersmeet.spark.exchange.packing import LATE, REPORT, ROWS, UNMATCHED, from_blobs
from watersmeet.spark.exchange.rows import PORT_OUTPUT_PREFIX, SIDE_OUTPUT_COLUMNS
from watersmeet.spark.private.introspection import without_plan
from watersmeet.spark.private.jvm import death_of
from watersmeet.spark.refusals import last_cause
from watersmeet.spark.run.build import Built, build
from watersmeet.spark.run.prepare import WATERMARKS_SCHEMA
from watersmeet.tools.testing.case import QueryStoppedError

_WATERMARK_SCHEMA = pa.schema([("column", pa.string()), ("value", pa.int64())])


class SparkQuery:
    """A query fed by files; `run` processes a stretch of batches and stops, as before a restart."""

    def __init__(self, spark: SparkSession, script: Script, folder: Path) -> None:
        spark = _session_of(spark, script)
        self.folder = folder
        self.script = script
        self.written = 0
        self.stepped: dict[int, BatchOutput] = {}
        for name in ("#marks", *(source.name for source in script.sources)):
            (folder / "in" / name).mkdir(parents=True)
        try:
            frames = {s.name: self._reader(spark, _ddl(s), s.name) for s in script.sources}
            watermarks = self._reader(spark, WATERMARKS_SCHEMA, "#marks")
            (self.built,) = build(spark, script, frames, watermarks=watermarks, late="side_output", clock="marks")
        except PySparkException as error:
            raise _stop_error(error) from error

    def _reader(self, spark: SparkSession, schema: str, name: str) -> DataFrame:
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
        return reader.parquet(location_of(self.folder / "in" / name))

    def run(self, batches: Sequence[tuple[Mapping[str, pa.Table], Watermarks]]) -> list[BatchOutput]:
        """Process these batches, then stop; a later call continues from the checkpoint."""
        first = self.written
        for arrivals, watermarks in batches:
            self._write(
                "#marks",
                pa.Table.from_pylist([{"column": c, "value": v} for c, v in watermarks.items()], _WATERMARK_SCHEMA),
            )
            for source in self.script.sources:
                self._write(source.name, arrivals[source.name])
            self.written += 1
        try:
            self._start().awaitTermination()
        except PySparkException as error:
            raise _stop_error(error) from error
        return [self.stepped[number] for number in range(first, self.written)]

    def _start(self) -> StreamingQuery:
        joins = self.built.compiled.joins
        return (
            (joins[-1].records if joins else self.built.compiled.result)
            .writeStream.foreachBatch(self._collect)
            .option("checkpointLocation", location_of(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def _write(self, source: str, table: pa.Table) -> None:
        path = self.folder / "in" / source / f"{self.written:05}.parquet"
        pq.write_table(table, path)
        # The file source takes files in the order of their times.
        moment = 1_700_000_000 + self.written
        os.utime(path, (moment, moment))

    def _collect(self, records: DataFrame, number: int) -> None:
        if self.built.compiled.joins:
            self.stepped[number] = collect_step(self.built, records.collect())
        else:
            self.stepped[number] = BatchOutput(records.toArrow(), {})


def _session_of(spark: SparkSession, script: Script) -> SparkSession:
    """The session, or a new one like it with what the script sets of Spark: other cases run beside this one."""
    settings = {setting.name: setting.value for setting in script.settings if setting.name.startswith("spark.")}
    if not settings:
        return spark
    session = spark.newSession()
    for name, value in {**spark.conf.getAll, **settings}.items():
        if name in settings or session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _stop_error(error: PySparkException) -> Exception:
    """The reason why a query stopped; where Spark itself has ended, no other case can run either."""
    died = death_of(error)
    if died is not None:
        return refuse("SPARK_DIED", reason=died)
    ours = refusal_in(without_plan(str(error)))
    return QueryStoppedError(last_cause(str(error)) if ours is None else ours.message)


def _ddl(source: Source) -> str:
    """The columns of a source in its files; a table's rows also have their change."""
    return ddl(source) if source.kind == "stream" else f"{ddl(source)}, {CHANGE} STRING"


def collect_step(built: Built, records: Sequence[Row]) -> BatchOutput:
    """The content of one batch of records of the last join: rows, side outputs, report."""
    join = built.compiled.joins[-1]
    row_records = [r for r in records if r["kind"] == ROWS]
    rows = _rows(built, row_records) if row_records else pa.table({})
    late = tuple((r["port"] or 0, _row(from_blobs([r["blob"]]))) for r in records if r["kind"] == LATE)
    unmatched = tuple((r["port"], from_blobs([r["blob"]])) for r in records if r["kind"] == UNMATCHED)
    reports = [json.loads(r["report"]) for r in records if r["kind"] == REPORT]
    state = tuple(sum(column) for column in zip(*(r["state"] for r in reports), strict=True))
    counted = zip(*(r["partitions"] for r in reports), strict=True)
    partitions = tuple(sum(c) if join.plan.operator.is_partitioned(port) else max(c) for port, c in enumerate(counted))
    watermarks: dict[str, int] = {}
    for report in reports:
        for column, watermark in report["watermarks"].items():
            watermarks[column] = min(watermark, watermarks.get(column, watermark))
    return BatchOutput(
        rows, watermarks, late, StepReport(state=state, watermarks=watermarks, partitions=partitions), unmatched
    )


def _rows(built: Built, records: list[Row]) -> pa.Table:
    """The rows of the result that records hold, as Spark makes them."""
    compiler, join = built.compiler, built.compiled.joins[-1]
    frame = compiler.spark.createDataFrame(records, join.records.schema).coalesce(1)
    rows = replace(compiler, late="counted").compile_rows(built.plan.relation, replace(join, records=frame))
    result = compiler.project(built.plan, rows.frame)
    # Side outputs are collected from separate records.
    return result.drop(
        *SIDE_OUTPUT_COLUMNS, *(name for name in result.columns if name.startswith(PORT_OUTPUT_PREFIX))
    ).toArrow()


def _row(late: pa.Table) -> pa.Table:
    """A late row without the columns about its lateness."""
    return late.drop_columns([LATE_COLUMN, LATE_BY])
