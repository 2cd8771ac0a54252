"""What is kept of the first rows in an order: these, or the table they are of."""

from __future__ import annotations

from watersmeet.forecast.family import Life
from watersmeet.joins.top.operator import Top
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[Life, ...]:
    """The first rows of a stream; of a table all of them, since one that leaves makes room for another."""
    operator = plan.operator
    assert isinstance(operator, Top)
    if operator.changes:
        return (Life(0, "keys", law="the rows of the table"),)
    return (Life(0, "number", operator.limit, "the first rows"),)


FORECAST = forecast
