"""Lists of names and values: ``USING format OPTIONS (name value, ...)``, and ``(column value, ...)`` for constants."""

from __future__ import annotations

from watersmeet.errors import Refusal
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Values
from watersmeet.references import remember_secret

_OPTIONS_HINT = "write `OPTIONS (path '/data', 'a.b' 'value')`."


def read_format(cursor: Cursor) -> str | None:
    """``USING format`` if it comes next."""
    if not cursor.take("USING"):
        return None
    hint = "write the name of a Spark data source, for example `USING parquet`."
    if cursor.peek().kind == "string":
        return cursor.next().value
    return ".".join(cursor.take_path("a format", hint))


def read_options(cursor: Cursor) -> dict[str, str]:
    """``OPTIONS (name value, ...)`` if it comes next, else none."""
    options: dict[str, str] = {}
    if not cursor.take("OPTIONS"):
        return options
    opening = cursor.position
    cursor.expect("(", _OPTIONS_HINT)

    def read_option(cursor: Cursor) -> None:
        first = cursor.peek()
        key = _read_key(cursor)
        if cursor.take("="):
            cursor.layout.operators.add(cursor.position - 1)
        if key in options:
            parameters = {"name": key, "before": f"`{options[key]}`", "hint": "give every option once."}
            cursor.refusals.append(Refusal("DUPLICATE_NAME", parameters, cursor.place(first, cursor.previous)))
        options[key] = _read_value(cursor)
        remember_secret(key, options[key])

    cursor.read_list(read_option, on_lines=True)
    if not cursor.at(")"):
        raise cursor.separator_failure((), "`,` or `)`", _OPTIONS_HINT)
    cursor.next()
    cursor.close_list(opening)
    return options


def _read_key(cursor: Cursor) -> str:
    if cursor.peek().kind == "string":
        return cursor.next().value
    return ".".join(cursor.take_path("the name of an option", _OPTIONS_HINT))


def _read_value(cursor: Cursor) -> str:
    token = cursor.peek()
    sign = cursor.next().text if cursor.at("-") and cursor.peek(1).kind == "number" else ""
    if cursor.peek().kind in ("string", "number") or token.word in ("TRUE", "FALSE"):
        return sign + cursor.next().value
    raise cursor.failure("the value of the option", "put the value in quotes: `OPTIONS (path '/data')`.")


def read_values(cursor: Cursor, hint: str) -> Values:
    """``(column value, ...)``."""
    cursor.expect("(", hint)
    values: list[tuple[str, Expr]] = []
    while True:
        name = cursor.take_name("the name of a column", hint)
        if any(name.value.lower() == column.lower() for column, _ in values):
            raise cursor.failure("a column that has no value yet", "give every column once.", name)
        values.append((name.value, read_or(cursor)))
        if not cursor.take(","):
            break
    cursor.expect(")", hint)
    return tuple(values)
