"""Joins with tables: a stream that looks a table up, and two tables that are joined anew whenever one changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watersmeet.analyze.compatibility import check_kinds
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.catalog import Source
from watersmeet.duration import HOUR, parse_duration
from watersmeet.errors import Refusal
from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.families.interval.relation import AnalyzedIntervalJoin
from watersmeet.families.lookup.relation import AnalyzedLookupJoin, LateTable
from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.families.window.relation import AnalyzedWindowJoin
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import Join, Lateral, Relation, ResultKind, Scan
from watersmeet.plan.relation import AnalyzedRelation, AnalyzedView, Warned

LATE = "watersmeet.table.late"
RETENTION = "watersmeet.table.retention"
WAITING = "watersmeet.table.waiting"
LOAD = "watersmeet.table.load"

DEFAULT_RETENTION = HOUR
"""How long a stream row waits for its table row where no setting says so: state must not grow for ever."""


def table_join(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation
) -> tuple[AnalyzedRelation, list[Refusal]]:
    """The join of two sides of which at least one is a table, its condition still in one piece."""
    refusals = list(check_kinds(draft, join, left, right))
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    if left.result == right.result:
        is_merge = join.operator == "merge"
        joined = AnalyzedTableJoin(left, right, join.kind, residual=parts, is_merge=is_merge, span=join.span)
        return joined, refusals
    return _lookup(draft, join, left, right, parts), refusals


def kind_asked(relation: Relation, sources: Mapping[str, Source]) -> ResultKind:
    """What a relation is as it was asked for, before it is built; ``sources`` are by alias.

    >>> sources = {"o": Source("orders", ()), "c": Source("customers", (), kind="table")}
    >>> kind_asked(Join(Scan("orders", "o"), Scan("customers", "c"), "left"), sources)
    'stream'
    """
    match relation:
        case Scan():
            source = sources.get(relation.alias)
            return "stream" if source is None else source.kind
        case Lateral():
            return kind_asked(relation.input, sources)
        case Join():
            kinds = {kind_asked(side, sources) for side in (relation.left, relation.right)}
            return "table" if kinds == {"table"} else "stream"
        case _:
            return "stream"


@dataclass(frozen=True)
class _Waiting:
    """What the settings say of stream rows that were shown without a table row."""

    late_table: LateTable
    retention: int | None = None
    waiting: int | None = None


def _lookup(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation, parts: tuple[Expr, ...]
) -> AnalyzedLookupJoin:
    # An inner join shows nothing for a row without a match, so there is nothing to show again (LN-13).
    said = _Waiting("ignore") if join.kind == "inner" else _waiting(draft)
    return AnalyzedLookupJoin(
        left,
        right,
        join.kind,
        residual=parts,
        table="left" if left.result == "table" else "right",
        late_table=said.late_table,
        retention=said.retention,
        waiting=said.waiting,
        load_first=draft.setting(LOAD, "together").lower() == "first",
        span=join.span,
    )


def _waiting(draft: Draft) -> _Waiting:
    if draft.setting(LATE, "reemit").lower() == "ignore":
        return _Waiting("ignore")
    retention, waiting = duration_set(draft.setting(RETENTION, "")), draft.setting(WAITING, "")
    rows = int(waiting) if waiting.isascii() and waiting.isdigit() else None
    return _Waiting("reemit", DEFAULT_RETENTION if retention is None and rows is None else retention, rows)


def duration_set(value: str) -> int | None:
    """The microseconds that the value of a setting stands for; None if it is no length of time above 0.

    >>> duration_set("1 hour"), duration_set("soon")
    (3600000000, None)
    """
    try:
        return parse_duration(value) or None
    except ValueError:
        return None


def check_late_rows(draft: Draft, relation: AnalyzedRelation) -> Iterator[Refusal]:
    """LATE INTO of a query whose joins are all with tables."""
    joins = tuple(_joins(relation))
    if draft.query.late_into is not None and joins and all(isinstance(join, _WITH_TABLES) for join in joins):
        hint = "leave LATE INTO out: a table is taken as it is when a row comes, so no row is too late for it."
        what = "LATE INTO of a join with a table"
        yield draft.refusal("UNSUPPORTED_STATEMENT", draft.query.late_into_span, what=what, hint=hint)


def shown_too_late(draft: Draft, relation: AnalyzedRelation) -> Iterator[Warned]:
    """Rows that a lookup shows once more, behind the watermark that a join above it goes by."""
    for join in _joins(relation):
        if not isinstance(join, AnalyzedIntervalJoin | AnalyzedAsofJoin):
            continue
        for below in (found for side in join.inputs for found in _joins(side)):
            if isinstance(below, AnalyzedLookupJoin) and below.late_table == "reemit":
                names = draft.names_of(below.aliases)
                message = (
                    f"A row of the join of {names} that is shown once more, when its table row has come, may be too "
                    f"late for the next join and is dropped there; `SET {LATE} = ignore` shows each row once."
                )
                yield Warned(message, below.span)


_WITH_TABLES = (AnalyzedLookupJoin, AnalyzedTableJoin)
_JOINS = (AnalyzedIntervalJoin, AnalyzedWindowJoin, AnalyzedSyncJoin, AnalyzedAsofJoin, *_WITH_TABLES)


def _joins(relation: AnalyzedRelation) -> Iterator[AnalyzedRelation]:
    if isinstance(relation, AnalyzedView):
        return
    for side in relation.inputs:
        yield from _joins(side)
    if isinstance(relation, _JOINS):
        yield relation
