"""An analyzed query: names resolved, conditions placed, bounds found, and its result columns.

What bounds the state: time, the ends that rows carry, the number of keys, or a limit. A result column is known as far
as possible without Spark: its origin, its type, and whether it can be NULL (LN-18).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from watersmeet.catalog import NOWHERE, Amount, Span
from watersmeet.logical.expressions import COMPARISONS, GROUP, RANKS, SORTS, Expr, Reference, WindowCall
from watersmeet.logical.nodes import REPEATED_ROWS, SETS, ResultKind, SideOutput
from watersmeet.logical.relation import (
    BY_TIME,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    StateBound,
    TimeColumn,
    joins,
    leaves,
    views,
)
from watersmeet.logical.words import expression_in_words, sources_by_alias, word
from watersmeet.operators.core.aggregates import function_of, is_aggregate, needs_all_rows
from watersmeet.operators.core.order import MOST_RANKS

Emit = Literal["changes", "final"]
"""The result of a grouping or top-N: a table that follows each batch, or a stream of the groups that close."""


@dataclass(frozen=True)
class FinalColumn:
    """A column of a grouping, or the ``field`` of a struct: it is ``behind`` the end of the window by that much.

    >>> FinalColumn("k1", "start", 10_000_000).column
    '#group.k1.start'
    """

    by: str
    field: str = ""
    behind: int = 0

    @property
    def column(self) -> str:
        """The name of its watermark."""
        return ".".join(part for part in (GROUP, self.by, self.field) if part)


@dataclass(frozen=True)
class AnalyzedGroup:
    """GROUP BY with aggregates: a table with one row per group.

    ``by`` and ``aggregates`` are columns of `GROUP`, which the outputs of the query refer to. ``window``: the name of
    the one of ``by`` that is an event-time window over ``time``; a group is dropped once the watermark has passed its
    end. ``is_session``: that window grows with its rows. ``having``: the condition under which the table shows a group.

    ``final_columns``: those of ``by`` by which groups become final, once the watermark has passed them. Without a
    ``time`` the rows are those of a table with final columns: ``final_by`` is the one by which groups are dropped.

    ``behind``: ``window`` is not a whole window or its end but a column that is so long before the end, in
    microseconds; 0 for the end of a window whose time the rows do not show.

    ``emit``: ``"final"`` if the result is a stream, with each group once, when its window has closed.
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
    behind: int | None = None
    emit: Emit = "changes"

    @property
    def final_by(self) -> str | None:
        """The one of ``by`` whose watermark comes with the rows of a table, and closes groups."""
        return self.final_columns[0].by if self.final_columns and self.time is None else None


@dataclass(frozen=True)
class AnalyzedSortKey:
    """A sort key: a column of the relation, and the expression as written."""

    expr: Expr
    shown: Expr
    descending: bool
    nulls_last: bool

    def __str__(self) -> str:
        """The key as ORDER BY has it."""
        return f"{expression_in_words(self.shown)} {SORTS[self.descending, self.nulls_last]}".rstrip()


TOP, RANK = "#top", "#rank"
RANK_COLUMN = Expr("column", text=RANK, refs=(Reference((TOP, RANK), 0, len(RANK), TOP, RANK),))
"""The rank of a row, in the result of a top-N."""


@dataclass(frozen=True)
class AnalyzedTop:
    """ORDER BY ... LIMIT: a table of the first rows, of each group by ``by``.

    ``ties``: rows that are equal in the order share one rank, and all of them are shown or none. ``final_by``: the
    index of the one of ``by`` by which groups become final.

    Of a stream that is the start or end of a window around ``time``, so long ``behind`` its end; ``final_columns`` are
    then the columns that become final with it, each with how long before the end it is. ``emit``: ``"final"`` if the
    result is a stream, with the rows of each group once, when its window has closed.

    ``offset``: ranks up to this one are not shown. ``is_dense``: rows that are equal in the order count once. ``rank``:
    the column of the result with the rank, which is `RANK_COLUMN`.

    ``within``: only the first row of a group within that distance of ``time`` comes out: by that time if there is an
    ``order``, else by arrival.
    """

    order: tuple[AnalyzedSortKey, ...]
    limit: int
    by: tuple[AnalyzedSortKey, ...] = ()
    ties: bool = False
    final_by: int | None = None
    time: TimeColumn | None = None
    behind: int = 0
    final_columns: tuple[tuple[str, int], ...] = ()
    emit: Emit = "changes"
    within: Amount | None = None
    offset: int = 0
    is_dense: bool = False
    rank: str | None = None

    @property
    def limit_in_words(self) -> str:
        """The ranks that are shown."""
        last = "" if self.limit == MOST_RANKS else str(self.limit)
        return last if not self.offset else f"{self.offset + 1} to {last}" if last else f"from {self.offset + 1} on"

    @property
    def family(self) -> str:
        """The name of the family that runs it."""
        return "top" if self.within is None else "deduplicate"


@dataclass(frozen=True)
class AnalyzedOver(AnalyzedTop):
    """Window functions: all rows of a stream, each once, or of a table, with values of the rows around each.

    ``functions`` are columns of `TOP`, which the outputs of the query refer to: each an ``over`` expression, all of one
    partition and order, which for a stream is that of ``time``. ``within``: how much later a row may be that LEAD
    shows. ``below``: the functions of another partition, whose rows these are.
    """

    functions: tuple[Output, ...] = ()
    below: AnalyzedOver | None = None

    @property
    def stages(self) -> tuple[AnalyzedOver, ...]:
        """All windows of the query up to this one, the first to be computed first."""
        return (*(() if self.below is None else self.below.stages), self)

    @property
    def all_functions(self) -> tuple[Output, ...]:
        """The functions of all windows."""
        return tuple(function for stage in self.stages for function in stage.functions)

    @property
    def words(self) -> str:
        """The window, such as ``OVER (PARTITION BY k ORDER BY t)``."""
        clauses = (("PARTITION BY", self.by), ("ORDER BY", self.order))
        inside = " ".join(f"{name} {', '.join(map(str, keys))}" for name, keys in clauses if keys)
        return f"OVER ({inside})"

    @property
    def source_calls(self) -> Mapping[str, Expr]:
        """The functions of all windows, as they were written, by their columns."""
        shown = dict[str, Expr]()
        for stage in self.stages:
            by = tuple(key.shown for key in stage.by)
            for function in stage.functions:
                parts = WindowCall.of(function.expr)
                keys = zip(parts.order, stage.order, strict=True)
                order = tuple(replace(key, args=(own.shown,)) for key, own in keys)
                shown[f"{TOP}.{function.name}"] = replace(parts, by=by, order=order).as_expr(function.expr.span)
        return shown

    @property
    def family(self) -> str:
        """The name of the family that runs it."""
        return "over"


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

    ``late_into`` is the sink of late rows, and ``side_outputs`` are further side outputs. Without INSERT INTO, their
    sinks need not be declared: they name outputs for the caller that runs the query.

    ``result`` says whether it is a stream or a table; ``key`` is the content of its ``_key``: the key of the join or of
    the group, empty without a key.

    ``branches``: the sinks that get its rows, if there are several, each with its filter and columns; ``into`` is then
    the name of its checkpoint.
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
    branches: tuple[AnalyzedBranch, ...] = ()

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks of its rows."""
        return tuple(branch.sink for branch in self.branches) or (() if self.into is None else (self.into,))

    @property
    def latest_key(self) -> tuple[Expr, ...]:
        """The key by which rows replace each other, if the result is the latest row per key of a stream."""
        is_latest = self.result == "table" and self.relation.result == "stream"
        return self.key if is_latest and self.group is None and self.top is None else ()

    @property
    def sinks_of_unmatched(self) -> tuple[str | None, str | None]:
        """The sinks of the unmatched left and right rows."""
        sinks = {output.of: output.sink for output in self.side_outputs}
        return sinks.get("UNMATCHED LEFT"), sinks.get("UNMATCHED RIGHT")

    @property
    def shows_duplicates(self) -> bool:
        """Whether rows that deduplication leaves out go to a side output."""
        return any(output.column == REPEATED_ROWS for output in self.side_outputs)

    @property
    def ports_into(self) -> tuple[str, ...]:
        """The sinks of the parts of the result, where it is in parts: the rows of each port."""
        return tuple(output.sink for output in self.side_outputs if output.is_instead)


@dataclass(frozen=True)
class AnalyzedBranch:
    """A sink of a query that has several, and what becomes of the rows on their way to it.

    ``query``: the query of this sink as it would be alone. ``where`` and ``outputs`` are over the columns of the shared
    result, as columns of ``alias``; without an alias the sink gets the columns of the result that ``query`` has.
    """

    query: AnalyzedQuery
    alias: str = ""
    where: tuple[Expr, ...] = ()

    @property
    def sink(self) -> str:
        """The sink of its rows."""
        assert self.query.into is not None, "a branch is an INSERT"
        return self.query.into


_Nulls = Mapping[str, bool]
"""Whether a column, named ``alias.column`` in small letters, can be null."""


def nullable(query: AnalyzedQuery) -> tuple[bool, ...]:
    """Whether each column of the result can be NULL.

    A column is as declared, unless the join can pad its side; padding with values keeps it as declared. Every other
    expression counts as nullable, except constants, IS NULL, ``<=>``, counts, and AND, OR and NOT of such.

    >>> from watersmeet.catalog import Field, Source
    >>> from watersmeet.logical.query import Output
    >>> from watersmeet.logical.relation import AnalyzedScan, ConditionalJoin
    >>> from watersmeet.logical.expressions import Reference
    >>> def column(alias, name):
    ...     return Expr("column", text="c", refs=(Reference((alias, name), 0, 1, alias, name),))
    >>> fields = (Field("id", "BIGINT", nullable=False), Field("v", "STRING"))
    >>> o, d = AnalyzedScan("o", Source("orders", fields)), AnalyzedScan("d", Source("deliveries", fields))
    >>> asked = [column("o", "id"), column("o", "v"), column("d", "id"), Expr("is_null", (column("d", "v"),))]
    >>> outputs = tuple(Output("", expr) for expr in asked)
    >>> nullable(AnalyzedQuery(ConditionalJoin(o, d, "inner"), outputs))
    (False, True, False, False)
    >>> nullable(AnalyzedQuery(ConditionalJoin(o, d, "left"), outputs))
    (False, True, True, False)
    """
    nulls = _nulls(query.relation)
    if query.group is not None:
        columns = (*query.group.by, *query.group.aggregates)
        nulls = {_column_key(GROUP, output.name): _can_be_null(output.expr, nulls) for output in columns}
    if isinstance(query.top, AnalyzedOver):
        functions = {_column_key(TOP, o.name): _can_be_null(o.expr, nulls) for o in query.top.all_functions}
        nulls = {**nulls, **functions}
    return tuple(_can_be_null(output.expr, nulls) for output in query.outputs)


def _can_be_null(expr: Expr, nulls: _Nulls) -> bool:
    match expr.op:
        case "column":
            ref = expr.refs[0]
            return bool(ref.path) or nulls.get(_column_key(ref.source, ref.name), True)
        case "literal":
            return expr.value is None
        case "interval" | "is_null" | "<=>":
            return False
        case "aggregate":
            return function_of(expr.function).nullable if is_aggregate(expr.function) else True
        case "over":
            return not (expr.text.startswith("count") or expr.text in RANKS)
        case "and" | "or" | "not":
            return any(_can_be_null(arg, nulls) for arg in expr.args)
        case _:
            return True


def _nulls(relation: AnalyzedRelation) -> _Nulls:
    """The columns that a relation shows, and whether they can be null."""
    if isinstance(relation, AnalyzedView):
        columns = zip(relation.query.outputs, nullable(relation.query), strict=True)
        return {_column_key(relation.alias, output.name): can_be for output, can_be in columns}
    nulls = {name: can_be for port, side in enumerate(relation.inputs) for name, can_be in _side(relation, port, side)}
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        fields = {_column_key(relation.alias, field.name): field.nullable for field in relation.source.fields}
        return fields if isinstance(relation, AnalyzedLeaf) else {**nulls, **fields}
    further = relation.extra_columns if isinstance(relation, AnalyzedJoin) else ()
    return {**nulls, **{field.name.lower(): field.nullable for field in further}}


def _side(relation: AnalyzedRelation, port: int, side: AnalyzedRelation) -> Iterable[tuple[str, bool]]:
    """The columns of one side: padded wherever a row may lack it."""
    own = _nulls(side)
    padding = relation.pads(port) if isinstance(relation, AnalyzedJoin) else None
    if padding is None or padding == "zeros":
        return own.items()
    constants = {} if padding == "nulls" else {name.lower(): value for name, value in padding}
    return ((name, can_be or _is_padded_with_null(name, constants)) for name, can_be in own.items())


def _is_padded_with_null(name: str, constants: Mapping[str, Expr]) -> bool:
    value = constants.get(name.split(".", 1)[1])
    return value is None or (value.op == "literal" and value.value is None)


def _column_key(alias: str, name: str) -> str:
    return f"{alias}.{name}".lower()


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result: ``type`` is None where only Spark knows it."""

    name: str
    expr: Expr
    type: str | None
    nullable: bool

    @property
    def text(self) -> str:
        """The column as SELECT has it."""
        text = expression_in_words(self.expr)
        is_plain = self.expr.op == "column" and text.split(".")[-1] == word(self.name)
        return text if is_plain else f"{text} AS {word(self.name)}"


def result_columns(query: AnalyzedQuery) -> tuple[ResultColumn, ...]:
    """The columns of a result, those of a grouping as the expressions they stand for."""
    exprs, types = _stage_exprs(query.group, query.top), _column_types(query.relation)
    return tuple(
        ResultColumn(output.name, expr, _type(expr, types), can_be_null)
        for output, can_be_null in zip(query.outputs, nullable(query), strict=True)
        for expr in (_expand(output.expr, exprs),)
    )


def column_lines(columns: tuple[ResultColumn, ...]) -> list[str]:
    """The columns one below the other, as a table would declare them.

    >>> amount, count = Expr("literal", text="5"), Expr("aggregate", text="count")
    >>> shown = column_lines((ResultColumn("a", amount, None, True), ResultColumn("n", count, "BIGINT", False)))
    >>> shown
    ['5 AS a', 'count(*) AS n  BIGINT NOT NULL']
    """
    width = max((len(column.text) for column in columns), default=0)
    types = [" ".join([*([c.type] if c.type else []), *([] if c.nullable else ["NOT NULL"])]) for c in columns]
    return [f"{column.text:<{width}}  {more}".rstrip() for column, more in zip(columns, types, strict=True)]


def expand_group(expr: Expr, group: AnalyzedGroup | None) -> Expr:
    """The expression with columns of a grouping replaced by the expressions they stand for."""
    return _expand(expr, _stage_exprs(group))


def _stage_exprs(group: AnalyzedGroup | None, top: AnalyzedTop | None = None) -> Mapping[str, Expr]:
    """The expressions for which the columns of a grouping and of window functions stand, by name."""
    columns = {} if group is None else {f"{GROUP}.{o.name}": o.expr for o in (*group.by, *group.aggregates)}
    return {**columns, **(top.source_calls if isinstance(top, AnalyzedOver) else {})}


def _expand(expr: Expr, exprs: Mapping[str, Expr]) -> Expr:
    if not exprs:
        return expr
    if expr.op == "column" and not expr.refs[0].path:
        return exprs.get(expr.refs[0].column, expr)
    if expr.op == "other" and any(ref.source == GROUP for ref in expr.refs):
        text = expr.sql(lambda ref: expression_in_words(exprs[ref.column]) if ref.column in exprs else ref.column)
        return replace(expr, text=text, refs=())
    return replace(expr, args=tuple(_expand(arg, exprs) for arg in expr.args))


_Types = Mapping[str, str | None]
"""The type of each column, by ``column`` of a reference in small letters; None where only Spark knows it."""


def _type(expr: Expr, types: _Types) -> str | None:
    if expr.op == "cast":
        return str(expr.value)
    if expr.op in COMPARISONS or expr.op in ("and", "or", "not", "is_null"):
        return "BOOLEAN"
    if expr.op == "aggregate" and is_aggregate(expr.function) and function_of(expr.function).gives == "BIGINT":
        return function_of(expr.function).gives
    if expr.op != "column" or expr.refs[0].path:
        return None
    return types.get(_column_key(expr.refs[0].source, expr.refs[0].name))


def _column_types(relation: AnalyzedRelation) -> _Types:
    """The types of all columns of a relation. Each view is looked through once, however many columns it has."""
    views = {leaf.alias: leaf for leaf in leaves(relation) if isinstance(leaf, AnalyzedView)}
    types: dict[str, str | None] = {}
    for alias, source in sources_by_alias(relation).items():
        # Of several columns of a name, the first counts.
        declared = {_column_key(alias, field.name): field.type or None for field in reversed(source.fields)}
        shown = result_columns(views[alias].query) if alias in views else ()
        types |= declared | {_column_key(alias, c.name): c.type for c in reversed(shown) if c.type is not None}
    extra = relation.extra_columns if isinstance(relation, AnalyzedJoin) else ()
    return types | {field.name.lower(): field.type for field in extra}


def can_have_late_rows(relation: AnalyzedRelation) -> bool:
    """Whether rows can be late: only those of a source, since watermarks of joins never overtake their rows."""
    if isinstance(relation, AnalyzedView):
        query = relation.query
        return query.group is None and query.top is None and can_have_late_rows(query.relation)
    if relation.passthrough_input is not None:
        return can_have_late_rows(relation.passthrough_input)
    if isinstance(relation, AnalyzedUnion):
        return all(can_have_late_rows(side) for side in relation.sides)
    return isinstance(relation, AnalyzedScan)


def shows_late_rows(relation: AnalyzedRelation, top: AnalyzedTop | None) -> bool:
    """Whether a part of a query over a relation has a side output for the rows that are late for it."""
    if shows_own_late_rows(relation, top) or any(join.has_late_rows for join in joins(relation)):
        return True
    return any(shows_late_rows(view.query.relation, view.query.top) for view in views(relation))


def shows_own_late_rows(relation: AnalyzedRelation, top: AnalyzedTop | None) -> bool:
    """Whether the last stage of a query has that side output: a deduplication, or window functions."""
    is_by_time = top is not None and (top.within is not None or isinstance(top, AnalyzedOver))
    return is_by_time and relation.result == "stream" and can_have_late_rows(relation)


_BY = {"time": "time", "ends": "the end time in each row", "keys": "the number of keys", "limit": "a limit"}


def bounds_of(query: AnalyzedQuery) -> tuple[StateBound, ...]:
    """The bounds on all state of a query, including its views; empty without state."""
    bounds = [*_relation_bounds(query.relation)]
    if query.group is not None:
        bounds += _group_bounds(query, query.group)
    elif query.top is not None:
        stages = query.top.stages if isinstance(query.top, AnalyzedOver) else (query.top,)
        bounds += [_top_bound(query.relation.result == "table", stage) for stage in stages]
    elif query.result == "table" and query.relation.result == "stream":
        bounds.append(per_key([expand_group(expr, query.group) for expr in query.key]))
    return tuple(dict.fromkeys(bounds))


def over_bound(over: AnalyzedOver) -> StateBound:
    """The bound on the rows that frames still need."""
    rows = max(_rows_before(WindowCall.of(output.expr)) for output in over.functions)
    groups = [expression_in_words(by.shown) for by in over.by]
    if not rows:
        return BY_TIME
    if not groups:
        return StateBound("limit", "one row" if rows == 1 else f"{rows} rows")
    return StateBound("keys", f"{'one row' if rows == 1 else f'{rows} rows'} per {', '.join(groups)}")


def _rows_before(call: WindowCall) -> int:
    """The number of rows of each group that a function needs, whatever their time; for a total it is the last one."""
    if call.preceding is None:
        is_last = is_aggregate(call.call.function) and function_of(call.call.function).fold == "last"
        return 0 if is_last and not call.call.value else 1
    return call.preceding.value if call.unit == "ROWS" or call.function.startswith("lag") else 0


def _top_bound(is_table: bool, top: AnalyzedTop) -> StateBound:
    if isinstance(top, AnalyzedOver) and not is_table:
        return over_bound(top)
    if top.final_by is not None or top.within is not None:
        return BY_TIME
    if is_table:
        return StateBound("keys", "the rows that are ordered")
    if top.limit == MOST_RANKS:
        return StateBound("keys", "all rows")
    rows = "one row" if top.limit == 1 else f"{top.limit} rows"
    if top.by:
        return StateBound("keys", f"{rows} per {', '.join(expression_in_words(by.shown) for by in top.by)}")
    return StateBound("limit", rows)


def bounds_in_words(bounds: Sequence[StateBound]) -> str:
    """Describe the bounds of a state, as a clause.

    >>> bounds_in_words([BY_TIME, StateBound("keys", "one row per id"), StateBound("keys", "one row per name")])
    'bounded by time, and by the number of keys: one row per id, one row per name'
    """
    if not bounds:
        return "none: nothing is kept"
    parts = [
        f"by {words}" + (f": {', '.join(b.words for b in bounds if b.by == by)}" if by != "time" else "")
        for by, words in _BY.items()
        if any(b.by == by for b in bounds)
    ]
    return f"bounded {', and '.join(parts)}"


def per_key(key: Sequence[Expr], noun: str = "row") -> StateBound:
    """One row, or another item, for every value of a key; without a key there is one."""
    words = ", ".join(expression_in_words(expr) for expr in key)
    return StateBound("keys", f"one {noun} per {words}" if words else f"one {noun}")


def rows_of_table(relation: AnalyzedRelation) -> StateBound:
    """The rows that a table has."""
    key = relation.source.primary_key if isinstance(relation, AnalyzedScan | AnalyzedView) else ()
    names = " with ".join("subquery" if leaf.alias.startswith("#") else leaf.alias for leaf in leaves(relation))
    if not key:
        return StateBound("keys", f"the rows of the table {names}")
    return StateBound("keys", f"one row per {', '.join(f'{names}.{word(name)}' for name in key)}")


def group_expressions(group: AnalyzedGroup) -> tuple[Expr, ...]:
    """The expressions of GROUP BY as they were written: with several groupings, without the number of each."""
    return tuple(by.expr for by in group.by if by.expr.text != SETS)


def _group_bounds(query: AnalyzedQuery, group: AnalyzedGroup) -> Iterator[StateBound]:
    """The groups, and their rows where an aggregate must read all of them."""
    if group.time is not None or group.final_by is not None:
        yield BY_TIME
        return
    keys = group_expressions(group)
    words = per_key(keys).words
    yield StateBound("keys", f"{words}, and grouping" if len(keys) < len(group.by) else words)
    is_table = query.relation.result == "table"
    for call in (output.expr for output in group.aggregates):
        if needs_all_rows(call.function, changes=is_table):
            yield StateBound("keys", f"the input of {expression_in_words(call)}")


def _relation_bounds(relation: AnalyzedRelation) -> Iterator[StateBound]:
    if isinstance(relation, AnalyzedView):
        yield from bounds_of(relation.query)
        return
    if isinstance(relation, AnalyzedScan) and relation.source.primary_key and not relation.source.is_static:
        yield rows_of_table(relation)
    for side in relation.inputs:
        # A join reports its own bounds for its sources.
        if not (isinstance(relation, AnalyzedJoin) and isinstance(side, AnalyzedScan)):
            yield from _relation_bounds(side)
    if isinstance(relation, AnalyzedJoin):
        yield from relation.state_bounds
