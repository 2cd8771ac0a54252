"""What the planner asks of a family, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from watersmeet.physical.nodes import JoinPlan, PortInput, ScanPlan, ViewPlan
from watersmeet.physical.types import Types
from watersmeet.plan.query import AnalyzedQuery, Output
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedScan, AnalyzedView

ChangelogMode = Literal["versions", "upserts", "weights"]
"""How the rows of a table reach a stage: as versions; with what each does to its key; or with weights."""

J = TypeVar("J", bound=AnalyzedJoin)


def _with_weights(join: AnalyzedJoin, port: int) -> ChangelogMode:
    return "weights"


@dataclass(frozen=True)
class JoinPlanner(Generic[J]):
    """How a family of joins is planned.

    - ``plan``: the plan of a join over its inputs
    - ``changelog_mode``: how the rows of a table may reach a port of a join
    - ``by_spark``: why Spark does a join by itself where the rows of one input pass one by one
    """

    plan: Callable[[J, tuple[PortInput, ...], Types], JoinPlan]
    changelog_mode: Callable[[J, int], ChangelogMode] = _with_weights
    by_spark: str = ""


@dataclass(frozen=True)
class StagePlanner:
    """How something is planned that keeps rows behind the relation of a query, and makes its result a table.

    - ``applies``: whether a query has it
    - ``rows``: what it reads of the query, as a view, and how the columns that must be shown are made of its result
    - ``plan``: its plan over the rows of that view
    - ``table``: the plan of a source whose upserts it makes changes, if it is what does that
    """

    applies: Callable[[AnalyzedQuery], bool]
    rows: Callable[[AnalyzedQuery, tuple[Output, ...]], tuple[AnalyzedView, tuple[Output, ...]]]
    plan: Callable[[AnalyzedQuery, AnalyzedView, ViewPlan, Types], JoinPlan]
    table: Callable[[AnalyzedScan, ScanPlan, Types], JoinPlan] | None = None


class Plannable(Protocol):
    """A family, as far as the planner knows it."""

    @property
    def plan(self) -> JoinPlanner[Any] | StagePlanner:
        """How it is planned."""
        ...


Families = Mapping[str, Plannable]
"""The families by name."""
