"""The interfaces through which explain gets the description of a family, and a forecast its retention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from watersmeet.logical.nodes import Clause, Relation
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedJoin
from watersmeet.logical.words import Fact
from watersmeet.physical.nodes import JoinPlan

Names = Mapping[str, str]
"""The words for the rows of each alias."""

ParsedSection = tuple[str, tuple[Fact, ...]]
"""A parsed join: its heading, and further facts."""

J = TypeVar("J", bound=AnalyzedJoin)


def facts_as_data(facts: Iterable[Fact]) -> dict[str, object]:
    """Facts as JSON-compatible data."""
    return {label.replace(" ", "_"): list(lines) for label, lines in facts}


def _is_padded(join: AnalyzedJoin, port: int, who: str) -> str:
    return f"it can show {who} as NULL" if join.pads(port) is not None else ""


@dataclass(frozen=True)
class PairDistance:
    """How far apart the two rows of a pair can be: the unit of measure, and the bound, if it is known.

    Without a ``unit`` the distance is undefined, and ``why`` says so.
    """

    unit: Literal["event time", "clock", "arrivals"] | None = None
    bound: int | None = None
    why: str = ""


@dataclass(frozen=True)
class JoinExplainer(Generic[J]):
    """The description of a family of joins.

    - ``heading``: a join as it is written
    - ``facts``: the facts about a join of a query
    - ``data``: the same as data; None: the facts themselves
    - ``inputs_name``: the name of its inputs in data
    - ``why_filter_stays``: why a filter on rows of a side (``who``) stays behind the join; "": it does not
    - ``parsed``: a parsed join, in the words of the family; None: it is not one of these
    - ``parsed_source_facts``, ``parsed_join_facts``: the facts of its clauses behind a source, and behind a condition
    - ``pair_distance``: the distance between the two rows of a pair, of an operator of the family
    """

    heading: Callable[[J], str]
    facts: Callable[[AnalyzedQuery, J, Names], list[Fact]]
    data: Callable[[AnalyzedQuery, J, Names], Mapping[str, object]] | None = None
    inputs_name: Inputs = "inputs"
    why_filter_stays: Callable[[J, int, str], str] = _is_padded
    parsed: Callable[[Relation], ParsedSection | None] = lambda relation: None
    parsed_source_facts: Callable[[Clause | None], tuple[Fact, ...]] = lambda clause: ()
    parsed_join_facts: Callable[[tuple[Clause, ...]], tuple[Fact, ...]] = lambda clauses: ()
    pair_distance: Callable[[Any], PairDistance] = lambda operator: PairDistance()

    def as_data(self, query: AnalyzedQuery, join: J, names: Names) -> Mapping[str, object]:
        """The description of a join, as data."""
        if self.data is not None:
            return self.data(query, join, names)
        return {"join": self.heading(join), **facts_as_data(self.facts(query, join, names))}


@dataclass(frozen=True)
class StageExplainer:
    """The description of a stage."""

    facts: Callable[[Any], list[Fact]]


class Explainable(Protocol):
    """A family, as seen by explain."""

    @property
    def explain(self) -> JoinExplainer[Any] | StageExplainer:
        """Its explainer."""
        ...


Families = Mapping[str, Explainable]
"""The families by name."""


def explainers(families: Families) -> tuple[JoinExplainer[Any], ...]:
    """The explainers of all families of joins."""
    explains = (family.explain for family in families.values())
    return tuple(explain for explain in explains if isinstance(explain, JoinExplainer))


def explainer(families: Families, join: AnalyzedJoin) -> JoinExplainer[Any]:
    """The explainer of a join's family."""
    join_explainer = families[join.family].explain
    assert isinstance(join_explainer, JoinExplainer)
    return join_explainer


Inputs = Literal["sides", "inputs", "parts", "input"]
"""The name of the inputs of a block: ``sides`` are left and right."""


By = Literal["time", "keys", "number", "unknown"]
"""The quantity that bounds the number of stored rows. ``time``: the rows that arrive in a length of event time, or of
the clock. ``keys``: one per key. ``number``: a fixed number. ``unknown``: the plan does not say.
"""


@dataclass(frozen=True)
class PortRetention:
    """The retention of a port.

    ``amount``: the length, in units of event time, or the number; ``per_key``: of each partition or key. ``behind``:
    the port whose watermark expires the rows, so that the lag of that port adds to the retention. ``bound``: how far
    rows of that port may be after those of this one. ``law``: in words.
    """

    port: int
    by: By
    amount: int = 0
    law: str = ""
    behind: int | None = None
    per_key: bool = False
    bound: int | None = None


Forecaster = Callable[[JoinPlan], tuple[PortRetention, ...]]
"""Computes the retentions of an operator, in the order of its ports; a port may have several, or none."""


class Forecastable(Protocol):
    """A family, as seen by a forecast."""

    @property
    def forecast(self) -> Forecaster:
        """Its retention per port."""
        ...


ForecastFamilies = Mapping[str, Forecastable]
"""The families by name, as seen by a forecast."""


def lag_of(plan: JoinPlan, port: int, column: str | None = None) -> int:
    """The lag of a port's watermark, or of a column's, behind its latest row; for a union the largest."""
    lags = [lag.lag for lag in plan.ports[port].lags if column is None or lag.column == column]
    return max(lags, default=0)
