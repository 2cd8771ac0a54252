"""Delta: tables as streams, their change data feed, and tables that rows are added to or merged into by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from watersmeet.errors import Place, Refusal, refuse
from watersmeet.formats.connectors import EXTENSIONS, connector_of
from watersmeet.formats.records import Feed, ddl
from watersmeet.formats.sink import PATH, Changes, SinkFormat
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.connectors.outputs import Position, Write
    from watersmeet.spark.connectors.table_sinks import SinkTarget


CHANGE_TYPE = "_change_type"
"""Where Delta tells what a row of its change data feed does."""
VERSION = "_commit_version"
"""Where it tells in which version of the table it does."""


class DeltaSource(SourceFormat):
    """A table of Delta. It has a schema of its own, and takes none."""

    names: ClassVar = ("delta",)
    title: ClassVar = "Delta"

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads."""
        return super().load(spark, None, options)


class Delta(Feed):
    """Rows that say in ``_change_type`` what they do."""

    name: ClassVar = "delta"
    wanted: ClassVar = CHANGE_TYPE

    @property
    def options(self) -> Mapping[str, str]:
        """What lets a Delta table tell its changes; other formats can hold such rows too."""
        return {"readChangeFeed": "true"} if str(self.source.format).lower() == self.name else {}

    def schema(self, format_: SourceFormat) -> str:
        """The declared columns, and what says what a row does."""
        return f"{ddl(self.source)}, {CHANGE_TYPE} STRING"

    def changes(self, frame: DataFrame) -> DataFrame:
        """The changes."""
        from watersmeet.spark.connectors.debezium import delta_changes

        return delta_changes(self.source, frame)


class DeltaSink(SinkFormat):
    """A table of Delta, which knows the batches that it has."""

    names: ClassVar = ("delta",)
    title: ClassVar = "Delta"
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})

    @property
    def changes_hint(self) -> str:
        """What to write where a table goes to it."""
        return "add `changes 'upsert'` to its OPTIONS to merge rows by key, or `changes 'log'`."

    def check_target(self, target: SinkTarget, place: Place | None, spark: SparkSession) -> None:
        """Refuse to merge in a session that does not know how."""
        connector = connector_of("delta", "4.1")
        assert connector is not None
        needed = connector.settings[EXTENSIONS]
        if target.changes == "upsert" and needed not in str(spark.conf.get(EXTENSIONS, "")):
            options = " ".join(f"--conf {name}={value}" for name, value in connector.settings.items())
            reason = "the Spark session does not have Delta's MERGE"
            hint = f"start the session with it: `{options}`."
            option = "changes 'upsert'"
            raise refuse("WRONG_OPTION", place, format="delta", option=option, reason=reason, hint=hint)

    def writer(self, target: SinkTarget) -> Write:
        """What writes batches."""
        from watersmeet.spark.connectors.lakes import delta_writer

        return delta_writer(target)

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        from watersmeet.spark.connectors.lakes import delta_commit

        commit = delta_commit(target, spark)
        return None if commit is None else commit.position


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
        from watersmeet.spark.connectors.lakes import iceberg_merger

        return iceberg_merger(target, self.sink.lowercase_options[_TABLE])

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that the table has."""
        from watersmeet.spark.connectors.lakes import iceberg_commit

        commit = iceberg_commit(target, spark)
        return None if commit is None else commit.position

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return _table_as_path(super().options)


def _table_as_path(options: Mapping[str, str]) -> dict[str, str]:
    return {PATH if name.lower() == _TABLE else name: value for name, value in options.items()}
