"""The rows of the groups of a shard, for aggregates that must read all of them.

``max`` cannot retract a row without the others, and ``count(DISTINCT x)`` must know which values it has seen. For such
aggregates the state holds the columns they read: equal rows as one with their number, as in a table, and with the
number of their last arrival, which orders the rows of a group. A row that is inserted and retracted leaves no trace, in
whatever batches.

Invariants. Equal rows of a group have equal codes, so rows that cancel out share a code. A group whose window has
closed is never read again.

Sessions are windows that grow as their rows arrive. A row brings a session from its time to a gap behind it, and
sessions of one key that overlap or touch are one. All rows of an open session are stored in the `Members`, each with
the session that it brought and its arrival number. When a batch changes the bounds of a session, its rows move from one
group to another: the grouping sees changes of a table and does not know about sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import WEIGHT, concat_tables, first_positions, key_ids, row_codes, row_ids
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, as_int64
from watersmeet.operators.group.fold import GroupedRows
from watersmeet.operators.group.groups import CODE, END
from watersmeet.operators.state.layout import Budget, FinalityBound, KeyedRows, RowLayout, to_record_batch
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.state.table import StateTable

if TYPE_CHECKING:
    from watersmeet.operators.group.kernel import GroupByOperator


NUMBER = "#number"
"""The place in the order of arrival of the last row that made this one."""

BUDGET = Budget(block=262_144, balanced=True, chunk=262_144)


@dataclass(frozen=True)
class Members:
    """The rows of groups: ``keys``, then what the aggregates read.

    ``keep_duplicates``: equal rows are not put together.
    """

    table: StateTable
    keys: tuple[str, ...]
    keep_duplicates: bool = False

    @staticmethod
    def of(
        state: ShardState,
        keys: Sequence[str],
        read: Sequence[str],
        finality: FinalityBound | None,
        *,
        keep_duplicates: bool,
    ) -> Members:
        """Open the members of the groups of a shard; ``finality``: those of closed groups are dropped."""

        def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
            rows = rows if keep_duplicates else merge_equal_rows(rows, is_whole=is_oldest)
            return rows if finality is None else rows.where(finality.is_open(rows))

        times = () if finality is None else (finality.time,)
        columns = tuple(dict.fromkeys((*keys, *read, CODE, *times)))
        layout = RowLayout(columns, times, code=CODE, numbers=(WEIGHT, NUMBER))
        return Members(StateTable(state.spine("members", layout, BUDGET, alive)), tuple(keys), keep_duplicates)

    def add(self, rows: pa.RecordBatch, codes: Ints, ends: Ints, weights: Ints, number: int) -> int:
        """Take rows in, or out, in the order of arrival from this number on; returns the next number."""
        columns = {name: rows.column(name) for name in rows.schema.names if name in self.table.layout.columns}
        numbers = np.where(weights > 0, number + np.arange(len(codes)), LOWEST)
        computed = {CODE: pa.array(codes), END: pa.array(ends), WEIGHT: pa.array(weights), NUMBER: pa.array(numbers)}
        layout = self.table.layout
        table = pa.table({name: columns[name] if name in columns else computed[name] for name in layout.run_columns})
        stored = layout.sort(layout.rows(table))
        self.table.spine.add(stored if self.keep_duplicates else merge_equal_rows(stored, is_whole=False))
        return number + len(codes)

    def rows(self, codes: Ints) -> KeyedRows:
        """All rows of these codes (sorted, each once), in the order of their codes."""
        rows = self.table.read_rows(codes)
        rows = rows if self.keep_duplicates else merge_equal_rows(rows)
        return rows.where(rows.weights > 0)

    def group_members(self, keys: pa.RecordBatch, codes: Ints) -> tuple[GroupedRows, Ints]:
        """All rows of these groups, in the order of arrival, and which of the groups have any: those it numbers."""
        rows = self.rows(np.unique(codes))
        rows = rows.take(np.argsort(rows.attributes[NUMBER], kind="stable"))
        ids = np.zeros(len(rows), np.int64)
        if self.keys and len(rows):
            requested = pa.Table.from_batches([keys])
            both = concat_tables([requested, pa.Table.from_batches([rows.table]).select(list(self.keys))])
            numbers = key_ids(to_record_batch(both), self.keys)
            place = np.full(int(numbers.max()) + 1, -1)
            place[numbers[: len(codes)]] = np.arange(len(codes))
            ids = place[numbers[len(codes) :]]
            # Equal codes need not be equal keys.
            rows, ids = rows.where(ids >= 0), ids[ids >= 0]
        present, ids = np.unique(ids, return_inverse=True)
        was_stored = np.zeros(len(present), np.bool_)
        return GroupedRows(rows.table, ids.astype(np.int64), len(present), rows.weights, was_stored), present


def merge_equal_rows(rows: KeyedRows, *, is_whole: bool = True) -> KeyedRows:
    """Rows in the order of their codes with equal ones as one: their weights added, and the last number.

    Those of weight zero are gone, if these are all the rows there are. If not, they say where a row came last that went
    and came again in between.
    """
    if len(rows) < 2:
        return rows.where(rows.weights != 0) if is_whole else rows
    is_repeat = rows.codes[1:] == rows.codes[:-1]
    shared = np.append(is_repeat, False) | np.append(False, is_repeat)
    weights, numbers = rows.weights.copy(), rows.attributes[NUMBER].copy()
    positions, first = np.flatnonzero(shared), np.zeros(0, np.int64)
    if positions.size:
        repeated = rows.table.take(pa.array(positions))
        # The code follows from other columns.
        ids = row_ids(repeated.drop_columns([CODE]) if repeated.num_columns > 1 else repeated)
        first = first_positions(ids)
        totals, last = np.zeros(first.size, np.int64), np.full(first.size, LOWEST)
        np.add.at(totals, ids, weights[positions])
        np.maximum.at(last, ids, numbers[positions])
        weights[positions] = 0
        weights[positions[first]], numbers[positions[first]] = totals, last
    is_retained = weights != 0 if is_whole else ~shared
    if not is_whole:
        is_retained[positions[first]] = True
    return rows.with_attributes(**{WEIGHT: weights, NUMBER: numbers}).where(is_retained)


OWN, ARRIVAL = "#own", "#arrival"
"""The session that a row brought, and its arrival number, which distinguishes equal rows."""


def move_rows(
    grouping: GroupByOperator, rows: pa.RecordBatch, members: Members, ended: int, number: int
) -> pa.RecordBatch:
    """Changes: arrivals in the sessions they fall into, and what that means for the rows of their keys that are there.

    ``ended``: sessions up to there have ended, and no row comes to them. ``number`` is that of the first arrival.
    """
    assert grouping.session is not None
    codes = _key_codes(grouping, rows)
    stored = members.rows(np.unique(codes))
    stored = stored.where(stored.times[END] > ended)
    arrivals = number + np.arange(codes.size)
    computed = {OWN: rows.column(grouping.session), ARRIVAL: pa.array(arrivals), CODE: pa.array(codes)}
    names = [name for name in members.table.layout.columns if name != END]
    new = pa.table({name: computed[name] if name in computed else rows.column(name) for name in names})
    before = to_record_batch(concat_tables([pa.Table.from_batches([stored.table]).select(names), new]))
    after = before.set_column(names.index(grouping.session), grouping.session, _merge_sessions(grouping, before))
    is_new = np.arange(len(stored) + codes.size) >= len(stored)
    sessions = [session_bounds(version.column(grouping.session)) for version in (before, after)]
    is_moved = ~is_new & ((sessions[0][0] != sessions[1][0]) | (sessions[0][1] != sessions[1][1]))
    # Rows that move together keep their order: that of arrival.
    order = np.argsort(as_int64(before.column(ARRIVAL)), kind="stable")
    retracted, inserted = np.flatnonzero(is_moved), order[(is_new | is_moved)[order]]
    changes = pa.concat_tables([pa.table(before.take(pa.array(retracted))), pa.table(after.take(pa.array(inserted)))])
    weights = np.where(np.arange(retracted.size + inserted.size) < retracted.size, -1, 1)
    return to_record_batch(changes.append_column(WEIGHT, pa.array(weights)))


def session_bounds(session: pa.StructArray) -> tuple[Ints, Ints]:
    """The starts and the ends of sessions."""
    return as_int64(pc.struct_field(session, [0])), as_int64(pc.struct_field(session, [1]))


def _key_codes(grouping: GroupByOperator, rows: pa.RecordBatch) -> Ints:
    """The codes of keys, without their sessions."""
    if grouping.code is not None:
        return as_int64(rows.column(grouping.code))
    others = grouping.other_keys
    return row_codes(rows, others) if others else np.zeros(len(rows), np.int64)


def _merge_sessions(grouping: GroupByOperator, rows: pa.RecordBatch) -> pa.StructArray:
    """The session of each row, out of those that the rows have brought."""
    own, others = rows.column(OWN), grouping.other_keys
    keys = key_ids(rows, others) if others else np.zeros(len(rows), np.int64)
    starts, ends = session_bounds(own)
    order = np.lexsort((starts, keys))
    begins = _is_session_start(keys[order], starts[order], ends[order])
    first, number = np.flatnonzero(begins), np.cumsum(begins) - 1
    session_starts, session_ends = np.empty((2, len(order)), np.int64)
    session_starts[order] = starts[order][first][number]
    session_ends[order] = np.maximum.reduceat(ends[order], first)[number]
    fields = [own.type.field(0), own.type.field(1)]
    parts = [
        pa.array(each).cast(field.type) for each, field in zip((session_starts, session_ends), fields, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=fields)


def _is_session_start(keys: Ints, starts: Ints, ends: Ints) -> Bools:
    """A mask of the rows that begin a session; they are in the order of their keys, and then of their starts.

    >>> _is_session_start(np.array([0, 0, 0, 1]), np.array([1, 5, 9, 2]), np.array([6, 7, 12, 5])).tolist()
    [True, False, True, True]
    """
    # The highest end so far of each key: ends as their ranks, so that those of a later key are always higher.
    values, ranks = np.unique(ends, return_inverse=True)
    _, places = np.unique(keys, return_inverse=True)
    highest = values[np.maximum.accumulate(places * values.size + ranks) - places * values.size]
    begins = np.ones(keys.size, np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > highest[:-1])
    return begins
