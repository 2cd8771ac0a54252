"""Sources behind FROM and JOIN: streams, tables and unions, each with its alias and its window."""

from __future__ import annotations

from watersmeet.catalog import Span
from watersmeet.errors import WatersmeetError
from watersmeet.language.amounts import starts_amount
from watersmeet.language.cursor import Cursor
from watersmeet.language.tokens import Token
from watersmeet.language.unsupported import refused_clause
from watersmeet.language.windows import at_pad, take_window
from watersmeet.plan.nodes import JoinKind, Scan, Union

KINDS: dict[tuple[str, ...], JoinKind] = {
    ("JOIN",): "inner",
    ("INNER", "JOIN"): "inner",
    ("LEFT", "JOIN"): "left",
    ("LEFT", "OUTER", "JOIN"): "left",
    ("RIGHT", "JOIN"): "right",
    ("RIGHT", "OUTER", "JOIN"): "right",
    ("FULL", "JOIN"): "full",
    ("FULL", "OUTER", "JOIN"): "full",
    ("OUTER", "JOIN"): "full",
    ("LEFT", "SEMI", "JOIN"): "semi",
    ("SEMI", "JOIN"): "semi",
    ("LEFT", "ANTI", "JOIN"): "anti",
    ("ANTI", "JOIN"): "anti",
}
ASOF_KINDS: dict[tuple[str, ...], JoinKind] = {
    ("ASOF", "JOIN"): "inner",
    ("INNER", "ASOF", "JOIN"): "inner",
    ("ASOF", "INNER", "JOIN"): "inner",
    ("LEFT", "ASOF", "JOIN"): "left",
    ("LEFT", "OUTER", "ASOF", "JOIN"): "left",
    ("ASOF", "LEFT", "JOIN"): "left",
    ("RIGHT", "ASOF", "JOIN"): "right",
    ("ASOF", "RIGHT", "JOIN"): "right",
    ("FULL", "ASOF", "JOIN"): "full",
    ("ASOF", "FULL", "JOIN"): "full",
}


_UNION = "`(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`."

_CLAUSES = (
    ("SYNC", "JOIN"), ("USING", "("), ("WINDOW", "("), ("FOR", "SYSTEM_TIME"), ("MATCH_CONDITION",),
    ("DEFAULT", "("), ("LATE", "INTO"), ("PORTS", "INTO"), ("UNMATCHED", "LEFT", "INTO"),
    ("UNMATCHED", "RIGHT", "INTO"),
)  # fmt: skip


def at_clause(cursor: Cursor) -> bool:
    """Whether a clause begins here, so that the next word is no alias."""
    if cursor.at_any({"JOIN", "ON", "WHERE", "AS"}) or refused_clause(cursor) or at_pad(cursor):
        return True
    if join_words(cursor, KINDS) or join_words(cursor, ASOF_KINDS) or any(cursor.at(*words) for words in _CLAUSES):
        return True
    return cursor.at("WITHIN") and starts_amount(cursor, 1)


def join_words(cursor: Cursor, kinds: dict[tuple[str, ...], JoinKind]) -> tuple[str, ...]:
    """The words of the join that begins here, if it is one of these kinds."""
    return next((words for words in kinds if cursor.at(*words)), ())


def read_leaf(cursor: Cursor) -> Scan | Union:
    """A source, or several of them made one."""
    if cursor.at("("):
        return _read_union(cursor)
    name, span = _read_source(cursor)
    window = take_window(cursor)
    alias = read_alias(cursor) or name.value
    return Scan(name.value, alias, span, take_window(cursor, window))


def _read_union(cursor: Cursor) -> Union:
    first = cursor.position
    if not cursor.at("(", "SELECT"):
        raise cursor.unsupported("A bracket behind FROM", "name a stream, or write a union: " + _UNION)
    cursor.next()
    scans = [_read_part(cursor)]
    if cursor.at(")"):
        cursor.position = first
        raise cursor.unsupported("A subquery", "declare a stream for it and name that.")
    while cursor.take("UNION", "ALL"):
        scans.append(_read_part(cursor))
    if cursor.at("UNION"):
        raise cursor.unsupported("UNION without ALL", "write UNION ALL: nothing could forget which rows were there.")
    if not cursor.at(")"):
        raise _not_plain(cursor)
    cursor.next()
    span = cursor.span_from(first)
    window = take_window(cursor)
    alias = read_alias(cursor)
    if alias is None:
        raise cursor.failure("an alias", "give the union a name: " + _UNION)
    return Union(tuple(scans), alias, span, take_window(cursor, window))


def _read_part(cursor: Cursor) -> Scan:
    """``SELECT [STREAM] * FROM source``, the part of a union."""
    if not cursor.take("SELECT"):
        raise _not_plain(cursor)
    if cursor.at("STREAM") and not cursor.at_any({",", "FROM"}, ahead=1):
        cursor.next()
    if not cursor.take("*", "FROM") or cursor.at("("):
        raise _not_plain(cursor)
    name, span = _read_source(cursor)
    return Scan(name.value, name.value, span)


def _not_plain(cursor: Cursor) -> WatersmeetError:
    if cursor.at_end:
        return cursor.failure("`)`", "close the bracket that opens the union.")
    what = "A subquery other than a UNION ALL of whole streams"
    return cursor.unsupported(what, "filter and compute in the query around it: " + _UNION)


def _read_source(cursor: Cursor) -> tuple[Token, Span]:
    """The name of a source and its place; ``STREAM`` may stand before it."""
    if cursor.at("TABLE", "("):
        hint = "declare the lag in CREATE STREAM: `WATERMARK FOR t AS t - INTERVAL 5 SECONDS`."
        raise cursor.unsupported("TABLE(...) as a source", hint)
    bracket = cursor.at("STREAM", "(")
    if bracket or (cursor.at("STREAM") and cursor.peek(1).is_name and not _after_stream_name(cursor)):
        cursor.position += 2 if bracket else 1
    hint = "write `FROM orders AS o`, for example."
    if cursor.at_any({"ON", "WHERE", "JOIN", "SELECT"}):
        raise cursor.failure("the name of a stream", hint)
    name = cursor.take_name("the name of a stream", hint)
    span = cursor.span_of(name)
    if bracket:
        cursor.expect(")", "write `STREAM(name)`.")
    if cursor.at("."):
        raise cursor.failure("an alias or a clause", "put a name that contains a dot in backticks.")
    return name, span


def _after_stream_name(cursor: Cursor) -> bool:
    """Whether STREAM is itself the name of a source: what follows it is a clause."""
    cursor.position += 1
    follows = at_clause(cursor)
    cursor.position -= 1
    return follows


def read_alias(cursor: Cursor) -> str | None:
    """The alias that comes next, with or without AS."""
    if cursor.take("AS"):
        return cursor.take_name("an alias", "write `orders AS o`, for example.").value
    if cursor.peek().is_name and not at_clause(cursor):
        return cursor.take_bare_alias().value
    return None
