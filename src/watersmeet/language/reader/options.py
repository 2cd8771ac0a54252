"""How rows come or go: ``USING format OPTIONS (name value, ...)`` in a declaration."""

from __future__ import annotations

from watersmeet.errors import Refusal
from watersmeet.language.reader.cursor import Cursor

_OPTIONS_HINT = "write `OPTIONS (path '/data', 'a.b' 'value')`."


def read_format(cursor: Cursor) -> str | None:
    """``USING format`` if it comes next."""
    if not cursor.take("USING"):
        return None
    hint = "write the name of a Spark data source, for example `USING parquet`."
    if cursor.peek().kind == "string":
        return cursor.next().value
    parts = [cursor.take_name("a format", hint).value]
    while cursor.take("."):
        parts.append(cursor.take_name("a format", hint).value)
    return ".".join(parts)


def read_options(cursor: Cursor) -> dict[str, str]:
    """``OPTIONS (name value, ...)`` if it comes next, else none."""
    options: dict[str, str] = {}
    if not cursor.take("OPTIONS"):
        return options
    opening = cursor.position
    cursor.expect("(", _OPTIONS_HINT)
    while True:
        cursor.may_break()
        first = cursor.peek()
        key = _read_key(cursor)
        if cursor.take("="):
            cursor.layout.operators.add(cursor.position - 1)
        if key in options:
            parameters = {"name": key, "before": f"`{options[key]}`", "hint": "give every option once."}
            cursor.refusals.append(Refusal("DUPLICATE_NAME", parameters, cursor.place(first, cursor.previous)))
        options[key] = _read_value(cursor)
        if not cursor.take(","):
            break
    if not cursor.at(")"):
        raise cursor.failure("`,` or `)`", _OPTIONS_HINT)
    cursor.next()
    cursor.close_list(opening)
    return options


def _read_key(cursor: Cursor) -> str:
    if cursor.peek().kind == "string":
        return cursor.next().value
    parts = [cursor.take_name("the name of an option", _OPTIONS_HINT).value]
    while cursor.take("."):
        parts.append(cursor.take_name("the name of an option", _OPTIONS_HINT).value)
    return ".".join(parts)


def _read_value(cursor: Cursor) -> str:
    token = cursor.peek()
    sign = cursor.next().text if cursor.at("-") and cursor.peek(1).kind == "number" else ""
    if cursor.peek().kind in ("string", "number") or token.word in ("TRUE", "FALSE"):
        return sign + cursor.next().value
    raise cursor.failure("the value of the option", "put the value in quotes: `OPTIONS (path '/data')`.")
