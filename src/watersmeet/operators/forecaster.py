"""What a forecast asks of a family, whichever it is: how long the rows of each port live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from watersmeet.physical.nodes import JoinPlan

By = Literal["time", "keys", "number", "unknown"]
"""What decides how many rows are kept. ``time``: as many as come in a length of event time, or of the clock. ``keys``:
one for every key there is. ``number``: so many. ``unknown``: nobody can tell from the plan."""


@dataclass(frozen=True)
class PortRetention:
    """How long rows of a port are kept.

    ``amount``: the length, in units of event time, or the number; ``per_key``: of each partition or key. ``behind``:
    the port whose watermark ends the life, so that a life is longer by what that port is behind. ``bound``: how far
    rows of that port may be after those of this one. ``law``: in words.
    """

    port: int
    by: By
    amount: int = 0
    law: str = ""
    behind: int | None = None
    per_key: bool = False
    bound: int | None = None


Forecaster = Callable[[JoinPlan], tuple[PortRetention, ...]]
"""The lives of what an operator keeps, in the order of its ports; a port may keep several things, or nothing."""


class Forecastable(Protocol):
    """A family, as far as a forecast knows it."""

    @property
    def forecast(self) -> Forecaster:
        """How long its rows live."""
        ...


Families = Mapping[str, Forecastable]
"""The families by name."""


def lag_of(plan: JoinPlan, port: int, column: str | None = None) -> int:
    """How far the watermark of a port, or of a column of it, stays behind its latest row; of a union the furthest."""
    lags = [lag.lag for lag in plan.ports[port].lags if column is None or lag.column == column]
    return max(lags, default=0)
