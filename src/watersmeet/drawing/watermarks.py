"""Watermarks in a picture of lives: a track each, with where it stood after each batch, and lines through the lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watersmeet.drawing.elements import element, line, text, xml
from watersmeet.drawing.layout import GAP, TRACK, TimelineColumns
from watersmeet.drawing.scale import MOST, TimeScale
from watersmeet.fates.model import Lineage, TracedWatermark


def watermarks(
    lineage: Lineage,
    columns: TimelineColumns,
    sides: Mapping[str, str],
    tracks: Sequence[tuple[str, str]],
    top: float,
    bottom: float,
) -> list[str]:
    """A track for each watermark with where it stood after each batch, and lines down through the lanes."""
    parts: list[str] = []
    scale = columns.scale
    for number, (side, column) in enumerate(tracks):
        y = top + number * TRACK + TRACK / 2
        steps = [watermark for watermark in lineage.watermarks if (watermark.side, watermark.column) == (side, column)]
        parts.append(f'<g class="watermark {sides[side]}">')
        parts.append(text(f"watermark of {column}", scale.left - GAP, y + 4, "name", "end"))
        parts.append(line(scale.left, y, scale.right, y, "track"))
        # A mark that stands still is shown where it came to stand.
        first = {watermark.value: watermark for watermark in reversed(steps)}
        for value, watermark in sorted(first.items()):
            is_now = value == steps[-1].value
            if scale.covers(value):
                parts.append(line(scale.x(value), y, scale.x(value), bottom, "mark" if is_now else "mark past"))
            # The end of the input is beyond every axis, and is told in words.
            parts += _tip(watermark, scale, y) if value < MOST else []
        if steps:
            parts.append(text(_watermark_words(steps[-1], scale), columns.said, y + 4, "said"))
        parts.append("</g>")
    return parts


def _tip(watermark: TracedWatermark, scale: TimeScale, y: float) -> list[str]:
    """Where a watermark stood, with the number of the batch; at the edge if it lies beyond it."""
    x = scale.x(watermark.value)
    tip = element("path", class_="tip", d=f"M {x - 4:g} {y - 4:g} h 8 l -4 8 z")
    said = f"{watermark.column} after batch {watermark.batch}: {_watermark_words(watermark, scale)}"
    return ["<g>", element("title", xml(said)), tip, text(str(watermark.batch), x + 6, y - 3, "small"), "</g>"]


def _watermark_words(watermark: TracedWatermark, scale: TimeScale) -> str:
    return "the end" if watermark.value >= MOST else scale.text(watermark.value)
