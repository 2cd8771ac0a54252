"""Postgres as a sink, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from watersmeet.catalog import Sink
from watersmeet.errors import Place, Refusal, refuse
from watersmeet.formats.sink import Changes, SinkFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.sinks.outputs import Write
    from watersmeet.spark.sinks.positions import Position
    from watersmeet.spark.sinks.postgres import Postgres
    from watersmeet.spark.sinks.table_sinks import SinkTarget


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
        from watersmeet.spark.sinks.postgres import Postgres

        return Postgres(self, target.query, target.key if target.changes == "upsert" else ())

    def writer(self, target: SinkTarget) -> Write:
        """What puts batches into the table."""
        from watersmeet.spark.sinks.table_sinks import plans_of, run_of

        postgres = self._table_of(target)
        return lambda batch, number: postgres.write(batch, number, run_of(target.checkpoint), plans_of(batch, target))

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        from watersmeet.spark.sinks.table_sinks import run_of

        return self._table_of(target).position(run_of(target.checkpoint))

    def recovery_hint(self, target: SinkTarget, last: int) -> str:
        """What to do about a table that is not where its checkpoint is."""
        return self._table_of(target).recovery_hint(last)
