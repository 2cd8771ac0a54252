"""The values in which it is told what became of rows. Times and marks are whole numbers on the axis of the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from watersmeet.deprecation import accept_old_names

Axis = Literal["event time", "arrivals", "clock"]
"""What the lives of a query's rows are measured by.

- ``event time``: the compared times of rows; watermarks end lives
- ``arrivals``: the numbers of arrivals; a window evicts by them
- ``clock``: the wall clock of batches; a window of time evicts by it
"""

Unit = Literal["microseconds", "numbers"]
"""What a step on the axis is: microseconds since 1970 (of a clock: since any moment), or plain numbers."""

OutcomeKind = Literal[
    "filtered",
    "null key",
    "null time",
    "unfit",
    "late",
    "matched",
    "padded",
    "unmatched",
    "alive",
    "expired",
    "evicted",
    "dropped",
    "replaced",
    "deleted",
    "taken back",
    "counted",
    "passed",
    "malformed",
]
"""What may become of a row.

- ``filtered``: a part of WHERE is not true of it
- ``null key``, ``null time``: it can match nothing, since a key or its time is NULL
- ``unfit``: it can match nothing, since its own part of ON is not true
- ``late``: a watermark had passed its time when it arrived (in a sync join also: its port already had that time)
- ``matched``: it met another row, or was an answer
- ``padded``: it came out alone
- ``unmatched``: it met nothing, is not shown and is not kept
- ``alive``: it is kept, and may still meet others
- ``expired``: watermarks proved that nothing more can meet it
- ``evicted``: it left a window, by another row or by the clock
- ``dropped``: it left unseen, because of a limit, or as the second version of a key and time
- ``replaced``, ``deleted``: of a row of a table: a newer one took its place, or took it away
- ``taken back``: a row that had come out of it does no longer hold
- ``counted``: it went into a group
- ``passed``: it went through, without any join
- ``malformed``: it could not be read
"""


@dataclass(frozen=True)
class RowArrival:
    """A row that arrived: on which side of the query (its alias), from which source, in which batch, with what.

    ``number`` is unique among all arrivals of a query and follows their order. ``key`` is the text of what ON compares
    by equality, None where a part of it is NULL, empty where the join has no key. ``time`` is its place on the axis,
    None where it has none. ``where`` says where it was read: a file or an offset.
    """

    number: int
    side: str
    source: str
    batch: int
    values: Mapping[str, object]
    key: str | None
    time: int | None
    where: str = ""


@dataclass(frozen=True)
class TracedWatermark:
    """The watermark of a column (``alias.column``) after a batch; ``by`` is the arrival that moved it there."""

    batch: int
    side: str
    column: str
    value: int
    by: int | None = None


@dataclass(frozen=True)
class RowMatch:
    """Rows that met in a batch and made a row of a join's result."""

    batch: int
    arrivals: tuple[int, ...]


@dataclass(frozen=True)
class RowOutcome:
    """Something that became of an arrival in a batch.

    ``until`` is the end of its life on the axis: the last mark, number or clock at which it is alive; None: nothing
    ends it. ``by`` is the arrival that it met, that evicted it, or that moved the mark. ``reason`` is a whole sentence.
    """

    arrival: int
    what: OutcomeKind
    batch: int
    until: int | None
    by: int | None
    reason: str


Cause = Literal[
    "no row", "no such key", "no such time", "near miss", "out of bounds", "condition", "barred", "waiting", "gone"
]
"""Why a row met nothing.

- ``no row``: no row of the other side came; ``no such key``: none had its key; ``near miss``: one nearly had it
- ``no such time``: none had its time, where rows of equal times meet
- ``out of bounds``: a row had its key, but not a time within bounds; ``condition``: the rest of ON is not true
- ``barred``: the row that it would have met was late, or could meet nothing
- ``waiting``: a row fits it, but both are kept until that is certain
- ``gone``: the row that it would have met was not alive when it came
"""


@dataclass(frozen=True)
class UnmatchedReason:
    """Why an arrival met nothing, as sentences; ``by``: the arrival that came nearest, and how far it was."""

    cause: Cause
    text: str
    by: int | None = None
    distance: int | None = None


@dataclass(frozen=True)
class ResultRow:
    """A row of the query's result: its batch, its values, and the arrivals it was made of; ``sign`` -1: it goes."""

    batch: int
    values: Mapping[str, object]
    arrivals: tuple[int, ...]
    sign: int = 1


@accept_old_names(fates="outcomes", marks="watermarks", meetings="matches", misses="unmatched_reasons")
@dataclass(frozen=True)
class Lineage:
    """All that became of the rows of a query.

    ``outcomes`` come in the order of their batches. An arrival has one or more; the last one says how it ended,
    ``alive`` where it has not. ``unmatched_reasons`` say of arrivals that met nothing why not.

    >>> outcomes = (RowOutcome(0, "matched", 0, 9, 1, "."), RowOutcome(0, "alive", 0, 9, None, "."))
    >>> told = Lineage("q", "event time", outcomes=outcomes)
    >>> [fate.what for fate in told.of(0)], told.end(0).what
    (['matched', 'alive'], 'alive')
    """

    query: str
    axis: Axis
    arrivals: tuple[RowArrival, ...] = ()
    watermarks: tuple[TracedWatermark, ...] = ()
    matches: tuple[RowMatch, ...] = ()
    outcomes: tuple[RowOutcome, ...] = ()
    unit: Unit = "numbers"
    results: tuple[ResultRow, ...] = ()
    unmatched_reasons: Mapping[int, UnmatchedReason] = field(default_factory=dict[int, UnmatchedReason])
    _by_arrival: dict[int, list[RowOutcome]] = field(
        default_factory=dict[int, list[RowOutcome]], init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Have the fates of an arrival at hand."""
        for outcome in self.outcomes:
            self._by_arrival.setdefault(outcome.arrival, []).append(outcome)

    def of(self, arrival: int) -> tuple[RowOutcome, ...]:
        """What became of an arrival, in order."""
        return tuple(self._by_arrival.get(arrival, ()))

    def end(self, arrival: int) -> RowOutcome:
        """What became of an arrival last."""
        return self._by_arrival[arrival][-1]
