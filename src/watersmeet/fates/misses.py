"""Why rows that met nothing did not: what stood in the way of the rows that came nearest."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.fates.family import is_untrue
from watersmeet.fates.model import Cause, Miss
from watersmeet.fates.near import Near
from watersmeet.fates.stage import Stage
from watersmeet.fates.trace import Trace
from watersmeet.fates.words import capital, key_in_words
from watersmeet.joins.core.condition import Apply, Condition
from watersmeet.joins.core.rowwise import Row, evaluate, event_time

_SHOWN = 3
_BARRED = {"filtered", "null key", "null time", "unfit", "late"}
_WORST: tuple[Cause, ...] = (
    "no row", "near miss", "no such key", "no such time", "barred", "out of bounds", "condition", "waiting", "gone",
)  # fmt: skip
"""Where several sides lack a row, what is told of."""


@dataclass(frozen=True)
class _Others:
    """The rows of one side of a join by key, and what barred some of them from it."""

    by_key: Mapping[Any, list[int]]
    barred: Mapping[int, str]
    near: Near
    alive: frozenset[int]
    times: Sequence[int] = ()


def misses_of(trace: Trace) -> dict[int, Miss]:
    """For the arrivals that met nothing and were barred by nothing, why not."""
    found: dict[int, Miss] = {}
    whats: dict[int, set[str]] = {}
    for event in trace.notes.events:
        for arrival in trace.notes.flights.arrivals(event.flight):
            whats.setdefault(arrival, set()).add(event.what)
    for stage in trace.stages.values():
        if len(stage.plan.ports) < 2:
            continue
        others = [_others(trace, stage, port) for port in range(len(stage.plan.ports))]
        for port, rows in enumerate(stage.entered):
            for flight in rows:
                for arrival in trace.notes.flights.arrivals(flight):
                    if arrival not in found and not whats.get(arrival, set()) & {*_BARRED, "matched"}:
                        missed = [_miss(trace, stage, port, flight, n, o) for n, o in enumerate(others) if n != port]
                        found[arrival] = min(missed, key=lambda miss: _WORST.index(miss.cause))
    return found


def _others(trace: Trace, stage: Stage, port: int) -> _Others:
    by_key: dict[Any, list[int]] = {}
    columns, known = stage.family.equal(stage.operator, port), dict(stage.keys[port])
    for flight, (row, _) in stage.entered[port].items():
        key = stage.key(port, row)
        by_key.setdefault(key, []).append(flight)
        if key is not None:
            known.setdefault(key, [row[name] for name in columns])
    barred = {event.flight: event.reason for event in trace.notes.events if event.what in _BARRED}
    alive = frozenset(event.flight for event in trace.notes.events if event.what == "alive")
    times = sorted(event_time(one[0]) or 0 for one in known) if stage.family.lacking == "no such time" else ()
    return _Others(by_key, barred, Near(known, known), alive, times)


def _miss(trace: Trace, stage: Stage, port: int, own: int, other_port: int, others: _Others) -> Miss:
    """Why a row met none of another port."""
    row = stage.entered[port][own][0]
    key, name = stage.key(port, row), stage.names[other_port]
    same = others.by_key.get(key, [])
    hidden = stage.hidden[other_port].get(key, [])
    what = stage.family.lacking.removeprefix("no such ")
    if not same and hidden:
        arrival = trace.notes.flights.arrivals(hidden[0])[0]
        called = capital(str(trace.notes.flights.raw(arrival)))
        told = f"{called} has its {what}, but did not come to the join. {others.barred.get(hidden[0], '')}"
        return Miss("barred", told.strip(), arrival)
    if not same:
        return _lacking(stage, port, row, name, others)
    found: list[tuple[int, Miss]] = []
    for flight in same:
        other = stage.entered[other_port][flight][0]
        arrival = trace.notes.flights.arrivals(flight)[0]
        called = f"{trace.notes.flights.raw(arrival)} has its {what}, but"
        distance = stage.family.distance(stage.scene, port, row, other)
        if distance is not None:
            found.append(
                (1 + abs(distance.by), Miss("out of bounds", f"{called} {distance.text}", arrival, distance.by))
            )
        elif flight in others.barred:
            found.append((-1, Miss("barred", f"{called} could not meet it. {others.barred[flight]}", arrival)))
        else:
            failed = _failed(stage, port, row, other)
            cause, text = ("condition", f"{failed} is not true") if failed else _unmet(flight, own, others)
            found.append((0, Miss(cause, f"{called} {text}.", arrival)))
    found.sort(key=lambda one: one[0])
    first, more = found[0][1], len(found) - 1
    text = " ".join(capital(miss.text) for _, miss in found[:_SHOWN])
    rest = f" And {more + 1 - _SHOWN} more rows of {name} have it." if more + 1 > _SHOWN else ""
    return Miss(first.cause, capital(f"{text}{rest}"), first.by, first.distance)


def _unmet(flight: int, own: int, others: _Others) -> tuple[Cause, str]:
    """Why two rows that fit did not meet."""
    if {flight, own} <= others.alive:
        return "waiting", "both wait until it is certain that no other comes before it"
    return "gone", "they were not alive at the same time"


def _lacking(stage: Stage, port: int, row: Row, name: str, others: _Others) -> Miss:
    """Why a row met none of a side on which no row is equal to it in what must be."""
    columns = stage.family.equal(stage.operator, port)
    by_time = stage.family.lacking == "no such time"
    if not columns or (by_time and not others.times):
        return Miss("no row", f"No row of {name} came.")
    if by_time:
        return _no_time(stage, columns[0], row, name, others.times)
    near = others.near.to(stage.key(port, row))
    told = f"No row of {name} has its key {key_in_words([row[column] for column in columns])}."
    return Miss("no such key", told) if near is None else Miss("near miss", f"{told} {near}")


def _no_time(stage: Stage, column: str, row: Row, name: str, times: Sequence[int]) -> Miss:
    """Why a row met none of a side that has no row of its time, and how far the nearest is."""
    words, time = stage.scene.words, event_time(row[column]) or 0
    place = bisect(times, time)
    nearest = min(times[max(0, place - 1) : place + 1], key=lambda one: abs(one - time))
    apart = f"{words.distance(column, abs(nearest - time))} {'later' if nearest > time else 'earlier'}"
    told = f"No row of {name} has its time {words.moment(column, time)}; the nearest one is {apart}."
    return Miss("no such time", told, None, nearest - time)


def _failed(stage: Stage, port: int, row: Row, other: Row) -> str:
    """The parts of the condition that are not true of two rows."""
    both = {**row, **other}
    words = stage.scene.words
    condition: Condition | None = getattr(stage.operator, "condition", None)
    parts = condition.args if isinstance(condition, Apply) and condition.operator == "and" else (condition,)
    failed = [words.condition(part, both) for part in parts if part is not None and evaluate(part, both) is not True]
    failed += [words.failing(part, both) for part in stage.plan.after if is_untrue(part, both)]
    return " and ".join(failed)
