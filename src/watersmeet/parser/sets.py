"""Set operations: queries that are joined by UNION, INTERSECT and EXCEPT, with ALL or without.

UNION ALL is a relation. The others group the rows of both sides by all their columns and count those of each side:
INTERSECT shows the groups that have rows of both, EXCEPT those that have none of the second. With ALL, a row comes as
often as the counts say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from watersmeet.catalog import NOWHERE, Span
from watersmeet.logical.expressions import Expr, column
from watersmeet.logical.nodes import Item, Lateral, Query, Scan, Star, Union, View
from watersmeet.parser.cursor import Cursor

OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
_SIDE, _TIMES, _COPY = "#side", "#times", "#copy"
"""The side that a row comes from, how often it is shown, and each time that it is."""
_HINT = "write a query on each side: `SELECT * FROM a EXCEPT SELECT * FROM b`."

ReadQuery = Callable[[Cursor], Query]
"""Reads a query up to its end, or up to a set operation."""


def at_set_operation(cursor: Cursor) -> bool:
    """Whether a set operation comes next."""
    if not cursor.at_any(set(OPERATIONS)):
        return False
    ahead = 2 if cursor.at_any({"ALL", "DISTINCT"}, ahead=1) else 1
    return cursor.at_any({"SELECT", "WITH"}, ahead) or (
        cursor.at_any({"("}, ahead) and cursor.at_any({"SELECT", "WITH", "("}, ahead + 1)
    )


def read_parts(cursor: Cursor, read_query: ReadQuery, first: Query | None = None) -> tuple[Query, ...]:
    """The parts of a UNION ALL, or the only one that other set operations leave; ``first`` has been read already."""
    parts = _read_intersection(cursor, read_query, first)
    while at_set_operation(cursor):
        word, is_all = _take_operation(cursor)
        right = _read_intersection(cursor, read_query)
        if word != "UNION":
            parts = (_count_sides(cursor, _as_query(cursor, parts), _as_query(cursor, right), word, is_all=is_all),)
        elif is_all:
            parts = (*parts, *right)
        else:
            parts = (replace(union_all(cursor, (*parts, *right)), is_distinct=True),)
    return parts


def _read_intersection(cursor: Cursor, read_query: ReadQuery, first: Query | None = None) -> tuple[Query, ...]:
    """Parts between UNION and EXCEPT: INTERSECT goes before these."""
    parts = _read_part(cursor, read_query) if first is None else (first,)
    while at_set_operation(cursor) and cursor.at("INTERSECT"):
        word, is_all = _take_operation(cursor)
        right = _read_part(cursor, read_query)
        parts = (_count_sides(cursor, _as_query(cursor, parts), _as_query(cursor, right), word, is_all=is_all),)
    return parts


def _read_part(cursor: Cursor, read_query: ReadQuery) -> tuple[Query, ...]:
    """A query, or set operations in brackets."""
    if not cursor.at("("):
        first = cursor.position
        query = read_query(cursor)
        _check_order(cursor, first)
        return (query,)
    cursor.next()
    cursor.nesting += 1
    parts = read_parts(cursor, read_query)
    cursor.nesting -= 1
    if not cursor.at(")"):
        raise cursor.failure("`)`", "close the bracket that opens the query.")
    cursor.next()
    return (_as_query(cursor, parts),) if len(parts) > 1 else parts


def _check_order(cursor: Cursor, first: int) -> None:
    """Refuse ORDER BY behind a part of a set operation, which SQL applies to the whole."""
    depth, is_part = 0, cursor.tokens[first - 1].word in (*OPERATIONS, "ALL", "DISTINCT") or at_set_operation(cursor)
    for index in range(first, cursor.position):
        token = cursor.tokens[index]
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if is_part and depth == 0 and token.word == "ORDER" and cursor.tokens[index + 1].word == "BY":
            cursor.position = index
            hint = "put the part in brackets; or order the whole, `FROM (... UNION ALL ...) AS u ORDER BY x LIMIT 10`."
            raise cursor.refuse_unsupported("ORDER BY in a part of a set operation", hint, 2)


def _take_operation(cursor: Cursor) -> tuple[str, bool]:
    cursor.begin_line()
    word = cursor.peek().word
    cursor.skip(1)
    is_all = cursor.take("ALL")
    if not is_all:
        cursor.take("DISTINCT")
    return word, is_all


def union_all(cursor: Cursor, parts: Sequence[Query]) -> Query:
    """The rows of several queries as one query."""
    scans, views = list[Scan](), list[View]()
    for part in parts:
        name = cursor.new_name()
        views.append(View(name, part, part.span))
        scans.append(Scan(name, name, part.span))
    span = _span_of(parts)
    return Query(Union(tuple(scans), "union", span), (Star(),), span=span, result=parts[0].result, views=tuple(views))


def _as_query(cursor: Cursor, parts: Sequence[Query]) -> Query:
    return parts[0] if len(parts) == 1 else union_all(cursor, parts)


def _count_sides(cursor: Cursor, left: Query, right: Query, word: str, *, is_all: bool) -> Query:
    """INTERSECT or EXCEPT of two queries."""
    sides = [_with_side(cursor, query, side) for side, query in enumerate((left, right))]
    first, second = (
        Expr("aggregate", (Expr("=", (column((_SIDE,)), _number(side))),), "count_if") for side in range(2)
    )
    if word == "INTERSECT":
        times = Expr("call", (Expr("<", (first, second)), first, second), "if")
        having = Expr("and", (Expr(">", (first, _number(0))), Expr(">", (second, _number(0)))))
    else:
        times = Expr("-", (first, second))
        having = Expr("and", (Expr(">", (first, _number(0))), Expr("=", (second, _number(0)))))
        having = Expr(">", (first, second)) if is_all else having
    query = union_all(cursor, sides)
    query = replace(query, having=having, is_distinct=True, hides=(_SIDE,))
    if not is_all:
        return query
    name, count = cursor.new_name(), Expr("cast", (column((_TIMES,)),), value="INT")
    counted = replace(query, items=(Star(), Item(times, _TIMES)))
    rows = Lateral(Scan(name, name, query.span), Expr("call", (_number(0), count), "array_repeat"), _COPY, query.span)
    return Query(
        rows, (Star(),), span=query.span, result=query.result, views=(View(name, counted, query.span),),
        hides=(_TIMES, _COPY),
    )  # fmt: skip


def _with_side(cursor: Cursor, query: Query, side: int) -> Query:
    """The rows of a query with the number of their side."""
    name = cursor.new_name()
    items = (Star(), Item(_number(side), _SIDE))
    return Query(
        Scan(name, name, query.span), items, span=query.span, result=query.result,
        views=(View(name, query, query.span),),
    )  # fmt: skip


def _number(value: int) -> Expr:
    return Expr("literal", text=str(value), value=value)


def _span_of(parts: Sequence[Query]) -> Span:
    spans = [part.span for part in parts if part.span != NOWHERE]
    return spans[0].to(spans[-1]) if spans else NOWHERE
