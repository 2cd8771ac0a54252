"""How long rows of a synchronising join wait: until every other port has passed their time."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention, lag_of
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A life per port: the longest lag of all ports."""
    length = max(lag_of(plan, port) for port in range(len(plan.ports)))
    return tuple(PortRetention(port, "time", length, "the longest lag of all ports") for port in range(len(plan.ports)))


FORECAST = forecast
