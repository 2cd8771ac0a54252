"""Window joins: two sources with windows, what they are padded with, and in which order their rows arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from watersmeet.analyze.column_types import class_of, type_of
from watersmeet.analyze.conditions import SPLIT_HINT, check_residual, not_evaluated
from watersmeet.analyze.draft import Draft, format_list
from watersmeet.analyze.event_time import is_sound, time_type_of
from watersmeet.analyze.family import BuildResult, FamilyAnalysis
from watersmeet.analyze.meaning import (
    TRUE,
    ResolvedRelation,
    check_names,
    is_resolved,
    resolve_condition,
    resolve_expression,
)
from watersmeet.analyze.scope import Scope, make_extra_columns
from watersmeet.analyze.settings import SettingSpec, choice
from watersmeet.analyze.sides import check_values, with_declared_names
from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.families.window.checks import (
    build_window,
    check_clauses,
    check_outputs,
    check_window,
    outputs_of_unmatched,
)
from watersmeet.families.window.relation import (
    PUNCTUATION,
    AnalyzedWindowJoin,
    Pad,
    WindowClause,
    is_windowed,
    punctuation,
    window_of,
    windows_in,
)
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import LEFT_ONLY, PRESERVED, Item, Join, Relation, ResultKind, Scan, Side, Union
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedRelation, ConditionalJoin, Padding, UnboundJoin
from watersmeet.plan.words import expression_in_words, kind_in_words

Sides = tuple[AnalyzedLeaf, AnalyzedLeaf]
Windows = tuple[WindowClause | None, WindowClause | None]

EMIT_DISCARDED = "watersmeet.window.emit_discarded"


class WindowAnalysis(FamilyAnalysis):
    """Joins of sources with windows."""

    family = AnalyzedWindowJoin.family
    settings: ClassVar[Mapping[str, SettingSpec]] = {EMIT_DISCARDED: choice(EMIT_DISCARDED, ("true", "false"), "true")}
    columns = dict.fromkeys(("_trigger", "_seq", "_last"), "only a join of sides with a WINDOW has it.")

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, Join) and bool(windows_in(join))

    def excludes_tables(self, join: Relation) -> str | None:
        """Rows of a table arrive in no order."""
        return "A window join with" if is_windowed(join) else None

    def resolve_names(self, draft: Draft, join: Relation, scopes: tuple[Scope, ...]) -> ResolvedRelation:
        """The condition, and each window in terms of its own side; without a condition all rows meet."""
        if not is_windowed(join):
            return super().resolve_names(draft, join, scopes)
        left, right = scopes
        missing = [*_window_misses(draft, join.left, left, right), *_window_misses(draft, join.right, right, left)]
        join = join.with_inputs([_resolve_window(join.left, left), _resolve_window(join.right, right)])
        named, scope, more = resolve_condition(draft, join, left, right, TRUE)
        first = next(iter(left.sources.values()), Source("", ()))
        return (
            named,
            replace(scope, extra_columns=make_extra_columns(PUNCTUATION, punctuation(first))),
            [*missing, *more],
        )

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        assert isinstance(join, Join)
        left, right = inputs
        if is_windowed(join) and isinstance(left, AnalyzedLeaf) and isinstance(right, AnalyzedLeaf):
            return _window_join(draft, join, (left, right), (window_of(join.left), window_of(join.right)))
        return UnboundJoin(left, right, join.kind, span=join.span), []

    def check_clauses(self, draft: Draft) -> Iterator[Refusal]:
        return check_clauses(draft)

    def check_outputs(self, draft: Draft) -> Iterator[Refusal]:
        """UNMATCHED INTO, and LATE INTO, which it does not have."""
        return check_outputs(draft)

    def check_condition(self, draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
        """What rows stay alone, and how many there are of a trigger, must be known while rows meet."""
        assert isinstance(join, AnalyzedWindowJoin)
        yield from check_residual(draft, join)
        for part, expr in not_evaluated(join) if join.kind == "inner" and join.punctuated else ():
            what = f"`_trigger`, `_seq` or `_last` beside `{expression_in_words(part)}`"
            place, hint = expr.span if expr.span.end else part.span, SPLIT_HINT.format("leave them out")
            yield draft.refuse_unsupported(place, what, hint)

    def comparison_scope(self, draft: Draft, join: ConditionalJoin) -> str | None:
        return "row is compared with the whole window of the other side"


def _resolve_window(side: Relation, scope: Scope) -> Relation:
    """The side with the names in its window resolved: they are columns of its own."""
    window = window_of(side)
    if window is None or not isinstance(side, Scan | Union):
        return side
    return replace(side, clause=window.map_expressions(lambda expr: resolve_expression(expr, scope)))


def _window_misses(draft: Draft, side: Relation, own: Scope, other: Scope) -> Iterator[Refusal]:
    window = window_of(side)
    for expr in () if window is None else window.column_expressions:
        for refusal in check_names(draft.script, expr, own):
            is_other = any(isinstance(other.find(ref.parts), Expr) for ref in expr.references)
            names = " or ".join(source.name for source in own.sources.values())
            hint = f"a window sees its own side only: name a column of {names}."
            parameters = {**refusal.parameters, "suggestion": hint} if is_other else refusal.parameters
            yield replace(refusal, parameters=parameters)


def _window_join(draft: Draft, join: Join, sides: Sides, windows: Windows) -> BuildResult:
    left, right = sides
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    refusals = [*_check_form(draft, join), *_check_missing(draft, join, sides, windows)]
    for scan, window in zip(sides, windows, strict=True):
        refusals += check_window(draft, scan, window) if window is not None and is_sound(scan.source) else ()
    if is_sound(left.source) and is_sound(right.source):
        refusals += [
            *_check_pads(draft, join, sides),
            *_check_order(draft, join, sides),
            *_check_keys(draft, sides, join),
        ]
    if windows[0] is None or windows[1] is None or refusals:
        return UnboundJoin(left, right, join.kind, residual=parts, span=join.span), refusals
    outputs, pads = outputs_of_unmatched(draft.query), {pad.side: pad for pad in _pads(join)}
    return AnalyzedWindowJoin(
        left,
        right,
        join.kind,
        (build_window(left, windows[0]), build_window(right, windows[1])),
        residual=parts,
        paddings=(_padding(pads.get("left"), left.source), _padding(pads.get("right"), right.source)),
        unmatched=("left" in outputs, "right" in outputs),
        punctuated=_is_punctuated(draft),
        order=(_order(left.source), _order(right.source)),
        emit_discarded=draft.setting(EMIT_DISCARDED, "false").lower() == "true",
        span=join.span,
    ), refusals


def _is_punctuated(draft: Draft) -> bool:
    exprs = [item.expr for item in draft.query.items if isinstance(item, Item)]
    where = [] if draft.query.where is None else [draft.query.where]
    return any(PUNCTUATION in expr.sources for expr in (*exprs, *where))


def _pads(join: Join) -> list[Pad]:
    return [clause for clause in join.clauses if isinstance(clause, Pad)]


def _padding(pad: Pad | None, source: Source) -> Padding:
    if pad is None:
        return "nulls"
    return pad.values if isinstance(pad.values, str) else with_declared_names(pad.values, source)


def _order(source: Source) -> str | None:
    """The column that orders a source, spelled as it was declared."""
    field = source.field(source.order) if source.order is not None else None
    return None if field is None else field.name


def _check_form(draft: Draft, join: Join) -> Iterator[Refusal]:
    if join.kind in LEFT_ONLY:
        what, hint = f"A {kind_in_words(join.kind)} JOIN of windows", "write JOIN or LEFT JOIN, and filter with WHERE."
        yield draft.refuse_unsupported(join.span, what, hint)
    if join.within is not None:
        hint = "leave it out: the windows say how long rows stay. A bound on times may stand in ON."
        yield draft.refuse_unsupported(join.within.span, "WITHIN of a window join", hint)


def _check_missing(draft: Draft, join: Join, sides: Sides, windows: Windows) -> Iterator[Refusal]:
    left, right = (draft.name_of(scan.alias) for scan in sides)
    for scan, window in zip(sides, windows, strict=True):
        if window is None:
            names = {"kind": kind_in_words(join.kind), "left": left, "right": right}
            yield draft.refusal("MISSING_WINDOW", join.span, **names, side=draft.name_of(scan.alias))


def _check_pads(draft: Draft, join: Join, sides: Sides) -> Iterator[Refusal]:
    kind, outputs = kind_in_words(join.kind), outputs_of_unmatched(draft.query)
    for pad in _pads(join):
        padded, alone = (sides[0], sides[1]) if pad.side == "left" else (sides[1], sides[0])
        other: Side = "right" if pad.side == "left" else "left"
        name, words = draft.name_of(alone.alias), pad.side.upper()
        if join.kind not in PRESERVED[other]:
            reason = f"{kind} JOIN never shows a row of {name} alone"
            hint = f"leave it out, or write {other.upper()} JOIN."
            cause = f"rows of {name} that stay alone are dropped"
            yield draft.refusal("WRONG_PADDING", pad.span, side=words, reason=reason, cause=cause, hint=hint)
        elif other in outputs:
            reason = f"rows of {name} that stay alone go to {outputs[other].sink}, unpaired"
            hint = f"leave out PAD {words} or UNMATCHED {other.upper()} INTO."
            cause = f"beside UNMATCHED {other.upper()} INTO"
            yield draft.refusal("WRONG_PADDING", pad.span, side=words, reason=reason, cause=cause, hint=hint)
        if not isinstance(pad.values, str):
            yield from check_values(draft, pad.values, padded.source, pad.span)


def _check_order(draft: Draft, join: Join, sides: Sides) -> Iterator[Refusal]:
    """Both sides declare an order of the same kind, or none."""
    names = [draft.name_of(scan.alias) for scan in sides]
    what = f"{names[0]} and {names[1]}"
    columns = [scan.source.field(scan.source.order) if scan.source.order else None for scan in sides]
    first, second = columns
    if first is not None and second is not None:
        if time_type_of(first.type) != time_type_of(second.type):
            reason = f"`{first.name}` is {first.type}, `{second.name}` is {second.type}"
            hint = "order both by a column of the same type."
            cause = "compares times of two kinds"
            yield draft.refusal("WRONG_ORDER", join.span, what=what, reason=reason, cause=cause, hint=hint)
        return
    if (first is None) != (second is None):
        ordered, other = names if second is None else names[::-1]
        reason = f"{ordered} declares one, {other} does not"
        parts = [part.name for part in sides[0 if first is None else 1].parts]
        # A union has the order that all of its parts have.
        declared = (
            f"the declarations of {format_list(parts)} with the same" if parts else f"the declaration of {other} with"
        )
        hint = f"end {declared} `ORDER BY column` as well, or leave it out in both."
        cause = f"{other} has no ORDER BY"
        yield draft.refusal("WRONG_ORDER", join.span, what=what, reason=reason, cause=cause, hint=hint)


def _check_keys(draft: Draft, sides: Sides, join: Join) -> Iterator[Refusal]:
    """Equalities of values that are of different kinds, which would compare as one of them by a cast nobody wrote."""
    sources = {scan.alias: scan.source for scan in sides}
    for part in conjuncts(join.on):
        types = [type_of(arg, sources) for arg in part.args] if part.op == "=" and is_resolved(part) else []
        if len(types) != 2 or types[0] is None or types[1] is None or class_of(types[0]) == class_of(types[1]):
            continue
        reason = f"it compares {types[0]} with {types[1]}."
        hint = f"cast one of them, for example `CAST(... AS {types[0]})`."
        yield draft.refusal("TYPE_MISMATCH", part.span, expression="The equality", reason=reason, hint=hint)


ANALYZE = WindowAnalysis()
