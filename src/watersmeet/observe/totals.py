"""What a query has done so far, from what each of its batches did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from watersmeet.observe.progress import Progress
from watersmeet.operators.core.operator import END_OF_INPUT

WINDOW = 10.0
"""Rates are those of the batches of so many seconds, and of the latest one."""
_RECENT_BATCHES = 64

WatermarkValue = datetime | int | None
"""A watermark: a time, or a number where the column holds numbers; None: the input has ended."""


@dataclass(frozen=True)
class Totals:
    """The totals of a query over all its known batches; ``last`` is the latest of them.

    ``sources`` are the rows of each source, ``recent`` the latest batches.
    """

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    matched: int = 0
    padded: int = 0
    late: int = 0
    malformed: int = 0
    dropped: int = 0
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    last: Progress | None = None
    recent: tuple[Progress, ...] = ()

    def plus(self, *batches: Progress) -> Totals:
        """The totals after further batches."""
        if not batches:
            return self
        counted = ("batches", "rows_in", "rows_out", "matched", "padded", "late", "malformed", "dropped")
        sums = {name: getattr(self, name) + sum(getattr(batch, name) for batch in batches) for name in counted}
        sources = dict(self.sources)
        for batch in batches:
            for name, rows in batch.sources.items():
                sources[name] = sources.get(name, 0) + rows
        return replace(
            self, **sums, sources=sources, last=batches[-1], recent=(*self.recent, *batches)[-_RECENT_BATCHES:]
        )

    @property
    def state_rows(self) -> int:
        """The rows that are kept now."""
        return 0 if self.last is None else self.last.state_rows

    @property
    def state_bytes(self) -> int:
        """The bytes that Spark keeps for the state now."""
        return 0 if self.last is None else self.last.state_bytes

    @property
    def seconds(self) -> float:
        """How long the latest batch took."""
        return 0.0 if self.last is None else self.last.seconds

    @property
    def watermarks(self) -> dict[str, WatermarkValue]:
        """The watermarks of the result: no row with an earlier time comes out any more."""
        if self.last is None:
            return {}
        return {
            column: _watermark_value(watermark, column in self.last.temporal)
            for column, watermark in self.last.marks.items()
        }

    def lags(self, now: datetime | None = None) -> dict[str, timedelta]:
        """How far each watermark that is a time is behind the clock."""
        moment = datetime.now(UTC) if now is None else now
        return {
            name: moment - watermark for name, watermark in self.watermarks.items() if isinstance(watermark, datetime)
        }

    def rates(self, now: float | None = None) -> Rates:
        """Rows in a second, of the latest batches; ``now``: seconds since 1970."""
        moment = datetime.now(UTC).timestamp() if now is None else now
        counted = [batch for batch in self.recent if moment - end_time(batch) < max(WINDOW, batch.seconds)]
        if not counted:
            return Rates(0.0, 0.0, dict.fromkeys(self.sources, 0.0))
        seconds = max(moment, end_time(counted[-1])) - counted[0].at
        if seconds <= 0:
            return Rates(0.0, 0.0, dict.fromkeys(self.sources, 0.0))
        sources = {name: sum(batch.sources.get(name, 0) for batch in counted) / seconds for name in self.sources}
        rows_in, rows_out = (sum(getattr(batch, name) for batch in counted) for name in ("rows_in", "rows_out"))
        return Rates(rows_in / seconds, rows_out / seconds, sources)

    @property
    def slowest(self) -> tuple[str, int | None] | None:
        """The column that holds the others back, and by how much; None of both: nothing of it was seen yet.

        >>> Totals(last=Progress("q", 0, own={"o.t": 90, "d.t": 60})).slowest
        ('d.t', 30)
        """
        if self.last is None:
            return None
        for column in sorted(self.last.silent):
            return (column, None) if self.last.own else None
        own = {column: watermark for column, watermark in self.last.own.items() if watermark != END_OF_INPUT}
        if len(own) < 2:
            return None
        column = min(own, key=lambda name: own[name])
        ahead = max(own.values()) - own[column]
        return (column, ahead) if ahead else None


@dataclass(frozen=True)
class Rates:
    """Rows in a second: of all sources, of the result, and of each source."""

    rows_in: float
    rows_out: float
    sources: Mapping[str, float]


def end_time(progress: Progress) -> float:
    """When a batch ended, in seconds since 1970."""
    return progress.at + progress.seconds


def _watermark_value(watermark: int, is_temporal: bool) -> WatermarkValue:
    if watermark == END_OF_INPUT:
        return None
    if not is_temporal:
        return watermark
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=watermark)
    except OverflowError:
        return watermark
