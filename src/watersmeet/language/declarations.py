"""Declarations: CREATE STREAM and CREATE SINK."""

from __future__ import annotations

from watersmeet.catalog import Amount, Field, Sink, Source, Watermark
from watersmeet.errors import Refusal
from watersmeet.language.amounts import read_amount
from watersmeet.language.cursor import Cursor
from watersmeet.language.types import read_type

_COLUMNS_HINT = "write `CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS)`."
_OPTIONS_HINT = "write `OPTIONS (path '/data', 'a.b' 'value')`."
_WATERMARK_HINT = "write `WATERMARK FOR t AS t - INTERVAL 5 SECONDS`."

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})


def read_stream(cursor: Cursor) -> Source:
    """``CREATE STREAM name (columns and watermarks) [USING format] [OPTIONS (...)]``."""
    first = cursor.position
    cursor.position += 2
    name = cursor.take_name("the name of the stream", _COLUMNS_HINT)
    fields, watermarks = _read_columns(cursor)
    format_ = _read_format(cursor)
    options = _read_options(cursor)
    if cursor.at("ORDER", "BY"):
        raise cursor.unsupported("ORDER BY of a stream", "leave it out: time bounds do not need an order.", 2)
    if not cursor.at_end:
        words = ("USING",) * (format_ is None) + ("OPTIONS",) * (not options)
        raise cursor.misspelt(words, " or ".join((*words, "`;`")), "end the statement with `;`.")
    return Source(name.value, fields, watermarks, "stream", format_, options, cursor.span_from(first))


def read_sink(cursor: Cursor) -> Sink:
    """``CREATE SINK name USING format [OPTIONS (...)]``."""
    first = cursor.position
    cursor.position += 2
    hint = "write `CREATE SINK joined USING parquet OPTIONS (path '/data/joined')`."
    name = cursor.take_name("the name of the sink", hint)
    format_ = _read_format(cursor)
    if format_ is None:
        raise cursor.misspelt(("USING",), "`USING`", hint)
    options = _read_options(cursor)
    if not cursor.at_end:
        words = ("OPTIONS",) * (not options)
        raise cursor.misspelt(words, " or ".join((*words, "`;`")), "end the statement with `;`.")
    return Sink(name.value, format_, options, cursor.span_from(first))


def _read_columns(cursor: Cursor) -> tuple[tuple[Field, ...], tuple[Watermark, ...]]:
    cursor.expect("(", _COLUMNS_HINT)
    fields: list[Field] = []
    watermarks: list[Watermark] = []
    while True:
        if cursor.at("WATERMARK", "FOR"):
            watermarks.append(_read_watermark(cursor, fields))
        elif cursor.at("PRIMARY", "KEY"):
            raise cursor.unsupported("PRIMARY KEY of a stream", "leave it out: rows of a stream only arrive.", 2)
        else:
            fields.append(_read_field(cursor))
        if not cursor.take(","):
            break
    if not cursor.at(")"):
        raise cursor.failure("`,` or `)`", "separate columns with commas and close the list with `)`.")
    cursor.next()
    return tuple(fields), tuple(watermarks)


def _read_field(cursor: Cursor) -> Field:
    name = cursor.take_name("a column", _COLUMNS_HINT)
    if name.word == "WATERMARK" and not cursor.peek(1).word:
        raise cursor.misspelt(("FOR",), "FOR", _WATERMARK_HINT)
    type_ = read_type(cursor)
    nullable = not cursor.take("NOT", "NULL")
    if cursor.at("COMMENT") and cursor.peek(1).kind == "string":
        cursor.position += 2
    return Field(name.value, type_, nullable)


def _read_watermark(cursor: Cursor, fields: list[Field]) -> Watermark:
    first = cursor.position
    cursor.position += 2
    column = cursor.take_name("the name of a column", _WATERMARK_HINT)
    cursor.expect("AS", _WATERMARK_HINT)
    again = cursor.peek()
    if not again.is_name or again.value.lower() != column.value.lower():
        raise cursor.failure(
            f"`{column.text}`", f"write `WATERMARK FOR {column.text} AS {column.text} - INTERVAL 5 SECONDS`."
        )
    cursor.next()
    lag = read_amount(cursor) if cursor.take("-") else _no_lag(column.value, fields)
    watermark = Watermark(column.value, lag, cursor.span_from(first))
    if cursor.at("IDLE", "AFTER"):
        raise cursor.unsupported("IDLE AFTER", "leave it out: time moves when rows arrive.", 2)
    if cursor.at("HEARTBEAT", "WHEN"):
        raise cursor.unsupported("HEARTBEAT WHEN", "leave it out: time moves when rows arrive.", 2)
    return watermark


def _no_lag(column: str, fields: list[Field]) -> Amount:
    """Zero in the unit of the column: a number for an integer, else an interval."""
    is_integer = any(f.name.lower() == column.lower() and f.type in _INTEGERS for f in fields)
    return Amount(0, is_interval=not is_integer)


def _read_format(cursor: Cursor) -> str | None:
    if not cursor.take("USING"):
        return None
    hint = "write the name of a Spark data source, for example `USING parquet`."
    if cursor.peek().kind == "string":
        return cursor.next().value
    parts = [cursor.take_name("a format", hint).value]
    while cursor.take("."):
        parts.append(cursor.take_name("a format", hint).value)
    return ".".join(parts)


def _read_options(cursor: Cursor) -> dict[str, str]:
    options: dict[str, str] = {}
    if not cursor.take("OPTIONS"):
        return options
    cursor.expect("(", _OPTIONS_HINT)
    while True:
        first = cursor.peek()
        key = _read_key(cursor)
        cursor.take("=")
        if key in options:
            parameters = {"name": key, "before": f"`{options[key]}`", "hint": "give every option once."}
            cursor.refusals.append(Refusal("DUPLICATE_NAME", parameters, cursor.place(first, cursor.previous)))
        options[key] = _read_value(cursor)
        if not cursor.take(","):
            break
    if not cursor.at(")"):
        raise cursor.failure("`,` or `)`", _OPTIONS_HINT)
    cursor.next()
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
