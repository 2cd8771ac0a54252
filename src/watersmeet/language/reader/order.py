"""The first n rows of a query, or of each group of its rows.

``ORDER BY x [ASC | DESC] [NULLS FIRST | NULLS LAST], ... LIMIT n`` behind it; of each group ``QUALIFY ROW_NUMBER() OVER
(PARTITION BY ... ORDER BY ...) <= n``, or ROW_NUMBER() under a name in a subquery, and the number in WHERE around it.
RANK() in its place gives rows that are equal in that order one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import NOWHERE
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import Item, Query, Relation, RowNumber, Scan, SortKey, Star, View

_NUMBER = "write `ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC)`, for example."
_QUALIFY = "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY price DESC) <= 10`, for example."
NUMBERS = ("ROW_NUMBER", "RANK")
_LESS, _TURNED = ("<=", "<", "="), {">=": "<=", ">": "<", "=": "="}
_HINT = "write `ORDER BY price DESC LIMIT 10`: the first rows of a table, kept up to date."


def read_order(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[tuple[SortKey, ...], int | None]:
    """What rows are ordered by and how many are shown, if both come next."""
    if not cursor.at("ORDER", "BY"):
        return (), None
    first = cursor.position
    cursor.begin_line()
    order = _read_by(cursor, items)
    if not cursor.at("LIMIT"):
        cursor.position = first
        raise cursor.refuse_unsupported("ORDER BY without LIMIT", _HINT, 2)
    cursor.begin_line()
    cursor.skip(1)
    digits = cursor.peek().text
    if not digits.isdecimal() or len(digits) > 9:
        raise cursor.failure("a number of rows", _HINT)
    cursor.next()
    return order, int(digits)


def at_number(cursor: Cursor) -> bool:
    """Whether ROW_NUMBER() OVER or RANK() OVER comes next."""
    return any(cursor.at(function, "(", ")", "OVER") for function in NUMBERS)


def read_number(cursor: Cursor, items: Sequence[Item | Star] = ()) -> RowNumber:
    """``ROW_NUMBER() OVER ([PARTITION BY a, ...] ORDER BY b, ...)``, or RANK()."""
    first, function = cursor.position, cursor.peek().word
    cursor.skip(4)
    cursor.expect("(", _NUMBER)
    by: tuple[Item, ...] = ()
    if cursor.take("PARTITION"):
        cursor.expect("BY", _NUMBER)
        by = tuple(Item(_resolve_item(expr, items), f"#by{n}") for n, expr in enumerate(cursor.read_list(read_or)))
    if not cursor.at("ORDER", "BY"):
        raise cursor.failure("ORDER BY", _NUMBER)
    order = _read_by(cursor, items)
    cursor.expect(")", _NUMBER)
    return RowNumber(by, order, span=cursor.span_from(first), function=function)


def read_qualify(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[RowNumber, int] | None:
    """``QUALIFY ROW_NUMBER() OVER (...) <= n`` if it comes next."""
    if not cursor.at("QUALIFY"):
        return None
    cursor.begin_line()
    cursor.skip(1)
    if not at_number(cursor):
        raise cursor.failure("ROW_NUMBER() or RANK()", _QUALIFY)
    numbered = read_number(cursor, items)
    sign = cursor.peek().word
    if sign not in _LESS:
        raise cursor.failure("`<=`", _QUALIFY)
    cursor.next()
    is_negative = cursor.take("-")
    digits = cursor.peek().text
    is_number = digits.isdecimal() and len(digits) <= 9
    limit = _limit(sign, -int(digits) if is_negative else int(digits)) if is_number else None
    if limit is None:
        raise cursor.failure("how many rows of each group", _QUALIFY)
    cursor.next()
    return numbered, limit


def first_rows(query: Query, numbered: RowNumber, limit: int, name: str) -> Query:
    """The query for the first of its rows: over all of them, which a view of that name has."""
    further = (*numbered.by, *(Item(by.expr, by.column) for by in numbered.order))
    inner = replace(
        query, items=(*query.items, *further), into=None, into_span=NOWHERE, late_into=None, late_into_span=NOWHERE,
        side_outputs=(), result=None, store=None, number=None, views=(),
    )  # fmt: skip
    return Query(
        Scan(name, name, query.span), (Star(),), None, query.into, query.into_span, query.span, query.late_into,
        query.late_into_span, query.side_outputs, query.result,
        views=(*query.views, View(name, inner, query.span)), store=query.store, order=numbered.order, limit=limit,
        by=tuple(item.name or "" for item in numbered.by), ties=numbered.function == "RANK",
    )  # fmt: skip


def apply_row_limit(
    cursor: Cursor, relation: Relation, items: Sequence[Item | Star], where: Expr | None
) -> Expr | None:
    """WHERE without what it says about the number of a row in a subquery, which then has its first rows alone."""
    views = cursor.views[-1]
    source = relation.source if isinstance(relation, Scan) else None
    place = next((n for n, view in enumerate(views) if view.name == source), None)
    number = None if place is None else views[place].query.number
    if place is None or number is None:
        return where
    limits = [(part, _row_limit(part, number.name)) for part in conjuncts(where)]
    left = [part for part, limit in limits if limit is None]
    row_limits = [limit for _, limit in limits if limit is not None]
    shown = [item.expr for item in items if isinstance(item, Item)]
    if len(row_limits) != 1 or any(_mentions(expr, number.name) for expr in (*left, *shown)):
        what = f"{number.function}() as `{number.name}` without a limit, or for anything else"
        hint = (
            f"write `WHERE {number.name} <= 10` around it, and leave it out of SELECT: positions change with every row."
        )
        cursor.position = max(cursor.position - 1, 0)
        raise cursor.refuse_unsupported(what, hint)
    view = views[place]
    views[place] = replace(view, query=first_rows(view.query, number, row_limits[0], f"{view.name}.rows"))
    return None if where is None or not left else left[0] if len(left) == 1 else replace(where, args=tuple(left))


def _row_limit(part: Expr, name: str) -> int | None:
    """How many rows ``number <= n`` and the like leave; None for anything else."""
    if len(part.args) != 2:
        return None
    column, other = part.args
    sign = part.op
    if other.op == "column":
        column, other, sign = other, column, _TURNED.get(part.op, "")
    is_negative = other.op == "negate"
    number = other.args[0] if is_negative else other
    is_whole = number.op == "literal" and isinstance(number.value, int) and not isinstance(number.value, bool)
    if not is_whole or not _is_column(column, name) or sign not in _LESS:
        return None
    return _limit(sign, -int(str(number.value)) if is_negative else int(str(number.value)))


def _limit(sign: str, number: int) -> int | None:
    """How many rows have a number like that, which begins with 1; None where it is not the first ones."""
    limit = number - 1 if sign == "<" else number
    return None if sign == "=" and number > 1 else max(limit, 0)


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
