"""The table ``watersmeet_batches`` of a database: of every query the last batch that it wrote there.

A row is written in the transaction of the batch. It is locked first, so that of two drivers one waits for the other;
the first batch makes its row before it locks it. Earlier versions made the table without its last two columns.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors
from psycopg.sql import SQL, Identifier

from watersmeet.spark.sinks.positions import Position

Connection = psycopg.Connection[Any]

BATCHES = "watersmeet_batches"
"""The table in which the batches that were written are recorded."""

_TABLE = Identifier(BATCHES)
_LATER = ("plan", "had_rows")
"""The columns that a table of an earlier version does not have."""
_NONE = -1


@dataclass(frozen=True)
class BatchRecord:
    """What is recorded of a query: the run that writes, its last batch, and when that was planned.

    ``had_rows``: whether the table held rows of others before the first batch; None: an earlier version wrote that one.
    ``is_whole``: whether the table has all columns.
    """

    writer: str
    run: str
    batch: int = _NONE
    position: Position | None = None
    had_rows: bool | None = None
    is_whole: bool = True

    @property
    def is_first(self) -> bool:
        """Whether no batch is written yet."""
        return self.batch == _NONE

    def after(self, position: Position) -> BatchRecord:
        """The record once a batch is written."""
        return replace(self, batch=position.batch, position=position)

    def write(self, connection: Connection) -> None:
        """Put the record, whose row is there, into the table."""
        later = SQL(", plan = %s, had_rows = %s") if self.is_whole else SQL("")
        stored = (self.position.to_text() if self.position else None, self.had_rows) if self.is_whole else ()
        update = SQL("UPDATE {} SET batch = %s{} WHERE query = %s").format(_TABLE, later)
        connection.execute(update, (self.batch, *stored, self.writer))


def table_exists(connection: Connection, table: Identifier) -> bool:
    """Whether a table is there."""
    row = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    return row is not None and row[0] is not None


def read_record(connection: Connection, writer: str) -> BatchRecord | None:
    """What is recorded of a query; None: nothing is."""
    return _read(connection, writer, locks=False) if table_exists(connection, _TABLE) else None


def lock_record(connection: Connection, writer: str, run: str) -> BatchRecord:
    """What is recorded of a query, for this transaction alone; without batches, if it has not written any."""
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
    position = None if batch == _NONE else Position.from_text(plan, batch)
    return BatchRecord(writer, run, batch, position, had_rows, is_whole)


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
