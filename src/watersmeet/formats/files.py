"""Files in folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from watersmeet.errors import Place, Refusal, WatersmeetError
from watersmeet.formats.sink import PATH, Changes, SinkFormat
from watersmeet.formats.source import ColumnReader, SourceFormat
from watersmeet.locations import local_path
from watersmeet.schema import TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.connectors.outputs import Position
    from watersmeet.spark.connectors.table_sinks import SinkTarget

WHICH_FILES = frozenset({"path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource",
                         "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "filenameonly",
                         "ignoremissingfiles"})  # fmt: skip
"""Options that say which files are read and when, not how: after any other, only Spark can read them."""

_NAMES = [name for type_ in TYPES if type_.form == "plain" and type_.arrow for name in type_.names if name != "VOID"]
_PLAIN = re.compile(rf"{'|'.join(_NAMES)}|DECIMAL\(\d+, ?\d+\)", re.IGNORECASE)
"""Types that a Parquet file and Spark understand alike."""


class NamedColumns(SourceFormat):
    """Files that have names for their columns."""

    names: ClassVar = ("avro", "orc")
    may_have_change: ClassVar = True

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads, as wider types: of a value that does not fit, its readers would give another one."""
        from watersmeet.spark.connectors.ranges import widen_file, widen_orc, widen_schema

        widen = widen_orc if str(self.source.format).lower() == "orc" else widen_file
        return super().load(spark, None if schema is None else widen_schema(schema, widen), options)


class TextSource(SourceFormat):
    """Lines of text, each of which is a row if it has the declared form."""

    may_be_malformed: ClassVar = True

    def check(self) -> Iterator[Refusal]:
        """Refuse Spark's own ways of passing malformed rows over, none of which is counted."""
        mode = self.source.lowercase_options.get("mode", "failfast").lower()
        if mode != "failfast" and self.source.field(self.corrupt_record_column) is None:
            reason = "rows that cannot be read would silently be lost or become NULLs"
            hint = f"write `malformed 'drop'`, or declare `{self.corrupt_record_column} STRING` and check it yourself."
            option = {"format": str(self.source.format), "option": f"mode '{mode}'"}
            yield Refusal("WRONG_OPTION", {**option, "reason": reason, "hint": hint})

    @property
    def corrupt_record_column(self) -> str:
        """The column in which Spark keeps the text of a malformed row, if it is declared."""
        return self.source.lowercase_options.get("columnnameofcorruptrecord", "_corrupt_record")

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads, and of rows that cannot be read why; those who declare where to keep them look there."""
        from watersmeet.spark.connectors.malformed import load_text

        if schema is None or self.source.field(self.corrupt_record_column) is not None:
            return super().load(spark, schema, options)
        return load_text(spark, self.source, schema, options, is_json=self.holds_json)


class Json(TextSource):
    """A JSON object per line."""

    names: ClassVar = ("json",)
    holds_json: ClassVar = True
    may_have_change: ClassVar = True


class Csv(TextSource):
    """Values with commas between them, a row per line."""

    names: ClassVar = ("csv",)


class Parquet(NamedColumns):
    """Parquet, which workers can read as columns, so that its rows never become rows of the JVM."""

    names: ClassVar = ("parquet",)
    title: ClassVar = "Parquet"

    def can_read_columns(self, types: Iterable[str] = ()) -> bool:
        """Whether nothing needs Spark: plain columns of files under a local path, read as they are."""
        said = self.source.lowercase_options
        is_local = PATH in said and "://" not in local_path(said[PATH])
        return is_local and said.keys() <= WHICH_FILES and all(_PLAIN.fullmatch(type_) for type_ in types)

    def column_reader(self, columns: tuple[str, ...], schema: Any, *, recovers: bool = False) -> ColumnReader | None:
        """What reads these columns of its files in workers, if these are known to give what Spark reads."""
        from watersmeet.spark.connectors.reading import parquet_reader

        return parquet_reader(self.source, columns, schema, recovers=recovers)


class FileSink(SinkFormat):
    """Files in a folder, to which every batch adds its own, or which holds a table as it is."""

    names: ClassVar = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "snapshot"})
    is_batched: ClassVar = True
    has_files: ClassVar = True

    def can_take(self, changes: Changes) -> bool:
        """Whether there is a folder to hold the table."""
        return super().can_take(changes) and (changes != "snapshot" or PATH in self.sink.lowercase_options)

    def check(self) -> Iterator[Refusal]:
        """Refuse a folder of another machine that is to hold a table, and what would have no effect."""
        path = self.sink.lowercase_options.get(PATH, "")
        if self.changes == "snapshot" and "://" in local_path(path):
            reason, hint = "a snapshot can only be kept in a folder on this machine", "write `changes 'log'`."
            yield self.wrong_option(f"path '{path}'", reason, hint)
        if "retention" in self.sink.lowercase_options:
            reason, hint = "the sink keeps no log of its files", "leave it out, and delete old files."
            yield self.wrong_option("retention", reason, hint)

    def check_target(self, target: SinkTarget, place: Place | None, spark: SparkSession) -> None:
        """Refuse a folder of another query, format or checkpoint, and one that cannot be written to."""
        from watersmeet.spark.connectors.files import Files

        if PATH not in self.sink.lowercase_options:
            wrong = self.wrong_option(f"USING {self.sink.format}", "no folder is named", "add `path 'folder'`.")
            raise WatersmeetError([replace(wrong, place=place)])
        Files(target).check_start(spark, place)

    def prepare_target(self, target: SinkTarget, rows: DataFrame | None, place: Place | None) -> None:
        """Finish a compaction that was interrupted, so that readers find all rows before the first batch."""
        from watersmeet.spark.connectors.files import finish_swap
        from watersmeet.spark.private.files import LocalFolder

        path = local_path(self.sink.lowercase_options[PATH])
        if "://" not in path:
            finish_swap(LocalFolder(Path(path)))

    def position(self, target: SinkTarget, spark: SparkSession) -> Position | None:
        """The last batch that a table as it is has; other files are replaced by batches that are written again."""
        from watersmeet.spark.connectors.table_sinks import run_of, snapshot_of

        return snapshot_of(target).position(run_of(target.checkpoint)) if target.changes == "snapshot" else None

    def recovery_hint(self, target: SinkTarget, last: int) -> str:
        """What to do about a table that is not where its checkpoint is."""
        folder = local_path(target.sink.lowercase_options[PATH])
        return f"restore the checkpoint and the folder {folder} to the same moment."

    def can_rewind(self, target: SinkTarget, spark: SparkSession) -> bool:
        """Whether the version of the table that the checkpoint ends with is still there."""
        from watersmeet.spark.connectors.outputs import BatchPlans
        from watersmeet.spark.connectors.table_sinks import run_of, snapshot_of

        plans = BatchPlans.of(spark, target.checkpoint)
        return snapshot_of(target).version_at_end(run_of(target.checkpoint), plans) is not None

    def rewind(self, target: SinkTarget, spark: SparkSession) -> None:
        """Put that version back."""
        from watersmeet.spark.connectors.outputs import BatchPlans
        from watersmeet.spark.connectors.table_sinks import run_of, snapshot_of

        snapshot_of(target).rewind(run_of(target.checkpoint), BatchPlans.of(spark, target.checkpoint))
