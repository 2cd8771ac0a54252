"""The join of two tables: a table that changes with either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.logical.expressions import conjuncts, finality_column
from watersmeet.logical.nodes import LEFT_ONLY, Join, Relation, ResultKind
from watersmeet.logical.passes.conditions import check_table_sides
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.query import rows_of_table
from watersmeet.logical.relation import BY_TIME, AnalyzedRelation, ConditionalJoin, StateBound


@dataclass(frozen=True)
class AnalyzedTableJoin(ConditionalJoin):
    """The join of two tables: a table that changes with either of them. The condition is split as in other joins.

    ``is_merge``: a Substrait plan names the merge join, so the planner does not choose.
    """

    family: ClassVar[str] = "changelog"

    is_merge: bool = False

    @property
    def result(self) -> ResultKind:
        return "table"

    @property
    def has_late_rows(self) -> bool:
        """Never: a table is taken as it is."""
        return False

    @property
    def final_key_pair(self) -> tuple[str, str] | None:
        """A key by which the rows of both tables become final, with its name on each side; None if no key does."""
        pairs = ((finality_column(left), finality_column(right)) for left, right in self.keys)
        return next(
            (
                (own, other)
                for own, other in pairs
                if own in self.left.final_columns and other in self.right.final_columns
            ),
            None,
        )

    @property
    def final_columns(self) -> frozenset[str]:
        """A pair is final if both of its rows are. A side that may be padded has no final columns."""
        pair = self.final_key_pair or ()
        return frozenset(name for port, name in enumerate(pair) if self.pads(port) is None and self._shows(port))

    def _shows(self, port: int) -> bool:
        return port == 0 or self.kind not in LEFT_ONLY

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        if self.final_key_pair is not None:
            return (BY_TIME,)
        return (rows_of_table(self.left), rows_of_table(self.right))

    def shows_times(self, port: int) -> bool:
        """Never: rows of a table have no time."""
        return False


# Joins of two tables: a table that changes with either; all kinds, and never WITHIN.


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
