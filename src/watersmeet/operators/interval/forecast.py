"""How long rows of an interval join live: until the other side's watermark has passed their bound."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention, lag_of
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A life per side: the shortest of its bounds, longer by the lag of the other side."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedIntervalJoin)
    return tuple(_side_retention(plan, join, port) for port in (0, 1))


def _side_retention(plan: JoinPlan, join: AnalyzedIntervalJoin, port: int) -> PortRetention:
    lengths = [
        (max(0, bound.constant + lag_of(plan, 1 - port, str(bound.other))), str(bound.other), bound.constant)
        for bound in join.bounds
        if bound.column.alias in join.inputs[port].aliases
    ]
    if not lengths:
        return PortRetention(port, "unknown", law="rows are kept until the end in each row")
    length, other, bound = min(lengths)
    return PortRetention(port, "time", length, f"the bound and the lag of {other}", behind=1 - port, bound=bound)


FORECAST = forecast
