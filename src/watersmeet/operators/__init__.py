"""The operators of a query: one folder per family of joins, and per stage, with everything that the family is.

Each layer loads the part that it needs when it first needs it: a process that only runs a query does not load what
parses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.logical.passes import FamilyAnalysis
    from watersmeet.operators.core.identity import Identity
    from watersmeet.operators.explainer import FamilyTracer, Forecaster, JoinExplainer, StageExplainer
    from watersmeet.operators.state.state_schema import StateSchema
    from watersmeet.parser import Grammar
    from watersmeet.physical.change import ChangeRule
    from watersmeet.physical.nodes import JoinPlanner, StagePlanner
from collections.abc import Mapping


@dataclass(frozen=True)
class _StatefulFamily:
    """A family or stage with state, by its name, and the parts that describe its rows."""

    name: str

    @property
    def trace(self) -> FamilyTracer:
        """The outcomes of its rows."""
        return _load_part(self.name, "explain", "TRACE")

    @property
    def state_schema(self) -> StateSchema:
        """The schema of its states."""
        return _load_state_schema(self.name)

    @property
    def forecast(self) -> Forecaster:
        """The retention of its rows."""
        return _load_part(self.name, "plan", "FORECAST")


@dataclass(frozen=True)
class JoinFamily(_StatefulFamily):
    """The parts of a family: ``READ`` of its module ``parse``, ``ANALYZE`` of ``analyze``, and so on.

    ``has_words``: it adds syntax; one that does not is parsed as a plain JOIN. ``may_change``: its states can continue
    after some changes of it (``CHANGE`` of ``plan``). ``gives_tables``: its result is a changelog.

    >>> JoinFamily("sync").analyze.family
    'sync'
    """

    has_words: bool = False
    may_change: bool = False
    gives_tables: bool = False

    @property
    def read(self) -> Grammar:
        """The syntax that it adds."""
        return _load_part(self.name, "parse", "READ")

    @property
    def analyze(self) -> FamilyAnalysis:
        """The analysis of its joins."""
        return _load_part(self.name, "analyze")

    @property
    def plan(self) -> JoinPlanner[Any]:
        """Its planner: the operator and its columns."""
        return _load_part(self.name, "plan")

    @property
    def explain(self) -> JoinExplainer[Any]:
        """The description of its joins."""
        return _load_part(self.name, "explain")


@dataclass(frozen=True)
class StageFamily(_StatefulFamily):
    """A stateful stage behind the relation of a query; its parts are those of a family."""

    may_change: bool = False

    @property
    def plan(self) -> StagePlanner:
        """Its planner: the operator and its columns."""
        return _load_part(self.name, "plan")

    @property
    def explain(self) -> StageExplainer:
        """Its description."""
        return _load_part(self.name, "explain")


def _load_part(family: str, name: str, constant: str | None = None) -> Any:
    """Load a part on first use: a process that only runs a query does not load what parses one."""
    return getattr(import_module(f"{__package__}.{family}.{name}"), constant or name.upper())


def _load_state_schema(family: str) -> StateSchema:
    return _load_part(family, "kernel", "STATE_SCHEMA")


FAMILIES: Mapping[str, JoinFamily] = {
    family.name: family
    for family in (
        JoinFamily("interval", may_change=True),
        JoinFamily("window", has_words=True, may_change=True),
        JoinFamily("sync", has_words=True),
        JoinFamily("asof", has_words=True, may_change=True),
        JoinFamily("lookup", may_change=True),
        JoinFamily("changelog", gives_tables=True),
    )
}
"""All families of joins by name, which is the name of their folder."""

OPERATORS: Mapping[str, JoinFamily | StageFamily] = {
    **FAMILIES,
    **{
        family.name: family
        for family in (
            StageFamily("top", may_change=True),
            StageFamily("deduplicate", may_change=True),
            StageFamily("over", may_change=True),
            StageFamily("group", may_change=True),
            StageFamily("latest"),
        )
    },
}
"""Whatever keeps rows, by name: all that is planned and explained. Of stages the outermost comes first."""


def change_rules() -> Mapping[str, ChangeRule]:
    """The rules for changes with which a state can continue, by the names of operators in identities."""
    changeable = [family for family in OPERATORS.values() if family.may_change]
    return {
        name: _load_part(family.name, "plan", "CHANGE") for family in changeable for name in family.state_schema.names
    }


def gives_table(operator: Identity) -> bool:
    """Whether the result of an operator with this identity is a table.

    >>> gives_table({"family": "top"}), gives_table({"family": "top", "emit": "final"}), gives_table({"family": "sync"})
    (True, False, False)
    """
    family = _family_of(operator["family"])
    return not family.state_schema.gives_stream(operator) if isinstance(family, StageFamily) else family.gives_tables


def state_schema_of(name: str) -> StateSchema:
    """The state schema of the operator that identities call by this name.

    >>> state_schema_of("merge").names
    ('merge', 'block-nested')
    """
    return _family_of(name).state_schema


def _family_of(name: str) -> JoinFamily | StageFamily:
    return next(family for family in OPERATORS.values() if name in family.state_schema.names)
