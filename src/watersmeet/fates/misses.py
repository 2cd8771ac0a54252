"""Why rows that met nothing did not: what stood in the way of the rows that came nearest."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.fates.family import is_untrue
from watersmeet.fates.model import Cause, UnmatchedReason
from watersmeet.fates.near import NearKeys
from watersmeet.fates.stage import TraceStage
from watersmeet.fates.trace import Trace
from watersmeet.fates.words import capital, key_in_words
from watersmeet.operators.core.condition import Apply, Condition
from watersmeet.operators.core.rowwise import Row, evaluate, event_time

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
    near: NearKeys
    alive: frozenset[int]
    times: Sequence[int] = ()


def find_unmatched_reasons(trace: Trace) -> dict[int, UnmatchedReason]:
    """For the arrivals that met nothing and were barred by nothing, why not."""
    reasons: dict[int, UnmatchedReason] = {}
    whats: dict[int, set[str]] = {}
    for event in trace.recorder.events:
        for arrival in trace.recorder.traced_rows.arrivals(event.row_id):
            whats.setdefault(arrival, set()).add(event.what)
    for stage in trace.stages.values():
        if len(stage.plan.ports) < 2:
            continue
        others = [_others(trace, stage, port) for port in range(len(stage.plan.ports))]
        for port, rows in enumerate(stage.entered):
            for row_id in rows:
                for arrival in trace.recorder.traced_rows.arrivals(row_id):
                    if arrival not in reasons and not whats.get(arrival, set()) & {*_BARRED, "matched"}:
                        candidates = [
                            _find_reason(trace, stage, port, row_id, n, o) for n, o in enumerate(others) if n != port
                        ]
                        reasons[arrival] = min(candidates, key=lambda miss: _WORST.index(miss.cause))
    return reasons


def _others(trace: Trace, stage: TraceStage, port: int) -> _Others:
    by_key: dict[Any, list[int]] = {}
    columns, values_by_key = stage.family.equal_columns(stage.operator, port), dict(stage.keys[port])
    for row_id, (row, _) in stage.entered[port].items():
        key = stage.key(port, row)
        by_key.setdefault(key, []).append(row_id)
        if key is not None:
            values_by_key.setdefault(key, [row[name] for name in columns])
    barred = {event.row_id: event.reason for event in trace.recorder.events if event.what in _BARRED}
    alive = frozenset(event.row_id for event in trace.recorder.events if event.what == "alive")
    times = (
        sorted(event_time(key_values[0]) or 0 for key_values in values_by_key)
        if stage.family.unmatched_cause == "no such time"
        else ()
    )
    return _Others(by_key, barred, NearKeys(values_by_key, values_by_key), alive, times)


def _find_reason(
    trace: Trace, stage: TraceStage, port: int, own: int, other_port: int, others: _Others
) -> UnmatchedReason:
    """Why a row met none of another port."""
    row = stage.entered[port][own][0]
    key, name = stage.key(port, row), stage.names[other_port]
    same = others.by_key.get(key, [])
    hidden = stage.hidden[other_port].get(key, [])
    what = stage.family.unmatched_cause.removeprefix("no such ")
    if not same and hidden:
        arrival = trace.recorder.traced_rows.arrivals(hidden[0])[0]
        called = capital(str(trace.recorder.traced_rows.raw(arrival)))
        sentence = f"{called} has the same {what}, but did not reach the join. {others.barred.get(hidden[0], '')}"
        return UnmatchedReason("barred", sentence.strip(), arrival)
    if not same:
        return _no_equal_row(stage, port, row, name, others)
    reasons: list[tuple[int, UnmatchedReason]] = []
    for row_id in same:
        other = stage.entered[other_port][row_id][0]
        arrival = trace.recorder.traced_rows.arrivals(row_id)[0]
        called = f"{trace.recorder.traced_rows.raw(arrival)} has the same {what}, but"
        distance = stage.family.distance(stage.context, port, row, other)
        if distance is not None:
            reasons.append(
                (
                    1 + abs(distance.by),
                    UnmatchedReason("out of bounds", f"{called} {distance.text}", arrival, distance.by),
                )
            )
        elif row_id in others.barred:
            reasons.append(
                (-1, UnmatchedReason("barred", f"{called} could not match it. {others.barred[row_id]}", arrival))
            )
        else:
            failed = _false_conditions(stage, port, row, other)
            cause, text = ("condition", f"{failed} is not true") if failed else _unmet(row_id, own, others)
            reasons.append((0, UnmatchedReason(cause, f"{called} {text}.", arrival)))
    reasons.sort(key=lambda candidate: candidate[0])
    first, more = reasons[0][1], len(reasons) - 1
    text = " ".join(capital(miss.text) for _, miss in reasons[:_SHOWN])
    rest = f" And {more + 1 - _SHOWN} more rows of {name} have the same {what}." if more + 1 > _SHOWN else ""
    return UnmatchedReason(first.cause, capital(f"{text}{rest}"), first.by, first.distance)


def _unmet(row_id: int, own: int, others: _Others) -> tuple[Cause, str]:
    """Why two rows that fit did not meet."""
    if {row_id, own} <= others.alive:
        return "waiting", "both wait until no earlier row can arrive"
    return "gone", "they were not in the state at the same time"


def _no_equal_row(stage: TraceStage, port: int, row: Row, name: str, others: _Others) -> UnmatchedReason:
    """Why a row met none of a side on which no row is equal to it in what must be."""
    columns = stage.family.equal_columns(stage.operator, port)
    by_time = stage.family.unmatched_cause == "no such time"
    if not columns or (by_time and not others.times):
        return UnmatchedReason("no row", f"No row of {name} arrived.")
    if by_time:
        return _no_equal_time(stage, columns[0], row, name, others.times)
    near = others.near.describe_nearest(stage.key(port, row))
    sentence = f"No row of {name} has the key {key_in_words([row[column] for column in columns])}."
    return (
        UnmatchedReason("no such key", sentence) if near is None else UnmatchedReason("near miss", f"{sentence} {near}")
    )


def _no_equal_time(stage: TraceStage, column: str, row: Row, name: str, times: Sequence[int]) -> UnmatchedReason:
    """Why a row met none of a side that has no row of its time, and how far the nearest is."""
    words, time = stage.context.words, event_time(row[column]) or 0
    place = bisect(times, time)
    nearest = min(times[max(0, place - 1) : place + 1], key=lambda candidate: abs(candidate - time))
    distance = f"{words.distance(column, abs(nearest - time))} {'later' if nearest > time else 'earlier'}"
    sentence = f"No row of {name} has the time {words.moment(column, time)}; the nearest one is {distance}."
    return UnmatchedReason("no such time", sentence, None, nearest - time)


def _false_conditions(stage: TraceStage, port: int, row: Row, other: Row) -> str:
    """The parts of the condition that are not true of two rows."""
    both = {**row, **other}
    words = stage.context.words
    condition: Condition | None = getattr(stage.operator, "condition", None)
    parts = condition.args if isinstance(condition, Apply) and condition.operator == "and" else (condition,)
    failed = [
        words.kernel_condition_words(part, both)
        for part in parts
        if part is not None and evaluate(part, both) is not True
    ]
    failed += [words.condition_words(part, both) for part in stage.plan.after if is_untrue(part, both)]
    return " and ".join(failed)
