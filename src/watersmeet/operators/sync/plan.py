"""The sync join's entry: one time per port, rows sharded by it.

`FORECAST` says how long rows wait: until every other port has passed their time.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.operators.core.operator import Port
from watersmeet.operators.explainer import PortRetention, lag_of
from watersmeet.operators.sync.analyze import AnalyzedSyncJoin
from watersmeet.operators.sync.kernel import SyncJoinOperator
from watersmeet.physical.nodes import JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import unions_of


def plan(join: AnalyzedSyncJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of a sync join over two or more sources."""
    times = tuple(str(time) for time in join.times)
    operator = SyncJoinOperator(
        tuple(Port(side.needed, (time,), late=side.late) for side, time in zip(inputs, times, strict=True)),
        join.disorder,
        idle=tuple(idle for side in inputs for idle in side.idle if _column(idle[0]) in times),
        unions=unions_of(lag for side in inputs for lag in side.lags if lag.column in times),
    )
    ports = tuple(_port(side, time) for side, time in zip(inputs, times, strict=True))
    columns = tuple(column for side in inputs for column in side.needed)
    words = "dropped and counted" if join.disorder == "drop" else "an error"
    why = (
        f"sync join of {len(inputs)} ports: rows match when all ports have the same time",
        "sharded by the time",
        f"times of a port must increase: a row that does not fit is {words}",
    )
    return JoinPlan(ports, operator, columns, (), why, join)


def _port(side: PortPlan, time: str) -> PortPlan:
    columns = tuple(dict.fromkeys((*side.needed, time, *side.late)))
    lags = tuple(lag for lag in side.lags if lag.column == time)
    return replace(side, columns=columns, lags=lags, route="time", times=(time,))


def _column(watermark: str) -> str:
    """The column of a watermark: a part of a union has its own watermarks."""
    return watermark.partition("#")[0]


PLAN = JoinPlanner(plan)


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A life per port: the longest lag of all ports."""
    length = max(lag_of(plan, port) for port in range(len(plan.ports)))
    return tuple(PortRetention(port, "time", length, "the longest lag of all ports") for port in range(len(plan.ports)))


FORECAST = forecast
