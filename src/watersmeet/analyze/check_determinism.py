"""The pass that refuses expressions whose value changes when they are computed again, over rows that are taken back.

A table takes a row back by computing it again from what it was made of. If an expression then gives another value,
another row is taken back than was shown, and every aggregate, join and sink behind it is wrong from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from watersmeet.analyze.draft import Draft
from watersmeet.catalog import NOWHERE, Span
from watersmeet.determinism import ImpureCall, impure_calls, is_time_of_now
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedGroup, AnalyzedQuery, Output
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedRelation,
    AnalyzedView,
    ConditionalJoin,
    joins,
)

ON_STREAM = "compute it in a stream that feeds the table, where each row is computed once, or after the sink."
IN_GROUP = "aggregate a value of the rows, for example `max(t)`, or compute it after the sink."


@dataclass(frozen=True)
class Recomputation:
    """An expression that is computed again when a row is taken back; ``rows`` says of what, ``hint`` what to write."""

    expr: Expr
    rows: str
    hint: str = ON_STREAM


def check_determinism(draft: Draft) -> Draft:
    """The draft with the refusal of every expression that would take back other rows than were shown."""
    if draft.relation is None:
        return draft
    recomputed_parts = recomputations(draft.relation, draft.where, draft.outputs, draft.group)
    refusals = [
        *(
            refusal
            for recomputation in recomputed_parts
            for refusal in _check_recomputation(draft.script, recomputation)
        )
    ]
    return draft.with_refusals([*refusals, *_check_random_conditions(draft)])


def query_recomputations(query: AnalyzedQuery) -> Iterator[Recomputation]:
    """The expressions of a query, without its views, that are computed again when a row is taken back."""
    return recomputations(query.relation, query.where, query.outputs, query.group)


def recomputations(
    relation: AnalyzedRelation, where: tuple[Expr, ...], outputs: tuple[Output, ...], group: AnalyzedGroup | None
) -> Iterator[Recomputation]:
    """The expressions of these parts of a query that are computed again when a row is taken back."""
    yield from _relation_recomputations(relation)
    shown = tuple(output.expr for output in outputs)
    if relation.result == "table":
        rows = _relation_names(relation)
        yield from (Recomputation(expr, rows) for expr in where)
        # The result of an aggregate is kept; its arguments are computed for each row.
        arguments = () if group is None else (arg for call in group.aggregates for arg in call.expr.args)
        of_rows = shown if group is None else (*(by.expr for by in group.by), *arguments)
        yield from (Recomputation(expr, rows) for expr in of_rows)
    if group is not None:
        # What is grouped by, and each aggregate, is a column of the groups here.
        yield from (Recomputation(expr, "a group", IN_GROUP) for expr in (*group.having, *shown))


def _relation_recomputations(relation: AnalyzedRelation) -> Iterator[Recomputation]:
    if isinstance(relation, AnalyzedJoin):
        yield from _join_recomputations(relation)
    elif relation.result == "table":
        filters = relation.filters if isinstance(relation, AnalyzedView) else relation.expressions
        array = (relation.array,) if isinstance(relation, AnalyzedLateral) else ()
        yield from (Recomputation(expr, _relation_names(relation)) for expr in (*array, *filters))
    if not isinstance(relation, AnalyzedView):
        for side in relation.inputs:
            yield from _relation_recomputations(side)


def _join_recomputations(join: AnalyzedJoin) -> Iterator[Recomputation]:
    """The parts of ON that are computed for rows of a table. A stream's row is computed once and looks up once."""
    tables = [side for side in join.inputs if side.result == "table"]
    aliases = frozenset(alias for side in tables for alias in side.aliases)
    pairs = set(join.keys) if isinstance(join, ConditionalJoin) else set[tuple[Expr, Expr]]()
    parts = [part for part in join.expressions if part.op != "=" or part.args not in pairs]
    for expr in (*(side for pair in pairs for side in pair), *parts):
        if tables and (not expr.sources or expr.sources & aliases):
            yield Recomputation(expr, _relation_names(tables[0]))


def _relation_names(relation: AnalyzedRelation) -> str:
    return " and ".join(f"`{alias}`" for alias in relation.aliases if not alias.startswith("#")) or "the table"


def _check_random_conditions(draft: Draft) -> Iterator[Refusal]:
    """Random parts of ON that name no side: each side would draw a value of its own, where SQL has one per pair."""
    for join in joins(draft.relation) if draft.relation is not None else ():
        if not isinstance(join, ConditionalJoin) or any(side.result == "table" for side in join.inputs):
            continue
        for expr in (part for part in join.left_only if not part.sources):
            for call, span in locate_impure_calls(draft.script, expr):
                if call.cause == "random":
                    hint = "compute it in a view of one side, and compare that column here."
                    parameters = {"function": call.name, "why": "each side of the join would compute its own value"}
                    yield draft.refusal("NON_DETERMINISTIC", span, **parameters, hint=hint)


def _check_recomputation(script: Script, recomputation: Recomputation) -> Iterator[Refusal]:
    for call, span in locate_impure_calls(script, recomputation.expr):
        yield refuse_non_deterministic(script, recomputation, call.name, span)


def refuse_non_deterministic(script: Script, recomputation: Recomputation, function: str, span: Span) -> Refusal:
    """The refusal of an expression that gives another value when a row is taken back."""
    why = f"a row of {recomputation.rows} is retracted by computing it again, which would give a different value"
    why = why.replace("a row of a group", "the row of a group")
    return Refusal(
        "NON_DETERMINISTIC", {"function": function, "why": why, "hint": recomputation.hint}, script.place(span)
    )


def locate_impure_calls(script: Script, expr: Expr) -> Iterator[tuple[ImpureCall, Span]]:
    """The calls in an expression that give another value when they are made again, each with its place."""
    if expr.op == "cast" and expr.args[0].op == "literal" and is_time_of_now(expr.args[0].text):
        literal = expr.args[0].text
        if str(expr.value).upper().startswith(("DATE", "TIMESTAMP")):
            yield ImpureCall(f"CAST({literal} AS {expr.value})", "clock", 0, len(literal)), expr.span
    if expr.op in ("other", "call"):
        text = expr.text if expr.op == "other" else f"{expr.text}("
        for call in impure_calls(text, [(ref.start, ref.end) for ref in expr.refs]):
            yield call, _span_in(script, expr, call)
    for arg in expr.parts:
        yield from locate_impure_calls(script, arg)


def _span_in(script: Script, expr: Expr, call: ImpureCall) -> Span:
    """Where a call stands in the script: inside its expression if that stands there word for word."""
    span = expr.span
    is_verbatim = span != NOWHERE and script.text[span.start : span.start + len(expr.text)] == expr.text
    return replace(span, start=span.start + call.start, end=span.start + call.end) if is_verbatim else span
