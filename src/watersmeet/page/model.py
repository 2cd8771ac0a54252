"""What the page shows of queries, as values for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from watersmeet.counts import counted
from watersmeet.duration import rough_duration
from watersmeet.joins.core.operator import END_OF_INPUT
from watersmeet.observe.following import Following
from watersmeet.observe.metrics import OperatorNumbers
from watersmeet.observe.progress import Progress
from watersmeet.page.described import Column, Described
from watersmeet.page.problems import problems_of
from watersmeet.page.series import series_of
from watersmeet.page.spreads import spreads_of

EVENTS, BATCHES = 50, 100
"""How many of the latest are listed."""

Life = Literal["runs", "failed", "gone", "ended", "stopped", "unknown"]
"""How a query is: ``gone``: its process is no more and did not say why; ``unknown``: it never ran here."""


def overview(described: Described, following: Following, now: float) -> dict[str, object]:
    """A query in a line."""
    totals = following.totals
    rates = totals.rates(now)
    return {
        "name": described.name,
        "life": life_of(following),
        "batches": totals.batches,
        "rows_in": totals.rows_in,
        "rows_out": totals.rows_out,
        "rate_in": round(rates.rows_in, 1),
        "state_rows": totals.state_rows,
        "problems": len(problems_of(described, following, now)),
    }


def life_of(following: Following) -> Life:
    """How a query is."""
    if not following.events:
        return "unknown"
    if following.history.is_running:
        return "runs"
    last = following.events[-1].kind
    return "gone" if last in ("started", "retried") else last


def detail(described: Described, following: Following, now: float) -> dict[str, object]:
    """All that is shown of a query."""
    totals, last = following.totals, following.totals.last
    rates = totals.rates(now)
    counted = ("batches", "rows_in", "rows_out", "matched", "padded", "late", "malformed", "dropped")
    running = following.events[-1] if following.events else None
    return {
        **overview(described, following, now),
        **{name: getattr(totals, name) for name in counted},
        "rate_out": round(rates.rows_out, 1),
        "state_bytes": totals.state_bytes,
        "seconds": totals.seconds,
        "batch": None if last is None else last.batch,
        "last_at": None if last is None else last.at + last.seconds,
        "max_rows": described.max_rows,
        "sources": {
            name: {
                "rows": rows,
                "rate": round(rates.sources.get(name, 0.0), 1),
                "backlog": _backlog(described, last, name),
                "waiting_files": _waiting_files(described, name),
            }
            for name, rows in totals.sources.items()
        },
        "operators": {name: _operator(described, name, numbers, last) for name, numbers in following.operators.items()},
        "marks": [] if last is None else _marks(described, last),
        "held": _held(described, following),
        "next": _next(described, last),
        "problems": [asdict(problem) for problem in problems_of(described, following, now)],
        "events": [asdict(event) for event in following.events[-EVENTS:]][::-1],
        "recent": [_batch(one) for one in following.batches[-BATCHES:]][::-1],
        "series": series_of(following.batches),
        "spread": spreads_of(described, following),
        "sql": described.sql,
        "checkpoint": str(described.checkpoint),
        "spark": running.spark if running is not None and following.history.is_running else "",
    }


def drawing(described: Described) -> dict[str, object]:
    """The drawing of a query, which does not change."""
    return asdict(described.drawing)


def _operator(described: Described, name: str, numbers: OperatorNumbers, last: Progress | None) -> dict[str, object]:
    latest = last.operators.get(name) if last is not None else None
    called = described.sides.get(name, {})
    return {
        "kind": numbers.kind,
        **{
            key: getattr(numbers, key) for key in ("matched", "padded", "late", "dropped", "events", "events_processed")
        },
        "state_rows": numbers.state_rows,
        "busy": latest.busy if latest is not None else 0.0,
        "shards": numbers.shards,
        "bound": described.bounds.get(name),
        "sides": {
            side: {"name": called[side].name if side in called else side, **asdict(one), "state_bytes": one.state_bytes}
            for side, one in numbers.sides.items()
        },
    }


def _backlog(described: Described, last: Progress | None, source: str) -> int | None:
    """The rows that wait at a source; None: it does not tell."""
    topics = described.topics.get(source, ())
    known = [last.backlog[topic] for topic in topics if last is not None and topic in last.backlog]
    return sum(known) if known else None


def _waiting_files(described: Described, source: str) -> int | None:
    """The files of a source that no batch has read yet; None: that is not known."""
    known = [described.files[name]() for name in source.split("+") if name in described.files]
    return sum(one or 0 for one in known) if known and None not in known else None


def _marks(described: Described, last: Progress) -> list[dict[str, object]]:
    """Per watermarked column: its newest event, the watermark of its side and that of the result, in microseconds."""
    names = dict.fromkeys((*described.columns, *last.own, *last.marks, *sorted(last.silent)))
    return [_mark(described.columns.get(n, Column(n)), last) for n in names if not n.startswith("#") and "#@" not in n]


def _mark(column: Column, last: Progress) -> dict[str, object]:
    own, mark = last.own.get(column.name), last.marks.get(column.name)
    moves_by_rows = column.lag is not None and column.idle is None and not column.has_heartbeats
    has_newest = own is not None and own != END_OF_INPUT and moves_by_rows
    return {
        "column": column.name,
        "source": column.source,
        "temporal": column.name in last.temporal,
        # As text: numbers of JSON in a browser hold no more than 53 bits.
        "own": _text(own),
        "mark": _text(mark),
        "newest": _text(own + (column.lag or 0)) if has_newest and own is not None else None,
        "lag": column.lag,
        "idle": column.idle,
        "silent": column.name in last.silent,
    }


def _text(mark: int | None) -> str | None:
    return None if mark is None else "ended" if mark == END_OF_INPUT else str(mark)


def _held(described: Described, following: Following) -> str:
    """Which side holds the others back, in words."""
    slowest, last = following.totals.slowest, following.totals.last
    if last is None or not last.own:
        return ""
    if slowest is None:
        ahead = [mark for mark in last.own.values() if mark != END_OF_INPUT]
        return "All sides are equally far." if len(ahead) > 1 else ""
    column, by = slowest
    source = described.columns.get(column, Column(column)).source or column
    waiting = [(name, kept) for name, kept in _others(described, last, column) if kept]
    rows = " and ".join(f"{counted(kept, 'row')} of {name}" for name, kept in waiting)
    kept = f" {rows} {'waits' if sum(kept for _, kept in waiting) == 1 else 'wait'} for it." if waiting else ""
    if by is None:
        return f"{source} holds the others back: it has brought no row yet.{kept}"
    length = rough_duration(by) if column in last.temporal else f"{by:,}"
    return f"{source} holds the others back, by {length}.{kept}"


def _others(described: Described, last: Progress, column: str) -> list[tuple[str, int]]:
    """The sides that meet the one of a column, and how many rows each keeps."""
    found: list[tuple[str, int]] = []
    for name, sides in described.sides.items():
        if name in last.operators and any(column in side.columns for side in sides.values()):
            numbers = last.operators[name].sides
            others = [(key, side) for key, side in sides.items() if column not in side.columns and key in numbers]
            found += [(side.name, numbers[key].state_rows) for key, side in others]
    return found


def _next(described: Described, last: Progress | None) -> list[str]:
    """What expires next: until when rows of each side are kept, as the plan says, and which are the earliest now."""
    facts = [dict(box.facts) for box in described.drawing.boxes if box.kind == "join"]
    lines = [line for fact in facts for line in fact.get("kept", ())]
    watermarks: Mapping[str, str] = {} if last is None else last.watermarks
    sides = dict.fromkeys(
        (side.name, column) for of in described.sides.values() for side in of.values() for column in side.columns
    )
    known = [(name, watermarks[column]) for name, column in sides if watermarks.get(column, "ended") != "ended"]
    return [*lines, *(f"the earliest rows of {name} that may still come out are from {mark}" for name, mark in known)]


def _batch(one: Progress) -> dict[str, object]:
    names: Sequence[str] = (
        "batch", "batches", "at", "rows_in", "rows_out", "matched", "padded", "late", "state_rows", "seconds",
    )  # fmt: skip
    found: Mapping[str, object] = {name: getattr(one, name) for name in names}
    return {**found, "parts": dict(one.parts)}
