"""The parsed query: frozen nodes, before columns and types are resolved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from watersmeet.catalog import NOWHERE, Amount, Sink, Source, Span, Watermark
from watersmeet.errors import Place
from watersmeet.locations import locate_options, resolve_references
from watersmeet.logical.expressions import Expr

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""The preserved side: ``left`` pads unmatched left rows, ``full`` those of both sides.

``semi`` and ``anti`` show only the left side: a left row once, at its first match; an unmatched left row.
"""

LEFT_ONLY: frozenset[JoinKind] = frozenset({"semi", "anti"})
"""The kinds whose result has no columns of the right side."""


Side = Literal["left", "right"]

PRESERVED: Mapping[Side, tuple[JoinKind, ...]] = {"left": ("left", "full"), "right": ("right", "full")}
"""The kinds of join that emit unmatched rows of a side, padded or to a side output."""

ClauseExpr = tuple[str, Expr]
"""An expression with the keywords of its clause."""


class Clause(ABC):
    """A clause of a family, behind a source or behind the condition of a join."""

    span: Span

    @property
    @abstractmethod
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The expressions in it, each with its keywords."""


class Relation(ABC):
    """A parsed relation behind FROM: the small protocol that passes walk."""

    span: Span

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Its inputs, from left to right."""
        return ()

    def with_inputs(self, inputs: Sequence[Relation]) -> Self:
        """The same over other inputs, as many."""
        assert not inputs
        return self

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """Its own expressions, each with its keywords."""
        return ()


class _Named(Relation):
    """A relation that may be followed by a clause of a family."""

    clause: Clause | None

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """Those of the clause behind it."""
        return () if self.clause is None else self.clause.expressions


@dataclass(frozen=True)
class WindowFunction:
    """Windows of event time over a source: the function, the column, and the lengths (size and slide).

    ``by``: the columns that separate sessions; ``column_span``: the place of the column.
    """

    function: str
    column: str
    lengths: tuple[Amount, ...]
    span: Span = NOWHERE
    by: tuple[str, ...] = ()
    column_span: Span = NOWHERE


@dataclass(frozen=True)
class Scan(_Named):
    """A source under an alias; ``watermarks`` are those that the query itself gives it, not its declaration.

    ``window`` is only set while a query is parsed; then it is in the expressions of the query. ``times``: only the
    watermarks of these columns count; empty: all of them.
    """

    source: str
    alias: str
    span: Span = NOWHERE
    clause: Clause | None = None
    watermarks: tuple[Watermark, ...] = ()
    window: WindowFunction | None = None
    times: tuple[str, ...] = ()


@dataclass(frozen=True)
class Union(_Named):
    """The rows of several sources under one alias: ``(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) u``."""

    scans: tuple[Scan, ...]
    alias: str
    span: Span = NOWHERE
    clause: Clause | None = None


Leaf = Scan | Union


@dataclass(frozen=True)
class Within:
    """``WITHIN d``: the event time of a right row is at most ``amount`` after that of a left one, or before it.

    ``earlier``: the limit before it, if that differs.
    """

    amount: Amount
    span: Span = NOWHERE
    earlier: Amount | None = None

    @property
    def pair(self) -> tuple[Amount, Amount]:
        """The distances by which the right row may be before the left one, and after it."""
        return (self.amount if self.earlier is None else self.earlier, self.amount)


Values = tuple[tuple[str, Expr], ...]
"""Constants by column name."""

ImpliedCondition = Literal["key", "where", "natural"]
"""The condition of a join without ON and USING: equal keys, what WHERE says of its sides (a comma, CROSS JOIN), or
equal values of all columns that both have (NATURAL JOIN)."""


@dataclass(frozen=True)
class ParsedJoin(Relation):
    """Two relations and their join condition. ``span``: from JOIN to the right side."""

    left: Relation
    right: Relation
    kind: JoinKind
    on: Expr | None = None
    using: tuple[str, ...] = ()
    within: Within | None = None
    span: Span = NOWHERE

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Left and right."""
        return (self.left, self.right)

    def with_inputs(self, inputs: Sequence[Relation]) -> Self:
        """The same join of other sides."""
        left, right = inputs
        return replace(self, left=left, right=right)

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The condition."""
        return () if self.on is None else (("ON", self.on),)


@dataclass(frozen=True)
class SkewHint:
    """``SKEW('relation', 'column', (value, ...))``: many rows of a side of a join have these keys."""

    relation: str
    column: str
    values: tuple[int | str, ...]
    span: Span = NOWHERE


@dataclass(frozen=True)
class Membership:
    """The meaning of a join that was written as a subquery: IN, EXISTS, or the value of a scalar subquery.

    - ``name``: the name of its source inside the subquery, whose names go before those around it
    - ``operand``, ``member``: what IN compares; without a member it is the only column of the right side
    - ``is_value``: it is a scalar subquery, whose column is not among those of ``*``
    """

    name: str
    operand: Expr | None = None
    member: Expr | None = None
    is_value: bool = False


@dataclass(frozen=True)
class Join(ParsedJoin):
    """``left [kind] JOIN right``: its family follows from its sides.

    ``clauses`` follow its condition. ``operator``: the operator that a Substrait plan names, so that the planner does
    not choose (FT-3). ``implied``: what it compares without ON and USING. ``membership``: it was written as a subquery.
    ``at_processing_time``: it was written FOR SYSTEM_TIME AS OF PROCTIME(), so that a stream must look up a table.
    ``hints``: those of the query, at its outermost join.
    """

    clauses: tuple[Clause, ...] = ()
    operator: Literal["merge"] | None = None
    implied: ImpliedCondition = "key"
    membership: Membership | None = None
    at_processing_time: bool = False
    hints: tuple[SkewHint, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether no source under it has a clause of a family behind it."""
        return all(leaf.clause is None for leaf in leaves(self))

    @property
    def has_plain_sides(self) -> bool:
        """Whether no side of it is itself a source with such a clause."""
        return all(not isinstance(side, Leaf) or side.clause is None for side in self.inputs)


@dataclass(frozen=True)
class Lateral(Relation):
    """``input LATERAL array AS alias``: each row of the input once with every element of its array.

    A row whose array is empty or NULL is not in the result.
    """

    input: Relation
    array: Expr
    alias: str
    span: Span = NOWHERE

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """The input whose rows it repeats."""
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Relation]) -> Self:
        """The same array of another input."""
        (below,) = inputs
        return replace(self, input=below)

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The array."""
        return (("LATERAL", self.array),)


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
class StorageFormats:
    """``STORE KEY AS format VALUE AS format``: how the key and the rest of a result are written; None: as they are."""

    key: str | None = None
    value: str | None = None
    span: Span = NOWHERE


@dataclass(frozen=True)
class SideOutput:
    """Rows that go to a side output.

    - ``of``: which rows, as the words before INTO
    - ``column``: the column of the result that holds them
    - ``is_instead``: the result consists of such parts, and has no sink itself
    """

    of: str
    column: str
    sink: str
    span: Span = NOWHERE
    is_instead: bool = False


REPEATED_ROWS = "_duplicates"
"""The column of a result that holds the rows that deduplication leaves out, as a side output."""


@dataclass(frozen=True)
class SortKey:
    """A sort key: ``expr`` as written, ``column`` as the rows have it."""

    expr: Expr
    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class RowNumber:
    """``ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) AS name``: the group columns and their order.

    ``function``: with RANK and DENSE_RANK, rows that are equal in that order have one number. ``place``: its position
    among the columns of SELECT.
    """

    by: tuple[Item, ...]
    order: tuple[SortKey, ...]
    name: str = ""
    span: Span = NOWHERE
    function: str = "ROW_NUMBER"
    place: int = 0


SETS = "#sets"
"""The alias of the number of a grouping, where there are several."""


@dataclass(frozen=True)
class Query:
    """SELECT, and INSERT INTO if it has a target. ``span`` covers the whole statement.

    ``result`` is STREAM or TABLE behind SELECT, None without either. ``views`` are the queries that only this one can
    name: those of WITH before SELECT, and subqueries behind FROM under a generated name.

    ``grouping_sets``: of several groupings at once, each as positions in ``group_by``; its relation then has each row
    once per grouping, with its number in `SETS`. ``having`` is the condition on groups, ``is_distinct`` whether equal
    rows of the result are merged. ``order`` and ``limit``: only the first rows are shown, of each group by the columns
    ``by``, with ``ties`` also those equal to the last of them; such a query reads a subquery that has all of them.
    ``offset`` of them are not shown, with ``is_dense`` equal rows count once, and ``rank`` is the column of the result
    with the rank of a row. ``hides`` are columns of ``*`` that the result does not have; with ``is_distinct``, groups
    are made of the others, and ``having`` may be a condition on them. ``number``, the rank of a row in its group, is
    only set while the query is parsed. ``late_into`` is the sink of late rows, and ``side_outputs`` are the side
    outputs of its join's family.

    ``within``: only the first row of each group within that time is shown; without an order it is the first to arrive,
    and a group are the rows that are equal in all columns.

    ``branches``: the queries that run as this one, each with a sink of its own
    (`logical/passes/branches.py`); ``into`` is then the name of its checkpoint.
    """

    relation: Relation
    items: tuple[Item | Star, ...]
    where: Expr | None = None
    into: str | None = None
    into_span: Span = NOWHERE
    span: Span = NOWHERE
    late_into: str | None = None
    late_into_span: Span = NOWHERE
    side_outputs: tuple[SideOutput, ...] = ()
    result: ResultKind | None = None
    group_by: tuple[Expr, ...] = ()
    grouping_sets: tuple[tuple[int, ...], ...] = ()
    group_span: Span = NOWHERE
    views: tuple[View, ...] = ()
    store: StorageFormats | None = None
    having: Expr | None = None
    is_distinct: bool = False
    order: tuple[SortKey, ...] = ()
    limit: int | None = None
    by: tuple[str, ...] = ()
    number: RowNumber | None = None
    ties: bool = False
    offset: int = 0
    is_dense: bool = False
    rank: str | None = None
    hides: tuple[str, ...] = ()
    within: Amount | None = None
    within_span: Span = NOWHERE
    branches: tuple[Query, ...] = ()

    @property
    def is_in_parts(self) -> bool:
        """Whether its result consists of parts, each with a sink."""
        return any(output.is_instead for output in self.side_outputs)


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
class CalledFunction:
    """A call of a function, with the number of arguments; None: unknown."""

    name: str
    span: Span
    count: int | None = None


@dataclass(frozen=True)
class Script:
    """A text and the statements parsed from it.

    ``heartbeats``: the name of a source and the condition for rows that only advance its event time. ``calls``: the
    functions that its expressions call, except aggregates.
    """

    name: str
    text: str
    sources: tuple[Source, ...] = ()
    sinks: tuple[Sink, ...] = ()
    settings: tuple[Setting, ...] = ()
    queries: tuple[Query, ...] = ()
    heartbeats: tuple[tuple[str, Expr], ...] = ()
    views: tuple[View, ...] = ()
    calls: tuple[CalledFunction, ...] = ()

    def resolve_options(self, *, is_here: bool = True) -> Script:
        """The script with options as Spark needs them: references resolved, and paths with a scheme.

        ``is_here``: paths without a scheme are local; else Spark runs on another machine, which resolves them.
        """

        def resolve(options: Mapping[str, str]) -> dict[str, str]:
            return locate_options(resolve_references(options)) if is_here else resolve_references(options)

        sources = tuple(source.with_options(resolve) for source in self.sources)
        return replace(self, sources=sources, sinks=tuple(replace(s, options=resolve(s.options)) for s in self.sinks))

    def with_options(self, source: Source) -> Source:
        """A source of a plan, with the options that the script has for it."""
        declared = next((own for own in self.sources if own.name.lower() == source.name.lower()), source)
        return replace(source, options=declared.options, history=declared.history)

    def place(self, span: Span) -> Place | None:
        """The span as a place that an error can show; None without a text."""
        return None if span == NOWHERE else Place(self.name, self.text, span.start, span.end)

    def sink(self, name: str | None) -> Sink | None:
        """The sink of that name, if it is declared; names compare without case."""
        return next((sink for sink in self.sinks if name is not None and sink.name.lower() == name.lower()), None)


def scans(relation: Relation) -> tuple[Scan, ...]:
    """The sources of a relation from left to right, including those inside a union.

    >>> [scan.alias for scan in scans(Join(Scan("orders", "o"), Scan("deliveries", "d"), "left"))]
    ['o', 'd']
    """
    return tuple(scan for leaf in leaves(relation) for scan in (leaf.scans if isinstance(leaf, Union) else (leaf,)))


def laterals(relation: Relation) -> tuple[Lateral, ...]:
    """The laterals of a relation from left to right."""
    own = (relation,) if isinstance(relation, Lateral) else ()
    return tuple(lateral for side in relation.inputs for lateral in laterals(side)) + own


def leaves(relation: Relation) -> tuple[Leaf, ...]:
    """The scans and unions of a relation, from left to right.

    >>> [leaf.alias for leaf in leaves(Join(Scan("a", "a"), Union((Scan("b", "b"), Scan("c", "c")), "u"), "inner"))]
    ['a', 'u']
    """
    if isinstance(relation, Leaf):
        return (relation,)
    return tuple(leaf for side in relation.inputs for leaf in leaves(side))


def aliases(relation: Relation) -> tuple[str, ...]:
    """The aliases of a relation, from left to right."""
    own = (relation.alias,) if isinstance(relation, Scan | Union | Lateral) else ()
    return tuple(alias for side in relation.inputs for alias in aliases(side)) + own


def walk_relations(relation: Relation) -> Iterator[Relation]:
    """A relation and all relations inside it, from the inside out."""
    for side in relation.inputs:
        yield from walk_relations(side)
    yield relation
