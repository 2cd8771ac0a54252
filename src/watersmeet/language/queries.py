"""Queries: ``[INSERT INTO sink] SELECT [STREAM] items FROM relation [WHERE condition] [further outputs]``.

The further outputs are ``LATE INTO sink``, ``UNMATCHED LEFT INTO sink``, ``UNMATCHED RIGHT INTO sink`` and ``PORTS INTO
sink, ...``, in any order.
"""

from __future__ import annotations

from watersmeet.catalog import NOWHERE, Span
from watersmeet.language.cursor import Cursor
from watersmeet.language.expression import read_or
from watersmeet.language.relations import CLAUSE_WORDS, read_relation
from watersmeet.language.sources import at_clause
from watersmeet.language.unsupported import refused_clause
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Item, Join, Query, Relation, Star

_ITEM_HINT = "write `SELECT STREAM a.id, b.name FROM ...`, for example."


def read_query(cursor: Cursor) -> Query:
    """A query, up to the end of its statement."""
    first = cursor.position
    into, into_span = None, NOWHERE
    if cursor.take("INSERT"):
        cursor.expect("INTO", "write `INSERT INTO sink SELECT STREAM ...`.")
        if cursor.at("SELECT") and not cursor.at("SELECT", "SELECT"):
            raise cursor.failure("the name of a sink", "write `INSERT INTO sink SELECT STREAM ...`.")
        sink = cursor.take_name("the name of a sink", "write `INSERT INTO sink SELECT STREAM ...`.")
        into, into_span = sink.value, cursor.span_of(sink)
    cursor.expect("SELECT", "write `SELECT STREAM ... FROM ...`.")
    items = _read_items(cursor)
    if not cursor.take("FROM"):
        raise cursor.misspelt(("FROM",), "`,` or FROM", "write `FROM` and the name of a stream behind the columns.")
    relation = read_relation(cursor)
    where = read_or(cursor) if cursor.take("WHERE") else None
    late, left, right, ports = _read_outputs(cursor, into)
    _expect_end(cursor, relation, where)
    span = cursor.span_from(first)
    return Query(relation, items, where, into, into_span, span, *late, *left, *right, ports)


_Output = tuple[str | None, Span]
_OUTPUTS = (("LATE", "INTO"), ("UNMATCHED", "LEFT", "INTO"), ("UNMATCHED", "RIGHT", "INTO"), ("PORTS", "INTO"))


def _read_outputs(cursor: Cursor, into: str | None) -> tuple[_Output, _Output, _Output, tuple[tuple[str, Span], ...]]:
    """The sinks of late rows, of unmatched left and right rows, and of ports, each with its place."""
    read = dict[tuple[str, ...], tuple[tuple[str, Span], ...]]()
    late = cursor.peek()
    while words := next((words for words in _OUTPUTS if cursor.at(*words)), None):
        late = cursor.peek() if words == _OUTPUTS[0] else late
        if words in read:
            raise cursor.failure("`;`", f"write {' '.join(words)} once.")
        cursor.position += len(words)
        read[words] = _read_sinks(cursor, " ".join(words), is_list=words == _OUTPUTS[3])
        if cursor.at("WHERE"):
            raise cursor.failure("`;`", f"write {' '.join(words)} at the end of the query, behind WHERE.")
    ports = read.get(_OUTPUTS[3], ())
    if _OUTPUTS[0] in read and into is None and not ports:
        hint = "write `INSERT INTO sink` before SELECT: the result needs a sink where late rows have."
        raise cursor.failure("`;`", hint, late)
    first, second, third = (read.get(words, ((None, NOWHERE),))[0] for words in _OUTPUTS[:3])
    return first, second, third, ports


def _read_sinks(cursor: Cursor, words: str, *, is_list: bool) -> tuple[tuple[str, Span], ...]:
    hint = f"write `{words} {'sink, ...' if is_list else 'sink'}` at the end of the query."
    sinks = [cursor.take_name("the name of a sink", hint)]
    while is_list and cursor.take(","):
        sinks.append(cursor.take_name("the name of a sink", hint))
    return tuple((sink.value, cursor.span_of(sink)) for sink in sinks)


def _read_items(cursor: Cursor) -> tuple[Item | Star, ...]:
    if cursor.at("TABLE") and _starts_item(cursor, 1):
        raise cursor.unsupported("SELECT TABLE", "write SELECT STREAM: its rows only arrive.")
    if cursor.at("STREAM") and _starts_item(cursor, 1):
        cursor.next()
    if cursor.at("DISTINCT") and _starts_item(cursor, 1):
        raise cursor.unsupported("SELECT DISTINCT", "leave DISTINCT out: it would remember every row for ever.")
    items = [_read_item(cursor)]
    while cursor.take(","):
        items.append(_read_item(cursor))
    return tuple(items)


def _starts_item(cursor: Cursor, ahead: int) -> bool:
    token = cursor.peek(ahead)
    if token.kind in ("symbol", "end"):
        return token.word in ("*", "(", "-", "+", "~", "!")
    return token.word not in ("FROM", "AS")


def _read_item(cursor: Cursor) -> Item | Star:
    first = cursor.position
    if cursor.take("*"):
        return Star(None, cursor.span_from(first))
    if cursor.peek().is_name and cursor.peek(1).word == "." and cursor.peek(2).word == "*":
        alias = cursor.next().value
        cursor.position += 2
        return Star(alias, cursor.span_from(first))
    if cursor.at("FROM"):
        raise cursor.failure("a column", _ITEM_HINT)
    expr = read_or(cursor)
    if cursor.take("AS"):
        return Item(expr, cursor.take_name("a name for the column", "write `expression AS name`.").value)
    if cursor.peek().is_name and not cursor.at("FROM") and not at_clause(cursor):
        return Item(expr, cursor.take_bare_alias().value)
    return Item(expr)


def _expect_end(cursor: Cursor, relation: Relation, where: Expr | None) -> None:
    if cursor.at_end:
        return
    refused = refused_clause(cursor)
    if refused:
        raise refused
    if cursor.at_any({"WITHIN", "MATCH_CONDITION", "DEFAULT", "PAD"}):
        raise cursor.failure("`;`", f"write {cursor.peek().word} behind JOIN, before WHERE.")
    if cursor.at("WINDOW", "("):
        raise cursor.failure("`;`", "write WINDOW behind the name of a source.")
    if cursor.at("FOR", "SYSTEM_TIME"):
        raise cursor.failure("`;`", "write FOR SYSTEM_TIME AS OF behind the source that JOIN names.")
    if cursor.at_any({"ON", "USING"}):
        raise cursor.failure("JOIN", "write `JOIN b ON ...`: a condition belongs to a join.")
    if cursor.at_any({"SEMI", "ANTI"}):
        raise cursor.failure("JOIN, WHERE or `;`", f"write `LEFT {cursor.peek().word} JOIN`.")
    if cursor.previous.word == "WITHIN":
        raise cursor.failure("a duration", "write `WITHIN 5s`, `WITHIN 10 MINUTES` or `WITHIN INTERVAL '1' HOUR`.")
    if where is not None:
        raise cursor.misspelt(("AND", "OR", "LIKE", "BETWEEN", "IS"), "AND, OR or `;`", "end the statement with `;`.")
    bare = isinstance(relation, Join) and relation.on is None and not relation.using
    expected = "ON, WITHIN, JOIN, WHERE or `;`" if bare else "JOIN, WHERE or `;`"
    raise cursor.misspelt(CLAUSE_WORDS, expected, "end the statement with `;`.")
