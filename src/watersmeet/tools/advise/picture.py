"""The findings as a picture: per pair the distances of its rows with the bounds, and per side the cost of each lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from watersmeet.tools.advise.arrivals import Unit, format_length
from watersmeet.tools.advise.distances import Distances, histogram
from watersmeet.tools.advise.findings import Disorder
from watersmeet.tools.advise.pair import PairAdvice, SideAdvice

WIDE, HIGH, GAP, TITLE = 420.0, 190.0, 36.0, 42.0
LEFT, BELOW = 58.0, 30.0

_STYLE = """
text { font-family: Helvetica, Arial, 'DejaVu Sans', sans-serif; font-size: 11px; fill: #424a53 }
.title { font-size: 13px; fill: #1f2328 } .ground { fill: #ffffff } .axis { stroke: #afb8c1; fill: none }
.bar { fill: #56b4e9 } .line { fill: none; stroke: #0072b2; stroke-width: 2 }
.bound { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 4 3 } .said { fill: #d55e00 }
@media (prefers-color-scheme: dark) {
text { fill: #c9d1d9 } .title { fill: #f0f6fc } .ground { fill: #0d1117 } .axis { stroke: #3d444d }
.said { fill: #e69f00 } .bound { stroke: #e69f00 }
}
""".strip()

Draw = Callable[[float, float], Iterator[str]]


def draw(pairs: Sequence[PairAdvice]) -> str:
    """A row of panels per pair, as the text of an SVG file that needs nothing else.

    >>> draw([]).startswith("<svg ")
    True
    """
    rows = [_panels(pair) for pair in pairs]
    across = max((len(row) for row in rows), default=1)
    width = across * (WIDE + GAP) + GAP
    height = len(rows) * (HIGH + TITLE + BELOW + GAP) + GAP
    box = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        "<title>Time between the rows of a pair, and how far rows are out of order</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
    ]
    for down, row in enumerate(rows):
        for place, (title, panel) in enumerate(row):
            x, y = GAP + place * (WIDE + GAP), GAP + down * (HIGH + TITLE + BELOW + GAP)
            parts.append(f'<text class="title" x="{x:.1f}" y="{y:.1f}">{escape(title)}</text>')
            parts += panel(x + LEFT, y + TITLE - GAP / 2)
    return "\n".join([*parts, "</svg>", ""])


def _panels(pair: PairAdvice) -> list[tuple[str, Draw]]:
    left, right = pair.sides
    panels: list[tuple[str, Draw]] = []
    if pair.distances is not None and pair.chosen is not None:
        bounds = (-pair.chosen.bounds.earlier, pair.chosen.bounds.later)
        title = f"Pairs by {right.arrivals.name}.{right.time} - {left.arrivals.name}.{left.time}"
        panels.append((title, _distances(pair.distances, bounds, pair.unit)))
    for side in pair.sides:
        title = f"Late rows of {side.arrivals.name} by the lag of {side.time}, at most"
        panels.append((title, _late(side, pair.unit)))
    return panels


def _distances(pairs: Distances, bounds: tuple[int, int], unit: Unit) -> Draw:
    edges, counts = histogram(pairs)
    low, high = min(float(edges[0]), bounds[0]), max(float(edges[-1]), bounds[1])
    high = high if high > low else low + 1
    most = max(1, int(counts.max()))

    def panel(x: float, y: float) -> Iterator[str]:
        inner = WIDE - LEFT
        scale = inner / (high - low)
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
            tall = HIGH * float(count) / most
            yield (
                f'<rect class="bar" x="{x + (float(start) - low) * scale:.1f}" y="{y + HIGH - tall:.1f}"'
                f' width="{max(0.5, float(end - start) * scale - 0.5):.1f}" height="{tall:.1f}">'
                f"<title>{escape(format_length(float(start), unit))}: {int(count):,} pairs</title></rect>"
            )
        yield from _axes(
            x, y, [(low, format_length(low, unit)), (high, format_length(high, unit))], low, scale, f"{most:,}"
        )
        for bound in dict.fromkeys(bounds):
            yield _bound(
                x + (bound - low) * scale, y, format_length(bound, unit), is_right=(bound - low) * scale > inner / 2
            )

    return panel


def _late(side: SideAdvice, unit: Unit) -> Draw:
    high = float(max(1, side.lags[-1].lag)) * 1.15
    lags = np.linspace(0, high, 80)
    late = [_share_late(side.behind, lag) for lag in lags]
    most = max([*late, 0.001])

    def panel(x: float, y: float) -> Iterator[str]:
        scale = (WIDE - LEFT) / high
        points = " ".join(
            f"{x + float(lag) * scale:.1f},{y + HIGH * (1 - share / most):.1f}"
            for lag, share in zip(lags, late, strict=True)
        )
        yield f'<polyline class="line" points="{points}"/>'
        yield from _axes(x, y, [(0, "0"), (high, format_length(high, unit))], 0, scale, f"{100 * most:.3g} %")
        at = side.lag.lag * scale
        yield _bound(x + at, y, format_length(side.lag.lag, unit), is_right=at > (WIDE - LEFT) / 2)

    return panel


def _share_late(disorder: Disorder, lag: float) -> float:
    return disorder.late(int(lag))


def _axes(x: float, y: float, ticks: Sequence[tuple[float, str]], low: float, scale: float, top: str) -> Iterator[str]:
    yield f'<path class="axis" d="M {x:.1f} {y:.1f} V {y + HIGH:.1f} H {x + WIDE - LEFT:.1f}"/>'
    yield f'<text x="{x - 6:.1f}" y="{y + 10:.1f}" text-anchor="end">{escape(top)}</text>'
    for place, (value, text) in enumerate(ticks):
        anchor = "start" if place == 0 else "end"
        at = x + (value - low) * scale
        yield f'<text x="{at:.1f}" y="{y + HIGH + 16:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _bound(x: float, y: float, text: str, *, is_right: bool) -> str:
    anchor, at = ("end", x - 4) if is_right else ("start", x + 4)
    return (
        f'<path class="bound" d="M {x:.1f} {y:.1f} V {y + HIGH:.1f}"/>'
        f'<text class="said" x="{at:.1f}" y="{y - 3:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
