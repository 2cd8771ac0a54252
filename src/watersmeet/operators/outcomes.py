"""Outcomes of rows as values, and rows, times and conditions in words.

Times and watermarks are whole numbers on the time axis of the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, cast

import pyarrow as pa

from watersmeet.deprecation import accept_old_names
from watersmeet.duration import format_duration
from watersmeet.logical.expressions import Expr
from watersmeet.logical.words import expression_in_words, word
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, columns_of
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.python_values import DistantTime
from watersmeet.operators.core.rowwise import Row

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


_LONG = 24
_PARTS = 8


def value_in_words(value: object) -> str:
    """A value as people read it.

    >>> value_in_words(datetime(2026, 3, 2, 8, 15, tzinfo=UTC)), value_in_words(None), value_in_words("a")
    ('2026-03-02 08:15:00', 'NULL', "'a'")
    """
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None) if value.tzinfo is UTC or value.utcoffset() == timedelta(0) else value
        return plain.isoformat(" ")
    if isinstance(value, str):
        return f"'{value if len(value) <= _LONG else value[: _LONG - 1] + '…'}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value // timedelta(microseconds=1))
    if isinstance(value, bytes):
        return f"X'{value[:_LONG].hex().upper()}{'…' if len(value) > _LONG else ''}'"
    if isinstance(value, dict | list | tuple):
        return _of_parts(cast("Any", value))
    return str(value) if isinstance(value, date) else str(value)[: 2 * _LONG]


def _of_parts(value: Mapping[str, object] | Sequence[object]) -> str:
    """A struct, a list or a map as people read it; a map comes as pairs.

    >>> _of_parts({"id": 1, "tags": ["a", None]})
    "{id 1, tags ['a', NULL]}"
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} {value_in_words(part)}' for name, part in value.items())}}}"
    shown = [value_in_words(part) for part in value[:_PARTS]]
    return f"[{', '.join([*shown, '…'] if len(value) > _PARTS else shown)}]"


def key_in_words(values: Iterable[object]) -> str:
    """The values of a key as people read them, texts as they are.

    >>> key_in_words([7, "a", {"id": 1}])
    '7, a, {id 1}'
    """
    shown = (value if isinstance(value, str) else value_in_words(value) for value in values)
    return ", ".join(shown)


def row_in_words(values: Mapping[str, object]) -> str:
    """A row as people read it.

    >>> row_in_words({"id": 1, "city": "Oslo"})
    "(id 1, city 'Oslo')"
    """
    return f"({', '.join(f'{name} {value_in_words(value)}' for name, value in values.items())})"


def capital(text: str) -> str:
    """A text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def moment_in_words(value: int, kind: Any) -> str:
    """A time or mark as people read it, in the type of its column.

    >>> moment_in_words(86_400_000_000, pa.date32()), moment_in_words(5, pa.int64())
    ('1970-01-02', '5')
    """
    if value == END_OF_INPUT:
        return "the end"
    if kind is None or not pa.types.is_temporal(kind):
        return str(value)
    try:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=value)
    except OverflowError:
        return DistantTime.of(value)
    return str(moment.date()) if pa.types.is_date(kind) and moment.time() == datetime.min.time() else str(moment)


@dataclass(frozen=True)
class Words:
    """How the columns of a join are called, by the types they have and what computes them."""

    kinds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    computed: Mapping[str, Expr] = field(default_factory=dict[str, Expr])

    def column_words(self, name: str) -> str:
        """What people call a column."""
        if name in self.computed:
            return expression_in_words(self.computed[name])
        return ".".join(word(part) for part in name.split("."))

    def short_column_words(self, name: str) -> str:
        """What people call a column of a row that they have before them."""
        return self.column_words(name) if name in self.computed else word(name.split(".", 1)[-1])

    def moment(self, name: str, value: int) -> str:
        """A time of a column."""
        return moment_in_words(value, self.kinds.get(name))

    def distance(self, name: str, value: int) -> str:
        """How far two times of a column are from each other."""
        return format_duration(value) if self.is_temporal(name) else str(value)

    def duration(self, value: int) -> str:
        """A length of time by the clock."""
        return format_duration(value)

    def is_temporal(self, name: str) -> bool:
        """Whether a column holds times, and not numbers that count as such."""
        return name in self.kinds and pa.types.is_temporal(self.kinds[name])

    def is_end(self, watermark: int) -> bool:
        """Whether a mark says that its side has ended."""
        return watermark == END_OF_INPUT

    def condition_words(self, part: Expr, row: Row) -> str:
        """A condition with the values that it has for a row."""
        names = dict.fromkeys(ref.column for ref in part.references)
        values = ", ".join(f"{self.column_words(n)} is {value_in_words(row[n])}" for n in names if n in row)
        return f"{expression_in_words(part)}{f' ({values})' if values else ''}"

    def kernel_condition_words(self, condition: Condition, row: Row) -> str:
        """A condition of the kernel with the values that it has for a pair of rows."""
        names = sorted(columns_of(condition))
        values = ", ".join(f"{self.column_words(n)} is {value_in_words(row.get(n))}" for n in names)
        return f"{self._text(condition)}{f' ({values})' if values else ''}"

    def _text(self, condition: Condition) -> str:
        match condition:
            case ColumnRef(name):
                return self.column_words(name)
            case Constant(value):
                return value_in_words(value)
            case Apply("is_null", (arg,)):
                return f"{self._text(arg)} IS NULL"
            case Apply("not" | "negate" as op, (arg,)):
                return f"{'NOT ' if op == 'not' else '-'}{self._text(arg)}"
            case Apply(op, args):
                inside = f" {op.upper()} ".join(self._text(arg) for arg in args)
                return f"({inside})" if op in ("and", "or") else inside
