"""What is kept to know the latest row of every key: that row."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A row per key."""
    return (PortRetention(0, "keys", law="the latest row of every key"),)


FORECAST = forecast
