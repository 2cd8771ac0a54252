"""What a picture of lives shows of each row: a lane, with where its life begins and ends, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.drawing.scale import MOST
from watersmeet.fates.model import Arrival, Fate, Told, What

SHAPES: Mapping[What, str] = {
    "late": "cross",
    "filtered": "dash",
    "malformed": "dash",
    "padded": "ring",
    "evicted": "gate",
    "dropped": "gate",
    "replaced": "gate",
    "deleted": "gate",
    "taken back": "gate",
    "null key": "dash",
    "null time": "dash",
    "unfit": "dash",
    "expired": "cap",
    "alive": "arrow",
    "counted": "arrow",
    "matched": "cap",
    "passed": "dot",
}
"""The shape that ends a life, by what became of the row; what stands first goes before what else became of it."""

NEVER_ALIVE = frozenset({"late", "filtered", "malformed", "null key", "null time", "unfit", "passed"})
"""What becomes of rows that nothing could ever meet."""

MOST_LANES = 150
"""More rows than that are not drawn but counted."""


@dataclass(frozen=True)
class Lane:
    """A row in the picture. ``start`` and ``end`` on the axis; ``end`` None: for ever, as far as is known."""

    arrival: Arrival
    fates: tuple[Fate, ...]
    start: int | None
    end: int | None

    @property
    def whats(self) -> tuple[What, ...]:
        """What became of it, each once; that it is alive only where nothing else is to be said of how it ended."""
        return tuple(dict.fromkeys(fate.what for fate in self.fates))

    @property
    def shape(self) -> str:
        """What ends the bar."""
        return next((shape for what, shape in SHAPES.items() if what in self.whats), "arrow")

    @property
    def has_life(self) -> bool:
        """Whether it was ever there to be met."""
        return not NEVER_ALIVE.intersection(self.whats)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences that say why."""
        return tuple(dict.fromkeys(fate.reason for fate in self.fates if fate.reason))


@dataclass(frozen=True)
class Group:
    """The rows of one key, in the order of the sides; ``key`` None: a part of it is NULL, empty: the join has none."""

    key: str | None
    lanes: tuple[Lane, ...]


def groups_of(told: Told) -> tuple[Group, ...]:
    """All rows by key, the key that came first on top."""
    order = {side: place for place, side in enumerate(sides_of(told))}
    by_key: dict[str | None, list[Lane]] = {}
    for arrival in sorted(told.arrivals, key=lambda one: one.number)[:MOST_LANES]:
        by_key.setdefault(arrival.key, []).append(_lane(told, arrival))
    return tuple(
        Group(key, tuple(sorted(lanes, key=lambda lane: order[lane.arrival.side]))) for key, lanes in by_key.items()
    )


def sides_of(told: Told) -> tuple[str, ...]:
    """The sides, in the order in which their rows came."""
    return tuple(dict.fromkeys([*(a.side for a in told.arrivals), *(mark.side for mark in told.marks)]))


def _lane(told: Told, arrival: Arrival) -> Lane:
    fates, start = told.of(arrival.number), arrival.time
    until = next((fate.until for fate in reversed(fates) if fate.until is not None), None)
    is_open = until is None or start is None or abs(until) >= MOST
    return Lane(arrival, fates, start, None if is_open else max(until or 0, start or 0))


def moments(lanes: Sequence[Lane]) -> list[int]:
    """Every moment at which a life begins or ends."""
    return [moment for lane in lanes for moment in (lane.start, lane.end) if moment is not None]
