"""Delta: tables as streams, their change feed, and tables that batches are appended to or merged into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.errors import Place, refuse
from watersmeet.formats.base import PATH, TABLE
from watersmeet.formats.lakes import CHANGE_TYPE, VERSION, DeltaSink, DeltaSource
from watersmeet.formats.packages import EXTENSIONS, connector_of
from watersmeet.operators.core.changes import CHANGE
from watersmeet.schema import quote
from watersmeet.spark.connectors.lakes import (
    HISTORY,
    Commit,
    LakeConnector,
    TableMovedError,
    commits_of,
    merge_into,
    rows_to_append,
    session_settings,
    table_has_rows,
    writer_of,
)
from watersmeet.spark.connectors.malformed import error_columns
from watersmeet.spark.connectors.reading import SourceConnector, cast_columns, refusal_column
from watersmeet.spark.connectors.records import DELETE, INSERT
from watersmeet.spark.connectors.sinks import SinkBatch, SinkTarget, run_of
from watersmeet.spark.exchange.packing import ORDER

_WRITER = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_STREAMED = "STREAMING UPDATE"
"""Delta's name for a batch of its own streaming sink."""
_CONFLICTS = ("io.delta.exceptions.", "DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
"""Texts in the errors of a commit that lost a race against another one."""


@dataclass
class DeltaTable:
    """The table of a sink, by its folder or by its name in a catalog. ``last``: the last batch that was found there."""

    target: SinkTarget
    last: Commit | None = None

    @property
    def name(self) -> str:
        """The table in SQL."""
        options = self.target.sink.lowercase_options
        return options[TABLE] if TABLE in options else f"delta.{quote(options[PATH])}"

    def find(self, spark: SparkSession) -> Commit | None:
        """The last batch of this run that the table has."""
        self.last = self._find(spark, HISTORY)
        return self.last

    def _find(self, spark: SparkSession, commits: int) -> Commit | None:
        for row in commits_of(lambda: spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT {commits}")):
            commit = Commit.from_text(row.userMetadata, writer_of(self.target))
            if commit is not None:
                return commit
            stored: dict[str, str] = row.operationParameters or {}
            parameters = {name: value.strip('"') for name, value in stored.items()}
            if row.operation == _STREAMED and parameters.get("queryId") == run_of(self.target.checkpoint):
                return Commit(SinkBatch(int(parameters["epochId"])))
        return None

    def has_rows(self, spark: SparkSession) -> bool:
        """Return whether the table exists and has rows."""
        return table_has_rows(lambda: self.load(spark))

    @property
    def sql_name(self) -> str:
        """The table in SQL."""
        return self.name

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        return spark.sql(f"SELECT * FROM {self.name}")

    def add_columns(self, empty: DataFrame) -> None:
        """Add the columns of a frame without rows, in a commit that is not one of a batch."""
        # Not by ALTER TABLE, for which the Delta of Spark 4.1 lacks a class of later patches.
        self._save(empty.write.format("delta").option("mergeSchema", "true").mode("append"))

    def write(self, rows: DataFrame, commit: Commit, *, is_strict: bool) -> None:
        """Write a batch in one commit."""
        target, number = self.target, commit.sink_batch.batch
        text = commit.to_text(writer_of(target))
        settings = {_WRITER: writer_of(target), _NUMBER: str(number), _METADATA: text}
        try:
            with session_settings(rows.sparkSession, settings):
                if target.changes == "upsert":
                    merge_into(self._open, target, rows, is_strict=is_strict)
                else:
                    self._add(rows_to_append(target, rows, commit))
        except Exception as error:
            # PySpark does not know these errors, and hands them on as those of its bridge.
            if any(conflict in str(error) for conflict in _CONFLICTS):
                raise TableMovedError from error
            raise
        if not self._is_own(rows.sparkSession, commit):
            raise TableMovedError
        self.last = commit

    def _is_own(self, spark: SparkSession, commit: Commit) -> bool:
        """Whether the last batch of this run is the one that was just written, and not one of another driver."""
        # Mostly the latest commit is ours. A merge that changes nothing makes none.
        return self._find(spark, 1) == commit or self._find(spark, HISTORY) in (commit, self.last)

    def _add(self, rows: DataFrame) -> None:
        options = {name: value for name, value in self.target.options.items() if name.lower() != TABLE}
        writer = rows.write.format("delta").options(**options).mode("append")
        table = self.target.sink.lowercase_options.get(TABLE)
        if table is None:
            writer.save()
        else:
            writer.saveAsTable(table)

    def _open(self, empty: DataFrame) -> str:
        """The table in SQL; it is made if it is missing."""
        # Of another writer and without the text of the batch, or that would count as written.
        other = {"txnAppId": "watersmeet", "txnVersion": "0", "userMetadata": "made by watersmeet"}
        self._save(empty.write.format("delta").options(**other).mode("ignore"))
        return self.name

    def _save(self, writer: DataFrameWriter) -> None:
        options = self.target.sink.lowercase_options
        if TABLE in options:
            writer.saveAsTable(options[TABLE])
        else:
            writer.save(options[PATH])


class DeltaSourceConnector(SourceConnector[DeltaSource]):
    """Reads a table of Delta."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame that Spark reads: the table brings its own schema."""
        return super().load(spark, None, options)


class DeltaSinkConnector(LakeConnector[DeltaSink]):
    """Writes to a table of Delta."""

    @property
    def table(self) -> DeltaTable:
        """The table of the sink."""
        return DeltaTable(self.target)

    def check(self, place: Place | None, spark: SparkSession) -> None:
        """Refuse to merge in a session that does not know how."""
        connector = connector_of("delta", "4.1")
        assert connector is not None
        needed = connector.settings[EXTENSIONS]
        if self.target.changes == "upsert" and needed not in str(spark.conf.get(EXTENSIONS, "")):
            options = " ".join(f"--conf {name}={value}" for name, value in connector.settings.items())
            reason = "the Spark session does not have Delta's MERGE"
            hint = f"start the session with it: `{options}`."
            option = "changes 'upsert'"
            raise refuse("WRONG_OPTION", place, format="delta", option=option, reason=reason, hint=hint)


def delta_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The changes in rows of Delta's change data feed.

    By key, they count in the order of their versions, and within one what goes does so before anything comes: Delta
    delivers them otherwise. Rows in its form that have no version count as they are delivered; of an upsert the row
    before it is left out then.
    """
    kind = F.col(CHANGE_TYPE)
    reason = "its `_change_type` is not a change type of Delta"
    hint = "read Delta's change data feed, or leave CHANGES FROM out."
    sign = (
        F.when(kind.isin("insert", "update_postimage"), INSERT)
        .when(kind.isin("delete", "update_preimage"), DELETE)
        .otherwise(refusal_column(source, reason, hint, "string"))
    )
    changes = frame.withColumn(CHANGE, sign)
    columns = (*cast_columns(source, frame), F.col(CHANGE), *error_columns(frame))
    if not source.primary_key:
        return changes.select(*columns)
    if VERSION not in frame.columns:
        return changes.where(kind.isNull() | (kind != "update_preimage")).select(*columns)
    order = F.col(VERSION).cast("bigint") * 2 + (F.col(CHANGE) == INSERT).cast("bigint")
    return changes.select(*columns, order.alias(ORDER))
