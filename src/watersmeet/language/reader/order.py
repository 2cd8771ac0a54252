"""``ORDER BY x [ASC | DESC] [NULLS FIRST | NULLS LAST], ... LIMIT n`` behind a query: the first n of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Item, Ordered, Star

_HINT = "write `ORDER BY price DESC LIMIT 10`: the first rows of a table, kept up to date."


def read_order(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[tuple[Ordered, ...], int | None]:
    """What rows are ordered by and how many are shown, if both come next."""
    if not cursor.at("ORDER", "BY"):
        return (), None
    first = cursor.position
    cursor.begin_line()
    cursor.skip(2)
    found: list[Ordered] = []
    while not found or cursor.take(","):
        found.append(_read_one(cursor, items, f"#order{len(found)}"))
    if not cursor.at("LIMIT"):
        cursor.position = first
        raise cursor.unsupported("ORDER BY without LIMIT", _HINT, 2)
    cursor.begin_line()
    cursor.skip(1)
    digits = cursor.peek().text
    if not digits.isdecimal() or len(digits) > 9 or int(digits) == 0:
        raise cursor.failure("a number of rows, one or more", _HINT)
    cursor.next()
    return tuple(found), int(digits)


def _read_one(cursor: Cursor, items: Sequence[Item | Star], column: str) -> Ordered:
    expr = _meant(read_or(cursor), items)
    descending = cursor.take("DESC")
    if not descending:
        cursor.take("ASC")
    # As in Spark, NULL is less than everything unless it is said where it goes.
    nulls_last = descending
    if cursor.take("NULLS", "FIRST") or cursor.take("NULLS", "LAST"):
        nulls_last = cursor.previous.word == "LAST"
    return Ordered(expr, column, descending, nulls_last)


def _meant(expr: Expr, items: Sequence[Item | Star]) -> Expr:
    """A column of SELECT, if ORDER BY names it or gives its place; any other expression as it is."""
    place = expr.value if expr.op == "literal" else None
    if isinstance(place, int) and not isinstance(place, bool) and 0 < place <= len(items):
        item = items[place - 1]
        return item.expr if isinstance(item, Item) else expr
    if expr.op == "column" and len(expr.refs[0].parts) == 1:
        name = expr.refs[0].parts[0].lower()
        return next((i.expr for i in items if isinstance(i, Item) and (i.name or "").lower() == name), expr)
    return expr
