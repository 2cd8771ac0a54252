"""The sync join's entry: one time per port, rows sharded by it."""

from __future__ import annotations

from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.joins.core.port import Port
from watersmeet.joins.sync.operator import SyncJoin
from watersmeet.physical.family import JoinPlanner
from watersmeet.physical.nodes import JoinPlan, PortInput, PortPlan
from watersmeet.physical.ports import unions_of
from watersmeet.physical.types import Types


def plan(join: AnalyzedSyncJoin, inputs: tuple[PortInput, ...], types: Types) -> JoinPlan:
    """The plan of a sync join over two or more sources."""
    times = tuple(str(time) for time in join.times)
    operator = SyncJoin(
        tuple(Port(given.needed, (time,), late=given.late) for given, time in zip(inputs, times, strict=True)),
        join.disorder,
        idle=tuple(idle for given in inputs for idle in given.idle if _column(idle[0]) in times),
        unions=unions_of(lag for given in inputs for lag in given.lags if lag.column in times),
    )
    ports = tuple(_port(given, time) for given, time in zip(inputs, times, strict=True))
    columns = tuple(column for given in inputs for column in given.needed)
    words = "dropped and counted" if join.disorder == "drop" else "an error"
    why = (
        f"sync join of {len(inputs)} ports: rows meet when all ports have the same time",
        "sharded by the time",
        f"times of a port must increase: what does not is {words}",
    )
    return JoinPlan(ports, operator, columns, (), why, join)


def _port(given: PortInput, time: str) -> PortPlan:
    columns = tuple(dict.fromkeys((*given.needed, time, *given.late)))
    lags = tuple(lag for lag in given.lags if lag.column == time)
    return PortPlan(given.plan, columns, lags=lags, route="time", times=(time,))


def _column(mark: str) -> str:
    """The column that a mark belongs to: the part of a union has marks of its own."""
    return mark.partition("#")[0]


PLAN = JoinPlanner(plan)
