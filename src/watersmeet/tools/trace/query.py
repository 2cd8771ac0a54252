"""Traces the rows of a query from batches of rows, and finds why unmatched rows did not match.

A near miss is a key that would be equal if it were written the same way.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from watersmeet.local.query import Batch
from watersmeet.logical.words import in_plain_words
from watersmeet.operators.core.condition import Apply, Condition
from watersmeet.operators.core.rowwise import Row, evaluate, event_time
from watersmeet.operators.explainer import TraceableFamilies, is_untrue
from watersmeet.operators.outcomes import (
    Axis,
    Cause,
    Lineage,
    OutcomeKind,
    ResultRow,
    RowArrival,
    RowMatch,
    RowOutcome,
    TracedWatermark,
    Unit,
    UnmatchedReason,
    capital,
    key_in_words,
    value_in_words,
)
from watersmeet.physical import QueryPlan, internal_columns
from watersmeet.tools.trace.recorder import EMPTY_GROUP, TraceRecorder, TraceStage
from watersmeet.tools.trace.tracing import CountingRecorder, Trace

Key = tuple[Any, ...]

_ZONE = timedelta(minutes=15)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NearKeys:
    """Known keys, by their normalized form.

    ``shown``: the values of keys whose counted form differs from the displayed one: structs, for instance.

    >>> near = NearKeys([("a-7 ",), ("007",)])
    >>> near.describe_nearest(("A-7",))
    "But there is 'a-7 ', which differs by case and by blanks."
    >>> near.describe_nearest((7,))
    "But there is '007', which differs by leading zeros and by type."
    """

    def __init__(self, keys: Iterable[Key], shown: Mapping[Key, Sequence[Any]] | None = None) -> None:
        self._shown = shown or {}
        self._keys_by_form: dict[Key, list[Key]] = {}
        for key in keys:
            self._keys_by_form.setdefault(tuple(_normal_form(value) for value in key), []).append(key)

    def describe_nearest(self, key: Key) -> str | None:
        """Describe the known key that an unknown one nearly equals; None if no key is similar."""
        for other in self._keys_by_form.get(tuple(_normal_form(value) for value in key), ()):
            ways = [_difference(own_value, other_value) for own_value, other_value in zip(key, other, strict=True)]
            if all(way is not None for way in ways):
                differences = dict.fromkeys(part for way in ways for part in way or ())
                shown = ", ".join(value_in_words(value) for value in self._shown.get(other, other))
                return f"But there is {shown}, which differs by {' and by '.join(differences)}."
        return None


def _normal_form(value: Any) -> Any:
    """The same for all values that `_difference` takes for nearly equal."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) % _ZONE
    text = str(value).strip()
    number = _number(text)
    return text.casefold() if number is None else number.normalize().as_tuple().digits


def _difference(value: Any, other: Any) -> tuple[str, ...] | None:
    """By what two values differ that would else be equal; nothing: they are equal; None: they differ otherwise."""
    if type(value) is type(other) and value == other:
        return ()
    if isinstance(value, datetime) and isinstance(other, datetime):
        return _hours(value, other)
    texts = (str(value), str(other))
    by_type = () if isinstance(value, str) == isinstance(other, str) else ("type",)
    stripped = [text.strip() for text in texts]
    blanks = ("blanks",) if list(texts) != stripped else ()
    numbers = [_number(text) for text in stripped]
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return (*blanks, *_as_numbers(stripped), *by_type)
    if stripped[0].casefold() == stripped[1].casefold():
        return (*(("case",) if stripped[0] != stripped[1] else ()), *blanks, *by_type)
    # Of whole numbers, which count, one is often a hundred times another by chance.
    measured = isinstance(value, Decimal | float) or isinstance(other, Decimal | float)
    if measured and numbers[0] and numbers[1] and _is_scaled(numbers[0], numbers[1]):
        return ("scale", *by_type)
    return None


def _as_numbers(texts: list[str]) -> tuple[str, ...]:
    bare = [text.lstrip("+-") for text in texts]
    zeros = any(text != text.lstrip("0") and text.lstrip("0")[:1].isdigit() for text in bare)
    if zeros:
        return ("leading zeros",)
    return ("scale",) if texts[0] != texts[1] else ()


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text) if text and text[-1].isdigit() else None
    except InvalidOperation:
        return None


def _is_scaled(value: Decimal, other: Decimal) -> bool:
    """Whether one is a hundred or a thousand times the other, as cents are of euros."""
    try:
        return abs(value) in {abs(other) * factor for factor in (100, 1000)} or abs(other) in {
            abs(value) * factor for factor in (100, 1000)
        }
    except InvalidOperation:
        return False


def _hours(value: datetime, other: datetime) -> tuple[str, ...] | None:
    gap = abs(
        (value if value.tzinfo else value.replace(tzinfo=UTC)) - (other if other.tzinfo else other.replace(tzinfo=UTC))
    )
    is_zone = gap % _ZONE == timedelta(0) and gap <= timedelta(hours=14)
    return (f"a time zone ({gap})",) if is_zone else None


_SHOWN = 3
_BARRED = {"filtered", "null key", "null time", "unfit", "late"}
_WORST: tuple[Cause, ...] = (
    "no row", "near miss", "no such key", "no such time", "barred", "out of bounds", "condition", "waiting", "gone",
)  # fmt: skip
"""The order of causes where several sides lack a row."""


@dataclass(frozen=True)
class _Others:
    """The rows of one side of a join by key, and what barred some of them from it."""

    by_key: Mapping[Any, list[int]]
    barred: Mapping[int, str]
    near: NearKeys
    alive: frozenset[int]
    times: Sequence[int] = ()


def find_unmatched_reasons(trace: Trace) -> dict[int, UnmatchedReason]:
    """The reasons of arrivals that did not match though they could have."""
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
    """The reason why a row matched none of another port."""
    row = stage.entered[port][own][0]
    key, name = stage.key(port, row), stage.names[other_port]
    same = others.by_key.get(key, [])
    hidden = stage.hidden[other_port].get(key, [])
    noun = stage.family.unmatched_cause.removeprefix("no such ")
    if not same and hidden:
        arrival, called = _name_row(trace, hidden[0])
        sentence = (
            f"{capital(called)} has the same {noun}, but did not reach the join. {others.barred.get(hidden[0], '')}"
        )
        return UnmatchedReason("barred", sentence.strip(), arrival)
    if not same:
        return _no_equal_row(stage, port, row, name, others)
    reasons: list[tuple[tuple[int, int], UnmatchedReason]] = []
    for row_id in same:
        other = stage.entered[other_port][row_id][0]
        arrival, called = _name_row(trace, row_id)
        called = f"{called} has the same {noun}, but"
        distance = stage.family.distance(stage.context, port, row, other)
        if distance is not None:
            reasons.append(
                (
                    (1, abs(distance.by)),
                    UnmatchedReason("out of bounds", f"{called} {distance.text}", arrival, distance.by),
                )
            )
        elif row_id in others.barred:
            reasons.append(
                ((-1, 0), UnmatchedReason("barred", f"{called} could not match it. {others.barred[row_id]}", arrival))
            )
        else:
            failed = _false_conditions(stage, port, row, other)
            gap, not_chosen = stage.family.preference(stage.context, port, row, other)
            if failed:
                cause, text = "condition", f"{failed} is not true"
            else:
                cause, text = _unmet(row_id, own, others, not_chosen)
            reasons.append(((0, gap), UnmatchedReason(cause, f"{called} {text}.", arrival)))
    reasons.sort(key=lambda candidate: candidate[0])
    first, more = reasons[0][1], len(reasons) - 1
    text = " ".join(capital(miss.text) for _, miss in reasons[:_SHOWN])
    rest = f" And {more + 1 - _SHOWN} more rows of {name} have the same {noun}." if more + 1 > _SHOWN else ""
    return UnmatchedReason(first.cause, capital(f"{text}{rest}"), first.by, first.distance)


def _name_row(trace: Trace, row_id: int) -> tuple[int | None, str]:
    """The first arrival that a row is made of, and words for it."""
    traced_rows = trace.recorder.traced_rows
    arrival = next(iter(traced_rows.arrivals(row_id)), None)
    return arrival, EMPTY_GROUP if arrival is None else str(traced_rows.raw(arrival))


def _unmet(row_id: int, own: int, others: _Others, not_chosen: str) -> tuple[Cause, str]:
    """The reason why two rows that fit did not match."""
    if {row_id, own} <= others.alive:
        return "waiting", "both wait until no earlier row can arrive"
    return "gone", not_chosen


def _no_equal_row(stage: TraceStage, port: int, row: Row, name: str, others: _Others) -> UnmatchedReason:
    """The reason why a row matched none of a side without an equal row."""
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
    """The reason why a row matched none of a side without a row of its time, and how far the nearest is."""
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
    failed += [words.condition_words(part, both) for part in stage.plan.post_filters if is_untrue(part, both)]
    return " and ".join(failed)


Detail = Literal["sentences", "counts"]
"""``counts``: what became of each row, without reasons; several times as quick."""


def run_trace(
    plan: QueryPlan,
    batches: Sequence[Batch],
    families: TraceableFamilies,
    buckets: int = 1,
    keys: Collection[Any] | None = None,
    detail: Detail = "sentences",
) -> Trace:
    """A query that has taken in all batches, its rows followed; with ``keys``, those that have one of them.

    ``buckets``: in how many parts rows of different keys are looked at, where they know nothing of each other.
    """
    trace = Trace(plan, families, buckets, keys, TraceRecorder() if detail == "sentences" else CountingRecorder())
    for place, batch in enumerate(batches):
        if batch.restart or not place:
            trace.restart()
        trace.arrive(place if batch.number is None else batch.number, batch.rows, batch.watermarks)
    trace.recorder.end(trace.stages.values())
    return trace


def trace_query(plan: QueryPlan, batches: Sequence[Batch], families: TraceableFamilies, name: str = "") -> Lineage:
    """Trace all rows of a query."""
    return lineage_of(run_trace(plan, batches, families), name or plan.into or "")


def outcome_kinds(trace: Trace) -> dict[int, list[OutcomeKind]]:
    """The outcomes of each arrival of a query, in order, without their reasons."""
    kinds: dict[int, list[OutcomeKind]] = {}
    for event in sorted(trace.recorder.events, key=lambda event: event.batch):
        for arrival in trace.recorder.traced_rows.arrivals(event.row_id):
            kinds.setdefault(arrival, []).append(event.what)
    return kinds


def arrivals_of(trace: Trace, numbers: Collection[int]) -> dict[int, RowArrival]:
    """Some arrivals of a query."""
    keys, times = _places(trace, _axis(trace), frozenset(numbers))
    return {number: _arrival(trace, number, keys, times) for number in numbers}


def lineage_of(trace: Trace, name: str) -> Lineage:
    """The lineage of the rows that a query traced."""
    first = next(iter(trace.stages.values()), None)
    axis = _axis(trace)
    keys, times = _places(trace, axis)
    generated = internal_columns(trace.plan)
    outcomes = [
        RowOutcome(arrival, event.what, event.batch, event.until, event.by, in_plain_words(event.reason, generated))
        for event in trace.recorder.events
        for arrival in trace.recorder.traced_rows.arrivals(event.row_id)
    ]
    reasons = {
        number: replace(reason, text=in_plain_words(reason.text, generated))
        for number, reason in find_unmatched_reasons(trace).items()
    }
    return Lineage(
        name,
        axis,
        tuple(_arrival(trace, number, keys, times) for number in sorted(_arrivals_to_report(trace))),
        tuple(
            TracedWatermark(m.batch, m.column.split(".")[0], m.column, m.value, m.by)
            for m in trace.recorder.watermark_moves
        ),
        tuple(RowMatch(*match_) for match_ in trace.recorder.matches),
        tuple(sorted(outcomes, key=lambda outcome: outcome.batch)),
        _unit(first, axis),
        tuple(
            ResultRow(batch, values, trace.recorder.traced_rows.arrivals(f), sign)
            for batch, f, sign, values in trace.results
        ),
        reasons,
    )


def _axis(trace: Trace) -> Axis:
    first = next(iter(trace.stages.values()), None)
    return "event time" if first is None else first.family.axis(first.operator)


def _arrivals_to_report(trace: Trace) -> set[int]:
    """The arrivals with outcomes, and those that caused outcomes or moved watermarks."""
    traced_rows = trace.recorder.traced_rows
    arrivals = {arrival for event in trace.recorder.events for arrival in traced_rows.arrivals(event.row_id)}
    arrivals |= {event.by for event in trace.recorder.events if event.by is not None}
    return arrivals | {move.by for move in trace.recorder.watermark_moves if move.by is not None}


def _arrival(trace: Trace, number: int, keys: Mapping[int, str | None], times: Mapping[int, int | None]) -> RowArrival:
    raw = trace.recorder.traced_rows.raw(number)
    return RowArrival(
        number, raw.side, raw.source, raw.batch, raw.values, keys.get(number), times.get(number), raw.where
    )


def _places(
    trace: Trace, axis: Axis, only: Collection[int] | None = None
) -> tuple[dict[int, str | None], dict[int, int | None]]:
    """The keys of arrivals in words, and their places on the axis, as the first join has them that they came to."""
    keys: dict[int, str | None] = {}
    times: dict[int, int | None] = {}
    # A stage of one port before a join, such as the latest row per key, has a key of its own.
    for stage in sorted(trace.stages.values(), key=lambda stage: len(stage.ports) < 2):
        context = stage.context
        for port, rows in enumerate(stage.entered):
            for row_id, (row, _) in rows.items():
                arrivals = trace.recorder.traced_rows.arrivals(row_id)
                if len(arrivals) != 1 or arrivals[0] in keys or (only is not None and arrivals[0] not in only):
                    continue
                values = [row[name] for name in stage.ports[port].keys]
                keys[arrivals[0]] = None if None in values else key_in_words(values)
                number, clock = stage.numbers.get(row_id, (None, None))
                time = context.time(port, row)
                times[arrivals[0]] = {"event time": time, "arrivals": number, "clock": clock}[axis]
    return keys, times


def _unit(stage: TraceStage | None, axis: Axis) -> Unit:
    if axis != "event time" or stage is None:
        return "microseconds" if axis == "clock" else "numbers"
    names = [name for side in stage.ports for name in side.times]
    return "microseconds" if any(stage.context.words.is_temporal(name) for name in names) else "numbers"
