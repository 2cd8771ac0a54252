"""All rows of a query by what became of them: counts that add up to those of its progress, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watersmeet.answers.answer import arrival_data
from watersmeet.fates import Told
from watersmeet.fates.words import row_in_words

BARRED = ("filtered", "null key", "null time", "unfit", "late")
_EXAMPLES = 2


@dataclass(frozen=True)
class Group:
    """Rows of a side with one end and one reason: how many, and some of them."""

    side: str
    end: str
    reason: str
    rows: int
    examples: tuple[int, ...]


@dataclass(frozen=True)
class Summary:
    """What became of all rows of a query.

    ``counts`` are those of the progress: rows in, late, padded, dropped and kept now, and malformed ones.
    """

    query: str
    told: Told
    groups: tuple[Group, ...]
    counts: Mapping[str, int]
    unknown: tuple[str, ...] = ()

    def text(self) -> str:
        """For people."""
        return "\n".join(self._lines())

    def data(self) -> dict[str, object]:
        """For machines."""
        arrivals = {one.number: one for one in self.told.arrivals}
        return {
            "query": self.query,
            "counts": dict(self.counts),
            "groups": [
                {
                    "side": group.side,
                    "end": group.end,
                    "reason": group.reason,
                    "rows": group.rows,
                    "examples": [arrival_data(arrivals[number]) for number in group.examples],
                }
                for group in self.groups
            ],
            "unknown": list(self.unknown),
        }

    def _lines(self) -> Iterator[str]:
        arrivals = {one.number: one for one in self.told.arrivals}
        yield f"{self.query}: " + ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        rows = [("side", "ended as", "reason", "rows", "for example")]
        for group in self.groups:
            example = row_in_words(arrivals[group.examples[0]].values)
            rows.append((group.side, group.end, group.reason, f"{group.rows:,}", example))
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for row in rows:
            cells = [
                text.rjust(width) if place == 3 else text.ljust(width)
                for place, (text, width) in enumerate(zip(row[:4], widths, strict=True))
            ]
            yield "  ".join([*cells, row[4]]).rstrip()
        yield from (f"Unknown: {one}" for one in self.unknown)


def summary_of(query: str, told: Told, malformed: Mapping[str, int], unknown: tuple[str, ...] = ()) -> Summary:
    """The rows of a query by side, end and reason, most rows first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for arrival in told.arrivals:
        name = (arrival.side, told.end(arrival.number).what, reason_of(told, arrival.number))
        found.setdefault(name, []).append(arrival.number)
    groups = [Group(*name, len(numbers), tuple(numbers[:_EXAMPLES])) for name, numbers in found.items()]
    counts = {"rows in": len(told.arrivals)}
    for what in ("matched", "padded", "late", "filtered", "dropped", "alive"):
        counts[what] = len({fate.arrival for fate in told.fates if fate.what == what})
    counts["malformed"] = sum(malformed.values())
    groups.sort(key=lambda group: (group.side, -group.rows, group.end, group.reason))
    return Summary(query, told, tuple(groups), counts, unknown)


def reason_of(told: Told, number: int) -> str:
    """Why a row met nothing, in a few words; of one that met some, that."""
    whats = [fate.what for fate in told.of(number)]
    if "matched" in whats:
        return "matched"
    barred = next((what for what in whats if what in BARRED), None)
    if barred is not None:
        return barred
    miss = told.misses.get(number)
    return "" if miss is None else miss.cause
