"""Iceberg: tables as streams, and tables that rows are added to or merged into.

``path`` names the folder of a table and ``table`` its name in a catalog; Spark takes both as the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from watersmeet.errors import Refusal
from watersmeet.formats.base import PATH, TABLE, Changes, SinkFormat, SourceFormat


class IcebergSource(SourceFormat):
    """An Iceberg table. It brings its own schema, and takes none."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"


class IcebergSink(SinkFormat):
    """A table of Iceberg, which knows the batches that it has."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"
    is_batched: ClassVar = True
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})

    def check(self) -> Iterator[Refusal]:
        """Refuse to merge into a folder: only a catalog knows tables that can be."""
        if self.changes == "upsert" and TABLE not in self.sink.lowercase_options:
            hint = "name it as in its catalog, for example `table 'lake.shop.totals'`."
            yield self.wrong_option("changes 'upsert'", "rows can be merged only into a table of a catalog", hint)

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        return "add `changes 'upsert'` to its OPTIONS to merge rows by key, or `changes 'log'`."

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return table_as_path(super().options)


def table_as_path(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table of Iceberg as Spark takes them: the name of the table is its path."""
    return {PATH if name.lower() == TABLE else name: value for name, value in options.items()}
