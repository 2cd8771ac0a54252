"""What an as-of join keeps: questions until no better version can come, and versions that may be asked for."""

from __future__ import annotations

from watersmeet.forecast.family import PortRetention, lag_of
from watersmeet.operators.asof.analyze import AnalyzedAsofJoin
from watersmeet.physical.nodes import JoinPlan


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """Questions wait for the versions' watermark; of versions one per key, and those that may be asked for."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedAsofJoin)
    ahead = 0 if join.direction == "backward" else join.tolerance or 0
    back = join.tolerance or 0 if join.direction == "nearest" else 0
    return (
        PortRetention(0, "time", lag_of(plan, 1) + ahead, f"the lag of {join.right_time}", behind=1),
        PortRetention(1, "keys", law="the latest version of every key"),
        PortRetention(1, "time", lag_of(plan, 0) + back, f"the lag of {join.left_time}", behind=0),
    )


FORECAST = forecast
