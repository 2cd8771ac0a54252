"""How fast rows come: given, found by ``watersmeet advise``, or seen in the last runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from watersmeet.errors import refuse

Origin = Literal["given", "sampled", "runs"]
"""Where a rate comes from. ``sampled``: ``watersmeet advise`` has counted rows per event time; ``runs``: the batches of
the last runs did."""

_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*/\s*(s|sec|second|min|m|minute|h|hour|d|day)\s*")
_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400}


@dataclass(frozen=True)
class Rate:
    """Rows per second of event time of a source, and what else is known of its rows.

    ``widths``: the bytes of each column's values on average. ``heaviest``: the share of the heaviest key.
    """

    per_second: float
    origin: Origin = "given"
    widths: Mapping[str, float] = field(default_factory=dict[str, float])
    heaviest: float = 0.0


def parse_rate(text: str) -> float:
    """Rows per second, from a text such as ``2e6/s`` or ``500/min``.

    >>> parse_rate("2e6/s"), parse_rate("90/min")
    (2000000.0, 1.5)
    """
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise refuse("WRONG_RATE", rate=text)
    return float(match[1]) / _SECONDS.get(match[2], 86400)


def parse_rates(texts: Sequence[str]) -> dict[str, Rate]:
    """Rates by the names of sources, in small letters, from texts such as ``orders=1000/s``; "" is for all others.

    >>> parse_rates(["orders=60/min", "5/s"])[""].per_second
    5.0
    """
    rates: dict[str, Rate] = {}
    for text in texts:
        name, equals, rate = text.rpartition("=")
        rates[name.strip().lower() if equals else ""] = Rate(parse_rate(rate))
    return rates


def read_sampled_rates(path: Path) -> dict[str, Rate]:
    """The rates that ``watersmeet advise`` has found and kept; none if it has not run, or times are numbers."""
    try:
        advice: dict[str, Any] = json.loads(path.read_text("utf-8"))
        sides = [pair[side] for pair in advice["pairs"] if pair["unit"] != "number" for side in ("left", "right")]
        return {side["source"].lower(): _side_rate(side) for side in sides}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _side_rate(side: dict[str, Any]) -> Rate:
    heaviest = side["heaviest_keys"]
    return Rate(side["rows_per_unit"] * 1e6, "sampled", side["column_bytes"], heaviest[0][1] if heaviest else 0.0)
