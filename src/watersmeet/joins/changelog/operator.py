"""The changelog join: the join of two tables by equal keys, kept up to date while they change.

Definition. A table is a bag of rows; its changes are rows with weights. A left row l and a right row r match when
their keys are equal (NULL never is), both may match at all, and the rest of the condition is true. J(L, R) has the pair
(l, r) L(l) * R(r) times, and every row of a preserved side padded, as often as it is there, if what it matches weighs
nothing: the weights of the rows that match it add up to zero. A semi join has the left rows for which they do not, an
anti join those for which they do. A batch gives J(L + dL, R + dR) - J(L, R). See `definition` for the same, slow and
obvious.

How it is found without joining whole tables again:

1. The pairs are dL x (R + dR) and L x dR. So a change reads what it may match, and not its own side.
2. Whether a row comes out alone depends on the sum of the weights it matches. For a new row that sum is known from 1.
   For an old one, 1 gives how its sum changes; only where it does, the sum it had is asked for.

Everything is linear in the rows of the own side, so it makes no difference whether a row is stored once with weight 2
or twice with weight 1.

Invariant. Only rows of one code match, so a batch is worked off by stretches of codes for which the stored rows fit in
memory; where those of a single code do not, it meets them some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from watersmeet.joins.changelog.batch import stream
from watersmeet.joins.changelog.table_join import TableJoinOperator
from watersmeet.joins.core.operator import Emission, StateStore, Watermarks


@dataclass(frozen=True)
class ChangelogJoinOperator(TableJoinOperator):
    """A join of two tables by equal keys, ready to run.

    >>> from watersmeet.joins.core.port import Port
    >>> from watersmeet.testing import MemoryStore
    >>> sides = [Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr"]
    >>> join, store = ChangelogJoinOperator("left", *sides), MemoryStore()
    >>> left, right = ({p: pa.table({f"{s}.k": [1], f"{s}.v": [s]})} for p, s in enumerate("lr"))
    >>> [list(change.values()) for table in join.step(store, left, {}).rows for change in table.to_pylist()]
    [[1, 'l', None, None, 1]]
    >>> [list(change.values()) for table in join.step(store, right, {}).rows for change in table.to_pylist()]
    [[1, 'l', 1, 'r', 1], [1, 'l', None, None, -1]]
    """

    name: ClassVar[str] = "merge"

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        return stream(self, store, arrivals, watermarks)
