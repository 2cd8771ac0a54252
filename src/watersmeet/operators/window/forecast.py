"""How many rows the windows of a join hold."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention
from watersmeet.operators.window.relation import AnalyzedWindow, AnalyzedWindowJoin
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A number of rows, of each partition if there are some; those of a stretch of the clock; or nobody knows."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedWindowJoin)
    return tuple(_window_retention(port, window) for port, window in enumerate(join.windows))


def _window_retention(port: int, window: AnalyzedWindow) -> PortRetention:
    if window.kind == "count":
        of = "rows of each partition" if window.partition_by else "rows"
        return PortRetention(port, "number", window.size, of, per_key=bool(window.partition_by))
    if window.kind == "time":
        return PortRetention(port, "time", window.size, "the window, by the clock")
    return PortRetention(port, "unknown", law="rows leave when a column differs enough from that of newer rows")


FORECAST = forecast
