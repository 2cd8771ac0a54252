"""Postgres as a sink, exactly once: the rows of a batch and its number go into the database in one transaction.

The table ``watersmeet_batches`` says of every query which batch it wrote last; a batch that is repeated after a failure
is found there and not written again (`postgres_batches`). Rows come one partition at a time and are copied into a
temporary table, from which SQL puts them into place: never are all of them in memory here.

Needs psycopg, so whoever imports this module looks for that before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composable, Composed, Identifier
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.formats.feed import CHANGE
from watersmeet.formats.postgres import PostgresSink
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.spark.exchange.consolidate import consolidate
from watersmeet.spark.sinks.outputs import drain_batch
from watersmeet.spark.sinks.positions import BatchPlans, Position
from watersmeet.spark.sinks.postgres_batches import (
    BATCHES,
    BatchRecord,
    Connection,
    lock_record,
    read_record,
    table_exists,
)
from watersmeet.spark.sinks.postgres_types import text_for_postgres, type_in_postgres

_NEW = Identifier("watersmeet_new")
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
"""What to do about a table that cannot take rows, by what Postgres says."""
_NULLS_EQUAL = 150000
"""The version from which on Postgres can treat NULLs in a key as equal."""


@dataclass(frozen=True)
class Postgres:
    """A table of a database, as the options of a sink describe it.

    ``query``: who writes. ``key``: the columns by which rows are replaced and deleted; none: rows are only added.
    """

    format: PostgresSink
    query: str
    key: tuple[str, ...] = ()

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
        """Refuse what can be known to fail before the query starts."""
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
        """Refuse rows that the table cannot take, if it is there: what writes them is planned, and nothing is done."""
        rows = rows.drop(CHANGE) if self.key else rows
        try:
            with self.connect() as connection:
                if table_exists(connection, self._target):
                    self._make_new(connection, rows)
                    names = [field.name for field in _fields(rows)]
                    connection.execute(SQL("EXPLAIN {}").format(self._insertion(names)))
                connection.rollback()
        except psycopg.Error as error:
            unique = f"ALTER TABLE {self.table} ADD UNIQUE ({', '.join(self.key)})"
            hint = _HINTS.get(error.sqlstate or "", "correct the table or the query.").format(unique=unique)
            parameters = {"sink": self.format.sink.name, "table": self.table, "hint": hint}
            raise refuse("SINK_UNFIT", place, **parameters, reason=_reason(error)) from error

    def position(self, run: str) -> Position | None:
        """The last batch of a run that the table has; refused if it has those of another run."""
        with self.connect() as connection:
            record = read_record(connection, self.writer)
        self._check_run(record, run)
        return None if record is None else record.position

    def recovery_hint(self, last: int) -> str:
        """What to do about a table that is not where its checkpoint is, which ends at a batch."""
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
                self._check_unique(connection)
                if not record.had_rows:
                    self._check_new_keys(connection)
                self._delete(connection)
            connection.execute(self._insertion(names))
            record.after(Position(number) if plans is None else plans.position(number)).write(connection)

    def _check_run(self, record: BatchRecord | None, run: str) -> None:
        if record is not None and record.run != run:
            shown = f"`{self.writer}` in {BATCHES}"
            forget = f"DELETE FROM {BATCHES} WHERE query = '{self.writer}'"
            hint = f"continue with its storage folder; or empty the table and forget that run: `{forget}`."
            raise refuse("SINK_OF_ANOTHER_CHECKPOINT", target=self.table, record=shown, hint=hint)

    def _is_written(self, record: BatchRecord, number: int, plans: BatchPlans | None) -> bool:
        if plans is None:
            return record.batch >= number
        return plans.has_batch(record.position, number, self.table, self.recovery_hint(number - 1))

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

    def _check_unique(self, connection: Connection) -> None:
        """Refuse a batch that brings several rows of one key."""
        weight = Identifier(WEIGHT)
        several = SQL("SELECT {0} FROM {1} WHERE {2} > 0 GROUP BY {0} HAVING sum({2}) > 1 LIMIT 1")
        self._refuse_key(connection.execute(several.format(self._key, _NEW, weight)).fetchone())

    def _check_new_keys(self, connection: Connection) -> None:
        """Refuse a batch that brings a row, and takes none away, of a key of which the table has a row already."""
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
        """The keys of a batch of which all rows come, or all go. A key that has both is replaced."""
        grouped = SQL("(SELECT {0} FROM {1} GROUP BY {0} HAVING bool_and({2} {3}))")
        return grouped.format(self._key, _NEW, Identifier(WEIGHT), SQL(change))

    @property
    def _matches(self) -> Iterable[Composable]:
        """When a row has the key of another: two conditions, since an index finds equal values but not equal NULLs."""
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
