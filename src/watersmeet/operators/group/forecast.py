"""What a grouping keeps: a row per group."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """Groups, of which nobody knows the number from the plan."""
    return (PortRetention(0, "keys", law="a row per group"),)


FORECAST = forecast
