"""The passes over declarations, nondeterministic expressions, and likely mistakes that `check` rejects.

A table retracts a row by computing it again. If an expression then gives another value, the row that is retracted is
not the row that was emitted, and every aggregate, join and sink behind it is wrong. So expressions whose value can
change are refused over tables.

Likely mistakes are unknown names of functions, formats and options. Only `check` refuses them: in a run, Spark knows
what packages, extensions and users have added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from watersmeet.catalog import NOWHERE, Sink, Source, Span, Watermark, is_folder_name
from watersmeet.duration import format_count
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean
from watersmeet.formats import (
    OWN,
    check_history,
    check_source,
    format_names,
    history_source,
    sink_format,
    source_format,
)
from watersmeet.formats.base import NEEDED, OPTIONS, unknown_options
from watersmeet.formats.base import OWN as OWN_OF_SINKS
from watersmeet.formats.lakes import DeltaSource, IcebergSource
from watersmeet.functions import ImpureCall, builtin_signatures, function_hint, impure_calls, is_time_of_now
from watersmeet.locations import find_missing, hint_for_missing
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import CalledFunction, Script
from watersmeet.logical.passes.column_types import example_lag, fits, time_type_of, wrong_unit
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.settings import warn_deprecated_settings, warn_unknown_zone
from watersmeet.logical.passes.watermarks import check_heartbeats
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, Output, QueryWarning
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedRelation,
    AnalyzedView,
    ConditionalJoin,
    joins,
)
from watersmeet.logical.words import amount_in_words


def check_declarations(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """The refusals of the sources and sinks themselves."""
    return (
        *_duplicates(script, "stream or table", script.sources),
        *_duplicates(script, "sink", script.sinks),
        *_check_folder_names(script),
        *check_heartbeats(script, sources),
        *(refusal for source in (*script.sources, *sources.values()) for refusal in _check_source(script, source)),
        *(refusal for sink in script.sinks for refusal in _check_fields(script, sink)),
    )


def check_references(script: Script) -> None:
    """Refuse options with missing references; separate from the analysis, which does not need them."""
    # Each variable once, however many options refer to it.
    uses: dict[str, list[tuple[str, Place | None]]] = {}
    for declared in (*script.sources, *script.sinks):
        history = declared.history if isinstance(declared, Source) else None
        for name, value in (*declared.options.items(), *(history.options.items() if history is not None else ())):
            for reason in find_missing(value):
                use = (f"The option {name} of {declared.name}", script.place(declared.span))
                uses.setdefault(reason, []).append(use)
    refusals: list[Refusal] = []
    for reason, [(name, place), *more] in uses.items():
        who = f"{name}, like {format_count(len(more), 'other')}," if more else name
        parameters = {"name": who, "reason": reason, "hint": hint_for_missing(reason)}
        refusals.append(Refusal("MISSING_REFERENCE", parameters, place))
    if refusals:
        raise WatersmeetError(refusals)


def _duplicates(script: Script, kind: str, declarations: tuple[Source | Sink, ...]) -> Iterator[Refusal]:
    seen = set[str]()
    for declaration in declarations:
        if declaration.name.lower() in seen:
            yield _duplicate(script, declaration.name, f"a {kind}", "give one of them another name.", declaration.span)
        seen.add(declaration.name.lower())


def _check_folder_names(script: Script) -> Iterator[Refusal]:
    """Refuse names of sinks and tables that are not folder names: checkpoints and stored tables use such folders."""
    tables = (source for source in script.sources if source.kind == "table")
    for kind, declaration in (*(("sink", sink) for sink in script.sinks), *(("table", table) for table in tables)):
        name = declaration.name
        if not is_folder_name(name):
            example = "_".join(re.findall(r"\w+", name)) or "joined"
            parameters = {"what": kind, "name": name, "example": example}
            yield Refusal("WRONG_NAME", parameters, script.place(declaration.span))


_SIZED_TEXT = re.compile(r"\b(VARCHAR|CHAR)\(\d+\)")
_CHAR_AS_STRING = "spark.sql.legacy.charvarcharasstring"


def _check_sized_text(script: Script, source: Source) -> Iterator[Refusal]:
    """CHAR and VARCHAR, which Spark reads from no source; a table of a lake brings its own types."""
    is_string = any(s.name.lower() == _CHAR_AS_STRING and s.value.lower() == "true" for s in script.settings)
    if source.format is None or isinstance(source_format(source), DeltaSource | IcebergSource) or is_string:
        return
    for match in (match for field in source.fields for match in _SIZED_TEXT.finditer(field.type)):
        parameters = {"type": match[0], "hint": f"write STRING: Spark reads no {match[1]} from {source.format}."}
        yield Refusal("UNKNOWN_TYPE", parameters, script.place(source.span))


def _check_source(script: Script, source: Source) -> Iterator[Refusal]:
    yield from _check_fields(script, source)
    yield from _check_sized_text(script, source)
    yield from (replace(wrong, place=script.place(source.span)) for wrong in check_source(source))
    span = source.span if source.history is None else source.history.span
    yield from (replace(wrong, place=script.place(span)) for wrong in check_history(source))
    yield from _check_order(script, source)
    for name in source.primary_key:
        if source.field(name) is None:
            yield _unknown_column(script, name, source, source.span)
    columns = [watermark.column.lower() for watermark in source.watermarks]
    for i, watermark in enumerate(source.watermarks):
        if watermark.column.lower() in columns[:i]:
            hint = f"keep one `WATERMARK FOR {watermark.column}`."
            yield _duplicate(script, watermark.column, "a watermarked column", hint, watermark.span)
        yield from check_watermark(script, source, watermark)


def _check_fields(script: Script, owner: Source | Sink) -> Iterator[Refusal]:
    seen = set[str]()
    for field in owner.fields:
        is_seen = field.name.lower() in seen
        seen.add(field.name.lower())
        if is_seen:
            yield _duplicate(
                script, field.name, f"a column of {owner.name}", "give one of them another name.", owner.span
            )


def _check_order(script: Script, source: Source) -> Iterator[Refusal]:
    if source.order is None:
        return
    field = source.field(source.order)
    if field is None:
        yield _unknown_column(script, source.order, source, source.order_span)
    elif time_type_of(field.type) is None:
        hint = "order it by a column of an integer type, TIMESTAMP or DATE."
        reason = f"`{field.name}` is {field.type}, which has no order"
        parameters = {"what": source.name, "reason": reason, "cause": f"{field.type}", "hint": hint}
        yield Refusal("WRONG_ORDER", parameters, script.place(source.order_span) or script.place(source.span))


def _unknown_column(script: Script, name: str, source: Source, span: Span) -> Refusal:
    suggestion = did_you_mean(name, [f.name for f in source.fields])
    parameters = {"column": name, "where": f"in {source.name}", "suggestion": suggestion}
    return Refusal("UNKNOWN_COLUMN", parameters, script.place(span) or script.place(source.span))


def check_watermark(script: Script, source: Source, watermark: Watermark) -> Iterator[Refusal]:
    """The refusals of a watermark, declared by its source or by a query."""
    place = script.place(watermark.span) or script.place(source.span)
    field = source.field(watermark.column)
    if field is None:
        yield _unknown_column(script, watermark.column, source, watermark.span)
        return
    family = time_type_of(field.type)
    if family is None:
        # Only Spark knows the type of a computed column of a view, unless it is a cast.
        type_name = field.type or f"not known before it runs; write `CAST({field.name} AS TIMESTAMP)` in the view"
        yield Refusal("WRONG_EVENT_TIME", {"column": field.name, "type": type_name}, place)
    elif not fits(watermark.lag, family):
        lag = f"A lag of {amount_in_words(watermark.lag)}"
        hint = f"write {example_lag(field.name, family)}."
        parameters = {"what": lag, "column": field.name, "type": field.type, "hint": hint}
        yield Refusal("WRONG_TIME_UNIT", {**parameters, "cause": wrong_unit(watermark.lag)}, place)


def _duplicate(script: Script, name: str, before: str, hint: str, span: Span) -> Refusal:
    return Refusal("DUPLICATE_NAME", {"name": name, "before": before, "hint": hint}, script.place(span))


@dataclass(frozen=True)
class Suspicions:
    """Likely mistakes in a script: refusals and warnings."""

    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[QueryWarning, ...] = ()


def find_suspicions(script: Script, *, may_add_functions: bool = False) -> Suspicions:
    """The likely mistakes in a script; ``may_add_functions``: Spark may have user-defined functions."""
    calls = [(call, wrong) for call in script.calls for wrong in _check_call(script, call)]
    histories = tuple(history_source(source) for source in script.sources if source.history is not None)
    declared: tuple[Source | Sink, ...] = (*script.sources, *histories, *script.sinks)
    refusals = [
        wrong
        for declaration in declared
        for wrong in (*_check_format(script, declaration), *_check_options(script, declaration))
    ]
    warnings = [warned for declaration in declared for warned in _warn_unknown_options(script, declaration)]
    warnings += [*warn_deprecated_settings(script), *warn_unknown_zone(script)]
    if may_add_functions:
        warnings += [
            QueryWarning(f"{wrong.message} Unless you register it: {wrong.hint}", call.span) for call, wrong in calls
        ]
    else:
        refusals += [wrong for _, wrong in calls]
    return Suspicions(tuple(refusals), tuple(warnings))


def _check_call(script: Script, call: CalledFunction) -> Iterator[Refusal]:
    """A function that Spark does not have by itself, or has with another number of arguments."""
    place, counts = script.place(call.span), builtin_signatures().get(call.name.lower())
    if counts is None:
        yield Refusal("UNKNOWN_FUNCTION", {"function": call.name, "hint": function_hint(call.name)}, place)
    elif counts and call.count is not None and call.count not in counts:
        expected = " or ".join(str(count) for count in sorted(counts))
        examples = "abcdefghijklmnopqrst"[: min(counts, key=lambda count: abs(count - (call.count or 0)))]
        parameters = {
            "function": call.name,
            "expected": f"{expected} {'argument' if expected == '1' else 'arguments'}",
            "count": str(call.count),
            "example": f"{call.name}({', '.join(examples)})",
        }
        yield Refusal("WRONG_CALL", parameters, place)


def _check_format(script: Script, declared: Source | Sink) -> Iterator[Refusal]:
    """Refuse an unknown format whose name is close to a known one."""
    format_ = (declared.format or "").lower()
    formats = {*format_names(), *OPTIONS, "jdbc", "memory", "noop", "postgres", "iceberg", "hudi"}
    if format_ in formats or (isinstance(declared, Sink) and not sink_format(declared).is_spark_format):
        return
    near = get_close_matches(format_, formats, n=1, cutoff=0.7) if "." not in format_ else []
    if near:
        parameters = {"format": str(declared.format), "hint": f"did you mean `{near[0]}`?"}
        yield Refusal("UNKNOWN_FORMAT", parameters, script.place(_span_of_name(script, declared, str(declared.format))))


def _check_options(script: Script, declared: Source | Sink) -> Iterator[Refusal]:
    """Options that a format does not have, each nearly one that it has, and those without which it cannot be."""
    unknown = _unknown(declared)
    for name, suggestion in unknown.items():
        if suggestion is not None:
            reason = f"it has no option `{name}`, so that would have no effect"
            parameters = {"option": name, "reason": reason, "hint": f"did you mean `{suggestion}`?"}
            place = script.place(_span_of_name(script, declared, name))
            yield Refusal("WRONG_OPTION", {"format": str(declared.format), **parameters}, place)
    for names in NEEDED.get((declared.format or "").lower(), ()):
        # A source and a sink use different options: topics are subscribed to, or written to.
        usual = names[0] if isinstance(declared, Source) else names[-1]
        if not set(names) & declared.lowercase_options.keys() and not set(names) & {*unknown.values()}:
            reason = f"the option `{usual}` is missing, so there is nothing to {_verb(declared)}"
            hint = f"write `OPTIONS ({usual} '{_EXAMPLES.get(usual, '...')}')`."
            parameters = {"option": f"USING {declared.format}", "reason": reason, "hint": hint}
            yield Refusal("WRONG_OPTION", {"format": str(declared.format), **parameters}, script.place(declared.span))


_EXAMPLES = {"path": "data/orders", "kafka.bootstrap.servers": "host:9092", "subscribe": "orders", "topic": "orders"}


def _verb(declared: Source | Sink) -> str:
    return "read" if isinstance(declared, Source) else "write to"


def _warn_unknown_options(script: Script, declared: Source | Sink) -> Iterator[QueryWarning]:
    for name, suggestion in _unknown(declared).items():
        if suggestion is None:
            message = f"`{name}` is not a known option of {declared.format}; Spark ignores unknown options."
            yield QueryWarning(message, _span_of_name(script, declared, name))


def _span_of_name(script: Script, declared: Source | Sink, name: str) -> Span:
    """The last occurrence of this name in the declaration: its format and options follow its columns."""
    start = script.text.rfind(name, declared.span.start, declared.span.end)
    return declared.span if start < 0 else Span(start, start + len(name))


def _unknown(declared: Source | Sink) -> dict[str, str | None]:
    own = OWN if isinstance(declared, Source) else OWN_OF_SINKS
    return unknown_options(declared.format or "", tuple(declared.options), own)


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
        # The result of an aggregate is stored; its arguments are computed for each row.
        arguments = () if group is None else (arg for call in group.aggregates for arg in call.expr.inputs)
        of_rows = shown if group is None else (*(by.expr for by in group.by), *arguments)
        yield from (Recomputation(expr, rows) for expr in of_rows)
    if group is not None:
        # Group columns and aggregates are columns of the groups here.
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
    """Refuse random parts of ON over no side: each side would draw its own value, where SQL has one per pair."""
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
    """The position of a call in the script: inside its expression if that occurs there verbatim."""
    span = expr.span
    is_verbatim = span != NOWHERE and script.text[span.start : span.start + len(expr.text)] == expr.text
    return replace(span, start=span.start + call.start, end=span.start + call.end) if is_verbatim else span
