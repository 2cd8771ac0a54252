"""Declarations: CREATE STREAM, CREATE TABLE and CREATE SINK."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from watersmeet.catalog import NOWHERE, Amount, Field, Sink, Source, SourceKind, Span, Watermark
from watersmeet.errors import Refusal
from watersmeet.language.amounts import read_amount
from watersmeet.language.cursor import Cursor
from watersmeet.language.expression import read_or
from watersmeet.language.types import read_type
from watersmeet.plan.expressions import Expr

_COLUMNS_HINT = "write `CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS)`."
_TABLE_HINT = (
    "write `CREATE TABLE rates (id BIGINT, rate DOUBLE, t TIMESTAMP, PRIMARY KEY (id), WATERMARK FOR t AS t)`."
)
_KEY_HINT = "write `PRIMARY KEY (id)`, for example."
_ORDER_HINT = "name one column: `ORDER BY t`."
_OPTIONS_HINT = "write `OPTIONS (path '/data', 'a.b' 'value')`."
_IDLE_HINT = "write a length of time, for example `IDLE AFTER 30s`."
_WATERMARK_HINT = "write `WATERMARK FOR t AS t - INTERVAL 5 SECONDS`."

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})


@dataclass(frozen=True)
class Stream:
    """A declared stream or table, and the condition under which its rows are heartbeats."""

    source: Source
    heartbeat: Expr | None = None


@dataclass
class _Columns:
    """What has been read of the bracket of a stream or table."""

    fields: list[Field] = field(default_factory=list[Field])
    watermarks: list[Watermark] = field(default_factory=list[Watermark])
    heartbeat: Expr | None = None
    primary_key: tuple[str, ...] = ()


def read_stream(cursor: Cursor) -> Stream:
    """``CREATE STREAM name (columns and watermarks) [USING format] [OPTIONS (...)] [ORDER BY column]``."""
    return _read_declaration(cursor, "stream", _COLUMNS_HINT)


def read_table(cursor: Cursor) -> Stream:
    """``CREATE TABLE name (columns, PRIMARY KEY (...) and watermarks) [USING format] [OPTIONS (...)]``."""
    return _read_declaration(cursor, "table", _TABLE_HINT)


def _read_declaration(cursor: Cursor, kind: SourceKind, hint: str) -> Stream:
    first = cursor.position
    cursor.position += 2
    name = cursor.take_name(f"the name of the {kind}", hint)
    columns = _read_columns(cursor, kind, hint)
    format_ = _read_format(cursor)
    options = _read_options(cursor)
    if kind == "table" and cursor.at_any({"ORDER", "CHANGES"}):
        what = f"{cursor.peek().word} {cursor.peek(1).word} of a table"
        raise cursor.unsupported(what, "leave it out: a table's versions follow its watermarked column.", 2)
    order, order_span = _read_order(cursor)
    if not cursor.at_end:
        words = ("USING",) * (format_ is None) + ("OPTIONS",) * (not options)
        words = () if order else (*words, *("ORDER BY",) * (kind == "stream"))
        raise cursor.misspelt(words, " or ".join((*words, "`;`")), "end the statement with `;`.")
    source = Source(
        name.value, tuple(columns.fields), tuple(columns.watermarks), kind, format_, options, cursor.span_from(first),
        order, order_span, columns.primary_key,
    )  # fmt: skip
    return Stream(source, columns.heartbeat)


def _read_order(cursor: Cursor) -> tuple[str | None, Span]:
    first = cursor.position
    if not cursor.take("ORDER", "BY"):
        return None, NOWHERE
    column = cursor.take_name("the name of a column", _ORDER_HINT)
    if cursor.at_any({",", "DESC", "NULLS"}):
        raise cursor.failure("`;`", f"{_ORDER_HINT[:-1]}, from the earliest row to the latest.")
    cursor.take("ASC")
    return column.value, cursor.span_from(first)


def read_sink(cursor: Cursor) -> Sink:
    """``CREATE SINK name [(columns)] USING format [OPTIONS (...)]``."""
    first = cursor.position
    cursor.position += 2
    hint = "write `CREATE SINK joined USING parquet OPTIONS (path '/data/joined')`."
    name = cursor.take_name("the name of the sink", hint)
    fields = _read_fields(cursor) if cursor.at("(") else ()
    format_ = _read_format(cursor)
    if format_ is None:
        raise cursor.misspelt(("USING",), "`USING`", hint)
    options = _read_options(cursor)
    if not cursor.at_end:
        words = ("OPTIONS",) * (not options)
        raise cursor.misspelt(words, " or ".join((*words, "`;`")), "end the statement with `;`.")
    return Sink(name.value, format_, options, cursor.span_from(first), fields)


def _read_fields(cursor: Cursor) -> tuple[Field, ...]:
    """The columns of a sink, which have types and nothing else."""
    cursor.next()
    fields: list[Field] = []
    while True:
        if cursor.at("WATERMARK", "FOR") or cursor.at("PRIMARY", "KEY"):
            raise cursor.failure("a column", "leave it out: a sink has columns only.")
        fields.append(_read_field(cursor))
        if not cursor.take(","):
            break
    if not cursor.at(")"):
        raise cursor.failure("`,` or `)`", "separate columns with commas and close the list with `)`.")
    cursor.next()
    return tuple(fields)


def _read_columns(cursor: Cursor, kind: SourceKind, hint: str) -> _Columns:
    cursor.expect("(", hint)
    columns = _Columns()
    while True:
        is_watermark = cursor.at("WATERMARK", "FOR")
        if is_watermark:
            columns.watermarks.append(_read_watermark(cursor, columns))
        elif cursor.at("PRIMARY", "KEY"):
            columns.primary_key = _read_primary_key(cursor, kind, columns.primary_key)
        else:
            columns.fields.append(_read_field(cursor))
        if not cursor.take(","):
            break
    if not cursor.at(")"):
        words = ("IDLE", "HEARTBEAT") if is_watermark else ()
        raise cursor.misspelt(words, "`,` or `)`", "separate columns with commas and close the list with `)`.")
    cursor.next()
    return columns


def _read_primary_key(cursor: Cursor, kind: SourceKind, before: tuple[str, ...]) -> tuple[str, ...]:
    if kind == "stream":
        raise cursor.unsupported("PRIMARY KEY of a stream", "leave it out: rows of a stream only arrive.", 2)
    if before:
        raise cursor.failure("`,` or `)`", "write PRIMARY KEY once.")
    cursor.position += 2
    cursor.expect("(", _KEY_HINT)
    names = [cursor.take_name("the name of a column", _KEY_HINT).value]
    while cursor.take(","):
        names.append(cursor.take_name("the name of a column", _KEY_HINT).value)
    cursor.expect(")", _KEY_HINT)
    return tuple(names)


def _read_field(cursor: Cursor) -> Field:
    name = cursor.take_name("a column", _COLUMNS_HINT)
    if name.word == "WATERMARK" and not cursor.peek(1).word:
        raise cursor.misspelt(("FOR",), "FOR", _WATERMARK_HINT)
    type_ = read_type(cursor)
    nullable = not cursor.take("NOT", "NULL")
    if cursor.at("COMMENT") and cursor.peek(1).kind == "string":
        cursor.position += 2
    return Field(name.value, type_, nullable)


def _read_watermark(cursor: Cursor, columns: _Columns) -> Watermark:
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
    lag = read_amount(cursor) if cursor.take("-") else _no_lag(column.value, columns.fields)
    watermark = Watermark(column.value, lag, cursor.span_from(first))
    while True:
        if cursor.at("IDLE", "AFTER"):
            watermark = replace(watermark, idle=_read_idle(cursor, watermark))
        elif cursor.at("HEARTBEAT", "WHEN"):
            columns.heartbeat = _read_heartbeat(cursor, columns)
        else:
            return watermark


def _read_idle(cursor: Cursor, watermark: Watermark) -> int:
    if watermark.idle is not None:
        raise cursor.failure("`,` or `)`", "write IDLE AFTER once for every watermark.")
    cursor.position += 2
    token = cursor.peek()
    amount = read_amount(cursor)
    if not amount.is_interval or amount.value <= 0:
        raise cursor.failure("a length of time above zero", _IDLE_HINT, token)
    return amount.value


def _read_heartbeat(cursor: Cursor, columns: _Columns) -> Expr:
    if columns.heartbeat is not None:
        hint = "write HEARTBEAT WHEN once: a row is a heartbeat for all watermarks of its stream, or for none."
        raise cursor.failure("`,` or `)`", hint)
    cursor.position += 2
    return read_or(cursor)


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
