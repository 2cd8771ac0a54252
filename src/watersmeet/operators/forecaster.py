"""The interface through which a forecast gets the retention of each port from a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from watersmeet.physical.nodes import JoinPlan

By = Literal["time", "keys", "number", "unknown"]
"""What determines the number of stored rows. ``time``: the rows that arrive in a length of event time, or of the clock.
``keys``: one per key. ``number``: a fixed number. ``unknown``: the plan does not say.
"""


@dataclass(frozen=True)
class PortRetention:
    """The retention of a port.

    ``amount``: the length, in units of event time, or the number; ``per_key``: of each partition or key. ``behind``:
    the port whose watermark expires the rows, so that the lag of that port adds to the retention. ``bound``: how far
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
"""Computes the retentions of an operator, in the order of its ports; a port may have several, or none."""


class Forecastable(Protocol):
    """A family, as seen by a forecast."""

    @property
    def forecast(self) -> Forecaster:
        """Its retention per port."""
        ...


Families = Mapping[str, Forecastable]
"""The families by name."""


def lag_of(plan: JoinPlan, port: int, column: str | None = None) -> int:
    """The lag of a port's watermark, or of a column's, behind its latest row; for a union the largest."""
    lags = [lag.lag for lag in plan.ports[port].lags if column is None or lag.column == column]
    return max(lags, default=0)
