"""Delta and Iceberg as sinks: rows are appended, or merged by key; a repeated batch changes nothing.

Each commit carries the query, the run, the batch and when Spark planned it: in Delta next to the transaction version
per writer, in Iceberg in the summary of the snapshot. Commits of earlier versions, and of the streaming sinks of both
formats, only have the number of the batch.

Of two drivers that write batches of the same number, Delta lets one commit. The second commit is ignored silently, so
each driver checks afterwards whether the commit is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats.connectors import EXTENSIONS, connector_of
from watersmeet.formats.lakes import DeltaSink, DeltaSource, IcebergSink, IcebergSource, table_as_path
from watersmeet.formats.sink import PATH, TABLE
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.schema import quote
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.outputs import BATCH, SinkBatch, Write, drain_batch
from watersmeet.spark.connectors.reading import SourceConnector
from watersmeet.spark.connectors.table_sinks import SinkConnector, SinkTarget, changelog_rows, plans_of, run_of
from watersmeet.spark.exchange.rows import columns_of, consolidate

HISTORY = 1000
"""The number of commits that are searched for the last one of a query."""
ATTEMPTS = 5
"""How often a batch is written while others commit to the table, such as one that compacts it."""


@dataclass(frozen=True)
class Commit:
    """A batch in a table. ``had_rows``: whether the table held rows of others before the first batch of the query."""

    sink_batch: SinkBatch
    had_rows: bool = False

    def to_text(self, writer: str) -> str:
        """The commit as text."""
        stored = {"batch": self.sink_batch.batch, "planned_at": self.sink_batch.planned_at, "had_rows": self.had_rows}
        return json.dumps({"watersmeet": writer, **stored})

    @staticmethod
    def from_text(text: str | None, writer: str) -> Commit | None:
        """The commit that a text is of; None: it is not one of that writer.

        >>> Commit.from_text(Commit(SinkBatch(7, 1000), True).to_text("me"), "me")
        Commit(sink_batch=SinkBatch(batch=7, planned_at=1000), had_rows=True)
        >>> Commit.from_text("by hand", "me")
        """
        with suppress(ValueError, TypeError, KeyError):
            stored: dict[str, Any] = json.loads(text or "")
            if stored["watersmeet"] == writer:
                return Commit(SinkBatch(stored["batch"], stored["planned_at"]), stored["had_rows"])
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


class LakeTable(Protocol):
    """A table of Delta or Iceberg, as one start of a query sees it."""

    def find(self, spark: SparkSession) -> Commit | None:
        """The last batch of this run that the table has."""

    def has_rows(self, spark: SparkSession) -> bool:
        """Return whether the table exists and has rows."""
        ...

    def write(self, rows: DataFrame, commit: Commit, *, is_strict: bool) -> None:
        """Write a batch in one commit; ``is_strict``: a key that comes must be new.

        Raises `TableMovedError` if the batch was not written because the table has a commit that is not known.
        """


class TableMovedError(Exception):
    """Another writer has committed to a table since it was looked at."""


@dataclass
class LakeWriter:
    """Writes the batches of a query to a table, and knows the last one."""

    target: SinkTarget
    table: LakeTable
    last: Commit | None = None
    is_known: bool = False

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch, unless the table has it."""
        spark = batch.sparkSession
        if not self.is_known:
            self.last, self.is_known = self.table.find(spark), True
        rows = batch.persist()
        try:
            for attempt in range(1, ATTEMPTS + 1):
                if self._is_written(rows, number):
                    drain_batch(rows)
                    return None
                try:
                    return self._write(rows, number)
                except TableMovedError as error:
                    if attempt == ATTEMPTS:
                        raise error.__cause__ or error from None
                    self.last = self.table.find(spark)
        finally:
            rows.unpersist()

    def _is_written(self, batch: DataFrame, number: int) -> bool:
        """Whether the table has a batch; refused if that is the batch of another plan."""
        last_batch = None if self.last is None else self.last.sink_batch
        hint = sink_connector(self.target).recovery_hint(number - 1)
        return plans_of(batch, self.target).has_batch(last_batch, number, self.target.sink.name, hint)

    def _write(self, rows: DataFrame, number: int) -> None:
        is_merged = self.target.changes == "upsert"
        is_first = self.last is None and number == 0
        had_rows = self.last.had_rows if self.last is not None else is_merged and is_first and self._has_rows(rows)
        # Whether a batch is repeated that an earlier version merged is not known: its keys may be there.
        is_strict = is_merged and not had_rows and (self.last is not None or is_first)
        commit = Commit(plans_of(rows, self.target).sink_batch(number), had_rows)
        self.table.write(rows, commit, is_strict=is_strict)
        self.last = commit

    def _has_rows(self, rows: DataFrame) -> bool:
        return self.table.has_rows(rows.sparkSession)


def had_rows(target: SinkTarget, table: LakeTable, spark: SparkSession) -> bool:
    """Whether the table of a key had rows before the first batch, or has them now and that one is to come."""
    if target.changes != "upsert":
        return False
    commit = table.find(spark)
    return table.has_rows(spark) if commit is None else commit.had_rows


def rows_to_append(target: SinkTarget, batch: DataFrame, commit: Commit) -> DataFrame:
    """The rows that a batch adds to a table that it is not merged into: its own, or its changes."""
    if target.changes is None:
        return batch
    return changelog_rows(batch).withColumn(BATCH, F.lit(commit.sink_batch.batch).cast("bigint"))


def table_has_rows(rows: Callable[[], DataFrame]) -> bool:
    """Return whether a table exists and has rows."""
    try:
        return not rows().isEmpty()
    except PySparkException:
        return False


_CHANGES, _GOES, _SECOND = "watersmeet_changes", "#goes", "#second"
_OWN = (_GOES, _SECOND)


def merge_into(
    open_table: Callable[[DataFrame], str], target: SinkTarget, batch: DataFrame, *, is_strict: bool
) -> None:
    """Merge a batch into a table.

    ``open_table`` returns its name in SQL, and creates it from an empty frame if it does not exist. ``is_strict``: an
    inserted row whose key is not deleted in the batch must not exist in the table.
    """
    merged = _by_key(target, batch).persist()
    try:
        spark, names = batch.sparkSession, [name for name in merged.columns if name not in _OWN]
        # Not `createDataFrame`, which makes the session of the batch the active one of the whole process.
        table = open_table(merged.drop(*_OWN).where("false"))
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
    """Refuse a second row whose key is all NULLs, because MERGE cannot say whether it matched."""
    is_null = " AND ".join(f"{quote(name)} IS NULL" for name in target.key)
    comes = merged.where(is_null).where(F.col(quote(_SECOND)).isNotNull())
    is_there = f"SELECT 1 FROM {table} WHERE {is_null} LIMIT 1"
    if not comes.isEmpty() and not merged.sparkSession.sql(is_there).isEmpty():
        raise WatersmeetError([_not_unique(target)])


def _not_unique(target: SinkTarget) -> Refusal:
    return Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name})


def _by_key(target: SinkTarget, batch: DataFrame) -> DataFrame:
    """For each key of a batch its current row, or that it is deleted.

    Where no row of a key is deleted, the text of the refusal of a second row is added.
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
"""Delta's name for a batch of its own streaming sink."""
_CONFLICTS = ("io.delta.exceptions.", "DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
"""Texts in the errors of a commit that lost a race against another one."""


def delta_writer(target: SinkTarget) -> Write:
    """The function that writes a batch to a table of Delta."""
    return LakeWriter(target, DeltaTable(target)).write


def delta_commit(target: SinkTarget, spark: SparkSession) -> Commit | None:
    """The last batch of this run that the table has, by our writer or by Delta's own streaming sink."""
    return DeltaTable(target).find(spark)


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
        return table_has_rows(lambda: spark.sql(f"SELECT * FROM {self.name}"))

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
        writer = empty.write.format("delta").options(**other).mode("ignore")
        options = self.target.sink.lowercase_options
        if TABLE in options:
            writer.saveAsTable(options[TABLE])
        else:
            writer.save(options[PATH])
        return self.name


_PROPERTY = "watersmeet"
_SETTING = f"spark.sql.iceberg.snapshot-property.{_PROPERTY}"
_ICEBERG_STREAMED = "spark.sql.streaming."
"""How the properties of Iceberg's own streaming sink begin."""
_MAIN = "main"
_RETAINED = "RETAIN 7 DAYS"
"""How long the branch of a query that has ended keeps its snapshot from being expired."""


def iceberg_writer(target: SinkTarget) -> Write:
    """The function that writes a batch to a table of Iceberg."""
    return LakeWriter(target, _table_of(target)).write


def iceberg_commit(target: SinkTarget, spark: SparkSession) -> Commit | None:
    """The last batch of this run that the table has, by our writer or by Iceberg's own streaming sink."""
    return _table_of(target).find(spark)


def _table_of(target: SinkTarget) -> LakeTable:
    name = target.sink.lowercase_options.get(TABLE)
    return IcebergFolder(target) if name is None else IcebergTable(target, name)


@dataclass
class IcebergTable:
    """The table of a sink in a catalog.

    ``head``: the snapshot of `main` that was read last, or that this driver has made; None if the table is empty.
    ``branch``: that of this driver, which no other writes to; ``base``: the snapshot at which it begins.
    """

    target: SinkTarget
    name: str
    head: int | None = None
    branch: str = ""
    base: int | None = None

    def find(self, spark: SparkSession) -> Commit | None:
        """The last batch of this run that the table has."""
        # The head first: snapshots that are added meanwhile are not looked at.
        self.head = self._heads(spark).get(_MAIN)
        snapshots = commits_of(lambda: _latest_first(spark.table(f"{self.name}.snapshots")))
        return _last_commit(self.target, snapshots, self.head)

    def has_rows(self, spark: SparkSession) -> bool:
        """Return whether the table exists and has rows."""
        return table_has_rows(lambda: spark.table(self.name))

    def write(self, rows: DataFrame, commit: Commit, *, is_strict: bool) -> None:
        """Write a batch to the branch, and let `main` follow."""
        spark, target = rows.sparkSession, self.target
        try:
            with session_settings(spark, {_SETTING: commit.to_text(writer_of(target))}):
                if target.changes == "upsert":
                    merge_into(self._open, target, rows, is_strict=is_strict)
                else:
                    added = rows_to_append(target, rows, commit)
                    added.writeTo(self._open(added.where("false"))).options(**self._options).append()
            self.head = self._publish(spark)
        except TableMovedError:
            raise
        except Exception as error:
            # PySpark does not know the errors of Iceberg, and hands them on as those of its bridge.
            heads = self._heads(spark)
            # Another driver removes the branch when it starts.
            if heads.get(_MAIN) != self.head or self.branch not in heads:
                raise TableMovedError from error
            raise

    def _heads(self, spark: SparkSession) -> dict[str, int]:
        """The snapshots that the branches of the table are at."""
        # A session caches the metadata of a table.
        with suppress(PySparkException):
            spark.sql(f"REFRESH TABLE {self.name}")
        return {row.name: row.snapshot_id for row in commits_of(lambda: spark.table(f"{self.name}.refs"))}

    def _open(self, empty: DataFrame) -> str:
        """The branch in SQL, which is where `main` was when it was looked at; the table is made if it is missing."""
        spark = empty.sparkSession
        if not spark.catalog.tableExists(self.name):
            self._make(empty)
        heads = self._heads(spark)
        if heads.get(_MAIN) != self.head:
            raise TableMovedError
        if not self.branch:
            self._drop_branches(spark, heads)
            self.branch = f"{self._prefix}{uuid4().hex[:8]}"
        if self.head is None:
            self._start_without_snapshots(spark)
        else:
            self.base = self.head
            if heads.get(self.branch) != self.head:
                self._alter(spark, f"CREATE OR REPLACE BRANCH {self.branch} AS OF VERSION {self.head} {_RETAINED}")
        return f"{self.name}.{quote(f'branch_{self.branch}')}"

    def _make(self, empty: DataFrame) -> None:
        try:
            # Not `writeTo`, which commits a snapshot without rows: that would count as the batch.
            empty.sparkSession.catalog.createTable(self.name, source="iceberg", schema=empty.schema)
        except Exception:
            # Another driver may have made it meanwhile.
            if not empty.sparkSession.catalog.tableExists(self.name):
                raise

    def _start_without_snapshots(self, spark: SparkSession) -> None:
        """Begin the branch of a table that has no snapshots; Iceberg gives it one without rows."""
        self._alter(spark, f"DROP BRANCH IF EXISTS {self.branch}")
        self._alter(spark, f"CREATE BRANCH {self.branch} {_RETAINED}")
        heads = self._heads(spark)
        # It begins at `main`, if another driver has made that meanwhile.
        if _MAIN in heads:
            raise TableMovedError
        self.base = heads.get(self.branch)

    def _drop_branches(self, spark: SparkSession, names: Iterable[str]) -> None:
        """Remove the branches of earlier starts of the query."""
        for name in names:
            if name.startswith(self._prefix):
                self._alter(spark, f"DROP BRANCH IF EXISTS {name}")

    @property
    def _prefix(self) -> str:
        """How the branches of this run of the query begin."""
        return f"watersmeet_{sha256(writer_of(self.target).encode()).hexdigest()[:12]}_"

    @property
    def _options(self) -> dict[str, str]:
        return {name: value for name, value in self.target.options.items() if name.lower() != PATH}

    def _alter(self, spark: SparkSession, action: str) -> None:
        spark.sql(f"ALTER TABLE {self.name} {action}")

    def _publish(self, spark: SparkSession) -> int:
        """Let `main` follow the branch, if it is where the branch began; gives the snapshot."""
        if not self._is_own(spark, self._heads(spark).get(self.branch)):
            raise TableMovedError
        catalog, table = split_catalog(spark, self.name)
        call = f"CALL {catalog}.system.fast_forward(table => '{table}', branch => '{_MAIN}', to => '{self.branch}')"
        return int(spark.sql(call).collect()[0]["updated_ref"])

    def _is_own(self, spark: SparkSession, tip: int | None) -> bool:
        """Whether a snapshot follows the one at which the branch began.

        A driver that starts removes the branches of others, and expiry removes old ones. A later commit to such a
        branch begins at `main`, whatever it has by then.
        """
        if tip == self.base:
            return True
        snapshots = spark.table(f"{self.name}.snapshots").where(F.col("snapshot_id") == tip).collect()
        return [row.parent_id for row in snapshots] == [self.base]


@dataclass
class IcebergFolder:
    """The table of a sink that is known by its folder. ``last``: the last batch that was found there."""

    target: SinkTarget
    last: Commit | None = None

    @property
    def path(self) -> str:
        """The folder."""
        return self.target.options[PATH]

    def find(self, spark: SparkSession) -> Commit | None:
        """The last batch of this run that the table has."""

        def load(name: str) -> DataFrame:
            return spark.read.format("iceberg").load(f"{self.path}#{name}")

        heads = {row.name: row.snapshot_id for row in commits_of(lambda: load("refs"))}
        snapshots = commits_of(lambda: _latest_first(load("snapshots")))
        self.last = _last_commit(self.target, snapshots, heads.get(_MAIN))
        return self.last

    def has_rows(self, spark: SparkSession) -> bool:
        """Return whether the table exists and has rows."""
        return table_has_rows(lambda: spark.read.format("iceberg").load(self.path))

    def write(self, rows: DataFrame, commit: Commit, *, is_strict: bool) -> None:
        """Add the rows of a batch, unless another driver has written it since it was looked for."""
        last = self.last
        if self.find(rows.sparkSession) != last:
            raise TableMovedError
        text = commit.to_text(writer_of(self.target))
        writer = rows.write.format("iceberg").options(**self.target.options)
        writer.option(f"snapshot-property.{_PROPERTY}", text).mode("append").save()
        self.last = commit


def _latest_first(snapshots: DataFrame) -> DataFrame:
    return snapshots.orderBy(F.col("committed_at").desc())


def _last_commit(target: SinkTarget, snapshots: Iterable[Any], head: int | None) -> Commit | None:
    """The last batch of this run among the snapshots that led to one; those of other branches do not count."""
    by_id = {row.snapshot_id: row for row in snapshots}
    while head in by_id:
        row = by_id[head]
        commit = Commit.from_text(row.summary.get(_PROPERTY), writer_of(target))
        if commit is not None:
            return commit
        if row.summary.get(f"{_ICEBERG_STREAMED}queryId") == run_of(target.checkpoint):
            return Commit(SinkBatch(int(row.summary[f"{_ICEBERG_STREAMED}epochId"])))
        head = row.parent_id
    return None


def split_catalog(spark: SparkSession, table: str) -> tuple[str, str]:
    """The catalog of a table, and the name that it has there."""
    catalog, _, rest = table.partition(".")
    is_named = bool(rest) and spark.conf.get(f"spark.sql.catalog.{catalog.strip('`')}", None) is not None
    return (catalog, rest) if is_named else (quote(spark.catalog.currentCatalog()), table)


class DeltaSourceConnector(SourceConnector[DeltaSource]):
    """Reads a table of Delta."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame that Spark reads: the table brings its own schema."""
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
        """The function that writes a batch."""
        return delta_writer(self.target)

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch that the table has."""
        commit = delta_commit(self.target, spark)
        return None if commit is None else commit.sink_batch

    def had_rows(self, spark: SparkSession) -> bool:
        """Whether the table had rows before the query."""
        return had_rows(self.target, DeltaTable(self.target), spark)


class IcebergSourceConnector(SourceConnector[IcebergSource]):
    """Reads a table of Iceberg."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame that Spark reads: the table brings its own schema."""
        return super().load(spark, None, table_as_path(options))


class IcebergSinkConnector(SinkConnector[IcebergSink]):
    """Writes to a table of Iceberg."""

    def writer(self) -> Write:
        """The function that writes a batch."""
        return iceberg_writer(self.target)

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch that the table has."""
        commit = iceberg_commit(self.target, spark)
        return None if commit is None else commit.sink_batch

    def had_rows(self, spark: SparkSession) -> bool:
        """Whether the table had rows before the query."""
        return had_rows(self.target, IcebergTable(self.target), spark)
