"""Sources behind FROM and JOIN: streams, tables, views, subqueries and unions, each with its alias and its clause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from watersmeet.catalog import Amount, Span, Watermark
from watersmeet.language.reader.clauses import at_clause, at_watermark, read_alias
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import read_amount
from watersmeet.plan.nodes import Clause, Query, Scan, Star, Union, Windowed

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
    is_plain = is_plain and query.having is None and not query.is_distinct
    if not is_plain or not isinstance(scan, Scan) or scan.clause is not None:
        return None
    if len(query.items) != 1 or not isinstance(query.items[0], Star) or query.items[0].alias is not None:
        return None
    return Scan(scan.source, scan.source, scan.span, watermarks=scan.watermarks)


_UNION = "`(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`."
_DELAY = "write `orders WATERMARK order_time DELAY OF INTERVAL 5 SECONDS`, for example."
_ORDER = "write `TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(order_time), INTERVAL '5' SECONDS))`, for example."
_ARGUMENTS = ("input", "timecol", "lag")


@dataclass(frozen=True)
class _Named:
    """What a source is before it has its alias; without a ``name`` it needs one. A union has several scans."""

    scans: tuple[Scan, ...]
    name: str | None
    span: Span


def read_leaf(cursor: Cursor, read_query: ReadQuery) -> Scan | Union:
    """A source, or several of them made one."""
    named = _read_named(cursor, read_query)
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


def _read_named(cursor: Cursor, read_query: ReadQuery) -> _Named:
    first = cursor.position
    if cursor.at("("):
        scans = read_bracket(cursor, read_query)
        return _Named(scans, None, cursor.span_from(first))
    if cursor.at("TABLE", "("):
        return _read_table_function(cursor, read_query)
    name, span = _read_name(cursor)
    return _Named((Scan(name, name, span),), name, span)


def _read_name(cursor: Cursor) -> tuple[str, Span]:
    """The name of a source and its place; ``STREAM`` may stand before it."""
    bracket = cursor.at("STREAM", "(")
    if bracket or (cursor.at("STREAM") and cursor.peek(1).is_name and not _after_stream_name(cursor)):
        cursor.skip(2 if bracket else 1)
    hint = "write `FROM orders AS o`, for example."
    if cursor.at_any({"ON", "WHERE", "JOIN", "SELECT"}):
        raise cursor.failure("the name of a stream", hint)
    name = cursor.take_name("the name of a stream", hint)
    if bracket:
        cursor.expect(")", "write `STREAM(name)`.")
    if cursor.at("."):
        raise cursor.failure("an alias or a clause", "put a name that contains a dot in backticks.")
    return name.value, cursor.span_of(name)


def _after_stream_name(cursor: Cursor) -> bool:
    """Whether STREAM is itself the name of a source: what follows it is a clause."""
    cursor.position += 1
    follows = at_clause(cursor)
    cursor.position -= 1
    return follows


def _read_watermarks(cursor: Cursor, named: _Named) -> _Named:
    """``WATERMARK column DELAY OF lag``, as often as it comes."""
    while at_watermark(cursor):
        if len(named.scans) > 1:
            hint = "write it in each part: `(SELECT * FROM a WATERMARK t DELAY OF INTERVAL 5 SECONDS UNION ALL ...)`."
            raise cursor.unsupported("WATERMARK behind a union", hint)
        first = cursor.position
        cursor.skip(1)
        column = cursor.next().value
        cursor.skip(1)
        cursor.expect("OF", _DELAY)
        lag = read_amount(cursor)
        named = _with_watermark(named, Watermark(column, lag, cursor.span_from(first)))
    return named


def _with_watermark(named: _Named, watermark: Watermark) -> _Named:
    scan = named.scans[0]
    return replace(named, scans=(replace(scan, watermarks=(*scan.watermarks, watermark)),))


def _read_table_function(cursor: Cursor, read_query: ReadQuery) -> _Named:
    """``TABLE(IMPOSE_ORDER(TABLE name, DESCRIPTOR(column), lag))``, its arguments also with their names."""
    first = cursor.position
    if cursor.at_any({"TUMBLE", "HOP", "SESSION"}, ahead=2):
        return _read_windowed(cursor, read_query)
    if not cursor.at_any({"IMPOSE_ORDER"}, ahead=2):
        function = cursor.peek(2).text
        hint = "write IMPOSE_ORDER, TUMBLE, HOP or SESSION, or group with `GROUP BY window(t, '5 minutes')`."
        raise cursor.unsupported(f"TABLE({function}...) as a source", hint)
    cursor.skip(3)
    cursor.expect("(", _ORDER)
    _read_argument(cursor, 0)
    named = _read_ordered(cursor, read_query)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 1)
    begin = cursor.position
    cursor.expect("DESCRIPTOR", _ORDER)
    cursor.expect("(", _ORDER)
    column = cursor.take_name("the name of a column", _ORDER).value
    cursor.expect(")", _ORDER)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 2)
    lag = read_amount(cursor)
    watermark = Watermark(column, lag, cursor.span_from(begin))
    cursor.expect(")", _ORDER)
    cursor.expect(")", _ORDER)
    return replace(_with_watermark(named, watermark), span=cursor.span_from(first))


def _read_windowed(cursor: Cursor, read_query: ReadQuery) -> _Named:
    """``TABLE(TUMBLE(TABLE name, DESCRIPTOR(column), size))``; HOP has the slide before the size.

    SESSION may say PARTITION BY behind the name: what the query groups by besides the window, in any case.
    """
    first, function = cursor.position, cursor.peek(2).word
    hint = "write `TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), INTERVAL '10' MINUTES))`, for example."
    if function == "HOP":
        hint = "write `TABLE(HOP(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '10' MINUTES))`, for example."
    if function == "SESSION":
        hint = "write `TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(t), INTERVAL '5' MINUTES))`."
    cursor.skip(3)
    cursor.expect("(", hint)
    named = _read_ordered(cursor, read_query)
    by = _read_partition(cursor, hint) if function == "SESSION" else ()
    cursor.expect(",", hint)
    cursor.expect("DESCRIPTOR", hint)
    cursor.expect("(", hint)
    column = cursor.take_name("the name of a column", hint).value
    cursor.expect(")", hint)
    lengths: list[Amount] = []
    while len(lengths) < (2 if function == "HOP" else 1):
        cursor.expect(",", hint)
        lengths.append(read_amount(cursor))
    cursor.expect(")", hint)
    cursor.expect(")", hint)
    window = Windowed(function, column, tuple(reversed(lengths)), cursor.span_from(first), by)
    return replace(named, scans=(replace(named.scans[0], window=window),), span=cursor.span_from(first))


def _read_partition(cursor: Cursor, hint: str) -> tuple[str, ...]:
    """``PARTITION BY a, b``, also in parentheses."""
    if not cursor.take("PARTITION"):
        return ()
    cursor.expect("BY", hint)
    is_closed = cursor.take("(")
    names = [cursor.take_name("the name of a column", hint).value]
    while cursor.at(",") and not cursor.at(",", "DESCRIPTOR"):
        cursor.skip(1)
        names.append(cursor.take_name("the name of a column", hint).value)
    if is_closed:
        cursor.expect(")", hint)
    return tuple(names)


def _read_argument(cursor: Cursor, number: int) -> None:
    """``name =>`` if it comes next, which must be the name of this argument."""
    if cursor.peek(1).word != "=>":
        return
    name = cursor.peek().value.lower().replace("_", "")
    if name != _ARGUMENTS[number]:
        expected = ("`input`", "`timeCol`", "`lag`")[number]
        raise cursor.failure(expected, "write the arguments in this order: input, timeCol, lag.")
    cursor.position += 2


def _read_ordered(cursor: Cursor, read_query: ReadQuery) -> _Named:
    """What IMPOSE_ORDER is applied to: a table by name, a query, or another IMPOSE_ORDER."""
    if cursor.at("(", "TABLE"):
        cursor.next()
        named = _read_ordered(cursor, read_query)
        cursor.expect(")", _ORDER)
        return named
    if cursor.at("TABLE", "(") or cursor.at("("):
        named = _read_named(cursor, read_query)
        if len(named.scans) > 1:
            raise cursor.failure("`)`", "give each part of the union a watermark of its own.", cursor.previous)
        return named
    cursor.expect("TABLE", _ORDER)
    name, span = _read_name(cursor)
    return _Named((Scan(name, name, span),), name, span)
