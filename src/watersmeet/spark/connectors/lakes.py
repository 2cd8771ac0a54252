"""Delta and Iceberg as sinks: rows are added, or merged by key; a repeated batch changes nothing.

Each commit carries the query, the run, the batch and when Spark planned it: in Delta beside the number that Delta keeps
per writer, in Iceberg in the summary of the snapshot. Commits of earlier versions, and of the streaming sinks of both
formats, have the number of the batch alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name  # noqa: N812 - the usual name  # noqa: N812 - the usual name

from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats.connectors import EXTENSIONS, connector_of
from watersmeet.formats.lakes import TABLE, DeltaSink, DeltaSource, IcebergSink, IcebergSource, table_as_path
from watersmeet.formats.sink import PATH
from watersmeet.logical.expressions import quote
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.outputs import BATCH, BatchPlans, Position, Write, drain_batch
from watersmeet.spark.connectors.reading import SourceConnector
from watersmeet.spark.connectors.table_sinks import SinkConnector, SinkTarget, changelog_rows, plans_of, run_of
from watersmeet.spark.exchange.precombine import columns_of, consolidate

HISTORY = 1000
"""So many commits are looked through for the last one of a query."""


@dataclass(frozen=True)
class Commit:
    """A batch in a table. ``had_rows``: whether the table held rows of others before the first batch of the query."""

    position: Position
    had_rows: bool = False

    def to_text(self, writer: str) -> str:
        """The commit as text."""
        stored = {"batch": self.position.batch, "planned_at": self.position.planned_at, "had_rows": self.had_rows}
        return json.dumps({"watersmeet": writer, **stored})

    @staticmethod
    def from_text(text: str | None, writer: str) -> Commit | None:
        """The commit that a text is of; None: it is not one of that writer.

        >>> Commit.from_text(Commit(Position(7, 1000), True).to_text("me"), "me")
        Commit(position=Position(batch=7, planned_at=1000), had_rows=True)
        >>> Commit.from_text("by hand", "me")
        """
        with suppress(ValueError, TypeError, KeyError):
            stored: dict[str, Any] = json.loads(text or "")
            if stored["watersmeet"] == writer:
                return Commit(Position(stored["batch"], stored["planned_at"]), stored["had_rows"])
        return None


def writer_of(target: SinkTarget) -> str:
    """Under what the batches of a query are known to a table."""
    return f"watersmeet {target.query} {run_of(target.checkpoint)}"


def commits_of(rows: Callable[[], DataFrame]) -> Iterator[Any]:
    """The commits of a table, the latest first; none, if the table is not there or the session cannot read them."""
    try:
        yield from rows().limit(HISTORY).collect()
    except PySparkException:
        return


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """Let a session have settings meanwhile."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@dataclass
class LakeMerger:
    """Merges the batches of a query into a table, and knows the last one.

    ``find``: the last commit of the query; ``has_rows``: whether the table holds rows; ``merge``: what merges a batch,
    given the text of its commit and whether a key that comes must be new.
    """

    target: SinkTarget
    find: Callable[[SparkSession], Commit | None]
    has_rows: Callable[[SparkSession], bool]
    merge: Callable[[DataFrame, int, str, bool], None]
    last: Commit | None = None
    is_known: bool = False

    def write(self, batch: DataFrame, number: int) -> None:
        """Merge a batch, unless the table has it."""
        spark = batch.sparkSession
        if not self.is_known:
            self.last, self.is_known = self.find(spark), True
        plans: BatchPlans = plans_of(batch, self.target)
        position = None if self.last is None else self.last.position
        hint = sink_connector(self.target).recovery_hint(number - 1)
        if plans.has_batch(position, number, self.target.sink.name, hint):
            drain_batch(batch)
            return
        had_rows = self.last.had_rows if self.last is not None else number == 0 and self.has_rows(spark)
        # Whether a batch is repeated that an earlier version merged is not known: its keys may be there.
        is_strict = not had_rows and (self.last is not None or number == 0)
        commit = Commit(plans.position(number), had_rows)
        self.merge(batch, number, commit.to_text(writer_of(self.target)), is_strict)
        self.last = commit


def table_has_rows(rows: Callable[[], DataFrame]) -> bool:
    """Whether a table is there and holds rows."""
    try:
        return not rows().isEmpty()
    except PySparkException:
        return False


_CHANGES, _GOES, _SECOND = "watersmeet_changes", "#goes", "#second"
_OWN = (_GOES, _SECOND)


def merge_into(
    table: str, target: SinkTarget, batch: DataFrame, make: Callable[[DataFrame], None], *, is_strict: bool
) -> None:
    """Merge a batch into a table, by its name in SQL; ``make`` makes it of a frame without rows if it is not there.

    ``is_strict``: a row that comes while none of its key goes must not find that key there.
    """
    merged = _by_key(target, batch).persist()
    try:
        spark, names = batch.sparkSession, [name for name in merged.columns if name not in _OWN]
        # Not `createDataFrame`, which makes the session of the batch the active one of the whole process.
        make(merged.drop(*_OWN).where("false"))
        merged.createOrReplaceTempView(_CHANGES)
        on = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in target.key)
        set_ = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
        listed, values = ", ".join(map(quote, names)), ", ".join(f"s.{quote(name)}" for name in names)
        if is_strict:
            _check_null_key(table, target, merged)
        # Delta evaluates this for rows that match nothing, too: of these, all columns of the table are NULL.
        is_null = " AND ".join(f"t.{quote(name)} IS NULL" for name in target.key)
        second = f"s.{quote(_SECOND)}"
        raised = f"CAST(raise_error({second}) AS BOOLEAN)"
        unique = f" AND ({second} IS NULL OR ({is_null}) OR {raised})" if is_strict else ""
        spark.sql(
            f"MERGE INTO {table} t USING {_CHANGES} s ON {on} "
            f"WHEN MATCHED AND s.{quote(_GOES)} THEN DELETE WHEN MATCHED{unique} THEN UPDATE SET {set_} "
            f"WHEN NOT MATCHED AND NOT s.{quote(_GOES)} THEN INSERT ({listed}) VALUES ({values})"
        )
    finally:
        merged.unpersist()


def _check_null_key(table: str, target: SinkTarget, merged: DataFrame) -> None:
    """Refuse a second row whose key is all NULLs, of which MERGE cannot tell whether it matched."""
    is_null = " AND ".join(f"{quote(name)} IS NULL" for name in target.key)
    comes = merged.where(is_null).where(F.col(quote(_SECOND)).isNotNull())
    is_there = f"SELECT 1 FROM {table} WHERE {is_null} LIMIT 1"
    if not comes.isEmpty() and not merged.sparkSession.sql(is_there).isEmpty():
        raise WatersmeetError([_not_unique(target)])


def _not_unique(target: SinkTarget) -> Refusal:
    return Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name})


def _by_key(target: SinkTarget, batch: DataFrame) -> DataFrame:
    """For each key of a batch the row that it has now, or that it has none any more.

    Where no row of a key goes, the text of the refusal of a second row stands with it.
    """
    rows = consolidate(batch)
    names = columns_of(rows)
    comes = F.sum(F.when(F.col(quote(WEIGHT)) > 0, F.col(quote(WEIGHT))).otherwise(0))
    latest = F.first(F.when(F.col(quote(WEIGHT)) > 0, F.struct(*(F.col(quote(n)) for n in names))), ignorenulls=True)
    replaces = F.bool_or(F.col(quote(WEIGHT)) < 0)
    by_key = rows.groupBy(*(F.col(quote(name)) for name in target.key)).agg(
        comes.alias("#n"), latest.alias("#row"), replaces.alias("#replaces")
    )
    text = _not_unique(target).to_message()
    goes = F.when(F.col(quote("#n")) > 1, F.raise_error(F.lit(text)).cast("boolean")).otherwise(F.col(quote("#n")) == 0)
    second = F.when(~F.col(quote("#replaces")), F.lit(text))
    others = [name for name in names if name not in target.key]
    shown = [F.col(f"{quote('#row')}.{quote(name)}").alias(name) for name in others]
    return by_key.select(*(F.col(quote(name)) for name in target.key), *shown, goes.alias(_GOES), second.alias(_SECOND))


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


_PROPERTY = "watersmeet"
_ICEBERG_STREAMED = "spark.sql.streaming."
"""How the properties of Iceberg's own streaming sink begin."""


def iceberg_merger(target: SinkTarget, table: str) -> Write:
    """What merges batches into a table that a catalog knows; the first one makes it if it is not there."""

    def make(empty: DataFrame) -> None:
        if not empty.sparkSession.catalog.tableExists(table):
            empty.writeTo(table).using("iceberg").create()

    def merge(batch: DataFrame, number: int, text: str, is_strict: bool) -> None:
        with session_settings(batch.sparkSession, {f"spark.sql.iceberg.snapshot-property.{_PROPERTY}": text}):
            merge_into(table, target, batch, make, is_strict=is_strict)

    def has_rows(spark: SparkSession) -> bool:
        return table_has_rows(lambda: spark.table(table))

    return LakeMerger(target, lambda spark: iceberg_commit(target, spark), has_rows, merge).write


def iceberg_commit(target: SinkTarget, spark: SparkSession) -> Commit | None:
    """The last batch of this run that the table has, by our merges or by Iceberg's own streaming sink."""
    name = target.options[PATH]

    def snapshots() -> DataFrame:
        if "/" not in name:
            # A session keeps what it knows of a table for a while.
            spark.sql(f"REFRESH TABLE {name}")
        frame = spark.read.format("iceberg").load(f"{name}#snapshots" if "/" in name else f"{name}.snapshots")
        return frame.orderBy(F.col("committed_at").desc())

    for row in commits_of(snapshots):
        commit = Commit.from_text(row.summary.get(_PROPERTY), writer_of(target))
        if commit is not None:
            return commit
        if row.summary.get(f"{_ICEBERG_STREAMED}queryId") == run_of(target.checkpoint):
            return Commit(Position(int(row.summary[f"{_ICEBERG_STREAMED}epochId"])))
    return None


class DeltaSourceConnector(SourceConnector[DeltaSource]):
    """Reads a table of Delta."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads: the table has a schema of its own."""
        return super().load(spark, None, options)


class DeltaSinkConnector(SinkConnector[DeltaSink]):
    """Writes to a table of Delta."""

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

    def writer(self) -> Write:
        """What writes batches."""
        return delta_writer(self.target)

    def position(self, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        commit = delta_commit(self.target, spark)
        return None if commit is None else commit.position


class IcebergSourceConnector(SourceConnector[IcebergSource]):
    """Reads a table of Iceberg."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads: the table has a schema of its own."""
        return super().load(spark, None, table_as_path(options))


class IcebergSinkConnector(SinkConnector[IcebergSink]):
    """Writes to a table of Iceberg."""

    def writer(self) -> Write:
        """What writes batches."""
        if self.target.changes != "upsert":
            return super().writer()
        return iceberg_merger(self.target, self.target.sink.lowercase_options[TABLE])

    def position(self, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        commit = iceberg_commit(self.target, spark)
        return None if commit is None else commit.position
