"""What brings the language to what `joins/` computes: families of joins, and stages; one folder each, and one entry.

Everything below receives from here what it needs to know of them: each layer asks for its own part, which is loaded
when it is first asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.analyze import FamilyAnalysis
    from watersmeet.explanation.family import JoinExplainer, StageExplainer
    from watersmeet.forecast.family import Forecaster
    from watersmeet.language import Grammar
    from watersmeet.physical.family import JoinPlanner, StagePlanner
from collections.abc import Mapping


@dataclass(frozen=True)
class Family:
    """The parts of a family: ``READ`` of its module ``read``, ``ANALYZE`` of ``analyze``, and so on.

    ``has_words``: it adds to the language; one that does not is read as a plain JOIN.

    >>> Family("sync").analyze.family
    'sync'
    """

    name: str
    has_words: bool = False

    @property
    def read(self) -> Grammar:
        """What it adds to the language."""
        return _part(self.name, "read")

    @property
    def analyze(self) -> FamilyAnalysis:
        """How its joins are analyzed."""
        return _part(self.name, "analyze")

    @property
    def plan(self) -> JoinPlanner[Any]:
        """Which operator, and on which columns."""
        return _part(self.name, "plan")

    @property
    def explain(self) -> JoinExplainer[Any]:
        """What is said of its joins."""
        return _part(self.name, "explain")

    @property
    def forecast(self) -> Forecaster:
        """How long its rows live."""
        return _part(self.name, "forecast")


@dataclass(frozen=True)
class Stage:
    """What keeps rows behind the relation of a query and makes its result a table; the parts are those of a family."""

    name: str

    @property
    def plan(self) -> StagePlanner:
        """Which operator, and on which columns."""
        return _part(self.name, "plan")

    @property
    def explain(self) -> StageExplainer:
        """What is said of it."""
        return _part(self.name, "explain")

    @property
    def forecast(self) -> Forecaster:
        """How long its rows live."""
        return _part(self.name, "forecast")


def _part(family: str, name: str) -> Any:
    """A part; what only runs a query need not load what reads one."""
    return getattr(import_module(f"{__package__}.{family}.{name}"), name.upper())


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("interval"),
        Family("window", has_words=True),
        Family("sync", has_words=True),
        Family("asof", has_words=True),
        Family("lookup"),
        Family("changelog"),
    )
}
"""All families by name: the folder of each, here and in ``joins/``."""

OPERATORS: Mapping[str, Family | Stage] = {**FAMILIES, **{name: Stage(name) for name in ("top", "group", "latest")}}
"""Whatever keeps rows, by name: all that is planned and explained. Of stages the outermost comes first."""
