"""The shared part of the sinks of Delta and Iceberg: they append rows or merge them by key, each batch once.

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
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DecimalType, FloatType, StructField, StructType

from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats.base import PATH
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.schema import quote
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.sinks import (
    BATCH,
    SinkBatch,
    SinkConnector,
    SinkFormatT,
    SinkTarget,
    Write,
    changelog_rows,
    drain_batch,
    plans_of,
    run_of,
)
from watersmeet.spark.exchange.rows import columns_of, consolidate

HISTORY = 1000
"""The number of commits that are searched for the last one of a query."""
ATTEMPTS = 5
"""The number of times that a batch is written while others commit to the table, such as one that compacts it."""


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

    @property
    def sql_name(self) -> str | None:
        """The table in SQL; None: it has no name there."""
        ...

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        ...

    def add_columns(self, empty: DataFrame) -> None:
        """Add the columns that a frame without rows has and the table lacks."""

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


class LakeConnector(SinkConnector[SinkFormatT]):
    """Writes to a table of Delta or Iceberg."""

    @property
    def table(self) -> LakeTable:
        """The table of the sink."""
        raise NotImplementedError

    def writer(self) -> Write:
        """The function that writes a batch."""
        return LakeWriter(self.target, self.table).write

    def check_rows(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse columns that an existing table lacks and may not get, and keys that it would round."""
        if self.target.changes == "upsert":
            self._check_keys(rows, place)
        missing, table = self._find_missing(rows), self.table
        if not missing or (self.target.new_columns == "add" and table.sql_name is not None):
            return
        hint = "name the table by its catalog with the option `table`, so that columns can be added."
        if table.sql_name is not None:
            columns = ", ".join(f"{quote(field.name)} {field.dataType.simpleString()}" for field in missing)
            alter = f"ALTER TABLE {table.sql_name} ADD COLUMNS ({columns})"
            hint = f"run `{alter}`, or let `watersmeet run --evolve` do that."
        reason = f"it has no column {' and no column '.join(f'`{field.name}`' for field in missing)}"
        shown = table.sql_name or self.target.options[PATH]
        raise refuse("SINK_UNFIT", place, sink=self.target.sink.name, table=shown, reason=reason, hint=hint)

    def _check_keys(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse a key whose values the table stores as others: the next change of the row would not find it."""
        try:
            present = self.table.load(rows.sparkSession).schema
        except PySparkException:
            # There is no table yet.
            return
        for name, kind in find_lossy_keys(present, rows.schema, self.target.key).items():
            reason = f"its key `{name}` is {kind}, which would store values of the result as others"
            hint = f"write `CAST({name} AS {kind}) AS {name}` in SELECT, and in GROUP BY if there is one."
            shown = self.table.sql_name or self.target.options[PATH]
            raise refuse("SINK_UNFIT", place, sink=self.target.sink.name, table=shown, reason=reason, hint=hint)

    def add_columns(self, rows: DataFrame) -> list[str]:
        """Add the columns of rows that an existing table lacks, if it may get any."""
        missing = self._find_missing(rows) if self.target.new_columns == "add" else []
        if missing:
            self.table.add_columns(rows.sparkSession.createDataFrame([], StructType(missing)))
        return [field.name for field in missing]

    def _find_missing(self, rows: DataFrame) -> list[StructField]:
        """The columns that an existing table lacks, which its format would not add by itself."""
        if self.target.sink.lowercase_options.get("mergeschema", "").lower() == "true":
            return []
        try:
            present = {name.lower() for name in self.table.load(rows.sparkSession).columns}
        except PySparkException:
            # There is no table yet.
            return []
        names = [name for name in columns_of(rows) if name.lower() not in present]
        return [StructField(name, rows.schema[name].dataType) for name in names]

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch of this run that the table has, by our writer or by the format's own streaming sink."""
        commit = self.table.find(spark)
        return None if commit is None else commit.sink_batch

    def had_rows(self, spark: SparkSession) -> bool:
        """Whether the table of a key had rows before the first batch, or has them now and that one is to come."""
        if self.target.changes != "upsert":
            return False
        table = self.table
        commit = table.find(spark)
        return table.has_rows(spark) if commit is None else commit.had_rows


_CHARS = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark has the length of a text column."""
_ROUNDED = {
    "date": ("timestamp", "timestamp_ntz"),
    "float": ("double", "decimal", "int", "bigint"),
    "decimal": ("float", "double"),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), ("float", "double", "decimal")),
}
"""By type of a column, the types whose values it stores as others without an error."""


def find_lossy_keys(table: StructType, rows: StructType, key: Iterable[str]) -> dict[str, str]:
    """The key columns whose values a table may store as other values, with their types there.

    >>> table = StructType().add("a", "decimal(5,1)").add("b", "long")
    >>> find_lossy_keys(table, StructType().add("a", "decimal(5,2)").add("b", "integer"), ["a", "b"])
    {'a': 'decimal(5,1)'}
    """
    present, own = ({field.name.lower(): field for field in schema} for schema in (table, rows))
    pairs = ((name, present.get(name.lower()), own.get(name.lower())) for name in key)
    return {
        name: stored.metadata.get(_CHARS) or stored.dataType.simpleString()
        for name, stored, field in pairs
        if stored is not None and field is not None and _is_rounded(stored, field)
    }


def _is_rounded(stored: StructField, field: StructField) -> bool:
    """Whether a column may store values of another as other values."""
    if stored.metadata.get(_CHARS, "").startswith("char"):
        # It fills texts with spaces.
        return True
    own, other = field.dataType, stored.dataType
    if isinstance(own, DecimalType) and isinstance(other, DecimalType):
        return other.scale < own.scale
    if isinstance(own, DecimalType) and not own.scale and not isinstance(other, FloatType):
        return False
    names = [kind.simpleString().partition("(")[0] for kind in (own, other)]
    return names[0] in _ROUNDED.get(names[1], ())


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
