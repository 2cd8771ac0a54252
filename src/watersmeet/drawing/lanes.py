"""What a picture of lives shows of each row: a lane, with where its life begins and ends, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watersmeet.drawing.scale import MOST
from watersmeet.fates.model import Lineage, OutcomeKind, RowArrival, RowOutcome

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
"""What becomes of rows that nothing could ever meet."""

ENDED_BY: frozenset[OutcomeKind] = frozenset({"expired", "evicted", "dropped", "replaced", "deleted"})
"""How a life ends where another row comes."""

NON_FINAL: frozenset[OutcomeKind] = frozenset({"passed", "taken back"})
"""What becomes of what a row gave, and does not end the row itself."""

MOST_LANES = 150
"""More rows than that are not drawn but counted."""


@dataclass(frozen=True)
class RowLane:
    """A row in the picture. ``start`` and ``end`` on the axis; ``end`` None: for ever, as far as is known.

    ``miss`` says why it met nothing, if it did not.
    """

    arrival: RowArrival
    outcomes: tuple[RowOutcome, ...]
    start: int | None
    end: int | None
    miss: str = ""

    @property
    def outcome_kinds(self) -> tuple[OutcomeKind, ...]:
        """What became of it, each once; that it went through only where there is nothing else to be said."""
        kinds: dict[OutcomeKind, None] = dict.fromkeys(outcome.what for outcome in self.outcomes)
        return tuple(what for what in kinds if what != "passed" or len(kinds) == 1)

    @property
    def last(self) -> OutcomeKind | None:
        """What became of the row itself last."""
        own: list[OutcomeKind] = [outcome.what for outcome in self.outcomes if outcome.what not in NON_FINAL]
        return own[-1] if own else self.outcomes[-1].what if self.outcomes else None

    @property
    def shape(self) -> str:
        """What ends the bar."""
        return "arrow" if self.last is None else SHAPES[self.last]

    @property
    def has_life(self) -> bool:
        """Whether it was ever there to be met."""
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
    """What was told, on an axis on which its rows have a place: without event times, that is the order of arrival."""
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
    """Where the life of a row ends: as was told, where the row came that ended it, or with the last one it met."""
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
