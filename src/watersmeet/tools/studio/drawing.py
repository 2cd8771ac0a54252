"""The retention of rows as a picture: one self-contained SVG, for light and dark screens.

Time runs to the right. Every row has a lane: a bar from its own time to its expiry, in the colour of its side, with a
shape at its end for its outcome. Rows of one key are grouped, and a line joins matching rows. Watermarks are lines
across all lanes, solid for the last batch, dotted for earlier ones.

Colours identify the sides and are those of Okabe and Ito; outcomes are shapes and words, so the picture also works
without colours. Text from outside is escaped here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Literal

from watersmeet.operators.outcomes import Lineage, RowMatch, TracedWatermark
from watersmeet.tools.explain.svg import text_width, wrap_text
from watersmeet.tools.studio.lanes import (
    AXES,
    FONT,
    GAP,
    LANE,
    LEAST,
    LINE,
    MARGIN,
    MOST,
    MOST_LANES,
    TITLE,
    TRACK,
    LaneGroup,
    RowLane,
    TimelineColumns,
    TimeScale,
    columns_of,
    ensure_axis,
    groups_of,
    key_words,
    legend,
    outcome_words,
    places_of,
    row_words,
    sides_of,
    tooltip_words,
    truncate_text,
    value_words,
)

Attribute = str | float | int | None


def xml(text: str) -> str:
    """Text as XML has it; characters that no XML may hold are replaced.

    >>> xml("<b>&</b>")
    '&lt;b&gt;&amp;&lt;/b&gt;'
    """
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def element(name: str, /, *inside: str, **attributes: Attribute) -> str:
    """An element with its content, which is XML already; ``_`` stands for ``-`` in names of attributes.

    >>> element("text", xml("a & b"), class_="key", font_size=11, x=1.0)
    '<text class="key" font-size="11" x="1">a &amp; b</text>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{attribute_text}>{''.join(inside)}</{name}>" if inside else f"<{name}{attribute_text}/>"


def _value(value: str | float) -> str:
    return xml(value) if isinstance(value, str) else f"{round(value, 1):.10g}"


def text(content: str, x: float, y: float, style: str, anchor: str | None = None) -> str:
    """A line of text; ``anchor`` is ``middle`` or ``end`` where it does not begin at ``x``."""
    return element("text", xml(content), class_=style, x=x, y=y, text_anchor=anchor)


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """A straight line."""
    return element("line", class_=style, x1=x, y1=y, x2=to_x, y2=to_y)


def shape(name: str, x: float, y: float, style: str = "") -> str:
    """One of the shapes that say what became of a row, around a point."""
    made = f"shape {name} {style}".rstrip()
    match name:
        case "dot":
            return element("circle", class_=made, cx=x, cy=y, r=4.5)
        case "ring":
            return element("circle", class_=made, cx=x, cy=y, r=5.5)
        case "cross":
            return _path(made, f"M {x - 5:g} {y - 5:g} l 10 10 M {x - 5:g} {y + 5:g} l 10 -10")
        case "cap":
            return _path(made, f"M {x:g} {y - 7:g} v 14")
        case "gate":
            return _path(made, f"M {x - 5:g} {y - 6:g} l 5 6 l -5 6")
        case "arrow":
            return _path(made, f"M {x - 1:g} {y - 5:g} l 8 5 l -8 5 z")
        case _:
            return _path(made, f"M {x - 6:g} {y:g} h 12")


def _path(style: str, way: str) -> str:
    return element("path", class_=style, d=way)


SIDES = 4
"""The number of sides with a colour of their own; further ones begin again."""

STYLE = """
.lifetimes text { font: 12px Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #1f2328 }
.lifetimes .title { font-size: 16px; font-weight: bold } .lifetimes .small { font-size: 10.5px }
.lifetimes .said, .lifetimes .small, .lifetimes .head { fill: #59636e } .lifetimes .key { font-weight: bold }
.lifetimes .ground { fill: #ffffff } .lifetimes .band { fill: #f3f5f7 } .lifetimes .grid { stroke: #dfe4e9 }
.lifetimes .axis { stroke: #818b98 } .lifetimes .rule { stroke: #d1d9e0 }
.lifetimes .life { stroke-linecap: butt; stroke-width: 8; stroke: currentColor; opacity: 0.55 }
.lifetimes .shape { fill: none; stroke: #1f2328; stroke-width: 2 }
.lifetimes .dot, .lifetimes .arrow { fill: currentColor; stroke: none }
.lifetimes .dot.start { stroke: #ffffff; stroke-width: 1 }
.lifetimes .ring { fill: #ffffff; stroke: currentColor; stroke-width: 2.5 }
.lifetimes .cross { stroke: #b3261e; stroke-width: 2.5 }
.lifetimes .cap, .lifetimes .gate { stroke: currentColor; stroke-width: 2.5 }
.lifetimes .dash { stroke: #818b98 }
.lifetimes .link { stroke: #1f2328; stroke-width: 1.5 }
.lifetimes .knot { fill: #1f2328; stroke: #ffffff; stroke-width: 1 }
.lifetimes .track { stroke: currentColor; opacity: 0.35 }
.lifetimes .mark { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 5 3 }
.lifetimes .past { stroke-width: 1; stroke-dasharray: 1 4 } .lifetimes .tip { fill: currentColor }
.lifetimes .side0 { color: #0072b2 } .lifetimes .side1 { color: #d55e00 } .lifetimes .side2 { color: #00835f }
.lifetimes .side3 { color: #a8457f } .lifetimes .none { color: #59636e }
.lifetimes .name { fill: currentColor; font-weight: bold }
@media (prefers-color-scheme: dark) {
.lifetimes text { fill: #f0f6fc } .lifetimes .said, .lifetimes .small, .lifetimes .head { fill: #9198a1 }
.lifetimes .ground { fill: #0d1117 } .lifetimes .band { fill: #161b22 } .lifetimes .grid { stroke: #262c36 }
.lifetimes .axis { stroke: #818b98 } .lifetimes .rule { stroke: #30363d } .lifetimes .shape { stroke: #f0f6fc }
.lifetimes .dot, .lifetimes .arrow { stroke: none } .lifetimes .dot.start { stroke: #0d1117 }
.lifetimes .ring { fill: #0d1117; stroke: currentColor }
.lifetimes .cross { stroke: #ff8a80 } .lifetimes .cap, .lifetimes .gate { stroke: currentColor }
.lifetimes .dash { stroke: #9198a1 }
.lifetimes .link { stroke: #f0f6fc } .lifetimes .knot { fill: #f0f6fc; stroke: #0d1117 }
.lifetimes .side0 { color: #56b4e9 } .lifetimes .side1 { color: #f0a23c } .lifetimes .side2 { color: #2fc79b }
.lifetimes .side3 { color: #e08fbf } .lifetimes .none { color: #9198a1 } .lifetimes .name { fill: currentColor }
}
""".strip()
"""The rules of it. A page that shows the picture has them in a file, since its policy allows no other."""


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
        # A watermark that does not move is shown where it stopped.
        first = {watermark.value: watermark for watermark in reversed(steps)}
        for value, watermark in sorted(first.items()):
            is_now = value == steps[-1].value
            if scale.covers(value):
                parts.append(line(scale.x(value), y, scale.x(value), bottom, "mark" if is_now else "mark past"))
            # The end of the input is beyond every axis, and is shown in words.
            parts += _tip(watermark, scale, y) if value < MOST else []
        if steps:
            parts.append(text(_watermark_words(steps[-1], scale), columns.said, y + 4, "said"))
        parts.append("</g>")
    return parts


def _tip(watermark: TracedWatermark, scale: TimeScale, y: float) -> list[str]:
    """The place of a watermark, with the number of the batch; at the edge if it lies beyond it."""
    x = scale.x(watermark.value)
    tip = element("path", class_="tip", d=f"M {x - 4:g} {y - 4:g} h 8 l -4 8 z")
    said = f"{watermark.column} after batch {watermark.batch}: {_watermark_words(watermark, scale)}"
    return ["<g>", element("title", xml(said)), tip, text(str(watermark.batch), x + 6, y - 3, "small"), "</g>"]


def _watermark_words(watermark: TracedWatermark, scale: TimeScale) -> str:
    return "the end" if watermark.value >= MOST else scale.text(watermark.value)


Style = Literal["inside", "apart"]
"""Whether the rules of the style are part of the picture, or in a file of the page that shows it."""


def draw_timeline(
    lineage: Lineage, title: str = "", *, width: float = 1000.0, whole: Lineage | None = None, style: Style = "inside"
) -> str:
    """The picture. ``whole`` is the complete lineage, if this is a part of it: it determines the scale.

    >>> from watersmeet.operators.outcomes import RowArrival, RowOutcome
    >>> told = Lineage("q", "event time", (RowArrival(0, "o", "orders", 1, {"id": 1}, "1", 5),),
    ...             outcomes=(RowOutcome(0, "padded", 1, 9, None, "Nothing came."),))
    >>> picture = draw_timeline(told)
    >>> picture.startswith("<svg "), picture.count('class="lane'), "Nothing came." in picture
    (True, 1, True)
    """
    lineage, whole = ensure_axis(lineage), ensure_axis(whole or lineage)
    groups = groups_of(lineage)
    columns = columns_of(whole, max(width, LEAST))
    sides = {side: f"side{place % SIDES}" for place, side in enumerate(sides_of(whole))}
    heading = wrap_text(title, TITLE, columns.width - 2 * MARGIN) if title else []
    top = MARGIN + len(heading) * (TITLE + 6)
    tracks = tuple(dict.fromkeys((watermark.side, watermark.column) for watermark in whole.watermarks))
    lanes_top = top + len(tracks) * TRACK + LANE
    places = places_of(groups, lanes_top + 4)
    bottom = (max(places.values()) if places else lanes_top) + LANE / 2 + 4
    parts = [
        *(text(words, MARGIN, MARGIN + n * (TITLE + 6) + TITLE - 2, "title") for n, words in enumerate(heading)),
        *_heads(columns, lanes_top - 8),
        *_bands(groups, places, columns),
        *_axis(lineage, columns, lanes_top, bottom),
        *watermarks(lineage, columns, sides, tracks, top, bottom),
        *(lane for group in groups for lane in _group(group, places, columns, sides)),
        *(_link(row_match, groups, places, columns) for row_match in lineage.matches),
    ]
    low = bottom + 46
    if len(lineage.arrivals) > MOST_LANES:
        parts.append(text(f"{len(lineage.arrivals) - MOST_LANES} more rows are not drawn.", MARGIN, low, "said"))
        low += LINE
    lanes = [lane for group in groups for lane in group.lanes]
    meanings, height = _legend(lineage, lanes, columns, low)
    return "\n".join([*_svg_head(columns, height + 4, title, style), *parts, *meanings, "</svg>", ""])


def _svg_head(columns: TimelineColumns, height: float, title: str, style: Style) -> list[str]:
    scale, size = columns.scale, (f"{columns.width:.0f}", f"{height:.0f}")
    box = f'width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}"'
    # The page needs the scale to move a row to the pointer.
    axis = f'data-low="{scale.low}" data-high="{scale.high}" data-left="{scale.left}" data-right="{scale.right}"'
    label = xml(title or "Rows on the time axis")
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lifetimes" {box} role="group" aria-label="{label}" {axis}>',
        *([f"<style>\n{STYLE}\n</style>"] if style == "inside" else []),
        element("rect", class_="ground", width=columns.width, height=height),
    ]


def _heads(columns: TimelineColumns, y: float) -> list[str]:
    heads = [("batch", columns.batch), ("row", columns.row), ("outcome", columns.said)]
    heads += [("key", columns.key)] if columns.batch > MARGIN else []
    return [text(words, x, y, "small") for words, x in heads]


def _bands(groups: Sequence[LaneGroup], places: dict[int, float], columns: TimelineColumns) -> list[str]:
    """A ground behind every other key, and the key."""
    parts: list[str] = []
    for number, group in enumerate(groups):
        first, last = places[group.lanes[0].arrival.number], places[group.lanes[-1].arrival.number]
        if number % 2 == 0:
            size = {"x": MARGIN - 8, "width": columns.width - 2 * MARGIN + 16, "height": last - first + LANE + 2}
            parts.append(element("rect", class_="band", y=first - LANE / 2 - 1, rx=4, **size))
        if columns.batch > MARGIN:
            room = columns.batch - columns.key - GAP
            parts.append(text(truncate_text(key_words(group.key), room, FONT), columns.key, first + 4, "key"))
    return parts


def _axis(lineage: Lineage, columns: TimelineColumns, top: float, bottom: float) -> list[str]:
    scale = columns.scale
    ticks = scale.ticks(max(2, int((scale.right - scale.left) / 90)))
    if lineage.axis == "arrivals":
        ticks = tuple(tick for tick in ticks if 0 <= tick < max(len(lineage.arrivals), 1))
    parts = [line(scale.x(tick), top, scale.x(tick), bottom, "grid") for tick in ticks]
    parts.append(line(scale.left, bottom, scale.right, bottom, "axis"))
    parts += [text(scale.text(tick), scale.x(tick), bottom + 15, "small", "middle") for tick in ticks]
    day = f" ({scale.day}, UTC)" if scale.day else " (UTC)" if scale.kind == "times" else ""
    parts.append(text(AXES[lineage.axis] + day, (scale.left + scale.right) / 2, bottom + 31, "small", "middle"))
    if lineage.axis == "arrivals":
        parts += _batches(lineage, scale, top, bottom)
    return parts


def _batches(lineage: Lineage, scale: TimeScale, top: float, bottom: float) -> list[str]:
    """The boundary between a batch and the next one, on an axis of arrivals."""
    at = sorted((a.time, a.batch) for a in lineage.arrivals if a.time is not None)
    borders = [(scale.x(at[0][0]) - 8, at[0][1])] if at else []
    borders += [
        ((scale.x(e) + scale.x(late)) / 2, next_batch)
        for (e, previous_batch), (late, next_batch) in pairwise(at)
        if previous_batch != next_batch
    ]
    return [
        part
        for x, batch in borders
        for part in (line(x, top - 14, x, bottom, "rule"), text(f"batch {batch}", x + 4, top - 8, "small"))
    ]


def _group(group: LaneGroup, places: dict[int, float], columns: TimelineColumns, sides: dict[str, str]) -> list[str]:
    return [part for lane in group.lanes for part in _lane(lane, places[lane.arrival.number], columns, sides)]


def _lane(lane: RowLane, y: float, columns: TimelineColumns, sides: dict[str, str]) -> list[str]:
    arrival, scale = lane.arrival, columns.scale
    x = scale.left if lane.start is None else scale.x(lane.start)
    end = scale.right if lane.end is None else scale.x(lane.end)
    room = scale.left - columns.row - GAP - text_width(f"{arrival.side_name}  ", FONT)
    parts = [
        f'<g class="lane {sides[arrival.side]}" data-arrival="{arrival.number}">',
        element("title", xml(tooltip_words(lane))),
        _hit(columns, y),
        text(str(arrival.batch), columns.batch, y + 4, "said"),
        text(arrival.side_name, columns.row, y + 4, "name"),
        text(row_words(lane, room), columns.row + text_width(f"{arrival.side_name}  ", FONT), y + 4, "row"),
        text(
            truncate_text(outcome_words(lane), columns.width - MARGIN - columns.said, FONT), columns.said, y + 4, "said"
        ),
    ]
    if lane.start is not None and lane.has_life:
        parts.append(line(x, y, end, y, "life"))
        parts += [shape(lane.shape, max(end, x + 5) if lane.shape == "arrow" else end, y), shape("dot", x, y, "start")]
    else:
        parts.append(shape(lane.shape, x, y))
    return [*parts, "</g>"]


def _hit(columns: TimelineColumns, y: float) -> str:
    """The whole lane, invisible, so that the tooltip of a row appears anywhere on it."""
    size = {"width": columns.width - 2 * MARGIN, "height": LANE}
    return element("rect", class_="hit", x=MARGIN, y=y - LANE / 2, fill="none", pointer_events="all", **size)


def _link(match_: RowMatch, groups: Sequence[LaneGroup], places: dict[int, float], columns: TimelineColumns) -> str:
    """A line through the lanes of matching rows, at the moment from which all of them exist."""
    lanes = {lane.arrival.number: lane for group in groups for lane in group.lanes}
    matched_lanes = [lanes[number] for number in dict.fromkeys(match_.arrivals) if number in lanes]
    starts = [lane.start for lane in matched_lanes if lane.start is not None]
    if len(matched_lanes) < 2 or not starts:
        return ""
    x, heights = columns.scale.x(max(starts)), sorted(places[lane.arrival.number] for lane in matched_lanes)
    knots = [element("circle", class_="knot", cx=x, cy=y, r=3) for y in heights]
    rows = " met ".join(
        f"{matched_lane.arrival.side_name} ({', '.join(map(value_words, matched_lane.arrival.values.values()))})"
        for matched_lane in matched_lanes
    )
    said = element("title", xml(f"batch {match_.batch}: {rows}"))
    return element("g", said, line(x, heights[0], x, heights[-1], "link"), *knots, class_="meeting")


def _legend(
    lineage: Lineage, lanes: Sequence[RowLane], columns: TimelineColumns, top: float
) -> tuple[list[str], float]:
    """The legend, in two columns where there is room; and where it ends."""
    said = legend(lineage, lanes)
    room = columns.width - 2 * MARGIN
    wide = max((text_width(words, FONT) + 60 for _, words in said), default=0.0)
    per_column = -(-len(said) // 2) if 2 * wide < room else len(said)
    parts: list[str] = []
    lowest, y = top, top
    for number, (name, words) in enumerate(said):
        x, y = MARGIN + number // per_column * (wide + GAP), y if number % per_column else top
        parts.append(element("g", _sample(name, x + 15, y), class_="none"))
        for part in wrap_text(words, FONT, room - 42):
            parts.append(text(part, x + 42, y + 4, "said"))
            y += LINE
        lowest = max(lowest, y)
    return parts, lowest


def _sample(name: str, x: float, y: float) -> str:
    match name:
        case "life":
            return line(x - 13, y, x + 13, y, "life")
        case "link":
            ends = [element("circle", class_="knot", cx=x, cy=y + down, r=2.5) for down in (-6, 6)]
            return line(x, y - 6, x, y + 6, "link") + "".join(ends)
        case "mark":
            return line(x, y - 9, x, y + 9, "mark")
        case _:
            return shape(name, x, y)
