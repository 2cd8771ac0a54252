"""Window joins: two sources with windows, their padding, and the order in which their rows arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from watersmeet.catalog import Source, Span
from watersmeet.duration import DAY
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, conjuncts
from watersmeet.logical.nodes import (
    LEFT_ONLY,
    PRESERVED,
    Item,
    Join,
    Lateral,
    Leaf,
    Query,
    Relation,
    ResultKind,
    Scan,
    Side,
    SideOutput,
    Union,
    leaves,
    walk_relations,
)
from watersmeet.logical.passes.column_types import class_of, is_sound, time_type_of, type_of
from watersmeet.logical.passes.conditions import (
    SPLIT_HINT,
    check_residual,
    check_values,
    not_evaluated,
    with_declared_names,
)
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis
from watersmeet.logical.passes.meaning import (
    TRUE,
    ResolvedRelation,
    check_names,
    is_resolved,
    resolve_condition,
    resolve_expression,
)
from watersmeet.logical.passes.scope import Scope, make_extra_columns
from watersmeet.logical.passes.settings import SettingSpec, choice
from watersmeet.logical.passes.sinks import check_columns, wrong_output
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedRelation, ConditionalJoin, Padding, UnboundJoin
from watersmeet.logical.words import amount_in_words, expression_in_words, kind_in_words
from watersmeet.operators.window.relation import (
    LIMITS,
    PUNCTUATION,
    AnalyzedLimit,
    AnalyzedWindow,
    AnalyzedWindowJoin,
    Pad,
    WindowClause,
    is_windowed,
    punctuation,
    window_of,
    windows_in,
)

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
        """Resolve the condition, and each window in terms of its own side; without a condition all rows match."""
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
        """Refuse conditions that the kernel cannot evaluate, as unmatched rows and triggers depend on them."""
        assert isinstance(join, AnalyzedWindowJoin)
        yield from check_residual(draft, join)
        for part, expr in not_evaluated(join) if join.kind == "inner" and join.punctuated else ():
            construct = f"`_trigger`, `_seq` or `_last` next to `{expression_in_words(part)}`"
            place, hint = expr.span if expr.span.end else part.span, SPLIT_HINT.format("leave them out")
            yield draft.refuse_unsupported(place, construct, hint)

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
        construct, hint = (
            f"A {kind_in_words(join.kind)} JOIN of windows",
            "write JOIN or LEFT JOIN, and filter with WHERE.",
        )
        yield draft.refuse_unsupported(join.span, construct, hint)
    if join.within is not None:
        hint = "leave it out: the windows decide how long rows stay. A bound on times may stand in ON."
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
            reason = f"{kind} JOIN never shows an unmatched row of {name}"
            hint = f"leave it out, or write {other.upper()} JOIN."
            cause = f"unmatched rows of {name} are dropped"
            yield draft.refusal("WRONG_PADDING", pad.span, side=words, reason=reason, cause=cause, hint=hint)
        elif other in outputs:
            reason = f"unmatched rows of {name} go to {outputs[other].sink}"
            hint = f"leave out PAD {words} or UNMATCHED {other.upper()} INTO."
            cause = f"together with UNMATCHED {other.upper()} INTO"
            yield draft.refusal("WRONG_PADDING", pad.span, side=words, reason=reason, cause=cause, hint=hint)
        if not isinstance(pad.values, str):
            yield from check_values(draft, pad.values, padded.source, pad.span)


def _check_order(draft: Draft, join: Join, sides: Sides) -> Iterator[Refusal]:
    """Both sides declare an order of the same kind, or none."""
    names = [draft.name_of(scan.alias) for scan in sides]
    sources = f"{names[0]} and {names[1]}"
    columns = [scan.source.field(scan.source.order) if scan.source.order else None for scan in sides]
    first, second = columns
    if first is not None and second is not None:
        if time_type_of(first.type) != time_type_of(second.type):
            reason = f"`{first.name}` is {first.type}, `{second.name}` is {second.type}"
            hint = "order both by a column of the same type."
            cause = "compares times of two kinds"
            yield draft.refusal("WRONG_ORDER", join.span, what=sources, reason=reason, cause=cause, hint=hint)
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
        yield draft.refusal("WRONG_ORDER", join.span, what=sources, reason=reason, cause=cause, hint=hint)


def _check_keys(draft: Draft, sides: Sides, join: Join) -> Iterator[Refusal]:
    """Refuse equalities of different types, which Spark would compare through an implicit cast."""
    sources = {scan.alias: scan.source for scan in sides}
    for part in conjuncts(join.on):
        types = [type_of(arg, sources) for arg in part.args] if part.op == "=" and is_resolved(part) else []
        if len(types) != 2 or types[0] is None or types[1] is None or class_of(types[0]) == class_of(types[1]):
            continue
        reason = f"it compares {types[0]} with {types[1]}."
        hint = f"cast one of them, for example `CAST(... AS {types[0]})`."
        yield draft.refusal("TYPE_MISMATCH", part.span, expression="The equality", reason=reason, hint=hint)


ANALYZE = WindowAnalysis()


# Windows: what their sizes, columns and limits mean, and where their clauses and outputs have no meaning.


def check_clauses(draft: Draft) -> Iterator[Refusal]:
    """Windows and PAD elsewhere than in a join of two sources, which is the whole query."""
    yield from _check_windows(draft)
    for join in walk_relations(draft.query.relation):
        for clause in join.clauses if isinstance(join, Join) and not windows_in(join) else ():
            if isinstance(clause, Pad):
                hint = "write `coalesce(column, value)` in SELECT."
                yield draft.refuse_unsupported(clause.span, "PAD of a join without windows", hint)


def _check_windows(draft: Draft) -> Iterator[Refusal]:
    relation = draft.query.relation
    windows = windows_in(relation)
    if not windows or (isinstance(relation, Join) and len(leaves(relation)) == 2):
        return
    construct = "A chain of joins with windows"
    hint = "write the result of the first join to a sink, and join the stream that reads it."
    if isinstance(relation, Leaf | Lateral):
        construct, hint = "WINDOW without a join", "leave it out, or join with another source that has a window."
    elif not isinstance(relation, Join):
        construct, hint = "WINDOW of a join by time", "leave it out: event times decide how long rows stay."
    yield draft.refuse_unsupported(windows[0].span, construct, hint)


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """LATE INTO of a window join, and UNMATCHED INTO."""
    query = draft.query
    if query.late_into is not None and is_windowed(query.relation):
        hint = "leave LATE INTO out: windows follow the arrival order, so no row is late."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO of a window join", hint)
    yield from _check_unmatched(draft)


def outputs_of_unmatched(query: Query) -> dict[Side, SideOutput]:
    """The side outputs of unmatched rows, by side."""
    sides: dict[str, Side] = {"UNMATCHED LEFT": "left", "UNMATCHED RIGHT": "right"}
    return {sides[output.of]: output for output in query.side_outputs if output.of in sides}


def _check_unmatched(draft: Draft) -> Iterator[Refusal]:
    relation, outputs = draft.query.relation, outputs_of_unmatched(draft.query)
    if windows_in(relation) and len(leaves(relation)) != 2:
        # Windows elsewhere than in a join of two sources have been refused.
        return
    if not is_windowed(relation):
        for side, output in outputs.items():
            construct = f"UNMATCHED {side.upper()} INTO of a join without windows"
            hint = "leave it out: unmatched rows are padded with NULL."
            yield draft.refuse_unsupported(output.span, construct, hint)
        return
    for side, output in outputs.items():
        name, span = output.sink, output.span
        leaf = leaves(relation)[0 if side == "left" else 1]
        source = draft.scope.sources.get(leaf.alias, Source(leaf.alias, ()))
        construct = f"UNMATCHED {side.upper()} INTO {name}"
        if relation.kind not in PRESERVED[side]:
            kind = kind_in_words(relation.kind)
            reason = f"{kind} JOIN drops unmatched rows of {source.name}"
            hint = f"leave it out, or write {side.upper()} or FULL JOIN."
            yield wrong_output(draft, span, construct, reason, f"{source.name} is not preserved", hint)
        elif relation.kind == "full" and len(outputs) == 1:
            other = "RIGHT" if side == "left" else "LEFT"
            reason = "unmatched rows of the other side would appear among the pairs"
            hint = f"add `UNMATCHED {other} INTO sink`, or leave both out."
            yield wrong_output(draft, span, construct, reason, f"no UNMATCHED {other} INTO", hint)
        yield from check_columns(draft, name, span, construct, source)


NESTED = frozenset({"array", "map", "struct", "variant"})


def build_window(scan: AnalyzedLeaf, window: WindowClause) -> AnalyzedWindow:
    """The window of a side, with its sizes in units; `check_window` has refused invalid ones."""
    limit = None if window.limit is None else AnalyzedLimit(window.limit.kind, window.limit.amount.value)
    size = window.amount.value
    if window.kind == "delta" and _column_type(scan, window).upper() == "DATE" and not window.amount.is_interval:
        # A plain number is days for a DATE, as in Spark.
        size *= DAY
    return AnalyzedWindow(window.kind, size, window.column, window.partition_by, limit)


def check_window(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
    """The reason why the window of a side has no meaning."""
    amount, shown = window.amount, amount_in_words(window.amount)
    if amount.value < 0:
        yield _wrong(draft, scan, window.span, "a size cannot be negative", f"{shown} is below zero", "write 0.")
    elif window.kind == "count" and amount.is_interval:
        hint = f"write `TIME {shown}`, or a number of rows."
        yield _wrong(draft, scan, window.span, "COUNT counts rows", f"{shown} is a duration", hint)
    elif window.kind == "time" and not amount.is_interval:
        hint = f"give it a unit, `TIME {shown}s`, or write `COUNT {shown}`."
        yield _wrong(draft, scan, window.span, "TIME needs a duration", f"{shown} has no unit", hint)
    elif window.kind == "delta":
        yield from _check_delta(draft, scan, window)
    yield from _check_partitions(draft, scan, window)


def _check_delta(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
    column = window.column
    if column is None:
        hint = "write the column that is measured, then a size: `DELTA sold_at 10s`."
        yield _wrong(draft, scan, window.span, "DELTA measures a column", "no column", hint)
        return
    if not is_resolved(column):
        return
    name, type_ = expression_in_words(column), _column_type(scan, window)
    family, amount = time_type_of(type_), window.amount
    if family is None:
        reason = f"values of `{name}` have no distance"
        hint = "measure a column of an integer type, TIMESTAMP or DATE; or cast this one in its source."
        yield _wrong(draft, scan, column.span if column.span.end else window.span, reason, f"{type_}", hint)
    elif amount.is_interval == (family == "integer") and family != "date":
        reason = f"`{name}` of type {type_} is not measured in that unit"
        hint = "write a plain number." if amount.is_interval else f"give it a unit, for example `{amount.value}s`."
        yield _wrong(draft, scan, window.span, reason, f"a distance of {amount_in_words(amount)}", hint)


def _check_partitions(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
    sources = {scan.alias: scan.source}
    for expr in window.partition_by:
        type_ = type_of(expr, sources) if is_resolved(expr) else None
        if type_ is not None and class_of(type_) in NESTED:
            reason = f"`{expression_in_words(expr)}` cannot be a partition key"
            hint = "name a field inside it, or another column."
            yield _wrong(draft, scan, expr.span if expr.span.end else window.span, reason, type_, hint)
    limit = window.limit
    if limit is None:
        return
    words, shown = LIMITS[limit.kind], amount_in_words(limit.amount)
    if not window.partition_by:
        reason, hint = f"{words} discards partitions, but there are none", f"write PARTITION BY before {words}."
        yield _wrong(draft, scan, limit.span, reason, "no PARTITION BY", hint)
    if limit.kind == "age" and not limit.amount.is_interval:
        hint = f"give it a unit: `PARTITION AGE {shown}s`."
        yield _wrong(draft, scan, limit.span, "an age is a duration", f"{shown} has no unit", hint)
    elif limit.kind != "age" and (limit.amount.value <= 0 or limit.amount.is_interval):
        yield _wrong(draft, scan, limit.span, f"{words} needs a number above 0", shown, f"write `{words} 100`.")


def _column_type(scan: AnalyzedLeaf, window: WindowClause) -> str:
    type_ = type_of(window.column, {scan.alias: scan.source}) if window.column is not None else None
    return type_ or "a type that only Spark knows"


def _wrong(draft: Draft, scan: AnalyzedLeaf, span: Span, reason: str, cause: str, hint: str) -> Refusal:
    side = draft.name_of(scan.alias)
    return draft.refusal("WRONG_WINDOW", span, side=side, reason=reason, cause=cause, hint=hint)
