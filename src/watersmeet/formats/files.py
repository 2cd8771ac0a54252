"""Files in folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from watersmeet.errors import Refusal
from watersmeet.formats.sink import PATH, Changes, SinkFormat
from watersmeet.formats.source import ReadFile, SourceFormat
from watersmeet.type_names import TYPES

WHICH_FILES = frozenset({"path", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource",
                         "sourcearchivedir", "pathglobfilter", "recursivefilelookup", "filenameonly"})  # fmt: skip
"""Options that say which files are read and when, not how."""

_NAMES = [name for type_ in TYPES if type_.form == "plain" and type_.arrow != ("null",) for name in type_.names]
_PLAIN = re.compile(rf"{'|'.join(_NAMES)}|DECIMAL\(\d+, ?\d+\)", re.IGNORECASE)
"""Types that a Parquet file and Spark understand alike."""


class Csv(SourceFormat):
    """Text in which columns have a place and need no name."""

    names: ClassVar = ("csv",)

    def decides(self, option: str) -> bool:
        """Whether an option says how files are read, not which."""
        return option not in WHICH_FILES


class NamedColumns(Csv):
    """Files that have names for their columns."""

    names: ClassVar = ("avro", "orc")
    may_tell_changes: ClassVar = True


class Json(NamedColumns):
    """A JSON object per line."""

    names: ClassVar = ("json",)
    holds_json: ClassVar = True


class Parquet(NamedColumns):
    """Parquet, which workers can read as columns, so that its rows never become rows of the JVM."""

    names: ClassVar = ("parquet",)
    title: ClassVar = "Parquet"

    def may_be_columns(self, types: Iterable[str] = ()) -> bool:
        """Whether nothing needs Spark: plain columns of files under a local path, read as they are."""
        said = self.source.said
        local = "://" not in said.get(PATH, "").removeprefix("file://")
        return PATH in said and local and said.keys() <= WHICH_FILES and all(_PLAIN.fullmatch(one) for one in types)

    @property
    def read_file(self) -> ReadFile:
        """What reads columns from a file in a worker."""
        from watersmeet.spark.sources.columnar import read_parquet

        return read_parquet


class FileSink(SinkFormat):
    """Files in which a folder can hold a table as it is."""

    names: ClassVar = ("csv", "json", "orc", "parquet")
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "snapshot"})

    def can_take(self, changes: Changes) -> bool:
        """Whether there is a folder to hold the table."""
        return super().can_take(changes) and (changes != "snapshot" or PATH in self.sink.said)

    def check(self) -> Iterator[Refusal]:
        """Refuse a folder of another machine that is to hold a table."""
        path = self.sink.said.get(PATH, "")
        if self.changes == "snapshot" and "://" in path.removeprefix("file://"):
            reason, hint = "a table as it is can only be kept in a folder of this machine", "write `changes 'log'`."
            yield self.wrong_option(f"path '{path}'", reason, hint)
