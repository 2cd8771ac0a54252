"""The join of two tables: a table that changes with either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.plan.bounds import rows_of_table
from watersmeet.plan.nodes import ResultKind
from watersmeet.plan.relation import Bounded, ConditionalJoin


@dataclass(frozen=True)
class AnalyzedTableJoin(ConditionalJoin):
    """The join of two tables: a table that changes with either of them. The condition is taken apart as elsewhere.

    ``is_merge``: a Substrait plan names the merge join, so that nothing is chosen.
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
    def bounded(self) -> tuple[Bounded, ...]:
        return (rows_of_table(self.left), rows_of_table(self.right))

    def shows_times(self, port: int) -> bool:
        """Never: rows of a table have no time."""
        return False
