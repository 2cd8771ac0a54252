"""Sources behind FROM and JOIN: streams, tables, views, subqueries and unions, each with its alias and its clause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from watersmeet.catalog import Watermark
from watersmeet.language.reader.clauses import at_watermark, read_alias
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import read_amount
from watersmeet.language.reader.table_functions import NamedSource, read_name, read_table_function, with_watermark
from watersmeet.plan.nodes import Clause, Query, Scan, Star, Union

ReadQuery = Callable[[Cursor], Query]
"""What reads a query up to the bracket that closes it, or up to UNION ALL."""


def read_bracket(cursor: Cursor, read_query: ReadQuery) -> tuple[Scan, ...]:
    """``(query)`` or ``(query UNION ALL query ...)``: each as a scan of what it reads, or of a view made of it."""
    opening = cursor.position
    if not cursor.at_any({"SELECT", "WITH"}, ahead=1):
        hint = "name a stream, or write a query: `(SELECT STREAM * FROM a) AS s`."
        raise cursor.refuse_unsupported("A bracket after FROM", hint)
    cursor.next()
    cursor.nesting += 1
    parts = [read_query(cursor)]
    while cursor.at("UNION", "ALL"):
        cursor.begin_line()
        cursor.skip(2)
        parts.append(read_query(cursor))
    close_query(cursor, opening)
    if len(parts) == 1:
        return (_scan_of_view(cursor, parts[0]),)
    return tuple(_as_whole_scan(part) or _scan_of_view(cursor, part) for part in parts)


def close_query(cursor: Cursor, opening: int) -> None:
    """Take the bracket that closes a query; the one that opens it is at index ``opening``.

    A semicolon may stand before it: Lenses ends a query with one wherever it stands.
    """
    if cursor.at(";", ")"):
        cursor.layout.needless.add(cursor.position)
        cursor.next()
    cursor.nesting -= 1
    if cursor.at("UNION"):
        if cursor.at("UNION", "ALL"):
            hint = "write it as a source: `FROM (SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`."
            raise cursor.refuse_unsupported("UNION of queries", hint)
        raise cursor.refuse_unsupported(
            "UNION without ALL", "write UNION ALL: removing duplicates would keep every row forever."
        )
    if not cursor.at(")"):
        raise cursor.failure("`)`", "close the bracket that opens the query.")
    cursor.next()
    cursor.close_block(opening)


def _scan_of_view(cursor: Cursor, query: Query) -> Scan:
    name = cursor.add_subquery(query, query.span)
    return Scan(name, name, query.span)


def _as_whole_scan(query: Query) -> Scan | None:
    """The scan of a source of which all rows and columns are read; None if the query does more than that."""
    scan = query.relation
    is_plain = query.where is None and not query.group_by and not query.views and query.result != "table"
    is_plain = is_plain and query.having is None and not query.is_distinct
    if not is_plain or not isinstance(scan, Scan) or scan.clause is not None:
        return None
    if len(query.items) != 1 or not isinstance(query.items[0], Star) or query.items[0].alias is not None:
        return None
    return Scan(scan.source, scan.source, scan.span, watermarks=scan.watermarks)


_UNION = "`(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`."
_DELAY = "write `orders WATERMARK order_time DELAY OF INTERVAL 5 SECONDS`, for example."


def read_leaf(cursor: Cursor, read_query: ReadQuery) -> Scan | Union:
    """A source, or several of them made one."""
    named = _read_source(cursor, read_query)
    clause = _read_clause(cursor, None)
    named = _read_watermarks(cursor, named)
    alias = read_alias(cursor)
    clause = _read_clause(cursor, clause)
    named = _read_watermarks(cursor, named)
    if alias is None and named.name is None:
        what = "the union" if len(named.scans) > 1 else "the subquery"
        example = _UNION if len(named.scans) > 1 else "`(SELECT STREAM ...) AS s`."
        raise cursor.failure("an alias", f"give {what} a name: {example}")
    alias = alias or named.name or ""
    first, *others = named.scans
    if others:
        return Union(named.scans, alias, named.span, clause)
    return replace(first, alias=alias, clause=clause, span=named.span)


def _read_clause(cursor: Cursor, before: Clause | None) -> Clause | None:
    """A clause of a family if one comes next, else the one from ``before``."""
    for grammar in cursor.grammars:
        before = grammar.read_behind_source(cursor, before)
    return before


def _read_source(cursor: Cursor, read_query: ReadQuery) -> NamedSource:
    first = cursor.position
    if cursor.at("("):
        scans = read_bracket(cursor, read_query)
        return NamedSource(scans, None, cursor.span_from(first))
    if cursor.at("TABLE", "("):
        return read_table_function(cursor, lambda cursor: _read_source(cursor, read_query))
    name, span = read_name(cursor)
    return NamedSource((Scan(name, name, span),), name, span)


def _read_watermarks(cursor: Cursor, named: NamedSource) -> NamedSource:
    """``WATERMARK column DELAY OF lag``, as often as it comes."""
    while at_watermark(cursor):
        if len(named.scans) > 1:
            hint = "write it in each part: `(SELECT * FROM a WATERMARK t DELAY OF INTERVAL 5 SECONDS UNION ALL ...)`."
            raise cursor.refuse_unsupported("WATERMARK after a union", hint)
        first = cursor.position
        cursor.skip(1)
        column = cursor.next().value
        cursor.skip(1)
        cursor.expect("OF", _DELAY)
        lag = read_amount(cursor)
        named = with_watermark(named, Watermark(column, lag, cursor.span_from(first)))
    return named
