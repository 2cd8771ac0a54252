"""Analyzed relations behind FROM: scans, views, unions, laterals and joins, and how to walk them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, cast

from watersmeet.catalog import NOWHERE, Field, Source, Span, Watermark
from watersmeet.logical.expressions import Expr, finality_column
from watersmeet.logical.nodes import LEFT_ONLY, JoinKind, ResultKind, Values

if TYPE_CHECKING:
    from watersmeet.logical.query import AnalyzedQuery

Padding = Literal["nulls", "zeros"] | Values
"""The values of a side's columns next to an unmatched row of the other side.

Given values are constants for columns of that side (by declared name), to be cast to the column's type; other columns
are NULL. ``zeros``: 0, the empty string, false and so on, by type.
"""


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

    The constant is in the unit of the event times: microseconds for TIMESTAMP and DATE, plain numbers for integers. It
    is the postpone time of HZ-11: rows of ``column``'s side are retained that long behind the watermark of ``other``.
    """

    column: TimeColumn
    other: TimeColumn
    constant: int
    strict: bool = False
    span: Span = NOWHERE


class AnalyzedRelation(ABC):
    """A relation behind FROM: the small protocol that passes walk, so that none of them knows a family.

    A ``port`` is the index of an input, from left to right.
    """

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        """Its inputs, from left to right: none for a scan; for a view, those of its query."""
        return ()

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        """The same over other inputs, as many."""
        assert not inputs
        return self

    @property
    @abstractmethod
    def aliases(self) -> tuple[str, ...]:
        """The aliases whose columns it shows, from left to right."""

    @property
    @abstractmethod
    def result(self) -> ResultKind:
        """Whether its rows only arrive, or are those of a table that changes."""

    @property
    @abstractmethod
    def expressions(self) -> tuple[Expr, ...]:
        """Its own conditions and values, in the order in which they are checked."""

    @property
    def passthrough_input(self) -> AnalyzedRelation | None:
        """The input whose rows pass one by one, without state; None if the relation stores rows."""
        return None

    @property
    def final_columns(self) -> frozenset[str]:
        """The columns, as ``alias.column``, by which its rows become final (see `Source`)."""
        return frozenset()

    def equal_columns(self, column: str) -> frozenset[str]:
        """The columns that have the value of that one in every row, itself included."""
        return frozenset({column})


@dataclass(frozen=True)
class AnalyzedLeaf(AnalyzedRelation):
    """A relation with an alias and columns; ``source`` describes them.

    ``filters`` are parts of the WHERE around it, over its columns; ``parts``: for a union, the sources it is made of,
    whose columns are those of ``source`` by position.
    """

    alias: str
    source: Source
    _: KW_ONLY
    filters: tuple[Expr, ...] = ()
    parts: tuple[Source, ...] = ()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its own."""
        return (self.alias,)

    @property
    def result(self) -> ResultKind:
        """The kind of its source."""
        return self.source.kind

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The filters moved here from WHERE."""
        return self.filters

    @property
    def final_columns(self) -> frozenset[str]:
        """Those of its source."""
        return frozenset(f"{self.alias}.{name}" for name in self.source.final_columns)


@dataclass(frozen=True)
class AnalyzedScan(AnalyzedLeaf):
    """A source under an alias, with the parts of WHERE that may be applied to it before any join.

    ``parts``: for a union, the sources it is made of, whose columns are those of ``source`` by position; ``source``
    then has the alias as its name and the watermarks that all parts have. ``heartbeat``: rows for which this is true
    only advance event time.
    """

    heartbeat: Expr | None = None


@dataclass(frozen=True)
class AnalyzedView(AnalyzedLeaf):
    """A query under a name, read like a source. ``source`` describes its result.

    ``filters`` are parts of the WHERE around it, over its columns; ``outer_watermarks`` are watermarks that the query
    around it gives its columns, the others come from inside. A view that only filters whole rows of one source is a
    scan of that source instead.
    """

    query: AnalyzedQuery
    outer_watermarks: tuple[Watermark, ...] = ()

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        """The relation of its query."""
        return (self.query.relation,)

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        """The view of the same query over another relation."""
        (relation,) = inputs
        return replace(self, query=replace(self.query, relation=relation))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The rest of its own WHERE, and the filters moved here from the WHERE around it."""
        return (*self.query.where, *self.filters)

    def equal_columns(self, column: str) -> frozenset[str]:
        """The columns that show the same column of its input."""
        column_names = {f"{self.alias}.{output.name}": finality_column(output.expr) for output in self.query.outputs}
        own = column_names.get(column)
        return frozenset({column, *(name for name, of in column_names.items() if own is not None and of == own)})


@dataclass(frozen=True)
class AnalyzedUnion(AnalyzedLeaf):
    """The rows of several sides as one, their columns by position: of views, or of tables.

    A union of plain streams only is a scan with parts.
    """

    sides: tuple[AnalyzedScan | AnalyzedView, ...]

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        """Its sides."""
        return self.sides

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        """The union of other sides."""
        sides = cast("tuple[AnalyzedScan | AnalyzedView, ...]", tuple(inputs))
        return replace(self, sides=sides, parts=tuple(side.source for side in sides))


@dataclass(frozen=True)
class AnalyzedLateral(AnalyzedRelation):
    """Each row of the input once with every element of ``array``; ``source`` has the element as its only column.

    A reference to the element has ``alias`` as its source and as its name.
    """

    input: AnalyzedRelation
    array: Expr
    alias: str
    source: Source
    filters: tuple[Expr, ...] = ()
    span: Span = NOWHERE

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        """The input whose rows it repeats."""
        return (self.input,)

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        """The same array of another input."""
        (below,) = inputs
        return replace(self, input=below)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Those of its input, and the element's."""
        return (*self.input.aliases, self.alias)

    @property
    def result(self) -> ResultKind:
        """The kind of its input."""
        return self.input.result

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The filters moved here from WHERE."""
        return self.filters

    @property
    def passthrough_input(self) -> AnalyzedRelation | None:
        """Its input."""
        return self.input


@dataclass(frozen=True)
class StateBound:
    """A bound on a part of a state: for keys and limits, what is stored per key; for ends, the value."""

    by: Literal["time", "ends", "keys", "limit"]
    words: str


BY_TIME = StateBound("time", "time")


@dataclass(frozen=True)
class AnalyzedJoin(AnalyzedRelation):
    """A join of any family, with the defaults that most families share."""

    family: ClassVar[str]
    """The name of the family."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Those of all sides."""
        return tuple(alias for side in self.inputs for alias in side.aliases)

    @property
    def result(self) -> ResultKind:
        """A stream."""
        return "stream"

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """None of its own."""
        return ()

    @property
    def extra_columns(self) -> tuple[Field, ...]:
        """Columns that the join itself makes, named as references name them."""
        return ()

    @property
    def result_key(self) -> tuple[Expr, ...]:
        """The key of the result's rows; empty where rows are not joined by key."""
        return ()

    @property
    def comparison_operands(self) -> tuple[Expr, ...]:
        """The values that are compared across the sides, or that partition rows."""
        return ()

    def pads(self, port: int) -> Padding | None:
        """The values of a side's columns in rows without it; None: every row has one."""
        return None

    def can_push_down_filter(self, port: int) -> bool:
        """Whether filtering rows of that side before the join only removes their own results."""
        return False

    def shows_times(self, port: int) -> bool:
        """Whether the event times of a side are event times of the result."""
        return True

    def can_be_static(self, port: int) -> bool:
        """Whether that side may be a table that never changes."""
        return False

    @property
    def is_bounded(self) -> bool:
        """Whether its state is bounded."""
        return True

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """The bounds on its state."""
        return (BY_TIME,)

    @property
    def has_late_rows(self) -> bool:
        """Whether rows can be late for it."""
        return True

    @property
    def optional_time_sides(self) -> tuple[AnalyzedRelation, ...]:
        """The sides that show their times though the join needs none of them, so none was required."""
        return ()

    def has_side_output(self, port: int) -> bool:
        """Whether unmatched rows of a side go to a side output."""
        return False

    def reads(self, port: int) -> tuple[str, ...]:
        """Columns of a side (``alias.column``) that the join needs besides its expressions and the event times."""
        return ()


@dataclass(frozen=True)
class SkewedSide:
    """The side of a join whose rows with some values of a key are spread over all shards.

    ``key``: the position of the key among those of the join.
    """

    port: int
    key: int
    values: tuple[int | str, ...]


@dataclass(frozen=True)
class ConditionalJoin(AnalyzedJoin):
    """A join of two sides under a condition, which is the conjunction of its parts (HZ-24).

    - ``keys``: equalities, each an expression over the left side and one over the right
    - ``left_only``, ``right_only``: conjuncts over one side (HZ-25)
    - ``residual``: the other conjuncts over both sides
    - ``skew``: the side whose rows with some keys are spread
    """

    left: AnalyzedRelation
    right: AnalyzedRelation
    kind: JoinKind
    _: KW_ONLY
    keys: tuple[tuple[Expr, Expr], ...] = ()
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    span: Span = NOWHERE
    skew: SkewedSide | None = None

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        """Left and right."""
        return (self.left, self.right)

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        """The same join of other sides."""
        left, right = inputs
        return replace(self, left=left, right=right)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Those of both sides; a SEMI or ANTI JOIN shows its left side only."""
        return self.left.aliases if self.kind in LEFT_ONLY else (*self.left.aliases, *self.right.aliases)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The parts of the condition."""
        equalities = (Expr("=", pair, span=pair[0].span.to(pair[1].span)) for pair in self.keys)
        return (*equalities, *self.left_only, *self.right_only, *self.residual)

    def is_key(self, pair: tuple[Expr, Expr]) -> bool:
        """Whether an equality, its left side first, is a key of the join; else it is a condition like any other."""
        return True

    @property
    def comparison_operands(self) -> tuple[Expr, ...]:
        """Both sides of the keys, and the columns that the rest compares."""
        refs = (ref for part in self.residual for ref in part.references)
        columns = (Expr("column", text="x", refs=(replace(ref, start=0, end=1, path=()),)) for ref in refs)
        return (*(side for pair in self.keys for side in pair), *columns)

    @property
    def result_key(self) -> tuple[Expr, ...]:
        """The key of the preserved side; for FULL, that of either."""
        if self.kind == "full":
            return tuple(Expr("call", pair, text="coalesce") for pair in self.keys)
        return tuple(pair[self.kind == "right"] for pair in self.keys)

    def pads(self, port: int) -> Padding | None:
        """NULLs next to a preserved row of the other side."""
        return "nulls" if self.kind in (("right", "full"), ("left", "full", "anti"))[port] else None

    def can_push_down_filter(self, port: int) -> bool:
        """Unless WHERE sees rows in which the side is padded."""
        return self.pads(port) is None

    def shows_times(self, port: int) -> bool:
        """Unless the result has no columns of the side."""
        return port == 0 or self.kind not in LEFT_ONLY


@dataclass(frozen=True)
class UnboundJoin(ConditionalJoin):
    """A join that is refused; other errors in its condition are still reported."""

    family: ClassVar[str] = ""

    @property
    def is_bounded(self) -> bool:
        """Never."""
        return False


def scans(relation: AnalyzedRelation) -> tuple[AnalyzedScan, ...]:
    """The scans of a relation from left to right, including those inside views."""
    if isinstance(relation, AnalyzedScan):
        return (relation,)
    return tuple(scan for side in relation.inputs for scan in scans(side))


def leaves(relation: AnalyzedRelation) -> tuple[AnalyzedLeaf, ...]:
    """The scans and views of a relation from left to right, without those inside views."""
    if isinstance(relation, AnalyzedLeaf):
        return (relation,)
    return tuple(leaf for side in relation.inputs for leaf in leaves(side))


def laterals(relation: AnalyzedRelation) -> tuple[AnalyzedLateral, ...]:
    """The laterals of a relation from left to right, without those inside its views."""
    if isinstance(relation, AnalyzedLeaf):
        return ()
    own = (relation,) if isinstance(relation, AnalyzedLateral) else ()
    return tuple(lateral for side in relation.inputs for lateral in laterals(side)) + own


def joins(relation: AnalyzedRelation) -> tuple[AnalyzedJoin, ...]:
    """The joins of a relation from the inside out, without those inside its views."""
    if isinstance(relation, AnalyzedView):
        return ()
    own = (relation,) if isinstance(relation, AnalyzedJoin) else ()
    return tuple(join for side in relation.inputs for join in joins(side)) + own


def views(relation: AnalyzedRelation) -> tuple[AnalyzedView, ...]:
    """The views of a relation from left to right, without those inside other views."""
    if isinstance(relation, AnalyzedView):
        return (relation,)
    return tuple(view for side in relation.inputs for view in views(side))
