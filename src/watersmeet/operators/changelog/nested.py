"""The nested-loop join: the join of two tables by any condition, updated incrementally.

Definition: that of `changelog`, without keys. Without keys, every change must be compared with every row of the other
side:

1. Changes that cancel out within the batch are removed first.
2. L x dR: the stored left side is read once, block by block; dL x R likewise, and dL x dR.
3. Where unmatched rows matter, each stored row has a note with the sum of the weights of its matches. 2 gives how the
   sum changes. When it changes from zero, the row is no longer unmatched, and vice versa.

Invariants. The sum of a row covers the whole other side, also when the row is stored twice with weights that cancel
out; so blocks may be processed one by one. At most `PAIRS_AT_ONCE` pairs are compared at a time.

One shard sees all pairs of its rows: one side may be spread over shards if the other goes to all of them. It must be
the left one where left rows are emitted unmatched or in a semi join, the right one where right rows are. Where both
are, there is one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.changelog.kernel import JoinTables, TableJoinOperator, state_columns
from watersmeet.operators.core.changes import row_codes
from watersmeet.operators.core.matching import Ints, Pairs
from watersmeet.operators.core.operator import LEFT, RIGHT, Emission, StateStore, Watermarks
from watersmeet.operators.state.layout import KeyedRows, NoteKind, RowLayout
from watersmeet.operators.state.shard import verify_pairs
from watersmeet.operators.state.table import table_layout

CODE = "#code"
"""A hash by which the rows of a side are stored: of the upsert key, or of the whole row."""

SUMS = "sums"
"""The note of a row: the sum of the weights of its matches."""

_SUMS_NOTE: tuple[str, NoteKind] = (SUMS, "number")

PAIRS_AT_ONCE = 1_048_576


@dataclass(frozen=True)
class NestedLoopJoinOperator(TableJoinOperator):
    """A join of two tables by a condition only, ready to run. Its sides have no ``keys`` and no ``code``.

    >>> from watersmeet.operators.core.condition import Apply, ColumnRef
    >>> from watersmeet.operators.core.operator import Port
    >>> from watersmeet.tools.testing import MemoryStore
    >>> condition = Apply("<", (ColumnRef("a"), ColumnRef("b")))
    >>> join, store = NestedLoopJoinOperator("left", Port(("a",)), Port(("b",)), condition), MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1]})}, {}).rows[0].to_pylist()
    [{'a': 1, 'b': None, '#weight': 1}]
    >>> sorted(join.step(store, {1: pa.table({"b": [5]})}, {}).rows[0].column("#weight").to_pylist())
    [-1, 1]
    """

    name: ClassVar[str] = "block-nested"

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """The layout of each side's state, with match sums where they are needed."""
        left, right = (
            table_layout((*state_columns(side), CODE), CODE, *([_SUMS_NOTE] if tracked else []))
            for side, tracked in zip(self.ports, self.tracks_matches, strict=True)
        )
        return left, right

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        tables = JoinTables.of(self, store, watermarks)
        changes = [layout.empty_rows for layout in self.layouts]
        for port, table in arrivals.items():
            side = self.ports[port]
            # In canonical order, so that equal rows have equal codes whatever the order of the result is.
            hashed = sorted(side.upsert_key or state_columns(side), key=self.canonical_names.canonical)
            coded = table.append_column(CODE, pa.array(row_codes(table, hashed)))
            changes[port], dead = tables.split_arrivals(port, coded)
            yield from tables.emit_dead(port, dead)
        sums = [np.zeros(len(rows), np.int64) for rows in changes]
        yield from _join_changes(self, tables, changes, sums)
        for port in (LEFT, RIGHT):
            if self.tracks_matches[port]:
                yield from tables.emit_unmatched(
                    port, changes[port], changes[port].weights * self.output_flags(sums[port])
                )
                changes[port] = changes[port].with_attributes(**{SUMS: sums[port]})
        yield from tables.finish(changes)

    def product(self, left: KeyedRows, right: KeyedRows) -> Iterator[Pairs]:
        """The matches among all pairs of these rows, some at a time."""
        width = max(1, min(len(right), PAIRS_AT_ONCE))
        height = max(1, PAIRS_AT_ONCE // width)
        for top in range(0, len(left), height):
            rows = np.arange(top, min(top + height, len(left)))
            for start in range(0, len(right), width):
                columns = np.arange(start, min(start + width, len(right)))
                pairs = Pairs(np.repeat(rows, columns.size), np.tile(columns, rows.size))
                pairs = verify_pairs(self.ports, self.condition, left, right, pairs)
                if pairs.probe.size:
                    yield pairs


def _join_changes(
    join: NestedLoopJoinOperator, tables: JoinTables, changes: Sequence[KeyedRows], sums: Sequence[Ints]
) -> Iterator[pa.Table]:
    """The changes of the result: all changes, then the stored rows of each side with the changes of the other."""
    yield from _join_pairs(join, tables, changes, sums)
    for port in (LEFT, RIGHT):
        spine = tables.tables[port].spine
        for block in spine.blocks if len(changes[1 - port]) else ():
            rows = spine.read(block)
            shifts = np.zeros(len(rows), np.int64)
            pair, added = [rows, rows], [shifts, shifts]
            pair[1 - port], added[1 - port] = changes[1 - port], sums[1 - port]
            yield from _join_pairs(join, tables, pair, added)
            if SUMS in rows.attributes and shifts.any():
                before = rows.attributes[SUMS]
                yield from tables.emit_unmatched(
                    port, rows, rows.weights * (join.output_flags(before + shifts) - join.output_flags(before))
                )
                spine.annotate(block, SUMS, before + shifts)


def _join_pairs(
    join: NestedLoopJoinOperator, tables: JoinTables, rows: Sequence[KeyedRows], sums: Sequence[Ints]
) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows contribute; adds the weight of each match to the sums of both rows."""
    alive = [_live_positions(join, port, rows[port]) for port in (LEFT, RIGHT)]
    for piece in join.product(rows[LEFT].take(alive[LEFT]), rows[RIGHT].take(alive[RIGHT])):
        pairs = Pairs(alive[LEFT][piece.probe], alive[RIGHT][piece.build])
        yield from tables.emit_pairs(rows[LEFT], rows[RIGHT], pairs, sums[LEFT], sums[RIGHT])


def _live_positions(join: NestedLoopJoinOperator, port: int, rows: KeyedRows) -> Ints:
    """The positions of rows that may match; where a side has no upsert key, no others get here."""
    side = join.ports[port]
    return np.flatnonzero(side.can_match(rows.table)) if side.upsert_key else np.arange(len(rows))
