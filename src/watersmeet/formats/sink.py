"""The base class of sink formats, and sinks that only display their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal
from watersmeet.formats.protobuf.descriptor import OPTIONS as PROTOBUF
from watersmeet.formats.registry import OPTIONS as REGISTRY

Changes = Literal["log", "snapshot", "upsert"]
"""The form in which a sink takes the changes of a table. ``log``: as rows, each with whether it comes or goes.
``snapshot``: it holds the table as it is after each batch. ``upsert``: rows are put in, replaced and deleted by key.
"""

CHANGES, PATH, TABLE = "changes", "path", "table"
"""The option of CREATE SINK that says so; the one that says in which folder; and the one that names a table."""

_PLAIN = frozenset({CHANGES, "key", "value.format", "key.format", "delivery", "partitions", "replication"})
OWN = _PLAIN | REGISTRY | PROTOBUF
"""The options of a sink that are our own, in small letters. All others are Spark's."""

_DATABASE = ("url", "dsn", "host", "port", "dbname")
"""The options that say which database a table is of."""


@dataclass(frozen=True)
class SinkFormat:
    """The format of a sink. This class is that of any Spark format; subclasses override it.

    - ``names``: its names in USING, in small letters; ``title``: its name in a sentence
    - ``takes``: how it can take the changes of a table; ``default_changes``: the default
    - ``is_display``: it stores nothing and only displays rows and changes
    - ``has_text_keys``: keys are written as text
    - ``is_spark_format``: Spark must know the format
    - ``is_batched``: it is always written batch by batch, never by a streaming sink of Spark's
    - ``has_files``: it is files in a folder, which can be renamed and replaced
    - ``has_every_batch``: it records its last batch, so that every batch is written, even without rows
    """

    sink: Sink

    names: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = ""
    takes: ClassVar[frozenset[Changes]] = frozenset({"log"})
    default_changes: ClassVar[Changes | None] = None
    is_display: ClassVar[bool] = False
    has_text_keys: ClassVar[bool] = False
    is_spark_format: ClassVar[bool] = True
    is_batched: ClassVar[bool] = False
    has_files: ClassVar[bool] = False
    has_every_batch: ClassVar[bool] = False

    @classmethod
    def covers(cls, sink: Sink) -> bool:
        """Whether a sink has this format."""
        return sink.format.lower() in cls.names

    @property
    def changes(self) -> str | None:
        """The form in which changes go there, by the sink or by its format."""
        said = self.sink.lowercase_options.get(CHANGES)
        return self.default_changes if said is None else said.lower()

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return {name: value for name, value in self.sink.options.items() if name.lower() not in OWN}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced, if they are said.

        >>> SinkFormat(Sink("totals", "postgres", {"key": "id, day"})).key
        ('id', 'day')
        """
        return tuple(name.strip() for name in self.sink.lowercase_options.get("key", "").split(",") if name.strip())

    @property
    def key_format(self) -> str:
        """The format of the keys of records."""
        return self.sink.lowercase_options.get("key.format", "string").lower()

    @property
    def value_format(self) -> str:
        """The format of the values of records."""
        return self.sink.lowercase_options.get("value.format", "json").lower()

    @property
    def place(self) -> str:
        """The location of a sink: its path, its database table, or its name."""
        said = self.sink.lowercase_options
        if PATH in said:
            return f"path {said[PATH].rstrip('/')}"
        table = said.get("table") or said.get("dbtable")
        if table is None:
            return self.sink.name.lower()
        return " ".join(("table", table.lower(), *(said.get(name, "") for name in _DATABASE)))

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        held = ", or `changes 'snapshot'` for the current table" if "snapshot" in self.takes else ""
        log = f"add `changes 'log'` to the OPTIONS of {self.sink.name} for a changelog"
        return f"{log}{held}; `USING postgres` upserts."

    def can_take(self, changes: Changes) -> bool:
        """Whether it can take changes so."""
        return changes in self.takes

    def is_encoded(self, changes: Changes | None) -> bool:
        """Whether rows become records with a key and a value."""
        return "value.format" in self.sink.lowercase_options

    def check(self) -> Iterator[Refusal]:
        """The refusals of its options, without Spark."""
        yield from ()

    def check_installed(self) -> Iterator[Refusal]:
        """The packages of Python that writing there needs and that are not installed."""
        yield from ()

    def wrong_option(self, option: str, reason: str, hint: str) -> Refusal:
        """The refusal of an option."""
        return Refusal("WRONG_OPTION", {"format": self.sink.format, "option": option, "reason": reason, "hint": hint})


CONSOLE, NOTHING = Sink("console", "console", {"truncate": "false"}), Sink("nothing", "noop")
"""The sink of a query that names none; and the sink of rows that are not needed."""


class DisplaySink(SinkFormat):
    """A sink that displays rows and stores none."""

    names: ClassVar = ("console", "noop")
    is_display: ClassVar = True


class MemorySink(DisplaySink):
    """A table of the session, which Spark cannot read as a stream and so does not find by name."""

    names: ClassVar = ("memory",)
    is_spark_format: ClassVar = False
