"""Tables of databases as sources: read once, as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats.sink import Changes, SinkFormat
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.connectors.outputs import Position, Write
    from watersmeet.spark.connectors.postgres import Postgres
    from watersmeet.spark.connectors.table_sinks import SinkTarget


_STATIC = "`USING jdbc OPTIONS (url 'jdbc:postgresql://host/db', dbtable 'name', static 'true')`"
_CHANGES = "to follow its changes, `CHANGES FROM debezium` from a topic"


@dataclass(frozen=True)
class Driver:
    """What speaks to the databases of an address: its class, and the package that has it."""

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
_NO_DRIVER = ("No suitable driver", "ClassNotFoundException")
"""What Java says of a driver that it does not have, asked for by an address and by a name."""


def driver_of(source: Source) -> Driver | None:
    """The driver for the address that a source names, if it is known.

    >>> driver_of(Source("c", (), options={"url": "jdbc:postgresql://db/shop"})).name
    'org.postgresql.Driver'
    """
    return _DRIVERS.get(f"{source.lowercase_options.get('url', '')}::".split(":")[1].lower())


class Jdbc(SourceFormat):
    """What Spark's JDBC reads, which is no stream; and Postgres, which is a sink by that name and no source."""

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

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads. Java finds a driver that came with a package by its name only."""
        driver = driver_of(self.source)
        further = (
            [{**options, "driver": driver.name}] if driver and "driver" not in self.source.lowercase_options else []
        )
        for attempt in (options, *further):
            try:
                frame = super().load(spark, schema, attempt)
                _ = frame.schema
            except Exception as error:
                if all(word not in str(error) for word in _NO_DRIVER):
                    raise
            else:
                return frame
        raise WatersmeetError([self._without_driver()])

    def _without_driver(self) -> Refusal:
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
        """What to write where a table goes to it."""
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

    def check_target(self, target: SinkTarget, place: Place | None, spark: SparkSession) -> None:
        """Refuse what cannot be reached."""
        if find_spec("psycopg") is None:
            raise refuse("POSTGRES_NOT_INSTALLED", place, package="psycopg")
        self._table_of(target).check(place)

    def check_rows(self, target: SinkTarget, rows: DataFrame, place: Place | None) -> None:
        """Refuse rows that the table, where it is there, cannot take."""
        self._table_of(target).check_rows(rows, place)

    def _table_of(self, target: SinkTarget) -> Postgres:
        from watersmeet.spark.connectors.postgres import Postgres

        return Postgres(self, target.query, target.key if target.changes == "upsert" else ())

    def writer(self, target: SinkTarget) -> Write:
        """What puts batches into the table."""
        from watersmeet.spark.connectors.table_sinks import plans_of, run_of

        postgres = self._table_of(target)
        return lambda batch, number: postgres.write(batch, number, run_of(target.checkpoint), plans_of(batch, target))

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        from watersmeet.spark.connectors.table_sinks import run_of

        return self._table_of(target).position(run_of(target.checkpoint))

    def recovery_hint(self, target: SinkTarget, last: int) -> str:
        """What to do about a table that is not where its checkpoint is."""
        return self._table_of(target).recovery_hint(last)
