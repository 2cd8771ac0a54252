"""What became of the rows of a query, from batches of rows: the one thing that this package is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from watersmeet.fates.brief import CountingRecorder
from watersmeet.fates.family import Families
from watersmeet.fates.misses import find_unmatched_reasons
from watersmeet.fates.model import (
    Axis,
    Lineage,
    OutcomeKind,
    ResultRow,
    RowArrival,
    RowMatch,
    RowOutcome,
    TracedWatermark,
    Unit,
)
from watersmeet.fates.notes import TraceRecorder
from watersmeet.fates.stage import TraceStage
from watersmeet.fates.trace import Trace
from watersmeet.fates.words import key_in_words
from watersmeet.local.query import Batch
from watersmeet.physical import QueryPlan

Detail = Literal["sentences", "counts"]
"""``counts``: what became of each row, without reasons; several times as quick."""


def run_trace(
    plan: QueryPlan,
    batches: Sequence[Batch],
    families: Families,
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


def trace_query(plan: QueryPlan, batches: Sequence[Batch], families: Families, name: str = "") -> Lineage:
    """What became of all rows of a query."""
    return lineage_of(run_trace(plan, batches, families), name or plan.into or "")


def outcome_kinds(trace: Trace) -> dict[int, list[OutcomeKind]]:
    """What became of each arrival of a query, in order, without a word about why."""
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
    """What a query knows of the rows that it followed."""
    first = next(iter(trace.stages.values()), None)
    axis = _axis(trace)
    keys, times = _places(trace, axis)
    outcomes = [
        RowOutcome(arrival, event.what, event.batch, event.until, event.by, event.reason)
        for event in trace.recorder.events
        for arrival in trace.recorder.traced_rows.arrivals(event.row_id)
    ]
    reasons = find_unmatched_reasons(trace)
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
    """The arrivals of which something is told."""
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
    for stage in sorted(trace.stages.values(), key=lambda stage: len(stage.sides) < 2):
        context = stage.context
        for port, rows in enumerate(stage.entered):
            for row_id, (row, _) in rows.items():
                arrivals = trace.recorder.traced_rows.arrivals(row_id)
                if len(arrivals) != 1 or arrivals[0] in keys or (only is not None and arrivals[0] not in only):
                    continue
                values = [row[name] for name in stage.sides[port].keys]
                keys[arrivals[0]] = None if None in values else key_in_words(values)
                number, clock = stage.numbers.get(row_id, (None, None))
                time = context.time(port, row)
                times[arrivals[0]] = {"event time": time, "arrivals": number, "clock": clock}[axis]
    return keys, times


def _unit(stage: TraceStage | None, axis: Axis) -> Unit:
    if axis != "event time" or stage is None:
        return "microseconds" if axis == "clock" else "numbers"
    names = [name for side in stage.sides for name in side.times]
    return "microseconds" if any(stage.context.words.is_temporal(name) for name in names) else "numbers"
