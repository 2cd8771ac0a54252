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
    from watersmeet.fates.family import FamilyFates
    from watersmeet.forecast.family import Forecaster
    from watersmeet.joins.state.kept import Keeping
    from watersmeet.language import Grammar
    from watersmeet.physical.change import Changing
    from watersmeet.physical.family import JoinPlanner, StagePlanner
from collections.abc import Mapping


@dataclass(frozen=True)
class _Keeps:
    """What keeps rows, by its name, and the parts that tell of them."""

    name: str

    @property
    def fates(self) -> FamilyFates:
        """What becomes of its rows."""
        return _part(self.name, "fates")

    @property
    def kept(self) -> Keeping:
        """What its states hold."""
        return _kept(self.name)

    @property
    def forecast(self) -> Forecaster:
        """How long its rows live."""
        return _part(self.name, "forecast")


@dataclass(frozen=True)
class Family(_Keeps):
    """The parts of a family: ``READ`` of its module ``read``, ``ANALYZE`` of ``analyze``, and so on.

    ``has_words``: it adds to the language; one that does not is read as a plain JOIN. ``may_change``: its states can
    go on with some changes of it (``CHANGE`` of ``change``). ``gives_tables``: its results take rows back.

    >>> Family("sync").analyze.family
    'sync'
    """

    has_words: bool = False
    may_change: bool = False
    gives_tables: bool = False

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


@dataclass(frozen=True)
class Stage(_Keeps):
    """What keeps rows behind the relation of a query and makes its result a table; the parts are those of a family."""

    @property
    def plan(self) -> StagePlanner:
        """Which operator, and on which columns."""
        return _part(self.name, "plan")

    @property
    def explain(self) -> StageExplainer:
        """What is said of it."""
        return _part(self.name, "explain")


def _part(family: str, name: str) -> Any:
    """A part; what only runs a query need not load what reads one."""
    return getattr(import_module(f"{__package__}.{family}.{name}"), name.upper())


def _kept(family: str) -> Keeping:
    return import_module(f"watersmeet.joins.{family}.kept").KEPT


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("interval", may_change=True),
        Family("window", has_words=True, may_change=True),
        Family("sync", has_words=True),
        Family("asof", has_words=True, may_change=True),
        Family("lookup", may_change=True),
        Family("changelog", gives_tables=True),
    )
}
"""All families by name: the folder of each, here and in ``joins/``."""

OPERATORS: Mapping[str, Family | Stage] = {**FAMILIES, **{name: Stage(name) for name in ("top", "group", "latest")}}
"""Whatever keeps rows, by name: all that is planned and explained. Of stages the outermost comes first."""


def changing() -> Mapping[str, Changing]:
    """By the names of operators in identities: what of them may change while a state goes on."""
    changeable = [family for family in FAMILIES.values() if family.may_change]
    return {name: _part(family.name, "change") for family in changeable for name in family.kept.names}


def tables() -> frozenset[str]:
    """The operators, by their names in identities, whose results are tables."""
    found = [one for one in OPERATORS.values() if isinstance(one, Stage) or one.gives_tables]
    return frozenset(name for one in found for name in one.kept.names)


def keeping_of(name: str) -> Keeping:
    """What states of the operator hold that is called so in identities.

    >>> keeping_of("merge").names
    ('merge', 'block-nested')
    """
    return next(one.kept for one in OPERATORS.values() if name in one.kept.names)
