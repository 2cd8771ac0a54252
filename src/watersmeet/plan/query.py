"""What is known of a query once it may run: every name resolved, every condition in its place, every bound found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.catalog import NOWHERE, Span
from watersmeet.plan.expressions import GROUP, Expr
from watersmeet.plan.nodes import ResultKind, SideOutput
from watersmeet.plan.relation import AnalyzedRelation, TimeColumn


@dataclass(frozen=True)
class FinalColumn:
    """What a grouping is by (its name), or the ``field`` of a struct: it lies ``behind`` the end of the window by that.

    >>> FinalColumn("k1", "start", 10_000_000).column
    '#group.k1.start'
    """

    by: str
    field: str = ""
    behind: int = 0

    @property
    def column(self) -> str:
        """What its mark is called."""
        return ".".join(part for part in (GROUP, self.by, self.field) if part)


@dataclass(frozen=True)
class AnalyzedGroup:
    """GROUP BY with aggregates: a table with one row per group.

    ``by`` and ``aggregates`` are columns of `GROUP`, which the outputs of the query refer to. ``window``: one of ``by``
    (its name) is an event-time window over ``time``, so that a group is forgotten once the watermark has passed its
    end. ``is_session``: that window grows with its rows. ``having``: what must be true of a group for the table to show
    it.

    ``final_columns``: those of ``by`` whose values tell which groups change no more, once the watermark has passed
    them. Without a ``time`` the rows are those of a table that says so of its own: ``final_by`` is the one that a group
    is forgotten by.
    """

    family: ClassVar[str] = "group"

    by: tuple[Output, ...]
    aggregates: tuple[Output, ...]
    window: str | None = None
    time: TimeColumn | None = None
    span: Span = NOWHERE
    having: tuple[Expr, ...] = ()
    is_session: bool = False
    final_columns: tuple[FinalColumn, ...] = ()

    @property
    def final_by(self) -> str | None:
        """The one of ``by`` whose mark comes with the rows of a table, and ends groups."""
        return self.final_columns[0].by if self.final_columns and self.time is None else None


@dataclass(frozen=True)
class AnalyzedSortKey:
    """What rows are ordered by: a column of the relation, and what that was written as."""

    expr: Expr
    shown: Expr
    descending: bool
    nulls_last: bool


@dataclass(frozen=True)
class AnalyzedTop:
    """ORDER BY ... LIMIT: a table of the first rows, of each group that ``by`` makes.

    ``ties``: rows that are equal in the order have one place, and all of them are shown or none. ``final_by``: the
    place of the one of ``by`` that tells which groups change no more.
    """

    family: ClassVar[str] = "top"

    order: tuple[AnalyzedSortKey, ...]
    limit: int
    by: tuple[AnalyzedSortKey, ...] = ()
    ties: bool = False
    final_by: int | None = None


@dataclass(frozen=True)
class Output:
    """A column of the result."""

    name: str
    expr: Expr


@dataclass(frozen=True)
class QueryWarning:
    """Something that works but that its author should know, with the place that causes it."""

    message: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedQuery:
    """A query that may run. ``where`` holds the conjuncts of WHERE that stay behind the last join.

    ``late_into`` is the sink of the rows that came too late, and ``side_outputs`` are further outputs apart from the
    result. Without INSERT INTO, their sinks need not be declared: they name outputs of whoever runs the query.

    ``result`` says whether it is a stream or a table; ``key`` is what its ``_key`` is made of: the key of the join or
    of the group, none if it has no key.
    """

    relation: AnalyzedRelation
    outputs: tuple[Output, ...]
    where: tuple[Expr, ...] = ()
    into: str | None = None
    warnings: tuple[QueryWarning, ...] = ()
    span: Span = NOWHERE
    late_into: str | None = None
    side_outputs: tuple[SideOutput, ...] = ()
    result: ResultKind = "stream"
    group: AnalyzedGroup | None = None
    key: tuple[Expr, ...] = ()
    top: AnalyzedTop | None = None

    @property
    def sinks_of_unmatched(self) -> tuple[str | None, str | None]:
        """The sinks of the left and the right rows that stayed alone."""
        sinks = {output.of: output.sink for output in self.side_outputs}
        return sinks.get("UNMATCHED LEFT"), sinks.get("UNMATCHED RIGHT")

    @property
    def ports_into(self) -> tuple[str, ...]:
        """The sinks of the parts of the result, where it is in parts: the rows of each port."""
        return tuple(output.sink for output in self.side_outputs if output.is_instead)
