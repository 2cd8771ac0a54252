"""The pass that looks at how the changes of a table go to a sink, and the key by which they do.

A sink that only takes rows in cannot show a table: rows of it are taken back. The option ``changes`` of CREATE SINK
says what becomes of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast, get_args

from watersmeet.analyze.draft import Draft, format_list
from watersmeet.catalog import Sink
from watersmeet.errors import Refusal
from watersmeet.formats import SINK_FORMATS, sink_format
from watersmeet.formats.sink import CHANGES, Changes, SinkFormat
from watersmeet.plan.expressions import GROUP, Expr
from watersmeet.plan.nodes import LEFT_ONLY
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.plan.relation import AnalyzedRelation, AnalyzedScan, AnalyzedView, ConditionalJoin

Column = tuple[str, str]
"""A column of a source: the alias and the name."""


def check_table_sinks(draft: Draft) -> Draft:
    """The draft with what is to be refused of the sink that its result goes to."""
    sink = draft.script.sink(draft.query.into)
    if sink is None:
        return draft
    wrong = [*_check_option(draft, sink)]
    # Of a query with mistakes nobody knows what its result is.
    if wrong or draft.refusals or draft.relation is None:
        return draft.with_refusals(wrong)
    return draft.with_refusals(_check(draft, sink))


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
        yield draft.refusal("APPEND_ONLY_SINK", span, sink=sink.name, hint=format_.changes_hint)
    elif not format_.can_take(changes):
        yield _wrong(draft, sink, _why_unsupported(format_, changes), format_.changes_hint)
    else:
        yield from _check_key(draft, sink)


def _why_unsupported(format_: SinkFormat, changes: Changes) -> str:
    """Why changes cannot go to a sink so."""
    able = [candidate for candidate in SINK_FORMATS if changes in candidate.takes]
    if changes == "snapshot":
        names = format_list([name for candidate in able for name in candidate.names], "or")
        return f"only {names} files under a `path` can hold a snapshot of a table"
    if changes == "upsert":
        return f"only {format_list([candidate.title for candidate in able])} replace and delete rows by key"
    return f"{format_.title} accepts changes of a table only by key"


def _is_stream(draft: Draft) -> bool:
    kind = "stream" if draft.relation is None else draft.relation.result
    return draft.group is None and draft.top is None and (draft.query.result or kind) == "stream"


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
    """The columns of a table's result that tell its rows apart; None if no columns of the result are known to.

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
    """The columns that tell the rows of a table apart; None if nothing is known to."""
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
