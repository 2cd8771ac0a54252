"""What is known of a query once it may run: every name resolved, every condition in its place, every bound found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.catalog import NOWHERE, Span
from watersmeet.plan.expressions import GROUP, Expr
from watersmeet.plan.nodes import Apart, ResultKind
from watersmeet.plan.relation import AnalyzedRelation, TimeColumn


@dataclass(frozen=True)
class Settles:
    """What a grouping is by (its name), or the ``field`` of a struct: it lies ``behind`` the end of the window by that.

    >>> Settles("k1", "start", 10_000_000).column
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
    (its name) is an event-time window over ``time``, so that a group is forgotten once the mark has passed its end.
    ``is_session``: that window grows with its rows. ``having``: what must be true of a group for the table to show it.

    ``settles``: those of ``by`` whose values tell which groups change no more, once the mark has passed them. Without a
    ``time`` the rows are those of a table that says so of its own: ``settled_by`` is the one that a group is forgotten
    by.
    """

    family: ClassVar[str] = "group"

    by: tuple[Output, ...]
    aggregates: tuple[Output, ...]
    window: str | None = None
    time: TimeColumn | None = None
    span: Span = NOWHERE
    having: tuple[Expr, ...] = ()
    is_session: bool = False
    settles: tuple[Settles, ...] = ()

    @property
    def settled_by(self) -> str | None:
        """The one of ``by`` whose mark comes with the rows of a table, and ends groups."""
        return self.settles[0].by if self.settles and self.time is None else None


@dataclass(frozen=True)
class OrderedBy:
    """What rows are ordered by: a column of the relation, and what that was written as."""

    expr: Expr
    shown: Expr
    descending: bool
    nulls_last: bool


@dataclass(frozen=True)
class AnalyzedTop:
    """ORDER BY ... LIMIT: a table of the first rows, of each group that ``by`` makes.

    ``ties``: rows that are equal in the order have one place, and all of them are shown or none. ``settled_by``: the
    place of the one of ``by`` that tells which groups change no more.
    """

    family: ClassVar[str] = "top"

    order: tuple[OrderedBy, ...]
    limit: int
    by: tuple[OrderedBy, ...] = ()
    ties: bool = False
    settled_by: int | None = None


@dataclass(frozen=True)
class Output:
    """A column of the result."""

    name: str
    expr: Expr


@dataclass(frozen=True)
class Warned:
    """Something that works but that its author should know, with the place that causes it."""

    message: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedQuery:
    """A query that may run. ``where`` holds the conjuncts of WHERE that stay behind the last join.

    ``late_into`` is the sink of the rows that came too late, and ``apart`` are further outputs apart from the result.
    Without INSERT INTO, their sinks need not be declared: they name outputs of whoever runs the query.

    ``result`` says whether it is a stream or a table; ``key`` is what its ``_key`` is made of: the key of the join or
    of the group, none if it has no key.
    """

    relation: AnalyzedRelation
    outputs: tuple[Output, ...]
    where: tuple[Expr, ...] = ()
    into: str | None = None
    warnings: tuple[Warned, ...] = ()
    span: Span = NOWHERE
    late_into: str | None = None
    apart: tuple[Apart, ...] = ()
    result: ResultKind = "stream"
    group: AnalyzedGroup | None = None
    key: tuple[Expr, ...] = ()
    top: AnalyzedTop | None = None

    @property
    def unmatched_into(self) -> tuple[str | None, str | None]:
        """The sinks of the left and the right rows that stayed alone."""
        sinks = {apart.of: apart.sink for apart in self.apart}
        return sinks.get("UNMATCHED LEFT"), sinks.get("UNMATCHED RIGHT")

    @property
    def ports_into(self) -> tuple[str, ...]:
        """The sinks of the parts of the result, where it is in parts: the rows of each port."""
        return tuple(apart.sink for apart in self.apart if apart.is_instead)
