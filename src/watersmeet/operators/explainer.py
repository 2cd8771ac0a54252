"""The interfaces through which a family is described by explain, forecast, and traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Clause, Relation
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedJoin
from watersmeet.logical.words import Fact
from watersmeet.operators.core.condition import columns_of
from watersmeet.operators.core.operator import StreamOperator
from watersmeet.operators.core.rowwise import RemovedRow, Row, evaluate, event_time, is_dead
from watersmeet.operators.outcomes import Axis, Cause, OutcomeKind, Words
from watersmeet.physical.nodes import JoinPlan
from watersmeet.physical.ports import plain_condition

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
    """The distance between the two rows of a pair: the unit of measure, and the bound, if it is known.

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


Inputs = Literal["sides", "inputs", "parts", "input", "stage"]
"""The name of the inputs of a block: ``sides`` are left and right; of a ``stage`` the last of several has all data."""


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


@dataclass(frozen=True)
class TraceContext:
    """The context of a question about a row: the join, its watermarks, and the words for its columns.

    ``names``: the words for each side. ``received``: the watermarks before or after the batch, depending on the
    question. ``numbers``: the number and the clock of rows that a window has numbered.
    """

    plan: JoinPlan
    operator: Any
    words: Words
    names: tuple[str, ...]
    received: Mapping[str, int] = field(default_factory=dict[str, int])
    numbers: Mapping[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, int | None]])

    def time(self, port: int, row: Row) -> int | None:
        """The compared time of a row."""
        side = self.operator.ports[port]
        return event_time(row[side.time]) if side.times or side.compared else None


@dataclass(frozen=True)
class Distance:
    """The reason why two rows with equal keys are not a pair: how far they are from being one, and that in words."""

    by: int
    text: str


class FamilyTracer:
    """The answers of a family about its rows; the base class holds those that most families share."""

    axis_name: Axis = "event time"
    by_key = True
    """Whether rows of different keys are independent, so that each key can be traced separately."""
    unmatched_cause: Cause = "no such key"
    """The cause where no row of the other side equals the row in `equal_columns`."""

    def equal_columns(self, operator: Any, port: int) -> tuple[str, ...]:
        """The columns in which rows must be equal to match: their keys."""
        return operator.ports[port].keys

    def axis(self, operator: Any) -> Axis:
        """The axis on which the family measures how long rows live."""
        return self.axis_name

    def non_null_columns(self, operator: Any, port: int) -> tuple[str, ...]:
        """The columns besides the keys that must not be NULL for a row to match."""
        return ()

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        """The reason why a row can never match; None: it may."""
        side, non_null = context.operator.ports[port], self.non_null_columns(context.operator, port)
        for name in side.keys:
            if row[name] is None:
                return (
                    "null key",
                    f"Its key {context.words.short_column_words(name)} is NULL, and NULL equals nothing.",
                )
        for name in non_null:
            if row[name] is None:
                return (
                    "null time",
                    f"Its time {context.words.short_column_words(name)} is NULL, so it is not within any bound.",
                )
        if is_dead(side, row, *non_null):
            parts = context.plan.ports[port].predicates
            failed = [part for part in parts if is_untrue(part, row)] or parts
            text = (
                " and ".join(context.words.condition_words(part, row) for part in failed)
                or "a condition on its own columns"
            )
            return "unfit", f"It cannot match, because a condition of ON is not true: {text}."
        return None

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        """The reason why a row was late, and the column whose watermark had passed it."""
        for name in context.operator.ports[port].times:
            watermark, time = context.received.get(name), event_time(row[name])
            if watermark is not None and context.words.is_end(watermark):
                return f"It arrived after the end of {context.names[port]}.", name
            if watermark is not None and time is not None and time < watermark:
                by = context.words.distance(name, watermark - time)
                column, moment = context.words.short_column_words(name), context.words.moment(name, time)
                text = f"its {column} {moment} is before the watermark"
                return (
                    f"It was late by {by}: {text} {context.words.moment(name, watermark)} of {context.names[port]}",
                    name,
                )
        return "It was late.", None

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        """The expiry of a row on the axis, as far as it is known."""
        return None

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        """The reason why a row left, and the column whose watermark removed it."""
        return "It left the state.", None

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        """The reason why a row that stays in the state was emitted without a match."""
        return "It was emitted without a match."

    def alone_outcome(self, operator: Any) -> OutcomeKind:
        """The outcome of a row that was emitted without a match."""
        return "padded"

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        """The outcome of a row that is neither stored nor emitted."""
        return "unmatched", "It did not match."

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        """The outcome of a row that is itself inserted into or retracted from the result."""
        return None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        """Describe the event that a live row waits for, and until when."""
        return "It is in the state."

    def emission_time(self, context: TraceContext, row: Row) -> str:
        """The time when the group that a row was counted in is emitted, as the end of a sentence; "": at once."""
        return ""

    def distance(self, context: TraceContext, port: int, row: Row, other: Row) -> Distance | None:
        """The reason why a row and one of the other side with equal keys are not a pair; None: they would be one."""
        return None

    def preference(self, context: TraceContext, port: int, row: Row, other: Row) -> tuple[int, str]:
        """The distance of a fitting row of the other side from being chosen, and the reason if it was not."""
        return 0, "they were not in the state at the same time"


def is_untrue(part: Expr, row: Row) -> bool:
    """Whether a condition is known not to be true of a row: false, or unknown to SQL."""
    condition = plain_condition(part)
    if condition is None or not columns_of(condition) <= row.keys():
        return False
    try:
        return evaluate(condition, row) is not True
    except (ArithmeticError, TypeError, ValueError):
        return False


class Traceable(Protocol):
    """A family or a stage, as seen by tracing."""

    @property
    def trace(self) -> FamilyTracer:
        """Its tracer."""
        ...


TraceableFamilies = Mapping[str, Traceable]
"""TraceableFamilies and stages by name."""


def tracer_of(operator: StreamOperator, families: TraceableFamilies) -> FamilyTracer:
    """The tracer of an operator's family."""
    return families[type(operator).__module__.split(".")[-2]].trace
