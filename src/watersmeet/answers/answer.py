"""The answer to a question: what became of each row that is meant, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.counts import counted
from watersmeet.fates import Arrival, Fate, Told
from watersmeet.fates.words import row_in_words, value_in_words
from watersmeet.observe.progress import mark_in_words

_MATCHES = 5
"""So many meetings of a row are told one by one."""
UNCERTAIN = "uncertain  whether it was late when it came, and what came out of it then, is not known"
"""What is said of a row that came before the first batch that is known."""


@dataclass(frozen=True)
class Answer:
    """What became of the rows of a source that are meant, in one query.

    ``rows`` are the numbers of arrivals. ``notes`` are sentences about rows that are not among them: not there,
    malformed, not read yet. ``unknown`` says what cannot be known. ``uncertain_until``: the last batch of which it is
    not known what the query did with its rows when it read them; -1: of all batches it is.
    """

    query: str
    asked: str
    told: Told
    rows: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The answer for people."""
        return "\n".join(self._lines())

    def data(self) -> dict[str, object]:
        """The answer for machines."""
        arrivals = {one.number: one for one in self.told.arrivals}
        return {
            "query": self.query,
            "asked": self.asked,
            "rows": [row_data(self.told, arrivals[number], arrivals, self.uncertain_until) for number in self.rows],
            "notes": list(self.notes),
            "unknown": list(self.unknown),
        }

    def _lines(self) -> Iterator[str]:
        arrivals = {one.number: one for one in self.told.arrivals}
        yield f"{self.query}: {counted(len(self.rows), 'row')} of {self.asked}."
        for number in self.rows:
            arrival = arrivals[number]
            yield ""
            yield f"{arrival.side} {row_in_words(arrival.values)}"
            yield f"  arrived    batch {arrival.batch}{f', {arrival.where}' if arrival.where else ''}"
            if arrival.batch <= self.uncertain_until:
                yield f"  {UNCERTAIN}"
            yield from (f"  {line}" for line in fate_lines(self.told, number, self.uncertain_until))
        yield from ("", *self.notes) if self.notes else ()
        if self.unknown:
            yield ""
            yield from (f"Unknown: {sentence}" for sentence in self.unknown)


def fate_lines(told: Told, number: int, uncertain_until: int = -1) -> Iterator[str]:
    """What became of an arrival, a line for each thing, and why it met nothing if it did not."""
    fates = told.of(number)
    matched = [fate for fate in fates if fate.what == "matched"]
    skipped = matched[_MATCHES:]
    for fate in fates:
        if not any(fate is one for one in skipped):
            uncertain = " (uncertain)" if fate.batch <= uncertain_until else ""
            yield f"{fate.what:<10} batch {fate.batch}{uncertain}: {fate.reason}"
    if skipped:
        yield f"{'matched':<10} and {len(skipped):,} more"
    if number in told.misses:
        yield f"{'why':<10} {told.misses[number].text}"


def row_data(
    told: Told, arrival: Arrival, arrivals: Mapping[int, Arrival], uncertain_until: int = -1
) -> dict[str, object]:
    """An arrival and what became of it, for machines."""
    miss = told.misses.get(arrival.number)
    return {
        **arrival_data(arrival),
        "is_certain": arrival.batch > uncertain_until,
        "fates": [fate_data(fate, arrivals) for fate in told.of(arrival.number)],
        "miss": None if miss is None else {"cause": miss.cause, "text": miss.text, "distance": miss.distance},
    }


def arrival_data(arrival: Arrival) -> dict[str, object]:
    """An arrival for machines."""
    return {
        "source": arrival.source,
        "side": arrival.side,
        "batch": arrival.batch,
        "where": arrival.where,
        "values": {name: plain(value) for name, value in arrival.values.items()},
        "key": arrival.key,
        "time": arrival.time,
    }


def fate_data(fate: Fate, arrivals: Mapping[int, Arrival]) -> dict[str, object]:
    """A fate for machines; ``by`` as the row that it is."""
    by = None if fate.by is None or fate.by not in arrivals else arrival_data(arrivals[fate.by])
    return {"what": fate.what, "batch": fate.batch, "until": fate.until, "by": by, "reason": fate.reason}


def plain(value: object) -> Any:
    """A value as JSON has it; times as people read them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value_in_words(value)


@dataclass(frozen=True)
class Made:
    """A row of a result: what it was made of."""

    query: str
    asked: str
    told: Told
    places: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1
    _arrivals: dict[int, Arrival] = field(default_factory=dict[int, Arrival], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Have arrivals at hand by number."""
        self._arrivals.update({one.number: one for one in self.told.arrivals})

    def text(self) -> str:
        """For people."""
        count = f"{counted(len(self.places), 'row')} of the result {'has' if len(self.places) == 1 else 'have'}"
        lines = [f"{self.query}: {count} {self.asked}."]
        for place in self.places:
            shown = self.told.results[place]
            sign = "" if shown.sign > 0 else " goes"
            uncertain = " (uncertain)" if shown.batch <= self.uncertain_until else ""
            lines += ["", f"{row_in_words(shown.values)}{sign} in batch {shown.batch}{uncertain}, made of"]
            for number in shown.arrivals:
                one = self._arrivals[number]
                lines.append(
                    f"  {one.side} {row_in_words(one.values)}: batch {one.batch}{f', {one.where}' if one.where else ''}"
                )
            marks = [mark for mark in self.told.marks if mark.batch == shown.batch]
            lines += [f"  watermark of {mark.column} then: {moment(self.told, mark.value)}" for mark in marks]
        return "\n".join([*lines, *(f"Unknown: {one}" for one in self.unknown)])

    def data(self) -> dict[str, object]:
        """For machines."""
        rows: list[dict[str, object]] = []
        for place in self.places:
            shown = self.told.results[place]
            marks = {mark.column: mark.value for mark in self.told.marks if mark.batch == shown.batch}
            rows.append({
                "batch": shown.batch,
                "is_certain": shown.batch > self.uncertain_until,
                "sign": shown.sign,
                "values": {name: plain(value) for name, value in shown.values.items()},
                "made_of": [arrival_data(self._arrivals[number]) for number in shown.arrivals],
                "watermarks": marks,
            })  # fmt: skip
        return {"query": self.query, "asked": self.asked, "rows": rows, "unknown": list(self.unknown)}


def moment(told: Told, value: int) -> str:
    """A mark of a query as people read it."""
    return mark_in_words(value, is_temporal=told.unit == "microseconds")
