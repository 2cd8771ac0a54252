"""The forecast of a query: the state of its operators, the duration of a batch, its memory and disk; and alerts by it.

Stored rows: the rate of a port times the retention of its rows. Bytes: rows times the width of a row. A batch takes its
fixed time plus the time of its rows; while it runs, the rows of the next one arrive, so that a query which keeps up
converges to ``fixed / (1 - busy)`` seconds, where ``busy`` is the share of the cores that rows need.

A forecast is shown as text or as data.

An alert is about a state that exceeds its forecast: twice the rate of rows times their retention. It names the likely
reason. The forecast is that of ``explain --forecast`` with the rates of the runs up to now. A state that has not grown
yet is smaller than its forecast, which is not reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from watersmeet.duration import align_columns, format_count, rough_duration
from watersmeet.locations import Storage
from watersmeet.metrics.history import read_history
from watersmeet.metrics.metrics import OperatorMetrics
from watersmeet.metrics.progress import Progress
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT, port_names
from watersmeet.operators.explainer import ForecastFamilies, PortRetention
from watersmeet.physical import JoinPlan, QueryPlan, join_name, join_plans
from watersmeet.physical.columnar import holds_records, is_columnar
from watersmeet.physical.nodes import PortPlan, RelationPlan
from watersmeet.tools.forecast.inputs import (
    MEASURED,
    RECENT,
    Costs,
    Rate,
    format_quantity,
    observe_rates,
    row_bytes,
    runs_alive,
    times_written,
)

FULL = 0.95
"""A query whose rows need a larger share of the cores than this does not keep up."""


@dataclass(frozen=True)
class ForecastInput:
    """The input of a forecast.

    ``rates`` by the names of sources in small letters, "" for all others. ``keys``: the number of keys of a table, or
    of a grouping of a source. ``behind``: by how many microseconds the times of a source are behind those of the
    others.
    """

    rates: Mapping[str, Rate]
    cores: int = 2
    shards: int = 2
    behind: Mapping[str, int] = field(default_factory=dict[str, int])
    keys: Mapping[str, int] = field(default_factory=dict[str, int])
    costs: Costs = MEASURED

    def rate(self, source: str) -> Rate | None:
        """The rate of a source, if it is known."""
        return self.rates.get(source.lower(), self.rates.get(""))


@dataclass(frozen=True)
class StateForecast:
    """The state of an operator's port: ``rows`` and ``bytes``, or what is ``missing`` for them; ``law`` in words.

    ``fullest``: how many of the rows are in the fullest shard. ``port``: the port of the rows; ``behind``: the port
    whose watermark expires them. ``per_second``: the rate; ``by_time``: whether the rate determines the size.
    """

    who: str
    law: str
    rows: float | None = None
    bytes: float | None = None
    fullest: float | None = None
    missing: str = ""
    port: int = 0
    behind: int | None = None
    per_second: float = 0.0
    by_time: bool = False


@dataclass(frozen=True)
class OperatorForecast:
    """The forecast of one operator's state and work. ``rows_in``: per second; ``written``: how often a row is written.

    ``row_seconds``: seconds of cores per second of rows; ``read``: bytes of its state that every batch reads again.
    """

    name: str
    states: tuple[StateForecast, ...]
    rows_in: float | None
    written: float | None
    row_seconds: float | None
    read: float


@dataclass(frozen=True)
class QueryForecast:
    """The needs of a query. Without ``seconds`` an input is missing, or, if it is ``too_slow``, it does not keep up."""

    operators: tuple[OperatorForecast, ...]
    inputs: ForecastInput
    rows_in: float | None
    busy: float | None
    seconds: float | None
    memory: float | None
    disk: float | None
    disk_per_second: float | None

    @property
    def is_too_slow(self) -> bool:
        """Whether its rows come faster than they are joined."""
        return self.busy is not None and self.busy >= FULL

    @property
    def unknown_inputs(self) -> tuple[str, ...]:
        """The inputs that are missing for a complete forecast."""
        return tuple(
            dict.fromkeys(state.missing for operator in self.operators for state in operator.states if state.missing)
        )


def forecast_query(plan: QueryPlan, families: ForecastFamilies, inputs: ForecastInput) -> QueryForecast:
    """The forecast of a query over its plan."""
    plans = join_plans(plan.relation)
    operators = tuple(_operator(plan, families, inputs) for plan in plans)
    states = [state for operator in operators for state in operator.states]
    stored = None if any(state.bytes is None for state in states) else sum(state.bytes or 0 for state in states)
    rates = [inputs.rate(scan.source.name) for scan in plan.relation.leaves]
    rows_in = (
        None if any(rate is None for rate in rates) else sum(rate.per_second for rate in rates if rate is not None)
    )
    needs = [operator.row_seconds for operator in operators]
    busy = None
    if rows_in is not None and all(need is not None for need in needs):
        busy = sum(need or 0 for need in needs) / _usable_cores(inputs, plans, rates)
    shared = sum(port.is_chained for plan in plans for port in plan.ports)
    fixed = (
        overhead_seconds(len(plans) - shared, inputs)
        + sum(operator.read for operator in operators) * inputs.costs.read / inputs.cores
    )
    seconds = None if busy is None or busy >= FULL else fixed / (1 - busy)
    per_second = _write_rate(operators, states)
    in_batch = None if seconds is None or rows_in is None else rows_in * seconds * _width(plans, inputs)
    return QueryForecast(
        operators, inputs, rows_in, busy, seconds,
        None if stored is None or in_batch is None else memory(inputs, stored, in_batch),
        None if stored is None else stored * inputs.costs.stored,
        per_second,
    )  # fmt: skip


def overhead_seconds(operators: int, inputs: ForecastInput) -> float:
    """The seconds of a batch without rows: Spark's overhead, and calls and tasks that wait for a core."""
    costs = inputs.costs
    calls = operators * inputs.shards * costs.shard + (operators + 1) * inputs.cores * costs.task
    return costs.batch + max(0, operators - 1) * costs.stage + calls / inputs.cores


def batch_seconds(
    rows: float, results: float, inputs: ForecastInput, *, row: float = 0.0, operators: int = 1, columns: bool = True
) -> float:
    """The seconds of a batch of this many rows of ``row`` bytes, and results, on cores that share them evenly."""
    costs = inputs.costs
    work = rows * costs.per_row(row, columns=columns) + results * costs.result
    return overhead_seconds(operators, inputs) + work / min(inputs.cores, inputs.shards)


def memory(inputs: ForecastInput, stored: float, in_batch: float) -> float:
    """Bytes of memory: Spark's own process, a worker per core and step, the rows of a batch, and runs at hand."""
    costs = inputs.costs
    rows = min(in_batch, inputs.cores * costs.piece) * costs.copies
    return costs.jvm + 2 * inputs.cores * costs.worker + rows + min(stored, costs.mapped)


def _usable_cores(inputs: ForecastInput, plans: tuple[JoinPlan, ...], rates: list[Rate | None]) -> float:
    """The number of cores that rows can use: not more than shards, and a heavy key has one."""
    heaviest = max((rate.heaviest for rate in rates if rate is not None), default=0.0)
    is_one = any(port.route == "one" for plan in plans for port in plan.ports)
    most = 1.0 if is_one else float(min(inputs.cores, inputs.shards))
    return min(most, 1 / heaviest) if heaviest > 0 else most


def _reads_files(port: PortPlan) -> bool:
    """Whether workers read the files of a side: decoding records costs more."""
    return is_columnar(port) and not any(holds_records(scan) for scan in port.input.leaves)


def _operator(plan: JoinPlan, families: ForecastFamilies, inputs: ForecastInput) -> OperatorForecast:
    # What stands behind a relation, or follows the upserts of a source, goes by the name of its operator.
    retentions = families[getattr(plan.analyzed, "family", plan.operator.name)].forecast(plan)
    states = tuple(
        replace(_state_forecast(plan, retention, inputs), port=retention.port, behind=retention.behind)
        for retention in retentions
    )
    rates = [_rate(port.input, inputs) for port in plan.ports]
    port_rates = [rate for rate in rates if rate is not None]
    rows_in = sum(rate.per_second for rate in port_rates) if len(port_rates) == len(rates) else None
    costs = inputs.costs
    work = None
    if rows_in is not None:
        # As many results as the slower side has rows, assuming one match per row.
        widths = [_port_width(port, inputs) for port in plan.ports]
        per_row = [
            costs.per_row(width, columns=_reads_files(port)) for port, width in zip(plan.ports, widths, strict=True)
        ]
        work = sum(rate.per_second * cost for rate, cost in zip(port_rates, per_row, strict=True))
        work += min(rate.per_second for rate in port_rates) * costs.result
    written, read = None, 0.0
    if work is not None and rows_in is not None and all(state.rows is not None for state in states):
        per_run = rows_in * overhead_seconds(1, inputs) / inputs.shards / len(plan.ports)
        alive = sum(state.rows or 0 for state in states) / inputs.shards / max(1, len(states))
        written = times_written(per_run, alive)
        # Within bounds of time all that is alive is in reach: rows are looked for in every run of it.
        is_reached = all(retention.bound is not None for retention in retentions)
        work += rows_in * runs_alive(per_run, alive) * costs.probe if is_reached else 0.0
        stored = sum(state.bytes or 0 for state in states)
        matches = rows_in * overhead_seconds(1, inputs)
        read = costs.bytes_read(stored, matches) if is_reached else 0.0
    return OperatorForecast(plan.operator.name, states, rows_in, written, work, read)


def _state_forecast(plan: JoinPlan, retention: PortRetention, inputs: ForecastInput) -> StateForecast:
    port = plan.ports[retention.port]
    who = _source_names(port.input)
    rate = _rate(port.input, inputs)
    width = _port_width(port, inputs)
    if retention.by == "unknown":
        missing = f"the state of {who}, which the plan does not determine: {retention.law}"
        return StateForecast(who, retention.law, missing=missing)
    if retention.by == "keys" or retention.per_key:
        names = [scan.source.name.lower() for scan in port.input.leaves]
        keys = next((inputs.keys[name] for name in names if name in inputs.keys), None)
        if keys is None:
            return StateForecast(who, retention.law, missing=f"the number of keys of {who}: `--keys {names[0]}=1000`")
        rows = float(keys * (retention.amount if retention.per_key else 1))
    elif retention.by == "number":
        rows = float(retention.amount)
    elif rate is None:
        return StateForecast(who, retention.law, missing=_rate_hint(port.input, who))
    else:
        behind = 0 if retention.behind is None else _behind(plan.ports[retention.behind].input, inputs)
        rows = rate.per_second * (retention.amount + behind) / 1e6
    spread = 1.0 if port.route == "all" else max(1 / inputs.shards, rate.heaviest if rate is not None else 0.0)
    spread = 1.0 if port.route == "one" else spread
    copies = inputs.shards if port.route == "all" else 1
    per_second, by_time = 0.0 if rate is None else rate.per_second, retention.by == "time" and not retention.per_key
    stored = rows * copies
    return StateForecast(
        who, retention.law, stored, stored * width, rows * spread, per_second=per_second, by_time=by_time
    )


def _rate_hint(relation: RelationPlan, who: str) -> str:
    if relation.scan is not None:
        name = relation.scan.source.name
        return f"the rate of {name}: `--rate {name}=1000/s`, or `watersmeet advise`"
    return f"the rate at which the previous join sends rows to {who}"


def _rate(relation: RelationPlan, inputs: ForecastInput) -> Rate | None:
    """The rate of the input of a port; unknown if that is a join."""
    scan = relation.origin.scan
    if scan is None:
        return None
    if not scan.parts:
        return inputs.rate(scan.source.name)
    whole = inputs.rates.get(scan.source_name.lower())
    if whole is not None:
        return whole
    rates = [inputs.rate(part.name) for part in scan.parts]
    part_rates = [rate for rate in rates if rate is not None]
    return Rate(sum(rate.per_second for rate in part_rates)) if len(part_rates) == len(rates) else None


def _behind(relation: RelationPlan, inputs: ForecastInput) -> int:
    return max((inputs.behind.get(scan.source.name.lower(), 0) for scan in relation.leaves), default=0)


def _source_names(relation: RelationPlan) -> str:
    return " with ".join(scan.alias if scan.parts else scan.source.name for scan in relation.leaves)


def _port_width(port: PortPlan, inputs: ForecastInput) -> float:
    scans = {scan.alias: scan for scan in port.input.leaves}

    def column(name: str) -> tuple[str, str | None]:
        alias, _, own = name.partition(".")
        field = scans[alias].source.field(own) if alias in scans else None
        return own.lower(), None if field is None else field.type

    widths: dict[str, float] = {}
    for scan in scans.values():
        rate = inputs.rate(scan.source.name)
        widths |= {name.lower(): width for name, width in (rate.widths.items() if rate is not None else ())}
    return row_bytes((column(name) for name in port.names), widths)


def _width(plans: tuple[JoinPlan, ...], inputs: ForecastInput) -> float:
    widths = [_port_width(port, inputs) for plan in plans for port in plan.ports]
    return sum(widths) / max(1, len(widths))


def _write_rate(operators: tuple[OperatorForecast, ...], states: list[StateForecast]) -> float | None:
    """Bytes that are written to the state per second."""
    if any(operator.rows_in is None or operator.written is None for operator in operators):
        return None
    width = sum(state.bytes or 0 for state in states) / max(1.0, sum(state.rows or 0 for state in states))
    return sum((operator.rows_in or 0) * (operator.written or 1) for operator in operators) * width


UNKNOWN = "not known"
ORIGINS = {"given": "given", "sampled": "sampled", "runs": "of the last runs"}


def render(forecast: QueryForecast) -> str:
    """The forecast of a query as text, each number with its formula."""
    return "\n".join(_lines(forecast))


def _lines(forecast: QueryForecast) -> Iterator[str]:
    inputs = forecast.inputs
    yield f"forecast on {format_count(inputs.cores, 'core')}, in {format_count(inputs.shards, 'shard')}"
    rates = [
        f"{name or 'every other source'} {format_quantity(rate.per_second, 'rows/s')} ({ORIGINS[rate.origin]})"
        for name, rate in inputs.rates.items()
    ]
    yield f"├─ rates    {', '.join(rates) or 'none are known'}"
    behind = [f"{name} {rough_duration(by)}" for name, by in inputs.behind.items() if by]
    if behind:
        yield f"├─ behind   {', '.join(behind)}"
    for operator in forecast.operators:
        yield f"├─ {operator.name}"
        rows = [
            (f"│    {state.who}", _number(state.rows, "rows"), _number(state.bytes, "B"), _fullest(state), state.law)
            for state in operator.states
        ]
        yield from align_columns(rows)
    busy = UNKNOWN if forecast.busy is None else f"{forecast.busy:.0%} of the cores' time"
    yield f"├─ busy     {busy}"
    if forecast.is_too_slow:
        yield "├─ a batch  takes longer and longer: rows arrive faster than they are joined. Use more cores and shards."
    else:
        yield f"├─ a batch  {_number(forecast.seconds, 's')}, if it starts when the one before ends"
    yield f"├─ memory   {_number(forecast.memory, 'B')}: Spark, its workers, the rows of a batch, cached runs"
    per_second = f"{_number(forecast.disk_per_second, 'B/s')} written"
    yield f"├─ disk     {_number(forecast.disk, 'B')} of state, {per_second}"
    read = sum(operator.read for operator in forecast.operators)
    if read:
        yield f"├─ read     {format_quantity(read, 'B')} by every batch, since not all of the state is cached"
    for missing in forecast.unknown_inputs:
        yield f"├─ missing  {missing}"
    rough = f"times are rough, measured at {inputs.costs.commit}"
    yield f"└─ assumed  one result for each row of the slower side; {rough}"


def _fullest(state: StateForecast) -> str:
    return "" if state.fullest is None else f"{_number(state.fullest, 'rows')} in the fullest shard"


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else format_quantity(value, unit)


def as_data(forecast: QueryForecast) -> dict[str, object]:
    """The forecast of a query as JSON; unknown values are null."""
    inputs = forecast.inputs
    return {
        "cores": inputs.cores,
        "shards": inputs.shards,
        "rates": {name: {"per_second": r.per_second, "origin": r.origin} for name, r in inputs.rates.items()},
        "operators": [_operator_data(operator) for operator in forecast.operators],
        "rows_in": forecast.rows_in,
        "busy": forecast.busy,
        "is_too_slow": forecast.is_too_slow,
        "seconds": forecast.seconds,
        "memory": forecast.memory,
        "disk": forecast.disk,
        "disk_per_second": forecast.disk_per_second,
        "missing": list(forecast.unknown_inputs),
        "costs": {"commit": inputs.costs.commit, "machine": inputs.costs.machine},
    }


def _operator_data(operator: OperatorForecast) -> dict[str, object]:
    """The forecast of an operator; ``kept`` is the documented name of its states."""
    return {"kept" if name == "states" else name: value for name, value in asdict(operator).items()}


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
