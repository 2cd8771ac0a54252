"""Subqueries inside expressions: IN and EXISTS as SEMI and ANTI JOIN, the value of a scalar subquery as a LEFT JOIN.

A subquery that only filters one source is joined with that source: its WHERE becomes the condition of the join, and may
name the columns around it. Any other subquery is a view, whose names are its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.catalog import NOWHERE, Span
from watersmeet.errors import Place, Refusal, WatersmeetError
from watersmeet.logical.expressions import Expr, aggregates_in, all_of, column, conjuncts
from watersmeet.logical.nodes import Item, Join, Membership, Query, Relation, Scan, Star, View, aliases
from watersmeet.logical.words import expression_in_words
from watersmeet.parser.cursor import SUBQUERY_HINT, Cursor, Subquery

VALUE = "value"
"""The name of the only column of a view that stands for a subquery."""

_EXAMPLE = "write `x IN (SELECT y FROM b)`, or EXISTS to compare several columns."
_ONE_ROW = "write an aggregate, `(SELECT max(x) FROM b)`, or `ORDER BY ... LIMIT 1`; for all rows, write a join."


def at_subquery(cursor: Cursor) -> bool:
    """Whether a query in brackets begins here."""
    return cursor.at("(") and cursor.at_any({"SELECT", "WITH"}, ahead=1) and not cursor.at_any((",", ")", "."), 2)


def read_subquery(cursor: Cursor, first: int, operand: Expr | None) -> Expr:
    """The query in brackets that comes next, as that of IN with an operand, or of EXISTS without one."""
    query = _read_brackets(cursor)
    if operand is not None and len(query.items) != 1:
        raise _refusal(cursor, "IN with a subquery of several columns", query.span, _EXAMPLE)
    span = cursor.span_from(first)
    cursor.subqueries[-1].append(Subquery(query, span))
    number = len(cursor.subqueries[-1]) - 1
    return Expr("subquery", () if operand is None else (operand,), value=number, span=span)


def read_scalar(cursor: Cursor) -> Expr:
    """The scalar subquery that comes next, as a column of the view that it will be."""
    first, query = cursor.position, _read_brackets(cursor)
    if len(query.items) != 1 or not _has_one_row(query):
        scan = query.relation
        parts = (part for part in conjuncts(query.where) if isinstance(scan, Scan))
        hint = next((_join_hint(scan, part) for part in parts if _names_outside(part, scan)), _ONE_ROW)
        raise _refusal(cursor, "A scalar subquery that may have several rows or columns", query.span, hint)
    name, span = cursor.new_name(), cursor.span_from(first)
    cursor.subqueries[-1].append(Subquery(query, span, name))
    return column((name, VALUE), span)


def _names_outside(part: Expr, relation: Relation) -> bool:
    """Whether a condition names an alias that is not in a relation."""
    own = {name.lower() for name in aliases(relation)}
    return any(len(ref.parts) > 1 and ref.parts[0].lower() not in own for ref in part.references)


def _join_hint(relation: Relation, part: Expr) -> str:
    names = (relation.source, relation.alias) if isinstance(relation, Scan) else ()
    source = " ".join(dict.fromkeys(names))
    condition = expression_in_words(part)
    return f"write `LEFT JOIN {source} ON {condition}` behind FROM, and the column in place of the subquery."


def _read_brackets(cursor: Cursor) -> Query:
    from watersmeet.parser.relations import close_query

    read_query = cursor.read_query
    if read_query is None:
        cursor.next()
        raise cursor.refuse_unsupported("A subquery", SUBQUERY_HINT)
    opening = cursor.position
    cursor.next()
    cursor.nesting += 1
    query = read_query(cursor)
    close_query(cursor, opening)
    # The query inside has read its own subqueries.
    cursor.read_query = read_query
    return query


def _has_one_row(query: Query) -> bool:
    """Whether a query has at most one row: of an aggregate without GROUP BY, or with LIMIT 1."""
    (item,) = query.items
    if query.limit is not None:
        is_single = len(query.views[-1].query.items) == 1 + len(query.order)
        return query.limit - query.offset == 1 and not query.by and not query.ties and is_single and not query.rank
    return not query.group_by and isinstance(item, Item) and any(aggregates_in(item.expr))


def join_subqueries(cursor: Cursor, relation: Relation, where: Expr | None) -> tuple[Relation, Expr | None]:
    """The relation joined with the subqueries of the current query, and the rest of its WHERE."""
    subqueries = cursor.subqueries.pop()
    for subquery in subqueries:
        if subquery.name:
            query = replace(_name_value(subquery.query), outer=aliases(relation))
            cursor.views[-1].append(View(subquery.name, query, subquery.span))
            scan = Scan(subquery.name, subquery.name, subquery.span)
            member = Membership(subquery.name, is_value=True)
            relation = Join(relation, scan, "left", span=subquery.span, membership=member)
    rest = list[Expr]()
    for part in conjuncts(where):
        is_negated = part.op == "not"
        test = part.args[0] if is_negated else part
        if test.op == "subquery" and isinstance(test.value, int):
            relation = _join(cursor, relation, test, subqueries[test.value], is_negated=is_negated)
        else:
            rest.append(part)
    inside = next((test for part in rest for test in _subqueries_in(part)), None)
    if inside is not None:
        construct = f"{'IN' if inside.args else 'EXISTS'} with a subquery inside OR or another expression"
        hint = "join the parts of WHERE with AND, or write LEFT JOIN and test a column of its right side."
        raise _refusal(cursor, construct, inside.span, hint)
    if len(rest) == len(conjuncts(where)):
        return relation, where
    return relation, all_of(rest)


def check_subqueries(cursor: Cursor, items: tuple[Item | Star, ...]) -> None:
    """Refuse IN and EXISTS of a subquery in SELECT."""
    exprs = (item.expr for item in items if isinstance(item, Item))
    inside = next((test for expr in exprs for test in _subqueries_in(expr)), None)
    if inside is not None:
        raise _refusal(cursor, "IN or EXISTS with a subquery in SELECT", inside.span, "write it in WHERE.")


def _subqueries_in(expr: Expr) -> Iterator[Expr]:
    if expr.op == "subquery":
        yield expr
    for arg in expr.args:
        yield from _subqueries_in(arg)


def _join(cursor: Cursor, relation: Relation, test: Expr, subquery: Subquery, *, is_negated: bool) -> Join:
    query, operand = subquery.query, test.args[0] if test.args else None
    kind = "anti" if is_negated else "semi"
    scan = query.relation
    if isinstance(scan, Scan) and _is_filter(query):
        (item,) = query.items if operand is not None else (Star(),)
        member = item.expr if isinstance(item, Item) else None
        alias = _unique(scan.alias, aliases(relation))
        right = replace(scan, alias=alias)
        membership = Membership(scan.alias, operand, member)
        return Join(relation, right, kind, query.where, span=test.span, membership=membership)
    view = query if operand is None or isinstance(query.items[0], Star) else _name_value(query)
    name = cursor.add_subquery(replace(view, outer=aliases(relation)), subquery.span)
    membership = Membership(name, operand)
    return Join(relation, Scan(name, name, subquery.span), kind, span=test.span, membership=membership)


def _is_filter(query: Query) -> bool:
    """Whether a query only filters the rows of one source and computes columns of each."""
    scan = query.relation
    if not isinstance(scan, Scan) or scan.clause is not None or scan.window is not None or query.views:
        return False
    exprs = [item.expr for item in query.items if isinstance(item, Item)]
    is_grouped = bool(query.group_by) or query.having is not None or any(any(aggregates_in(e)) for e in exprs)
    return not is_grouped and query.limit is None and query.number is None and query.within is None


def _name_value(query: Query) -> Query:
    """The query with its only column under a name that no column around it has."""
    first, *others = query.items
    if isinstance(first, Item):
        return replace(query, items=(replace(first, name=VALUE), *others))
    if query.limit is None:
        return query
    # The rows that LIMIT chooses from are in a view, with the columns that order them behind those of SELECT.
    *views, rows = query.views
    return replace(query, views=(*views, replace(rows, query=_name_value(rows.query))))


def _unique(alias: str, taken: tuple[str, ...]) -> str:
    names = {name.lower() for name in taken}
    candidates = (alias if number == 1 else f"{alias}_{number}" for number in range(1, len(names) + 2))
    return next(name for name in candidates if name.lower() not in names)


def _refusal(cursor: Cursor, construct: str, span: Span, hint: str) -> WatersmeetError:
    start, end = (span.start - cursor.offset, span.end - cursor.offset) if span != NOWHERE else (0, 0)
    place = Place(cursor.name, cursor.text, start, end)
    return WatersmeetError([Refusal("UNSUPPORTED_STATEMENT", {"what": construct, "hint": hint}, place)])
