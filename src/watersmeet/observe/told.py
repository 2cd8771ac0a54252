"""What the joins of an operator tell of a batch: numbers of each shard, which are put together wherever they meet.

A task puts those of its shards together and hands them to Spark as a text for each join; whoever reads the progress of
the query puts together those of all tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any

ShardMetrics = dict[str, dict[str, Any]]
"""Numbers by name, by what is made of those of two shards. None: a shard has nothing to say of it."""

REPORTS = "reports"
"""The number of an observation that holds the texts of all tasks."""


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
    """What a join tells, as Spark collects it."""
    return json.dumps({"join": join, **metrics}, default=int)


def by_join(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The numbers of each join, from the texts of all tasks.

    >>> by_join(to_text("a and b", {"sum": {"rows": rows}}) for rows in (1, 2))
    {'a and b': {'rows': 3}}
    """
    reports: dict[str, list[ShardMetrics]] = {}
    for text in texts:
        read = json.loads(text)
        reports.setdefault(read.pop("join"), []).append(read)
    return {
        join: {
            name: number for numbers in merge_shard_metrics(shard_reports).values() for name, number in numbers.items()
        }
        for join, shard_reports in reports.items()
    }
