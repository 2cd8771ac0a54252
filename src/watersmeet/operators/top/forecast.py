"""What is kept of the first rows in an order: these, or the table they are of."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.operators.top.kernel import TopNOperator
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The first rows of a stream; of a table all of them, since one that leaves makes room for another."""
    operator = plan.operator
    assert isinstance(operator, TopNOperator)
    if operator.changes:
        return (PortRetention(0, "keys", law="the rows of the table"),)
    return (PortRetention(0, "number", operator.limit, "the first rows"),)


FORECAST = forecast
