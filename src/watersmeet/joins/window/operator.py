"""The window join: a row meets the rows that are in the other side's window when it arrives.

Definition. Each side has a window. Arrivals are numbered one after the other across both sides. An arrival does, in
this order:

1. It *probes*: it meets every row in the opposite window, whatever its partition, if their keys are equal (NULL never
   is) and the rest of the condition is true.
2. It *is inserted* into its own window. A window's rows fall into partitions (NULL is a value like any other there); a
   window without PARTITION BY is one partition. Before the insertion the window evicts from the row's partition:

   - ``count`` n: the oldest row, if the partition has n. With n = 0 nothing is ever stored
   - ``delta`` n: every row whose value is smaller than the new one by more than n. A row without a value probes but is
     never stored
   - ``time`` n: nothing; see below

   Only an insertion into the same window evicts. A row that is never stored leaves at its own arrival.
3. A limit on partitions discards whole partitions of its window: ``age`` right before an insertion, every partition
   whose last insertion is more than that many whole seconds ago, the new row's own included; ``count`` and ``rows``
   right after one, as long as there are more partitions or rows than that, the one least recently inserted into first,
   and the new row's own last.

What arrives in one batch arrives in the order of its order column: with ``interleaved`` sides both columns count the
same, and of equal values the left row comes first; else all left rows of a batch come before its right rows. Batches
arrive one after the other.

The clock is that of the batch (`NOW`); it never goes back, and where a batch brings none it stands still. A row is
inserted at the clock of its batch, or at the first clock there ever is. At the start of a batch, before its
arrivals, a ``time`` window evicts the rows that were inserted more than its size ago. After a restart (another `RUN`)
it does not, until a batch after the one that brings the next insertion into it.

Where a state goes on with windows of other sizes, rows that are beyond the new ones leave at the start of the next
batch, too: of a ``count`` window all but the last n of a partition, of a ``delta`` window those that a later row of
their partition would have evicted; then partitions beyond a limit on their number, or on their rows. Rows that have
left do not come back.

A row of a preserved side that leaves and never met another *dies alone*: it comes out padded, or on an output of its
own. Rows of discarded partitions are dropped and counted instead, unless ``emit_discarded``. The end of the input
evicts nothing.

Order of what comes out: that of its *trigger*. First come the rows that time evicted, all in one trigger, then those of
each arrival: its matches in the order in which the stored rows arrived, then the rows that leave through it, oldest
first. Last, in a trigger without a port again, come rows dropped because too many were kept.

So a row's life is an interval of arrival numbers, from its own to that of the insertion that ends it, and two rows meet
when the number of the later lies in the life of the earlier. See `definition` for the same, one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import pyarrow as pa

from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import CanonicalNames, Identity
from watersmeet.joins.core.operator import Emission, StateStore, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.two_sided import TwoSided
from watersmeet.joins.state.layout import RowLayout
from watersmeet.joins.window.batch import narrow, stream
from watersmeet.joins.window.lives import window_layout

WindowKind = Literal["inner", "left", "right", "full"]
"""What comes out. ``inner``: pairs. ``left``, ``right``, ``full``: also rows of the preserved side or sides that die
alone."""

TRIGGER_PORT, TRIGGER, SEQ, LAST = "_trigger_port", "_trigger", "_seq", "_last"
"""What a row of a punctuated result shows of its trigger: the port of the arrival (int8; NULL: time evicted it, or a
limit), the arrival's order value (int64), the row's number within the trigger from 0 (int64), and whether it is the
trigger's last row in the result (boolean)."""


@dataclass(frozen=True)
class PartitionLimit:
    """How many partitions a window keeps. One is discarded whole.

    - ``age``: ``size`` microseconds, of which whole seconds count, since the last insertion
    - ``count``: ``size`` partitions, at least 1
    - ``rows``: ``size`` rows in all partitions together, at least 1
    """

    kind: Literal["age", "count", "rows"]
    size: int

    def __post_init__(self) -> None:
        if self.size < (0 if self.kind == "age" else 1):
            raise ValueError(f"a limit on partitions cannot be {self.size}")


@dataclass(frozen=True)
class WindowSpec:
    """How long the rows of a side stay.

    - ``kind``, ``size``: ``count`` of rows; ``delta`` between values of ``column``; ``time`` in microseconds
    - ``column``: for ``delta``, the column: an integer, TIMESTAMP or DATE; the size of the latter two is in
      microseconds
    - ``partition``: the columns that say to which partition a row belongs, of any type but nested ones; none: one
      partition
    - ``limit``: how many partitions are kept; None: all
    """

    kind: Literal["count", "delta", "time"]
    size: int
    column: str | None = None
    partition: tuple[str, ...] = ()
    limit: PartitionLimit | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a window cannot have the size {self.size}")
        if (self.column is None) == (self.kind == "delta"):
            raise ValueError("a delta window, and no other, has a column")

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters."""
        return self.kind == "time" or (self.limit is not None and self.limit.kind == "age")

    @property
    def has_state(self) -> bool:
        """Whether rows are stored at all."""
        return self.kind != "count" or self.size > 0


@dataclass(frozen=True)
class WindowJoinOperator(TwoSided):
    """A window join, ready to run. Rows that are ``dead`` never match, but are stored, and evict.

    - ``windows``: how long the rows of each port stay
    - ``condition``: whatever must hold besides equal keys
    - ``interleaved``: the order columns of both sides count the same, so that the arrivals of a batch are merged by
      them; else its left rows arrive before its right rows
    - ``padded_column``: the name of an int8 column of the result: -1 for a pair, else the port that is missing in the
      row
    - ``punctuated``: rows carry TRIGGER_PORT, TRIGGER, SEQ and LAST
    - ``emit_discarded``: rows of discarded partitions come out as if evicted
    """

    name: ClassVar[str] = "window"

    kind: WindowKind
    windows: tuple[WindowSpec, WindowSpec]
    condition: Condition | None = None
    interleaved: bool = True
    padded_column: str | None = None
    punctuated: bool = False
    emit_discarded: bool = False

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Go on with the state of a join with windows of other sizes: what is beyond them leaves with the next step."""
        narrow(self, store)

    @property
    def extra(self) -> tuple[str, ...]:
        """Further columns of the result, after those of the sides."""
        padded = () if self.padded_column is None else (self.padded_column,)
        return (*padded, *((TRIGGER_PORT, TRIGGER, SEQ, LAST) if self.punctuated else ()))

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """Numbers of ports, places in the order of arrival and among the rows of a trigger, and whether it ends."""
        padded = () if self.padded_column is None else (pa.int8(),)
        return (*padded, *((pa.int8(), pa.int64(), pa.int64(), pa.bool_()) if self.punctuated else ()))

    @cached_property
    def state_columns(self) -> tuple[tuple[str, ...], ...]:
        """The columns that are kept of each side: what the result, the match and the window still need, each once."""
        return tuple(_state_columns(side, window) for side, window in zip(self.sides, self.windows, strict=True))

    @cached_property
    def layouts(self) -> tuple[RowLayout, ...]:
        """How the rows of each side are kept."""
        return tuple(
            window_layout(stored, clocked=window.needs_clock, tracked=preserved)
            for stored, window, preserved in zip(self.state_columns, self.windows, self.is_preserved, strict=True)
        )

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters: to time windows and to the age of partitions."""
        return any(window.needs_clock for window in self.windows)

    @property
    def needs_run(self) -> bool:
        """Whether restarts matter: time windows pause after one."""
        return any(window.kind == "time" for window in self.windows)

    @property
    def is_by_clock(self) -> bool:
        """Whether the clock says how far apart two rows are; else the number of arrivals from one to the other does."""
        return all(window.kind == "time" for window in self.windows)

    def is_partitioned(self, port: int) -> bool:
        """Whether the window of that port has partitions, so that each shard has some of its own."""
        return bool(self.windows[port].partition)

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means; what rows show does not."""
        names = self.canonical_names
        return self.make_identity(
            self.state_columns,
            kind=self.kind,
            windows=[_window_identity(window, names) for window in self.windows],
            interleaved=self.interleaved,
            condition=names.condition(self.condition),
        )


def _state_columns(port: Port, window: WindowSpec) -> tuple[str, ...]:
    delta = () if window.column is None else (window.column,)
    return tuple(dict.fromkeys((*port.input_columns, *port.unmatched, *window.partition, *delta)))


def _window_identity(window: WindowSpec, names: CanonicalNames) -> Identity:
    return {
        "kind": window.kind,
        "size": window.size,
        "column": names.canonical_or_none(window.column),
        "partition": names.canonical_sorted(window.partition),
        "limit": None if window.limit is None else [window.limit.kind, window.limit.size],
    }
