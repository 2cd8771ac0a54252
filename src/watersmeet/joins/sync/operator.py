"""The sync join: rows of two or more ports meet when all ports have a row of the same time.

Definition. A port's times increase: it has one row per time, and no row comes after a mark that has passed its time.
The result has one row for every time at which all ports have a row. So it is the inner join of the ports on their
times, whatever the interleaving of the ports and however their rows were cut into batches.

A batch is one instant of a shard:

1. A new row is *disorder* if its time is below the mark its port had received before the batch, or if its port already
   had a row of that time, in this batch or before. Disorder is dropped and counted as late, or fails the batch. A row
   without a time is dropped and counted, too.
2. The times at which all ports now have a row come out, and their rows leave.
3. The marks of the batch are folded in. A row leaves silently once the mark of another port has passed its time and
   that port has no row of it: the two can never meet.

What is kept: the rows that may still meet others, and the times of rows that have left, as long as the mark of their
own port has not passed them: only so can a second row of that time be told. The result's mark is the earliest of the
ports' marks. See `definition` for the same, one row at a time.

Nothing but equal times ever meets, so rows may be sharded by their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import ClassVar, Literal

import pyarrow as pa

from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import Bound
from watersmeet.joins.core.operator import Emission, StateStore, StreamOperator, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.state.layout import RowLayout
from watersmeet.joins.sync.batch import DisorderError, step

__all__ = ["Disorder", "DisorderError", "SyncJoinOperator"]

Disorder = Literal["drop", "error"]
"""What becomes of a row that is not after the rows before it. ``drop``: it is dropped and counted as late. ``error``:
the batch fails."""


@dataclass(frozen=True)
class SyncJoinOperator(StreamOperator):
    """A sync join of two or more ports, ready to run.

    >>> from watersmeet.testing import MemoryStore
    >>> join = SyncJoinOperator((Port(("a", "v"), ("a",)), Port(("b",), ("b",))))
    >>> store = MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1, 2], "v": ["x", "y"]})}, {"a": 2}).rows
    ()
    >>> join.step(store, {1: pa.table({"b": [2, 3]})}, {"b": 3}).rows[0].to_pylist()
    [{'a': 2, 'v': 'y', 'b': 2}]
    """

    name: ClassVar[str] = "sync"

    ports: tuple[Port, ...]
    disorder: Disorder = "drop"

    def __post_init__(self) -> None:
        """Refuse what is no join."""
        if len(self.ports) < 2:
            raise ValueError(f"a sync join has two ports or more, not {len(self.ports)}")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @property
    def sides(self) -> tuple[Port, ...]:
        """The ports."""
        return self.ports

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means; what becomes of disorder does not."""
        return self.make_identity(layout.columns for layout in self.layouts)

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result."""
        return tuple(port.time for port in self.ports)

    @cached_property
    def waits(self) -> tuple[Bound, ...]:
        """Which column waits for which: each for all others. An idle one follows the slowest that is not idle."""
        return tuple(Bound(column, other, 0) for column, other in permutations(self.times, 2))

    @cached_property
    def layouts(self) -> tuple[RowLayout, ...]:
        """What is stored of each port's rows."""
        return tuple(
            RowLayout(tuple(dict.fromkeys((*port.columns, port.time))), (port.time,), port.time) for port in self.ports
        )
