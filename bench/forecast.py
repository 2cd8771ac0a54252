"""Forecasts beside what was measured: of rows kept, of seconds per batch, of how often rows are written."""

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
"""The largest error of forecasts."""
CORES = 2


@dataclass(frozen=True)
class Beside:
    """A number as it was forecast and as it was measured."""

    said: float
    found: float

    @property
    def off(self) -> float:
        """By which share the forecast is too high or, below zero, too low."""
        return self.said / self.found - 1 if self.found else 0.0


def forecast_of(measured: dict[str, Any]) -> dict[str, Beside]:
    """The forecast for a run from its workload, next to the measurement."""
    workload = Workload(**measured["workload"])
    per_batch = 2 * workload.sizes[0]
    given = ForecastInput({}, CORES, measured["shards"])
    results = measured["results_per_second"] * measured["seconds_per_batch"]
    row = 28.0 + (workload.text + 4 if workload.text else 0)
    is_columnar = measured["contender"] != FRAMES
    seconds = batch_seconds(per_batch, results, given, row=row, columns=is_columnar)
    kept = per_batch / SECONDS_PER_BATCH * (workload.within + LAG_SECONDS)
    kept = min(kept, per_batch * workload.batches)
    per_run = per_batch / 2 / measured["shards"]
    return {
        "state": Beside(kept, measured["state_rows"]),
        "seconds": Beside(seconds, measured["seconds_per_batch"]),
        "written": Beside(times_written(per_run, kept / 2 / measured["shards"]), measured["write_amplification"]),
    }


def forecast_table(name: str, measured: list[dict[str, Any]]) -> Report:
    """The runs, each with what was forecast and by how much that was off."""
    headings = ("run", "kept, said", "found", "off", "seconds, said", "found", "off", "written, said", "found")
    rows = list[list[str]]()
    for m in measured:
        forecast = forecast_of(m)
        state, seconds, written = forecast["state"], forecast["seconds"], forecast["written"]
        rows.append([
            m["label"], f"{state.said:,.0f}", f"{state.found:,.0f}", _off(state, STATE),
            f"{seconds.said:.2f}", f"{seconds.found:.2f}", _off(seconds, TIME),
            f"{written.said:.1f}", f"{written.found:.1f}",
        ])  # fmt: skip
    title = "Forecast beside measured: rows kept, seconds per batch, times written"
    return Report(title, headings, rows, caption=verdict([forecast_of(m) for m in measured]))


def verdict(found: Sequence[Mapping[str, Beside]]) -> str:
    """The number of forecasts that held, and where their costs come from.

    >>> verdict([{"state": Beside(110, 100), "seconds": Beside(3, 2)}]).splitlines()[0]
    'Rows kept: 1 of 1 within 20 %. Seconds: 0 of 1 within 40 %.'
    """
    held = {
        name: sum(abs(one[name].off) <= most for one in found) for name, most in (("state", STATE), ("seconds", TIME))
    }
    kept = f"Rows kept: {held['state']} of {len(found)} within {STATE:.0%}".replace("%", " %")
    took = f"Seconds: {held['seconds']} of {len(found)} within {TIME:.0%}".replace("%", " %")
    return f"{kept}. {took}.\nCosts of commit {MEASURED.commit}, on {MEASURED.machine}."


def _off(beside: Beside, most: float) -> str:
    return f"{beside.off:+.0%}{'' if abs(beside.off) <= most else ' !'}"
