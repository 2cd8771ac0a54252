"""The content of a picture of rows: lanes, the time axis, their layout, words and the legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Literal, cast

from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration
from watersmeet.operators.outcomes import Lineage, OutcomeKind, RowArrival, RowOutcome
from watersmeet.tools.explain.svg import text_width

MOST = 2**62
"""Beyond it a moment is not a time but the end of the input."""

_STEPS = tuple(
    size * unit
    for unit, sizes in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (MILLISECOND, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (SECOND, (1, 2, 5, 10, 15, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 30)),
        (HOUR, (1, 2, 3, 6, 12)),
        (DAY, (1, 2, 7, 14, 28, 91, 182, 364, 1820, 3640, 36400)),
    )
    for size in sizes
)
"""Lengths between ticks that people count in."""


Moments = Literal["numbers", "times", "clock"]
"""The unit of an axis: plain numbers, microseconds since 1970, or microseconds of a clock since any moment."""


@dataclass(frozen=True)
class TimeScale:
    """The moments ``low`` to ``high``, drawn from ``left`` to ``right``, and their kind.

    >>> scale = TimeScale(0, 10, 100.0, 200.0)
    >>> scale.x(5), scale.x(99), scale.covers(99), scale.ticks(5)
    (150.0, 200.0, False, (0, 2, 4, 6, 8, 10))
    """

    low: int
    high: int
    left: float
    right: float
    kind: Moments = "numbers"

    def x(self, moment: int) -> float:
        """The place of a moment; one that is not shown stands at the edge."""
        inside = min(max(moment, self.low), self.high)
        return round(self.left + (inside - self.low) * (self.right - self.left) / (self.high - self.low), 1)

    def covers(self, moment: int) -> bool:
        """Whether a moment is shown."""
        return self.low <= moment <= self.high

    def ticks(self, most: int) -> tuple[int, ...]:
        """At most so many moments and one, at even distances that people count in."""
        wanted = (self.high - self.low) / most
        steps = _decimal_steps() if self.kind == "numbers" else _STEPS
        step = next((step for step in steps if step >= wanted), _STEPS[-1])
        first = -(-self.low // step) * step
        return tuple(range(first, self.high + 1, step))

    def text(self, moment: int) -> str:
        """The label of a tick: only as precise as needed to distinguish the ticks.

        >>> TimeScale(0, 7_200_000_000, 0.0, 1.0, "times").text(5_400_000_000)
        '01:30'
        """
        if self.kind != "times":
            said = f"{moment:,}" if self.kind == "numbers" else format_duration(moment)
            return said.replace("-", "\N{MINUS SIGN}")
        when = as_datetime(moment)
        if self.high - self.low > 3 * DAY and moment % DAY == 0:
            return f"{when:%Y-%m-%d}"
        of_day = f"{when:%H:%M}" if moment % MINUTE == 0 else f"{when:%H:%M:%S}"
        if moment % SECOND:
            of_day += f".{moment % SECOND:06d}".rstrip("0")
        return of_day if self.day is not None else f"{when:%m-%d} {of_day}"

    @property
    def day(self) -> str | None:
        """The one day that all of it lies in, if it does."""
        if self.kind != "times":
            return None
        first, last = as_datetime(self.low), as_datetime(self.high)
        return f"{first:%Y-%m-%d}" if first.date() == last.date() else None


def as_datetime(moment: int) -> datetime:
    """Microseconds since 1970 as a time of UTC; what no calendar has becomes its first or last time.

    >>> as_datetime(0).isoformat()
    '1970-01-01T00:00:00+00:00'
    """
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    except OverflowError:
        return (datetime.max if moment > 0 else datetime.min).replace(tzinfo=UTC)


def time_range(rows: Iterable[int], watermarks: Iterable[int]) -> tuple[int, int]:
    """The moments that a picture shows: all of its rows, and near watermarks, with some margin.

    >>> time_range([5, 9], [6, 20, 1_000_000])
    (4, 10)
    >>> time_range([5, 9], [12]), time_range([], [])
    ((4, 13), (0, 1))
    """
    times = [moment for moment in rows if abs(moment) < MOST]
    if not times:
        return 0, 1
    low, high = min(times), max(times)
    reach = max(1, (high - low) * 3 // 2)
    near = [watermark for watermark in watermarks if low - reach <= watermark <= high + reach]
    low, high = min([low, *near]), max([high, *near])
    air = max(1, (high - low) // 24)
    return low - air, high + air


def _decimal_steps() -> Iterable[int]:
    return (size * 10**power for power in count() for size in (1, 2, 5))


SHAPES: Mapping[OutcomeKind, str] = {
    "late": "cross",
    "filtered": "dash",
    "malformed": "dash",
    "null key": "dash",
    "null time": "dash",
    "unfit": "dash",
    "unmatched": "cap",
    "matched": "cap",
    "expired": "cap",
    "padded": "ring",
    "evicted": "gate",
    "dropped": "gate",
    "replaced": "gate",
    "deleted": "gate",
    "taken back": "gate",
    "alive": "arrow",
    "counted": "dot",
    "passed": "dot",
}
"""The shape that ends a life, by what became of the row last."""

NEVER_ALIVE: frozenset[OutcomeKind] = frozenset({"late", "filtered", "malformed", "null key", "null time", "unfit"})
"""The outcomes of rows that could never match."""

ENDED_BY: frozenset[OutcomeKind] = frozenset({"expired", "evicted", "dropped", "replaced", "deleted"})
"""The end of a life at which another row comes."""

NON_FINAL: frozenset[OutcomeKind] = frozenset({"passed", "taken back"})
"""Outcomes of the results of a row, which do not end the row itself."""

MOST_LANES = 150
"""More rows than that are not drawn but counted."""


@dataclass(frozen=True)
class RowLane:
    """A row in the picture. ``start`` and ``end`` on the axis; ``end`` None: unlimited, as far as is known.

    ``miss`` says why it did not match, if so.
    """

    arrival: RowArrival
    outcomes: tuple[RowOutcome, ...]
    start: int | None
    end: int | None
    miss: str = ""

    @property
    def outcome_kinds(self) -> tuple[OutcomeKind, ...]:
        """The outcomes of the row, each once; "passed" only if it is the only one."""
        kinds: dict[OutcomeKind, None] = dict.fromkeys(outcome.what for outcome in self.outcomes)
        return tuple(kind for kind in kinds if kind != "passed" or len(kinds) == 1)

    @property
    def last(self) -> OutcomeKind | None:
        """The last outcome of the row itself."""
        own: list[OutcomeKind] = [outcome.what for outcome in self.outcomes if outcome.what not in NON_FINAL]
        return own[-1] if own else self.outcomes[-1].what if self.outcomes else None

    @property
    def shape(self) -> str:
        """The shape at the end of the bar."""
        return "arrow" if self.last is None else SHAPES[self.last]

    @property
    def has_life(self) -> bool:
        """Whether it could ever match."""
        return not NEVER_ALIVE.intersection(self.outcome_kinds)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences that say why."""
        return tuple(dict.fromkeys(filter(None, (*(outcome.reason for outcome in self.outcomes), self.miss))))


@dataclass(frozen=True)
class LaneGroup:
    """The rows of one key, in the order of the sides; ``key`` None: it has none or a NULL, empty: the join has none."""

    key: str | None
    lanes: tuple[RowLane, ...]


def ensure_axis(lineage: Lineage) -> Lineage:
    """The lineage on an axis with a position for each row: without event times, the order of arrival."""
    if lineage.axis != "event time" or any(arrival.time is not None for arrival in lineage.arrivals):
        return lineage
    arrivals = tuple(replace(arrival, time=arrival.number) for arrival in lineage.arrivals)
    return replace(lineage, axis="arrivals", arrivals=arrivals, unit="numbers")


def groups_of(lineage: Lineage) -> tuple[LaneGroup, ...]:
    """All rows by key, the key that came first on top."""
    order = {side: place for place, side in enumerate(sides_of(lineage))}
    times = {arrival.number: arrival.time for arrival in lineage.arrivals}
    by_key: dict[str | None, list[RowLane]] = {}
    for arrival in sorted(lineage.arrivals, key=lambda arrived: arrived.number)[:MOST_LANES]:
        outcomes = lineage.of(arrival.number)
        miss = lineage.unmatched_reasons[arrival.number].text if arrival.number in lineage.unmatched_reasons else ""
        lane = RowLane(arrival, outcomes, arrival.time, _end(arrival, outcomes, times), miss)
        by_key.setdefault(arrival.key, []).append(lane)
    return tuple(
        LaneGroup(key, tuple(sorted(lanes, key=lambda lane: order[lane.arrival.side]))) for key, lanes in by_key.items()
    )


def sides_of(lineage: Lineage) -> tuple[str, ...]:
    """The sides, in the order in which their rows came."""
    return tuple(
        dict.fromkeys([*(a.side for a in lineage.arrivals), *(watermark.side for watermark in lineage.watermarks)])
    )


def _end(arrival: RowArrival, outcomes: Sequence[RowOutcome], times: Mapping[int, int | None]) -> int | None:
    """The end of a row's bar: its expiry, the arrival of the row that ended it, or its last match."""
    if arrival.time is None:
        return None
    until = next((outcome.until for outcome in reversed(outcomes) if outcome.until is not None), None)
    if until is not None:
        return None if abs(until) >= MOST else max(until, arrival.time)
    if not outcomes or outcomes[-1].what == "alive":
        return None
    by = [times.get(outcome.by) for outcome in outcomes if outcome.by is not None and outcome.what in ENDED_BY]
    by = by or [times.get(outcome.by) for outcome in outcomes if outcome.by is not None and outcome.what == "matched"]
    return max([arrival.time, *(time for time in by if time is not None)])


def moments(lanes: Sequence[RowLane]) -> list[int]:
    """Every moment at which a life begins or ends."""
    return [moment for lane in lanes for moment in (lane.start, lane.end) if moment is not None]


AXES: Mapping[str, str] = {
    "event time": "event time: when it happened, according to the rows",
    "arrivals": "arrivals: 0 is the first row that arrived, 1 the second, and so on",
    "clock": "the clock: when rows arrived",
}
"""The meaning of the axis, by its name."""

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
    """The outcome of a row, in a word or two."""
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
    return "\n".join([f"{arrival.side_name}, batch {arrival.batch}: {values}", *lane.reasons])


def legend(lineage: Lineage, lanes: Sequence[RowLane]) -> list[tuple[str, str]]:
    """The shapes of a picture, each with its meaning."""
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


MARGIN, GAP, LANE, TRACK, LINE = 20.0, 14.0, 24.0, 22.0, 20.0
TITLE, FONT, SMALL = 16.0, 12.0, 10.5
MOST_KEY, MOST_ROW, MOST_SAID = 110.0, 220.0, 180.0
LEAST = 560.0
"""The least width in which there is room for the bars."""


@dataclass(frozen=True)
class TimelineColumns:
    """The positions of the columns next to the bars: the key, the batch, the row; and behind them the outcome."""

    key: float
    batch: float
    row: float
    scale: TimeScale
    said: float
    width: float


def columns_of(lineage: Lineage, width: float) -> TimelineColumns:
    """The columns of a picture of this width, each as wide as its content, up to a limit."""
    lanes = [lane for group in groups_of(lineage) for lane in group.lanes]
    keys = [key_words(lane.arrival.key) for lane in lanes]
    narrow = min(1.0, width / 1000)
    key = _widest(["key", *keys] if any(keys) else [], MOST_KEY * narrow)
    rows = [f"{lane.arrival.side_name}  {row_words(lane, MOST_ROW)}" for lane in lanes]
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
