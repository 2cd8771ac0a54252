"""States that exceed their forecast: twice the rate of rows times their retention, and the likely reason.

The forecast is that of ``explain --forecast`` with the rates of the runs up to now. A state that has not grown yet is
smaller than its forecast, which is not reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.duration import rough_duration
from watersmeet.locations import Storage
from watersmeet.metrics.history import read_history
from watersmeet.metrics.metrics import OperatorMetrics
from watersmeet.metrics.progress import Progress
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT, port_names
from watersmeet.physical import JoinPlan, QueryPlan, join_name, join_plans
from watersmeet.tools.forecast.inputs import RECENT, observe_rates
from watersmeet.tools.forecast.query import ForecastInput, StateForecast, forecast_query

FACTOR = 2.0
LEAST_ROWS, LEAST_BATCHES = 1000, 5
"""Of fewer rows, and after fewer batches, nothing is said."""
FASTER = 1.5
LATELY = 10
"""Batches that count as now."""


@dataclass(frozen=True)
class ForecastAlert:
    """A state that exceeds its forecast: which one, its size, the forecast, and the likely reason."""

    operator: str
    who: str
    rows: int
    forecast: int
    reason: str

    def __str__(self) -> str:
        text = f"{self.operator} keeps {self.rows:,} rows of {self.who}"
        return f"{text}, {self.rows / self.forecast:.1f} times the {self.forecast:,} of the forecast. {self.reason}"


def forecast_alerts(plan: QueryPlan, batches: Sequence[Progress]) -> list[ForecastAlert]:
    """The states of a query that have left their forecast by its latest batch; batches come oldest first."""
    batches = batches[-RECENT:]
    if len(batches) < LEAST_BATCHES:
        return []
    observed, last = observe_rates(batches, plan), batches[-1]
    alerts: list[ForecastAlert] = []
    forecast = forecast_query(plan, OPERATORS, ForecastInput(observed.rates))
    for join, operator in zip(join_plans(plan.relation), forecast.operators, strict=True):
        numbers = last.operators.get(join_name(join))
        if numbers is not None:
            alerts += _operator_alerts(plan, join, operator.states, numbers, batches)
    return alerts


class ForecastMonitor:
    """The forecasts of the queries of a run: reports a state once when it exceeds its own, and once when it is back.

    The histories of earlier runs in ``storage`` count as well.
    """

    def __init__(self, plans: Mapping[str, QueryPlan], storage: Storage) -> None:
        self.storage = storage
        self._reported: dict[str, set[tuple[str, str]]] = {}
        self.take_plans(plans)

    def take_plans(self, plans: Mapping[str, QueryPlan]) -> None:
        """Know how the queries run: what of them is not known here has no forecast."""
        self.plans = plans
        self._batches = {name: deque(read_history(self.storage, name).batches[-RECENT:], RECENT) for name in plans}

    def new_alerts(self, progress: Progress) -> list[ForecastAlert]:
        """The states that have left their forecast with this batch."""
        if progress.query not in self.plans:
            return []
        batches = self._batches[progress.query]
        batches.append(progress)
        alerts = forecast_alerts(self.plans[progress.query], list(batches))
        reported = self._reported.get(progress.query, set())
        self._reported[progress.query] = {(alert.operator, alert.who) for alert in alerts}
        return [alert for alert in alerts if (alert.operator, alert.who) not in reported]


def _operator_alerts(
    plan: QueryPlan,
    join: JoinPlan,
    forecasts: Sequence[StateForecast],
    numbers: OperatorMetrics,
    batches: Sequence[Progress],
) -> Iterator[ForecastAlert]:
    name, sides = join_name(join), port_names(len(join.ports))
    for port, side in enumerate(sides):
        mine = [spine_forecast for spine_forecast in forecasts if spine_forecast.port == port]
        rows = [spine_forecast.rows for spine_forecast in mine]
        # The state of a table or a window does not follow from rates.
        if (
            not mine
            or side not in numbers.sides
            or any(spine_forecast.rows is None or not spine_forecast.by_time for spine_forecast in mine)
        ):
            continue
        expected_rows, actual_rows = (
            sum(spine_forecast or 0.0 for spine_forecast in rows),
            numbers.sides[side].state_rows,
        )
        if actual_rows >= LEAST_ROWS and expected_rows >= 1 and actual_rows > FACTOR * expected_rows:
            reason = _reason(plan, join, mine[0], actual_rows - expected_rows, batches)
            yield ForecastAlert(name, mine[0].who, actual_rows, round(expected_rows), reason)
    shards, all_rows = numbers.shards, numbers.state_rows
    # Where a side goes to all shards, or to one, they differ by themselves.
    is_even = all(port.route not in ("all", "one") for port in join.ports)
    if is_even and shards > 1 and all_rows >= LEAST_ROWS and numbers.fullest > FACTOR * all_rows / shards:
        reason = f"One of its {shards} shards has {numbers.fullest:,} of {all_rows:,} rows: a key is heavy."
        yield ForecastAlert(name, "its fullest shard", numbers.fullest, round(all_rows / shards), reason)


def _reason(
    plan: QueryPlan, join: JoinPlan, forecast: StateForecast, excess: float, batches: Sequence[Progress]
) -> str:
    """The reason for a larger state: rows wait for a watermark, the rate has risen, or rows are retained for longer."""
    last = batches[-1]
    if forecast.behind is not None:
        own, other = (_slowest_watermark(last, join, port) for port in (forecast.port, forecast.behind))
        if own is not None and other is None:
            return f"They wait for a watermark of {_side_name(join, forecast.behind)}, which has no time yet."
        if own is not None and other is not None and own[1] > other[1]:
            by = own[1] - other[1]
            if forecast.per_second * by / 1e6 > excess / 2:
                length = rough_duration(by)
                return f"The watermark of {other[0]} holds them back: it is {length} behind that of {own[0]}."
    before, now = observe_rates(batches[:-LATELY], plan).rates, observe_rates(batches[-LATELY - 1 :], plan).rates
    for name in sorted(before.keys() & now.keys()):
        more = now[name].per_second / before[name].per_second
        if more > FASTER and name == forecast.who.lower():
            return f"{forecast.who} has {more:.1f} times the rate that it had before."
    return f"Rows are kept longer than {forecast.law}: check their times with `watersmeet state show`."


def _slowest_watermark(last: Progress, join: JoinPlan, port: int) -> tuple[str, int] | None:
    """The column of a side whose own watermark is furthest behind, and that watermark."""
    watermarks = [(time, last.own[time]) for time in join.ports[port].times if time in last.own]
    open_ = [(time, watermark) for time, watermark in watermarks if watermark != END_OF_INPUT]
    return min(open_, key=lambda pair: pair[1], default=None)


def _side_name(join: JoinPlan, port: int) -> str:
    times = join.ports[port].times
    return times[0] if times else "the other side"
