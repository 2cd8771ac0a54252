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
from watersmeet.logical.words import expression_in_words, without_generated_names, word
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, columns_of
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.python_values import DistantTime
from watersmeet.operators.core.rowwise import Row

Axis = Literal["event time", "arrivals", "clock"]
"""The axis on which a query measures how long rows live.

- ``event time``: the compared times of rows; watermarks expire rows
- ``arrivals``: the numbers of arrivals; a window evicts by them
- ``clock``: the wall clock of batches; a time window evicts by it
"""

Unit = Literal["microseconds", "numbers"]
"""The unit of the axis: microseconds since 1970 (of a clock: since any moment), or plain numbers."""

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
"""The possible outcomes of a row.

- ``filtered``: a part of WHERE is not true of it
- ``null key``, ``null time``: it cannot match, since a key or its time is NULL
- ``unfit``: it cannot match, since its own part of ON is not true
- ``late``: a watermark had passed its time when it arrived (in a sync join also: its port already had that time)
- ``matched``: it matched another row, or was an answer
- ``padded``: it was emitted without a match
- ``unmatched``: it did not match, is not emitted and not stored
- ``alive``: it is stored, and may still match
- ``expired``: watermarks proved that no row can match it any more
- ``evicted``: it left a window, by another row or by the clock
- ``dropped``: it was removed without output, by a limit, or as the second version of a key and time
- ``replaced``, ``deleted``: a row of a table that a newer one replaced, or a delete removed
- ``taken back``: a result row made of it was retracted
- ``counted``: it went into a group
- ``passed``: it passed through a query without a join
- ``malformed``: it could not be decoded
"""


@dataclass(frozen=True)
class RowArrival:
    """A row that arrived: the side of the query (its alias), the source, the batch and the values.

    ``number`` is unique among all arrivals of a query and follows their order. ``key`` is the text of the columns that
    ON compares by equality, None where a part of it is NULL, empty where the join has no key. ``time`` is its position
    on the axis, None where it has none. ``where`` is the file or offset it was read from.
    """

    number: int
    side: str
    source: str
    batch: int
    values: Mapping[str, object]
    key: str | None
    time: int | None
    where: str = ""

    @property
    def side_name(self) -> str:
        """The side in names that users know."""
        return without_generated_names(self.side)


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
    """Rows that matched in a batch and made a row of a join's result."""

    batch: int
    arrivals: tuple[int, ...]


@dataclass(frozen=True)
class RowOutcome:
    """An outcome of an arrival in a batch.

    ``until`` is its expiry on the axis: the last watermark, number or clock at which it is alive; None: it does not
    expire. ``by`` is the arrival that it matched, that evicted it, or that moved the watermark. ``reason`` is a whole
    sentence.
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
"""The reason why a row did not match.

- ``no row``: no row of the other side arrived; ``no such key``: none had its key; ``near miss``: one nearly had it
- ``no such time``: none had its time, where rows of equal times match
- ``out of bounds``: a row had its key, but not a time within bounds; ``condition``: the rest of ON is not true
- ``barred``: the row that it would have matched was late, or could not match
- ``waiting``: a row fits it, but both are stored until that is certain
- ``gone``: the row that it would have matched was no longer stored when it arrived
"""


@dataclass(frozen=True)
class UnmatchedReason:
    """The reason why an arrival did not match, as sentences; ``by``: the nearest arrival, and its distance."""

    cause: Cause
    text: str
    by: int | None = None
    distance: int | None = None


@dataclass(frozen=True)
class ResultRow:
    """A row of the query's result: its batch, values and source arrivals; ``sign`` -1: a retraction."""

    batch: int
    values: Mapping[str, object]
    arrivals: tuple[int, ...]
    sign: int = 1


@accept_old_names(fates="outcomes", marks="watermarks", meetings="matches", misses="unmatched_reasons")
@dataclass(frozen=True)
class Lineage:
    """The outcomes of all rows of a query.

    ``outcomes`` are in the order of their batches. An arrival has one or more; the last one is its end, or ``alive``.
    ``unmatched_reasons`` hold, for arrivals that did not match, the reason.

    >>> outcomes = (RowOutcome(0, "matched", 0, 9, 1, "."), RowOutcome(0, "alive", 0, 9, None, "."))
    >>> lineage = Lineage("q", "event time", outcomes=outcomes)
    >>> [outcome.what for outcome in lineage.of(0)], lineage.end(0).what
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
        """Index the outcomes by arrival."""
        for outcome in self.outcomes:
            self._by_arrival.setdefault(outcome.arrival, []).append(outcome)

    def of(self, arrival: int) -> tuple[RowOutcome, ...]:
        """The outcomes of an arrival, in order."""
        return tuple(self._by_arrival.get(arrival, ()))

    def end(self, arrival: int) -> RowOutcome:
        """The last outcome of an arrival."""
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


def window_end(bound: object, before_end: int) -> object:
    """The end of a window that a value is so many microseconds before; anything but a time as it is.

    >>> window_end(datetime(2026, 3, 2, 8, 15), 60_000_000)
    datetime.datetime(2026, 3, 2, 8, 16)
    """
    return bound + timedelta(microseconds=before_end) if isinstance(bound, datetime) else bound


def _of_parts(value: Mapping[str, object] | Sequence[object]) -> str:
    """A struct, a list or a map in words; a map is a list of pairs.

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
    """A time or watermark in words, in the type of its column.

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
    """The words for the columns of a join, by their types and the expressions that compute them."""

    kinds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    computed: Mapping[str, Expr] = field(default_factory=dict[str, Expr])

    def column_words(self, name: str) -> str:
        """The words for a column."""
        if name in self.computed:
            return expression_in_words(self.computed[name])
        return ".".join(word(part) for part in name.split("."))

    def short_column_words(self, name: str) -> str:
        """The words for a column of a row that is shown next to it."""
        return self.column_words(name) if name in self.computed else word(name.split(".", 1)[-1])

    def moment(self, name: str, value: int) -> str:
        """A time of a column."""
        return moment_in_words(value, self.kinds.get(name))

    def distance(self, name: str, value: int) -> str:
        """The distance of two times of a column, in words."""
        return format_duration(value) if self.is_temporal(name) else str(value)

    def duration(self, value: int) -> str:
        """A length of time by the clock."""
        return format_duration(value)

    def is_temporal(self, name: str) -> bool:
        """Whether a column holds times, and not numbers that count as such."""
        return name in self.kinds and pa.types.is_temporal(self.kinds[name])

    def is_end(self, watermark: int) -> bool:
        """Whether a watermark means that its side has ended."""
        return watermark == END_OF_INPUT

    def condition_words(self, part: Expr, row: Row) -> str:
        """A condition with its values for a row."""
        names = dict.fromkeys(ref.column for ref in part.references)
        values = ", ".join(f"{self.column_words(n)} is {value_in_words(row[n])}" for n in names if n in row)
        return f"{expression_in_words(part)}{f' ({values})' if values else ''}"

    def kernel_condition_words(self, condition: Condition, row: Row) -> str:
        """A condition of the kernel with its values for a pair of rows."""
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
