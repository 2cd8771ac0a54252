"""Joins of two tables: a table that changes with either; all kinds, and never WITHIN."""

from __future__ import annotations

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.family import BuildResult, FamilyAnalysis
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.sides import check_table_sides
from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.plan.expressions import conjuncts
from watersmeet.plan.nodes import Join, Relation, ResultKind
from watersmeet.plan.relation import AnalyzedRelation, ConditionalJoin


class ChangelogAnalysis(FamilyAnalysis):
    """Plain joins of two tables."""

    family = AnalyzedTableJoin.family

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, Join) and join.is_plain and set(kinds) == {"table"}

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        assert isinstance(join, Join)
        left, right = inputs
        parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
        is_merge = join.operator == "merge"
        joined = AnalyzedTableJoin(left, right, join.kind, residual=parts, is_merge=is_merge, span=join.span)
        return joined, list(check_table_sides(draft, join, left, right))

    def comparison_scope(self, draft: Draft, join: ConditionalJoin) -> str | None:
        return "change is compared with the whole table of the other side (block-nested)"


ANALYZE = ChangelogAnalysis()
