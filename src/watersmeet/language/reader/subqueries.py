"""Queries in brackets behind FROM: a subquery, or several with UNION ALL between them."""

from __future__ import annotations

from collections.abc import Callable

from watersmeet.language.reader.cursor import Cursor
from watersmeet.plan.nodes import Query, Scan, Star

ReadQuery = Callable[[Cursor], Query]
"""What reads a query up to the bracket that closes it, or up to UNION ALL."""


def read_bracket(cursor: Cursor, read_query: ReadQuery) -> tuple[Scan, ...]:
    """``(query)`` or ``(query UNION ALL query ...)``: each as a scan of what it reads, or of a view made of it."""
    opening = cursor.position
    if not cursor.at_any({"SELECT", "WITH"}, ahead=1):
        hint = "name a stream, or write a query: `(SELECT STREAM * FROM a) AS s`."
        raise cursor.unsupported("A bracket behind FROM", hint)
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
    return tuple(_whole(part) or _scan_of_view(cursor, part) for part in parts)


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
            raise cursor.unsupported("UNION of queries", hint)
        raise cursor.unsupported("UNION without ALL", "write UNION ALL: nothing could forget which rows were there.")
    if not cursor.at(")"):
        raise cursor.failure("`)`", "close the bracket that opens the query.")
    cursor.next()
    cursor.close_block(opening)


def _scan_of_view(cursor: Cursor, query: Query) -> Scan:
    name = cursor.add_subquery(query, query.span)
    return Scan(name, name, query.span)


def _whole(query: Query) -> Scan | None:
    """The scan of a source of which all rows and columns are read; None if the query does more than that."""
    scan = query.relation
    is_plain = query.where is None and not query.group_by and not query.views and query.result != "table"
    if not is_plain or not isinstance(scan, Scan) or scan.clause is not None:
        return None
    if len(query.items) != 1 or not isinstance(query.items[0], Star) or query.items[0].alias is not None:
        return None
    return Scan(scan.source, scan.source, scan.span, watermarks=scan.watermarks)
