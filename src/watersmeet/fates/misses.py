"""Why rows that met nothing did not: what stood in the way of the rows that came nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watersmeet.fates.family import is_untrue
from watersmeet.fates.model import Cause, Miss
from watersmeet.fates.near import Near
from watersmeet.fates.stage import Stage
from watersmeet.fates.trace import Trace
from watersmeet.fates.words import capital
from watersmeet.joins.core.condition import Apply, Condition
from watersmeet.joins.core.rowwise import Row, evaluate

_SHOWN = 3
_BARRED = {"filtered", "null key", "null time", "unfit", "late"}


@dataclass(frozen=True)
class _Others:
    """The rows of one side of a join by key, and what barred some of them from it."""

    by_key: Mapping[Any, list[int]]
    barred: Mapping[int, str]
    near: Near
    alive: frozenset[int]


def misses_of(trace: Trace) -> dict[int, Miss]:
    """For the arrivals that met nothing and were barred by nothing, why not."""
    found: dict[int, Miss] = {}
    whats: dict[int, set[str]] = {}
    for event in trace.notes.events:
        for arrival in trace.notes.flights.arrivals(event.flight):
            whats.setdefault(arrival, set()).add(event.what)
    for stage in trace.stages.values():
        if len(stage.plan.ports) != 2:
            continue
        others = [_others(trace, stage, port) for port in (0, 1)]
        for port, rows in enumerate(stage.entered):
            for flight in rows:
                for arrival in trace.notes.flights.arrivals(flight):
                    if arrival not in found and not whats.get(arrival, set()) & {*_BARRED, "matched"}:
                        found[arrival] = _miss(trace, stage, port, flight, others[1 - port])
    return found


def _others(trace: Trace, stage: Stage, port: int) -> _Others:
    by_key: dict[Any, list[int]] = {}
    for flight, (row, _) in stage.entered[port].items():
        by_key.setdefault(stage.key(port, row), []).append(flight)
    barred = {event.flight: event.reason for event in trace.notes.events if event.what in _BARRED}
    known = {*(one for one in by_key if one is not None), *stage.keys[port]}
    alive = frozenset(event.flight for event in trace.notes.events if event.what == "alive")
    return _Others(by_key, barred, Near(known), alive)


def _miss(trace: Trace, stage: Stage, port: int, own: int, others: _Others) -> Miss:
    row = stage.entered[port][own][0]
    key, name = stage.key(port, row), stage.names[1 - port]
    same = others.by_key.get(key, [])
    hidden = stage.hidden[1 - port].get(key, [])
    if not same and hidden:
        arrival = trace.notes.flights.arrivals(hidden[0])[0]
        called = capital(str(trace.notes.flights.raw(arrival)))
        told = f"{called} has its key, but did not come to the join. {others.barred.get(hidden[0], '')}"
        return Miss("barred", told.strip(), arrival)
    if not same:
        return _no_key(key, name, others)
    found: list[tuple[int, Miss]] = []
    for flight in same:
        other = stage.entered[1 - port][flight][0]
        arrival = trace.notes.flights.arrivals(flight)[0]
        called = f"{trace.notes.flights.raw(arrival)} has its key, but"
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


def _no_key(key: Any, name: str, others: _Others) -> Miss:
    if not key:
        return Miss("no row", f"No row of {name} came.")
    near = others.near.to(key)
    shown = ", ".join(str(value) for value in key)
    told = f"No row of {name} has its key {shown}."
    return Miss("no such key", told) if near is None else Miss("near miss", f"{told} {near}")


def _failed(stage: Stage, port: int, row: Row, other: Row) -> str:
    """The parts of the condition that are not true of two rows."""
    both = {**row, **other}
    words = stage.scene.words
    condition: Condition | None = getattr(stage.operator, "condition", None)
    parts = condition.args if isinstance(condition, Apply) and condition.operator == "and" else (condition,)
    failed = [words.condition(part, both) for part in parts if part is not None and evaluate(part, both) is not True]
    failed += [words.failing(part, both) for part in stage.plan.after if is_untrue(part, both)]
    return " and ".join(failed)
