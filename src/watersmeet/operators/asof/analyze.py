"""The as-of join: each row with the version that is in force at its time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, conjuncts
from watersmeet.logical.nodes import ClauseExpr, JoinKind, ParsedJoin, Relation, ResultKind, Values
from watersmeet.logical.passes.column_types import EventTimeColumn, event_times, find_event_time, is_sound
from watersmeet.logical.passes.comparisons import compare
from watersmeet.logical.passes.conditions import (
    check_families,
    check_residual,
    check_values,
    check_within,
    with_declared_names,
)
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis, Sources
from watersmeet.logical.passes.meaning import (
    TRUE,
    ResolvedRelation,
    check_names,
    is_resolved,
    resolve_condition,
    resolve_expression,
)
from watersmeet.logical.passes.scope import Scope
from watersmeet.logical.passes.views import as_source
from watersmeet.logical.passes.watermarks import (
    add_watermark,
    show_event_time,
    sources_without_watermark,
    time_family,
    watermark_hint,
    watermark_only_time,
)
from watersmeet.logical.query import AnalyzedQuery, per_key
from watersmeet.logical.relation import (
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedView,
    ConditionalJoin,
    Padding,
    StateBound,
    TimeColumn,
    UnboundJoin,
    scans,
)
from watersmeet.logical.words import expression_in_words, kind_in_words, word

Direction = Literal["backward", "forward", "nearest"]
"""The version an as-of join picks: the latest at or before the time, the earliest at or after it, or the closer one."""


@dataclass(frozen=True)
class ParsedAsofJoin(ParsedJoin):
    """``left [LEFT] ASOF JOIN right``: each left row with the version of the right side in force at its time.

    - ``within``: how far away a version may be
    - ``match``: the comparison of MATCH_CONDITION, or ``nearest(left time, right time)``
    - ``as_of``: the time of FOR SYSTEM_TIME AS OF, which replaces ``match``
    - ``defaults``: the values of right columns where there is no version
    """

    match: Expr | None = None
    as_of: Expr | None = None
    defaults: Values = ()

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The condition, and the time of the version."""
        clauses = (("MATCH_CONDITION", self.match), ("AS OF", self.as_of))
        return (*((words, expr) for words, expr in clauses if expr is not None), *super().expressions)


@dataclass(frozen=True)
class AnalyzedAsofJoin(ConditionalJoin):
    """Each left row with the version of the right side that is in force at its time; ``kind`` is inner or left.

    - ``left_time``, ``right_time``: the event times that are compared; ``strict``: equal times do not count
    - ``tolerance``: how far away a version may be, in the unit of the times (microseconds for DATE); None: any distance
    - ``left_only``: where one is not true, the row has no version
    - ``right_only``, ``residual``: where one is not true of the version in force, the left row has no version
    - ``defaults``: the values of right columns without a version (see `Padding`); the others are NULL
    """

    family: ClassVar[str] = "asof"

    right: AnalyzedLeaf
    left_time: TimeColumn
    right_time: TimeColumn
    direction: Direction = "backward"
    strict: bool = False
    tolerance: int | None = None
    defaults: Values = ()

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """The latest version of each key must be stored, unless a tolerance or the direction bounds it."""
        if self.direction == "forward" or self.tolerance is not None:
            return super().state_bounds
        return (*super().state_bounds, per_key([right for _, right in self.keys], "version"))

    def pads(self, port: int) -> Padding | None:
        """The defaults where there is no version."""
        return (self.defaults or "nulls") if port == 1 and self.kind == "left" else None

    def is_key(self, pair: tuple[Expr, Expr]) -> bool:
        """Whether an equality identifies versions: of a table, only its primary key does."""
        key = {name.lower() for name in self.right.source.primary_key}
        other = pair[1]
        return not key or (other.op == "column" and not other.refs[0].path and other.refs[0].name.lower() in key)

    def can_push_down_filter(self, port: int) -> bool:
        """Of the versions none may be missing: each ends the life of the one before."""
        return port == 0

    def shows_times(self, port: int) -> bool:
        """The versions that are shown come in no order."""
        return port == 0


# As-of joins: which times are compared, in which direction, and how far away a version may be.


_NEAREST = re.compile(r"nearest\s*\(\s*\?\s*,\s*\?\s*\)", re.IGNORECASE)


class AsofAnalysis(FamilyAnalysis):
    """The analysis of ASOF JOIN and FOR SYSTEM_TIME AS OF."""

    family = AnalyzedAsofJoin.family

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, ParsedAsofJoin)

    def resolve_names(self, draft: Draft, join: Relation, scopes: tuple[Scope, ...]) -> ResolvedRelation:
        """Resolve the names of the condition and of the time of the version."""
        assert isinstance(join, ParsedAsofJoin)
        left, right = scopes
        both = left.combine(right)
        exprs = [expr for expr in (join.match, join.as_of) if expr is not None]
        missing = [miss for expr in exprs for miss in check_names(draft.script, expr, both)]
        match = None if join.match is None else resolve_expression(join.match, both)
        as_of = None if join.as_of is None else resolve_expression(join.as_of, both)
        named, scope, more = resolve_condition(draft, replace(join, match=match, as_of=as_of), left, right, TRUE)
        return named, scope, [*missing, *more]

    def assume_watermarks(self, draft: Draft, join: Relation, sources: Sources) -> Sources:
        """The times that a match condition compares; of FOR SYSTEM_TIME, the only time of the versions."""
        assert isinstance(join, ParsedAsofJoin)
        condition = join.match if join.as_of is None else join.as_of
        for ref in condition.references if condition is not None and is_resolved(condition) else ():
            if not ref.path and time_family(ref, sources) is not None:
                sources = add_watermark(sources, ref.source, ref.name)
        return sources if join.as_of is None else watermark_only_time(join.right, sources)

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        left, right = inputs
        assert isinstance(join, ParsedAsofJoin) and isinstance(right, AnalyzedLeaf)
        joined, refusals = _asof_join(draft, join, left, _as_versions(right))
        return joined, _table_on_the_left(draft, join, left, right) or refusals

    def check_condition(self, draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
        assert isinstance(join, AnalyzedAsofJoin)
        return _check_versions(draft, join)


@dataclass(frozen=True)
class _Match:
    """A match condition: the event times of both sides, and the direction."""

    left: EventTimeColumn
    right: EventTimeColumn
    direction: Direction
    strict: bool = False


def _as_versions(right: AnalyzedLeaf) -> AnalyzedLeaf:
    """The versions of a view that shows the latest row of each key by event time: all rows that it chooses among.

    Its key is then the primary key of the leaf. Any other relation stays as it is.
    """
    query = right.query if isinstance(right, AnalyzedView) else None
    top = None if query is None else query.top
    if query is None or query.group is not None or not isinstance(query.relation, AnalyzedView) or query.where:
        return right
    rows = query.relation
    if top is None:
        return _as_projected_versions(right, query, rows)
    is_latest = (top.limit, top.offset, top.ties, top.within, top.rank, len(top.order)) == (1, 0, False, None, None, 1)
    is_latest = is_latest and top.order[0].descending
    if not is_latest or rows.result == "table" or find_event_time(top.order[0].expr, event_times(rows)) is None:
        return right
    shown = {output.expr.refs[0].column: output.name for output in query.outputs if output.expr.op == "column"}
    names = [{shown[c] for c in rows.equal_columns(by.expr.refs[0].column) if c in shown} for by in top.by]
    if not names or not all(names):
        return right
    versions = replace(query, top=None, result="stream")
    source = replace(as_source(right.source.name, versions, right.source.span), primary_key=tuple(map(min, names)))
    return show_event_time(AnalyzedView(right.alias, source, versions))


def _as_projected_versions(right: AnalyzedLeaf, query: AnalyzedQuery, rows: AnalyzedView) -> AnalyzedLeaf:
    """The versions of a view that shows columns of another one with the latest rows."""
    versions = _as_versions(rows)
    # A filter of the latest rows would leave an older version of a key in force.
    if versions is rows or rows.filters:
        return right
    shown = {output.expr.refs[0].column: output.name for output in query.outputs if output.expr.op == "column"}
    names = [shown.get(f"{versions.alias}.{name}") for name in versions.source.primary_key]
    if not all(names):
        return right
    query = replace(query, relation=versions, result="stream")
    source = replace(
        as_source(right.source.name, query, right.source.span),
        primary_key=tuple(name for name in names if name is not None),
    )
    return show_event_time(AnalyzedView(right.alias, source, query))


def _asof_join(draft: Draft, join: ParsedAsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf) -> BuildResult:
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    refusals = list(_check_form(draft, join, right))
    is_known = all(is_sound(scan.source) for scan in (*scans(left), right))
    match = _match(draft, join, left, right) if is_known and not refusals else None
    refusals += [match] if isinstance(match, Refusal) else []
    if not isinstance(match, _Match):
        return UnboundJoin(left, right, join.kind, residual=parts, span=join.span), refusals
    refusals += _check_times(draft, join, left, right, match)
    return AnalyzedAsofJoin(
        left,
        right,
        join.kind,
        match.left.column,
        match.right.column,
        direction=match.direction,
        strict=match.strict,
        tolerance=None if join.within is None else join.within.amount.value,
        residual=parts,
        defaults=with_declared_names(join.defaults, right.source),
        span=join.span,
    ), refusals


def _check_versions(draft: Draft, join: AnalyzedAsofJoin) -> Iterator[Refusal]:
    """Refuse conditions that do not identify versions: a part of a table's key, and what only Spark evaluates."""
    yield from check_residual(draft, join)
    source = join.right.source
    named = [b.refs[0].name for _, b in join.keys if b.op == "column" and not b.refs[0].path]
    if (source.kind != "table" and not source.primary_key) or _is_whole_key(source, named):
        return
    cause = f"not the primary key of {source.name}" if source.primary_key else f"{source.name} has no PRIMARY KEY"
    example = " AND ".join(f"... = {join.right.alias}.{name}" for name in source.primary_key)
    hint = f"write `ON {example}`."
    if not source.primary_key:
        hint = f"add `PRIMARY KEY ({', '.join(named) or 'id'})` to the columns of {source.name}."
    yield _wrong(draft, join.span, join.kind, join.left, join.right, cause, hint)


def _table_on_the_left(
    draft: Draft, join: ParsedAsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf
) -> list[Refusal]:
    if left.result == "stream":
        return []
    construct = f"An as-of join of the table {draft.names_of(left.aliases)}"
    hint = "put a stream on its left, or write JOIN: rows of a table have no time to look up a version at."
    names = left.source.primary_key if isinstance(left, AnalyzedLeaf) else ()
    compared = _backward_times(join, frozenset(left.aliases))
    if right.result == "table" and names and compared is not None:
        own, since, test = compared
        key = ", ".join(f"{word(left.aliases[0])}.{word(name)}" for name in names)
        first = f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {since} DESC) = 1"
        kind = "LEFT JOIN" if join.kind == "left" else "JOIN"
        hint = f"write {kind} with `AND {since} {test} {own}` in ON, and behind WHERE `QUALIFY {first}`."
    return [draft.refuse_unsupported(join.span, construct, hint)]


def _backward_times(join: ParsedAsofJoin, left: frozenset[str]) -> tuple[str, str, str] | None:
    """The times of a match condition that looks back, the left one first, and how the right one compares with it."""
    comparison = None if join.match is None or not is_resolved(join.match) else compare(join.match)
    if comparison is None or comparison.direction == "=" or not comparison.high.sources <= left:
        return None
    own, since = expression_in_words(comparison.high), expression_in_words(comparison.low)
    return own, since, "<" if comparison.direction == ">" else "<="


def _is_whole_key(source: Source, named: list[str]) -> bool:
    key = {name.lower() for name in source.primary_key}
    return bool(key) and key == {name.lower() for name in named}


def _check_form(draft: Draft, join: ParsedAsofJoin, right: AnalyzedLeaf) -> Iterator[Refusal]:
    if join.kind not in ("inner", "left"):
        construct = (
            f"A {kind_in_words(join.kind)} {'ASOF JOIN' if join.as_of is None else 'JOIN FOR SYSTEM_TIME AS OF'}"
        )
        hint = "write LEFT, with the side whose rows are kept on the left."
        yield draft.refuse_unsupported(join.span, construct, hint)
    elif join.kind == "inner" and join.defaults:
        span = join.defaults[0][1].span
        construct, hint = (
            "DEFAULT of an inner as-of join",
            "write LEFT, or leave DEFAULT out: rows without a version are dropped.",
        )
        yield draft.refuse_unsupported(join.span if span == NOWHERE else span, construct, hint)
    if is_sound(right.source):
        yield from check_values(draft, join.defaults, right.source, join.span)


def _match(draft: Draft, join: ParsedAsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf) -> _Match | Refusal | None:
    """The match condition; None where a name in it is not resolved."""
    missing = next(_check_watermarks(draft, join, left, right), None)
    if missing is not None:
        return missing
    condition = join.match or join.as_of
    if condition is not None and not is_resolved(condition):
        return None
    own, versions = event_times(left), event_times(right)
    if not own or not versions:
        # A side that shows no time is a table, or a join whose result has none; that is refused as such.
        return None
    span = condition.span if condition is not None and condition.span != NOWHERE else join.span
    match = _as_of(join.as_of, own, versions) if join.as_of is not None else _compare_times(join.match, own, versions)
    if isinstance(match, _Match):
        return check_families(draft, match.right, match.left, span) or match
    example = f"{own[0]} >= {versions[0]}"
    hint = f"write `FOR SYSTEM_TIME AS OF {own[0]}`." if join.as_of else f"write `MATCH_CONDITION ({example})`."
    return _wrong(draft, span, join.kind, left, right, match, hint)


def _check_watermarks(
    draft: Draft, join: ParsedAsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf
) -> Iterator[Refusal]:
    names = _names(draft, left, right)
    refs = [ref for expr in (join.match, join.as_of) if expr is not None for ref in expr.references]
    for leaf in (*sources_without_watermark(left), *sources_without_watermark(right)):
        hint = watermark_hint(leaf, [ref.name for ref in refs if ref.source == leaf.alias])
        if leaf is right and leaf.result == "table" and not isinstance(leaf, AnalyzedView) and left.result == "stream":
            hint = f"{hint.rstrip('.')}; or write `FOR SYSTEM_TIME AS OF PROCTIME()` for the row of the moment."
        if leaf is right and leaf.result == "table" and isinstance(leaf, AnalyzedView):
            # The changes of such a view have no event time.
            hint = (
                "join with the stream or the table of versions that the view reads, or make the view a stream: "
                "`SELECT STREAM` with a window in GROUP BY."
            )
        words = {"kind": _kind(join.kind), "side": draft.name_of(leaf.alias)}
        yield draft.refusal("MISSING_WATERMARK", join.span, **names, **words, hint=hint)
    times = event_times(right)
    if join.as_of is not None and len(times) > 1:
        columns = format_list([str(time) for time in times])
        hint = f"write ASOF JOIN with `MATCH_CONDITION ({expression_in_words(join.as_of)} >= {times[0]})`."
        words = {"join": "FOR SYSTEM_TIME AS OF", "side": names["right"], "columns": columns}
        yield draft.refusal("NEEDS_ONE_TIME", join.span, **words, hint=hint)


def _as_of(time: Expr, own: tuple[EventTimeColumn, ...], versions: tuple[EventTimeColumn, ...]) -> _Match | str:
    event_time = find_event_time(time, own)
    if event_time is None:
        return f"not an event time: {format_list([str(time) for time in own], 'or')}"
    return _Match(event_time, versions[0], "backward")


def _compare_times(
    match: Expr | None, own: tuple[EventTimeColumn, ...], versions: tuple[EventTimeColumn, ...]
) -> _Match | str:
    """The match condition, or the reason why it is not one."""
    if match is None:
        return "no MATCH_CONDITION"
    if match.op == "other" and _NEAREST.fullmatch(match.sql(lambda ref: "?")):
        first, second = (_column(ref) for ref in match.refs)
        return _pair(first, second, own, versions, "nearest")
    comparison = compare(match)
    if comparison is None or comparison.direction == "=" or comparison.constants or comparison.casts:
        return "not a comparison of two event times by <, <=, > or >=, nor nearest(...)"
    return _pair(comparison.high, comparison.low, own, versions, comparison.direction)


def _pair(
    high: Expr, low: Expr, own: tuple[EventTimeColumn, ...], versions: tuple[EventTimeColumn, ...], how: str
) -> _Match | str:
    times = own + versions
    first, second = find_event_time(high, times), find_event_time(low, times)
    if first is None or second is None:
        return f"compares a column that is not an event time: those are {format_list([str(time) for time in times])}"
    if (first in own) == (second in own):
        return "both columns are of one side"
    if how == "nearest":
        return _Match(*((first, second) if first in own else (second, first)), "nearest")
    if first in own:
        return _Match(first, second, "backward", how == ">")
    return _Match(second, first, "forward", how == ">")


def _column(ref: Reference) -> Expr:
    """A reference as an expression."""
    return Expr("column", text="", refs=(ref,))


def _check_times(
    draft: Draft, join: ParsedAsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf, match: _Match
) -> Iterator[Refusal]:
    if join.within is not None:
        refusal = check_within(draft, join.within.amount, match.left, match.right, join.within.span)
        if refusal is not None:
            yield refusal
    elif match.direction != "backward" and draft.inputs == "streams":
        names = _names(draft, left, right)
        cause = f"no WITHIN limits how long {names['left']} waits for a version"
        hint = f"add `WITHIN {'300' if match.left.family == 'integer' else '5 MINUTES'}`."
        words = {"kind": _kind(join.kind), "unbounded": names["left"], "cause": cause}
        yield draft.refusal("UNBOUNDED_STATE", join.span, **names, **words, hint=hint)


def _wrong(
    draft: Draft, span: Span, kind: JoinKind, left: AnalyzedRelation, right: AnalyzedLeaf, cause: str, hint: str
) -> Refusal:
    names = _names(draft, left, right)
    words = {"join": f"{_kind(kind)} JOIN", "cause": cause, "hint": hint}
    return draft.refusal("WRONG_MATCH_CONDITION", span, **names, **words)


def _names(draft: Draft, left: AnalyzedRelation, right: AnalyzedLeaf) -> dict[str, str]:
    return {"left": draft.names_of(left.aliases), "right": draft.name_of(right.alias)}


def _kind(kind: JoinKind) -> str:
    return "ASOF" if kind == "inner" else f"{kind_in_words(kind)} ASOF"


ANALYZE = AsofAnalysis()
