"""The content of the page as JSON values: states, the latest rows, and histories as charts.

Rows are stored nowhere else. A chart has a bounded number of points, whatever the number of batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Literal

from watersmeet.duration import format_count, rough_duration
from watersmeet.logical.words import without_generated_names
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.metrics import OperatorMetrics
from watersmeet.metrics.progress import Progress, end_time
from watersmeet.operators.core.operator import END_OF_INPUT, is_internal
from watersmeet.tools.studio.page.description import QueryDescription, WatermarkColumn
from watersmeet.tools.studio.page.problems import problems_of, spreads_of

POINTS = 300
"""The largest number of points of a line: more than that no screen shows."""


def series_of(batches: Sequence[Progress], points: int = POINTS) -> dict[str, object]:
    """The lines of a history: counters are summed between two points, of state sizes the highest counts.

    >>> made = series_of([Progress("q", n, rows_in=2, state_rows=n, at=60.0 + n) for n in range(6)], points=3)
    >>> made["at"], made["rows_in"], made["state_rows"]
    ([61.0, 63.0, 65.0], [4, 4, 4], [1, 3, 5])
    """
    size = -(-len(batches) // points) or 1
    groups = [batches[n : n + size] for n in range(0, len(batches), size)]
    sides = dict.fromkeys(
        (name, side)
        for group in groups[-1:]
        for batch in group
        for name, op in batch.operators.items()
        for side in op.sides
    )
    parts = dict.fromkeys(name for group in groups for name in group[-1].parts)
    columns = dict.fromkeys(name for group in groups[-1:] for name in group[-1].marks if not is_internal(name))
    return {
        "at": [group[-1].at for group in groups],
        **{name: [_sum_field(group, name) for group in groups] for name in _SUMMED_FIELDS},
        **{name: [max(getattr(batch, name) for batch in group) for group in groups] for name in _PEAK_FIELDS},
        "batch": [group[-1].batch for group in groups],
        "batches": [sum(batch.batches for batch in group) for group in groups],
        "longest": [max(batch.seconds / batch.batches for batch in group) for group in groups],
        "sides": {f"{name}\n{side}": [_peak_state_rows(group, name, side) for group in groups] for name, side in sides},
        "parts": {name: [sum(batch.parts.get(name, 0.0) for batch in group) for group in groups] for name in parts},
        "behind": {name: [_behind(group[-1], name) for group in groups] for name in columns},
    }


_SUMMED_FIELDS = ("rows_in", "rows_out", "matched", "padded", "late", "malformed", "dropped", "seconds")
_PEAK_FIELDS = ("state_rows", "state_bytes")


def _sum_field(group: Sequence[Progress], name: str) -> float:
    total = sum(getattr(batch, name) for batch in group)
    return round(total, 3) if isinstance(total, float) else total


def _peak_state_rows(group: Sequence[Progress], operator: str, side: str) -> int:
    sides_by_batch = (batch.operators[operator].sides for batch in group if operator in batch.operators)
    return max((sides[side].state_rows for sides in sides_by_batch if side in sides), default=0)


def _behind(batch: Progress, column: str) -> float | None:
    """The lag of a watermark behind the clock when the batch ended, in seconds."""
    watermark = batch.marks.get(column)
    if watermark is None or watermark == END_OF_INPUT or column not in batch.temporal:
        return None
    return round(end_time(batch) - watermark / 1_000_000, 3)


EVENTS, BATCHES = 50, 100
"""The number of the latest that are listed."""

QueryStatus = Literal["runs", "failed", "gone", "ended", "stopped", "unknown"]
"""The status of a query: ``gone``: its process ended without a reason; ``unknown``: it never ran here."""


def overview(described: QueryDescription, following: HistoryFollower, now: float) -> dict[str, object]:
    """A query in a line."""
    totals = following.totals
    rates = totals.rates(now)
    return {
        "name": described.name,
        "life": query_status(following),
        "phase": _phase(following),
        "batches": totals.batches,
        "rows_in": totals.rows_in,
        "rows_out": totals.rows_out,
        "rate_in": round(rates.rows_in, 1),
        "state_rows": totals.state_rows,
        "problems": len(problems_of(described, following, now)),
        "sources": sorted({box.source for box in described.drawing.boxes if box.source}),
    }


def _phase(following: HistoryFollower) -> str:
    """The phase of a query that runs, as its batches since the last start say."""
    last, started = following.totals.last, max((event.at for event in following.events), default=0.0)
    return last.phase if last is not None and last.at >= started and following.history.is_running else ""


def query_status(following: HistoryFollower) -> QueryStatus:
    """The condition of a query."""
    if not following.events:
        return "unknown"
    if following.history.is_running:
        return "runs"
    last = following.events[-1].kind
    return "gone" if last in ("started", "retried") else last


def detail(described: QueryDescription, following: HistoryFollower, now: float) -> dict[str, object]:
    """All that is shown of a query."""
    totals, last = following.totals, following.totals.last
    rates = totals.rates(now)
    counted = ("batches", "rows_in", "rows_out", "matched", "padded", "late", "malformed", "dropped")
    at_end = "" if following.history.is_running else "At its end: "
    sides = [side for numbers in following.operators.values() for side in numbers.sides.values()]
    running = following.events[-1] if following.events else None
    return {
        **overview(described, following, now),
        **{name: getattr(totals, name) for name in counted},
        # What can be late: the rows of all sides, of which a chain of joins has more than its sources.
        "late_of": sum(side.rows for side in sides),
        # Those of the result, which they add up to.
        **dict(zip(("matched", "padded"), totals.result, strict=True)),
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
                "waiting_files": _file_backlog(described, name),
            }
            for name, rows in totals.sources.items()
        },
        "operators": {name: _operator(described, name, numbers, last) for name, numbers in following.operators.items()},
        "marks": [] if last is None else _watermarks(described, last),
        "held": at_end + held if (held := _holdback_text(described, following)) else "",
        "next": _next(described, last),
        "problems": [asdict(problem) for problem in problems_of(described, following, now)],
        "events": [asdict(event) for event in following.events[-EVENTS:]][::-1],
        "recent": [_batch(batch) for batch in following.batches[-BATCHES:]][::-1],
        "series": series_of(following.batches),
        "spread": spreads_of(described, following),
        "sql": described.sql,
        "checkpoint": str(described.checkpoint),
        "spark": running.spark if running is not None and following.history.is_running else "",
    }


def query_drawing_json(described: QueryDescription) -> dict[str, object]:
    """The drawing of a query, which does not change."""
    return asdict(described.drawing)


def _operator(
    described: QueryDescription, name: str, numbers: OperatorMetrics, last: Progress | None
) -> dict[str, object]:
    latest = last.operators.get(name) if last is not None else None
    called = described.sides.get(name, {})
    return {
        "kind": numbers.kind,
        "name": without_generated_names(name),
        **{
            key: getattr(numbers, key) for key in ("matched", "padded", "late", "dropped", "events", "events_processed")
        },
        "state_rows": numbers.state_rows,
        "busy": latest.busy if latest is not None else 0.0,
        "shards": numbers.shards,
        "bound": described.bounds.get(name),
        "sides": {
            side: {
                "name": called[side].name if side in called else side,
                **asdict(side_metrics),
                "state_bytes": side_metrics.state_bytes,
            }
            for side, side_metrics in numbers.sides.items()
        },
    }


def _backlog(described: QueryDescription, last: Progress | None, source: str) -> int | None:
    """The rows that wait at a source; None: unknown."""
    topics = described.topics.get(source, ())
    backlogs = [last.backlog[topic] for topic in topics if last is not None and topic in last.backlog]
    return sum(backlogs) if backlogs else None


def _file_backlog(described: QueryDescription, source: str) -> int | None:
    """The files of a source that no batch has read yet; None: that is not known."""
    counts = [described.files[name]() for name in source.split("+") if name in described.files]
    return sum(count or 0 for count in counts) if counts and None not in counts else None


def _watermarks(described: QueryDescription, last: Progress) -> list[dict[str, object]]:
    """Per watermarked column: its newest event, the watermark of its side and that of the result, in microseconds."""
    names = dict.fromkeys((*described.columns, *last.own, *last.marks, *sorted(last.silent)))
    return [_watermark_json(described.columns.get(n, WatermarkColumn(n)), last) for n in names if not is_internal(n)]


def _watermark_json(column: WatermarkColumn, last: Progress) -> dict[str, object]:
    own, watermark = last.own.get(column.name), last.marks.get(column.name)
    moves_by_rows = column.lag is not None and column.idle is None and not column.has_heartbeats
    has_newest = own is not None and own != END_OF_INPUT and moves_by_rows
    return {
        "column": column.name,
        "source": column.source,
        "temporal": column.name in last.temporal,
        # As text: numbers of JSON in a browser hold no more than 53 bits.
        "own": _text(own),
        "mark": _text(watermark),
        "newest": _text(own + (column.lag or 0)) if has_newest and own is not None else None,
        "lag": column.lag,
        "idle": column.idle,
        "silent": column.name in last.silent,
    }


def _text(watermark: int | None) -> str | None:
    return None if watermark is None else "ended" if watermark == END_OF_INPUT else str(watermark)


def _holdback_text(described: QueryDescription, following: HistoryFollower) -> str:
    """Name the side that holds the others back."""
    slowest, last = following.totals.slowest, following.totals.last
    if last is None or not last.own:
        return ""
    if slowest is None:
        ahead = [mark for name, mark in last.own.items() if mark != END_OF_INPUT and not is_internal(name)]
        return "All sides are at the same time." if len(ahead) > 1 else ""
    column, by = slowest
    source = described.columns.get(column, WatermarkColumn(column)).source or column
    waiting = [(name, count) for name, count in _others(described, last, column) if count]
    rows = " and ".join(f"{format_count(count, 'row')} of {name}" for name, count in waiting)
    suffix = f" {rows} {'waits' if sum(count for _, count in waiting) == 1 else 'wait'} for it." if waiting else ""
    if by is None:
        return f"{source} holds the others back: it has had no row yet.{suffix}"
    length = rough_duration(by) if column in last.temporal else f"{by:,}"
    return f"{source} holds the others back, by {length}.{suffix}"


def _others(described: QueryDescription, last: Progress, column: str) -> list[tuple[str, int]]:
    """The sides joined with the side of a column, and the state rows of each."""
    other_sides: list[tuple[str, int]] = []
    for name, sides in described.sides.items():
        if name in last.operators and any(column in side.columns for side in sides.values()):
            numbers = last.operators[name].sides
            others = [(key, side) for key, side in sides.items() if column not in side.columns and key in numbers]
            other_sides += [(side.name, numbers[key].state_rows) for key, side in others]
    return other_sides


def _next(described: QueryDescription, last: Progress | None) -> list[str]:
    """The next rows to expire: the retention of each side according to the plan, and the current earliest rows."""
    facts = [dict(box.facts) for box in described.drawing.boxes if box.kind == "join"]
    lines = [line for fact in facts for line in fact.get("kept", ())]
    watermarks: Mapping[str, str] = {} if last is None else last.watermarks
    sides = dict.fromkeys(
        (side.name, column)
        for of in described.sides.values()
        for side in of.values()
        for column in side.columns
        if side.source
    )
    # Of what a join brings, both sides have their rows in a list of their own.
    earliest = [(name, watermarks[column]) for name, column in sides if watermarks.get(column, "ended") != "ended"]
    return [
        *lines,
        *(f"the earliest rows of {name} that may still come out are from {watermark}" for name, watermark in earliest),
    ]


def _batch(batch: Progress) -> dict[str, object]:
    names: Sequence[str] = (
        "batch", "batches", "at", "rows_in", "rows_out", "matched", "padded", "late", "state_rows", "seconds",
    )  # fmt: skip
    values: Mapping[str, object] = {name: getattr(batch, name) for name in names}
    return {**values, "parts": dict(batch.parts)}


ROWS_PER_KIND = 8
"""The number of rows of a kind that are shown."""
KINDS = {
    "matched": "Matched",
    "padded": "Padded: without a match",
    "joined": "Joined: matched or padded, their columns do not show which",
    "out": "Rows out",
    "late": "Late",
    "malformed": "Malformed",
    "dropped": "Not shown: rows that could not be made into text",
}
ONLY_WITH_RUN = "Rows are shown only during a run, by `watersmeet run --page`: they are not stored."
SWITCHED_OFF = "Rows are switched off by --no-rows."
SAMPLE_NOTE = "Some of the latest rows, from one shard of each batch. Click a row to see what happened to it, and why."


@dataclass(frozen=True)
class SampleRow:
    """A row with its values as text, its reason, and its number for requests."""

    values: Mapping[str, str | None]
    why: str
    number: int = 0


class RowSamples:
    """Collects reported rows, and keeps the latest of each kind."""

    def __init__(self, note: str = SAMPLE_NOTE) -> None:
        self.note = note
        self._samples: dict[tuple[str, str, str], deque[SampleRow]] = {}
        self._numbers = count()

    def take(self, progress: Progress) -> None:
        """Take the rows of a batch."""
        for name, kinds in progress.examples.items():
            for kind, rows in kinds.items():
                samples = self._samples.setdefault((progress.query, kind, name), deque(maxlen=ROWS_PER_KIND))
                samples.extendleft(
                    SampleRow(*_split_reason(kind, dict(row), progress), next(self._numbers)) for row in rows
                )

    def row(self, query: str, number: int) -> SampleRow | None:
        """The row of that number, if it is still shown."""
        candidates = (row for (of, _, _), rows in self._samples.items() if of == query for row in rows)
        return next((row for row in candidates if row.number == number), None)

    def to_json(self, query: str) -> dict[str, object]:
        """The samples of a query: a table per kind, and per operator if several have rows of it."""
        groups = [(kind, name, rows) for (of, kind, name), rows in self._samples.items() if of == query]
        several = len({name for _, name, _ in groups}) > 1
        order = list(KINDS)
        tables: list[dict[str, object]] = []
        for kind, name, rows in sorted(groups, key=lambda group: (order.index(group[0]), group[1])):
            columns = list(dict.fromkeys(column for row in rows for column in row.values))
            values = [
                {"values": [row.values.get(column) for column in columns], "why": row.why, "number": row.number}
                for row in rows
            ]
            where = f" ({name})" if several else ""
            tables.append({"name": f"{KINDS[kind]}{where}", "kind": kind, "columns": columns, "rows": values})
        return {"note": self.note, "kinds": tables}


def _split_reason(kind: str, row: dict[str, str | None], progress: Progress) -> tuple[dict[str, str | None], str]:
    """The values of a row, and the reason, which is taken out of them."""
    match kind:
        case "late":
            column, by = row.pop("watermark", None) or "", row.pop("late_by", None)
            if by is None:
                return row, f"its side had ended ({column}), in batch {progress.batch}"
            length = rough_duration(int(by)) if column in progress.temporal else f"{int(by):,}"
            return row, f"{length} behind the watermark of {column}, in batch {progress.batch}"
        case "malformed":
            reason = row.pop("reason", None) or ""
            return row, f"{reason}, in batch {progress.batch}"
        case "padded":
            return row, f"expired without a match, in batch {progress.batch}"
        case _:
            return row, f"in batch {progress.batch}"
