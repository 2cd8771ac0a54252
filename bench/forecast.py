"""Forecasts compared with measurements: rows kept, seconds per batch, writes per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.contender import FRAMES
from bench.data import LAG_SECONDS, SECONDS_PER_BATCH, Workload
from bench.report import Report
from watersmeet.tools.forecast.inputs import MEASURED, times_written
from watersmeet.tools.forecast.query import ForecastInput, batch_seconds

STATE, TIME = 0.2, 0.4
"""The largest accepted error of forecasts."""
CORES = 2


@dataclass(frozen=True)
class ForecastCheck:
    """A number as forecast and as measured."""

    forecast: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error: above zero the forecast is too high, below zero too low."""
        return self.forecast / self.measured - 1 if self.measured else 0.0


def forecast_of(measured: dict[str, Any]) -> dict[str, ForecastCheck]:
    """The forecast for a run from its workload, with the measurement."""
    workload = Workload(**measured["workload"])
    per_batch = 2 * workload.sizes[0]
    inputs = ForecastInput({}, CORES, measured["shards"])
    results = measured["results_per_second"] * measured["seconds_per_batch"]
    row = 28.0 + (workload.text + 4 if workload.text else 0)
    is_columnar = measured["contender"] != FRAMES
    seconds = batch_seconds(per_batch, results, inputs, row=row, columns=is_columnar)
    state_rows = per_batch / SECONDS_PER_BATCH * (workload.within + LAG_SECONDS)
    state_rows = min(state_rows, per_batch * workload.batches)
    per_run = per_batch / 2 / measured["shards"]
    return {
        "state": ForecastCheck(state_rows, measured["state_rows"]),
        "seconds": ForecastCheck(seconds, measured["seconds_per_batch"]),
        "written": ForecastCheck(
            times_written(per_run, state_rows / 2 / measured["shards"]), measured["write_amplification"]
        ),
    }


def forecast_table(name: str, measured: list[dict[str, Any]]) -> Report:
    """The runs, each with the forecast, the measurement and the error."""
    headings = ("run", "kept, forecast", "measured", "error", "seconds, forecast", "measured", "error",
                "written, forecast", "measured")  # fmt: skip
    rows = list[list[str]]()
    for m in measured:
        forecast = forecast_of(m)
        state, seconds, written = forecast["state"], forecast["seconds"], forecast["written"]
        rows.append([
            m["label"], f"{state.forecast:,.0f}", f"{state.measured:,.0f}", _error_cell(state, STATE),
            f"{seconds.forecast:.2f}", f"{seconds.measured:.2f}", _error_cell(seconds, TIME),
            f"{written.forecast:.1f}", f"{written.measured:.1f}",
        ])  # fmt: skip
    title = "Forecast and measurement: rows kept, seconds per batch, times written"
    return Report(title, headings, rows, caption=verdict([forecast_of(m) for m in measured]))


def verdict(checks: Sequence[Mapping[str, ForecastCheck]]) -> str:
    """The number of forecasts within the accepted error, and the commit that their costs were measured on.

    >>> verdict([{"state": Beside(110, 100), "seconds": Beside(3, 2)}]).splitlines()[0]
    'Rows kept: 1 of 1 within 20 %. Seconds: 0 of 1 within 40 %.'
    """
    hits = {
        name: sum(abs(check[name].error) <= limit for check in checks)
        for name, limit in (("state", STATE), ("seconds", TIME))
    }
    rows = f"Rows kept: {hits['state']} of {len(checks)} within {STATE:.0%}".replace("%", " %")
    seconds = f"Seconds: {hits['seconds']} of {len(checks)} within {TIME:.0%}".replace("%", " %")
    return f"{rows}. {seconds}.\nCosts of commit {MEASURED.commit}, on {MEASURED.machine}."


def _error_cell(check: ForecastCheck, limit: float) -> str:
    return f"{check.error:+.0%}{'' if abs(check.error) <= limit else ' !'}"
