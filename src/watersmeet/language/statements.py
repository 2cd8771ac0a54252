"""Scripts: statements one after the other, each ended by ``;``."""

from __future__ import annotations

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.language.cursor import Cursor
from watersmeet.language.declarations import Stream, read_sink, read_stream, read_table
from watersmeet.language.expression import too_deep
from watersmeet.language.queries import read_query
from watersmeet.language.tokens import Token, tokenize
from watersmeet.language.unsupported import refused_statement
from watersmeet.plan.nodes import Query, Script, Setting

Statement = Stream | Sink | Setting | Query

_STATEMENT_WORDS = ("CREATE", "INSERT", "SELECT", "SET")
_OBJECT_WORDS = ("STREAM", "SINK", "TABLE", "VIEW")


def read_script(text: str, name: str = "<sql>") -> Script:
    """The statements of a text. All that cannot be read is refused together.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    tokens, refusals = _tokens(text, name)
    cursor = Cursor(name, text, tokens)
    statements: list[Statement] = []
    while cursor.peek().kind != "end":
        if cursor.take(";"):
            continue
        try:
            statements.append(_read_statement(cursor))
        except WatersmeetError as error:
            cursor.refusals += error.refusals
            _recover(cursor)
    if cursor.refusals or refusals:
        raise WatersmeetError((*cursor.refusals, *refusals))
    streams = [s for s in statements if isinstance(s, Stream)]
    return Script(
        name,
        text,
        tuple(stream.source for stream in streams),
        tuple(s for s in statements if isinstance(s, Sink)),
        tuple(s for s in statements if isinstance(s, Setting)),
        tuple(s for s in statements if isinstance(s, Query)),
        tuple((stream.source.name, stream.heartbeat) for stream in streams if stream.heartbeat is not None),
    )


def _tokens(text: str, name: str) -> tuple[tuple[Token, ...], tuple[Refusal, ...]]:
    """The tokens of a text. If a quote is not closed: those of the statements before it, and the refusal."""
    try:
        return tokenize(text, name), ()
    except WatersmeetError as error:
        place = error.refusals[0].place
        tokens = tokenize(text[: place.start], name) if place is not None else ()
        last = max((i for i, token in enumerate(tokens) if token.word == ";"), default=-1)
        return (*tokens[: last + 1], Token("end", "", "", len(text), len(text))), error.refusals


def _read_statement(cursor: Cursor) -> Statement:
    first = cursor.position
    try:
        return _dispatch(cursor)
    except RecursionError:
        raise too_deep(cursor, first) from None


def _dispatch(cursor: Cursor) -> Statement:
    if cursor.at("CREATE", "STREAM"):
        return read_stream(cursor)
    if cursor.at("CREATE", "SINK"):
        return read_sink(cursor)
    if cursor.at("CREATE", "TABLE"):
        return read_table(cursor)
    refused = refused_statement(cursor)
    if refused:
        raise refused
    if cursor.take("CREATE"):
        hint = "write `CREATE STREAM name (...)` or `CREATE SINK name USING format`."
        raise cursor.misspelt(_OBJECT_WORDS, "STREAM or SINK", hint)
    if cursor.take("SET"):
        return _read_setting(cursor)
    if cursor.at_any({"INSERT", "SELECT"}):
        return read_query(cursor)
    hint = "begin with CREATE STREAM, CREATE TABLE, CREATE SINK, INSERT INTO, SELECT or SET."
    raise cursor.misspelt(_STATEMENT_WORDS, "a statement", hint)


def _read_setting(cursor: Cursor) -> Setting:
    first, hint = cursor.position - 1, "write `SET name = value;`."
    parts = [cursor.take_name("the name of a setting", hint).value]
    while cursor.take("."):
        parts.append(cursor.take_name("the name of a setting", hint).value)
    cursor.expect("=", hint)
    begin = cursor.position
    if cursor.at_end:
        raise cursor.failure("a value", hint)
    while not cursor.at_end:
        cursor.next()
    only = cursor.tokens[begin]
    value = only.value if cursor.position == begin + 1 and only.kind == "string" else cursor.text_from(begin)
    return Setting(".".join(parts), value, cursor.span_from(first))


def _recover(cursor: Cursor) -> None:
    while not cursor.at_end:
        cursor.next()
