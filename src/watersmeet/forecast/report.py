"""A forecast as people read it and as machines do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from watersmeet.counts import format_count
from watersmeet.duration import rough_duration
from watersmeet.forecast.query import OperatorForecast, QueryForecast, StateForecast
from watersmeet.forecast.units import format_quantity

UNKNOWN = "not known"
ORIGINS = {"given": "given", "sampled": "sampled", "runs": "of the last runs"}


def render(forecast: QueryForecast) -> str:
    """The forecast of a query as text, every number beside the law that it follows."""
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
        yield f"├─ read     {format_quantity(read, 'B')} by every batch, because the state does not fit into the cache"
    for missing in forecast.unknown_inputs:
        yield f"├─ missing  {missing}"
    rough = f"times are rough, measured at {inputs.costs.commit}"
    yield f"└─ assumed  one result for each row of the slower side; {rough}"


def _fullest(state: StateForecast) -> str:
    return "" if state.fullest is None else f"{_number(state.fullest, 'rows')} in the fullest shard"


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else format_quantity(value, unit)


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of a table in columns."""
    if rows:
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_data(forecast: QueryForecast) -> dict[str, object]:
    """The forecast of a query for machines; what is not known is null."""
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
