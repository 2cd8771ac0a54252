"""Postgres as a sink, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import ClassVar

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal
from watersmeet.formats.base import Changes, SinkFormat


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
