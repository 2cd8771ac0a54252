"""Scripts: statements one after the other, each ended by ``;``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical.nodes import Query, Script, Setting, View
from watersmeet.parser.cursor import Cursor, Grammar
from watersmeet.parser.declarations import Stream, read_sink, read_source
from watersmeet.parser.expressions import too_deep
from watersmeet.parser.queries import at_view, read_query, read_view, read_with
from watersmeet.parser.tokens import readable_tokens
from watersmeet.parser.unsupported import refuse_statement

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
