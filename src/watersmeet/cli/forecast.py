"""``explain --forecast``: how large queries get and how long their batches take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from watersmeet.cli.advise import KEPT
from watersmeet.cli.failure import Format
from watersmeet.cli.run import storage_folder
from watersmeet.cli.script import Opened, open_script
from watersmeet.duration import parse_duration
from watersmeet.errors import did_you_mean, refuse
from watersmeet.families import OPERATORS
from watersmeet.forecast.query import Given, forecast_query
from watersmeet.forecast.rates import given_rates, sampled_rates
from watersmeet.forecast.report import as_data, render
from watersmeet.physical import plan_query, together_of


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
    opened = open_script(path)
    given = _given(opened, load)
    together = together_of(opened.script)
    plans = [plan_query(query, OPERATORS, together=together) for query in opened.queries]
    found = [
        (query.into or f"query{number}", forecast_query(plan, OPERATORS, given))
        for number, (query, plan) in enumerate(zip(opened.queries, plans, strict=True), 1)
    ]
    if format is Format.json:
        typer.echo(json.dumps([{"query": name, **as_data(one)} for name, one in found], indent=2))
    else:
        typer.echo("\n\n".join(f"{name}: {render(one)}" for name, one in found))


def _given(opened: Opened, load: Load) -> Given:
    """Rates that are given go before those that were sampled; without any nothing can be said."""
    names = {source.name.lower() for source in opened.script.sources}
    kept = storage_folder(opened.project) / KEPT
    rates = {**sampled_rates(kept), **given_rates(load.rates)}
    behind = dict(_behind(text) for text in load.behind)
    keys = dict(_keys(text) for text in load.keys)
    for name in (*rates, *behind, *keys):
        if name and name not in names:
            raise refuse("UNKNOWN_SOURCE", source=name, suggestion=did_you_mean(name, names))
    if not rates:
        raise refuse("NO_RATES", project=opened.project.script_name)
    settings = {one.name.lower(): one.value for one in opened.script.settings}
    shards = load.shards or int(settings.get("watersmeet.shards", load.cores))
    return Given(rates, load.cores, shards, behind, keys)


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
