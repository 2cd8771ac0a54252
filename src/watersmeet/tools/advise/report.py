"""The findings as text, as JSON, and as a picture.

The picture shows per pair the distances of its rows with the bounds, and per side the cost of each lag.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from watersmeet.duration import align_columns, format_count
from watersmeet.tools.advise.arrivals import HEAVY, LagCost, TableAdvice, Unit, format_length
from watersmeet.tools.advise.distances import Distances, LikelyKey, histogram
from watersmeet.tools.advise.pair import Cost, PairAdvice, SideAdvice, proposal_sql

FAR = 0.9
"""From this on, rows of a likely key are hardly nearer in time than any others."""


class Advice(str):
    """The advice on joins, as a string; a notebook shows the picture, with the text below it.

    ``pairs`` and ``tables`` are the findings as values, ``data`` is the same as JSON values, ``sql`` is SQL to paste.
    """

    __slots__ = ("pairs", "tables")
    pairs: tuple[PairAdvice, ...]
    tables: tuple[TableAdvice, ...]

    @classmethod
    def of(cls, pairs: Sequence[PairAdvice], tables: Sequence[TableAdvice] = (), notes: Sequence[str] = ()) -> Advice:
        """The advice that follows from findings; ``notes``: what could not be looked at, and why."""
        sql = proposal_sql(pairs)
        parts = ["\n".join(_pair(pair)) for pair in pairs]
        parts += ["\n".join(_table(table)) for table in tables]
        parts += ["\n".join(notes)] if notes else []
        parts += [f"SQL to paste (keep your other conditions and columns):\n\n{sql}"] if sql else []
        advice = cls("\n\n".join(parts))
        advice.pairs, advice.tables = tuple(pairs), tuple(tables)
        return advice

    @property
    def sql(self) -> str:
        """The SQL that is proposed; nothing if there was nothing to propose."""
        return proposal_sql(self.pairs)

    @property
    def svg(self) -> str:
        """The picture."""
        return draw(self.pairs)

    @property
    def data(self) -> dict[str, object]:
        """The findings for machines; lengths of time in microseconds, of times that are numbers as these."""
        return {
            "pairs": [_pair_data(pair) for pair in self.pairs],
            "tables": [_table_data(table) for table in self.tables],
            "sql": self.sql,
        }

    def _repr_html_(self) -> str:
        drawing = b64encode(self.svg.encode()).decode()
        image = f'<img alt="distances and lags" src="data:image/svg+xml;base64,{drawing}">'
        return f"{image}<details><summary>As text</summary><pre>{escape(self, quote=False)}</pre></details>"


def _pair(pair: PairAdvice) -> Iterator[str]:
    left, right = pair.sides
    names = (left.arrivals.name, right.arrivals.name)
    by = " and ".join(f"{names[0]}.{mine} = {names[1]}.{other}" for mine, other in pair.keys)
    yield f"{names[0]} and {names[1]}{f', by {by}' if by else ''}"
    for side in pair.sides:
        yield f"  {side.arrivals.name}: {_sample_summary(side)}, {_rate(side.rate, pair.unit)}"
        if side.is_guessed:
            yield f"  {side.arrivals.name}: no watermark is declared; {side.time} is used as the event time"
    yield from _bounds(pair)
    for side in pair.sides:
        yield from _lags(side, pair.unit)
    yield from _keys(pair)
    for side in pair.sides:
        yield from _skew(side)
    for number, side in enumerate(pair.sides):
        yield from _pauses(side, pair.sides[1 - number])


def _sample_summary(side: SideAdvice) -> str:
    extent = "all of them" if side.arrivals.is_all else "the first of them"
    return f"{format_count(side.rows, 'row')}, {extent}, in {side.arrivals.order}"


def _rate(rate: float, unit: Unit) -> str:
    if unit == "number":
        return f"{rate:,.3g} rows per unit of event time"
    for seconds, name in ((1, "second"), (60, "minute"), (3600, "hour"), (86400, "day")):
        if rate * 1e6 * seconds >= 1 or name == "day":
            return f"{rate * 1e6 * seconds:,.3g} rows per {name} of event time"
    raise AssertionError


def _bounds(pair: PairAdvice) -> Iterator[str]:
    names = [side.arrivals.name for side in pair.sides]
    distances = pair.distances
    yield ""
    if not pair.keys:
        yield "  No columns look like keys of each other, so there are no pairs."
        return
    if distances is None:
        yield f"  No row of {names[0]} has a partner in {names[1]} by this key."
        return
    yield (
        f"  {_share(distances.matched[0])} of {names[0]} rows and {_share(distances.matched[1])} of {names[1]} rows"
        " have a partner."
    )
    if distances.pairing == "nearest":
        yield (
            f"  A key has many rows ({distances.per_row:,.0f} of {names[1]} per row):"
            " the nearest in time counts as the partner."
        )
    if distances.left_out:
        yield f"  Left out: {format_count(distances.left_out, 'row')} at the end, whose partners may still arrive."
    if distances.is_short:
        yield "  The sample covers little more time than the distances: longer ones may be missing."
    median, extremes = distances.quantile(0.5), (distances.values[0], distances.values[-1])
    times = [f"{side.arrivals.name}.{side.time}" for side in pair.sides]
    reach = f"{format_length(float(extremes[0]), pair.unit)} to {format_length(float(extremes[1]), pair.unit)}"
    yield f"  {times[1]} - {times[0]}: {reach}, median {format_length(median, pair.unit)}"
    rows = [("  bound", "keeps", f"{names[0]} kept", f"{names[1]} kept", "")]
    costs: dict[Cost, None] = dict.fromkeys(
        [*pair.costs, *(choice for choice in (pair.chosen, pair.now) if choice is not None)]
    )
    for cost in sorted(costs, key=lambda cost: (cost.bounds.keeps, cost.bounds.earlier + cost.bounds.later)):
        bounds = cost.bounds
        bound_text = (
            f"  {format_length(bounds.earlier, pair.unit)} before, {format_length(bounds.later, pair.unit)} after"
        )
        state_rows = [f"{count:,.0f} rows" for count in cost.rows]
        rows.append(
            (
                bound_text,
                _share(bounds.keeps),
                state_rows[0],
                state_rows[1],
                _marker(cost == pair.now, cost == pair.chosen),
            )
        )
    yield from align_columns(rows)


def _lags(side: SideAdvice, unit: Unit) -> Iterator[str]:
    yield ""
    at = f"{side.arrivals.name}.{side.time}"
    if side.behind.is_ordered:
        yield f"  {at}: all rows are in order."
    rows = [(f"  lag of {at}", "late, at most", "delay", "")]
    lags: dict[LagCost, None] = dict.fromkeys([*side.lags, *([side.declared] if side.declared is not None else [])])
    for lag in sorted(lags, key=lambda lag: lag.lag):
        marker = _marker(lag == side.declared, lag == side.lag)
        rows.append((f"  {format_length(lag.lag, unit)}", _share(lag.late), format_length(lag.delay, unit), marker))
    yield from align_columns(rows)


def _marker(is_now: bool, is_proposed: bool) -> str:
    notes = [*(["now"] if is_now else []), *(["proposed"] if is_proposed else [])]
    return f"<- {' and '.join(notes)}" if notes else ""


def _keys(pair: PairAdvice) -> Iterator[str]:
    if not pair.likely:
        return
    yield ""
    yield "  Columns that look like keys of each other:"
    names = [side.arrivals.name for side in pair.sides]
    rows = [_key(likely, names) for likely in pair.likely]
    yield from align_columns(rows)


def _key(likely: LikelyKey, names: Sequence[str]) -> tuple[str, ...]:
    near = "hardly closer in time than random rows" if likely.spread > FAR else "near in time"
    dense = "; nearly all numbers of a range, which overlap anyway" if likely.is_dense else ""
    return (
        f"  {names[0]}.{likely.left} = {names[1]}.{likely.right}",
        f"{_share(likely.shared)} of values shared",
        f"{likely.rows[0]:,.1f} and {likely.rows[1]:,.1f} rows of a value",
        f"{near}{dense}",
    )


def _skew(side: SideAdvice) -> Iterator[str]:
    skew = side.skew
    if skew is None:
        return
    if skew.nulls:
        yield f"  {side.arrivals.name}: {_share(skew.nulls)} of rows have a NULL key, and match nothing."
    heavy = [f"{value} {_share(share)}" for value, share in skew.heaviest if share >= HEAVY]
    if heavy and skew.most_cores is not None:
        yield (
            f"  {side.arrivals.name}: heavy keys: {', '.join(heavy)}. A key is in one shard:"
            f" more than {skew.most_cores} cores would not help this join."
        )


def _pauses(side: SideAdvice, other: SideAdvice) -> Iterator[str]:
    pauses = side.pauses
    if pauses is not None:
        yield (
            f"  {side.arrivals.name} pauses at times"
            f" ({pauses.count}, at most {format_length(pauses.longest)} of event time),"
            f" while {other.arrivals.name} continues: up to {pauses.waiting:,} of its rows wait."
        )
        yield (
            f"  IDLE AFTER {format_length(pauses.idle_after)} (wall clock) is longer than its other gaps;"
            " rows with earlier"
        )
        yield "  times that arrive after a pause are then late."


def _table(table: TableAdvice) -> Iterator[str]:
    name = table.arrivals.name
    which = "all of them" if table.arrivals.is_all else "the first of them"
    yield f"{name}: a table of {format_count(table.keys, 'key')} in {format_count(table.rows, 'row')}, {which}"
    if table.is_static:
        yield "  No row was replaced or deleted. If this never happens, the table does not have to be followed:"
        yield f"  `static 'true'` in the OPTIONS of {name} reads it once, and a join with it keeps no state."
    else:
        yield f"  The table changes: {table.replaced:,} rows replace an earlier one, {table.deleted:,} delete one."


def _share(share: float) -> str:
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return f"{100 * share:.4g} %" if share <= 0.9999 or share == 1 else "> 99.99 %"


def _pair_data(pair: PairAdvice) -> dict[str, object]:
    distances = pair.distances
    return {
        "left": _side_data(pair.sides[0]),
        "right": _side_data(pair.sides[1]),
        "unit": pair.unit,
        "keys": [list(key) for key in pair.keys],
        "likely_keys": [
            {
                "left": k.left, "right": k.right, "shared": k.shared, "values": list(k.values),
                "rows_per_value": list(k.rows), "spread": k.spread, "is_dense": k.is_dense,
            }
            for k in pair.likely
        ],
        "distances": distances
        and {
            "pairs": len(distances.values), "pairing": distances.pairing, "met": list(distances.matched),
            "left_out": distances.left_out, "is_short": distances.is_short, "lowest": int(distances.values[0]),
            "median": distances.quantile(0.5), "highest": int(distances.values[-1]),
        },
        "bounds": [_cost_data(cost) for cost in pair.costs],
        "proposed": pair.chosen and _cost_data(pair.chosen),
        "now": pair.now and _cost_data(pair.now),
    }  # fmt: skip


def _cost_data(cost: Cost) -> dict[str, object]:
    rows = [round(number) for number in cost.rows]
    return {"earlier": cost.bounds.earlier, "later": cost.bounds.later, "keeps": cost.bounds.keeps, "state_rows": rows}


def _side_data(side: SideAdvice) -> dict[str, object]:
    return {
        "source": side.arrivals.name,
        "time": side.time,
        "is_guessed": side.is_guessed,
        "rows": side.rows,
        "is_all": side.arrivals.is_all,
        "rows_per_unit": side.rate,
        "column_bytes": side.arrivals.column_bytes,
        "keys": None if side.skew is None else side.skew.keys,
        "lags": [{"lag": lag.lag, "late": lag.late, "delay": lag.delay} for lag in side.lags],
        "proposed_lag": side.lag.lag,
        "declared_lag": side.declared and side.declared.lag,
        "heaviest_keys": [] if side.skew is None else [list(pair) for pair in side.skew.heaviest],
        "without_key": None if side.skew is None else side.skew.nulls,
        "pauses": side.pauses
        and {
            "count": side.pauses.count, "longest": side.pauses.longest, "waiting": side.pauses.waiting,
            "idle_after": side.pauses.idle_after,
        },
    }  # fmt: skip


def _table_data(table: TableAdvice) -> dict[str, object]:
    return {
        "source": table.arrivals.name,
        "rows": table.rows,
        "keys": table.keys,
        "replaced": table.replaced,
        "deleted": table.deleted,
        "looks_static": table.is_static,
    }


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
        panels.append((title, _draw_distances(pair.distances, bounds, pair.unit)))
    for side in pair.sides:
        title = f"Late rows of {side.arrivals.name} by the lag of {side.time}, at most"
        panels.append((title, _draw_late(side, pair.unit)))
    return panels


def _draw_distances(pairs: Distances, bounds: tuple[int, int], unit: Unit) -> Draw:
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
            yield _draw_bound(
                x + (bound - low) * scale, y, format_length(bound, unit), is_right=(bound - low) * scale > inner / 2
            )

    return panel


def _draw_late(side: SideAdvice, unit: Unit) -> Draw:
    high = float(max(1, side.lags[-1].lag)) * 1.15
    lags = np.linspace(0, high, 80)
    late = [side.behind.late(int(lag)) for lag in lags]
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
        yield _draw_bound(x + at, y, format_length(side.lag.lag, unit), is_right=at > (WIDE - LEFT) / 2)

    return panel


def _axes(x: float, y: float, ticks: Sequence[tuple[float, str]], low: float, scale: float, top: str) -> Iterator[str]:
    yield f'<path class="axis" d="M {x:.1f} {y:.1f} V {y + HIGH:.1f} H {x + WIDE - LEFT:.1f}"/>'
    yield f'<text x="{x - 6:.1f}" y="{y + 10:.1f}" text-anchor="end">{escape(top)}</text>'
    for place, (value, text) in enumerate(ticks):
        anchor = "start" if place == 0 else "end"
        at = x + (value - low) * scale
        yield f'<text x="{at:.1f}" y="{y + HIGH + 16:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _draw_bound(x: float, y: float, text: str, *, is_right: bool) -> str:
    anchor, at = ("end", x - 4) if is_right else ("start", x + 4)
    return (
        f'<path class="bound" d="M {x:.1f} {y:.1f} V {y + HIGH:.1f}"/>'
        f'<text class="said" x="{at:.1f}" y="{y - 3:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
