"""What a picture of lives says in words: beside a row, under the pointer, and in its legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import cast

from watersmeet.drawing.lanes import RowLane
from watersmeet.explanation.svg_layout import text_width
from watersmeet.fates.model import Lineage

AXES: Mapping[str, str] = {
    "event time": "event time: when it happened, according to the rows",
    "arrivals": "arrivals: 0 is the first row that arrived, 1 the second, and so on",
    "clock": "the clock: when rows arrived",
}
"""What the axis is, by its name."""

_BAR_MEANINGS: Mapping[str, str] = {
    "event time": "a row is kept: from its event time, as long as a row of the other side can still match it",
    "arrivals": "a row is kept: from its arrival until it leaves the state",
    "clock": "a row is kept: from its arrival until it leaves its window",
}
_SHAPES: Mapping[str, str] = {
    "cap": "nothing more can match it: it expired, or it was answered",
    "ring": "padded: it matched nothing, and was emitted with NULLs",
    "cross": "late: the watermark had passed its time before it arrived",
    "gate": "it made room: evicted, dropped, replaced or deleted",
    "arrow": "alive: it can still match other rows",
    "dash": "it cannot match: filtered, a NULL where a value is needed, or unfit",
    "dot": "it passed through, or was counted in a group",
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
    said += [("link", "two rows match: the pair is a row of the result")] if lineage.matches else []
    said += [(name, words) for name, words in _SHAPES.items() if name in shapes]
    said += [("mark", "a watermark: rows before it are late; dotted: where it was after each batch")] * bool(
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
