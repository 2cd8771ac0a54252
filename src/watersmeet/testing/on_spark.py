"""A case on Spark: one file per source and batch, read one per micro-batch, so that batches fall as the case says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.joins.interval_batch import LATE_BY, LATE_COLUMN
from watersmeet.joins.operator import Marks, Report
from watersmeet.plan.nodes import Script
from watersmeet.spark.build import Built, build
from watersmeet.spark.exchange import LATE, REPORT, ROWS, from_blobs
from watersmeet.spark.run import MARKS_SCHEMA
from watersmeet.spark.sources import ddl
from watersmeet.testing.local import Stepped

_MARKS = pa.schema([("column", pa.string()), ("value", pa.int64())])


class SparkQuery:
    """A query fed by files; `run` processes a stretch of batches and stops, as before a restart."""

    def __init__(self, spark: SparkSession, script: Script, folder: Path) -> None:
        self.folder = folder
        self.script = script
        self.written = 0
        self.stepped: dict[int, Stepped] = {}
        for name in ("#marks", *(source.name for source in script.sources)):
            (folder / "in" / name).mkdir(parents=True)
        frames = {s.name: self._reader(spark, ddl(s), s.name) for s in script.sources}
        marks = self._reader(spark, MARKS_SCHEMA, "#marks")
        (self.built,) = build(spark, script, frames, marks=marks, late="kept", clock="marks")

    def _reader(self, spark: SparkSession, schema: str, name: str) -> DataFrame:
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(self.folder / "in" / name))

    def run(self, batches: Sequence[tuple[Mapping[str, pa.Table], Marks]]) -> list[Stepped]:
        """Process these batches, then stop; a later call continues from the checkpoint."""
        first = self.written
        for arrivals, marks in batches:
            self._write("#marks", pa.Table.from_pylist([{"column": c, "value": v} for c, v in marks.items()], _MARKS))
            for source in self.script.sources:
                self._write(source.name, arrivals[source.name])
            self.written += 1
        query = (
            self.built.compiled.joins[-1]
            .records.writeStream.foreachBatch(self._collect)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [self.stepped[number] for number in range(first, self.written)]

    def _write(self, source: str, table: pa.Table) -> None:
        path = self.folder / "in" / source / f"{self.written:05}.parquet"
        pq.write_table(table, path)
        # The file source takes files in the order of their times.
        moment = 1_700_000_000 + self.written
        os.utime(path, (moment, moment))

    def _collect(self, records: DataFrame, number: int) -> None:
        records = records.persist()
        self.stepped[number] = collected(self.built, records)
        records.unpersist()


def collected(built: Built, records: DataFrame) -> Stepped:
    """What one batch of records of the last join holds: rows, late rows, numbers."""
    compiler, met = built.compiler, replace(built.compiled.joins[-1], records=records)
    rows = compiler.projected(built.plan, compiler.joined(met)).toArrow()
    rest: list[Any] = records.where(F.col("kind") != ROWS).collect()
    late = tuple((r["port"] or 0, _row(from_blobs([r["blob"]]))) for r in rest if r["kind"] == LATE)
    reports = [r for r in rest if r["kind"] == REPORT]
    state = (sum(r["state_left"] for r in reports), sum(r["state_right"] for r in reports))
    marks: dict[str, int] = {}
    for report in reports:
        for column, mark in json.loads(report["watermarks"]).items():
            marks[column] = min(mark, marks.get(column, mark))
    return Stepped(rows, marks, late, Report(state=state, watermarks=marks))


def _row(late: pa.Table) -> pa.Table:
    """A late row without what is told of its lateness."""
    return late.drop_columns([LATE_COLUMN, LATE_BY])
