"""``explain --forecast``: how large queries get and how long their batches take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from watersmeet.cli.advise import ADVICE_FILE
from watersmeet.cli.failure import Format
from watersmeet.cli.output import print_text
from watersmeet.cli.run import storage_folder
from watersmeet.cli.script import OpenedScript, open_script
from watersmeet.duration import parse_duration
from watersmeet.errors import did_you_mean, refuse
from watersmeet.forecast.query import ForecastInput, forecast_query
from watersmeet.forecast.rates import parse_rates, read_sampled_rates
from watersmeet.forecast.report import as_data, render
from watersmeet.observe.history import read_history
from watersmeet.observe.rates import merge_rates, observe_rates
from watersmeet.operators import OPERATORS
from watersmeet.physical import QueryPlan, plan_query, read_chaining


@dataclass(frozen=True)
class Load:
    """What options say: rates (``orders=1000/s``), times that are behind (``orders=5m``), keys, and what Spark has."""

    rates: Sequence[str] = ()
    behind: Sequence[str] = ()
    keys: Sequence[str] = ()
    cores: int = 2
    shards: int | None = None


def forecast_project(path: Path, load: Load, format: Format) -> None:
    """Print what every query will keep and take."""
    opened = open_script(path, sends="nothing resolved")
    chaining = read_chaining(opened.script)
    plans = {
        query.into or f"query{number}": plan_query(query, OPERATORS, chains=chaining)
        for number, query in enumerate(opened.queries, 1)
    }
    inputs = _forecast_inputs(opened, load, plans)
    forecasts = [(name, forecast_query(plan, OPERATORS, inputs)) for name, plan in plans.items()]
    if format is Format.json:
        typer.echo(json.dumps([{"query": name, **as_data(forecast)} for name, forecast in forecasts], indent=2))
    else:
        print_text("\n\n".join(f"{name}: {render(forecast)}" for name, forecast in forecasts))


def _forecast_inputs(opened: OpenedScript, load: Load, plans: Mapping[str, QueryPlan]) -> ForecastInput:
    """What is given goes before what the last runs saw, and that before what was sampled; without rates, nothing."""
    names, storage = {source.name.lower() for source in opened.script.sources}, storage_folder(opened.project)
    observed = merge_rates(
        [observe_rates(read_history(storage, name).batches, plan) for name, plan in plans.items()],
        read_sampled_rates(storage / ADVICE_FILE),
    )
    stated = parse_rates(load.rates)
    # One that is typed for all sources goes before any that was seen.
    rates = {**({} if "" in stated else observed.rates), **stated}
    behind = {**observed.behind, **dict(_behind(text) for text in load.behind)}
    keys = {**observed.keys, **dict(_keys(text) for text in load.keys)}
    for name in (*rates, *behind, *keys):
        if name and not names.issuperset(name.split("+")):
            raise refuse("UNKNOWN_SOURCE", source=name, suggestion=did_you_mean(name, names))
    if not rates:
        raise refuse("NO_RATES", project=opened.project.script_name)
    settings = {setting.name.lower(): setting.value for setting in opened.script.settings}
    shards = load.shards or int(settings.get("watersmeet.shards", load.cores))
    return ForecastInput(rates, load.cores, shards, behind, keys)


def _keys(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    try:
        return name.strip().lower(), int(float(number))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"--keys {text}: write SOURCE=NUMBER, such as customers=1e6") from None


def _behind(text: str) -> tuple[str, int]:
    name, _, length = text.rpartition("=")
    try:
        return name.strip().lower(), parse_duration(length)
    except ValueError as error:
        raise typer.BadParameter(f"--behind {text}: {error}") from None
