"""The latest row per key: upserts and deletes in, the changes of a table out.

Definition. The table has at most one row per key. A batch brings upserts and deletes in the order of delivery; for each
key only the last one counts: an upsert replaces the key's row, a delete removes it. A batch emits the changes of the
table: ``-`` the old row, ``+`` the new one, and no change where both are identical bit by bit. Keys are equal as in
SQL, so that -0.0 is 0.0, but a row with a NULL in its key is dropped and counted.

`STATE_SCHEMA` describes what a state holds: one row per key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import OP, WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Bools
from watersmeet.operators.core.operator import Emission, Port, StateStore, StreamOperator, Watermarks
from watersmeet.operators.state.layout import Budget, RowLayout
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema
from watersmeet.operators.state.table import BUDGET, StateTable, enforce_limit, table_layout, to_changes


@dataclass(frozen=True)
class LatestOperator(StreamOperator):
    """The latest row per key, ready to run: one port.

    Arrivals are upserts or deletes as `OP` says, in the order of `POSITION` or, without that column, in the order they
    have. The emission has the port's columns, then `WEIGHT`: 1 for an inserted row, -1 for a retracted one. Exceeding
    the limit fails the batch, since no row can be dropped.

    - ``port``: without keys the table has one row. The upsert of a ``dead`` row, which is not in it, is a delete.
      The watermarks of its times are emitted
    - ``append``: arrivals have no `OP`; every row is an upsert

    >>> from watersmeet.tools.testing import MemoryStore
    >>> latest, store = LatestOperator(Port(("k", "v"), (), ("k",), "k", exact=True), append=True), MemoryStore()
    >>> for value in "ab":
    ...     [table] = latest.step(store, {0: pa.table({"k": [1], "v": [value]})}, {}).rows
    ...     print(table.to_pylist())
    [{'k': 1, 'v': 'a', '#weight': 1}]
    [{'k': 1, 'v': 'a', '#weight': -1}, {'k': 1, 'v': 'b', '#weight': 1}]
    """

    name: ClassVar[str] = "latest"

    port: Port
    append: bool = False
    budget: Budget = BUDGET

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        shard = Shard(self, store, watermarks)
        table, rows = StateTable.of(shard.state, "latest", self.layout, self.budget), ()
        arrived = arrivals.get(0)
        if arrived is not None:
            is_keyed = self._is_keyed(arrived)
            shard.counters.rows[0], shard.counters.dropped[0] = arrived.num_rows, int((~is_keyed).sum())
            changes = table.upsert_changes(self._with_op(arrived.filter(pa.array(is_keyed))), self._key_columns)
            table.spine.add(changes)
            shard.counters.matched = len(changes)
            rows = (to_changes(changes).select([*self.port.columns, WEIGHT]),) if len(changes) else ()
        enforce_limit([table], self.max_rows)
        received = shard.watermarks_after.received
        return shard.close({name: received[name] for name in self.port.times if name in received}, rows)

    def _is_keyed(self, table: pa.Table) -> Bools:
        """A mask of the rows that have a key without NULLs."""
        has_key = np.ones(table.num_rows, np.bool_)
        for name in self.port.keys:
            has_key &= table.column(name).is_valid().to_numpy()
        return has_key

    def _with_op(self, table: pa.Table) -> pa.Table:
        """The rows with `OP`: rows that do not belong to the table are deletes."""
        is_upsert = np.ones(table.num_rows, np.bool_) if self.append else table.column(OP).to_numpy() > 0
        if self.port.dead is not None:
            is_upsert &= ~pc.fill_null(table.column(self.port.dead), True).to_numpy()
        op = pa.array(np.where(is_upsert, 1, -1).astype(np.int8))
        return table.select([name for name in table.column_names if name != OP]).append_column(OP, op)

    @property
    def _key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (self.port.code,) if self.port.exact and self.port.code is not None else self.port.keys

    @cached_property
    def layout(self) -> RowLayout:
        """The layout of a stored row: its shown columns and its key."""
        code = () if self.port.code is None else (self.port.code,)
        return table_layout((*self.port.columns, *self._key_columns, *code), self.port.code)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port: the last row of a key counts."""
        return frozenset({0})

    @property
    def arrival_rule(self) -> str:
        """What decides about the result."""
        return "the row of a key that arrives last replaces the others"

    @property
    def ports(self) -> tuple[Port]:
        """The only port."""
        return (self.port,)

    @property
    def extra(self) -> tuple[str, ...]:
        """The weight of a change."""
        return (WEIGHT,)

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        return self.make_identity([self.layout.columns], append=self.append)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of the table."""
    return SpineSchema(0, UNTIL_REPLACED, "weights")


STATE_SCHEMA = StateSchema(("latest",), spine)
