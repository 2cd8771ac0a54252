"""Sessions: windows that grow as their rows come, and that become one where they touch.

A row brings a session of its own, from its time to a gap behind it. Sessions of one key that overlap or touch are one.
All rows of a session that has not ended are kept among the `Members`, each with the session it brought and its place in
the order of arrival. When a batch changes the bounds of a session, its rows leave the group that they were in, and come
to another: the grouping sees changes of a table, and knows nothing of sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import WEIGHT, concat_tables, key_ids, row_codes
from watersmeet.operators.core.matching import Bools, Ints, as_int64
from watersmeet.operators.group.groups import CODE, END
from watersmeet.operators.group.members import Members
from watersmeet.operators.state.layout import to_record_batch

if TYPE_CHECKING:
    from watersmeet.operators.group.kernel import GroupByOperator

OWN, ARRIVAL = "#own", "#arrival"
"""The session that a row brought, and its place in the order of arrival, which tells equal rows apart."""


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
    """What the rows of a key are found by, whatever their sessions."""
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
    """Which rows begin a session; they are in the order of their keys, and then of their starts.

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
