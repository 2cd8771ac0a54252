"""Postgres as a sink, exactly once: the rows of a batch and its number are written in one transaction.

The table ``watersmeet_batches`` holds the last batch of every query; a batch that is repeated after a failure is found
there and not written again. Rows are fetched one partition at a time and copied into a temporary table, from which SQL
moves them to the target, so that they are never all in memory here.

Needs psycopg, so importers of this module check that it is installed.

A row of ``watersmeet_batches`` is locked first, so of two drivers one waits for the other; the first batch creates its
row before it locks it. Earlier versions created the table without its last two columns. Each of Spark's types maps to
one of Postgres, and values are sent as text to COPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import errors
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.formats.databases import PostgresSink
from watersmeet.operators.core.changes import CHANGE, WEIGHT
from watersmeet.schema import parse_type_name, quote
from watersmeet.spark.connectors.sinks import (
    BatchPlans,
    NewColumns,
    SinkBatch,
    SinkConnector,
    Write,
    drain_batch,
    plans_of,
    run_of,
)
from watersmeet.spark.exchange.rows import EXACT, consolidate, time_for_postgres

Connection = psycopg.Connection[Any]

BATCHES = "watersmeet_batches"
"""The table in which the batches that were written are recorded."""

_TABLE = Identifier(BATCHES)
_LATER = ("plan", "had_rows")
"""The columns that a table of an earlier version does not have."""
_NONE = -1


@dataclass(frozen=True)
class BatchRecord:
    """The record of a query: the run that writes, its last batch, and when that was planned.

    ``had_rows``: whether the table had other rows before the first batch; None: an earlier version wrote that one.
    ``is_whole``: whether the table has all columns.
    """

    writer: str
    run: str
    batch: int = _NONE
    last_batch: SinkBatch | None = None
    had_rows: bool | None = None
    is_whole: bool = True

    @property
    def is_first(self) -> bool:
        """Whether no batch is written yet."""
        return self.batch == _NONE

    def after(self, last_batch: SinkBatch) -> BatchRecord:
        """The record once a batch is written."""
        return replace(self, batch=last_batch.batch, last_batch=last_batch)

    def write(self, connection: Connection) -> None:
        """Update the record in its existing row of the table."""
        later = SQL(", plan = %s, had_rows = %s") if self.is_whole else SQL("")
        stored = (self.last_batch.to_text() if self.last_batch else None, self.had_rows) if self.is_whole else ()
        update = SQL("UPDATE {} SET batch = %s{} WHERE query = %s").format(_TABLE, later)
        connection.execute(update, (self.batch, *stored, self.writer))


def table_exists(connection: Connection, table: Identifier) -> bool:
    """Return whether a table exists."""
    row = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    return row is not None and row[0] is not None


def read_record(connection: Connection, writer: str) -> BatchRecord | None:
    """The record of a query; None if the query has not written yet."""
    return _read(connection, writer, locks=False) if table_exists(connection, _TABLE) else None


def lock_record(connection: Connection, writer: str, run: str) -> BatchRecord:
    """The record of a query, locked for this transaction; without batches, if it has not written any."""
    if not table_exists(connection, _TABLE):
        # Two queries may come here at once.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (BATCHES,))
        columns = SQL("(query text PRIMARY KEY, batch bigint NOT NULL, run text NOT NULL, plan text, had_rows boolean)")
        connection.execute(SQL("CREATE TABLE IF NOT EXISTS {} {}").format(_TABLE, columns))
    elif not _is_whole(connection):
        _add_columns(connection)
    # A second driver waits here until the first has committed its batch, the first one too.
    begin = SQL("INSERT INTO {} (query, batch, run) VALUES (%s, %s, %s) ON CONFLICT (query) DO NOTHING")
    connection.execute(begin.format(_TABLE), (writer, _NONE, run))
    record = _read(connection, writer, locks=True)
    assert record is not None, "its row was put in"
    return record


def _read(connection: Connection, writer: str, *, locks: bool) -> BatchRecord | None:
    is_whole = _is_whole(connection)
    later = SQL("plan, had_rows") if is_whole else SQL("NULL, NULL")
    select = SQL("SELECT run, batch, {} FROM {} WHERE query = %s").format(later, _TABLE)
    row = connection.execute(select + SQL(" FOR UPDATE") if locks else select, (writer,)).fetchone()
    if row is None:
        return None
    run, batch, plan, had_rows = row
    last_batch = None if batch == _NONE else SinkBatch.from_text(plan, batch)
    return BatchRecord(writer, run, batch, last_batch, had_rows, is_whole)


def _is_whole(connection: Connection) -> bool:
    columns = connection.execute(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND NOT attisdropped",
        (BATCHES, [*_LATER]),
    ).fetchone()
    return columns is not None and columns[0] == len(_LATER)


def _add_columns(connection: Connection) -> None:
    """Add the columns of this version, if we may and others do not hold the table; else a later batch adds them."""
    with suppress(errors.InsufficientPrivilege, errors.LockNotAvailable), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '2s'")
        add = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS plan text, ADD COLUMN IF NOT EXISTS had_rows boolean"
        connection.execute(SQL(add).format(_TABLE))
        connection.execute("SET LOCAL lock_timeout = DEFAULT")


def type_in_postgres(type_: DataType) -> Composable:
    """The type of a column in Postgres.

    >>> type_in_postgres(DecimalType(10, 2)).as_string()
    'numeric(10, 2)'
    >>> type_in_postgres(ArrayType(BinaryType())).as_string()
    'jsonb'
    """
    if isinstance(type_, DecimalType):
        return SQL("numeric({}, {})").format(type_.precision, type_.scale)
    type_name = parse_type_name(type_.simpleString())
    return SQL(type_name.postgres if type_name else "text")


def text_for_postgres(field: StructField) -> Column:
    """The values of a column as the text from which Postgres reads its type."""
    column = F.col(quote(field.name))
    match field.dataType:
        case ArrayType() | MapType() | StructType() | VariantType():
            text = F.to_json(column, EXACT)
        case BinaryType():
            text = F.concat(F.lit("\\x"), F.hex(column))
        case TimestampType() | TimestampNTZType() | DateType():
            text = time_for_postgres(column, field.dataType)
        case _:
            text = column.cast("string")
    return text.alias(field.name)


_NEW = Identifier("watersmeet_new")
_FITTED = Identifier("watersmeet_fitted")
"""The temporary table that a batch is copied into."""
_OWN = frozenset({"url", "dsn", "table", "dbtable", "key", "changes", "create", "path"})
_JDBC = frozenset({"driver", "batchsize", "isolationlevel", "numpartitions", "truncate"})
"""Options of Spark's own JDBC sink that have no meaning here."""
_HINTS = {
    "42703": "add the column to the table, or rename it to a column of the table: `expression AS name`.",
    "42804": "CAST the column in SELECT to its type in the table.",
    "42P10": "make the key unique in the table: `{unique}`.",
    "42501": "allow the user to write: `GRANT SELECT, INSERT, UPDATE, DELETE ON ... TO ...`.",
}
"""Hints for a table that cannot take rows, by the SQLSTATE that Postgres returns."""
_NULLS_EQUAL = 150000
"""The version from which on Postgres can treat NULLs in a key as equal."""


@dataclass(frozen=True)
class Postgres:
    """A table of a database, as the options of a sink describe it.

    ``query``: the writing query. ``key``: the columns by which rows are replaced and deleted; empty: append.
    """

    format: PostgresSink
    query: str
    key: tuple[str, ...] = ()
    new_columns: NewColumns = "refuse"

    @property
    def options(self) -> dict[str, str]:
        """The options by their names in small letters."""
        return self.format.sink.lowercase_options

    @property
    def table(self) -> str:
        """The name of the table, with its schema if that is said."""
        return self.format.table

    @property
    def writer(self) -> str:
        """Under what the batches of the query are recorded."""
        return f"{self.query} into {self.table}"

    @property
    def may_create(self) -> bool:
        """Whether a table that is missing is created."""
        return self.options.get("create", "true").lower() != "false"

    def connect(self) -> Connection:
        """A connection; as a context, it commits at the end if nothing was raised."""
        address = self.options.get("dsn") or self.options.get("url", "").removeprefix("jdbc:")
        left_out = _OWN | _JDBC if self.format.sink.format.lower() == "jdbc" else _OWN
        further = {name: value for name, value in self.options.items() if name not in left_out}
        return psycopg.connect(make_conninfo(address, **{"connect_timeout": "10", **further}))

    def check(self, place: Place | None) -> None:
        """Refuse a sink that is known to fail, before the query starts."""
        try:
            with self.connect() as connection:
                is_there = table_exists(connection, self._target)
        except psycopg.OperationalError as error:
            parameters = {"name": self.format.sink.name, "does": "writes to", "table": self.table}
            raise refuse("DATABASE_UNREACHABLE", place, **parameters, reason=_reason(error)) from error
        except psycopg.Error as error:
            raise self._wrong(place, _reason(error), "correct host, port, dbname, user, password or url.") from error
        if not is_there and not self.may_create:
            hint = "create it, or leave `create 'false'` out."
            raise self._wrong(place, f"there is no table {self.table}", hint)

    def check_rows(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse rows that an existing table cannot take: the statement that writes them is only planned."""
        rows = rows.drop(CHANGE) if self.key else rows
        try:
            with self.connect() as connection:
                if table_exists(connection, self._target):
                    missing = [field.name for field in self._find_missing(connection, rows)]
                    if missing and self.new_columns == "refuse":
                        raise self._lacks_columns(connection, rows, place)
                    self._make_new(connection, rows)
                    names = [field.name for field in _fields(rows) if field.name not in missing]
                    connection.execute(SQL("EXPLAIN {}").format(self._insertion(names)))
                connection.rollback()
        except psycopg.Error as error:
            unique = f"ALTER TABLE {self.table} ADD UNIQUE ({', '.join(self.key)})"
            hint = _HINTS.get(error.sqlstate or "", "correct the table or the query.").format(unique=unique)
            parameters = {"sink": self.format.sink.name, "table": self.table, "hint": hint}
            raise refuse("SINK_UNFIT", place, **parameters, reason=_reason(error)) from error

    def add_columns(self, rows: DataFrame) -> list[str]:
        """Add the columns of rows that an existing table lacks, and return their names."""
        with self.connect() as connection:
            missing = self._find_missing(connection, rows) if table_exists(connection, self._target) else []
            if missing:
                connection.execute(self._addition(missing))
        return [field.name for field in missing]

    def _find_missing(self, connection: Connection, rows: DataFrame) -> list[StructField]:
        """The columns that an existing table lacks. One of the key cannot be added: rows that are there have none."""
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        table = self._target.as_string(connection)
        present = {row[0] for row in connection.execute(query, (table,)).fetchall()}
        own = {CHANGE, *self.key} if self.key else set[str]()
        return [field for field in _fields(rows) if field.name not in present | own]

    def _addition(self, fields: Iterable[StructField]) -> Composed:
        columns = (
            SQL("ADD COLUMN {} {}").format(Identifier(field.name), type_in_postgres(field.dataType)) for field in fields
        )
        return SQL("ALTER TABLE {} {}").format(self._target, _join_sql(columns))

    def _lacks_columns(self, connection: Connection, rows: DataFrame, place: Place | None) -> WatersmeetError:
        missing = self._find_missing(connection, rows)
        hint = f"run `{self._addition(missing).as_string(connection)}`, or let `watersmeet run --evolve` do that."
        reason = f"it has no column {' and no column '.join(f'`{field.name}`' for field in missing)}"
        return refuse("SINK_UNFIT", place, sink=self.format.sink.name, table=self.table, reason=reason, hint=hint)

    def last_batch(self, run: str) -> SinkBatch | None:
        """The last batch of a run that the table has; refused if it has those of another run."""
        with self.connect() as connection:
            record = read_record(connection, self.writer)
        self._check_run(record, run)
        return None if record is None else record.last_batch

    def had_rows(self) -> bool:
        """Whether the table of a key had rows before the first batch, or has them now and that one is to come."""
        with self.connect() as connection:
            record = read_record(connection, self.writer) if self.key else None
            is_begun = record is not None and not record.is_first
            return bool(self.key) and bool(record.had_rows if record and is_begun else self._has_rows(connection))

    def recovery_hint(self, last: int) -> str:
        """The hint for a table that does not match its checkpoint, which ends at the batch ``last``."""
        accept = f"UPDATE {BATCHES} SET batch = {last}, plan = NULL WHERE query = '{self.writer}'"
        moment = f"restore the checkpoint and {self.table}, with {BATCHES}, to the same moment."
        return f"{moment} If you have corrected the rows of {self.table} by hand: `{accept}`."

    def write(self, batch: DataFrame, number: int, run: str, plans: BatchPlans | None = None) -> None:
        """Write a batch, unless it is recorded as written. Rows of a table come as changes, those of a stream stay.

        ``plans``: the batches of the checkpoint, in which the recorded one must be planned.
        """
        with self.connect() as connection:
            record = lock_record(connection, self.writer, run)
            self._check_run(record, run)
            if self._is_written(record, number, plans):
                drain_batch(batch)
                return
            rows = (consolidate(batch) if self.key else batch).persist()
            try:
                self._copy(connection, rows)
            finally:
                rows.unpersist()
            if record.is_first:
                record = replace(record, had_rows=self._has_rows(connection))
            self._create(connection, rows)
            names = [field.name for field in _fields(rows)]
            if self.key:
                self._fit_key(connection, names)
                self._check_unique(connection)
                if not record.had_rows:
                    self._check_new_keys(connection)
                self._delete(connection)
            connection.execute(self._insertion(names))
            record.after(SinkBatch(number) if plans is None else plans.sink_batch(number)).write(connection)

    def _check_run(self, record: BatchRecord | None, run: str) -> None:
        if record is not None and record.run != run:
            shown = f"`{self.writer}` in {BATCHES}"
            forget = f"DELETE FROM {BATCHES} WHERE query = '{self.writer}'"
            hint = f"continue with its storage folder; or empty the table and forget that run: `{forget}`."
            raise refuse("SINK_OF_ANOTHER_CHECKPOINT", target=self.table, record=shown, hint=hint)

    def _is_written(self, record: BatchRecord, number: int, plans: BatchPlans | None) -> bool:
        """Whether a batch is written; refused if it is of another plan, or if batches before it are missing."""
        hint = self.recovery_hint(number - 1)
        if plans is not None and plans.has_batch(record.last_batch, number, self.table, hint):
            return True
        if not record.is_first and record.batch < number - 1:
            # The database went back while the query ran: a standby took over that lacked the last batches.
            behind = {"batch": record.batch, "done": number - 1, "hint": hint}
            raise refuse("SINK_BEHIND_CHECKPOINT", target=self.table, **behind)
        return record.batch >= number

    def _has_rows(self, connection: Connection) -> bool:
        """Whether the table holds rows, which are then of others."""
        if not table_exists(connection, self._target):
            return False
        row = connection.execute(SQL("SELECT EXISTS (SELECT FROM {})").format(self._target)).fetchone()
        return row is not None and bool(row[0])

    def _copy(self, connection: Connection, rows: DataFrame) -> None:
        """Copy a batch into the temporary table."""
        self._make_new(connection, rows)
        texts = rows.select(*(text_for_postgres(field) for field in rows.schema))
        with connection.cursor() as cursor, cursor.copy(SQL("COPY {} FROM STDIN").format(_NEW)) as copy:
            for row in texts.toLocalIterator():
                copy.write_row(row)

    def _make_new(self, connection: Connection, rows: DataFrame) -> None:
        """Make the temporary table for rows like these."""
        weight = [SQL("{} bigint").format(Identifier(WEIGHT))] if self.key else []
        columns = _join_sql((*_column_definitions(rows), *weight))
        connection.execute(SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DROP").format(_NEW, columns))

    def _create(self, connection: Connection, rows: DataFrame) -> None:
        if not self.may_create or table_exists(connection, self._target):
            return
        # A group of NULLs is a group, and what a join pads has NULLs in its key.
        nulls_equal = connection.info.server_version >= _NULLS_EQUAL
        unique = SQL("UNIQUE NULLS NOT DISTINCT ({})" if nulls_equal else "PRIMARY KEY ({})")
        key = [unique.format(self._key)] if self.key else []
        connection.execute(
            SQL("CREATE TABLE {} ({})").format(self._target, _join_sql((*_column_definitions(rows), *key)))
        )

    def _fit_key(self, connection: Connection, names: Sequence[str]) -> None:
        """Give the key of a batch the types of the table, in which more values may be equal: CHAR, another scale."""
        lowered = [key.lower() for key in self.key]
        differs = SQL(
            "SELECT FROM pg_attribute AS new JOIN pg_attribute AS old USING (attname)"
            " WHERE new.attrelid = to_regclass({}) AND old.attrelid = to_regclass({}) AND lower(attname) = ANY({})"
            " AND (new.atttypid, new.atttypmod, new.attcollation) <> (old.atttypid, old.atttypmod, old.attcollation)"
        ).format(*(Literal(name.as_string(connection)) for name in (_NEW, self._target)), Literal(lowered))
        if connection.execute(differs).fetchone() is None:
            return
        columns = [(SQL("old" if name.lower() in lowered else "new"), Identifier(name)) for name in names]
        shown = _join_sql(SQL("{}.{}").format(*column) for column in (*columns, (SQL("new"), Identifier(WEIGHT))))
        listed = _join_sql((*map(Identifier, names), Identifier(WEIGHT)))
        statements: tuple[tuple[LiteralString, tuple[Composable, ...]], ...] = (
            # Columns of a query have the types that they have in their tables, with length, scale and collation.
            (
                "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} AS new, {} AS old LIMIT 0",
                (_FITTED, shown, _NEW, self._target),
            ),
            ("INSERT INTO {} ({}) SELECT {} FROM {}", (_FITTED, listed, listed, _NEW)),
            ("DROP TABLE {}", (_NEW,)),
            ("ALTER TABLE {} RENAME TO {}", (_FITTED, _NEW)),
        )
        for statement, parts in statements:
            connection.execute(SQL(statement).format(*parts))

    def _check_unique(self, connection: Connection) -> None:
        """Refuse a batch that brings several rows of one key."""
        weight = Identifier(WEIGHT)
        several = SQL("SELECT {0} FROM {1} WHERE {2} > 0 GROUP BY {0} HAVING sum({2}) > 1 LIMIT 1")
        self._refuse_key(connection.execute(several.format(self._key, _NEW, weight)).fetchone())

    def _check_new_keys(self, connection: Connection) -> None:
        """Refuse a batch that inserts a row, without a delete of its key, if the table already has that key."""
        there = SQL("SELECT {} FROM {} AS new WHERE EXISTS (SELECT FROM {} AS old WHERE {}) LIMIT 1")
        key = _join_sql(SQL("new.{}").format(Identifier(name)) for name in self.key)
        for condition in self._matches:
            query = there.format(key, self._keys_that("> 0"), self._target, condition)
            self._refuse_key(connection.execute(query).fetchone())

    def _refuse_key(self, values: tuple[Any, ...] | None) -> None:
        if values is not None:
            key = ", ".join(f"{name} = {value}" for name, value in zip(self.key, values, strict=True))
            raise refuse("KEY_NOT_UNIQUE", key=key, target=self.table)

    def _delete(self, connection: Connection) -> None:
        """Delete the rows of keys that go and do not come."""
        delete = SQL("DELETE FROM {} AS old USING {} AS new WHERE {}")
        for condition in self._matches:
            connection.execute(delete.format(self._target, self._keys_that("< 0"), condition))

    def _keys_that(self, change: LiteralString) -> Composed:
        """The keys of a batch with only inserts, or only deletes. A key with both is replaced."""
        grouped = SQL("(SELECT {0} FROM {1} GROUP BY {0} HAVING bool_and({2} {3}))")
        return grouped.format(self._key, _NEW, Identifier(WEIGHT), SQL(change))

    @property
    def _matches(self) -> Iterable[Composable]:
        """The condition that two rows have one key, in two parts: an index finds equal values but not equal NULLs."""
        yield self._same("old", "=")
        has_null = SQL(" OR ").join(SQL("new.{} IS NULL").format(Identifier(key)) for key in self.key)
        yield SQL("{} AND ({})").format(self._same("old", "IS NOT DISTINCT FROM"), has_null)

    def _insertion(self, names: list[str]) -> Composed:
        columns = _join_sql(Identifier(name) for name in names)
        inserted = SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(self._target, columns, columns, _NEW)
        if not self.key:
            return inserted
        lowered = {key.lower() for key in self.key}
        rest = [Identifier(name) for name in names if name.lower() not in lowered]
        sets = _join_sql(SQL("{0} = excluded.{0}").format(name) for name in rest)
        action = SQL("UPDATE SET {}").format(sets) if rest else SQL("NOTHING")
        upsert = SQL("{} WHERE {} > 0 ON CONFLICT ({}) DO {}")
        return upsert.format(inserted, Identifier(WEIGHT), self._key, action)

    def _same(self, other: LiteralString, equals: LiteralString) -> Composable:
        pair = SQL("{0}.{1} {2} new.{1}")
        return SQL(" AND ").join(pair.format(SQL(other), Identifier(key), SQL(equals)) for key in self.key)

    @property
    def _key(self) -> Composable:
        return _join_sql(Identifier(name) for name in self.key)

    @property
    def _target(self) -> Identifier:
        return Identifier(*self.table.split("."))

    def _wrong(self, place: Place | None, reason: str, hint: str) -> WatersmeetError:
        refusal = self.format.wrong_option(f"USING {self.format.sink.format}", reason, hint)
        return WatersmeetError([replace(refusal, place=place)])


def _reason(error: psycopg.Error) -> str:
    return str(error).strip().split("\n", 1)[0].removesuffix(".")


def _fields(rows: DataFrame) -> list[StructField]:
    return [field for field in rows.schema if field.name != WEIGHT]


def _column_definitions(rows: DataFrame) -> list[Composable]:
    """The columns of a batch as Postgres declares them."""
    return [SQL("{} {}").format(Identifier(f.name), type_in_postgres(f.dataType)) for f in _fields(rows)]


def _join_sql(parts: Iterable[Composable]) -> Composable:
    return SQL(", ").join(parts)


class PostgresConnector(SinkConnector[PostgresSink]):
    """Writes to a table of Postgres."""

    @property
    def postgres(self) -> Postgres:
        """The table."""
        target = self.target
        key = target.key if target.changes == "upsert" else ()
        return Postgres(self.format, target.query, key, target.new_columns)

    def check(self, place: Place | None, spark: SparkSession) -> None:
        """Refuse what cannot be reached."""
        self.postgres.check(place)

    def check_rows(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse rows that an existing table cannot take."""
        self.postgres.check_rows(rows, place)

    def add_columns(self, rows: DataFrame) -> list[str]:
        """Add the columns of rows that an existing table lacks, if it may get any."""
        return self.postgres.add_columns(rows) if self.target.new_columns == "add" else []

    def writer(self) -> Write:
        """The function that writes a batch to the table."""
        postgres, target = self.postgres, self.target
        return lambda batch, number: postgres.write(batch, number, run_of(target.checkpoint), plans_of(batch, target))

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch that the table has."""
        return self.postgres.last_batch(run_of(self.target.checkpoint))

    def had_rows(self, spark: SparkSession) -> bool:
        """Whether the table had rows before the first batch of the query, or has them now and that one is to come."""
        return self.postgres.had_rows()

    def recovery_hint(self, last: int) -> str:
        """The hint for a table that does not match its checkpoint."""
        return self.postgres.recovery_hint(last)
