"""What was asked: frozen nodes, before anything is known about columns or types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from watersmeet.catalog import NOWHERE, Amount, Sink, Source, Span, Watermark
from watersmeet.errors import Place
from watersmeet.plan.expressions import Expr

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Which side is preserved: ``left`` pads the left row that dies alone, ``full`` both.

``semi`` and ``anti`` show the left side only: a left row once, at its first match; a left row that dies alone.
"""

LEFT_ONLY: frozenset[JoinKind] = frozenset({"semi", "anti"})
"""The kinds whose result has no columns of the right side."""


WindowKind = Literal["count", "time", "delta"]
"""What ends a row's stay in a window: so many later rows, so long on the wall clock, so far behind a newer row."""

LimitKind = Literal["age", "partitions", "rows"]
"""What discards a whole partition: so long without an insertion, so many partitions, so many rows in the window."""

Side = Literal["left", "right"]

PRESERVED: Mapping[Side, tuple[JoinKind, ...]] = {"left": ("left", "full"), "right": ("right", "full")}
"""The kinds of join that show rows of a side though they stayed alone, padded or on an output of their own."""


@dataclass(frozen=True)
class PartitionLimit:
    """``PARTITION AGE d``, ``PARTITION COUNT n`` or ``TUPLE COUNT n``: when partitions are discarded."""

    kind: LimitKind
    amount: Amount
    span: Span = NOWHERE


@dataclass(frozen=True)
class Window:
    """``WINDOW (COUNT n | TIME d | DELTA column n [PARTITION BY ...] [limit])``: how long rows of a side stay.

    ``column`` is what DELTA measures. With ``partition_by`` the window applies to each partition on its own.
    """

    kind: WindowKind
    amount: Amount
    column: Expr | None = None
    partition_by: tuple[Expr, ...] = ()
    limit: PartitionLimit | None = None
    span: Span = NOWHERE


@dataclass(frozen=True)
class Scan:
    """A source under an alias; ``watermarks`` are those that the query itself gives it, not its declaration."""

    source: str
    alias: str
    span: Span = NOWHERE
    window: Window | None = None
    watermarks: tuple[Watermark, ...] = ()


@dataclass(frozen=True)
class Union:
    """The rows of several sources under one alias: ``(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) u``."""

    scans: tuple[Scan, ...]
    alias: str
    span: Span = NOWHERE
    window: Window | None = None


@dataclass(frozen=True)
class Within:
    """``WITHIN d``: the event times of both sides differ by at most ``amount``."""

    amount: Amount
    span: Span = NOWHERE


Values = tuple[tuple[str, Expr], ...]
"""Columns by name, each with the constant that stands for it."""


@dataclass(frozen=True)
class Pad:
    """``PAD side WITH (column value, ...) | ZEROS | NULLS``: what the columns of ``side`` show beside a row alone."""

    side: Side
    values: Literal["nulls", "zeros"] | Values
    span: Span = NOWHERE


@dataclass(frozen=True)
class Join:
    """Two relations and the condition under which their rows meet. ``span``: from JOIN to the right side.

    It is a window join if its sides have windows. ``operator``: the operator that a Substrait plan names, which is then
    not chosen (FT-3).
    """

    left: Relation
    right: Relation
    kind: JoinKind
    on: Expr | None = None
    using: tuple[str, ...] = ()
    within: Within | None = None
    span: Span = NOWHERE
    pads: tuple[Pad, ...] = ()
    operator: Literal["merge"] | None = None

    @property
    def is_windowed(self) -> bool:
        """Whether one of its sides is a source with a window."""
        return any(isinstance(side, Scan | Union) and side.window is not None for side in (self.left, self.right))


@dataclass(frozen=True)
class SyncJoin:
    """``a SYNC JOIN b [SYNC JOIN c ...]``: rows of all ports that have the same event time."""

    inputs: tuple[Scan | Union, ...]
    span: Span = NOWHERE


@dataclass(frozen=True)
class AsofJoin:
    """``left [LEFT] ASOF JOIN right``: each left row with the version of the right side that its time asks for.

    - ``match``: the comparison of MATCH_CONDITION, or ``nearest(left time, right time)``
    - ``as_of``: the time of FOR SYSTEM_TIME AS OF, which stands for ``match``
    - ``within``: how far a version may be away
    - ``defaults``: what the right columns show where there is no version
    """

    left: Relation
    right: Scan | Union
    kind: JoinKind
    match: Expr | None = None
    as_of: Expr | None = None
    on: Expr | None = None
    using: tuple[str, ...] = ()
    within: Within | None = None
    defaults: Values = ()
    span: Span = NOWHERE


@dataclass(frozen=True)
class Lateral:
    """``input LATERAL array AS alias``: each row of the input once with every element of an array of its own.

    A row whose array is empty or NULL is not in the result.
    """

    input: Relation
    array: Expr
    alias: str
    span: Span = NOWHERE


Relation = Scan | Union | Join | SyncJoin | AsofJoin | Lateral


@dataclass(frozen=True)
class Star:
    """``*`` or ``alias.*`` in a projection."""

    alias: str | None = None
    span: Span = NOWHERE


@dataclass(frozen=True)
class Item:
    """One expression of a projection; ``name`` is what AS gives it."""

    expr: Expr
    name: str | None = None


ResultKind = Literal["stream", "table"]
"""``stream``: rows that only arrive. ``table``: rows by key that later ones replace or take back."""


@dataclass(frozen=True)
class Store:
    """``STORE KEY AS format VALUE AS format``: how the key and the rest of a result are written; None: as they are."""

    key: str | None = None
    value: str | None = None
    span: Span = NOWHERE


@dataclass(frozen=True)
class Query:
    """SELECT, and INSERT INTO if it has a target. ``span`` covers the whole statement.

    ``result`` is what SELECT STREAM or SELECT TABLE says, None if it says neither. ``views`` are the queries that only
    this one can name: those of WITH before SELECT, and subqueries behind FROM under a name that nobody can write.

    ``late_into`` is the sink of the rows that came too late, ``unmatched_left_into`` and ``unmatched_right_into`` are
    those of the rows of a side that stayed alone, and ``ports_into`` those of the ports of a SYNC JOIN, each with its
    place.
    """

    relation: Relation
    items: tuple[Item | Star, ...]
    where: Expr | None = None
    into: str | None = None
    into_span: Span = NOWHERE
    span: Span = NOWHERE
    late_into: str | None = None
    late_into_span: Span = NOWHERE
    unmatched_left_into: str | None = None
    unmatched_left_span: Span = NOWHERE
    unmatched_right_into: str | None = None
    unmatched_right_span: Span = NOWHERE
    ports_into: tuple[tuple[str, Span], ...] = ()
    result: ResultKind | None = None
    group_by: tuple[Expr, ...] = ()
    group_span: Span = NOWHERE
    views: tuple[View, ...] = ()
    store: Store | None = None


@dataclass(frozen=True)
class View:
    """A query under a name, which later statements read like a source: CREATE VIEW, or WITH as a statement."""

    name: str
    query: Query
    span: Span = NOWHERE


@dataclass(frozen=True)
class Setting:
    """``SET name = value``."""

    name: str
    value: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class Script:
    """A text and the statements read from it.

    ``heartbeats``: the name of a source and the condition under which its rows advance time and are no rows.
    """

    name: str
    text: str
    sources: tuple[Source, ...] = ()
    sinks: tuple[Sink, ...] = ()
    settings: tuple[Setting, ...] = ()
    queries: tuple[Query, ...] = ()
    heartbeats: tuple[tuple[str, Expr], ...] = ()
    views: tuple[View, ...] = ()

    def place(self, span: Span) -> Place | None:
        """The span as a place that an error can show; None for what no text says."""
        return None if span == NOWHERE else Place(self.name, self.text, span.start, span.end)


def scans(relation: Relation) -> tuple[Scan, ...]:
    """The sources of a relation from left to right, those inside a union too.

    >>> [scan.alias for scan in scans(Join(Scan("orders", "o"), Scan("deliveries", "d"), "left"))]
    ['o', 'd']
    """
    return tuple(scan for leaf in leaves(relation) for scan in (leaf.scans if isinstance(leaf, Union) else (leaf,)))


def laterals(relation: Relation) -> tuple[Lateral, ...]:
    """The laterals of a relation from left to right."""
    if isinstance(relation, Lateral):
        return (*laterals(relation.input), relation)
    if isinstance(relation, Join | AsofJoin):
        return laterals(relation.left) + laterals(relation.right)
    return ()


def leaves(relation: Relation) -> tuple[Scan | Union, ...]:
    """Whatever has an alias in a relation, from left to right.

    >>> [leaf.alias for leaf in leaves(Join(Scan("a", "a"), Union((Scan("b", "b"), Scan("c", "c")), "u"), "inner"))]
    ['a', 'u']
    """
    if isinstance(relation, SyncJoin):
        return relation.inputs
    if isinstance(relation, Lateral):
        return leaves(relation.input)
    if isinstance(relation, Join | AsofJoin):
        return leaves(relation.left) + leaves(relation.right)
    return (relation,)
