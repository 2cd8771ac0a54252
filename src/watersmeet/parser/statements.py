"""Scripts: statements one after the other, each ended by ``;``, and the declarations among them.

Declarations are CREATE STREAM, CREATE TABLE and CREATE SINK, with their lists of options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from watersmeet.catalog import NOWHERE, Amount, Field, Sink, Source, SourceKind, Span, StreamHistory, Watermark
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.formats import FEEDS
from watersmeet.locations import remember_secret
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Query, Script, Setting, Values, View
from watersmeet.parser.cursor import Cursor, Grammar, readable_tokens
from watersmeet.parser.expressions import read_or, too_deep
from watersmeet.parser.leaves import read_amount, read_type
from watersmeet.parser.queries import at_view, read_query, read_view, read_with
from watersmeet.parser.unsupported import (
    refuse_after_columns,
    refuse_constraint,
    refuse_if_not_exists,
    refuse_instead_of_columns,
    refuse_statement,
    refuse_watermark_after_columns,
)
from watersmeet.schema import BY_NAME, INTEGERS

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


_COLUMNS_HINT = "write `CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS)`."
_TABLE_HINT = (
    "write `CREATE TABLE rates (id BIGINT, rate DOUBLE, t TIMESTAMP, PRIMARY KEY (id), WATERMARK FOR t AS t)`."
)
_KEY_HINT = "write `PRIMARY KEY (id)`, for example."
_LIST_HINT = "separate columns with commas and close the list with `)`."
_ORDER_HINT = "name one column: `ORDER BY t`."
_IDLE_HINT = "write a duration, for example `IDLE AFTER 30s`."
_WATERMARK_HINT = "write `WATERMARK FOR t AS t - INTERVAL 5 SECONDS`."

_AFTER = "AFTER parquet OPTIONS (path '/archive', until '2026-03-01 00:00:00')"

_FEEDS = tuple(feed.name for feed in FEEDS)


@dataclass(frozen=True)
class Stream:
    """A declared stream or table, and the condition under which its rows are heartbeats."""

    source: Source
    heartbeat: Expr | None = None


@dataclass
class _Columns:
    """The parsed content of the bracket of a stream or table."""

    fields: list[Field] = field(default_factory=list[Field])
    watermarks: list[Watermark] = field(default_factory=list[Watermark])
    heartbeat: Expr | None = None
    primary_key: tuple[str, ...] = ()


def read_source(cursor: Cursor, kind: SourceKind) -> Stream:
    """``CREATE STREAM | TABLE name (columns, key and watermarks) [USING format] [OPTIONS (...)]``, and what follows.

    That is ``AFTER format OPTIONS (...)`` and ``ORDER BY column`` for a stream, ``CHANGES FROM feed`` for a table.
    """
    first, hint = cursor.position, _COLUMNS_HINT if kind == "stream" else _TABLE_HINT
    cursor.skip(2)
    refuse_if_not_exists(cursor)
    name = cursor.take_name(f"the name of the {kind}", hint)
    if (refused := refuse_instead_of_columns(cursor, kind, name.text)) is not None:
        raise refused
    # Without columns, those of the data are meant.
    columns = _Columns() if cursor.at("USING") else _read_columns(cursor, kind, hint)
    changes = _read_changes(cursor, kind, None)
    format_ = read_format(cursor)
    changes = _read_changes(cursor, kind, changes)
    options = read_options(cursor)
    changes = _read_changes(cursor, kind, changes)
    history = _read_history(cursor, kind, format_)
    if kind == "table" and cursor.at("ORDER", "BY"):
        hint = "leave it out: a table's versions follow its watermarked column."
        raise cursor.refuse_unsupported("ORDER BY of a table", hint, 2)
    order, order_span = _read_order(cursor)
    if not cursor.at_end:
        if (refused := refuse_after_columns(cursor, name.text)) is not None:
            raise refused
        if cursor.at("WATERMARK"):
            raise refuse_watermark_after_columns(cursor, kind, name.text, columns=bool(columns.fields))
        words = ("USING",) * (format_ is None) + ("OPTIONS",) * (not options) if history is None else ()
        further = ("ORDER BY",) if kind == "stream" else ("CHANGES",) * (changes is None)
        further += ("AFTER",) if kind == "stream" and format_ is not None and history is None else ()
        words = () if order else (*words, *further)
        raise cursor.misspelt(words, " or ".join((*words, "`;`")), "end the statement with `;`.")
    source = Source(
        name.value, tuple(columns.fields), tuple(columns.watermarks), kind, format_, options, cursor.span_from(first),
        order, order_span, columns.primary_key, changes, history=history,
    )  # fmt: skip
    return Stream(source, columns.heartbeat)


def _read_changes(cursor: Cursor, kind: SourceKind, before: str | None) -> str | None:
    """``CHANGES FROM feed`` if it comes next, else ``before``."""
    if not cursor.at("CHANGES", "FROM"):
        return before
    if kind == "stream":
        raise cursor.refuse_unsupported("CHANGES FROM of a stream", "write CREATE TABLE: a stream only adds rows.", 2)
    if before is not None:
        raise cursor.failure("`;`", "write CHANGES FROM once.")
    cursor.skip(2)
    if cursor.peek().word.lower() not in _FEEDS:
        hint = f"write {' or '.join(f'`CHANGES FROM {feed}`' for feed in _FEEDS)}."
        raise cursor.misspelt(_FEEDS, " or ".join(_FEEDS), hint)
    return cursor.next().word.lower()


def _read_history(cursor: Cursor, kind: SourceKind, format_: str | None) -> StreamHistory | None:
    """``AFTER format OPTIONS (...)`` if it comes next."""
    first = cursor.position
    if not cursor.at("AFTER"):
        return None
    if kind == "table":
        hint = "load its history into the table's own source, or declare a stream: a table is read from its beginning."
        raise cursor.refuse_unsupported("AFTER of a table", hint, 1)
    if format_ is None:
        raise cursor.failure("`USING`", f"write what follows the history first: `USING kafka OPTIONS (...) {_AFTER}`.")
    cursor.skip(1)
    named = ".".join(cursor.take_path("a format", f"write `{_AFTER}`."))
    options = read_options(cursor)
    until = next((value for name, value in options.items() if name.lower() == "until"), "")
    others = {name: value for name, value in options.items() if name.lower() != "until"}
    return StreamHistory(named, others, until.strip(), cursor.span_from(first))


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
    cursor.skip(2)
    hint = "write `CREATE SINK joined USING parquet OPTIONS (path '/data/joined')`."
    refuse_if_not_exists(cursor)
    name = cursor.take_name("the name of the sink", hint)
    fields = _read_fields(cursor) if cursor.at("(") else ()
    format_ = read_format(cursor)
    if format_ is None:
        raise refuse_after_columns(cursor, name.text) or cursor.misspelt(("USING",), "`USING`", hint)
    options = read_options(cursor)
    if not cursor.at_end:
        words = ("OPTIONS",) * (not options)
        raise refuse_after_columns(cursor, name.text) or cursor.misspelt(
            words, " or ".join((*words, "`;`")), "end the statement with `;`."
        )
    return Sink(name.value, format_, options, cursor.span_from(first), fields)


def _read_fields(cursor: Cursor) -> tuple[Field, ...]:
    """The columns of a sink, which have types and nothing else."""
    opening = cursor.position
    cursor.next()
    fields = cursor.read_list(_read_sink_field, on_lines=True)
    if not cursor.at(")"):
        raise cursor.separator_failure((), "`,` or `)`", _LIST_HINT)
    cursor.next()
    cursor.close_list(opening)
    return fields


def _read_sink_field(cursor: Cursor) -> Field:
    if cursor.at("WATERMARK", "FOR") or cursor.at("PRIMARY", "KEY"):
        raise cursor.failure("a column", "leave it out: a sink has only columns.")
    return _read_field(cursor)


def _read_columns(cursor: Cursor, kind: SourceKind, hint: str) -> _Columns:
    opening = cursor.position
    cursor.expect("(", hint)
    columns = _Columns()
    while True:
        cursor.may_break()
        begin = cursor.position
        try:
            _read_entry(cursor, kind, columns)
        except WatersmeetError as error:
            cursor.position = begin
            if not _skip_entry(cursor):
                raise
            # Record the error of one column, so that the others are parsed and all mistakes are reported.
            cursor.refusals += error.refusals
        if not cursor.take(",") and cursor.at(")"):
            break
    cursor.next()
    cursor.close_list(opening)
    return columns


def _read_entry(cursor: Cursor, kind: SourceKind, columns: _Columns) -> None:
    """A column, a watermark or the primary key, up to the comma or bracket behind it."""
    is_watermark = cursor.at("WATERMARK", "FOR")
    if is_watermark:
        columns.watermarks.append(_read_watermark(cursor, columns))
    elif cursor.at("PRIMARY", "KEY"):
        columns.primary_key = _read_primary_key(cursor, kind, columns.primary_key)
    else:
        columns.fields.append(_read_field(cursor))
    if not cursor.at_any({",", ")"}):
        words = ("IDLE", "HEARTBEAT") if is_watermark else ()
        refused = cursor.separator_failure if cursor.peek(1).is_name else cursor.misspelt
        column = columns.fields[-1].name if columns.fields else "column"
        wrong = refuse_constraint(cursor, column) or refused(words, "`,` or `)`", _LIST_HINT)
        if not _starts_entry(cursor):
            raise wrong
        # Parsing continues as if the comma were there, so that all mistakes are reported.
        cursor.refusals += wrong.refusals


def _starts_entry(cursor: Cursor) -> bool:
    """Whether a column with its type, a watermark or the primary key begins here, before which a comma is missing."""
    is_column = cursor.peek().is_name and cursor.peek(1).word in BY_NAME
    return is_column or cursor.at("WATERMARK", "FOR") or cursor.at("PRIMARY", "KEY", "(")


def _skip_entry(cursor: Cursor) -> bool:
    """Go to the comma or bracket behind an entry; False if the statement ends before."""
    depth = 0
    while not cursor.at_end:
        if depth <= 0 and cursor.at_any({",", ")"}):
            return True
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(cursor.next().word, 0)
    return False


def _read_primary_key(cursor: Cursor, kind: SourceKind, before: tuple[str, ...]) -> tuple[str, ...]:
    if kind == "stream":
        raise cursor.refuse_unsupported("PRIMARY KEY of a stream", "leave it out: a stream only adds rows.", 2)
    if before:
        raise cursor.failure("`,` or `)`", "write PRIMARY KEY once.")
    cursor.skip(2)
    cursor.expect("(", _KEY_HINT)
    names = cursor.read_list(lambda cursor: cursor.take_name("the name of a column", _KEY_HINT).value)
    cursor.expect(")", _KEY_HINT)
    return names


def _read_field(cursor: Cursor) -> Field:
    name = cursor.take_name("a column", _COLUMNS_HINT)
    if name.word == "WATERMARK" and (not cursor.peek(1).word or cursor.at_any({"AS"}, ahead=1)):
        raise cursor.misspelt(("FOR",), "FOR", _WATERMARK_HINT)
    if cursor.at("AS"):
        hint = "compute it in a view: `CREATE VIEW v AS SELECT STREAM *, ... AS x FROM s`."
        if cursor.at_any({"PROCTIME"}, ahead=1):
            hint = "leave it out, and write `JOIN v FOR SYSTEM_TIME AS OF PROCTIME()` where a stream looks up a table."
        raise cursor.refuse_unsupported("A computed column", hint)
    type_ = read_type(cursor)
    if type_ in ("CHAR", "VARCHAR"):
        parameters = {"type": type_, "hint": f"write STRING, or {type_}(20), for example: it needs a length."}
        cursor.refusals.append(Refusal("UNKNOWN_TYPE", parameters, cursor.place(cursor.previous)))
    nullable = not cursor.take("NOT", "NULL")
    if cursor.at("COMMENT") and cursor.peek(1).kind == "string":
        cursor.skip(2)
    return Field(name.value, type_, nullable)


def _read_watermark(cursor: Cursor, columns: _Columns) -> Watermark:
    first = cursor.position
    cursor.skip(2)
    column = cursor.take_name("the name of a column", _WATERMARK_HINT)
    cursor.expect("AS", _WATERMARK_HINT)
    again = cursor.peek()
    if not again.is_name or again.value.lower() != column.value.lower():
        raise cursor.failure(
            f"`{column.text}`", f"write `WATERMARK FOR {column.text} AS {column.text} - INTERVAL 5 SECONDS`."
        )
    cursor.next()
    if cursor.at("-"):
        cursor.layout.operators.add(cursor.position)
    lag = read_amount(cursor) if cursor.take("-") else _no_lag(column.value, columns.fields)
    watermark = Watermark(column.value, lag, cursor.span_from(first))
    while True:
        cursor.may_break()
        if cursor.at("IDLE", "AFTER"):
            watermark = replace(watermark, idle=_read_idle(cursor, watermark))
        elif cursor.at("HEARTBEAT", "WHEN"):
            columns.heartbeat = _read_heartbeat(cursor, columns)
        else:
            cursor.layout.breaks.discard(cursor.position)
            return watermark


def _read_idle(cursor: Cursor, watermark: Watermark) -> int:
    if watermark.idle is not None:
        raise cursor.failure("`,` or `)`", "write IDLE AFTER once for every watermark.")
    cursor.skip(2)
    token = cursor.peek()
    amount = read_amount(cursor)
    if not amount.is_interval or amount.value <= 0:
        raise cursor.failure("a duration above zero", _IDLE_HINT, token)
    return amount.value


def _read_heartbeat(cursor: Cursor, columns: _Columns) -> Expr:
    if columns.heartbeat is not None:
        hint = "write HEARTBEAT WHEN once: a row is a heartbeat for all watermarks of its stream, or for none."
        raise cursor.failure("`,` or `)`", hint)
    cursor.skip(2)
    return read_or(cursor)


def _no_lag(column: str, fields: list[Field]) -> Amount:
    """Zero in the unit of the column: a number for an integer, else an interval."""
    is_integer = any(f.name.lower() == column.lower() and f.type in INTEGERS for f in fields)
    return Amount(0, is_interval=not is_integer)


Statement = Stream | Sink | Setting | Query | tuple[View, ...]

_STATEMENT_WORDS = ("CREATE", "INSERT", "SELECT", "SET", "WITH")
_BEHIND_NAME = frozenset({"AS", "USING", "WITH", "FROM", "CHANGES", "OPTIONS"})
_OBJECT_WORDS = ("STREAM", "SINK", "TABLE", "VIEW")


def read_script(text: str, name: str = "<sql>", grammars: tuple[Grammar, ...] = ()) -> Script:
    """The statements of a text. All that cannot be read is refused together.

    ``grammars`` are what the families add to the language.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    script, unread = read_partial_script(text, name, grammars)
    if unread.refusals:
        raise WatersmeetError(unread.refusals)
    return script


@dataclass(frozen=True)
class UnreadPart:
    """The part of a script that could not be read, and the names that it would have declared, in small letters."""

    refusals: tuple[Refusal, ...]
    names: frozenset[str]

    def explains(self, refusal: Refusal) -> bool:
        """Whether a refusal is that of a name which would have been declared."""
        name = refusal.parameters.get("source") or refusal.parameters.get("sink") or ""
        return refusal.condition in ("UNKNOWN_SOURCE", "UNKNOWN_SINK") and name.lower() in self.names


def read_partial_script(
    text: str, name: str = "<sql>", grammars: tuple[Grammar, ...] = ()
) -> tuple[Script, UnreadPart]:
    """The statements of a text that parse, and the refusals of the others."""
    statements, cursor, names = _read_all(text, name, grammars)
    streams = [s for s in statements if isinstance(s, Stream)]
    script = Script(
        name,
        text,
        tuple(stream.source for stream in streams),
        tuple(s for s in statements if isinstance(s, Sink)),
        tuple(s for s in statements if isinstance(s, Setting)),
        tuple(s for s in statements if isinstance(s, Query)),
        tuple((stream.source.name, stream.heartbeat) for stream in streams if stream.heartbeat is not None),
        tuple(view for s in statements if isinstance(s, tuple) for view in s),
        tuple(call for _, call in sorted(cursor.calls.items())),
    )
    return script, UnreadPart(tuple(cursor.refusals), frozenset(names))


def read_statements(text: str, name: str, grammars: tuple[Grammar, ...]) -> tuple[list[Statement], Cursor]:
    """The statements of a text, and the cursor that has read them. All that cannot be read is refused together."""
    statements, cursor, _ = _read_all(text, name, grammars)
    if cursor.refusals:
        raise WatersmeetError(cursor.refusals)
    return statements, cursor


def _read_all(text: str, name: str, grammars: tuple[Grammar, ...]) -> tuple[list[Statement], Cursor, set[str]]:
    """The statements that parse, the cursor with the refusals, and the names that the others would declare."""
    tokens, unclosed = readable_tokens(text, name)
    cursor = Cursor(name, text, tokens, grammars=grammars)
    statements, names = list[Statement](), set[str]()
    while cursor.peek().kind != "end":
        if cursor.take(";"):
            continue
        cursor.begin = first = cursor.position
        refused_before, read = len(cursor.refusals), list[Statement]()
        try:
            read.append(_read_statement(cursor))
        except (WatersmeetError, RecursionError) as error:
            wrong = error if isinstance(error, WatersmeetError) else too_deep(cursor, first)
            cursor.refusals += wrong.refusals
            cursor.forget_queries()
            _recover(cursor)
        torn = [wrong for wrong in unclosed if _is_inside(wrong, cursor, first)]
        if torn:
            # What else is wrong with it is what follows from the quote.
            cursor.refusals[refused_before:] = torn
        # A partly parsed declaration would cause refusals of names that only its other part declares.
        if len(cursor.refusals) > refused_before:
            names |= _names_declared(cursor, first)
        else:
            statements += read
        cursor.layout.statements.append((first, cursor.position))
    cursor.refusals += [wrong for wrong in unclosed if wrong not in cursor.refusals]
    return statements, cursor, names


def _is_inside(wrong: Refusal, cursor: Cursor, first: int) -> bool:
    """Whether a refusal lies between the token at index ``first`` and the next one."""
    end = len(cursor.text) if cursor.peek().kind == "end" else cursor.peek().start
    return wrong.place is not None and cursor.tokens[first].start <= wrong.place.start <= end


def _names_declared(cursor: Cursor, first: int) -> set[str]:
    """The names that the statement from index ``first`` on would declare, in small letters."""
    follows = [*pairwise(cursor.tokens[first : cursor.position + 1])]
    if cursor.tokens[first].word == "CREATE":
        # Behind all that may stand before a name: OR REPLACE, TEMPORARY, IF NOT EXISTS.
        named = [
            token
            for token, following in follows
            if token.is_name and (not following.is_name or following.word in _BEHIND_NAME)
        ]
        return {token.value.lower() for token in named[:1]}
    if cursor.tokens[first].word == "WITH":
        return {token.value.lower() for token, following in follows if token.is_name and following.word == "AS"}
    return set()


def _read_statement(cursor: Cursor) -> Statement:
    if cursor.at("CREATE", "STREAM"):
        return read_source(cursor, "stream")
    if cursor.at("CREATE", "SINK"):
        return read_sink(cursor)
    if cursor.at("CREATE", "TABLE"):
        return read_source(cursor, "table")
    if at_view(cursor):
        return (read_view(cursor),)
    refused = refuse_statement(cursor)
    if refused:
        raise refused
    if cursor.take("CREATE"):
        hint = "write `CREATE STREAM name (...)` or `CREATE SINK name USING format`."
        raise cursor.misspelt(_OBJECT_WORDS, "STREAM, TABLE, SINK or VIEW", hint)
    if cursor.take("SET"):
        return _read_setting(cursor)
    if cursor.at("WITH"):
        return _read_with(cursor)
    if cursor.at_any({"INSERT", "SELECT"}):
        return read_query(cursor)
    hint = "begin with CREATE STREAM, CREATE TABLE, CREATE SINK, CREATE VIEW, WITH, INSERT INTO, SELECT or SET."
    raise cursor.misspelt(_STATEMENT_WORDS, "a statement", hint)


def _read_with(cursor: Cursor) -> Query | tuple[View, ...]:
    """WITH as a statement of its own, or before the query that it belongs to."""
    first = cursor.position
    views = read_with(cursor)
    if cursor.at_end:
        return views
    if not cursor.at_any({"INSERT", "SELECT"}):
        raise cursor.misspelt(("INSERT", "SELECT"), "`,`, SELECT, INSERT INTO or `;`", "end the statement with `;`.")
    return read_query(cursor, views, first)


def _read_setting(cursor: Cursor) -> Setting:
    first, hint = cursor.position - 1, "write `SET name = value;`."
    if cursor.peek().kind == "string":
        raise cursor.failure("the name of a setting", f"write `SET {cursor.peek().value} = value;`, without quotes.")
    name = ".".join(cursor.take_path("the name of a setting", hint))
    cursor.layout.operators.add(cursor.position)
    cursor.expect("=", f"write `SET {name} = value;`.")
    begin = cursor.position
    if cursor.at_end:
        raise cursor.failure("a value", hint)
    while not cursor.at_end:
        if cursor.at_statement and cursor.begins_line:
            raise cursor.failure("`;`", "end the statement with `;`.")
        cursor.next()
    cursor.layout.exact.update(range(begin + 1, cursor.position))
    only = cursor.tokens[begin]
    value = only.value if cursor.position == begin + 1 and only.kind == "string" else cursor.text_from(begin)
    return Setting(name, value, cursor.span_from(first))


def _recover(cursor: Cursor) -> None:
    """Go to the end of the statement, past a semicolon that stands before a closing bracket; or to the next one.

    Behind what could not be read, a SELECT may belong to the same statement: it is the next one only right there.
    """
    if cursor.at_statement:
        return
    while not cursor.at_end or cursor.at(";", ")"):
        cursor.next()
        if cursor.at_statement and cursor.begins_line and not cursor.at_any({"SELECT", "WITH"}):
            return
