"""As-of joins: which times are compared, in which direction, and how far away a version may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from watersmeet.analyze.comparison import compare
from watersmeet.analyze.draft import Draft, listed
from watersmeet.analyze.event_time import EventTime, event_times, is_sound, time_named
from watersmeet.analyze.family import Built, FamilyAnalysis, Sources
from watersmeet.analyze.meaning import TRUE, Named, is_resolved, misses, named_condition, resolved
from watersmeet.analyze.scope import Scope
from watersmeet.analyze.sides import check_families, check_values, check_within, declared_values
from watersmeet.analyze.watermarks import family_named, only_time, unmarked, watermark_hint, watermarked
from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.errors import Refusal
from watersmeet.families.asof.relation import AnalyzedAsofJoin, AsofJoin, Direction
from watersmeet.plan.expressions import Expr, Reference, conjuncts
from watersmeet.plan.nodes import JoinKind, Relation, ResultKind
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedRelation, ConditionalJoin, UnboundJoin, scans
from watersmeet.plan.words import expression_in_words, kind_in_words

_NEAREST = re.compile(r"nearest\s*\(\s*\?\s*,\s*\?\s*\)", re.IGNORECASE)


class AsofAnalysis(FamilyAnalysis):
    """What is asked for with ASOF JOIN, or with FOR SYSTEM_TIME AS OF."""

    family = AnalyzedAsofJoin.family

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, AsofJoin)

    def name(self, draft: Draft, join: Relation, scopes: tuple[Scope, ...]) -> Named:
        """The condition, and the time that is asked for."""
        assert isinstance(join, AsofJoin)
        left, right = scopes
        both = left.beside(right)
        asked = [expr for expr in (join.match, join.as_of) if expr is not None]
        missing = [miss for expr in asked for miss in misses(draft.script, expr, both)]
        match = None if join.match is None else resolved(join.match, both)
        as_of = None if join.as_of is None else resolved(join.as_of, both)
        named, scope, more = named_condition(draft, replace(join, match=match, as_of=as_of), left, right, TRUE)
        return named, scope, [*missing, *more]

    def assume(self, draft: Draft, join: Relation, sources: Sources) -> Sources:
        """The times that a match condition compares; of FOR SYSTEM_TIME, the only time of the versions."""
        assert isinstance(join, AsofJoin)
        asked = join.match if join.as_of is None else join.as_of
        for ref in asked.references if asked is not None and is_resolved(asked) else ():
            if not ref.path and family_named(ref, sources) is not None:
                sources = watermarked(sources, ref.source, ref.name)
        return sources if join.as_of is None else only_time(join.right, sources)

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> Built:
        left, right = inputs
        assert isinstance(join, AsofJoin) and isinstance(right, AnalyzedLeaf)
        joined, refusals = _asof_join(draft, join, left, right)
        return joined, _table_on_the_left(draft, join, left) or refusals

    def check_condition(self, draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
        assert isinstance(join, AnalyzedAsofJoin)
        return _check_versions(draft, join)


@dataclass(frozen=True)
class _Match:
    """What a match condition says: the event times of both sides, and which version is meant."""

    left: EventTime
    right: EventTime
    direction: Direction
    strict: bool = False


def _asof_join(draft: Draft, join: AsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf) -> Built:
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    refusals = list(_check_form(draft, join, right))
    is_known = all(is_sound(scan.source) for scan in (*scans(left), right))
    found = _match(draft, join, left, right) if is_known and not refusals else None
    refusals += [found] if isinstance(found, Refusal) else []
    if not isinstance(found, _Match):
        return UnboundJoin(left, right, join.kind, residual=parts, span=join.span), refusals
    refusals += _check_times(draft, join, left, right, found)
    return AnalyzedAsofJoin(
        left,
        right,
        join.kind,
        found.left.column,
        found.right.column,
        direction=found.direction,
        strict=found.strict,
        tolerance=None if join.within is None else join.within.amount.value,
        residual=parts,
        defaults=declared_values(join.defaults, right.source),
        span=join.span,
    ), refusals


def _check_versions(draft: Draft, join: AnalyzedAsofJoin) -> Iterator[Refusal]:
    """Refuse what does not tell versions apart: comparisons other than =, and less than the whole key of a table."""
    left, right = _names(draft, join.left, join.right).values()
    for part in join.residual:
        cause = f"compares {left} with {right} other than by ="
        hint = "write an equality of both sides, or filter the result with WHERE."
        yield _wrong(draft, part.span if part.span.end else join.span, join.kind, join.left, join.right, cause, hint)
    source = join.right.source
    named = [b.refs[0].name for _, b in join.keys if b.op == "column" and not b.refs[0].path]
    if source.kind != "table" or _is_whole_key(source, named):
        return
    cause = f"not the primary key of {source.name}" if source.primary_key else f"{source.name} has no PRIMARY KEY"
    example = " AND ".join(f"... = {join.right.alias}.{name}" for name in source.primary_key)
    hint = f"write `ON {example}`."
    if not source.primary_key:
        hint = f"add `PRIMARY KEY ({', '.join(named) or 'id'})` to the columns of {source.name}."
    yield _wrong(draft, join.span, join.kind, join.left, join.right, cause, hint)


def _table_on_the_left(draft: Draft, join: AsofJoin, left: AnalyzedRelation) -> list[Refusal]:
    if left.result == "stream":
        return []
    what = f"An as-of join of the table {draft.names_of(left.aliases)}"
    hint = "put a stream on its left, or write JOIN: rows of a table have no time that a version is in force at."
    return [draft.unsupported(join.span, what, hint)]


def _is_whole_key(source: Source, named: list[str]) -> bool:
    key = {name.lower() for name in source.primary_key}
    return bool(key) and key == {name.lower() for name in named}


def _check_form(draft: Draft, join: AsofJoin, right: AnalyzedLeaf) -> Iterator[Refusal]:
    if join.kind not in ("inner", "left"):
        what = f"A {kind_in_words(join.kind)} {'ASOF JOIN' if join.as_of is None else 'JOIN FOR SYSTEM_TIME AS OF'}"
        hint = "write LEFT, and the side whose rows are kept on the left."
        yield draft.unsupported(join.span, what, hint)
    elif join.kind == "inner" and join.defaults:
        span = join.defaults[0][1].span
        what, hint = "DEFAULT of an inner as-of join", "write LEFT, or leave DEFAULT out: rows without a version go."
        yield draft.unsupported(join.span if span == NOWHERE else span, what, hint)
    if is_sound(right.source):
        yield from check_values(draft, join.defaults, right.source, join.span)


def _match(draft: Draft, join: AsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf) -> _Match | Refusal | None:
    """What is compared with what; None where a name in it means nothing."""
    missing = next(_check_watermarks(draft, join, left, right), None)
    if missing is not None:
        return missing
    asked = join.match or join.as_of
    if asked is not None and not is_resolved(asked):
        return None
    own, versions = event_times(left), event_times(right)
    if not own or not versions:
        # A side that shows no time is a table, or a join whose result has none; that is refused as such.
        return None
    span = asked.span if asked is not None and asked.span != NOWHERE else join.span
    found = _as_of(join.as_of, own, versions) if join.as_of is not None else _compared(join.match, own, versions)
    if isinstance(found, _Match):
        return check_families(draft, found.right, found.left, span) or found
    example = f"{own[0]} >= {versions[0]}"
    hint = f"write `FOR SYSTEM_TIME AS OF {own[0]}`." if join.as_of else f"write `MATCH_CONDITION ({example})`."
    return _wrong(draft, span, join.kind, left, right, found, hint)


def _check_watermarks(draft: Draft, join: AsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf) -> Iterator[Refusal]:
    names = _names(draft, left, right)
    refs = [ref for expr in (join.match, join.as_of) if expr is not None for ref in expr.references]
    for leaf in (*unmarked(left), *unmarked(right)):
        hint = watermark_hint(leaf, [ref.name for ref in refs if ref.source == leaf.alias])
        words = {"kind": _kind(join.kind), "side": draft.name_of(leaf.alias)}
        yield draft.refusal("MISSING_WATERMARK", join.span, **names, **words, hint=hint)
    times = event_times(right)
    if join.as_of is not None and len(times) > 1:
        columns = listed([str(time) for time in times])
        hint = f"write ASOF JOIN with `MATCH_CONDITION ({expression_in_words(join.as_of)} >= {times[0]})`."
        words = {"join": "FOR SYSTEM_TIME AS OF", "side": names["right"], "columns": columns}
        yield draft.refusal("NEEDS_ONE_TIME", join.span, **words, hint=hint)


def _as_of(time: Expr, own: tuple[EventTime, ...], versions: tuple[EventTime, ...]) -> _Match | str:
    found = time_named(time, own)
    if found is None:
        return f"not an event time: {listed([str(time) for time in own], 'or')}"
    return _Match(found, versions[0], "backward")


def _compared(match: Expr | None, own: tuple[EventTime, ...], versions: tuple[EventTime, ...]) -> _Match | str:
    """What a match condition says, or what keeps it from saying anything."""
    if match is None:
        return "no MATCH_CONDITION"
    if match.op == "other" and _NEAREST.fullmatch(match.sql(lambda ref: "?")):
        first, second = (_column(ref) for ref in match.refs)
        return _pair(first, second, own, versions, "nearest")
    found = compare(match)
    if found is None or found.direction == "=" or found.constants or found.casts:
        return "not a comparison of two event times by <, <=, > or >=, nor nearest(...)"
    return _pair(found.high, found.low, own, versions, found.direction)


def _pair(high: Expr, low: Expr, own: tuple[EventTime, ...], versions: tuple[EventTime, ...], how: str) -> _Match | str:
    times = own + versions
    first, second = time_named(high, times), time_named(low, times)
    if first is None or second is None:
        return f"compares what is not an event time: those are {listed([str(time) for time in times])}"
    if (first in own) == (second in own):
        return "both columns are of one side"
    if how == "nearest":
        return _Match(*((first, second) if first in own else (second, first)), "nearest")
    if first in own:
        return _Match(first, second, "backward", how == ">")
    return _Match(second, first, "forward", how == ">")


def _column(ref: Reference) -> Expr:
    """A reference inside a text as an expression of its own."""
    return Expr("column", text="", refs=(ref,))


def _check_times(
    draft: Draft, join: AsofJoin, left: AnalyzedRelation, right: AnalyzedLeaf, found: _Match
) -> Iterator[Refusal]:
    if join.within is not None:
        refusal = check_within(draft, join.within.amount, found.left, found.right, join.within.span)
        if refusal is not None:
            yield refusal
    elif found.direction != "backward" and draft.inputs == "streams":
        names = _names(draft, left, right)
        cause = f"no WITHIN says how long {names['left']} waits for a version"
        hint = f"add `WITHIN {'300' if found.left.family == 'integer' else '5 MINUTES'}`."
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
