"""The numbers that the shards of an operator report in a batch: their names, and how those of several shards merge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any

WATERMARK_PREFIX = "watermark:"
"""How the names of marks in them begin: per watermarked column, the mark of the shard that is furthest behind."""


EXAMPLE_PREFIX = "example:"
"""How the names begin under which some rows are told, by kind, as JSON."""


OWN_WATERMARK_PREFIX = "own:"
"""How the names of marks begin that a side has by itself, whether the other side is as far or not."""


def port_names(ports: int) -> tuple[str, ...]:
    """The names of the ports of a join in its metrics.

    >>> port_names(2), port_names(3)
    (('left', 'right'), ('1', '2', '3'))
    """
    return ("left", "right") if ports == 2 else tuple(str(port + 1) for port in range(ports))


ShardMetrics = dict[str, dict[str, Any]]
"""Numbers by name, by what is made of those of two shards. None: a shard has nothing to say of it."""


def _add_counts(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {**left, **{name: left.get(name, 0) + number for name, number in right.items()}}


FOLDS: Mapping[str, Callable[[Any, Any], Any]] = {"sum": add, "highest": max, "lowest": min, "sums": _add_counts}


def merge_shard_metrics(reports: Iterable[ShardMetrics]) -> ShardMetrics:
    """The numbers of several shards as those of one.

    >>> merge_shard_metrics([{"sum": {"rows": 1}, "lowest": {"a.t": 5}}, {"sum": {"rows": 2}, "lowest": {"a.t": None}}])
    {'sum': {'rows': 3}, 'lowest': {'a.t': 5}}
    """
    merged: ShardMetrics = {}
    for report in reports:
        for fold, numbers in report.items():
            merged_numbers = merged.setdefault(fold, {})
            for name, number in numbers.items():
                before = merged_numbers.get(name)
                merged_numbers[name] = (
                    number if before is None else before if number is None else FOLDS[fold](before, number)
                )
    return merged


def to_text(join: str, metrics: ShardMetrics) -> str:
    """Encode the metrics of a join as the text that Spark collects."""
    return json.dumps({"join": join, **metrics}, default=int)
