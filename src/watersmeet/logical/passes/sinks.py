"""The passes over sinks: targets of queries and side outputs, how changes are written, formats of keys (LN-15).

An append-only sink cannot show a table, whose rows are retracted. The option ``changes`` of CREATE SINK says how the
sink writes changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard, cast, get_args

from watersmeet.catalog import Field, Sink, Source, Span, StreamHistory
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.formats import SINK_FORMATS, may_be_malformed, sink_format
from watersmeet.formats.base import CHANGES, SHOWN, Changes, SinkFormat
from watersmeet.formats.records import JSON, KEY_TYPES, VALUE_FORMAT, format_of_key
from watersmeet.logical.expressions import GROUP, Expr, conjuncts
from watersmeet.logical.nodes import (
    LEFT_ONLY,
    REPEATED_ROWS,
    Item,
    Lateral,
    ParsedJoin,
    Query,
    Relation,
    Script,
    StorageFormats,
    Union,
)
from watersmeet.logical.passes.column_types import event_times, find_event_time, is_same_type, type_of
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.scope import KEY
from watersmeet.logical.passes.watermarks import show_event_time
from watersmeet.logical.query import AnalyzedOver, AnalyzedQuery, AnalyzedTop, QueryWarning, shows_late_rows
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedView,
    ConditionalJoin,
    joins,
    leaves,
)
from watersmeet.logical.words import expression_in_words, is_unnamed, word
from watersmeet.operators.core.order import MOST_RANKS

Column = tuple[str, str]
"""A column of a source: the alias and the name."""


def check_table_sinks(draft: Draft) -> Draft:
    """The draft with the refusals of the sink of its result."""
    sink = draft.script.sink(draft.query.into)
    if sink is None:
        return draft
    wrong = [*_check_option(draft, sink)]
    # The result of a query with mistakes is unknown.
    if wrong or draft.refusals or draft.relation is None or _may_be_a_stream(draft):
        return draft.with_refusals(wrong)
    draft = draft.with_refusals(_check(draft, sink))
    return draft if draft.refusals or not draft.is_bounded else draft.with_warnings(_warn_missing_key(draft, sink))


def _warn_missing_key(draft: Draft, sink: Sink) -> Iterator[QueryWarning]:
    """Warn of records that have no key, because the columns of the key are not among their columns."""
    makes_records = sink_format(sink).has_text_keys and VALUE_FORMAT in sink.lowercase_options
    if not makes_records or not _is_stream(draft):
        return
    query = draft.finish()
    if query.key and key_columns(query) is None:
        shown = {output.expr.sql() for output in query.outputs}
        missing = [expression_in_words(expr) for expr in query.key if expr.sql() not in shown]
        example = f"`{missing[0]} AS {KEY}`" if len(query.key) == 1 else f"`{missing[0]}`"
        message = (
            f"the records of {sink.name} have no key, and go to any partition: SELECT does not show "
            f"{format_list(missing)}. Add {example} to it."
        )
        yield QueryWarning(message, draft.query.into_span)


def _check_option(draft: Draft, sink: Sink) -> Iterator[Refusal]:
    changes = sink_format(sink).changes
    if changes is not None and changes not in get_args(Changes):
        reason = f"changes can be written as {format_list(get_args(Changes), 'or')}"
        yield _wrong(draft, sink, reason, "write `changes 'log'`, for example.")


def _wrong(draft: Draft, sink: Sink, reason: str, hint: str) -> Refusal:
    refusal = sink_format(sink).wrong_option(f"changes '{sink_format(sink).changes}'", reason, hint)
    return replace(refusal, place=draft.script.place(sink.span))


def _check(draft: Draft, sink: Sink) -> Iterator[Refusal]:
    format_, span = sink_format(sink), draft.query.into_span
    changes = cast("Changes | None", format_.changes)
    if _is_stream(draft):
        if CHANGES in sink.lowercase_options:
            reason, hint = "a stream never retracts rows", f"leave `changes` out of {sink.name}."
            yield draft.refusal(
                "WRONG_OUTPUT", span, what="A changelog of a stream", reason=reason, cause="a stream", hint=hint
            )
    elif format_.is_display:
        return
    elif changes is None:
        yield draft.refusal(
            "APPEND_ONLY_SINK", span, sink=sink.name, hint=f"{_stream_first(draft)}{format_.changes_hint}"
        )
    elif not format_.can_take(changes):
        yield _wrong(draft, sink, _why_unsupported(format_, changes), format_.changes_hint)
    else:
        yield from _check_key(draft, sink)


def _stream_first(draft: Draft) -> str:
    """The beginning of a hint where the groups of a result could come out once."""
    stage = draft.group or draft.top
    is_closed = stage is not None and stage.time is not None
    return "write SELECT STREAM, which emits each group once, when its window has closed; or " if is_closed else ""


def _why_unsupported(format_: SinkFormat, changes: Changes) -> str:
    """The reason why changes cannot go to a sink so."""
    able = [candidate for candidate in SINK_FORMATS if changes in candidate.takes]
    if changes == "snapshot":
        names = format_list([name for candidate in able for name in candidate.names], "or")
        return f"only {names} files under a `path` can hold a snapshot of a table"
    if changes == "upsert":
        return f"only {format_list([candidate.title for candidate in able])} replace and delete rows by key"
    return f"{format_.title} accepts changes of a table only by key"


def _is_stream(draft: Draft) -> bool:
    if draft.group is not None or draft.top is not None:
        return draft.result_kind == "stream"
    return (draft.query.result or draft.result_kind) == "stream"


def _check_key(draft: Draft, sink: Sink) -> Iterator[Refusal]:
    format_ = sink_format(sink)
    outputs = [output.name.lower() for output in draft.outputs]
    unknown = [name for name in format_.key if name.lower() not in outputs]
    if unknown:
        where, output_names = (
            "in the result to replace rows by",
            format_list([f"`{name}`" for name in outputs]),
        )
        yield draft.refusal(
            "UNKNOWN_COLUMN", sink.span, column=unknown[0], where=where, suggestion=f"known names: {output_names}."
        )
    elif format_.changes == "upsert" and not format_.key and result_columns(draft.finish()) is None:
        yield draft.refusal("SINK_WITHOUT_KEY", draft.query.into_span, sink=sink.name)


def result_columns(query: AnalyzedQuery) -> tuple[str, ...] | None:
    """The key columns of a table's result; None if no columns of the result are known to be a key.

    They are those of GROUP BY, or the primary keys of the tables; where a join names the whole primary key of one side,
    the key of the other is enough.
    """
    if query.group is not None:
        return _output_names(query, [(GROUP, by.name) for by in query.group.by])
    if query.relation.result == "stream":
        # Of a stream several of the first rows may have one key.
        return key_columns(query) if query.top is None else None
    key = row_key(query.relation)
    return None if key is None else _output_names(query, key)


def row_key(relation: AnalyzedRelation) -> tuple[Column, ...] | None:
    """The key columns of a table's rows; None if none are known."""
    match relation:
        case AnalyzedScan() if relation.source.primary_key and not relation.parts:
            names = [relation.source.field(name) for name in relation.source.primary_key]
            return tuple((relation.alias, field.name) for field in names if field is not None)
        case AnalyzedView():
            inside = result_columns(relation.query)
            return None if inside is None else tuple((relation.alias, name) for name in inside)
        case ConditionalJoin(result="table"):
            return _join_row_key(relation)
        case _:
            return None


def _join_row_key(join: ConditionalJoin) -> tuple[Column, ...] | None:
    left, right = row_key(join.left), row_key(join.right)
    if join.kind in LEFT_ONLY:
        return left
    if left is None or right is None:
        return None
    named = [{column for pair in join.keys if (column := _column(pair[side])) is not None} for side in (0, 1)]
    if join.kind in ("inner", "left") and named[1].issuperset(right):
        return left
    if join.kind in ("inner", "right") and named[0].issuperset(left):
        return right
    return (*left, *right)


def key_columns(query: AnalyzedQuery) -> tuple[str, ...] | None:
    """The columns of the result that are its key (see `AnalyzedQuery`); None if it has none or does not show it."""
    shown = {output.expr.sql(): output.name for output in query.outputs}
    names = [shown.get(expr.sql()) for expr in query.key]
    return None if not names or None in names else tuple(cast("list[str]", names))


def _output_names(query: AnalyzedQuery, columns: list[Column] | tuple[Column, ...]) -> tuple[str, ...] | None:
    shown = {_column(output.expr): output.name for output in reversed(query.outputs)}
    names = [shown.get(column) for column in columns]
    return None if None in names else tuple(cast("list[str]", names))


def _column(expr: Expr) -> Column | None:
    """The column that an expression is, if it is nothing else."""
    if expr.op != "column" or len(expr.refs) != 1 or expr.refs[0].path:
        return None
    return (expr.refs[0].source, expr.refs[0].name)


def check_result(draft: Draft) -> Draft:
    """The draft with the refusal of a result that is declared as a stream or a table but is the other.

    A table is not a stream, since its rows are retracted. The latest row per key of a stream is a table.
    """
    draft = draft.with_refusals(_check_late_rows(draft))
    # A rank of all rows of a stream has been refused, with what makes it a stream.
    is_refused = draft.refusals and draft.top is not None and draft.top.limit == MOST_RANKS
    is_table = draft.query.result == "stream" and draft.result_kind == "table"
    if is_table and not is_refused and not _may_be_a_stream(draft):
        draft = draft.with_refusals(
            [draft.refusal("RESULT_IS_A_TABLE", draft.query.span, what=_describe_result(draft), hint=_once(draft))]
        )
    is_known = not draft.refusals and draft.scope.is_whole and draft.is_bounded
    if not is_known or draft.query.result != "table" or draft.result_kind == "table":
        # The key of a query with mistakes, or over a view or a source with mistakes, is unknown.
        return draft
    key = draft.finish().key
    if not key:
        return draft.with_refusals([draft.refusal("RESULT_WITHOUT_KEY", draft.query.span)])
    return draft.with_warnings([_warn_latest_row(draft, key)])


def _check_late_rows(draft: Draft) -> Iterator[Refusal]:
    """LATE INTO of a query for which no row is late, or which only counts late rows."""
    query, relation = draft.query, draft.relation
    if query.late_into is None or relation is None or shows_late_rows(relation, draft.top):
        return
    if joins(relation):
        hint = "leave LATE INTO out: each row is looked up when it arrives, so no row is late for a table."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO of a join with a table", hint)
    elif draft.refusals:
        # What the query would be without its mistakes is unknown.
        return
    elif relation.result == "stream" and (draft.group or draft.top) is not None:
        hint = "leave LATE INTO out: rows that come after the end of their window are counted."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO of groups", hint)
    else:
        hint = "leave LATE INTO out: no row is late for this query."
        what = "LATE INTO without a join of streams, deduplication or window functions"
        yield draft.refuse_unsupported(query.late_into_span, what, hint)


def _may_be_a_stream(draft: Draft) -> bool:
    """Whether a name that means nothing leaves it open if windows close the groups of a SELECT STREAM."""
    query, stage = draft.query, draft.group or draft.top
    if query.result != "stream" or stage is None or draft.relation is None or draft.relation.result == "table":
        return False
    shown = [item.expr for item in query.items if isinstance(item, Item)] if query.is_distinct else []
    return not draft.scope.is_whole or not all(map(is_resolved, (*query.group_by, *shown)))


def _once(draft: Draft) -> str:
    """The hint that says what to write so that the result is a stream, or else a table."""
    relation, stage = draft.relation, draft.group or draft.top
    parts = draft.query.relation.scans if isinstance(draft.query.relation, Union) else ()
    if draft.query.is_distinct and any(scan.source.startswith("#") for scan in parts):
        # A set operation, whose parts SELECT TABLE would make tables of their own.
        return "leave out STREAM and TABLE: `SELECT x FROM a UNION SELECT x FROM b` is a table, and so are others."
    if stage is None or relation is None or relation.result == "table":
        return "write SELECT TABLE."
    times = event_times(relation)
    if not times:
        is_distinct = draft.query.is_distinct
        then = (
            "add `WITHIN 10 MINUTES`, which drops repeated rows" if is_distinct else "group by `window({}, '1 hour')`"
        )
        hidden = event_times(show_event_time(relation)) if isinstance(relation, AnalyzedLeaf) else ()
        first = "declare a watermark, `WATERMARK FOR t AS t - INTERVAL 5 MINUTES`,"
        time = "t"
        if hidden and isinstance(relation, AnalyzedLeaf):
            time = hidden[0].column.name.removeprefix("#")
            first = f"show `{time}` in {'the subquery' if is_unnamed(relation.source.name) else relation.source.name}"
        return f"write SELECT TABLE; or {first} and {then.format(time)}: each group then comes out once."
    # What orders a query that shows ranks is a column with a generated name.
    time = next((name for name in (t.column.name for t in times) if not name.startswith("#")), "t")
    is_distinct = draft.group is not None and not draft.group.aggregates
    top = draft.top
    if is_distinct or _is_first_by_time(top, relation):
        return "add `WITHIN 10 MINUTES` at the end: rows that repeat another within that time are dropped."
    if top is not None and top.limit - top.offset == 1 and top.by and not top.ties:
        return (
            "write SELECT TABLE; or order by the event time alone, ascending, and add `WITHIN 10 MINUTES` at the end:"
            " rows that repeat another within that time are dropped."
        )
    if top is not None and top.by == () and isinstance(relation, AnalyzedView) and relation.query.group is not None:
        return (
            f"write `QUALIFY ROW_NUMBER() OVER (PARTITION BY {time} ORDER BY ...) <= {top.limit}` in place of LIMIT:"
            " the first rows of each window; or write SELECT TABLE."
        )
    if top is not None:
        windows = f"`FROM TABLE(TUMBLE(TABLE ..., DESCRIPTOR({time}), INTERVAL '1' HOUR))`"
        return (
            f"add `window_end` of {windows} to PARTITION BY, so that each group comes out once; or write SELECT TABLE."
        )
    return f"add `window({time}, '1 hour')` to GROUP BY, so that each group comes out once; or write SELECT TABLE."


def _is_first_by_time(top: AnalyzedTop | AnalyzedOver | None, relation: AnalyzedRelation) -> bool:
    """Whether a query shows the first row of each group by an event time."""
    if (
        not isinstance(top, AnalyzedTop)
        or top.limit != 1
        or top.offset
        or not top.by
        or top.ties
        or len(top.order) != 1
    ):
        return False
    return not top.order[0].descending and find_event_time(top.order[0].expr, event_times(relation)) is not None


def _describe_result(draft: Draft) -> str:
    if isinstance(draft.top, AnalyzedOver):
        return "the rows of a table with window functions"
    if draft.top is not None:
        return "the first rows in an order"
    if draft.group is not None:
        return "groups with aggregates" if draft.group.aggregates else "distinct rows"
    table_aliases = () if draft.relation is None else tuple(leaf.alias for leaf in leaves(draft.relation))
    return ("the table " if len(table_aliases) == 1 else "the join of the tables ") + draft.names_of(table_aliases)


def _warn_latest_row(draft: Draft, key: tuple[Expr, ...]) -> QueryWarning:
    by = ", ".join(expression_in_words(expr) for expr in key)
    message = f"SELECT TABLE over a stream shows the latest row of each {by}: each row replaces the one before it."
    return QueryWarning(message, draft.query.span)


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of static tables where their changes are needed."""
    if draft.relation is None:
        return draft
    tables = static_tables_outside_joins(draft.relation)
    return draft.with_refusals(
        draft.refusal("STATIC_TABLE", draft.query.span, table=scan.source.name, hint=_static_hint(scan.source))
        for scan in tables
    )


def _static_hint(source: Source) -> str:
    if "static" in source.lowercase_options:
        return f"remove `static '{source.lowercase_options['static']}'` from the options of {word(source.name)}."
    return f"give `{source.name}` as a streaming DataFrame, which `spark.readStream` makes."


def with_static_sources(query: AnalyzedQuery, names: frozenset[str]) -> AnalyzedQuery:
    """The query with the sources of these names, in small letters, as tables that never change."""
    return _with_sources(query, names, lambda source: replace(source, is_static=True))


def with_histories(query: AnalyzedQuery, histories: Mapping[str, StreamHistory]) -> AnalyzedQuery:
    """The query whose sources have these histories, by name in small letters."""
    return _with_sources(query, histories, lambda source: replace(source, history=histories[source.name.lower()]))


def _with_sources(query: AnalyzedQuery, names: Container[str], change: Callable[[Source], Source]) -> AnalyzedQuery:
    def visit(relation: AnalyzedRelation) -> AnalyzedRelation:
        if isinstance(relation, AnalyzedScan) and relation.source.name.lower() in names:
            return replace(relation, source=change(relation.source))
        return relation.with_inputs([visit(side) for side in relation.inputs])

    return replace(query, relation=visit(query.relation))


def static_tables_outside_joins(relation: AnalyzedRelation) -> Iterator[AnalyzedScan]:
    """The tables that never change, wherever no stream looks them up."""
    if _is_static(relation):
        yield relation
    for port, side in enumerate(relation.inputs):
        is_read = isinstance(relation, AnalyzedJoin) and relation.can_be_static(port) and _is_static(side)
        yield from () if is_read else static_tables_outside_joins(side)


def _is_static(relation: AnalyzedRelation) -> TypeGuard[AnalyzedScan]:
    return isinstance(relation, AnalyzedScan) and relation.source.is_static


_NUMBERS = ("int", "long", "double")


def with_record_key(source: Source) -> Source:
    """The source with the key of its records as a column that ``*`` leaves out, if nothing else is its ``_key``.

    >>> source = Source("orders", (), format="kafka", options={"value.format": "json", "key.format": "long"})
    >>> with_record_key(source).field("_key")
    Field(name='_key', type='BIGINT', nullable=True, hidden=True)
    """
    format_ = format_of_key(source)
    if format_ is None or source.format is None or source.key:
        return source
    type_ = KEY_TYPES.get(format_, "BINARY")
    return replace(source, fields=(*source.fields, Field(KEY, type_, hidden=True)))


def key_formats(draft: Draft) -> Draft:
    """The draft with the refusal of joins by keys whose formats differ, and of formats in which nothing is stored."""
    store = draft.query.store
    draft = draft.with_refusals([*_check_joins(draft, draft.query.relation), *_check_store(draft, store)])
    return draft if store is None else draft.with_warnings(_warn_cut_times(draft, store))


def _warn_cut_times(draft: Draft, store: StorageFormats) -> Iterator[QueryWarning]:
    """Times in a key that is stored as JSON, which Spark writes with milliseconds."""
    if store.key != JSON or draft.refusals or not draft.is_bounded or not draft.scope.is_whole:
        return
    for expr in replace(draft, query=replace(draft.query, store=None)).finish().key:
        type_ = (type_of(expr, draft.scope.sources) or "").upper()
        if type_.startswith("TIMESTAMP"):
            time = expression_in_words(expr)
            consequence = f"keys whose {time} differs by less than a millisecond are one key"
            exact = f"CAST({time} AS STRING)" if type_ == "TIMESTAMP_NTZ" else f"unix_micros({time})"
            hint = f"GROUP BY `{exact}` keeps them apart"
            yield QueryWarning(f"STORE KEY AS json writes {time} with milliseconds: {consequence}. {hint}.", store.span)


def _check_joins(draft: Draft, relation: Relation) -> Iterator[Refusal]:
    if isinstance(relation, Lateral):
        yield from _check_joins(draft, relation.input)
    if isinstance(relation, ParsedJoin):
        yield from _check_joins(draft, relation.left)
        for part in conjuncts(relation.on):
            if part.op == "=" and all(_is_key(arg) for arg in part.args):
                yield from _check_keys(draft, part, relation.span)


def _is_key(expr: Expr) -> bool:
    """Whether an expression refers to the key of a record, whatever column that is."""
    return expr.op == "column" and bool(expr.refs[0].source) and expr.refs[0].parts[-1].lower() == KEY


def _check_keys(draft: Draft, equality: Expr, join: Span) -> Iterator[Refusal]:
    aliases = [arg.refs[0].source for arg in equality.args]
    formats = [format_of_key(draft.scope.sources[alias]) for alias in aliases]
    if None in formats or formats[0] == formats[1]:
        return
    names = [draft.name_of(alias) for alias in aliases]
    span = equality.span if equality.span != Span(0, 0) else join
    yield draft.refusal(
        "KEY_FORMATS_DIFFER", span, left=names[0], right=names[1], left_format=formats[0], right_format=formats[1],
        hint=_hint([str(format_) for format_ in formats], names, [draft.scope.sources[a].kind for a in aliases]),
    )  # fmt: skip


def _hint(formats: list[str], names: list[str], kinds: list[str]) -> str:
    unread = next((n for n, format_ in enumerate(formats) if format_ not in KEY_TYPES or format_ == JSON), None)
    if unread is not None:
        other = formats[1 - unread] if formats[1 - unread] in KEY_TYPES else "string"
        return f"end the query that writes {names[unread]} with `STORE KEY AS {other}`."
    view = f"CREATE VIEW {word(names[1])}_by_{formats[0]} AS SELECT {kinds[1].upper()} * FROM {word(names[1])}"
    return f"write `{view} STORE KEY AS {formats[0]}`, and join with that."


def _check_store(draft: Draft, store: StorageFormats | None) -> Iterator[Refusal]:
    if store is None:
        return
    if store.value not in (None, JSON):
        construct, hint = f"STORE VALUE AS {store.value}", f"write `STORE VALUE AS {JSON}`, or leave it out."
        yield draft.refuse_unsupported(store.span, construct, hint)
    if store.key is None:
        return
    construct, hint = f"STORE KEY AS {store.key}", None
    sink = draft.script.sink(draft.query.into)
    format_ = sink_format(sink) if sink is not None and sink_format(sink).has_text_keys else None
    if store.key not in KEY_TYPES:
        hint = f"write {format_list(KEY_TYPES, 'or')}, for example `STORE KEY AS string`."
    elif store.key in _NUMBERS and format_ is not None:
        construct = f"{construct} into {format_.title}"
        hint = f"leave it out, and add `key.format '{store.key}'` to the OPTIONS of {format_.sink.name}."
    elif format_ is not None and not format_.is_encoded(cast("Changes | None", format_.changes)):
        construct = f"{construct} into {format_.title}, where rows have their own columns `key` and `value`,"
        hint = f"add `value.format 'json'` to the OPTIONS of {format_.sink.name}, or select the key AS `key`."
    elif not draft.refusals and draft.is_bounded:
        finished = replace(draft, query=replace(draft.query, store=None)).finish()
        key = finished.key
        if not key:
            construct, hint = f"{construct} of a result without a key", "add `... AS _key` to the columns."
        elif len(key) > 1 and store.key != JSON:
            construct, hint = f"{construct} of a key of {len(key)} columns", f"write `STORE KEY AS {JSON}`."
        elif format_ is not None and finished.result == "table" and len(key) == 1 and store.key != "string":
            construct, hint = (
                f"{construct} of a table into {format_.title}",
                "write `STORE KEY AS string`: its key is a string there.",
            )
    if hint is not None:
        yield draft.refuse_unsupported(store.span, construct, hint)


def check_targets(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """Refuse a place that two queries write to: their files and checkpoints would get into each other's way.

    So is a sink that nothing can be written to as its options are.
    """
    refusals: list[Refusal] = []
    seen: dict[str, str] = {}
    formats = {sink.name.lower(): sink_format(sink) for sink in script.sinks}
    for query in script.queries:
        for name, span in _targets(query):
            format_ = formats.get(name.lower())
            place = name.lower() if format_ is None else format_.place
            if place in seen:
                refusals.append(_refusal(script, name, span, seen[place], place))
            elif format_ is not None:
                refusals += [replace(wrong, place=script.place(format_.sink.span)) for wrong in format_.check()]
            seen.setdefault(place, name)
    return tuple(refusals)


def _targets(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks a query names; late rows into the sink of the result itself are refused with the query."""
    if query.into is not None:
        yield query.into, query.into_span
    if query.late_into is not None and query.late_into.lower() != (query.into or "").lower():
        yield query.late_into, query.late_into_span
    yield from ((side_output.sink, side_output.span) for side_output in query.side_outputs)


def _refusal(script: Script, name: str, span: Span, other: str, place: str) -> Refusal:
    if name.lower() != other.lower():
        kind, _, where = place.partition(" ")
        parameters = {"sink": name, "other": other, "place": f"{kind} {where.strip()}"}
        return Refusal("DUPLICATE_TARGET", parameters, script.place(span))
    hint = "give every output its own sink, with its own path; or write one query, with UNION ALL."
    parameters = {"name": name, "before": "the sink of another output", "hint": hint}
    return Refusal("DUPLICATE_NAME", parameters, script.place(span))


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """Sinks that are not there, and outputs that the query does not have."""
    yield from _check_known(draft)
    yield from _check_late(draft)
    yield from _check_malformed(draft)
    yield from _check_duplicates(draft)
    yield from (refusal for family in draft.families for refusal in family.check_outputs(draft))


def _check_known(draft: Draft) -> Iterator[Refusal]:
    sinks = [sink.name for sink in draft.script.sinks]
    for name, span in _sinks(draft.query):
        if name.lower() not in [sink.lower() for sink in sinks]:
            source = draft.sources.get(name.lower())
            chain = f"write `CREATE VIEW {name} AS SELECT ...` in place of {name} and its INSERT, and read the view;"
            hint = f"{chain} or declare a sink of another name for its rows."
            suggestion = did_you_mean(name, sinks) if source is None else hint
            yield draft.refusal("UNKNOWN_SINK", span, sink=name, suggestion=suggestion)


def _sinks(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks that must be declared. Without INSERT INTO, side outputs go to the caller that runs the query."""
    if query.into is not None:
        yield query.into, query.into_span
    if query.late_into is not None:
        yield query.late_into, query.late_into_span
    yield from (
        (side_output.sink, side_output.span)
        for side_output in query.side_outputs
        if side_output.is_instead or query.into is not None
    )


def _check_late(draft: Draft) -> Iterator[Refusal]:
    query = draft.query
    if query.late_into is None:
        return
    if query.late_into.lower() == (query.into or "").lower():
        hint = "declare another sink with CREATE SINK: late rows have other columns than the result."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO the sink of the result", hint)
    sink = draft.script.sink(query.late_into)
    if sink is not None and sink.fields:
        yield wrong_output(
            draft, query.late_into_span, "Late rows", f"{sink.name} declares columns, but late rows have their own",
            "declares columns", f"declare {sink.name} without columns.",
        )  # fmt: skip


def _check_malformed(draft: Draft) -> Iterator[Refusal]:
    for side_output in draft.query.side_outputs:
        if side_output.column != SHOWN:
            continue
        sink = draft.script.sink(side_output.sink)
        if sink is not None and sink.fields:
            reason = f"{sink.name} declares columns, but malformed rows have their own"
            hint = f"declare {sink.name} without columns."
            yield wrong_output(draft, side_output.span, "Malformed rows", reason, "declares columns", hint)
        if not any(map(may_be_malformed, draft.script.sources)):
            hint = "leave MALFORMED INTO out: only text and records have malformed rows."
            yield draft.refuse_unsupported(
                side_output.span, "MALFORMED INTO where no source has rows that may be malformed", hint
            )


def _check_duplicates(draft: Draft) -> Iterator[Refusal]:
    """DUPLICATES INTO of a query that leaves out no repeated rows, and a sink with other columns than the result."""
    query = draft.query
    for side_output in query.side_outputs:
        if side_output.column != REPEATED_ROWS:
            continue
        if query.limit is None or query.within is None:
            hint = (
                "leave it out, or write `SELECT DISTINCT ... WITHIN 10 MINUTES`, or `QUALIFY ROW_NUMBER() OVER"
                " (PARTITION BY id ORDER BY t) = 1 WITHIN 10 MINUTES`, in this query itself."
            )
            what = "DUPLICATES INTO of a query that does not deduplicate"
            yield draft.refuse_unsupported(side_output.span, what, hint)
        sink, result = draft.script.sink(side_output.sink), draft.script.sink(query.into)
        if sink is not None and sink.fields and (result is None or not _has_same_columns(sink.fields, result.fields)):
            reason = f"{sink.name} declares other columns than {query.into}, and duplicates have those of the result"
            hint = f"declare {sink.name} with the columns of {query.into}, or without any."
            yield wrong_output(draft, side_output.span, "Duplicates", reason, "declares other columns", hint)


def check_columns(draft: Draft, name: str | None, span: Span, output: str, source: Source) -> Iterator[Refusal]:
    """A sink that declares columns takes whole rows of a source only if they are the columns of that source."""
    sink = draft.script.sink(name)
    if sink is not None and sink.fields and source.fields and not _has_same_columns(sink.fields, source.fields):
        reason = f"its columns are those of {source.name}, but {name} declares others"
        hint = f"declare {name} with the columns of {source.name}, or without any."
        yield wrong_output(draft, span, output, reason, f"not the columns of {source.name}", hint)


def _has_same_columns(fields: tuple[Field, ...], others: tuple[Field, ...]) -> bool:
    pairs = zip(fields, others, strict=False)
    return len(fields) == len(others) and all(
        a.name.lower() == b.name.lower() and is_same_type(a.type, b.type) for a, b in pairs
    )


def wrong_output(draft: Draft, span: Span, output: str, reason: str, cause: str, hint: str) -> Refusal:
    """The refusal of an output that does not fit."""
    return draft.refusal("WRONG_OUTPUT", span, what=output, reason=reason, cause=cause, hint=hint)
