"""Questions about the rows of DataFrames, and of queries that a program has started with a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.answers.answer import Answer
from watersmeet.answers.asking import RecordedQuery, ReplayedQuery, answer, read
from watersmeet.answers.question import Question
from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.formats.feed import CHANGE
from watersmeet.local.query import Batch
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED
from watersmeet.physical import join_plans, plan_query, scan_plans
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.schema import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_checkpoint_query(script: Script, query: AnalyzedQuery, checkpoint: Path) -> RecordedQuery:
    """A query that was started with that checkpoint; refused if it has no finished batch."""
    name = query.into or checkpoint.name
    if not any((checkpoint / "commits").glob("[0-9]*")):
        raise refuse("NEVER_RAN", query=name, checkpoint=checkpoint, command="start(...).awaitTermination()")
    plan = plan_query(query, OPERATORS, late="kept")
    # What `run` keeps beside a checkpoint, a program has nowhere: marks come as frames, tables as streams.
    return RecordedQuery(name, plan, script, checkpoint, checkpoint)


def answer_from_checkpoint(spark: SparkSession, query: RecordedQuery, question: Question) -> Answer:
    """What became of rows of a query that has run."""
    return answer(read(spark, query), question)


def answer_of_frames(
    spark: SparkSession, script: Script, query: AnalyzedQuery, frames: Mapping[str, DataFrame], question: Question
) -> Answer:
    """What becomes of rows of DataFrames that are whole: all arrive at once, and then the input ends."""
    from watersmeet.spark.past.reading import InputHistory

    plan = plan_query(query, OPERATORS, late="kept")
    sources = {
        scanned.name: scanned for scan in scan_plans(plan.relation) for scanned in (scan.parts or (scan.source,))
    }
    tables = {name: _collect_rows(source, frames[name]) for name, source in sources.items()}
    lags = [lag.source for join in join_plans(plan.relation) for port in join.ports for lag in port.lags]
    times = [
        f"{scan.alias}.{watermark.column}" for scan in scan_plans(plan.relation) for watermark in scan.source.watermarks
    ]
    watermarks = {**dict.fromkeys((*times, *lags), END_OF_INPUT), LOADED: 1}
    ran = RecordedQuery(query.into or "the query", plan, script, Path(), Path())
    return answer(ReplayedQuery(ran, InputHistory((Batch(tables, watermarks),)), spark), question)


def _collect_rows(source: Source, frame: DataFrame) -> pa.Table:
    """All rows of a DataFrame, in the types of its source."""
    names = [field.name for field in source.fields]
    change_columns = [CHANGE] if source.kind == "table" and CHANGE in frame.columns and CHANGE not in names else []
    table = frame.select(*(f"`{name}`" for name in (*names, *change_columns))).toArrow()
    columns: dict[str, Any] = {f.name: table.column(f.name).cast(arrow_type(f.type)) for f in source.fields}
    if source.kind == "table":
        columns[CHANGE] = table.column(CHANGE) if change_columns else pa.array(["+"] * table.num_rows, pa.string())
    return pa.table(columns)
