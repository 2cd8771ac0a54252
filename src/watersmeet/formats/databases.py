"""Databases: tables read once over JDBC, and tables of Postgres that rows are added to or merged into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Refusal
from watersmeet.formats.base import Changes, SinkFormat, SourceFormat

_STATIC = "`USING jdbc OPTIONS (url 'jdbc:postgresql://host/db', dbtable 'name', static 'true')`"
_CHANGES = "to follow its changes, `CHANGES FROM debezium` from a topic"


@dataclass(frozen=True)
class Driver:
    """The JDBC driver for the databases of an address: its class, and the package that has it."""

    name: str
    package: str


_DRIVERS = {
    "postgresql": Driver("org.postgresql.Driver", "org.postgresql:postgresql:42.7.4"),
    "mysql": Driver("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.1.0"),
    "mariadb": Driver("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.1"),
    "sqlserver": Driver(
        "com.microsoft.sqlserver.jdbc.SQLServerDriver", "com.microsoft.sqlserver:mssql-jdbc:12.8.1.jre11"
    ),
    "oracle": Driver("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc11:23.5.0.24.07"),
    "sqlite": Driver("org.sqlite.JDBC", "org.xerial:sqlite-jdbc:3.47.1.0"),
}
"""The drivers of databases, by what follows ``jdbc:`` in their addresses."""


def driver_of(source: Source) -> Driver | None:
    """The driver for the address that a source names, if it is known.

    >>> driver_of(Source("c", (), options={"url": "jdbc:postgresql://db/shop"})).name
    'org.postgresql.Driver'
    """
    return _DRIVERS.get(f"{source.lowercase_options.get('url', '')}::".split(":")[1].lower())


class Jdbc(SourceFormat):
    """Tables that Spark's JDBC reads, in batches only; and Postgres, which is only a sink."""

    names: ClassVar = ("jdbc", "postgres", "postgresql")

    def check(self) -> Iterator[Refusal]:
        """Refuse what would be read as a stream."""
        format_ = str(self.source.format)
        is_static = (
            self.source.kind == "table" and self.source.lowercase_options.get("static", "false").lower() == "true"
        )
        if format_.lower() != "jdbc":
            reason, hint = "it is a sink, not a source", f"write {_STATIC} in CREATE TABLE; or {_CHANGES}."
        elif not is_static:
            reason = "Spark reads it once, not as a stream"
            table = "" if self.source.kind == "table" else "write CREATE TABLE, and "
            hint = f"{table}add `static 'true'` to its OPTIONS, if it never changes; or {_CHANGES}."
        else:
            return
        parameters = {"format": format_, "option": f"USING {format_}", "reason": reason, "hint": hint}
        yield Refusal("WRONG_OPTION", parameters)

    @property
    def driver_refusal(self) -> Refusal:
        """The refusal of a database whose driver Java does not have."""
        said, driver = self.source.lowercase_options, driver_of(self.source)
        package = "its jar, `--jars driver.jar`" if driver is None else f"`--packages {driver.package}`"
        hint = f"{'correct `driver`, or ' if 'driver' in said else ''}add the driver of the database: {package}."
        address = ":".join(said.get("url", "").split(":")[:2])
        return Refusal("MISSING_CONNECTOR", {"format": address or str(self.source.format), "hint": hint})


class PostgresSink(SinkFormat):
    """A table of a database, whose rows are added or, of a table, put in, replaced and deleted by key."""

    names: ClassVar = ("postgres", "postgresql")
    title: ClassVar = "Postgres"
    takes: ClassVar[frozenset[Changes]] = frozenset({"upsert"})
    default_changes: ClassVar[Changes | None] = "upsert"
    is_spark_format: ClassVar = False
    is_batched: ClassVar = True
    has_every_batch: ClassVar = True

    @classmethod
    def covers(cls, sink: Sink) -> bool:
        """Whether it is Postgres that a sink names, or its driver."""
        is_jdbc = sink.format.lower() == "jdbc" and sink.lowercase_options.get("url", "").lower().startswith(
            "jdbc:postgresql:"
        )
        return is_jdbc or super().covers(sink)

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        return "leave `changes` out: Postgres upserts by key."

    @property
    def table(self) -> str:
        """The name of the table, with its schema if that is said."""
        return self.sink.lowercase_options.get("table") or self.sink.lowercase_options.get("dbtable") or ""

    def check(self) -> Iterator[Refusal]:
        """Refuse a sink that names no table."""
        if not self.table:
            yield self.wrong_option(
                f"USING {self.sink.format}", "no table is named", "add `table 'name'` to its OPTIONS."
            )

    def check_installed(self) -> Iterator[Refusal]:
        """Refuse if the client of Postgres is missing."""
        if find_spec("psycopg") is None:
            yield Refusal("POSTGRES_NOT_INSTALLED", {"package": "psycopg"})
