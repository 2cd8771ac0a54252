"""A history as lines of a chart: at most so many points, whatever the number of batches."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.observe.progress import Progress
from watersmeet.observe.totals import end_time
from watersmeet.operators.core.operator import END_OF_INPUT

POINTS = 300
"""How many points a line has at most: more than that no screen shows."""

Line = list[float | None]


def series_of(batches: Sequence[Progress], points: int = POINTS) -> dict[str, object]:
    """The lines of a history: what was counted is added up between two points, of what is kept the highest counts.

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
    columns = dict.fromkeys(name for group in groups[-1:] for name in group[-1].marks)
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
    """How far a watermark was behind the clock when the batch ended, in seconds."""
    watermark = batch.marks.get(column)
    if watermark is None or watermark == END_OF_INPUT or column not in batch.temporal:
        return None
    return round(end_time(batch) - watermark / 1_000_000, 3)
