"""What the joins of an operator tell of a batch: numbers of each shard, which are put together wherever they meet.

A task puts those of its shards together and hands them to Spark as a text for each join; whoever reads the progress of
the query puts together those of all tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import add
from typing import Any

Told = dict[str, dict[str, Any]]
"""Numbers by name, by what is made of those of two shards. None: a shard has nothing to say of it."""

TELLS = "reports"
"""The number of an observation that holds the texts of all tasks."""


def _added(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {**left, **{name: left.get(name, 0) + number for name, number in right.items()}}


HOW: Mapping[str, Callable[[Any, Any], Any]] = {"sum": add, "highest": max, "lowest": min, "sums": _added}


def put_together(told: Iterable[Told]) -> Told:
    """The numbers of several shards as those of one.

    >>> put_together([{"sum": {"rows": 1}, "lowest": {"a.t": 5}}, {"sum": {"rows": 2}, "lowest": {"a.t": None}}])
    {'sum': {'rows': 3}, 'lowest': {'a.t': 5}}
    """
    found: Told = {}
    for one in told:
        for how, numbers in one.items():
            known = found.setdefault(how, {})
            for name, number in numbers.items():
                before = known.get(name)
                known[name] = number if before is None else before if number is None else HOW[how](before, number)
    return found


def to_text(join: str, told: Told) -> str:
    """What a join tells, as Spark collects it."""
    return json.dumps({"join": join, **told}, default=int)


def by_join(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The numbers of each join, from the texts of all tasks.

    >>> by_join(to_text("a and b", {"sum": {"rows": rows}}) for rows in (1, 2))
    {'a and b': {'rows': 3}}
    """
    found: dict[str, list[Told]] = {}
    for text in texts:
        read = json.loads(text)
        found.setdefault(read.pop("join"), []).append(read)
    return {
        join: {name: number for numbers in put_together(told).values() for name, number in numbers.items()}
        for join, told in found.items()
    }
