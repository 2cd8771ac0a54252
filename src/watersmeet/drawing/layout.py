"""Where things stand in a picture of lives: the columns beside the bars, the axis, and the lanes from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.drawing.lanes import LaneGroup, groups_of, moments
from watersmeet.drawing.scale import TimeScale, time_range
from watersmeet.drawing.words import outcome_words, row_words
from watersmeet.explanation.svg_layout import text_width
from watersmeet.fates.model import Lineage

MARGIN, GAP, LANE, TRACK, LINE = 20.0, 14.0, 24.0, 22.0, 20.0
TITLE, FONT, SMALL = 16.0, 12.0, 10.5
MOST_KEY, MOST_ROW, MOST_SAID = 110.0, 220.0, 180.0
LEAST = 560.0
"""The least width in which there is room for the bars."""


@dataclass(frozen=True)
class TimelineColumns:
    """Where what stands beside the bars begins: the key, the batch, the row; and behind them what became of it."""

    key: float
    batch: float
    row: float
    scale: TimeScale
    said: float
    width: float


def columns_of(lineage: Lineage, width: float) -> TimelineColumns:
    """The columns of a picture that is so wide, each as wide as what stands in it, but for what would take all room."""
    lanes = [lane for group in groups_of(lineage) for lane in group.lanes]
    keys = [key_words(lane.arrival.key) for lane in lanes]
    narrow = min(1.0, width / 1000)
    key = _widest(["key", *keys] if any(keys) else [], MOST_KEY * narrow)
    rows = [f"{lane.arrival.side}  {row_words(lane, MOST_ROW)}" for lane in lanes]
    rows += [f"watermark of {watermark.column}" for watermark in lineage.watermarks]
    row = _widest(["row", *rows], MOST_ROW * narrow)
    said = _widest(["outcome", *map(outcome_words, lanes)], MOST_SAID * narrow)
    batch_at = MARGIN + (key + GAP if key else 0)
    row_at = batch_at + text_width("batch", SMALL) + GAP
    left, right = row_at + row + GAP, width - MARGIN - said - GAP
    low, high = time_range(moments(lanes), [watermark.value for watermark in lineage.watermarks])
    is_clock = lineage.axis == "clock"
    scale = TimeScale(
        low, high, left, right, "numbers" if lineage.unit == "numbers" else "clock" if is_clock else "times"
    )
    return TimelineColumns(MARGIN, batch_at, row_at, scale, right + GAP, width)


def _widest(texts: Sequence[str], most: float) -> float:
    return min(most, max((text_width(words, FONT) + 4 for words in texts), default=0.0))


def key_words(key: str | None) -> str:
    """A key as it is shown."""
    return "NULL" if key is None else key


def places_of(groups: Sequence[LaneGroup], top: float) -> dict[int, float]:
    """The height of the middle of each lane, by arrival."""
    places: dict[int, float] = {}
    for group in groups:
        for lane in group.lanes:
            places[lane.arrival.number] = top + LANE / 2
            top += LANE
        top += 6
    return places
