"""The window join: each row is matched with the rows in the window of the other side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeGuard

from watersmeet.catalog import NOWHERE, Amount, Field, Source, Span
from watersmeet.duration import format_count
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Clause, ClauseExpr, Join, Relation, Scan, Side, Union, Values, leaves
from watersmeet.logical.relation import BY_TIME, AnalyzedLeaf, ConditionalJoin, Padding, StateBound
from watersmeet.logical.words import expression_in_words

WindowKind = Literal["count", "time", "delta"]
"""The measure that evicts a row: a number of later rows, a time on the wall clock, or a distance to a newer row."""

LimitKind = Literal["age", "partitions", "rows"]
"""The measure that discards a whole partition: a time without insertions, a number of partitions, or a number of rows.
"""

LIMITS: Mapping[LimitKind, str] = {"age": "PARTITION AGE", "partitions": "PARTITION COUNT", "rows": "TUPLE COUNT"}
"""The SQL of each limit."""

PUNCTUATION = "#window"
"""The source of ``_trigger``, ``_seq`` and ``_last``, which only a window join has.

A reference to one of them has this as its ``source``, so that its column is called ``#window._trigger``. They are not
columns of either side: no filter on them moves before the join, and ``*`` leaves them out.
"""


@dataclass(frozen=True)
class PartitionLimitClause:
    """``PARTITION AGE d``, ``PARTITION COUNT n`` or ``TUPLE COUNT n``: when partitions are discarded."""

    kind: LimitKind
    amount: Amount
    span: Span = NOWHERE


@dataclass(frozen=True)
class WindowClause(Clause):
    """``WINDOW (COUNT n | TIME d | DELTA column n [PARTITION BY ...] [limit])``: the window of a side.

    ``column`` is what DELTA measures. With ``partition_by`` the window applies to each partition separately.
    """

    kind: WindowKind
    amount: Amount
    column: Expr | None = None
    partition_by: tuple[Expr, ...] = ()
    limit: PartitionLimitClause | None = None
    span: Span = NOWHERE

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The expressions of PARTITION BY."""
        return tuple(("PARTITION BY", expr) for expr in self.partition_by)

    @property
    def column_expressions(self) -> tuple[Expr, ...]:
        """All its expressions with columns."""
        return self.partition_by if self.column is None else (self.column, *self.partition_by)

    def map_expressions(self, change: Callable[[Expr], Expr]) -> WindowClause:
        """The window with its expressions changed."""
        column = None if self.column is None else change(self.column)
        return replace(self, column=column, partition_by=tuple(change(expr) for expr in self.partition_by))


@dataclass(frozen=True)
class Pad(Clause):
    """``PAD side WITH (column value, ...) | ZEROS | NULLS``: the columns of ``side`` in a row without a match."""

    side: Side
    values: Literal["nulls", "zeros"] | Values
    span: Span = NOWHERE

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        return ()


@dataclass(frozen=True)
class AnalyzedLimit:
    """The time when whole partitions of a window are discarded: ``size`` is microseconds of age, partitions or rows."""

    kind: LimitKind
    size: int


@dataclass(frozen=True)
class AnalyzedWindow:
    """The window of a side.

    - ``size``: rows (``count``), microseconds of wall clock (``time``) or, for ``delta``, the distance in the unit of
      ``column``: microseconds for TIMESTAMP and DATE, plain numbers else
    - ``column``: what ``delta`` measures, a column of the own side; None for the other kinds
    - ``partition_by``: expressions over the own side; the window applies to each partition separately
    """

    kind: WindowKind
    size: int
    column: Expr | None = None
    partition_by: tuple[Expr, ...] = ()
    limit: AnalyzedLimit | None = None

    @property
    def state_bound(self) -> StateBound | None:
        """The bound on the rows in the window; None: the window stores no rows."""
        per = f" per {', '.join(expression_in_words(expr) for expr in self.partition_by)}" if self.partition_by else ""
        if self.kind == "time" or (self.limit is not None and self.limit.kind == "age"):
            return BY_TIME
        if self.limit is not None:
            return StateBound("limit", format_count(self.limit.size, self.limit.kind.removesuffix("s")))
        if self.kind == "delta":
            column = "" if self.column is None else expression_in_words(self.column)
            return StateBound("keys" if per else "limit", f"the rows within {self.size} of the latest {column}{per}")
        return StateBound("keys" if per else "limit", f"{format_count(self.size, 'row')}{per}") if self.size else None

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions that it partitions by and measures."""
        return (*self.partition_by, *(() if self.column is None else (self.column,)))


@dataclass(frozen=True)
class AnalyzedWindowJoin(ConditionalJoin):
    """A join of two windows; the condition is split as in a `ConditionalJoin`.

    All pairs have the left side first.

    - ``kind``: inner, left, right or full
    - ``paddings``: the values of the side's columns next to an unmatched row of the other side
    - ``unmatched``: unmatched rows of that side go to a side output, with all columns of the source
    - ``punctuated``: the query uses ``_trigger``, ``_seq`` or ``_last`` (see `PUNCTUATION`)
    - ``order``: the column with the order of arrival; both sides have one, of the same kind, or neither has
    - ``emit_discarded``: rows of discarded partitions are emitted as if they were evicted
    """

    family: ClassVar[str] = "window"

    left: AnalyzedLeaf
    right: AnalyzedLeaf
    windows: tuple[AnalyzedWindow, AnalyzedWindow]
    paddings: tuple[Padding, Padding] = ("nulls", "nulls")
    unmatched: tuple[bool, bool] = (False, False)
    punctuated: bool = False
    order: tuple[str | None, str | None] = (None, None)
    emit_discarded: bool = False

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The condition, and the expressions that the windows measure and partition by."""
        return (*super().expressions, *(expr for window in self.windows for expr in window.expressions))

    @property
    def comparison_operands(self) -> tuple[Expr, ...]:
        """The operands of the condition, and the expressions of PARTITION BY."""
        return (*super().comparison_operands, *(expr for window in self.windows for expr in window.partition_by))

    @property
    def extra_columns(self) -> tuple[Field, ...]:
        """The columns that identify the arrival that caused a row, if the query uses them."""
        columns = punctuation(self.left.source) if self.punctuated else ()
        return tuple(replace(field, name=f"{PUNCTUATION}.{field.name}") for field in columns)

    @property
    def result_key(self) -> tuple[Expr, ...]:
        """The key of the left side."""
        return tuple(left for left, _ in self.keys)

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        return tuple(bound for window in self.windows if (bound := window.state_bound) is not None)

    def pads(self, port: int) -> Padding | None:
        """The padding of a side; None where unmatched rows of the other side have a side output."""
        return None if self.unmatched[1 - port] or super().pads(port) is None else self.paddings[port]

    def can_push_down_filter(self, port: int) -> bool:
        """Never: the other rows of a window determine when a row is evicted."""
        return False

    def shows_times(self, port: int) -> bool:
        """Never: it does not use event time."""
        return False

    def has_side_output(self, port: int) -> bool:
        return self.unmatched[port]

    def reads(self, port: int) -> tuple[str, ...]:
        """The column with the order of arrival, and all columns of an unmatched row with a side output."""
        leaf, order = (self.left, self.right)[port], self.order[port]
        alone = [field.name for field in leaf.source.fields if self.unmatched[port] and not field.hidden]
        return tuple(f"{leaf.alias}.{name}" for name in (*alone, *(() if order is None else (order,))))


def punctuation(left: Source) -> tuple[Field, ...]:
    """The columns that identify the arrival that caused a row of a window join with that left side.

    ``_trigger``: the alias of the side and the position in the order of arrival, NULL for rows that the clock evicted.
    ``_seq`` counts the rows of a trigger from 0, and ``_last`` is true for the last of them.

    >>> [field.type for field in punctuation(Source("a", (Field("t", "TIMESTAMP"),), order="t"))]
    ['STRUCT<side: STRING, at: TIMESTAMP>', 'BIGINT', 'BOOLEAN']
    """
    column = left.field(left.order) if left.order is not None else None
    at = "BIGINT" if column is None else column.type
    cause = Field("_trigger", f"STRUCT<side: STRING, at: {at}>")
    return (cause, Field("_seq", "BIGINT", nullable=False), Field("_last", "BOOLEAN", nullable=False))


def window_of(side: Relation) -> WindowClause | None:
    """The window of a side; None if it has none, or is not a source."""
    return side.clause if isinstance(side, Scan | Union) and isinstance(side.clause, WindowClause) else None


def is_windowed(relation: Relation) -> TypeGuard[Join]:
    """Whether a relation is a join with a source with a window on one side."""
    return isinstance(relation, Join) and any(window_of(side) is not None for side in relation.inputs)


def windows_in(relation: Relation) -> tuple[WindowClause, ...]:
    """All windows in a relation, from left to right."""
    return tuple(window for leaf in leaves(relation) if (window := window_of(leaf)) is not None)
