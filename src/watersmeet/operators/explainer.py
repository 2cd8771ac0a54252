"""What explain asks of a family, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from watersmeet.logical.nodes import Clause, Relation
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedJoin
from watersmeet.logical.words import Fact

Names = Mapping[str, str]
"""What to call the rows of each alias."""

ParsedSection = tuple[str, tuple[Fact, ...]]
"""What was asked for: its heading, and what else there is to be said."""

J = TypeVar("J", bound=AnalyzedJoin)


def facts_as_data(facts: Iterable[Fact]) -> dict[str, object]:
    """Facts for machines."""
    return {label.replace(" ", "_"): list(lines) for label, lines in facts}


def _is_padded(join: AnalyzedJoin, port: int, who: str) -> str:
    return f"it can show {who} as NULL" if join.pads(port) is not None else ""


@dataclass(frozen=True)
class PairDistance:
    """How far apart the two rows of a pair are: by what that is told, and how far they may be, if that is known.

    Without a ``unit`` there is nothing to tell, and ``why`` says so.
    """

    unit: Literal["event time", "clock", "arrivals"] | None = None
    bound: int | None = None
    why: str = ""


@dataclass(frozen=True)
class JoinExplainer(Generic[J]):
    """What is said of a family of joins.

    - ``heading``: a join as it is written
    - ``facts``: what is to be said of a join of a query
    - ``data``: the same for machines; None: the facts themselves
    - ``inputs_name``: what its inputs are called for machines
    - ``why_filter_stays``: why a filter on rows of a side (``who``) stays behind the join; "": it does not
    - ``parsed``: a join as it was asked for, in the words of the family; None: it is not one of these
    - ``parsed_source_facts``, ``parsed_join_facts``: what its clauses behind a source, and behind a condition, ask for
    - ``pair_distance``: how far apart the two rows of a pair are, of an operator of the family
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
        """What is said of a join, for machines."""
        if self.data is not None:
            return self.data(query, join, names)
        return {"join": self.heading(join), **facts_as_data(self.facts(query, join, names))}


@dataclass(frozen=True)
class StageExplainer:
    """What is said of a stage."""

    facts: Callable[[Any], list[Fact]]


class Explainable(Protocol):
    """A family, as far as explain knows it."""

    @property
    def explain(self) -> JoinExplainer[Any] | StageExplainer:
        """What is said of it."""
        ...


Families = Mapping[str, Explainable]
"""The families by name."""


def explainers(families: Families) -> tuple[JoinExplainer[Any], ...]:
    """What all families of joins say."""
    explains = (family.explain for family in families.values())
    return tuple(explain for explain in explains if isinstance(explain, JoinExplainer))


def explainer(families: Families, join: AnalyzedJoin) -> JoinExplainer[Any]:
    """What the family of a join says."""
    join_explainer = families[join.family].explain
    assert isinstance(join_explainer, JoinExplainer)
    return join_explainer


Inputs = Literal["sides", "inputs", "parts", "input"]
"""What the inputs of a block are called: ``sides`` are left and right."""
