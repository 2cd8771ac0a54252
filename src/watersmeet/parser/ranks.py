"""The first rows and their ranks: ORDER BY with LIMIT and OFFSET, QUALIFY, and ranks in SELECT.

A rank in SELECT is a further column of the rows that a query ranks. What WHERE around it, or QUALIFY, says of the rank
alone limits which rows are shown; the rest is a condition on the ranked rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.catalog import NOWHERE
from watersmeet.logical.expressions import NO_ROWS, SORTS, Expr, WindowCall, conjuncts
from watersmeet.logical.nodes import Item, Query, Relation, RowNumber, Scan, SortKey, Star, View
from watersmeet.operators.core.order import MOST_RANKS
from watersmeet.parser.calls import open_window
from watersmeet.parser.cursor import Cursor
from watersmeet.parser.expressions import read_or

_NUMBER = "write `ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC)`, for example."
_QUALIFY = "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC) <= 10`, for example."
_LIMIT = "write `ORDER BY price DESC LIMIT 10`: the first rows of a table, kept up to date."
NUMBERS = ("ROW_NUMBER", "RANK", "DENSE_RANK")
_TURNED = {">=": "<=", ">": "<", "<=": ">=", "<": ">", "=": "="}


@dataclass(frozen=True)
class Ranks:
    """The ranks of rows that are shown: those above ``offset`` up to ``limit``."""

    limit: int = MOST_RANKS
    offset: int = 0

    def narrow(self, other: Ranks) -> Ranks:
        """Those that both show."""
        return Ranks(min(self.limit, other.limit), max(self.offset, other.offset))


@dataclass(frozen=True)
class Ranking:
    """The order by which a query ranks its rows, the ranks that it shows, and a condition on the ranked rows.

    ``is_shown``: the rank is a column of the result.
    """

    number: RowNumber
    ranks: Ranks = Ranks()
    condition: Expr | None = None
    is_shown: bool = False


def read_order(cursor: Cursor, items: Sequence[Item | Star]) -> Ranking | None:
    """Read ORDER BY with LIMIT or OFFSET, if it comes next."""
    if not cursor.at("ORDER", "BY"):
        return None
    first = cursor.position
    cursor.begin_line()
    order = _read_by(cursor, items)
    written = " ".join(cursor.text_from(first).split())
    if not cursor.at("LIMIT") and not cursor.at("OFFSET"):
        cursor.position = first
        hint = f"write `{written} LIMIT 10`: the first rows of a table, kept up to date."
        raise cursor.refuse_unsupported("ORDER BY without LIMIT", hint, 2)
    cursor.begin_line()
    limit, offset = _read_limit(cursor), 0
    if cursor.take("OFFSET"):
        offset = _read_count(cursor, "a number of rows", f"write `{written} LIMIT 10 OFFSET 20`.")
        if not cursor.take("ROWS"):
            cursor.take("ROW")
        limit = _read_limit(cursor) if limit is None else limit
    return Ranking(RowNumber((), order), Ranks(MOST_RANKS if limit is None else limit + offset, offset))


def _read_limit(cursor: Cursor) -> int | None:
    """``LIMIT n`` if it comes next."""
    if not cursor.take("LIMIT"):
        return None
    limit = _read_count(cursor, "a number of rows", _LIMIT)
    if cursor.at(",") and cursor.peek(1).kind == "number":
        hint = f"write `LIMIT {cursor.peek(1).text} OFFSET {limit}`."
        raise cursor.failure("OFFSET", hint)
    return limit


def _read_count(cursor: Cursor, expected: str, hint: str) -> int:
    digits = cursor.peek().text
    if not digits.isdecimal() or len(digits) > 9:
        raise cursor.failure(expected, hint)
    cursor.next()
    return int(digits)


def at_number(cursor: Cursor) -> bool:
    """Whether ROW_NUMBER() OVER, RANK() OVER or DENSE_RANK() OVER comes next."""
    return any(cursor.at(function, "(", ")", "OVER") for function in NUMBERS)


def read_number(cursor: Cursor, items: Sequence[Item | Star] = ()) -> RowNumber:
    """``ROW_NUMBER() OVER ([PARTITION BY a, ...] ORDER BY b, ...)``, or another rank."""
    first, function = cursor.position, cursor.peek().word
    cursor.skip(4)
    behind = open_window(cursor)
    cursor.skip(1)
    by: tuple[Item, ...] = ()
    if cursor.take("PARTITION"):
        cursor.expect("BY", _NUMBER)
        by = tuple(Item(_resolve_item(expr, items), f"#by{n}") for n, expr in enumerate(cursor.read_list(read_or)))
    if not cursor.at("ORDER", "BY"):
        raise cursor.failure("ORDER BY", _NUMBER)
    order = _read_by(cursor, items)
    cursor.expect(")", _NUMBER)
    cursor.position = cursor.position if behind is None else behind
    return RowNumber(by, order, span=cursor.span_from(first), function=function)


def as_window_call(number: RowNumber) -> Item:
    """A rank as one window function of several."""
    order = tuple(Expr("order", (key.expr,), SORTS[key.descending, key.nulls_last]) for key in number.order)
    call = Expr("call", text=number.function.lower(), span=number.span)
    by = tuple(item.expr for item in number.by)
    return Item(WindowCall(call, by, order, "ROWS", None, NO_ROWS).as_expr(number.span), number.name)


def read_qualify(cursor: Cursor, items: Sequence[Item | Star], number: RowNumber | None) -> Ranking | None:
    """``QUALIFY ROW_NUMBER() OVER (...) <= n`` if it comes next, or a condition on the rank in SELECT, ``number``."""
    if not cursor.at("QUALIFY"):
        return None
    cursor.begin_line()
    cursor.skip(1)
    if not at_number(cursor):
        if number is None:
            raise cursor.failure("ROW_NUMBER(), RANK() or DENSE_RANK()", _QUALIFY)
        ranks, rest = _split(read_or(cursor), number.name)
        return Ranking(number, ranks, rest, is_shown=True)
    if number is not None:
        hint = f"write `QUALIFY {number.name} <= 10`, with the name of the rank in SELECT."
        raise cursor.refuse_unsupported("QUALIFY with a rank of its own beside one in SELECT", hint)
    numbered = read_number(cursor, items)
    if cursor.take("BETWEEN"):
        low = _read_rank(cursor)
        cursor.expect("AND", _QUALIFY)
        return Ranking(numbered, Ranks(max(_read_rank(cursor), 0), max(low - 1, 0)))
    sign = cursor.peek().word
    if sign not in _TURNED:
        raise cursor.failure("`<=`", _QUALIFY)
    cursor.next()
    return Ranking(numbered, _ranks(sign, _read_rank(cursor)))


def _read_rank(cursor: Cursor) -> int:
    is_negative = cursor.take("-")
    rank = _read_count(cursor, "how many rows of each group", _QUALIFY)
    return -rank if is_negative else rank


def rank_rows(query: Query, ranking: Ranking, name: str) -> Query:
    """The query for some of its rows by their ranks: over all of them, which a view of that name has."""
    number = ranking.number
    items = [*query.items]
    if ranking.is_shown:
        # The rank takes the place of this constant.
        items.insert(number.place, Item(Expr("literal", text="0", value=0), number.name))
    further = (*number.by, *(Item(by.expr, by.column) for by in number.order))
    outer, inner = _split_query(replace(query, items=(*items, *further), number=None), name)
    ranked = replace(
        outer, order=number.order, limit=ranking.ranks.limit, offset=ranking.ranks.offset,
        by=tuple(item.name or "" for item in number.by), ties=number.function != "ROW_NUMBER",
        is_dense=number.function == "DENSE_RANK", rank=number.name if ranking.is_shown else None,
        views=(*query.views, View(name, inner, query.span)),
    )  # fmt: skip
    if ranking.condition is None:
        return ranked
    outer, inner = _split_query(ranked, f"{name}.ranked")
    return replace(outer, where=ranking.condition, views=(View(f"{name}.ranked", inner, query.span),))


def _split_query(query: Query, name: str) -> tuple[Query, Query]:
    """A query over all rows of a view of that name, and the query that this view is."""
    inner = replace(
        query, into=None, into_span=NOWHERE, late_into=None, late_into_span=NOWHERE, side_outputs=(), store=None,
        result="stream" if query.result == "stream" else None, views=query.views if query.limit is not None else (),
    )  # fmt: skip
    outer = Query(
        Scan(name, name, query.span), (Star(),), None, query.into, query.into_span, query.span, query.late_into,
        query.late_into_span, query.side_outputs, query.result, store=query.store,
    )  # fmt: skip
    return outer, inner


def rank_all(view: View, cursor: Cursor) -> View:
    """A view with the ranks of all its rows, if its query shows ranks that nothing has limited."""
    number = view.query.number
    if number is None:
        return view
    return replace(view, query=rank_rows(view.query, Ranking(number, is_shown=True), cursor.new_name()))


def apply_row_limit(
    cursor: Cursor, relation: Relation, items: Sequence[Item | Star], where: Expr | None, others: Sequence[Expr]
) -> Expr | None:
    """WHERE without what it says of the rank of a subquery alone, which then only has those rows.

    ``others``: further expressions of the query, which may name the rank.
    """
    views = cursor.views[-1]
    source = relation.source if isinstance(relation, Scan) else None
    place = next((n for n, view in enumerate(views) if view.name == source), None)
    number = None if place is None else views[place].query.number
    if place is None or number is None:
        return where
    ranks, rest = _split(where, number.name)
    read = (*(item.expr for item in items if isinstance(item, Item)), *others, *conjuncts(rest))
    is_shown = ranks == Ranks() or any(_mentions(expr, number.name) for expr in read)
    view = views[place]
    ranking = Ranking(number, ranks, is_shown=is_shown)
    views[place] = replace(view, query=rank_rows(view.query, ranking, f"{view.name}.rows"))
    return rest


def _split(condition: Expr | None, name: str) -> tuple[Ranks, Expr | None]:
    """The ranks that a condition leaves, and what else it says."""
    ranks, rest = Ranks(), list[Expr]()
    for part in conjuncts(condition):
        bound = _bound(part, name)
        if bound is None:
            rest.append(part)
        else:
            ranks = ranks.narrow(bound)
    if condition is None or not rest:
        return ranks, None
    return ranks, rest[0] if len(rest) == 1 else replace(condition, op="and", args=tuple(rest))


def _bound(part: Expr, name: str) -> Ranks | None:
    """The ranks that ``number <= n`` and the like leave; None for anything else."""
    if len(part.args) != 2:
        return None
    column, other = part.args
    sign = part.op
    if other.op == "column":
        column, other, sign = other, column, _TURNED.get(part.op, "")
    is_negative = other.op == "negate"
    number = other.args[0] if is_negative else other
    is_whole = number.op == "literal" and isinstance(number.value, int) and not isinstance(number.value, bool)
    if not is_whole or not _is_column(column, name) or sign not in _TURNED:
        return None
    return _ranks(sign, -int(str(number.value)) if is_negative else int(str(number.value)))


def _ranks(sign: str, number: int) -> Ranks:
    """The ranks that compare with a number like that; ranks begin with 1."""
    below = {"<": number - 1, "<=": number, "=": number}.get(sign, MOST_RANKS)
    above = {">": number, ">=": number - 1, "=": number - 1}.get(sign, 0)
    return Ranks(min(max(below, 0), MOST_RANKS), min(max(above, 0), MOST_RANKS))


def _is_column(expr: Expr, name: str) -> bool:
    return expr.op == "column" and expr.refs[0].parts[-1].lower() == name.lower()


def _mentions(expr: Expr, name: str) -> bool:
    return any(ref.parts[-1].lower() == name.lower() for ref in expr.references)


def _read_by(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[SortKey, ...]:
    cursor.skip(2)
    order: list[SortKey] = []
    while not order or cursor.take(","):
        order.append(_read_ordering(cursor, items, f"#order{len(order)}"))
    return tuple(order)


def _read_ordering(cursor: Cursor, items: Sequence[Item | Star], column: str) -> SortKey:
    expr = _resolve_item(read_or(cursor), items)
    descending = cursor.take("DESC")
    if not descending:
        cursor.take("ASC")
    # As in Spark, NULL is less than everything unless it is said where it goes.
    nulls_last = descending
    if cursor.take("NULLS", "FIRST") or cursor.take("NULLS", "LAST"):
        nulls_last = cursor.previous.word == "LAST"
    return SortKey(expr, column, descending, nulls_last)


def _resolve_item(expr: Expr, items: Sequence[Item | Star]) -> Expr:
    """A column of SELECT, if ORDER BY names it or gives its place; any other expression as it is."""
    place = expr.value if expr.op == "literal" else None
    if isinstance(place, int) and not isinstance(place, bool) and 0 < place <= len(items):
        item = items[place - 1]
        return item.expr if isinstance(item, Item) else expr
    if expr.op == "column" and len(expr.refs[0].parts) == 1:
        name = expr.refs[0].parts[0].lower()
        return next((i.expr for i in items if isinstance(i, Item) and (i.name or "").lower() == name), expr)
    return expr
