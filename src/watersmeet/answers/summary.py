"""All rows of a query by what became of them: counts that add up to those of its progress, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watersmeet.answers.answer import arrival_data
from watersmeet.fates.misses import find_unmatched_reasons
from watersmeet.fates.model import OutcomeKind, RowArrival, UnmatchedReason
from watersmeet.fates.telling import arrivals_of, outcome_kinds
from watersmeet.fates.trace import Trace
from watersmeet.fates.words import row_in_words

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
    """What became of all rows of a query.

    ``counts`` are those of the progress: rows in, late, padded, dropped and kept now, and malformed ones.
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
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for row in rows:
            cells = [
                text.rjust(width) if place == 3 else text.ljust(width)
                for place, (text, width) in enumerate(zip(row[:4], widths, strict=True))
            ]
            yield "  ".join([*cells, row[4]]).rstrip()
        yield from (f"Unknown: {sentence}" for sentence in self.unknown)


def summary_of(
    query: str, trace: Trace, malformed: Mapping[str, int], unknown: tuple[str, ...] = (), uncertain_until: int = -1
) -> Summary:
    """The rows of a query by side, end and reason, most rows first."""
    ends, reasons = outcome_kinds(trace), find_unmatched_reasons(trace)
    numbers_by_group: dict[tuple[str, str, str], list[int]] = {}
    for number, whats in sorted(ends.items()):
        name = (trace.recorder.traced_rows.side(number), whats[-1], _reason(whats, reasons.get(number)))
        numbers_by_group.setdefault(name, []).append(number)
    shown = arrivals_of(trace, [number for numbers in numbers_by_group.values() for number in numbers[:_EXAMPLES]])
    groups = [
        OutcomeGroup(*name, len(numbers), tuple(shown[number] for number in numbers[:_EXAMPLES]))
        for name, numbers in numbers_by_group.items()
    ]
    counts = {"rows in": len(ends)}
    for what in ("matched", "padded", "late", "filtered", "dropped", "alive"):
        counts[what] = sum(what in whats for whats in ends.values())
    counts["malformed"] = sum(malformed.values())
    groups.sort(key=lambda group: (group.side, -group.rows, group.end, group.reason))
    return Summary(query, tuple(groups), counts, unknown, uncertain_until)


def _reason(whats: Sequence[OutcomeKind], miss: UnmatchedReason | None) -> str:
    """Why a row met nothing, in a few words; of one that met some, that."""
    if "matched" in whats:
        return "matched"
    barred = next((what for what in whats if what in BARRED), None)
    return barred or ("" if miss is None else miss.cause)
