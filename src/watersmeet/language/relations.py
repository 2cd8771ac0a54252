"""What stands behind FROM: sources and joins."""

from __future__ import annotations

from watersmeet.catalog import Span
from watersmeet.errors import WatersmeetError
from watersmeet.language.amounts import read_amount, starts_amount
from watersmeet.language.cursor import Cursor
from watersmeet.language.expression import read_or
from watersmeet.language.tokens import Token
from watersmeet.language.unsupported import refused_clause
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Join, JoinKind, Relation, Scan, Union, Within

JOIN_WORDS = ("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "OUTER", "SEMI", "ANTI")
CLAUSE_WORDS = (*JOIN_WORDS, "WITHIN", "ON", "USING", "WHERE", "LATE")

_UNION = "`(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`."

_KINDS: dict[tuple[str, ...], JoinKind] = {
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


def read_relation(cursor: Cursor) -> Relation:
    """A source and the joins that follow it, each with all that stands before it as its left side."""
    relation: Relation = _read_leaf(cursor)
    while words := _join_words(cursor):
        relation = _read_join(cursor, relation, words)
    if cursor.at(","):
        raise cursor.unsupported("A list of sources", "write `a JOIN b ON ...` in place of `a, b`.")
    return relation


def at_clause(cursor: Cursor) -> bool:
    """Whether a clause begins here, so that the next word is no alias."""
    if cursor.at_any({"JOIN", "ON", "WHERE", "AS"}) or _join_words(cursor) or refused_clause(cursor):
        return True
    return (cursor.at("WITHIN") and starts_amount(cursor, 1)) or cursor.at("USING", "(") or cursor.at("LATE", "INTO")


def _join_words(cursor: Cursor) -> tuple[str, ...]:
    return next((words for words in _KINDS if cursor.at(*words)), ())


def _read_leaf(cursor: Cursor) -> Scan | Union:
    """A source, or several of them made one."""
    if cursor.at("("):
        return _read_union(cursor)
    name, span = _read_source(cursor)
    return Scan(name.value, _read_alias(cursor) or name.value, span)


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
    alias = _read_alias(cursor)
    if alias is None:
        raise cursor.failure("an alias", "give the union a name: " + _UNION)
    return Union(tuple(scans), alias, span)


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


def _read_alias(cursor: Cursor) -> str | None:
    if cursor.take("AS"):
        return cursor.take_name("an alias", "write `orders AS o`, for example.").value
    if cursor.peek().is_name and not at_clause(cursor):
        return cursor.take_bare_alias().value
    return None


def _read_join(cursor: Cursor, left: Relation, words: tuple[str, ...]) -> Join:
    first = cursor.position
    cursor.position += len(words)
    right = _read_leaf(cursor)
    span = cursor.span_from(first)
    refused = refused_clause(cursor)
    if refused:
        raise refused
    within = _read_within(cursor, None)
    on, using = _read_condition(cursor)
    within = _read_within(cursor, within)
    if on is None and not using:
        on, using = _read_condition(cursor)
    if cursor.at_any({"ON", "USING"}):
        raise cursor.failure("one condition", "join conditions with AND in a single ON.")
    return Join(left, right, _KINDS[words], on, using, within, span)


def _read_within(cursor: Cursor, before: Within | None) -> Within | None:
    first = cursor.position
    if not cursor.at("WITHIN"):
        return before
    if before is not None:
        raise _second_within(cursor)
    cursor.next()
    within = Within(read_amount(cursor), cursor.span_from(first))
    if cursor.at("WITHIN"):
        raise _second_within(cursor)
    return within


def _second_within(cursor: Cursor) -> WatersmeetError:
    return cursor.failure("one WITHIN", "write WITHIN once, before or after ON.")


def _read_condition(cursor: Cursor) -> tuple[Expr | None, tuple[str, ...]]:
    if cursor.take("ON"):
        return read_or(cursor), ()
    if not cursor.take("USING"):
        return None, ()
    hint = "write `USING (id, day)`, for example."
    cursor.expect("(", hint)
    names = [cursor.take_name("the name of a column", hint).value]
    while cursor.take(","):
        names.append(cursor.take_name("the name of a column", hint).value)
    cursor.expect(")", hint)
    return None, tuple(names)
