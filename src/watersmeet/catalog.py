"""The names that a script can use: sources with their columns and watermarks, and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

SourceKind = Literal["stream", "table"]
"""``stream``: rows that only arrive. ``table``: rows that are replaced and deleted by key."""


@dataclass(frozen=True)
class Span:
    """Offsets ``start`` to ``end`` (exclusive) in the text of the script."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of the other."""
        return Span(self.start, other.end)


def is_folder_name(name: str) -> bool:
    """Whether a folder called like that lies in the one that it is made in.

    >>> [is_folder_name(name) for name in ("orders", "a b", "..", "../x", "")]
    [True, True, False, False, False]
    """
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


NOWHERE = Span(0, 0)
"""The span of what no text says, such as an argument of a Python call."""


@dataclass(frozen=True)
class Field:
    """A column: its name and its type in Spark's DDL, for example ``DECIMAL(10,2)``; "" where only Spark can tell.

    A ``hidden`` column can be named but is not part of ``*``, such as the key of a Kafka record.
    """

    name: str
    type: str
    nullable: bool = True
    hidden: bool = False


@dataclass(frozen=True)
class Amount:
    """A length of time: microseconds if ``is_interval``, else a plain number for integer event times."""

    value: int
    is_interval: bool


@dataclass(frozen=True)
class Watermark:
    """A promise about ``column``: no row will be more than ``lag`` behind the latest one seen.

    After ``idle`` microseconds of wall clock without a row it stops holding the other side back; None: it never does.
    """

    column: str
    lag: Amount
    span: Span = NOWHERE
    idle: int | None = None


@dataclass(frozen=True)
class WindowStart:
    """A column that holds the start of a window around ``time`` of the same row.

    ``length``: how long the window is at most, in microseconds; ``end``: the column with its end, "" without one;
    ``shortest``: how long it is at least, since windows that start together may end one after the other.
    """

    column: str
    time: str
    length: int
    end: str = ""
    shortest: int = 0


OFFSETS = "offsets"
"""The seam of a history at the offsets from which its topic is read, in place of a time."""


@dataclass(frozen=True)
class StreamHistory:
    """The history of a stream (``AFTER format OPTIONS (...)``): what is read before the stream itself.

    ``until`` is the event time at which the stream takes over, or `OFFSETS`; empty: none is said. ``options`` are the
    others.
    """

    format: str
    options: Mapping[str, str]
    until: str = ""
    span: Span = NOWHERE


@dataclass(frozen=True)
class Source:
    """Something rows come from. Without a ``format`` the rows are handed in (a DataFrame, a case).

    ``order`` is the column that gives the order of arrival, which joins of windows follow; None: the order of delivery.
    ``primary_key`` are the columns that identify the rows of a table; a table without one is a bag of rows that
    change by explicit inserts and deletes. ``changes``: its rows come as a change feed of that form (``CHANGES FROM``).
    ``is_static``: a complete table that never changes, next to streams. ``read_from``: the file that its
    columns were read from; empty: they are declared. ``ends``: columns that hold the end of a window around a time of
    the same row, each with that time; ``starts``: columns that hold the start of such a window. ``final_columns``:
    columns of a table that have watermarks, without being times of arrival: rows in which such a column is at or before
    its watermark change no more. ``history``: what is read before it.
    """

    name: str
    fields: tuple[Field, ...]
    watermarks: tuple[Watermark, ...] = ()
    kind: SourceKind = "stream"
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    span: Span = NOWHERE
    order: str | None = None
    order_span: Span = NOWHERE
    primary_key: tuple[str, ...] = ()
    changes: str | None = None
    is_static: bool = False
    read_from: str = ""
    ends: tuple[tuple[str, str], ...] = ()
    starts: tuple[WindowStart, ...] = ()
    final_columns: tuple[str, ...] = ()
    history: StreamHistory | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that ``_key`` stands for: one of that name, the primary key, or what the option ``key`` names.

        >>> Source("orders", (Field("id", "BIGINT"),), options={"key": "id"}).key
        ('id',)
        """
        if self.field("_key") is not None:
            return ("_key",)
        return self.primary_key or tuple(
            name.strip() for name in self.lowercase_options.get("key", "").split(",") if name.strip()
        )

    @property
    def lowercase_options(self) -> dict[str, str]:
        """The options by their names in small letters, as Spark compares them."""
        return {name.lower(): value for name, value in self.options.items()}

    def with_options(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Source:
        """The source with other options, and its history with others, too."""
        history = self.history and replace(self.history, options=change(self.history.options))
        return replace(self, options=change(self.options), history=history)

    def field(self, name: str) -> Field | None:
        """The column of that name; names compare without case, as in Spark."""
        return self._by_name.get(name.lower())

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        """The columns by their names in small letters; of several the first."""
        return {field.name.lower(): field for field in reversed(self.fields)}

    def watermark(self, column: str) -> Watermark | None:
        """The watermark of that column, if it has one."""
        return next((w for w in self.watermarks if w.column.lower() == column.lower()), None)


@dataclass(frozen=True)
class Sink:
    """Somewhere rows go: a Spark sink format and its options.

    ``fields``: the columns it declares, which a query that writes to it must give; none: whatever the query has.
    """

    name: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    span: Span = NOWHERE
    fields: tuple[Field, ...] = ()

    @property
    def lowercase_options(self) -> dict[str, str]:
        """The options by their names in small letters, as Spark compares them."""
        return {name.lower(): value for name, value in self.options.items()}
