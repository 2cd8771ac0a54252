"""What a join of tables keeps: both tables."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The rows of each table."""
    return tuple(PortRetention(port, "keys", law="the rows of the table") for port in range(len(plan.ports)))


FORECAST = forecast
