"""What a picture of lives shows of each row: a lane, with where its life begins and ends, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watersmeet.drawing.scale import MOST
from watersmeet.fates.model import Arrival, Fate, Told, What

SHAPES: Mapping[What, str] = {
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

NEVER_ALIVE: frozenset[What] = frozenset({"late", "filtered", "malformed", "null key", "null time", "unfit"})
"""What becomes of rows that nothing could ever meet."""

ENDED_BY: frozenset[What] = frozenset({"expired", "evicted", "dropped", "replaced", "deleted"})
"""How a life ends where another row comes."""

BESIDE: frozenset[What] = frozenset({"passed", "taken back"})
"""What becomes of what a row gave, and does not end the row itself."""

MOST_LANES = 150
"""More rows than that are not drawn but counted."""


@dataclass(frozen=True)
class Lane:
    """A row in the picture. ``start`` and ``end`` on the axis; ``end`` None: for ever, as far as is known.

    ``miss`` says why it met nothing, if it did not.
    """

    arrival: Arrival
    fates: tuple[Fate, ...]
    start: int | None
    end: int | None
    miss: str = ""

    @property
    def whats(self) -> tuple[What, ...]:
        """What became of it, each once; that it went through only where there is nothing else to be said."""
        found: dict[What, None] = dict.fromkeys(fate.what for fate in self.fates)
        return tuple(what for what in found if what != "passed" or len(found) == 1)

    @property
    def last(self) -> What | None:
        """What became of the row itself last."""
        own: list[What] = [fate.what for fate in self.fates if fate.what not in BESIDE]
        return own[-1] if own else self.fates[-1].what if self.fates else None

    @property
    def shape(self) -> str:
        """What ends the bar."""
        return "arrow" if self.last is None else SHAPES[self.last]

    @property
    def has_life(self) -> bool:
        """Whether it was ever there to be met."""
        return not NEVER_ALIVE.intersection(self.whats)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences that say why."""
        return tuple(dict.fromkeys(filter(None, (*(fate.reason for fate in self.fates), self.miss))))


@dataclass(frozen=True)
class Group:
    """The rows of one key, in the order of the sides; ``key`` None: it has none or a NULL, empty: the join has none."""

    key: str | None
    lanes: tuple[Lane, ...]


def placed(told: Told) -> Told:
    """What was told, on an axis on which its rows have a place: without event times, that is the order of arrival."""
    if told.axis != "event time" or any(arrival.time is not None for arrival in told.arrivals):
        return told
    arrivals = tuple(replace(arrival, time=arrival.number) for arrival in told.arrivals)
    return replace(told, axis="arrivals", arrivals=arrivals, unit="numbers")


def groups_of(told: Told) -> tuple[Group, ...]:
    """All rows by key, the key that came first on top."""
    order = {side: place for place, side in enumerate(sides_of(told))}
    times = {arrival.number: arrival.time for arrival in told.arrivals}
    by_key: dict[str | None, list[Lane]] = {}
    for arrival in sorted(told.arrivals, key=lambda one: one.number)[:MOST_LANES]:
        fates = told.of(arrival.number)
        miss = told.misses[arrival.number].text if arrival.number in told.misses else ""
        lane = Lane(arrival, fates, arrival.time, _end(arrival, fates, times), miss)
        by_key.setdefault(arrival.key, []).append(lane)
    return tuple(
        Group(key, tuple(sorted(lanes, key=lambda lane: order[lane.arrival.side]))) for key, lanes in by_key.items()
    )


def sides_of(told: Told) -> tuple[str, ...]:
    """The sides, in the order in which their rows came."""
    return tuple(dict.fromkeys([*(a.side for a in told.arrivals), *(mark.side for mark in told.marks)]))


def _end(arrival: Arrival, fates: Sequence[Fate], times: Mapping[int, int | None]) -> int | None:
    """Where the life of a row ends: as was told, where the row came that ended it, or with the last one it met."""
    if arrival.time is None:
        return None
    until = next((fate.until for fate in reversed(fates) if fate.until is not None), None)
    if until is not None:
        return None if abs(until) >= MOST else max(until, arrival.time)
    if not fates or fates[-1].what == "alive":
        return None
    by = [times.get(fate.by) for fate in fates if fate.by is not None and fate.what in ENDED_BY]
    by = by or [times.get(fate.by) for fate in fates if fate.by is not None and fate.what == "matched"]
    return max([arrival.time, *(time for time in by if time is not None)])


def moments(lanes: Sequence[Lane]) -> list[int]:
    """Every moment at which a life begins or ends."""
    return [moment for lane in lanes for moment in (lane.start, lane.end) if moment is not None]
