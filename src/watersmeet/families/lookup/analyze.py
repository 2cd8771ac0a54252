"""Lookup joins: each row of a stream with what a table has for it, and what to write where sides do not go together.

| left   | right  | kinds                                | WITHIN                     |
|--------|--------|--------------------------------------|----------------------------|
| stream | table  | INNER, LEFT                          | refused                    |
| table  | stream | RIGHT                                | refused                    |

These are the joins between streams and tables that there are (LN-14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.family import Built, FamilyAnalysis
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.settings import Known, choice, duration, duration_set, number
from watersmeet.duration import HOUR
from watersmeet.families.lookup.compatibility import check_sides
from watersmeet.families.lookup.relation import AnalyzedLookupJoin, LateTable
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import Join, Relation, ResultKind
from watersmeet.plan.relation import AnalyzedRelation, ConditionalJoin, Warned, joins

LATE = "watersmeet.table.late"
RETENTION = "watersmeet.table.retention"
WAITING = "watersmeet.table.waiting"
LOAD = "watersmeet.table.load"

DEFAULT_RETENTION = HOUR
"""How long a stream row waits for its table row where no setting says so: state must not grow for ever."""


class LookupAnalysis(FamilyAnalysis):
    """Plain joins of a stream with a table."""

    family = AnalyzedLookupJoin.family
    settings: ClassVar[Mapping[str, Known]] = {
        LATE: choice(LATE, ("reemit", "ignore"), "ignore"),
        RETENTION: duration(RETENTION, "1 hour"),
        WAITING: number(WAITING, 100000),
        LOAD: choice(LOAD, ("first", "together"), "first"),
    }

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        """A stream and a table."""
        return isinstance(join, Join) and join.is_plain and set(kinds) == {"stream", "table"}

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> Built:
        """The join, with what is wrong with it."""
        assert isinstance(join, Join)
        left, right = inputs
        parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
        return _lookup(draft, join, left, right, parts), list(check_sides(draft, join, left, right))

    def reach(self, draft: Draft, join: ConditionalJoin) -> str | None:
        """The whole table."""
        assert isinstance(join, AnalyzedLookupJoin)
        return f"row of the stream is compared with the whole table {draft.names_of(join.looked_up.aliases)}"

    def warn(self, draft: Draft, relation: AnalyzedRelation) -> Iterator[Warned]:
        """Rows that it shows once more, behind the watermark that a join above it goes by."""
        above = (join for join in joins(relation) if join.has_late_rows)
        for below in (found for join in above for side in join.inputs for found in joins(side)):
            if isinstance(below, AnalyzedLookupJoin) and below.late_table == "reemit":
                names = draft.names_of(below.aliases)
                message = (
                    f"A row of the join of {names} that is shown once more, when its table row has come, may be too "
                    f"late for the next join and is dropped there; `SET {LATE} = ignore` shows each row once."
                )
                yield Warned(message, below.span)


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


ANALYZE = LookupAnalysis()
