"""What a join of tables keeps: both tables."""

from __future__ import annotations

from watersmeet.forecast.family import Life
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[Life, ...]:
    """The rows of each table."""
    return tuple(Life(port, "keys", law="the rows of the table") for port in range(len(plan.ports)))


FORECAST = forecast
