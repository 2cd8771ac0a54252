"""The passes over GROUP BY and ORDER BY ... LIMIT, and the columns by which groups become final.

Without aggregates GROUP BY only gives the result another key. With them the result is a table with a row per group.

A grouped expression may be part of a longer text: ``window(t, '5 minutes').start``, ``upper(trim(name))``. Only Spark
understands such texts, so a part is found by its words: spaces and the case of letters do not matter, and names are
equal if they mean the same columns.

A grouping drops a window once the watermark has passed its end. The bounds of the window then have watermarks behind
the grouping, and every operator that groups by them can drop the groups that they have passed. Such a watermark is not
one of arrivals: it does not apply to streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from watersmeet.catalog import NOWHERE, Amount
from watersmeet.duration import parse_duration
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, aggregates_in, conjuncts, finality_column
from watersmeet.logical.nodes import walk_relations
from watersmeet.logical.passes.column_types import (
    EventTimeColumn,
    WindowBound,
    class_of,
    event_times,
    find_event_time,
    fits,
    is_padded,
    time_of_window_end,
    type_of,
    window_bound,
    window_of_end,
    window_of_start,
)
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.grouping_sets import GROUPING_ID, group_keys, set_calls
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.scope import group_column, splice
from watersmeet.logical.passes.watermarks import show_event_time, show_window_time
from watersmeet.logical.query import (
    RANK_COLUMN,
    AnalyzedGroup,
    AnalyzedQuery,
    AnalyzedSortKey,
    AnalyzedTop,
    Emit,
    FinalColumn,
    Output,
)
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedRelation, AnalyzedView, TimeColumn
from watersmeet.operators.core.aggregates import function_of, is_aggregate, result_type
from watersmeet.operators.core.order import MOST_RANKS


def top(draft: Draft) -> Draft:
    """The draft with its top-N; the columns of ORDER BY are not shown any more."""
    query, relation = draft.query, draft.relation
    if query.limit is None or not isinstance(relation, AnalyzedLeaf):
        return draft
    if query.within is not None:
        return _deduplicate(draft, relation, query.within)
    order = tuple(
        AnalyzedSortKey(_column(relation.alias, by.column), by.expr, by.descending, by.nulls_last) for by in query.order
    )
    hidden = {*(by.column for by in query.order), *query.by}
    outputs = tuple(output for output in draft.outputs if output.name not in hidden)
    by = tuple(
        AnalyzedSortKey(_column(relation.alias, name), _partition_expression(relation, name), False, False)
        for name in query.by
    )
    final_place = next(
        (place for place, partition in enumerate(by) if finality_column(partition.expr) in relation.final_columns), None
    )
    shown, place, bound = (relation, final_place, None)
    is_once = query.result == "stream" and relation.result == "stream"
    if final_place is None:
        shown, place, bound = find_window_bound(relation, [partition.expr for partition in by], with_times=is_once)
    top_n = AnalyzedTop(
        order, query.limit, by, query.ties, place, offset=query.offset, is_dense=query.is_dense, rank=query.rank
    )
    outputs = tuple(replace(output, expr=RANK_COLUMN) if output.name == query.rank else output for output in outputs)
    if place is not None and bound is not None:
        final_columns = tuple(_final_window_columns(shown, by[place].expr, bound, is_once=is_once))
        top_n = replace(
            top_n, time=bound.time, behind=bound.length, final_columns=final_columns,
            emit="final" if is_once else "changes",
        )  # fmt: skip
    ranked = replace(draft, relation=shown, outputs=outputs, top=top_n)
    # It is unknown whether a view with errors is a table.
    keeps_all = relation.result == "stream" and draft.scope.is_whole and top_n.emit == "changes"
    if query.limit == MOST_RANKS and keeps_all:
        limits = "`QUALIFY ... <= 10` or `WHERE n <= 10` around it" if query.rank else "`LIMIT 10`"
        hint = f"limit it, with {limits}; order it by the event time; or rank a table."
        construct = "A rank of all rows of a stream, which would keep all of them,"
        return ranked.with_refusals([draft.refusal("UNSUPPORTED_STATEMENT", query.span, what=construct, hint=hint)])
    if query.ties and keeps_all:
        hint = "write `ROW_NUMBER()`, which shows the first of equal rows; or rank a table."
        construct = f"{'DENSE_' * query.is_dense}RANK() of a stream, which would keep all equal rows,"
        return ranked.with_refusals([draft.refusal("UNSUPPORTED_STATEMENT", query.span, what=construct, hint=hint)])
    return ranked


def _deduplicate(draft: Draft, relation: AnalyzedLeaf, within: Amount) -> Draft:
    """The draft with only the first row of each group within a time, which is that of ORDER BY, or the only one."""
    query = draft.query
    hidden = {*(by.column for by in query.order), *query.by}
    outputs = tuple(output for output in draft.outputs if output.name not in hidden)
    names = query.by or (() if query.order else tuple(output.name for output in outputs))
    draft = replace(draft, outputs=outputs)
    if not draft.scope.is_whole or draft.refusals:
        return draft
    shown = relation if query.order else show_event_time(relation)
    times = event_times(shown)
    if query.order:
        times = tuple(time for time in times if time.column.name == query.order[0].column)
    span = query.within_span
    if relation.result == "table":
        what, hint = "WITHIN over a table", "leave WITHIN out, and write SELECT TABLE."
        return draft.with_refusals([draft.refuse_unsupported(span, what, hint)])
    if query.order and (len(query.order) != 1 or not times or query.order[0].descending):
        what = "The first row within a time in an order other than that of an event time"
        hint = (
            "write `ORDER BY t` with a watermarked column; the first to arrive is `SELECT STREAM DISTINCT ... WITHIN`."
        )
        return draft.with_refusals([draft.refuse_unsupported(span, what, hint)])
    if not times:
        what = "WITHIN over a stream without an event time"
        hint = "declare a watermark, `WATERMARK FOR t AS t - INTERVAL 5 SECONDS`, and show `t` in views in between."
        return draft.with_refusals([draft.refuse_unsupported(span, what, hint)])
    time = times[0]
    if not fits(within, time.family):
        hint = (
            "write a whole number, as the event time is one."
            if time.family == "integer"
            else "write `WITHIN 10 MINUTES`."
        )
        what = f"WITHIN for {time.column.name.removeprefix('#')}, whose unit differs,"
        return draft.with_refusals([draft.refuse_unsupported(span, what, hint)])
    by = tuple(
        AnalyzedSortKey(_column(relation.alias, name), _partition_expression(relation, name), False, False)
        for name in names
    )
    order = tuple(
        AnalyzedSortKey(_column(relation.alias, by.column), by.expr, by.descending, by.nulls_last) for by in query.order
    )
    own = f"{time.column.alias}.{time.column.name}"
    # A row that has not come out may be at the watermark.
    final_columns = tuple((column, 1) for column in sorted(shown.equal_columns(own)))
    first = AnalyzedTop(order, 1, by, time=time.column, final_columns=final_columns, emit="final", within=within)
    return replace(draft, relation=shown, top=first)


def _final_window_columns(
    relation: AnalyzedRelation, column: Expr, bound: WindowBound, *, is_once: bool
) -> Iterator[tuple[str, int]]:
    """The columns of a windowed relation that are final with a window, each with how long before its end they are.

    A group of a start closes with the longest of its windows, and shows a row of a shorter one until then.
    ``is_once``: rows come out when the window closes, so the end of one that is still open is only known to be behind
    its start.
    """
    own = column.refs[0].column
    yield from ((name, bound.length) for name in sorted(relation.equal_columns(own)))
    if not isinstance(relation, AnalyzedLeaf) or bound.window is None:
        return
    if own != bound.window:
        yield bound.window, bound.length if is_once else bound.length - bound.shortest
        return
    for start in relation.source.starts:
        same = f"{relation.alias}.{start.column}"
        if f"{relation.alias}.{start.end}" == bound.window and same != own:
            yield same, start.length


def _partition_expression(relation: AnalyzedLeaf, name: str) -> Expr:
    """The expression that the rows of a group share, as the query wrote it."""
    outputs = relation.query.outputs if isinstance(relation, AnalyzedView) else ()
    return next((output.expr for output in outputs if output.name == name), _column(relation.alias, name))


def _column(alias: str, name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))


_LENGTH = re.compile(r"\s*,\s*'([^']*)'\s*[,)].*", re.DOTALL)


def window_length(expr: Expr) -> int | None:
    """The length of ``window(time, length, ...)`` in microseconds; None where it is not known.

    >>> from watersmeet.logical.expressions import Reference
    >>> window_length(Expr("other", text="window(t, '10 minutes', '1 minute')", refs=(Reference(("t",), 7, 8),)))
    600000000
    """
    match = _LENGTH.fullmatch(expr.text[expr.refs[0].end :]) if len(expr.refs) == 1 else None
    try:
        return None if match is None else parse_duration(match[1])
    except ValueError:
        return None


def final_outputs(query: AnalyzedQuery) -> tuple[str, ...]:
    """The columns of a table, the result of a query, by which its rows become final."""
    if query.result != "table":
        return ()
    final_columns = query.relation.final_columns
    if query.group is not None:
        final_columns = frozenset(final.column for final in query.group.final_columns)
    elif query.top is not None and query.top.time is not None:
        final_columns = frozenset(column for column, _ in query.top.final_columns)
    elif query.top is not None:
        # A row can leave the top-N when others arrive, however old it is, unless its group is final.
        by = None if query.top.final_by is None else finality_column(query.top.by[query.top.final_by].expr)
        final_columns &= frozenset() if by is None else query.relation.equal_columns(by)
    return tuple(output.name for output in query.outputs if finality_column(output.expr) in final_columns)


def final_time_columns(query: AnalyzedQuery) -> tuple[tuple[str, int], ...]:
    """The columns of a result whose groups come out once that say when they close, nearest to the end first.

    Each has how long before the end of a group it is.
    """
    stage = query.group or query.top
    if stage is None or stage.emit != "final":
        return ()
    behind = (
        {final.column: final.behind for final in stage.final_columns}
        if isinstance(stage, AnalyzedGroup)
        else dict(stage.final_columns)
    )
    shown = ((output.name, finality_column(output.expr)) for output in query.outputs)
    return tuple(
        sorted(((name, behind[column]) for name, column in shown if column in behind), key=lambda pair: pair[1])
    )


def find_closing_time(query: AnalyzedQuery) -> EventTimeColumn | None:
    """The event time whose watermark closes the groups of a query."""
    stage = query.group or query.top
    times = event_times(query.relation)
    return None if stage is None else next((time for time in times if time.column == stage.time), None)


_WORDS = re.compile(r"\x00\d+\x00|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\w+|\S")
_EXACT = ("'", '"', "`", "\x00")
_CALLS_OF_SETS = ("grouping", "grouping_id")


def with_parts(expr: Expr, parts: Iterable[Expr], named: Mapping[str, Expr]) -> Expr:
    """A text with every grouped part replaced; ``named`` maps the SQL of a part to its replacement.

    >>> from watersmeet.logical.expressions import column
    >>> t = Reference(("t",), 7, 8, "s", "t")
    >>> whole = Expr("other", text="WINDOW(t,'5 minutes').start", refs=(t,))
    >>> part = Expr("other", text="window(t, '5 minutes')", refs=(t,))
    >>> with_parts(whole, [part], {part.sql(): column(("w",))}).text
    '`w`.start'
    """
    for part in parts:
        if part.op == "other" and (part.refs or part.text == GROUPING_ID) and expr.op == "other":
            expr = _replace_part(expr, part, named[part.sql()])
    return expr


def _replace_part(expr: Expr, part: Expr, other: Expr) -> Expr:
    columns = {(ref.column, ref.path): n for n, ref in enumerate((*part.refs, *expr.refs))}
    encoded = _encode_columns(expr, columns)
    pattern = _encode_columns(part, columns)
    matches = [(match.start(), match.end()) for match in _pattern(pattern).finditer(encoded.text)]
    if not _is_call(pattern.text):
        # An operator next to `a | b` may bind more tightly, as in `c & a | b`.
        matches = [(start, end) for start, end in matches if _is_closed(encoded.text, start, end)]
    if not matches:
        return expr
    if matches == [(0, len(encoded.text))]:
        return replace(other, span=expr.span)
    holes = [(Reference((), start, end), other) for start, end in matches]
    others = [
        (ref, _as_column(expr, before))
        for ref, before in zip(encoded.refs, expr.refs, strict=True)
        if not any(start <= ref.start < end for start, end in matches)
    ]
    return splice(encoded, [*holes, *others])


def _is_call(text: str) -> bool:
    """Whether a text is a single call, which operators next to it cannot split."""
    words = _WORDS.findall(text)
    depth = 0
    for place, word in enumerate(words[1:], start=1):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0:
            return place == len(words) - 1 and word == ")" and words[1] == "("
    return False


def _is_closed(text: str, start: int, end: int) -> bool:
    """Whether a part of a text is enclosed in parentheses, commas or the ends of the text."""
    before, after = text[:start].rstrip(), text[end:].lstrip()
    return before[-1:] in ("", "(", ",") and after[:1] in ("", ")", ",")


def _encode_columns(expr: Expr, columns: Mapping[tuple[str, tuple[str, ...]], int]) -> Expr:
    """The text with a number for every column, which nothing else in a text looks like."""
    codes = [f"\x00{columns[ref.column, ref.path]}\x00" for ref in expr.refs]
    leaves = [replace(_as_column(expr, ref), text=code) for ref, code in zip(expr.refs, codes, strict=True)]
    sized = [replace(leaf, refs=(replace(leaf.refs[0], end=len(leaf.text)),)) for leaf in leaves]
    return splice(expr, zip(expr.refs, sized, strict=True))


def _pattern(part: Expr) -> re.Pattern[str]:
    """The pattern of the words of a part, which does not match inside a longer name."""
    words = _WORDS.findall(part.text)
    spaced = r"\s*".join(re.escape(word) if word.startswith(_EXACT) else f"(?i:{re.escape(word)})" for word in words)
    return re.compile(rf"(?<![\w.`]){spaced}(?![\w(])" if words[-1] != ")" else rf"(?<![\w.`]){spaced}")


def group(draft: Draft) -> Draft:
    """The draft with its grouping, its outputs computed from that, or with the refusal of what cannot be grouped."""
    refusals = [*_check_misplaced_aggregates(draft), *_check_sessions(draft)]
    having = conjuncts(draft.query.having)
    aggregate_calls = [call for expr in (*(o.expr for o in draft.outputs), *having) for call in aggregates_in(expr)]
    if draft.query.is_distinct and draft.query.hides:
        # A set operation: groups of equal rows, whatever side they come from.
        outputs = tuple(output for output in draft.outputs if output.name not in draft.query.hides)
        by = tuple(output.expr for output in outputs if not aggregates_in(output.expr))
        draft = replace(draft, outputs=outputs, query=replace(draft.query, group_by=by))
    else:
        refusals += _check_having_and_distinct(draft, is_grouped=bool(aggregate_calls))
    if not draft.query.grouping_sets:
        refusals += _check_calls_of_sets(draft, having)
    if draft.query.is_distinct and not draft.query.group_by and not aggregate_calls:
        # DISTINCT: a group per row of the result.
        draft = replace(draft, query=replace(draft.query, group_by=tuple(output.expr for output in draft.outputs)))
    elif not aggregate_calls:
        return draft.with_refusals([*refusals, *_check_sets_without_aggregates(draft)])
    if draft.relation is None:
        return draft.with_refusals(refusals)
    query = draft.query
    refusals += [refusal for call in aggregate_calls if (refusal := _check_aggregate(draft, call)) is not None]
    by, sets = group_keys(query)
    calls = {call.sql(): call for call in aggregate_calls if all(is_resolved(arg) for arg in call.args)}
    aggregates = tuple(Output(f"a{n}", call) for n, call in enumerate(calls.values()))
    group_columns = {output.expr.sql(): group_column(output.name) for output in (*by, *aggregates)} | dict(sets)
    parts = (
        (*(output.expr for output in by), *query.group_by, *set_calls(query))
        if sets
        else tuple(output.expr for output in by)
    )
    outputs = tuple(
        replace(output, expr=_rewrite_over_groups(output.expr, parts, group_columns)) for output in draft.outputs
    )
    if all(is_resolved(expr) for expr in query.group_by):
        # A name that means nothing has been refused, and may be the one that is missing.
        for before, after in zip(draft.outputs, outputs, strict=True):
            refusals += _check_grouped(draft, before.expr, after.expr)
        for part in having:
            refusals += _check_grouped(draft, part, _rewrite_over_groups(part, parts, group_columns))
    window, time = _window(draft, by)
    behind = None
    if window is None:
        draft, window, bound = _find_window_bound(draft, by, with_times=query.result == "stream")
        time, behind = (None, None) if bound is None else (bound.time, bound.length)
    conditions = tuple(_rewrite_over_groups(part, parts, group_columns) for part in having)
    is_session = any(_is_call_of(output.expr, "session_window(") for output in by if output.name == window)
    assert draft.relation is not None
    settles = tuple(
        _final_columns(
            draft.relation, by, window, is_session=is_session, behind=behind or 0, is_once=query.result == "stream"
        )
    )
    emit: Emit = "final" if query.result == "stream" and time is not None else "changes"
    grouping = AnalyzedGroup(
        by, aggregates, window, time, query.group_span, conditions, is_session, settles, behind, emit
    )
    return replace(draft, outputs=outputs, group=grouping).with_refusals(refusals)


def _check_calls_of_sets(draft: Draft, having: Sequence[Expr]) -> Iterator[Refusal]:
    """Refuse ``grouping(a)`` and ``grouping_id()`` where there is one grouping, which Spark does not know them in."""
    for expr in (*(output.expr for output in draft.outputs), *having):
        words = [word.lower() for word in _WORDS.findall(expr.sql())]
        if any(word in _CALLS_OF_SETS and after == "(" for word, after in pairwise(words)):
            hint = "leave it out: all rows have the same grouping; or write `GROUP BY ROLLUP (a, b)`, for example."
            what = "grouping() without GROUPING SETS, ROLLUP or CUBE"
            yield draft.refuse_unsupported(expr.span, what, hint)


def _check_sets_without_aggregates(draft: Draft) -> Iterator[Refusal]:
    if draft.query.grouping_sets:
        hint = "add an aggregate to SELECT, for example `count(*) AS n`."
        yield draft.refuse_unsupported(
            draft.query.group_span, "GROUPING SETS, ROLLUP or CUBE without an aggregate", hint
        )


def _rewrite_over_groups(expr: Expr, parts: tuple[Expr, ...], group_columns: Mapping[str, Expr]) -> Expr:
    """An expression of SELECT in terms of the columns of a grouping; ``parts`` are the grouped expressions."""
    whole = group_columns.get(expr.sql())
    if whole is not None:
        return replace(whole, span=expr.span)
    expr = with_parts(expr, parts, group_columns)
    if expr.op == "column":
        return replace(_part_of(expr, group_columns) or expr, span=expr.span)
    replacements = [
        (ref, part) for ref in expr.refs if (part := _part_of(_as_column(expr, ref), group_columns)) is not None
    ]
    if replacements:
        holes = {ref.start for ref, _ in replacements}
        others = [(ref, _as_column(expr, ref)) for ref in expr.refs if ref.start not in holes]
        expr = splice(expr, [*replacements, *others])
    return replace(expr, args=tuple(_rewrite_over_groups(arg, parts, group_columns) for arg in expr.args))


def _part_of(column: Expr, group_columns: Mapping[str, Expr]) -> Expr | None:
    """A column that is grouped by, or a field inside one, in terms of what the grouping gives; None for any other."""
    [ref] = column.refs
    for length in range(len(ref.path), -1, -1):
        outer = group_columns.get(replace(column, refs=(replace(ref, path=ref.path[:length]),)).sql())
        if outer is not None:
            path = (*outer.refs[0].path, *ref.path[length:])
            return replace(outer, refs=(replace(outer.refs[0], path=path),))
    return None


def _as_column(expr: Expr, ref: Reference) -> Expr:
    text = expr.text[ref.start : ref.end]
    return Expr("column", text=text, refs=(replace(ref, start=0, end=len(text)),))


def _check_having_and_distinct(draft: Draft, *, is_grouped: bool) -> Iterator[Refusal]:
    """HAVING without groups, and DISTINCT of groups, whose rows differ already or are to be made equal by a view."""
    query = draft.query
    if query.having is not None and not is_grouped:
        yield draft.refuse_unsupported(
            query.having.span, "HAVING without an aggregate", "write WHERE, before GROUP BY."
        )
    if query.is_distinct and (is_grouped or query.group_by):
        hint = "leave DISTINCT out, or select DISTINCT from a view of the groups."
        yield draft.refuse_unsupported(query.span, "SELECT DISTINCT with GROUP BY or an aggregate", hint)


def _check_grouped(draft: Draft, written: Expr, computed: Expr) -> Iterator[Refusal]:
    for ref in computed.references:
        if ref.source in draft.scope.sources:
            span = written.span if written.span != NOWHERE else draft.query.group_span
            column = f"{ref.source}.{ref.name}"
            hint = f"add `{column}` to GROUP BY, or take one value of the group: `any_value({column})`."
            yield draft.refusal("NOT_GROUPED", span, column=column, hint=hint)


_INSTEAD = {
    "approx_count_distinct": "write `count(DISTINCT x)`, which is exact.",
    "approx_percentile": "write `percentile(x, 0.5)`, which is exact.",
    "percentile_approx": "write `percentile(x, 0.5)`, which is exact.",
    "try_sum": "write `sum(x)`, which stops the query if it overflows.",
    "try_avg": "write `avg(x)`, which stops the query if it overflows.",
}
"""The hints for aggregates that no query may use, by name."""


def _check_aggregate(draft: Draft, call: Expr) -> Refusal | None:
    name = call.text
    inner = [nested for arg in call.args for nested in aggregates_in(arg)]
    if inner:
        construct, hint = f"{name}() of an aggregate", "aggregate in a view, then again in a query over it."
    elif not is_aggregate(name):
        hint = _INSTEAD.get(name, "use count, sum, avg, min, max or another documented aggregate.")
        construct = f"The aggregate {name}()"
    elif not is_aggregate(call.function):
        construct = f"{name}(DISTINCT ...)"
        hint = "first GROUP BY the values in a view, then aggregate the view."
    else:
        return _check_numeric_argument(draft, call)
    return draft.refuse_unsupported(call.span, construct, hint)


def _check_numeric_argument(draft: Draft, call: Expr) -> Refusal | None:
    """The refusal of an aggregate of numbers over something else; what only Spark can compute is left to it.

    Where Spark would cast a text first, its author must.
    """
    function = function_of(call.function)
    types = [type_of(arg, draft.scope.sources) for arg in call.arguments if is_resolved(arg)]
    wrong = next((t for t in types if t and class_of(t) != "number" and result_type(call.function, (t,)) is None), None)
    if function.fold not in ("sum", "moments", "percentile") or wrong is None:
        return None
    reason, hint = f"its argument is {wrong}, not a number.", f"cast it: `{call.text}(CAST(... AS DOUBLE))`."
    return draft.refusal("TYPE_MISMATCH", call.span, expression=f"{call.text}()", reason=reason, hint=hint)


def _check_misplaced_aggregates(draft: Draft) -> Iterator[Refusal]:
    """Refuse aggregates where there are no groups yet."""
    query = draft.query
    inside = (expression for below in walk_relations(query.relation) for expression in below.expressions)
    where = () if query.where is None else (("WHERE", query.where),)
    for place, expr in (*where, *(("GROUP BY", expr) for expr in query.group_by), *inside):
        for call in aggregates_in(expr):
            hint = "aggregate in a view, and use that in a query over it."
            yield draft.refuse_unsupported(call.span, f"The aggregate {call.text}() in {place}", hint)


def _check_sessions(draft: Draft) -> Iterator[Refusal]:
    """Windows that grow with their rows, where nothing ends them or rows are taken back."""
    sessions = [expr for expr in draft.query.group_by if _is_call_of(expr, "session_window(")]
    if draft.relation is None or not sessions:
        return
    times = event_times(draft.relation)
    for expr in sessions:
        if len(sessions) > 1:
            yield draft.refuse_unsupported(expr.span, "GROUP BY several session windows", "keep one of them.")
        elif draft.relation.result == "table":
            hint = "group by `window(t, '5 minutes')`, whose bounds do not depend on the rows."
            yield draft.refuse_unsupported(expr.span, "GROUP BY session_window over a table", hint)
        elif not expr.refs or find_event_time(_as_column(expr, expr.refs[0]), times) is None:
            construct = "GROUP BY session_window of a column without a watermark"
            hint = "declare one, `WATERMARK FOR t AS t - INTERVAL 10 SECONDS`: the watermark ends a session."
            yield draft.refuse_unsupported(expr.span, construct, hint)


def _is_call_of(expr: Expr, *calls: str) -> bool:
    return expr.op == "other" and expr.text.lower().replace(" ", "").startswith(calls)


def _window(draft: Draft, by: tuple[Output, ...]) -> tuple[str | None, TimeColumn | None]:
    """The event-time window among the grouped expressions, and its time.

    It is ``window(t, ...)`` of a watermarked column, a session, or the window end of a windowed source.
    """
    if draft.relation is None:
        return None, None
    times = event_times(draft.relation)
    for output in by:
        expr = output.expr
        if _is_call_of(expr, "window(", "session_window(") and expr.refs:
            time = find_event_time(_as_column(expr, expr.refs[0]), times)
            if time is not None:
                return output.name, time.column
        ended = time_of_window_end(expr, draft.relation)
        if ended is not None and not is_padded(ended.column.alias, draft.relation):
            return output.name, ended.column
    return None, None


def _find_window_bound(
    draft: Draft, by: tuple[Output, ...], *, with_times: bool
) -> tuple[Draft, str | None, WindowBound | None]:
    """The start of a window among the grouped columns, or an end whose time is not shown; with the draft that shows it.

    Of several, the one next to the end of its window.
    """
    assert draft.relation is not None
    relation, place, bound = find_window_bound(
        draft.relation, [output.expr for output in by], with_times=with_times and draft.relation.result == "stream"
    )
    return replace(draft, relation=relation), None if place is None else by[place].name, bound


def find_window_bound(
    relation: AnalyzedRelation, columns: Sequence[Expr], *, with_times: bool = False
) -> tuple[AnalyzedRelation, int | None, WindowBound | None]:
    """The one of some columns that is next to the end of its window, and the relation that shows its time.

    ``with_times``: an event time counts as a window of its own, which ends when the watermark passes it.
    """
    bounds = list[tuple[int, int, WindowBound, AnalyzedRelation]]()
    for place, column in enumerate(columns):
        shown = show_window_time(relation, column)
        bound = window_bound(column, shown)
        time = find_event_time(column, event_times(shown)) if with_times and bound is None else None
        if time is not None:
            bound = WindowBound(time.column, 1, None)
        if bound is not None and not is_padded(bound.time.alias, shown):
            bounds.append((bound.length, place, bound, shown))
    if not bounds:
        return relation, None, None
    _, place, bound, shown = min(bounds, key=lambda found: found[:2])
    return shown, place, bound


def _final_columns(
    relation: AnalyzedRelation,
    by: tuple[Output, ...],
    window: str | None,
    *,
    is_session: bool,
    behind: int,
    is_once: bool,
) -> Iterator[FinalColumn]:
    """The columns by which groups become final: the bounds of their window, or final columns of a table.

    Of sessions, it is only the end, and only if each comes out once (``is_once``): the row of a closed session is
    final, but others of its key may begin before its end.
    """
    if window is None:
        yield from (FinalColumn(output.name) for output in by if finality_column(output.expr) in relation.final_columns)
    for output in (output for output in by if output.name == window and (is_once or not is_session)):
        if output.expr.op == "column":
            yield FinalColumn(output.name, behind=behind)
            yield from _final_window_starts(relation, by, output.expr)
            continue
        yield FinalColumn(output.name, "end")
        if is_session:
            continue
        length = window_length(output.expr)
        if length is not None:
            yield FinalColumn(output.name, "start", length)


def _final_window_starts(relation: AnalyzedRelation, by: tuple[Output, ...], end: Expr) -> Iterator[FinalColumn]:
    """The starts of the windows that a column ends: behind the longest of them, all that start there have ended."""
    own = window_bound(end, relation)
    if own is None or own.window not in (end.refs[0].column, window_of_end(end, relation)):
        return
    for output in by:
        start = window_of_start(output.expr, relation)
        if start is not None and start.window is not None and start.window == own.window and output.expr != end:
            yield FinalColumn(output.name, behind=start.length)
