"""How long rows wait for each other and by how much they are late, as bars and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from watersmeet.duration import rough_duration
from watersmeet.explanation.family import PairDistance
from watersmeet.observe.following import HistoryFollower
from watersmeet.observe.metrics import OperatorMetrics
from watersmeet.operators.core.histogram import bucket_maximum
from watersmeet.page.described import QueryDescription

Unit = Literal["time", "number", "arrivals"]
"""What lengths are of: microseconds, numbers of a column, or rows that arrived."""
BARS = 14
"""How many bars a histogram has at most."""
PAIR = "Between the two rows of a pair"
PARTS = 4
"""Ranges of one power of two, which a bar holds together."""


def spreads_of(described: QueryDescription, following: HistoryFollower) -> list[dict[str, object]]:
    """The histograms of a query: those of each operator that has seen something."""
    histograms: list[dict[str, object]] = []
    several = len(following.operators) > 1
    for name, numbers in following.operators.items():
        where = f" in {name}" if several else ""
        is_time, distance = _is_temporal(described, following, name), described.pair_distances.get(name, PairDistance())
        if numbers.delays:
            unit: Unit = "time" if distance.unit == "clock" else "arrivals" if distance.unit == "arrivals" else is_time
            words = _delays_in_words(numbers, distance.bound, unit)
            histograms.append({"title": f"{PAIR}{where}", "words": words, "unit": unit, "bars": _bars(numbers.delays)})
        elif distance.why:
            histograms.append({"title": f"{PAIR}{where}", "words": distance.why, "unit": is_time, "bars": []})
        if numbers.lateness:
            words = _late_in_words(numbers, is_time)
            histograms.append(
                {"title": f"Late by{where}", "words": words, "unit": is_time, "bars": _bars(numbers.lateness)}
            )
    return histograms


def quantile(counts: Mapping[str, int], share: float) -> int:
    """What so large a share of the lengths does not exceed.

    >>> quantile({"1": 98, "9": 1, "13": 1}, 0.99)
    4
    """
    wanted, cumulative = share * sum(counts.values()), 0
    ranges = sorted((int(number), count) for number, count in counts.items())
    for number, count in ranges:
        cumulative += count
        if cumulative >= wanted:
            return bucket_maximum(number)
    return bucket_maximum(ranges[-1][0])


def _bars(counts: Mapping[str, int]) -> list[dict[str, object]]:
    """A bar per power of two; those below the largest ones are put together."""
    powers: dict[int, int] = {}
    for number, count in counts.items():
        power = -(-int(number) // PARTS)
        powers[power] = powers.get(power, 0) + count
    most = max(powers)
    least = max(min(powers), most - BARS + 1)
    below = sum(count for power, count in powers.items() if power < least)
    bars = [(power, powers.get(power, 0) + (below if power == least else 0)) for power in range(least, most + 1)]
    return [{"until": bucket_maximum(power * PARTS), "count": count} for power, count in bars]


def _delays_in_words(numbers: OperatorMetrics, bound: int | None, unit: Unit) -> str:
    """How long most pairs take, against the bound.

    >>> _delays_in_words(OperatorMetrics(delays={"118": 99, "125": 1}), 7_200_000_000, "time")
    '99 % within 13 min 25 s, the bound is 2 h.'
    """
    text = f"99 % within {_length(quantile(numbers.delays, 0.99), unit)}"
    return f"{text}, the bound is {_length(bound, unit)}." if bound is not None else f"{text}."


def _late_in_words(numbers: OperatorMetrics, unit: Unit) -> str:
    half, most = (_length(quantile(numbers.lateness, share), unit) for share in (0.5, 0.99))
    return f"Half by no more than {half}, 99 % by no more than {most}: a lag that much larger would include them."


def _length(micros: int, unit: Unit) -> str:
    if unit != "time":
        return f"{micros:,} arrivals" if unit == "arrivals" else f"{micros:,}"
    return rough_duration(micros) if micros >= 1_000_000 else f"{-(-micros // 1000)} ms"


def _is_temporal(described: QueryDescription, following: HistoryFollower, operator: str) -> Unit:
    last = following.totals.last
    columns = [column for side in described.sides.get(operator, {}).values() for column in side.columns]
    is_time = last is None or not columns or any(column in last.temporal for column in columns)
    return "time" if is_time else "number"
