"""Queries: ``[WITH] [INSERT INTO sink] SELECT [STREAM | TABLE] items FROM relation [WHERE] [GROUP BY] [outputs]``.

With them ``CREATE [OR REPLACE] [TEMPORARY] VIEW name AS query``: a query under a name.

At the end of a query stand further outputs, ``LATE INTO sink``, ``MALFORMED INTO sink``, ``DUPLICATES INTO sink`` and
those of the families, in any order, and how the result is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.catalog import NOWHERE, Amount, Span
from watersmeet.errors import WatersmeetError
from watersmeet.formats.base import SHOWN
from watersmeet.logical.expressions import Expr, window_calls_in
from watersmeet.logical.nodes import (
    REPEATED_ROWS,
    Item,
    Join,
    Lateral,
    Query,
    Relation,
    ResultKind,
    RowNumber,
    Scan,
    SideOutput,
    SkewHint,
    Star,
    StorageFormats,
    View,
)
from watersmeet.parser.calls import skip_windows
from watersmeet.parser.cursor import Cursor
from watersmeet.parser.expressions import read_or
from watersmeet.parser.grouping import Grouping, read_grouping
from watersmeet.parser.leaves import read_amount
from watersmeet.parser.ranks import (
    Ranking,
    Ranks,
    apply_row_limit,
    as_window_call,
    at_number,
    rank_all,
    rank_rows,
    read_number,
    read_order,
    read_qualify,
)
from watersmeet.parser.relations import check_late_hints, close_query, read_hints, read_relation, with_hints
from watersmeet.parser.sets import at_set_operation, read_parts, union_all
from watersmeet.parser.subqueries import check_subqueries, join_subqueries
from watersmeet.parser.unsupported import DUPLICATES, EMIT_ONCE, LATE, MALFORMED, at_clause, refuse_clause
from watersmeet.parser.windows import expand_bounds_of_rank, is_grouped, rewrite_windowed_query, with_subqueries

SinkName = tuple[str | None, Span]
"""The name of a sink and its place."""

_NONE: SinkName = (None, NOWHERE)
_STORE = "write `STORE KEY AS string VALUE AS json`, for example."


@dataclass(frozen=True)
class QueryTarget:
    """The sinks of a query; ``is_inner``: it is a view or a subquery, which has no outputs of its own.

    ``further``: the sinks that get the same rows.
    """

    into: SinkName = _NONE
    store: StorageFormats | None = None
    is_inner: bool = False
    further: tuple[SinkName, ...] = ()


@dataclass(frozen=True)
class Outputs:
    """The sinks of late rows and other side outputs, and how the result is stored."""

    late: SinkName = _NONE
    side_outputs: tuple[SideOutput, ...] = ()
    store: StorageFormats | None = None


def read_outputs(cursor: Cursor, target: QueryTarget) -> Outputs:
    """All outputs that come next, each at most once."""
    of_families = {words: column for grammar in cursor.grammars for words, column in grammar.outputs.items()}
    columns = {LATE: "", MALFORMED: SHOWN, DUPLICATES: REPEATED_ROWS, **of_families}
    read = dict[tuple[str, ...], tuple[SideOutput, ...]]()
    late, store = cursor.peek(), target.store
    while True:
        words = next((words for words in columns if cursor.at(*words)), None)
        if at_store(cursor):
            store = _read_second_store(cursor, store, target)
        elif words is None:
            break
        else:
            late = cursor.peek() if words == LATE else late
            read[words] = _read_output(cursor, words, columns[words], target, is_again=words in read)
    side_outputs = tuple(output for words in columns for output in read.get(words, ()) if words != LATE)
    if LATE not in read:
        return Outputs(side_outputs=side_outputs, store=store)
    if target.into[0] is None and not any(output.is_instead for output in side_outputs):
        hint = "write `INSERT INTO sink` before SELECT: the result needs a sink if late rows have one."
        raise cursor.failure("`;`", hint, late)
    return Outputs((read[LATE][0].sink, read[LATE][0].span), side_outputs, store)


def at_store(cursor: Cursor) -> bool:
    """Whether ``STORE KEY AS`` or ``STORE VALUE AS`` begins here."""
    return cursor.at("STORE", "KEY", "AS") or cursor.at("STORE", "VALUE", "AS")


def read_store(cursor: Cursor) -> StorageFormats:
    """``STORE [KEY AS format] [VALUE AS format]``."""
    first = cursor.position
    cursor.begin_line()
    cursor.skip(1)
    formats = dict[str, str]()
    while cursor.at("KEY", "AS") or cursor.at("VALUE", "AS"):
        facet = cursor.peek()
        if facet.word in formats:
            raise cursor.failure("each facet once", _STORE)
        cursor.skip(2)
        if cursor.at("SELECT") and not cursor.at_any({"SELECT", "WITH", "VALUE", "KEY"}, ahead=1):
            raise cursor.failure("the name of a format", _STORE)
        formats[facet.word] = cursor.take_name("the name of a format", _STORE).value.lower()
    return StorageFormats(formats.get("KEY"), formats.get("VALUE"), cursor.span_from(first))


def _read_second_store(cursor: Cursor, before: StorageFormats | None, target: QueryTarget) -> StorageFormats:
    if target.into[0] is None and not target.is_inner:
        raise cursor.failure("`;`", "write `INSERT INTO sink` before SELECT: STORE says how its rows are written.")
    if before is not None:
        raise cursor.failure("`;`", "write STORE once, before or after the query.")
    return read_store(cursor)


def _read_output(
    cursor: Cursor, words: tuple[str, ...], column: str, target: QueryTarget, *, is_again: bool
) -> tuple[SideOutput, ...]:
    written = " ".join(words)
    if target.is_inner:
        hint = "write it after the query that reads the view or subquery."
        raise cursor.refuse_unsupported(f"{written} inside a view or subquery", hint, len(words))
    if is_again:
        raise cursor.failure("`;`", f"write {written} once.")
    cursor.begin_line()
    cursor.skip(len(words))
    is_list = column.endswith("_")
    hint = f"write `{written} {'sink, ...' if is_list else 'sink'}` at the end of the query."
    sinks = [cursor.take_name("the name of a sink", hint)]
    while is_list and cursor.take(","):
        sinks.append(cursor.take_name("the name of a sink", hint))
    if cursor.at("WHERE"):
        raise cursor.failure("`;`", f"write {written} at the end of the query, after WHERE.")
    of = " ".join(words[:-1])
    return tuple(
        SideOutput(of, f"{column}{number}" if is_list else column, sink.value, cursor.span_of(sink), is_list)
        for number, sink in enumerate(sinks, start=1)
    )


_RESULTS: dict[str, ResultKind] = {"STREAM": "stream", "TABLE": "table"}
CLAUSE_WORDS = (
    "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "OUTER", "SEMI", "ANTI", "WITHIN", "ON", "USING", "LATERAL", "WHERE",
    "GROUP", "LATE", "STORE", "WATERMARK",
)  # fmt: skip
_ITEM_HINT = "write `SELECT STREAM a.id, b.name FROM ...`, for example."
_INSERT_HINT = "write `INSERT INTO sink SELECT STREAM ...`."
_WITH_HINT = "write `WITH recent AS (SELECT STREAM * FROM orders)`, for example."


def read_query(cursor: Cursor, views: tuple[View, ...] = (), first: int | None = None) -> Query:
    """A query, up to the end of its statement; ``views`` of WITH before it, which began at index ``first``."""
    begin = cursor.position if first is None else first
    target = _read_insert(cursor)
    if target.into[0] is not None and cursor.at("WITH"):
        views += read_with(cursor)
    query = _read_select(cursor, begin, views, target)
    return _with_branches(_read_set(cursor, query, views, begin), target)


def _read_set(cursor: Cursor, query: Query, views: tuple[View, ...], begin: int) -> Query:
    """The query with the set operations behind it, if there are any."""
    if not at_set_operation(cursor):
        return query
    inner = replace(
        query, into=None, into_span=NOWHERE, late_into=None, late_into_span=NOWHERE, side_outputs=(), store=None
    )
    union = _read_further_parts(cursor, _rank_all(cursor, inner), views)
    return replace(
        union, into=query.into, into_span=query.into_span, late_into=query.late_into,
        late_into_span=query.late_into_span, side_outputs=query.side_outputs, store=query.store,
        span=cursor.span_from(begin),
    )  # fmt: skip


def _with_branches(query: Query, target: QueryTarget) -> Query:
    """The query with a branch for each of its sinks, if there are several; side outputs are those of the first."""
    if not target.further:
        return query
    plain = replace(query, late_into=None, late_into_span=NOWHERE, side_outputs=())
    further = (replace(plain, into=into, into_span=span) for into, span in target.further)
    return replace(query, branches=(query, *further))


def read_inner(cursor: Cursor) -> Query:
    """A query inside another statement, and the set operations behind it: behind CREATE VIEW, or in brackets."""
    first = cursor.position
    views = read_with(cursor) if cursor.at("WITH") else ()
    query = _read_select(cursor, first, views, QueryTarget(is_inner=True))
    return _read_further_parts(cursor, _rank_all(cursor, query), views) if at_set_operation(cursor) else query


def read_part(cursor: Cursor) -> Query:
    """A query in brackets, up to a set operation."""
    first = cursor.position
    views = read_with(cursor) if cursor.at("WITH") else ()
    query = _read_select(cursor, first, views, QueryTarget(is_inner=True))
    return _rank_all(cursor, query) if at_set_operation(cursor) else query


def _rank_all(cursor: Cursor, query: Query) -> Query:
    return rank_all(View("", query), cursor).query


def _read_further_parts(cursor: Cursor, first: Query, views: tuple[View, ...]) -> Query:
    """The set operations behind a query; ``views`` of WITH before it are those of all parts."""
    own = replace(first, views=first.views[len(views) :])
    parts = read_parts(cursor, read_part, own)
    query = parts[0] if len(parts) == 1 else union_all(cursor, parts)
    return replace(query, views=(*views, *query.views))


def read_with(cursor: Cursor) -> tuple[View, ...]:
    """``WITH name AS (query), ...``."""
    cursor.begin_line()
    cursor.skip(1)
    if cursor.at("RECURSIVE") and not cursor.at_any({"AS"}, ahead=1):
        raise cursor.refuse_unsupported("WITH RECURSIVE", "leave RECURSIVE out: a query cannot read its own result.")
    views = [_read_with_query(cursor)]
    while cursor.take(","):
        cursor.begin_line()
        views.append(_read_with_query(cursor))
    return tuple(views)


def _read_with_query(cursor: Cursor) -> View:
    first, name = cursor.position, _read_name(cursor, "a name for the query", _WITH_HINT)
    query = _read_in_brackets(cursor, _WITH_HINT)
    return rank_all(View(name, query, cursor.span_from(first)), cursor)


def _read_name(cursor: Cursor, expected: str, hint: str) -> str:
    """``name AS``."""
    name = cursor.take_name(expected, hint)
    if cursor.at("("):
        raise cursor.refuse_unsupported("A list of columns after a name", "name the columns in the query, with AS.")
    cursor.expect("AS", hint)
    return name.value


def _read_in_brackets(cursor: Cursor, hint: str) -> Query:
    opening = cursor.position
    cursor.expect("(", hint)
    cursor.nesting += 1
    query = read_inner(cursor)
    close_query(cursor, opening)
    return query


def _read_insert(cursor: Cursor) -> QueryTarget:
    """``INSERT INTO sink [STORE ...]`` if it comes next."""
    if not cursor.at("INSERT"):
        return QueryTarget()
    cursor.begin_line()
    cursor.skip(1)
    cursor.expect("INTO", _INSERT_HINT)
    if cursor.at("SELECT") and not cursor.at("SELECT", "SELECT"):
        raise cursor.failure("the name of a sink", _INSERT_HINT)
    sinks = [cursor.take_name("the name of a sink", _INSERT_HINT)]
    while cursor.take(","):
        sinks.append(cursor.take_name("the name of a sink", "write `INSERT INTO sink, sink SELECT STREAM ...`."))
    if cursor.at("(") and cursor.at_any({"SELECT", "WITH"}, ahead=1):
        raise cursor.failure("`SELECT`", "leave the bracket out: `INSERT INTO sink SELECT STREAM ...`.")
    if cursor.at("("):
        hint = "leave it out: columns are written by their names in SELECT, or declare them in CREATE SINK."
        raise cursor.refuse_unsupported("A list of columns behind the name of a sink", hint)
    store = read_store(cursor) if at_store(cursor) else None
    into, *further = ((sink.value, cursor.span_of(sink)) for sink in sinks)
    return QueryTarget(into, store, further=tuple(further))


def _read_select(cursor: Cursor, first: int, views: tuple[View, ...], target: QueryTarget) -> Query:
    cursor.views.append([])
    cursor.subqueries.append([])
    cursor.begin_line()
    hints, result = _read_beginning(cursor)
    is_distinct = _take_distinct(cursor)
    cursor.read_query = read_inner
    items, number = _read_items(cursor, target)
    cursor.read_query = None
    check_subqueries(cursor, items)
    relation = _read_from(cursor, hints, is_distinct=is_distinct)
    if result == "stream":
        _read_as_stream(cursor, relation)
    cursor.read_query = read_inner
    where = _read_where(cursor, "WHERE")
    cursor.read_query = None
    grouping = read_grouping(cursor, items)
    having = _read_where(cursor, "HAVING")
    skip_windows(cursor)
    relation, parts, number = _read_windows(cursor, relation, _Parts(items, grouping, where, having), number)
    items, grouping, where, having, ranking = parts.items, parts.grouping, parts.where, parts.having, parts.ranking
    others = (*grouping.by, *((having,) if having is not None else ()), *_expressions_of_rank(ranking))
    where = apply_row_limit(cursor, relation, items, where, others)
    within, within_span = _read_within(cursor, items, is_distinct=is_distinct, ranking=ranking, result=result)
    is_once = _take_emit_once(cursor, result) or within is not None
    if is_once or (ranking is None and not is_distinct and _deduplicate_subquery(cursor, relation, result)):
        result = "stream"
        _read_as_stream(cursor, relation)
    outputs = read_outputs(cursor, target)
    if not (cursor.at_query_end or at_set_operation(cursor)):
        raise _refuse_rest(cursor, relation, where, grouping.by)
    relation, where = join_subqueries(cursor, relation, where)
    cursor.views[-1][:] = [rank_all(view, cursor) for view in cursor.views[-1]]
    query = Query(
        grouping.repeat_rows(relation), items, where, *target.into, cursor.span_from(first), *outputs.late,
        outputs.side_outputs, result, grouping.by, grouping.sets, grouping.span, (*views, *cursor.views.pop()),
        outputs.store, having, is_distinct, number=number,
    )  # fmt: skip
    if within is not None and ranking is None and is_distinct:
        query, ranking = replace(query, is_distinct=False), Ranking(RowNumber((), ()), Ranks(1))
    elif within is not None and ranking is None:
        query = replace(query, within=within, within_span=within_span)
    if number is not None:
        ranking = _check_rank(cursor, query, number, ranking)
        if ranking is None and not target.is_inner:
            ranking = Ranking(number, is_shown=True)
    if ranking is None:
        return query
    return replace(rank_rows(query, ranking, cursor.new_name()), within=within, within_span=within_span)


def _take_distinct(cursor: Cursor) -> bool:
    if cursor.at("DISTINCT", "ON", "("):
        hint = "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY t) = 1` at the end of the query."
        raise cursor.refuse_unsupported("DISTINCT ON", hint, 2)
    is_distinct = cursor.at("DISTINCT") and _starts_item(cursor, 1)
    cursor.skip(1 if is_distinct else 0)
    return is_distinct


def _read_from(cursor: Cursor, hints: tuple[SkewHint, ...], *, is_distinct: bool) -> Relation:
    cursor.begin_line()
    if not cursor.take("FROM"):
        raise cursor.separator_failure(
            ("FROM",), "`,` or FROM", "write `FROM` and the name of a stream after the columns."
        )
    cursor.is_distinct, around = is_distinct, cursor.is_distinct
    relation = with_hints(read_relation(cursor, read_part), hints, cursor)
    cursor.is_distinct = around
    return relation


@dataclass(frozen=True)
class _Parts:
    """The parts of a query that may name the bounds of windows."""

    items: tuple[Item | Star, ...]
    grouping: Grouping
    where: Expr | None
    having: Expr | None
    ranking: Ranking | None = None


def _read_windows(
    cursor: Cursor, relation: Relation, parts: _Parts, number: RowNumber | None
) -> tuple[Relation, _Parts, RowNumber | None]:
    """The relation without windows, which are in the other parts, and the order of rows, if it comes next."""
    window = relation.window if isinstance(relation, Scan) and is_grouped(relation, parts.grouping.by) else None
    if isinstance(relation, Scan) and window is not None:
        items, by, (where, having) = rewrite_windowed_query(
            cursor, relation, parts.items, parts.grouping.by, (parts.where, parts.having)
        )
        parts = _Parts(items, parts.grouping.with_expressions(by), where, having)
        relation = replace(relation, window=None)
        number = None if number is None else expand_bounds_of_rank(number, window)
    relation = with_subqueries(cursor, relation, parts.grouping.by)
    ranking = read_qualify(cursor, parts.items, number)
    ranking = read_order(cursor, parts.items) if ranking is None else ranking
    if window is not None and ranking is not None and ranking.number is not number:
        ranking = replace(ranking, number=expand_bounds_of_rank(ranking.number, window))
    return relation, replace(parts, ranking=ranking), number


def _expressions_of_rank(ranking: Ranking | None) -> tuple[Expr, ...]:
    if ranking is None:
        return ()
    return (*(item.expr for item in ranking.number.by), *(by.expr for by in ranking.number.order))


def _check_rank(cursor: Cursor, query: Query, number: RowNumber, ranking: Ranking | None) -> Ranking | None:
    """The ranking, if a rank in SELECT can be shown with it."""
    hint = f"rank in a subquery, `FROM (SELECT *, {number.function}() OVER (...) AS {number.name} FROM ...) AS q`."
    if query.is_distinct:
        raise cursor.refuse_unsupported(f"SELECT DISTINCT with {number.function}()", hint)
    if ranking is not None and ranking.number is not number:
        raise cursor.refuse_unsupported(f"ORDER BY or WITHIN with {number.function}() in SELECT", hint)
    return ranking


def _read_within(
    cursor: Cursor,
    items: Sequence[Item | Star],
    *,
    is_distinct: bool,
    ranking: Ranking | None,
    result: ResultKind | None,
) -> tuple[Amount | None, Span]:
    """``WITHIN d`` behind SELECT DISTINCT, ``QUALIFY ROW_NUMBER() ... = 1`` or window functions, if it comes next."""
    has_windows = any(isinstance(item, Item) and window_calls_in(item.expr) for item in items)
    if not cursor.at("WITHIN") or not (is_distinct or ranking is not None or has_windows):
        return None, NOWHERE
    first = cursor.position
    what = "QUALIFY" if ranking is not None else "SELECT DISTINCT" if is_distinct else "LEAD()"
    is_first = ranking is not None and ranking.ranks == Ranks(1) and ranking.number.function == "ROW_NUMBER"
    if ranking is not None and (not is_first or is_distinct or ranking.is_shown):
        hint = "write `QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY t) = 1 WITHIN 10 MINUTES`."
        raise cursor.refuse_unsupported("WITHIN behind anything but the first row of each group", hint)
    if result == "table":
        hint = "write SELECT STREAM: each row comes out once or never."
        raise cursor.refuse_unsupported(f"SELECT TABLE with WITHIN behind {what}", hint)
    cursor.begin_line()
    cursor.skip(1)
    amount = read_amount(cursor)
    return amount, cursor.span_from(first)


def _deduplicate_subquery(cursor: Cursor, relation: Relation, result: ResultKind | None) -> bool:
    """Whether ``WITHIN d`` comes next, behind a condition that leaves the first row of each group of a subquery."""
    views = cursor.views[-1]
    place = next((n for n, v in enumerate(views) if isinstance(relation, Scan) and v.name == relation.source), None)
    if place is None or not cursor.at("WITHIN"):
        return False
    query = _as_stream(views[place].query)
    is_first = query.limit == 1 and not query.offset and query.by and not query.ties
    if not is_first or query.within is not None:
        return False
    if query.rank is not None:
        hint = f"leave `{query.rank}` out of SELECT: it is 1 in each row."
        raise cursor.refuse_unsupported("WITHIN behind a rank that is shown", hint)
    if "table" in (result, query.result):
        hint = "write SELECT STREAM: each row comes out once or never."
        raise cursor.refuse_unsupported("SELECT TABLE with WITHIN behind the first row of each group", hint)
    cursor.begin_line()
    first = cursor.position
    cursor.skip(1)
    amount = read_amount(cursor)
    views[place] = replace(views[place], query=replace(query, within=amount, within_span=cursor.span_from(first)))
    return True


def _take_emit_once(cursor: Cursor, result: ResultKind | None) -> bool:
    """Whether ``EMIT FINAL`` or ``EMIT ON WINDOW CLOSE`` comes next, which means the same as SELECT STREAM."""
    words = next((words for words in EMIT_ONCE if cursor.at(*words)), ())
    if words and result == "table":
        hint = "write SELECT STREAM, or leave it out: a table shows groups before they close."
        raise cursor.refuse_unsupported(f"SELECT TABLE with {' '.join(words)}", hint, len(words))
    if words:
        cursor.begin_line()
        cursor.skip(len(words))
    return bool(words)


def _read_as_stream(cursor: Cursor, relation: Relation) -> None:
    """Let the only subquery of a stream be a stream, if it does not say what it is."""
    views = cursor.views[-1]
    for place, view in enumerate(views):
        if isinstance(relation, Scan) and view.name == relation.source:
            views[place] = replace(view, query=_as_stream(view.query))


def _as_stream(query: Query) -> Query:
    """The query as a stream, with the only subquery that it reads, unless they say otherwise."""
    if query.result is not None:
        return query
    source = query.relation.source if isinstance(query.relation, Scan) else None
    views = tuple(replace(v, query=_as_stream(v.query)) if v.name == source else v for v in query.views)
    return replace(query, result="stream", views=views)


def _read_beginning(cursor: Cursor) -> tuple[tuple[SkewHint, ...], ResultKind | None]:
    """``SELECT [hints] [STREAM | TABLE]``."""
    cursor.expect("SELECT", "write `SELECT STREAM ... FROM ...`.")
    hints = read_hints(cursor)
    result = _RESULTS.get(cursor.peek().word) if _starts_item(cursor, 1) else None
    cursor.skip(1 if result else 0)
    check_late_hints(cursor)
    return hints, result


def _read_items(cursor: Cursor, target: QueryTarget) -> tuple[tuple[Item | Star, ...], RowNumber | None]:
    """The items of SELECT, and separately the row number."""
    first = cursor.position
    items = cursor.read_list(_read_item, on_lines=True)
    numbers = [replace(item, place=place) for place, item in enumerate(items) if isinstance(item, RowNumber)]
    if any(not number.name for number in numbers):
        cursor.position = first
        raise cursor.refuse_unsupported(f"{numbers[0].function}() without a name", "give it a name with AS.")
    if len(numbers) > 1:
        return tuple(as_window_call(item) if isinstance(item, RowNumber) else item for item in items), None
    return tuple(item for item in items if not isinstance(item, RowNumber)), (numbers or [None])[0]


def _starts_item(cursor: Cursor, ahead: int) -> bool:
    token = cursor.peek(ahead)
    if token.kind in ("symbol", "end"):
        return token.word in ("*", "(", "-", "+", "~", "!", "[")
    return token.word not in ("FROM", "AS")


def _read_item(cursor: Cursor) -> Item | Star | RowNumber:
    first = cursor.position
    if at_number(cursor):
        number = read_number(cursor)
        is_named = cursor.take("AS") or (cursor.peek().is_name and not cursor.at("FROM"))
        if is_named:
            return replace(number, name=cursor.take_name("a name", "write `AS n`.").value)
        if cursor.at_any({",", "FROM"}):
            return number
        # More follows: it is part of an expression.
        cursor.position = first
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


def _read_where(cursor: Cursor, word: str) -> Expr | None:
    if not cursor.at(word):
        return None
    cursor.begin_line()
    cursor.skip(1)
    return read_or(cursor)


def _refuse_rest(cursor: Cursor, relation: Relation, where: Expr | None, group_by: tuple[Expr, ...]) -> WatersmeetError:  # noqa: C901, PLR0911 - one refusal per misplaced clause
    """The refusal of what cannot stand behind all that has been read."""
    end = "`)`" if cursor.nesting > 0 else "`;`"
    closing = "close the bracket with `)`." if cursor.nesting > 0 else "end the statement with `;`."
    refused = refuse_clause(cursor)
    if refused:
        return refused
    if cursor.at_any({"WITHIN"}):
        return cursor.failure(end, "write WITHIN after JOIN, before WHERE.")
    for grammar in cursor.grammars:
        if (misplaced := grammar.refuse_misplaced(cursor, end)) is not None:
            return misplaced
    if cursor.at_any({"ON", "USING"}) and isinstance(relation, Lateral):
        return cursor.failure("JOIN, WHERE or " + end, f"write {cursor.peek().word} before LATERAL.")
    if cursor.at_any({"ON", "USING"}):
        return cursor.failure("JOIN", "write `JOIN b ON ...`: a condition belongs to a join.")
    if cursor.at_any({"SEMI", "ANTI"}):
        return cursor.failure("JOIN, WHERE or " + end, f"write `LEFT {cursor.peek().word} JOIN`.")
    if cursor.previous.word == "GROUP":
        return cursor.misspelt(("BY",), "BY", "write `GROUP BY a.id`, for example.")
    if cursor.previous.word == "WITHIN":
        return cursor.failure("a duration", "write `WITHIN 5s`, `WITHIN 10 MINUTES` or `WITHIN INTERVAL '1' HOUR`.")
    words = (*CLAUSE_WORDS, *(word for grammar in cursor.grammars for word in grammar.words))
    if cursor.at_any({"WHERE", "GROUP", "LATERAL", "JOIN"}) and (group_by or where is not None):
        return cursor.failure(end, "the order is FROM, JOIN, LATERAL, WHERE, GROUP BY.")
    if group_by:
        return cursor.separator_failure(words, f"`,` or {end}", closing)
    if where is not None:
        return cursor.misspelt(("AND", "OR", "LIKE", "BETWEEN", "IS", "GROUP"), f"AND, OR, GROUP BY or {end}", closing)
    bare = isinstance(relation, Join) and relation.on is None and not relation.using
    expected = f"ON, WITHIN, JOIN, WHERE or {end}" if bare else f"JOIN, WHERE or {end}"
    return cursor.misspelt(words, expected, closing)


_HINT = "write `CREATE VIEW recent AS SELECT STREAM * FROM orders`, for example."
_BEGINNINGS = tuple(
    ("CREATE", *replace, *temporary, "VIEW")
    for replace in ((), ("OR", "REPLACE"))
    for temporary in ((), ("TEMPORARY",), ("TEMP",))
)
"""The words before VIEW that are ignored: a script declares everything itself."""


def at_view(cursor: Cursor) -> bool:
    """Whether CREATE VIEW begins here, in any of its spellings."""
    return any(cursor.at(*words) for words in _BEGINNINGS)


def read_view(cursor: Cursor) -> View:
    """A view, up to the end of its statement."""
    first = cursor.position
    cursor.skip(next(len(words) for words in _BEGINNINGS if cursor.at(*words)))
    cursor.take("IF", "NOT", "EXISTS")
    name = _read_name(cursor, "the name of the view", _HINT)
    if not cursor.at("("):
        return rank_all(View(name, read_inner(cursor), cursor.span_from(first)), cursor)
    query = _read_in_brackets(cursor, _HINT)
    if not cursor.at_end:
        raise cursor.failure("`;`", "end the statement with `;`.")
    return rank_all(View(name, query, cursor.span_from(first)), cursor)
