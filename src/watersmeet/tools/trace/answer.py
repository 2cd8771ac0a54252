"""Answers: what happened to each row in question, what cannot be known, and counts of all rows by outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watersmeet.deprecation import accept_old_names
from watersmeet.duration import align_columns, format_count
from watersmeet.logical.words import without_generated_names
from watersmeet.metrics.progress import watermark_text
from watersmeet.operators.outcomes import (
    Lineage,
    OutcomeKind,
    RowArrival,
    RowOutcome,
    UnmatchedReason,
    row_in_words,
    value_in_words,
)
from watersmeet.tools.trace.query import arrivals_of, find_unmatched_reasons, outcome_kinds
from watersmeet.tools.trace.tracing import Trace

_MATCHES = 5
"""The number of matches of a row that are listed."""
UNCERTAIN = "uncertain  it is not known whether it was late, and what was emitted for it then"
"""The remark about a row from before the first known batch."""


@accept_old_names(told="lineage", asked="question_text")
@dataclass(frozen=True)
class Answer:
    """The outcome of the requested rows, in one query.

    ``rows`` are the numbers of arrivals. ``notes`` are sentences about other rows: missing, malformed or not read yet.
    ``unknown`` says what cannot be known. ``uncertain_until`` is the last batch for which the treatment of its rows is
    not known; -1 if all batches are known.
    """

    query: str
    question_text: str
    lineage: Lineage
    rows: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The answer as text."""
        return "\n".join(self._lines())

    def data(self) -> dict[str, object]:
        """The answer as JSON values."""
        arrivals = {arrival.number: arrival for arrival in self.lineage.arrivals}
        return {
            "query": self.query,
            "asked": self.question_text,
            "rows": [row_data(self.lineage, arrivals[number], arrivals, self.uncertain_until) for number in self.rows],
            "notes": list(self.notes),
            "unknown": list(self.unknown),
        }

    def _lines(self) -> Iterator[str]:
        arrivals = {row_arrival.number: row_arrival for row_arrival in self.lineage.arrivals}
        yield f"{self.query}: {format_count(len(self.rows), 'row')} of {self.question_text}."
        for number in self.rows:
            arrival = arrivals[number]
            yield ""
            yield f"{arrival.side_name} {row_in_words(arrival.values)}"
            yield f"  arrived    batch {arrival.batch}{f', {arrival.where}' if arrival.where else ''}"
            if arrival.batch <= self.uncertain_until:
                yield f"  {UNCERTAIN}"
            yield from (f"  {line}" for line in outcome_lines(self.lineage, number, self.uncertain_until))
        yield from ("", *self.notes) if self.notes else ()
        if self.unknown:
            yield ""
            yield from (f"Unknown: {sentence}" for sentence in self.unknown)


def outcome_lines(lineage: Lineage, number: int, uncertain_until: int = -1) -> Iterator[str]:
    """The outcomes of an arrival, one per line, and why it did not match, if so."""
    outcomes = lineage.of(number)
    matched = [outcome for outcome in outcomes if outcome.what == "matched"]
    skipped = matched[_MATCHES:]
    for outcome in outcomes:
        if not any(outcome is skipped_outcome for skipped_outcome in skipped):
            uncertain = " (uncertain)" if outcome.batch <= uncertain_until else ""
            yield f"{outcome.what:<10} batch {outcome.batch}{uncertain}: {outcome.reason}"
    if skipped:
        yield f"{'matched':<10} and {len(skipped):,} more"
    if number in lineage.unmatched_reasons:
        yield f"{'why':<10} {lineage.unmatched_reasons[number].text}"


def row_data(
    lineage: Lineage, arrival: RowArrival, arrivals: Mapping[int, RowArrival], uncertain_until: int = -1
) -> dict[str, object]:
    """An arrival and what became of it, for machines."""
    miss = lineage.unmatched_reasons.get(arrival.number)
    return {
        **arrival_data(arrival),
        "is_certain": arrival.batch > uncertain_until,
        "fates": [outcome_data(outcome, arrivals) for outcome in lineage.of(arrival.number)],
        "miss": None if miss is None else {"cause": miss.cause, "text": miss.text, "distance": miss.distance},
    }


def arrival_data(arrival: RowArrival) -> dict[str, object]:
    """An arrival for machines."""
    return {
        "source": arrival.source,
        "side": arrival.side_name,
        "batch": arrival.batch,
        "where": arrival.where,
        "values": {name: json_value(value) for name, value in arrival.values.items()},
        "key": arrival.key,
        "time": arrival.time,
    }


def outcome_data(outcome: RowOutcome, arrivals: Mapping[int, RowArrival]) -> dict[str, object]:
    """An outcome as JSON; ``by`` as its row."""
    by = None if outcome.by is None or outcome.by not in arrivals else arrival_data(arrivals[outcome.by])
    return {"what": outcome.what, "batch": outcome.batch, "until": outcome.until, "by": by, "reason": outcome.reason}


def json_value(value: object) -> Any:
    """A value as JSON has it; times as people read them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value_in_words(value)


@accept_old_names(told="lineage", asked="question_text")
@dataclass(frozen=True)
class Provenance:
    """The provenance of a result row."""

    query: str
    question_text: str
    lineage: Lineage
    places: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1
    _arrivals: dict[int, RowArrival] = field(
        default_factory=dict[int, RowArrival], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Have arrivals at hand by number."""
        self._arrivals.update({arrival.number: arrival for arrival in self.lineage.arrivals})

    def text(self) -> str:
        """For people."""
        count = f"{format_count(len(self.places), 'row')} of the result {'has' if len(self.places) == 1 else 'have'}"
        lines = [f"{self.query}: {count} {self.question_text}."]
        for place in self.places:
            shown = self.lineage.results[place]
            sign = "" if shown.sign > 0 else " is retracted"
            uncertain = " (uncertain)" if shown.batch <= self.uncertain_until else ""
            lines += ["", f"{row_in_words(shown.values)}{sign} in batch {shown.batch}{uncertain}, made of"]
            for number in shown.arrivals:
                arrival = self._arrivals[number]
                where = f", {arrival.where}" if arrival.where else ""
                lines.append(f"  {arrival.side_name} {row_in_words(arrival.values)}: batch {arrival.batch}{where}")
            watermarks = [watermark for watermark in self.lineage.watermarks if watermark.batch == shown.batch]
            lines += [
                f"  watermark of {watermark.column} then: {watermark_words(self.lineage, watermark.value)}"
                for watermark in watermarks
            ]
        return "\n".join([*lines, *(f"Unknown: {sentence}" for sentence in self.unknown)])

    def data(self) -> dict[str, object]:
        """For machines."""
        rows: list[dict[str, object]] = []
        for place in self.places:
            shown = self.lineage.results[place]
            watermarks = {
                watermark.column: watermark.value
                for watermark in self.lineage.watermarks
                if watermark.batch == shown.batch
            }
            rows.append({
                "batch": shown.batch,
                "is_certain": shown.batch > self.uncertain_until,
                "sign": shown.sign,
                "values": {name: json_value(value) for name, value in shown.values.items()},
                "made_of": [arrival_data(self._arrivals[number]) for number in shown.arrivals],
                "watermarks": watermarks,
            })  # fmt: skip
        return {"query": self.query, "asked": self.question_text, "rows": rows, "unknown": list(self.unknown)}


def watermark_words(lineage: Lineage, value: int) -> str:
    """A watermark of a query in words."""
    return watermark_text(value, is_temporal=lineage.unit == "microseconds")


BARRED = ("filtered", "null key", "null time", "unfit", "late")
_EXAMPLES = 2


@dataclass(frozen=True)
class OutcomeGroup:
    """Rows of a side with one end and one reason: how many, and some of them."""

    side: str
    end: str
    reason: str
    rows: int
    examples: tuple[RowArrival, ...]


@dataclass(frozen=True)
class Summary:
    """The outcomes of all rows of a query.

    ``counts`` are those of the progress: rows in, late, padded, dropped and stored now, and malformed ones.
    """

    query: str
    groups: tuple[OutcomeGroup, ...]
    counts: Mapping[str, int]
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1

    def text(self) -> str:
        """For people."""
        return "\n".join(self._lines())

    def data(self) -> dict[str, object]:
        """For machines."""
        return {
            "query": self.query,
            "counts": dict(self.counts),
            "uncertain_until": self.uncertain_until if self.uncertain_until >= 0 else None,
            "groups": [
                {
                    "side": group.side,
                    "end": group.end,
                    "reason": group.reason,
                    "rows": group.rows,
                    "examples": [arrival_data(example) for example in group.examples],
                }
                for group in self.groups
            ],
            "unknown": list(self.unknown),
        }

    def _lines(self) -> Iterator[str]:
        uncertain = f" (uncertain up to batch {self.uncertain_until})" if self.uncertain_until >= 0 else ""
        yield f"{self.query}: " + ", ".join(f"{count:,} {name}" for name, count in self.counts.items()) + uncertain
        rows = [("side", "ended as", "reason", "rows", "for example")]
        for group in self.groups:
            example = row_in_words(group.examples[0].values)
            rows.append((group.side, group.end, group.reason, f"{group.rows:,}", example))
        yield from align_columns(rows, right=[3])
        yield from (f"Unknown: {sentence}" for sentence in self.unknown)


def summary_of(
    query: str, trace: Trace, malformed: Mapping[str, int], unknown: tuple[str, ...] = (), uncertain_until: int = -1
) -> Summary:
    """The rows of a query by side, end and reason, most rows first."""
    ends, reasons = outcome_kinds(trace), find_unmatched_reasons(trace)
    numbers_by_group: dict[tuple[str, str, str], list[int]] = {}
    for number, whats in sorted(ends.items()):
        name = (
            without_generated_names(trace.recorder.traced_rows.side(number)),
            whats[-1],
            _reason(whats, reasons.get(number)),
        )
        numbers_by_group.setdefault(name, []).append(number)
    shown = arrivals_of(trace, [number for numbers in numbers_by_group.values() for number in numbers[:_EXAMPLES]])
    groups = [
        OutcomeGroup(*name, len(numbers), tuple(shown[number] for number in numbers[:_EXAMPLES]))
        for name, numbers in numbers_by_group.items()
    ]
    counts = {"rows in": len(ends)}
    for kind in ("matched", "padded", "late", "filtered", "dropped", "alive"):
        counts[kind] = sum(kind in whats for whats in ends.values())
    counts["malformed"] = sum(malformed.values())
    groups.sort(key=lambda group: (group.side, -group.rows, group.end, group.reason))
    return Summary(query, tuple(groups), counts, unknown, uncertain_until)


def _reason(whats: Sequence[OutcomeKind], miss: UnmatchedReason | None) -> str:
    """The reason why a row did not match, in a few words; "matched" if it did."""
    if "matched" in whats:
        return "matched"
    barred = next((kind for kind in whats if kind in BARRED), None)
    if barred is None and miss is None:
        # Without a join, only its rank keeps a row from the result.
        return "rank" if whats[-1] == "unmatched" else ""
    return barred or (miss.cause if miss is not None else "")
