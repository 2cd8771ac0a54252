"""Lake tables, of Delta and Iceberg: as streams, as change feeds, and to add rows to or merge them into.

A table of Iceberg is named by ``path``, its folder, or by ``table``, its name in a catalog; Spark takes both as the
path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from watersmeet.errors import Refusal
from watersmeet.formats.base import PATH, TABLE, Changes, SinkFormat, SourceFormat
from watersmeet.formats.records import Feed, ddl

CHANGE_TYPE = "_change_type"
"""The column with the change type in Delta's change data feed."""
VERSION = "_commit_version"
"""The column with the table version in Delta's change data feed."""


class DeltaSource(SourceFormat):
    """A Delta table. It brings its own schema, and takes none."""

    names: ClassVar = ("delta",)
    title: ClassVar = "Delta"


class Delta(Feed):
    """Rows with their change in ``_change_type``."""

    name: ClassVar = "delta"
    wanted: ClassVar = CHANGE_TYPE

    @property
    def options(self) -> Mapping[str, str]:
        """The option with which a Delta table returns its changes; other formats can hold such rows too."""
        return {"readChangeFeed": "true"} if str(self.source.format).lower() == self.name else {}

    def schema(self, format_: SourceFormat) -> str:
        """The declared columns, and what says what a row does."""
        return f"{ddl(self.source)}, {CHANGE_TYPE} STRING"


class DeltaSink(SinkFormat):
    """A table of Delta, which knows the batches that it has."""

    names: ClassVar = ("delta",)
    title: ClassVar = "Delta"
    is_batched: ClassVar = True
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        return "add `changes 'upsert'` to its OPTIONS to merge rows by key, or `changes 'log'`."

    def check(self) -> Iterator[Refusal]:
        """Refuse a sink that does not say where its table is, or says it twice."""
        named = [name for name in (PATH, TABLE) if name in self.sink.lowercase_options]
        if len(named) != 1:
            hint = "name its folder, `path '/lake/totals'`, or its name in a catalog, `table 'shop.totals'`."
            reason = "both name a table" if named else "neither of them names a table"
            yield self.wrong_option(f"{PATH}, {TABLE}", reason, hint)


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
