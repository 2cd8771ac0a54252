"""The lookup join: each row of a stream meets the rows that a table has for its key at that moment.

Definition. One port is a stream, the other a table, which changes. A stream row meets every row that the table has when
the stream row is processed, if their keys are equal (NULL never is), both fulfil their own predicates and the rest of
the condition is true; a table row of weight n counts n times, one of weight 0 or less not at all. What the rows' own
times are does not matter, and a stream row is never late.

A batch is one instant of a shard:

1. The changes of the table are applied: those of a batch come before its stream rows, whatever their order.
2. Rows that *wait* (see 5) and that now meet table rows come out with all of them and wait no longer.
3. With ``load_first``, and until the mark `LOADED` has come, new stream rows are held back, in the order of arrival.
   The batch that brings the mark looks up all of them, as if they came with it.
4. The new stream rows are looked up, each once. One that meets nothing comes out padded if the join preserves the
   stream.
5. With ``late_table="reemit"`` a row that came out padded waits, unless it can never match (NULL key, own predicate not
   true): for as long as ``retention`` says by the wall clock, the last microsecond included, and for as long as at most
   ``waiting`` rows do; the rows that came first are forgotten first. Rows that came before there was a clock count as
   having come with the first one. A row that met something, then or now, is never looked up again. Where a state goes
   on with another ``late_table``, rows that wait do so no longer, or those wait that come from then on.

An inner join has no rows that wait. The marks of the result are those of the stream, held back by rows that are held
back themselves; rows that wait hold nothing back, so what comes out again may be late for a join further on.

See `definition` for the same, one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

import pyarrow as pa

from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.operator import RIGHT, Emission, StateStore, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.two_sided import TwoSided
from watersmeet.joins.lookup.batch import ARRIVED, NUMBER, clear_waiting, stream
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import RowLayout
from watersmeet.joins.state.table import BUDGET, table_layout

LookupKind = Literal["inner", "left", "right"]
"""What becomes of a stream row that meets nothing. ``inner``: nothing. ``left``, ``right``, whichever the stream is: it
comes out padded."""

LateTable = Literal["reemit", "ignore"]
"""Whether a stream row that came out padded is shown once more when its table row comes."""


@dataclass(frozen=True)
class LookupJoinOperator(TwoSided):
    """A lookup join, ready to run.

    - ``left``, ``right``: how the rows of the sides arrive; only the stream's ``times`` matter, and nothing is late
    - ``table``: the port of the table. The keys of the join follow from its ``upsert_key``, if it has one, so that the
      old and the new row of a primary key meet in one shard
    - ``condition``: whatever must hold besides equal keys
    - ``late_table``, ``retention`` (microseconds of wall clock), ``waiting`` (rows): see the module; None: no limit
    - ``load_first``: stream rows are held back until `LOADED` has come
    - ``max_rows``, ``overflow``: how many rows of table and stream are kept; of these, only rows that wait are dropped

    The rows of a port were delivered in the order of ``#position`` or, without that column, in the one they have.

    >>> from watersmeet.testing import MemoryStore
    >>> orders, customers = (Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "oc")
    >>> join, store = LookupJoinOperator("left", orders, customers), MemoryStore()
    >>> [table] = join.step(store, {0: pa.table({"o.k": [7], "o.v": ["Keyboard"]})}, {}).rows
    >>> table.to_pylist()
    [{'o.k': 7, 'o.v': 'Keyboard', 'c.k': None, 'c.v': None}]
    >>> [table] = join.step(store, {1: pa.table({"c.k": [7], "c.v": ["John"], "#weight": [1]})}, {}).rows
    >>> table.to_pylist()
    [{'o.k': 7, 'o.v': 'Keyboard', 'c.k': 7, 'c.v': 'John'}]
    """

    name: ClassVar[str] = "lookup"

    kind: LookupKind
    table: int = RIGHT
    condition: Condition | None = None
    late_table: LateTable = "reemit"
    retention: int | None = None
    waiting: int | None = None
    load_first: bool = False
    budget: Budget = BUDGET

    def __post_init__(self) -> None:
        if self.kind not in ("inner", ("left", "right")[self.stream_port]):
            raise ValueError(f"a {self.kind} join would preserve the table, which the other side looks up")

    @property
    def stream_port(self) -> int:
        """The port of the stream."""
        return 1 - self.table

    @property
    def stream_side(self) -> Port:
        """How the rows of the stream arrive."""
        return self.sides[self.stream_port]

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Go on with the state of a join that did otherwise with late table rows: where none count, no row waits."""
        if not self.can_reemit:
            clear_waiting(self, store)

    @property
    def ports_to_preload(self) -> tuple[int, ...]:
        """The table, if stream rows are held back until it is caught up."""
        return (self.table,) if self.load_first else ()

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """None: what times rows have does not matter."""
        return ()

    @property
    def is_outer(self) -> bool:
        """Whether stream rows that meet nothing come out padded."""
        return self.kind != "inner"

    @property
    def can_reemit(self) -> bool:
        """Whether rows wait."""
        return self.is_outer and self.late_table == "reemit"

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters: it ends the time that rows wait, and tells idle sources."""
        return bool(self.idle) or (self.can_reemit and self.retention is not None)

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means; what is held back does not."""
        names = self.canonical_names
        return self.make_identity(
            (side.input_columns for side in self.sides),
            kind=self.kind,
            table=self.table,
            late_table=self.late_table,
            condition=names.condition(self.condition),
        )

    def for_shards(self, shards: int) -> Self:
        """The join as it runs in each of so many shards: in each, its part of the rows may wait and be kept."""
        waiting = None if self.waiting is None else -(-self.waiting // shards)
        return replace(super().for_shards(shards), waiting=waiting)

    @cached_property
    def table_layout(self) -> RowLayout:
        """What is stored of a table row: what the result, the match and the condition need, and its primary key."""
        side = self.sides[self.table]
        return table_layout((*side.input_columns, *side.upsert_key), side.code)

    @cached_property
    def wait_layout(self) -> RowLayout:
        """What is stored of a stream row that waits, by code."""
        side = self.stream_side
        return RowLayout((*side.input_columns, NUMBER, ARRIVED), (NUMBER, ARRIVED), NUMBER, side.code)

    @cached_property
    def hold_layout(self) -> RowLayout:
        """What is stored of a stream row that is held back, in the order of arrival."""
        side = self.stream_side
        dead = () if side.dead is None else (side.dead,)
        columns = tuple(dict.fromkeys((*side.input_columns, *side.keys, *side.times, *dead)))
        return RowLayout((*columns, NUMBER), (NUMBER, *side.times), code=NUMBER)
