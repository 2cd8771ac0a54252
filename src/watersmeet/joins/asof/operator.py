"""The as-of join: each left row, a question, gets the version of the right side that is in force at its time.

Definition. A question and a version fit when their keys are equal (NULL never is), the version's time lies on the side
of the question's time that the direction names (equal times count unless the join is strict), and it is no further away
than the tolerance. Of the versions that fit, the question chooses the nearest in time; of two that are equally far, the
earlier. Nothing but keys and times chooses. The version that was chosen is the question's answer unless it is *void*:
the delete of its key, or a row for which the condition of its side is not true. A question that chose a void version
has no answer, and gets no other one.

A key has one version per time. Of a stream that is the first delivered; of a table (``upserts``) the last, since each
change takes the place of the one before.

A question is *settled* when no version that may still come could change its answer. Versions that may come have times
at or after the mark of the right side. So a question waits until that mark has passed every time at which a version
would be preferred to the best one known, and is settled at once where there is no such time:

- ``backward``: the times after the best known version, up to the question's own
- ``forward``: the times from the question's own to before the best known version, or to the end of the tolerance
- ``nearest``: the times that are nearer than the best known version, or as near and earlier
- of a table also the time of the best known version, whose row may still be replaced

A batch is one instant of a shard:

1. A new row is late if one of its times is below the mark its column had received before the batch. It is dropped and
   counted.
2. A new question that nothing can fit (NULL key, NULL time, own predicate not true) comes out padded at once if the
   join is ``left``. A version with a NULL key or time is ignored; a change of a table without them is dropped and
   counted.
3. A new version that no question could choose any more (see below, by what was known before the batch) is ignored. Of
   two versions of a key and time the one that does not count is dropped and counted.
4. The marks of the batch are folded in. Every question that is now settled comes out: with its answer, or without one
   padded if the join is ``left``.

What is kept: the questions that are not settled, and the versions that a question may still choose, void ones too: a
question must not choose the version before a void one. Questions have times
at or after the *horizon*, the earlier of the left mark and the first open question. A version is of no use when another
of its key is later and still before the horizon (or, if not strict, at it), or when all times within its tolerance are
before the horizon; of ``forward``, when its own time is. Versions of no use may stay for a while in large runs, until
these are merged: no question chooses them.

The result's marks are those of the left side, held back by open questions. The end of the right side settles all of
them. See `definition` for the same, one row at a time. Nothing but equal keys ever meets, so rows may be sharded by
key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import pyarrow as pa

from watersmeet.joins.asof.batch import step, take_over
from watersmeet.joins.asof.versions import VOID
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.marks import Bound
from watersmeet.joins.core.operator import Emission, StateStore, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.two_sided import TwoSided
from watersmeet.joins.state.layout import RowLayout

AsofKind = Literal["inner", "left"]
"""What becomes of a question without an answer. ``inner``: nothing. ``left``: it comes out padded."""

Direction = Literal["backward", "forward", "nearest"]
"""Where a version may lie. ``backward``: at or before the question. ``forward``: at or after it. ``nearest``: both."""


@dataclass(frozen=True)
class AsofJoinOperator(TwoSided):
    """An as-of join, ready to run.

    ``tolerance`` is how far away a version may be, in the unit of the times (microseconds for TIMESTAMP and DATE);
    None: any distance. ``padded_column`` names an int8 column of the emission: -1 for a pair, 1 where the right side
    is missing; None: no such column. A right port with an ``upsert_key`` is a table: its arrivals are changes.

    >>> from watersmeet.testing import MemoryStore
    >>> join = AsofJoinOperator("left", Port(("q",), ("q",)), Port(("t", "v"), ("t",)))
    >>> arrivals = {0: pa.table({"q": [1, 7, 9]}), 1: pa.table({"t": [5, 8], "v": ["a", "b"]})}
    >>> for table in join.step(MemoryStore(), arrivals, {"q": 9, "t": 8}).rows:
    ...     print(table.to_pylist())
    [{'q': 7, 't': 5, 'v': 'a'}]
    [{'q': 1, 't': None, 'v': None}]
    """

    name: ClassVar[str] = "as-of"

    kind: AsofKind
    direction: Direction = "backward"
    strict: bool = False
    tolerance: int | None = None
    padded_column: str | None = None

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Go on with the state of a join with another tolerance: versions beyond it are gone for good."""
        take_over(self, store, was)

    @property
    def extra(self) -> tuple[str, ...]:
        """The column that says which side is missing, if it is asked for."""
        return () if self.padded_column is None else (self.padded_column,)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The number of a port."""
        return (pa.int8(),) * len(self.extra)

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means."""
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            direction=self.direction,
            strict=self.strict,
            tolerance=self.tolerance,
        )

    @property
    def upserts(self) -> bool:
        """Whether versions are changes of a table: upserts and deletes, of which the last of a key and time counts."""
        return bool(self.right.upsert_key)

    @property
    def has_void(self) -> bool:
        """Whether a version may be void."""
        return self.upserts or self.right.dead is not None

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result: those of the left side."""
        return self.left.times

    @property
    def waits(self) -> tuple[Bound, ...]:
        """Questions wait for the right mark, versions for the left one. An idle side follows the one that waits."""
        return (Bound(self.left.time, self.right.time, 0), Bound(self.right.time, self.left.time, 0))

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """The times of questions and of versions."""
        return (self.left.time, self.right.time)

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """What is stored of each side: questions in the order of their times, versions by key and time."""
        void = (VOID,) if self.has_void else ()
        stored = (*self._state_columns(self.right, (self.right.time,)), *void)
        return (
            RowLayout(self._state_columns(self.left, self.left.times), self.left.times, self.left.time),
            RowLayout(stored, (self.right.time,), self.right.time, self.right.code, absent=void),
        )

    @property
    def is_exact(self) -> bool:
        """Whether equal codes imply equal keys."""
        return self.left.exact and self.right.exact

    def _state_columns(self, side: Port, times: tuple[str, ...]) -> tuple[str, ...]:
        code = () if side.code is None else (side.code,)
        keys = () if self.is_exact else side.keys
        return tuple(dict.fromkeys((*side.columns, *times, *keys, *code)))
