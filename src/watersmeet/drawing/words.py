"""What a picture of lives says in words: beside a row, under the pointer, and in its legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import cast

from watersmeet.drawing.lanes import RowLane
from watersmeet.explanation.svg_layout import text_width
from watersmeet.fates.model import Lineage

AXES: Mapping[str, str] = {
    "event time": "event time: when it happened, as the rows say",
    "arrivals": "arrivals: 0 is the first row that came, 1 the second, and so on",
    "clock": "the clock: when rows came",
}
"""What the axis is, by its name."""

_BAR_MEANINGS: Mapping[str, str] = {
    "event time": "the life of a row: from its own time as long as a row of the other side may still meet it",
    "arrivals": "the life of a row: from its arrival as long as it is kept",
    "clock": "the life of a row: from its arrival as long as its window keeps it",
}
_SHAPES: Mapping[str, str] = {
    "cap": "nothing more can meet it: watermarks prove it, or it has had its answer",
    "ring": "padded: it met nothing, and came out alone",
    "cross": "late: a watermark had passed its time before it came",
    "gate": "it made room: evicted, dropped, replaced or deleted",
    "arrow": "alive: it may still meet others",
    "dash": "it can meet nothing: filtered, a NULL where a value is needed, or unfit",
    "dot": "it went through, or into its group",
}


def outcome_words(lane: RowLane) -> str:
    """What became of a row, in a word or two."""
    return ", ".join(lane.outcome_kinds) or "alive"


def row_words(lane: RowLane, room: float, size: float = 12.0) -> str:
    """The values of a row, as many as there is room for."""
    return truncate_text(", ".join(value_words(value) for value in lane.arrival.values.values()), room, size)


def value_words(value: object) -> str:
    """A value as a person writes it.

    >>> value_words(None), value_words(datetime(2026, 3, 2, 8)), value_words([1, "a"])
    ('NULL', '2026-03-02 08:00', '[1, a]')
    """
    match value:
        case None:
            return "NULL"
        case datetime():
            whole = value.replace(tzinfo=None).isoformat(" ")
            return whole.removesuffix(":00")
        case date():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(value_words(part) for part in cast('Iterable[object]', value))}]"
        case _:
            return str(value)


def tooltip_words(lane: RowLane) -> str:
    """All that is known of a row: where and when it came, its values by name, and why it ended so."""
    arrival = lane.arrival
    values = ", ".join(f"{name} {value_words(value)}" for name, value in arrival.values.items())
    return "\n".join([f"{arrival.side}, batch {arrival.batch}: {values}", *lane.reasons])


def legend(lineage: Lineage, lanes: Sequence[RowLane]) -> list[tuple[str, str]]:
    """The shapes that a picture has, each with what it means."""
    shapes = {lane.shape for lane in lanes}
    said = [("life", _BAR_MEANINGS[lineage.axis])] if any(lane.has_life for lane in lanes) else []
    said += [("link", "two rows met: the pair is a row of the result")] if lineage.matches else []
    said += [(name, words) for name, words in _SHAPES.items() if name in shapes]
    said += [("mark", "a watermark: no row before it will come; dotted: after which batch it stood where")] * bool(
        lineage.watermarks
    )
    return said


def truncate_text(content: str, room: float, size: float) -> str:
    """The text, or its beginning and an ellipsis where it does not fit.

    >>> truncate_text("a long text", 40, 10)
    'a lon…'
    """
    if text_width(content, size) <= room:
        return content
    for end in range(len(content) - 1, 0, -1):
        if text_width(f"{content[:end]}…", size) <= room:
            return f"{content[:end].rstrip()}…"
    return "…"
