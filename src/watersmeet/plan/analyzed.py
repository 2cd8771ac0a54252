"""What is known of a query once it may run: every name resolved, every condition in its place, every bound found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.catalog import NOWHERE, Field, Source, Span, Watermark
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, JoinKind, LimitKind, ResultKind, Values, WindowKind

PUNCTUATION = "#window"
"""The source of ``_trigger``, ``_seq`` and ``_last``, which only a window join has.

A reference to one of them has this as its ``source``, so that its column is called ``#window._trigger``. They are no
columns of either side: no filter on them moves before the join, and ``*`` leaves them out.
"""

Padding = Literal["nulls", "zeros"] | Values
"""What the columns of a side show beside a row that stayed alone.

Of values, each is a constant for a column of that side (the name as declared), to be cast to the column's type; a
column that is not named is NULL. ``zeros``: 0, the empty string, false and so on, by type.
"""

Direction = Literal["backward", "forward", "nearest"]
"""Which version an as-of join looks for: the latest at or before the time, the earliest at or after, the closer."""

Disorder = Literal["drop", "error"]
"""What becomes of a row of a SYNC JOIN that is not later than those before it: dropped and counted, or an error."""


@dataclass(frozen=True)
class TimeColumn:
    """A watermarked column of a source in the query."""

    alias: str
    name: str

    def __str__(self) -> str:
        return f"{self.alias}.{self.name}"


@dataclass(frozen=True)
class TimeBound:
    """``column >= other - constant`` (``>`` if strict), between watermarked columns of the two sides (HZ-7).

    The constant is in the unit of the event times: microseconds for TIMESTAMP and DATE, plain numbers for integers.
    It is the postpone time of HZ-11: rows of ``column``'s side are kept that long behind the watermark of ``other``.
    """

    column: TimeColumn
    other: TimeColumn
    constant: int
    strict: bool = False
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedScan:
    """A source under an alias, with the parts of WHERE that may be applied to it before any join.

    ``parts``: for a union, the sources it is made of, whose columns are those of ``source`` by position; ``source``
    then has the alias as its name and the watermarks that all parts have.
    ``heartbeat``: a row of which this is true advances time and is no row.
    """

    alias: str
    source: Source
    filters: tuple[Expr, ...] = ()
    parts: tuple[Source, ...] = ()
    heartbeat: Expr | None = None


@dataclass(frozen=True)
class AnalyzedView:
    """A query under a name, read like a source. ``source`` is what is seen of it from outside.

    ``filters`` are parts of the WHERE around it, over its columns; ``given`` are watermarks that the query around it
    gives its columns, the other ones come from inside. A view that only filters whole rows of one source is no such
    node but a scan of that source.
    """

    alias: str
    source: Source
    query: AnalyzedQuery
    filters: tuple[Expr, ...] = ()
    given: tuple[Watermark, ...] = ()

    @property
    def parts(self) -> tuple[Source, ...]:
        """It is no union."""
        return ()


@dataclass(frozen=True)
class AnalyzedUnion:
    """The rows of several sides as one, their columns by position: of views, or of tables.

    A union of nothing but plain streams is a scan with parts.
    """

    alias: str
    source: Source
    sides: tuple[AnalyzedScan | AnalyzedView, ...]
    filters: tuple[Expr, ...] = ()

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sides as sources."""
        return tuple(side.source for side in self.sides)


AnalyzedLeaf = AnalyzedScan | AnalyzedView | AnalyzedUnion
"""Whatever has an alias and columns of its own."""


@dataclass(frozen=True)
class AnalyzedJoin:
    """A join whose condition is taken apart; all parts together are the whole condition (HZ-24).

    - ``keys``: equalities, each an expression over the left side and one over the right
    - ``bounds``: time bounds, in both directions; a conjunct that is a bound is exactly expressed by its bounds
    - ``left_only``, ``right_only``: conjuncts over one side (HZ-25)
    - ``residual``: conjuncts over both sides that are none of these
    """

    left: AnalyzedRelation
    right: AnalyzedRelation
    kind: JoinKind
    keys: tuple[tuple[Expr, Expr], ...]
    bounds: tuple[TimeBound, ...]
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedLimit:
    """When whole partitions of a window are discarded: ``size`` is microseconds of age, partitions or rows."""

    kind: LimitKind
    size: int


@dataclass(frozen=True)
class AnalyzedWindow:
    """How long the rows of a side stay.

    - ``size``: rows (``count``), microseconds of wall clock (``time``) or, for ``delta``, the distance in the unit of
      ``column``: microseconds for TIMESTAMP and DATE, plain numbers else
    - ``column``: what ``delta`` measures, a column of the own side; None for the other kinds
    - ``partition_by``: expressions over the own side; the window applies to the rows of each value on its own
    """

    kind: WindowKind
    size: int
    column: Expr | None = None
    partition_by: tuple[Expr, ...] = ()
    limit: AnalyzedLimit | None = None


@dataclass(frozen=True)
class AnalyzedWindowJoin:
    """A join of what is in two windows; the condition is taken apart as that of an `AnalyzedJoin`.

    Everything that is given per side has the left one first.

    - ``kind``: inner, left, right or full
    - ``pads``: what the columns of the side show where a row of the other one stayed alone
    - ``unmatched``: rows of that side that stayed alone go to an output of their own, with all columns of the source
    - ``punctuated``: the query asks for ``_trigger``, ``_seq`` or ``_last`` (see `PUNCTUATION`)
    - ``order``: the column that gives the order of arrival; both sides have one, of the same kind, or none
    - ``emit_discarded``: rows of discarded partitions come out as if they were evicted
    """

    left: AnalyzedLeaf
    right: AnalyzedLeaf
    kind: JoinKind
    windows: tuple[AnalyzedWindow, AnalyzedWindow]
    keys: tuple[tuple[Expr, Expr], ...] = ()
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    pads: tuple[Padding, Padding] = ("nulls", "nulls")
    unmatched: tuple[bool, bool] = (False, False)
    punctuated: bool = False
    order: tuple[str | None, str | None] = (None, None)
    emit_discarded: bool = False
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedSyncJoin:
    """Rows of two or more ports that have the same time; ``times`` holds the event time of each port."""

    inputs: tuple[AnalyzedLeaf, ...]
    times: tuple[TimeColumn, ...]
    disorder: Disorder = "drop"
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedAsofJoin:
    """Each left row with the version of the right side that is in force at its time; ``kind`` is inner or left.

    - ``left_time``, ``right_time``: the event times that are compared; ``strict``: equal times do not count
    - ``tolerance``: how far away a version may be, in the unit of the times (microseconds for DATE); None: any distance
    - ``left_only``: where one is not true, the row has no version
    - ``right_only``: a row for which one is not true is no version
    - ``defaults``: what right columns show where there is no version (see `Padding`); the others are NULL
    """

    left: AnalyzedRelation
    right: AnalyzedLeaf
    kind: JoinKind
    left_time: TimeColumn
    right_time: TimeColumn
    keys: tuple[tuple[Expr, Expr], ...] = ()
    direction: Direction = "backward"
    strict: bool = False
    tolerance: int | None = None
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    defaults: Values = ()
    span: Span = NOWHERE


LateTable = Literal["reemit", "ignore"]
"""What a table row does that comes after a stream row which had been shown without one: shows it again, or nothing."""


@dataclass(frozen=True)
class AnalyzedLookupJoin:
    """Each row of a stream with the rows that a table has for it at that moment (LN-11..LN-14).

    One side is a stream, the other a table; ``kind`` is inner, or the one that preserves the stream. The condition is
    taken apart as that of an `AnalyzedJoin`.

    - ``late_table``: with ``reemit``, a stream row that was shown padded is shown once more when its table row comes
    - ``retention``: for how many microseconds of wall clock such rows wait; None: as long as ``waiting`` allows
    - ``waiting``: how many of them wait at most, the oldest being forgotten first; None: any number
    - ``load_first``: stream rows are held back until the table is caught up
    """

    left: AnalyzedRelation
    right: AnalyzedRelation
    kind: JoinKind
    keys: tuple[tuple[Expr, Expr], ...] = ()
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    table: Literal["left", "right"] = "right"
    late_table: LateTable = "reemit"
    retention: int | None = None
    waiting: int | None = None
    load_first: bool = False
    span: Span = NOWHERE

    @property
    def stream(self) -> AnalyzedRelation:
        """The side whose rows look up."""
        return self.left if self.table == "right" else self.right

    @property
    def looked_up(self) -> AnalyzedRelation:
        """The side that is a table."""
        return self.right if self.table == "right" else self.left

    @property
    def is_static(self) -> bool:
        """Whether the table never changes, so that Spark looks rows up by itself."""
        return isinstance(self.looked_up, AnalyzedScan) and self.looked_up.source.is_static


@dataclass(frozen=True)
class AnalyzedTableJoin:
    """The join of two tables: a table that changes with either of them. The condition is taken apart as elsewhere.

    ``is_merge``: a Substrait plan names the merge join, so that nothing is chosen.
    """

    left: AnalyzedRelation
    right: AnalyzedRelation
    kind: JoinKind
    keys: tuple[tuple[Expr, Expr], ...] = ()
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    is_merge: bool = False
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedLateral:
    """Each row of the input once with every element of ``array``; ``source`` has the element as its one column.

    A reference to the element has ``alias`` as its source and as its name.
    """

    input: AnalyzedRelation
    array: Expr
    alias: str
    source: Source
    filters: tuple[Expr, ...] = ()
    span: Span = NOWHERE


GROUP = "#group"
"""The source of what a grouping gives: a reference to it has this as its ``source``."""


@dataclass(frozen=True)
class AnalyzedGroup:
    """GROUP BY with aggregates: a table with one row per group.

    ``by`` and ``aggregates`` are columns of `GROUP`, which the outputs of the query refer to. ``window``: one of ``by``
    (its name) is an event-time window over ``time``, so that a group is forgotten once the mark has passed its end.
    """

    by: tuple[Output, ...]
    aggregates: tuple[Output, ...]
    window: str | None = None
    time: TimeColumn | None = None
    span: Span = NOWHERE


AnyJoin = (
    AnalyzedJoin | AnalyzedWindowJoin | AnalyzedSyncJoin | AnalyzedAsofJoin | AnalyzedLookupJoin | AnalyzedTableJoin
)
AnalyzedRelation = AnalyzedLeaf | AnalyzedLateral | AnyJoin


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

    ``late_into`` is the sink of the rows that came too late, ``unmatched_into`` are those of the left and the right
    rows that stayed alone, and ``ports_into`` those of the ports of a SYNC JOIN, one for each, or none. Without INSERT
    INTO, the names in ``unmatched_into`` need not be declared: they name outputs of whoever runs the query.

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
    unmatched_into: tuple[str | None, str | None] = (None, None)
    ports_into: tuple[str, ...] = ()
    result: ResultKind = "stream"
    group: AnalyzedGroup | None = None
    key: tuple[Expr, ...] = ()


def inputs(relation: AnalyzedRelation) -> tuple[AnalyzedRelation, ...]:
    """What a relation reads, from left to right: nothing for a scan; for a view, what its query does."""
    if isinstance(relation, AnalyzedScan):
        return ()
    if isinstance(relation, AnalyzedView):
        return (relation.query.relation,)
    if isinstance(relation, AnalyzedUnion):
        return relation.sides
    if isinstance(relation, AnalyzedLateral):
        return (relation.input,)
    return relation.inputs if isinstance(relation, AnalyzedSyncJoin) else (relation.left, relation.right)


def scans(relation: AnalyzedRelation) -> tuple[AnalyzedScan, ...]:
    """The scans of a relation from left to right, those inside views too."""
    if isinstance(relation, AnalyzedScan):
        return (relation,)
    return tuple(scan for side in inputs(relation) for scan in scans(side))


def leaves(relation: AnalyzedRelation) -> tuple[AnalyzedLeaf, ...]:
    """Whatever has an alias in a relation, from left to right: scans and views, but not what is inside the views."""
    if isinstance(relation, AnalyzedLeaf):
        return (relation,)
    return tuple(leaf for side in inputs(relation) for leaf in leaves(side))


def laterals(relation: AnalyzedRelation) -> tuple[AnalyzedLateral, ...]:
    """The laterals of a relation from left to right, without those inside its views."""
    if isinstance(relation, AnalyzedLeaf):
        return ()
    own = (relation,) if isinstance(relation, AnalyzedLateral) else ()
    return tuple(lateral for side in inputs(relation) for lateral in laterals(side)) + own


def kind_of(relation: AnalyzedRelation) -> ResultKind:
    """Whether the rows of a relation only arrive, or are those of a table that changes."""
    match relation:
        case AnalyzedScan() | AnalyzedView() | AnalyzedUnion():
            return relation.source.kind
        case AnalyzedLateral():
            return kind_of(relation.input)
        case AnalyzedTableJoin():
            return "table"
        case _:
            return "stream"


def views(relation: AnalyzedRelation) -> tuple[AnalyzedView, ...]:
    """The views of a relation from left to right, without those inside other views."""
    if isinstance(relation, AnalyzedView):
        return (relation,)
    return tuple(view for side in inputs(relation) for view in views(side))


def aliases(relation: AnalyzedRelation) -> tuple[str, ...]:
    """The aliases whose columns a relation shows, from left to right: a SEMI or ANTI JOIN shows its left side only."""
    if isinstance(relation, AnalyzedLeaf):
        return (relation.alias,)
    if isinstance(relation, AnalyzedLateral):
        return (*aliases(relation.input), relation.alias)
    if isinstance(relation, AnalyzedJoin | AnalyzedTableJoin) and relation.kind in LEFT_ONLY:
        return aliases(relation.left)
    return tuple(alias for side in inputs(relation) for alias in aliases(side))


def punctuation(left: Source) -> tuple[Field, ...]:
    """The columns that say which arrival caused a row of a window join with that left side, and where its rows end.

    ``_trigger``: the alias of the side and the place in the order of arrival, NULL for what the clock evicted. ``_seq``
    counts the rows of a trigger from 0, and ``_last`` is true for the last of them.

    >>> [field.type for field in punctuation(Source("a", (Field("t", "TIMESTAMP"),), order="t"))]
    ['STRUCT<side: STRING, at: TIMESTAMP>', 'BIGINT', 'BOOLEAN']
    """
    column = left.field(left.order) if left.order is not None else None
    at = "BIGINT" if column is None else column.type
    return (Field("_trigger", f"STRUCT<side: STRING, at: {at}>"), Field("_seq", "BIGINT"), Field("_last", "BOOLEAN"))
