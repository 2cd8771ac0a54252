"""Files in folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from watersmeet.catalog import Field
from watersmeet.errors import Refusal
from watersmeet.formats.base import PATH, Changes, SinkFormat, SourceFormat
from watersmeet.schema import TYPES

WHICH_FILES = frozenset({"path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource",
                         "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "filenameonly",
                         "ignoremissingfiles"})  # fmt: skip
"""Options that say which files are read and when, not how: after any other, only Spark can read them."""

_NAMES = [name for type_ in TYPES if type_.form == "plain" and type_.arrow for name in type_.names if name != "VOID"]
_PLAIN = re.compile(rf"{'|'.join(_NAMES)}|DECIMAL\(\d+, ?\d+\)", re.IGNORECASE)
"""Types that a Parquet file and Spark represent the same way."""


class NamedColumns(SourceFormat):
    """Files that have names for their columns."""

    names: ClassVar = ("avro", "orc")
    may_have_change: ClassVar = True


class TextSource(SourceFormat):
    """Lines of text, each of which is a row if it has the declared form."""

    may_be_malformed: ClassVar = True

    def check(self) -> Iterator[Refusal]:
        """Refuse Spark's own modes that skip malformed rows without counting them."""
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

    def can_read_columns(self, columns: Iterable[Field] = ()) -> bool:
        """Whether nothing needs Spark: plain columns of files under a path, read as they are."""
        said = self.source.lowercase_options
        return PATH in said and said.keys() <= WHICH_FILES and all(_PLAIN.fullmatch(field.type) for field in columns)


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
        """Refuse what would have no effect."""
        if "retention" in self.sink.lowercase_options:
            reason, hint = "the sink keeps no log of its files", "leave it out, and delete old files."
            yield self.wrong_option("retention", reason, hint)
