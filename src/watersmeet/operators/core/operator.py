"""The interface of every operator with state: a step of one shard over one batch.

An operator is a frozen description of a join, a GROUP BY, a top-N or a latest row per key. Its `step` takes the rows
that arrived in this batch for one shard, reads and writes the shard's state through a `StateStore`, and returns what
comes out. It knows nothing of Spark: the same step runs in a test over a dictionary and in a Spark task over the state
store.

A `Port` is one side of an operator: the names of the columns with which its rows arrive.

At the end are the numbers that the shards of an operator report in a batch, and how those of several shards merge.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import add
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.identity import CanonicalNames, Identity
from watersmeet.operators.core.matching import Bools, Histogram, Ints
from watersmeet.operators.core.order import TopN


@dataclass(frozen=True)
class PortWindow:
    """The windows of a port whose rows come once for each window that their ``time`` lies in; ``end`` is its end.

    A row is late for a window when the watermark of the time has reached the window's end. A row is late when all its
    windows are over; only the last one decides, since the others go to other shards.

    - ``size``, ``step``: lengths in microseconds; of TUMBLE both are the same
    - ``is_cumulative``: windows begin together every ``size``, and grow by ``step``
    - ``has_all``: the rows of all windows of a time come; else some have been filtered out, and each tells for itself
    """

    time: str
    end: str
    size: int
    step: int
    is_cumulative: bool = False
    has_all: bool = True

    def is_last(self, times: Ints, ends: Ints) -> Bools:
        """A mask of the rows that belong to the last window of their time.

        >>> hop = PortWindow("t", "e", 10, 5)
        >>> hop.is_last(np.array([7, 7]), np.array([10, 15])).tolist()
        [False, True]
        """
        if not self.has_all:
            return np.ones(len(ends), np.bool_)
        return ends % self.size == 0 if self.is_cumulative else ends - times > self.size - self.step


@dataclass(frozen=True)
class Port:
    """The rows of one side as they arrive. A family asks for what matters to it, and leaves the rest empty.

    - ``columns``: what the result shows of a row, in order
    - ``times``: the watermarked columns (TIMESTAMP, DATE or integers), which are also the names of their watermarks
    - ``keys``: the key columns; a NULL in one of them never matches. Empty: every row has the same key
    - ``code``: the int64 column with one number for all keys of the row: the key itself, if it fits 64 bits, else a
      hash. It is equal wherever the keys are equal. Rows are routed, sorted and looked up by it; None without keys
    - ``exact``: the code is the key itself: equal codes imply equal keys, so candidates are not compared again
    - ``dead``: a boolean column that marks rows which can never match, because a predicate on this side alone, a part
      of ON, is not true for them; None: all rows may match
    - ``operands``: further columns that the condition reads
    - ``late``: what a late row shows; nothing: late rows are only counted
    - ``ends``: columns with the end time that a row carries itself, ``expires`` for example: until then it may match,
      in the unit of the other side's times. They have no watermarks, and a row with a NULL in one never matches
    - ``compared``: the one of the times by which rows of both sides are compared; None: the first
    - ``order``: an integer, TIMESTAMP or DATE column that orders the arrivals of a batch, equal values and NULLs (which
      come last) as delivered; None: as delivered
    - ``upsert_key``: the primary key of a table, from which ``keys`` follow: arrivals carry ``#op`` and ``#position``
      and replace the row with their key. Empty: arrivals carry ``#weight``; without it each is an insert
    - ``unmatched``: the columns of an unmatched row, if unmatched rows of this side have their own output
    - ``window``: the windows that its rows are in, if these say when a row is late; None: its times do
    - ``time_name``: what users call the only one of the times; None: its name
    """

    columns: tuple[str, ...]
    times: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    code: str | None = None
    exact: bool = False
    dead: str | None = None
    operands: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    compared: str | None = None
    order: str | None = None
    upsert_key: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    window: PortWindow | None = None
    time_name: str | None = None

    @property
    def time(self) -> str:
        """The time by which rows of both sides are compared."""
        return self.times[0] if self.compared is None else self.compared

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of a row that the result, the match and the condition need, each once."""
        code = () if self.code is None else (self.code,)
        keys = () if self.exact else self.keys
        return tuple(dict.fromkeys((*self.columns, *keys, *code, *self.operands)))

    def can_match(self, table: pa.Table | pa.RecordBatch, *required: str) -> Bools:
        """A mask of the rows that may match: no NULL in keys and ``required`` columns, and the row's predicate is true.

        Columns that are not there say nothing.

        >>> rows = pa.table({"k": [1, None, 1], "d": [False, False, None]})
        >>> Port(("v",), keys=("k",), dead="d").can_match(rows).tolist()
        [True, False, False]
        """
        names = frozenset(table.schema.names)
        alive = np.ones(table.num_rows, np.bool_)
        for name in (*self.keys, *required):
            if name in names and table.column(name).null_count:
                alive &= table.column(name).is_valid().to_numpy(zero_copy_only=False)
        if self.dead is not None and self.dead in names and table.num_rows:
            alive &= ~pc.fill_null(table.column(self.dead), True).to_numpy(zero_copy_only=False)
        return alive

    def identity(self, names: CanonicalNames, stored: Iterable[str]) -> dict[str, Any]:
        """The parts of the port that give a state with these ``stored`` columns its meaning, without empty ones."""
        fields = {
            "stored": names.canonical_sorted(stored),
            "keys": names.canonical_list(self.keys),
            "code": names.canonical_or_none(self.code),
            "exact": self.exact,
            "times": names.canonical_sorted(self.times),
            "time": names.canonical_or_none(self.time) if self.times else None,
            "dead": names.canonical_or_none(self.dead),
            "order": names.canonical_or_none(self.order),
            "upsert_key": names.canonical_sorted(self.upsert_key),
        }
        return {name: value for name, value in fields.items() if value}


LEFT, RIGHT = 0, 1
"""The ports of a join of two sides."""

Watermarks = Mapping[str, int]
"""A watermark per watermarked column (``alias.column``): no row with a smaller event time will come."""

NOW = "#now"
"""The watermark that carries the wall clock, in microseconds; absent: no tick came, the clock stands still."""

RUN = "#run"
"""The watermark that tells one start of the query from another; passed to operators that ask for it (`needs_run`)."""

LOADED = "#loaded"
"""The watermark, with the value 1, that says that all tables are caught up."""


def is_internal(watermark: str) -> bool:
    """Whether a watermark has a generated name: the clock, loaded tables, a partition of a topic, a hidden column.

    >>> [name for name in ("o.at", "#loaded", "o.at#@orders-0", "begun.#t") if not is_internal(name)]
    ['o.at']
    """
    return "#@" in watermark or watermark.startswith("#") or ".#" in watermark


END_OF_INPUT = 2**63 - 1
"""The watermark of a side that has ended: it closes every lifetime that waits for that side."""


Emit = Literal["changes", "final"]
"""The emission of a grouping or top-N: the changes of its table after each batch, or, as a stream, each group once,
when the watermark closes it."""

Overflow = Literal["fail", "drop_oldest"]
"""The policy when more rows would have to be stored than allowed: the batch fails and can be repeated with a higher
limit, or the rows with the earliest times are dropped and counted, of a preserved side padded."""


class StepError(Exception):
    """Raised where a step cannot go on; the batch then has not happened.

    It is data, so that it can be told in another process: the ``condition`` by name, and its ``parameters``.
    """

    def __init__(self, condition: str, parameters: Mapping[str, str]) -> None:
        super().__init__(condition, parameters)
        self.condition = condition
        self.parameters = parameters


class StateOverflowError(StepError):
    """Raised when a shard would have to keep more rows than it may.

    >>> StateOverflowError((1, 20), 5).parameters["rows"]
    '1 row of the left and 20 of the right side'
    """

    def __init__(self, state_rows: tuple[int, ...], limit: int) -> None:
        side, rows = str(state_rows.index(max(state_rows)) + 1), f"{sum(state_rows):,} rows"
        if len(state_rows) == 2:
            side = "left" if state_rows[LEFT] >= state_rows[RIGHT] else "right"
            left = f"{state_rows[LEFT]:,} {'row' if state_rows[LEFT] == 1 else 'rows'}"
            rows = f"{left} of the left and {state_rows[RIGHT]:,} of the right side"
        super().__init__("STATE_LIMIT", {"side": side, "rows": rows, "limit": f"{limit:,}"})
        self.state_rows = state_rows
        self.limit = limit


class StateStore(Protocol):
    """The state of one shard: values by name. What is put lasts if the batch succeeds."""

    owner: str
    """An id that separates the shard from others on the same machine; the same in every attempt of a batch."""

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        ...

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name."""
        ...

    def remove(self, name: str) -> None:
        """Forget the value of that name."""
        ...


_SUM, _HISTOGRAM, _PER_PORT = {"merge": "sum"}, {"merge": "histogram"}, {"per_port": True}
_PLAIN: Mapping[str, object] = {"merge": "last", "per_port": False}
"""The properties of the numbers of a step: how those of several steps become one, and whether there is one per port."""


@dataclass(frozen=True)
class StepReport:
    """The counts and watermarks of one step. A tuple has one number per port, left first.

    - ``rows``: rows that arrived; ``late``: those of them that were late
    - ``matched``: pairs, or for more than two ports rows of the result
    - ``padded``: unmatched rows that were emitted: padded, or to a side output
    - ``state``: rows in the state; ``dropped``: rows that a limit removed, and rows that the operator cannot use: a
      change of a table without a key, or a version without a time; a second version of a key and time
    - ``partitions``: partitions in the windows; empty for other families
    - ``written``: rows that were written to the state, new ones and those of merged runs
    - ``stored``: the written rows and their bytes, by the name of a spine
    - ``received``: the watermark of each column on its own side, before it waits for other sides
    - ``delays``: the distance between the two rows of each matched pair (in event time; in a window, by the clock or in
      arrivals), as a histogram of `build_histogram`; ``lateness``: the same of how late rows were; None: no rows, or
      rows have no distance
    - ``too_late``: a sample of the late rows, with the matches that they missed
    """

    rows: tuple[int, ...] = field(default=(0, 0), metadata=_SUM | _PER_PORT)
    late: tuple[int, ...] = field(default=(0, 0), metadata=_SUM | _PER_PORT)
    matched: int = field(default=0, metadata=_SUM)
    padded: tuple[int, ...] = field(default=(0, 0), metadata=_SUM | _PER_PORT)
    state: tuple[int, ...] = field(default=(0, 0), metadata=_PER_PORT)
    dropped: tuple[int, ...] = field(default=(0, 0), metadata=_SUM | _PER_PORT)
    watermarks: Watermarks = field(default_factory=dict[str, int])
    partitions: tuple[int, ...] = field(default=(), metadata=_PER_PORT)
    written: int = field(default=0, metadata=_SUM)
    stored: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]], compare=False)
    received: Watermarks = field(default_factory=dict[str, int])
    delays: Histogram | None = field(default=None, compare=False, metadata=_HISTOGRAM)
    lateness: Histogram | None = field(default=None, compare=False, metadata=_HISTOGRAM)
    too_late: tuple[pa.Table, ...] = field(default=(), compare=False)


def _counters(**properties: object) -> tuple[str, ...]:
    """The numbers of a step with these properties, in the order of their fields."""
    return tuple(f.name for f in fields(StepReport) if properties.items() <= {**_PLAIN, **f.metadata}.items())


PORT_COUNTERS = _counters(per_port=True)
"""The numbers of a step that there are per port."""
SUMMED_PORT_COUNTERS = _counters(per_port=True, merge="sum")
"""Those of them that add up over the steps of a batch."""
SUMMED_COUNTERS = _counters(per_port=False, merge="sum")
"""The numbers of a step, of all its ports, that add up over the steps of a batch."""
HISTOGRAMS = _counters(merge="histogram")
"""The histograms of a step."""


def merge_step_reports(reports: Sequence[StepReport]) -> StepReport:
    """The report of a batch from those of its steps: counters are summed, state sizes are those of the last.

    >>> merged = merge_step_reports([StepReport((1, 2), state=(1, 2)), StepReport((3, 0), state=(4, 2))])
    >>> merged.rows, merged.state
    ((4, 2), (4, 2))
    """
    numbers: dict[str, Any] = {
        name: tuple(map(sum, zip(*(getattr(report, name) for report in reports), strict=True)))
        for name in SUMMED_PORT_COUNTERS
    }
    numbers |= {name: sum(getattr(report, name) for report in reports) for name in SUMMED_COUNTERS}
    for name in HISTOGRAMS:
        counts = [histogram for report in reports if (histogram := getattr(report, name)) is not None]
        numbers[name] = sum(counts) if counts else None
    stored: dict[str, tuple[int, int]] = {}
    for report in reports:
        for spine, (rows, size) in report.stored.items():
            before = stored.get(spine, (0, 0))
            stored[spine] = (before[0] + rows, before[1] + size)
    return replace(reports[-1], stored=stored, **numbers)


@dataclass(frozen=True)
class Emission:
    """The result of a step: joined rows (matched and padded), the late rows per port, and the report.

    ``unmatched`` are rows of a port that expired without a match and go to a side output.
    """

    rows: tuple[pa.Table, ...] = ()
    late: tuple[tuple[int, pa.Table], ...] = ()
    report: StepReport = field(default_factory=StepReport)
    unmatched: tuple[tuple[int, pa.Table], ...] = ()


def collect_emission(pieces: Iterable[pa.Table | Emission]) -> Emission:
    """The pieces of a stream as one emission: its last piece, with the tables before it."""
    *tables, last = pieces
    assert isinstance(last, Emission)
    return replace(last, rows=(*(table for table in tables if isinstance(table, pa.Table)), *last.rows))


@dataclass(frozen=True, kw_only=True)
class StreamOperator(ABC):
    """An operator with state, ready to run: a join of any family, GROUP BY, top-N, or the latest row per key.

    The properties have the answers of most operators; one that differs overrides them.

    - ``max_rows``, ``overflow``: how many rows it may keep, and what happens beyond
    - ``idle``: after how many microseconds of wall clock a column counts as idle
    - ``unions``: the columns that several sources feed, with the watermarks of their parts
    - ``names``: the canonical names of its columns, under which a state keeps them (see `CanonicalNames`)
    """

    name: ClassVar[str]
    """The name of the family in metrics, and in the identity of a state."""

    max_rows: int | None = None
    overflow: Overflow = "fail"
    idle: tuple[tuple[str, int], ...] = ()
    unions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    names: tuple[tuple[str, str], ...] = ()

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard: the rows that arrived per port, and the watermarks the batch brought.

        A family defines this, or `stream`.
        """
        return collect_emission(self.stream(store, arrivals, watermarks))

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """The same as `step`: joined rows as they come, and last the emission with the rest.

        A large result is then never in memory whole.
        """
        yield self.step(store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:  # noqa: B027 - most have nothing to do
        """Make the state that an operator of the identity ``was`` has left one of its own, before its first step.

        Only called where that may be: see `watersmeet.physical.change`. Where nothing but lags differ, it is one.
        """

    @property
    def can_precombine(self) -> bool:
        """Whether one row may stand for others like it, and tell how many they are."""
        return False

    @property
    def can_split_batch(self) -> bool:
        """Whether the arrivals of a batch may come in several steps, the watermarks with the last."""
        return False

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The ports where the order of arrival within a batch decides about the result: upserts, by default."""
        return frozenset(number for number, side in enumerate(self.ports) if side.upsert_key)

    @property
    def arrival_rule(self) -> str:
        """The reason why another order of arrival may give another result, as a sentence; "": it does not.

        The changes of a table have one order, so upserts do not count.
        """
        streams = [number for number in self.ports_in_arrival_order if not self.ports[number].upsert_key]
        return "among rows that are equal in their order, the first to arrive counts" if streams else ""

    @property
    @abstractmethod
    def ports(self) -> tuple[Port, ...]:
        """The ports, each with how its rows arrive."""

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The identity of the operator's state. An operator cannot continue a state that has another identity."""

    def make_identity(self, stored: Iterable[Iterable[str]], **fields: object) -> Identity:
        """An identity: what all families tell of their ports and what is ``stored`` of each, and further fields."""
        names = self.canonical_names
        ports = [port.identity(names, columns) for port, columns in zip(self.ports, stored, strict=True)]
        return {"family": self.name, "ports": ports, "unions": names.unions(self.unions), **fields}

    @cached_property
    def canonical_names(self) -> CanonicalNames:
        """The canonical names of its columns."""
        return CanonicalNames(self.names)

    @property
    def result_columns(self) -> tuple[tuple[str, ...], ...]:
        """The columns that the result shows of each port. A row of the emission has these, then `extra`."""
        return tuple(side.columns for side in self.ports)

    @property
    def extra(self) -> tuple[str, ...]:
        """Further columns of the emission, made by the join itself."""
        return ()

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the further columns, for arrivals with these schemas: whole numbers."""
        return (pa.int64(),) * len(self.extra)

    @property
    def late_columns(self) -> tuple[tuple[str, ...], ...]:
        """The columns that a late row of each port shows, if late rows are kept."""
        return tuple(side.late for side in self.ports)

    @property
    def watermark_dependencies(self) -> tuple[str, ...] | None:
        """The columns whose watermarks decide when its rows leave; None: it never runs behind a join in one process."""
        return None

    def uniform_watermarks(self, uniform: frozenset[str]) -> frozenset[str] | None:
        """The columns of the result whose watermarks are the same in all shards, if those of ``uniform`` are.

        None: no other join runs behind it in one process.
        """
        return None

    @property
    def null_key_spines(self) -> tuple[tuple[str, str], ...]:
        """Spines with rows that it shows although their key is NULL, and that upserts replace; with the key's column.

        Such a row must be in the shard to which `watersmeet.operators.core.routing` sends its next version.
        """
        return ()

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """The values up to which rows of tables are final; they are not watermarks."""
        return ()

    @property
    def top_n(self) -> TopN | None:
        """The top-N that the operator needs of the table that feeds it; None: it needs the whole table."""
        return None

    def with_top_n(self, top_n: TopN) -> Self:
        """The same where nothing but the first of its rows is asked for: others that are settled may be left out."""
        return self

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters: it tells idle sides."""
        return bool(self.idle)

    @property
    def needs_run(self) -> bool:
        """Whether the operator depends on restarts of the query."""
        return False

    @property
    def ports_to_preload(self) -> tuple[int, ...]:
        """The ports that are to be caught up before rows of the others count; `LOADED` tells when."""
        return ()

    def is_partitioned(self, port: int) -> bool:
        """Whether each shard has partitions of its own at that port; else all have a share in one."""
        return False

    def with_limit(self, max_rows: int | None, overflow: Overflow) -> Self:
        """The same that keeps at most so many rows."""
        return replace(self, max_rows=max_rows, overflow=overflow)

    def for_shards(self, shards: int) -> Self:
        """The same as it runs in each of so many shards: each may keep its part of the rows."""
        return self if self.max_rows is None else replace(self, max_rows=-(-self.max_rows // shards))


WATERMARK_PREFIX = "watermark:"
"""The prefix of the names of marks in them: per watermarked column, the mark of the shard that is furthest behind."""
EXAMPLE_PREFIX = "example:"
"""The prefix of the names under which some rows are reported, by kind, as JSON."""
OWN_WATERMARK_PREFIX = "own:"
"""The prefix of the names of marks that a side has by itself, whether the other side is as far or not."""


def port_names(ports: int) -> tuple[str, ...]:
    """The names of the ports of a join in its metrics.

    >>> port_names(2), port_names(3)
    (('left', 'right'), ('1', '2', '3'))
    """
    return ("left", "right") if ports == 2 else tuple(str(port + 1) for port in range(ports))


ShardMetrics = dict[str, dict[str, Any]]
"""Numbers by name, by what is made of those of two shards. None: a shard has nothing to say of it."""


def _add_counts(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {**left, **{name: left.get(name, 0) + number for name, number in right.items()}}


FOLDS: Mapping[str, Callable[[Any, Any], Any]] = {"sum": add, "highest": max, "lowest": min, "sums": _add_counts}


def merge_shard_metrics(reports: Iterable[ShardMetrics]) -> ShardMetrics:
    """The numbers of several shards as those of one.

    >>> merge_shard_metrics([{"sum": {"rows": 1}, "lowest": {"a.t": 5}}, {"sum": {"rows": 2}, "lowest": {"a.t": None}}])
    {'sum': {'rows': 3}, 'lowest': {'a.t': 5}}
    """
    merged: ShardMetrics = {}
    for report in reports:
        for fold, numbers in report.items():
            merged_numbers = merged.setdefault(fold, {})
            for name, number in numbers.items():
                before = merged_numbers.get(name)
                merged_numbers[name] = (
                    number if before is None else before if number is None else FOLDS[fold](before, number)
                )
    return merged


def to_text(join: str, metrics: ShardMetrics) -> str:
    """Encode the metrics of a join as the text that Spark collects."""
    return json.dumps({"join": join, **metrics}, default=int)
