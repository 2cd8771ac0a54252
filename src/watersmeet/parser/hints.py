"""Hints behind SELECT, as Spark has them in a comment: ``/*+ SKEW('relation', 'column', (value, ...)), ... */``."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.logical.nodes import Join, Relation, SkewHint
from watersmeet.parser.cursor import Cursor, tokenize

_BEGIN, _END = "/*+", "*/"
_EXAMPLE = "write `SELECT /*+ SKEW('orders', 'customer', (17, 42)) */ STREAM ...`."


def read_hints(cursor: Cursor) -> tuple[SkewHint, ...]:
    """The hints that come next."""
    if not cursor.peek().text.startswith(_BEGIN):
        return ()
    token = cursor.next()
    inner = token.text.removeprefix(_BEGIN).removesuffix(_END)
    shift = token.start + len(_BEGIN)
    tokens = tuple(replace(t, start=t.start + shift, end=t.end + shift) for t in tokenize(inner, cursor.name))
    hints = Cursor(cursor.name, cursor.text, tokens, cursor.offset)
    read = [_read_hint(hints)]
    while hints.take(",") or not hints.at_end:
        read.append(_read_hint(hints))
    return tuple(read)


def check_late_hints(cursor: Cursor) -> None:
    """Refuse hints behind STREAM or TABLE, where they are a comment like any other."""
    if _BEGIN in cursor.text[cursor.previous.end : cursor.peek().start]:
        raise cursor.failure("the hint before STREAM or TABLE", _EXAMPLE)


def with_hints(relation: Relation, hints: tuple[SkewHint, ...], cursor: Cursor) -> Relation:
    """The relation of a query with its hints."""
    if not hints:
        return relation
    if not isinstance(relation, Join):
        raise cursor.failure("a join for the hint", "leave the hint out: only a join has skewed keys.")
    return replace(relation, hints=hints)


def _read_hint(cursor: Cursor) -> SkewHint:
    first, name = cursor.position, cursor.peek()
    if not cursor.take("SKEW"):
        raise cursor.refuse_unsupported(
            f"The hint {name.text}", "leave it out, or write SKEW('relation', 'column', 1)."
        )
    cursor.expect("(", _EXAMPLE)
    relation = _read_text(cursor, "the name of a relation")
    cursor.expect(",", _EXAMPLE)
    column = _read_text(cursor, "the name of a column")
    cursor.expect(",", _EXAMPLE)
    if cursor.take("("):
        values = cursor.read_list(_read_value)
        cursor.expect(")", _EXAMPLE)
    else:
        values = (_read_value(cursor),)
    cursor.expect(")", _EXAMPLE)
    return SkewHint(relation, column, values, cursor.span_from(first))


def _read_text(cursor: Cursor, expected: str) -> str:
    if cursor.peek().kind not in ("string", "word", "quoted"):
        raise cursor.failure(expected, _EXAMPLE)
    return cursor.next().value


def _read_value(cursor: Cursor) -> int | str:
    sign = -1 if cursor.take("-") else 1
    token = cursor.peek()
    if token.kind == "string" and sign == 1:
        return cursor.next().value
    if token.kind != "number" or not token.text.isdecimal():
        raise cursor.failure("an integer or a string", _EXAMPLE)
    return sign * int(cursor.next().text)
