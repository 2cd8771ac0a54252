"""Scripts: statements one after the other, each ended by ``;``."""

from __future__ import annotations

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.language.reader.clauses import refused_statement
from watersmeet.language.reader.cursor import Cursor, Grammar
from watersmeet.language.reader.declarations import Stream, read_sink, read_source
from watersmeet.language.reader.expression import too_deep
from watersmeet.language.reader.queries import at_view, read_query, read_view, read_with
from watersmeet.language.reader.tokens import Token, tokenize
from watersmeet.plan.nodes import Query, Script, Setting, View

Statement = Stream | Sink | Setting | Query | tuple[View, ...]

_STATEMENT_WORDS = ("CREATE", "INSERT", "SELECT", "SET", "WITH")
_OBJECT_WORDS = ("STREAM", "SINK", "TABLE", "VIEW")


def read_script(text: str, name: str = "<sql>", grammars: tuple[Grammar, ...] = ()) -> Script:
    """The statements of a text. All that cannot be read is refused together.

    ``grammars`` are what the families add to the language.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    statements, _ = read_statements(text, name, grammars)
    streams = [s for s in statements if isinstance(s, Stream)]
    return Script(
        name,
        text,
        tuple(stream.source for stream in streams),
        tuple(s for s in statements if isinstance(s, Sink)),
        tuple(s for s in statements if isinstance(s, Setting)),
        tuple(s for s in statements if isinstance(s, Query)),
        tuple((stream.source.name, stream.heartbeat) for stream in streams if stream.heartbeat is not None),
        tuple(view for s in statements if isinstance(s, tuple) for view in s),
    )


def read_statements(text: str, name: str, grammars: tuple[Grammar, ...]) -> tuple[list[Statement], Cursor]:
    """The statements of a text, and the cursor that has read them."""
    tokens, refusals = _tokens(text, name)
    cursor = Cursor(name, text, tokens, grammars=grammars)
    statements: list[Statement] = []
    while cursor.peek().kind != "end":
        if cursor.take(";"):
            continue
        first = cursor.position
        try:
            statements.append(_read_statement(cursor))
        except (WatersmeetError, RecursionError) as error:
            wrong = error if isinstance(error, WatersmeetError) else too_deep(cursor, first)
            cursor.refusals += wrong.refusals
            cursor.forget_queries()
            _recover(cursor)
        cursor.layout.statements.append((first, cursor.position))
    if cursor.refusals or refusals:
        raise WatersmeetError((*cursor.refusals, *refusals))
    return statements, cursor


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
    if cursor.at("CREATE", "STREAM"):
        return read_source(cursor, "stream")
    if cursor.at("CREATE", "SINK"):
        return read_sink(cursor)
    if cursor.at("CREATE", "TABLE"):
        return read_source(cursor, "table")
    if at_view(cursor):
        return (read_view(cursor),)
    refused = refused_statement(cursor)
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
    name = ".".join(cursor.take_path("the name of a setting", hint))
    cursor.layout.operators.add(cursor.position)
    cursor.expect("=", hint)
    begin = cursor.position
    if cursor.at_end:
        raise cursor.failure("a value", hint)
    while not cursor.at_end:
        cursor.next()
    cursor.layout.exact.update(range(begin + 1, cursor.position))
    only = cursor.tokens[begin]
    value = only.value if cursor.position == begin + 1 and only.kind == "string" else cursor.text_from(begin)
    return Setting(name, value, cursor.span_from(first))


def _recover(cursor: Cursor) -> None:
    """Go to the end of the statement, past a semicolon that stands before a closing bracket."""
    while not cursor.at_end or cursor.at(";", ")"):
        cursor.next()
