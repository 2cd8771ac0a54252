"""Delta as a sink: rows are added, or merged by key; a batch that is repeated is found there and changes nothing.

Delta keeps the number of the latest batch of each writer, in the same commit as its rows. The commit also says when
Spark planned the batch, as its user metadata.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.formats.sink import PATH
from watersmeet.plan.expressions import quote
from watersmeet.spark.sinks.lake_commits import (
    HISTORY,
    Commit,
    LakeMerger,
    commits_of,
    session_settings,
    table_has_rows,
    writer_of,
)
from watersmeet.spark.sinks.merge import merge_into
from watersmeet.spark.sinks.outputs import BATCH, Write
from watersmeet.spark.sinks.positions import Position
from watersmeet.spark.sinks.table_sinks import SinkTarget, changelog_rows, plans_of, run_of

_WRITER = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_STREAMED = "STREAMING UPDATE"
"""What Delta calls a batch of its own streaming sink."""


def delta_writer(target: SinkTarget) -> Write:
    """What writes batches to a table of Delta."""

    def commit(rows: DataFrame, number: int, text: str, is_strict: bool) -> None:
        numbered = {_WRITER: writer_of(target), _NUMBER: str(number), _METADATA: text}
        with session_settings(rows.sparkSession, numbered):
            if target.changes == "upsert":
                _merge(target, rows, is_strict=is_strict)
            elif target.changes == "log":
                _add(target, changelog_rows(rows).withColumn(BATCH, F.lit(number).cast("bigint")))
            else:
                _add(target, rows)

    merging = LakeMerger(
        target, lambda spark: delta_commit(target, spark), lambda spark: _has_rows(target, spark), commit
    )

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.persist()
        try:
            # A batch that Delta has already would not be gone over.
            rows.count()
            if target.changes == "upsert":
                merging.write(rows, number)
            else:
                commit(rows, number, Commit(plans_of(batch, target).position(number)).to_text(writer_of(target)), False)
        finally:
            rows.unpersist()

    return write


def delta_commit(target: SinkTarget, spark: SparkSession) -> Commit | None:
    """The last batch of this run that the table has, by our writer or by Delta's own streaming sink."""
    history = f"DESCRIBE HISTORY delta.{quote(target.sink.lowercase_options[PATH])} LIMIT {HISTORY}"
    for row in commits_of(lambda: spark.sql(history)):
        commit = Commit.from_text(row.userMetadata, writer_of(target))
        if commit is not None:
            return commit
        stored: dict[str, str] = row.operationParameters or {}
        parameters = {name: value.strip('"') for name, value in stored.items()}
        if row.operation == _STREAMED and parameters.get("queryId") == run_of(target.checkpoint):
            return Commit(Position(int(parameters["epochId"])))
    return None


def _has_rows(target: SinkTarget, spark: SparkSession) -> bool:
    return table_has_rows(lambda: spark.read.format("delta").load(target.sink.lowercase_options[PATH]))


def _add(target: SinkTarget, rows: DataFrame) -> None:
    rows.write.format("delta").options(**target.options).mode("append").save()


def _merge(target: SinkTarget, batch: DataFrame, *, is_strict: bool) -> None:
    """Put in, replace and delete the rows of keys; the table is made if it is not there."""
    path = target.sink.lowercase_options[PATH]

    def make(empty: DataFrame) -> None:
        # Of another writer, or the batch would count as written.
        empty.write.format("delta").option("txnAppId", "watersmeet").option("txnVersion", "0").mode("ignore").save(path)

    merge_into(f"delta.{quote(path)}", target, batch, make, is_strict=is_strict)
