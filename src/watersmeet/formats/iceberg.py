"""Iceberg: tables as streams of what is added to them, and tables that rows are added to or merged into by key.

``path`` names the folder of a table, ``table`` its name in a catalog. To Spark both are the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from watersmeet.errors import Refusal
from watersmeet.formats.sink import PATH, Changes, SinkFormat
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.sinks.outputs import Write
    from watersmeet.spark.sinks.positions import Position
    from watersmeet.spark.sinks.table_sinks import SinkTarget

_TABLE = "table"


class IcebergSource(SourceFormat):
    """A table of Iceberg. It has a schema of its own, and takes none."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads."""
        return super().load(spark, None, _table_as_path(options))


class IcebergSink(SinkFormat):
    """A table of Iceberg. Of rows it knows the batches that it has; a batch that is merged again changes nothing."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})

    def check(self) -> Iterator[Refusal]:
        """Refuse to merge into a folder: only a catalog knows tables that can be."""
        if self.changes == "upsert" and _TABLE not in self.sink.lowercase_options:
            hint = "name it as in its catalog, for example `table 'lake.shop.totals'`."
            yield self.wrong_option("changes 'upsert'", "rows can be merged only into a table of a catalog", hint)

    @property
    def changes_hint(self) -> str:
        """What to write where a table goes to it."""
        return "add `changes 'upsert'` to its OPTIONS to merge rows by key, or `changes 'log'`."

    def writer(self, target: SinkTarget) -> Write:
        """What writes batches."""
        if target.changes != "upsert":
            return super().writer(target)
        from watersmeet.spark.sinks.iceberg import iceberg_merger

        return iceberg_merger(target, self.sink.lowercase_options[_TABLE])

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        from watersmeet.spark.sinks.iceberg import iceberg_commit

        commit = iceberg_commit(target, spark)
        return None if commit is None else commit.position

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return _table_as_path(super().options)


def _table_as_path(options: Mapping[str, str]) -> dict[str, str]:
    return {PATH if name.lower() == _TABLE else name: value for name, value in options.items()}
