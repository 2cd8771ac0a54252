"""Iceberg: tables as streams, and tables that batches are appended to or merged into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.formats.base import PATH, TABLE
from watersmeet.formats.lakes import IcebergSink, IcebergSource, table_as_path
from watersmeet.schema import quote
from watersmeet.spark.connectors.lakes import (
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
from watersmeet.spark.connectors.reading import SourceConnector
from watersmeet.spark.connectors.sinks import SinkBatch, SinkTarget, run_of

_PROPERTY = "watersmeet"
_SETTING = f"spark.sql.iceberg.snapshot-property.{_PROPERTY}"
_ICEBERG_STREAMED = "spark.sql.streaming."
"""The prefix of the properties of Iceberg's own streaming sink."""
_MAIN = "main"
_RETAINED = "RETAIN 7 DAYS"
"""The time that the branch of a query that has ended keeps its snapshot from being expired."""


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
        return table_has_rows(lambda: self.load(spark))

    @property
    def sql_name(self) -> str:
        """The table in SQL."""
        return self.name

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        return spark.table(self.name)

    def add_columns(self, empty: DataFrame) -> None:
        """Add the columns of a frame without rows; that makes no snapshot."""
        columns = ", ".join(f"{quote(field.name)} {field.dataType.simpleString()}" for field in empty.schema)
        self._alter(empty.sparkSession, f"ADD COLUMNS ({columns})")

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
        """The prefix of the branches of this run of the query."""
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
        return table_has_rows(lambda: self.load(spark))

    @property
    def sql_name(self) -> None:
        """A folder has no name in SQL, so it gets no columns."""

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        return spark.read.format("iceberg").load(self.path)

    def add_columns(self, empty: DataFrame) -> None:
        """Do nothing: only a table with a name can be altered."""

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


class IcebergSourceConnector(SourceConnector[IcebergSource]):
    """Reads a table of Iceberg."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame that Spark reads: the table brings its own schema."""
        return super().load(spark, None, table_as_path(options))


class IcebergSinkConnector(LakeConnector[IcebergSink]):
    """Writes to a table of Iceberg."""

    @property
    def table(self) -> IcebergTable | IcebergFolder:
        """The table of the sink."""
        name = self.target.sink.lowercase_options.get(TABLE)
        return IcebergFolder(self.target) if name is None else IcebergTable(self.target, name)
