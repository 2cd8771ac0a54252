"""The groups of a shard, and the rows of groups for aggregates that must read all of them.

Invariants. A run has each group at most once, and only neighbours are merged. A deleted group is stored as one without
rows until no older run can have it. Blocks whose windows have all closed are dropped whole: their groups are never read
again.

Groups of format 1, in which sums of doubles were doubles, are converted when read. ``sum(x)#1`` was the sum, and
continues as the exact value of that double; ``moments(x)#1`` and ``#2`` were the mean and the sum of squared
deviations. The type of these columns gives the format of a block, so no block is rewritten for it.

Groups are a spine with their accumulators, in which the newest run that has a group wins. Rows are `Members`.

``max`` cannot retract a row without the others, and ``count(DISTINCT x)`` must know which values it has seen. For such
aggregates the state holds the columns they read: equal rows as one with their number, as in a table, and with the
number of their last arrival, which orders the rows of a group. A row that is inserted and retracted leaves no trace, in
whatever batches.

Invariants of members. Equal rows of a group have equal codes, so rows that cancel out share a code. A group whose
window has closed is never read again.

Sessions are windows that grow as their rows arrive. A row brings a session from its time to a gap behind it, and
sessions of one key that overlap or touch are one. All rows of an open session are stored in the `Members`, each with
the session that it brought and its arrival number. When a batch changes the bounds of a session, its rows move from one
group to another: the grouping sees changes of a table and does not know about sessions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import WEIGHT, concat_tables, first_positions, key_ids, row_codes
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.exact_sums import UNIT, Doubles, add_doubles
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, Pairs, as_int64, match, sort_order
from watersmeet.operators.group.fold import GroupedRows
from watersmeet.operators.state.layout import Budget, FinalityBound, KeyedRows, RowLayout, concat_rows, to_record_batch
from watersmeet.operators.state.spine import ShardState, Spine
from watersmeet.operators.state.table import BUDGET as MEMBERS_BUDGET
from watersmeet.operators.state.table import CODE, NUMBER, StateTable, merge_equal_rows

if TYPE_CHECKING:
    from watersmeet.operators.group.kernel import GroupByOperator

_BITS = 28
"""A count with more bits is split, as it cannot be a weight."""


def upgrade_groups(groups: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with exact sums; those that have them are left as they are."""
    columns = dict(zip(groups.schema.names, groups.columns, strict=True))
    for name, column in list(columns.items()):
        if pa.types.is_float64(column.type) and name.endswith(")#1"):
            prefix = name.removesuffix("1")
            if name.startswith("sum("):
                columns |= _upgrade_sum(columns, prefix)
            elif name.startswith("moments("):
                columns |= _upgrade_moments(columns, prefix)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _upgrade_sum(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    total = _to_doubles(columns[f"{prefix}1"])
    places = np.arange(len(total))
    # A sum that is infinite or NaN stays so.
    kinds = (np.isnan(total), np.isposinf(total), np.isneginf(total))
    non_finite = {f"{prefix}{n}": _add_flags(columns[f"{prefix}{n}"], kind) for n, kind in enumerate(kinds, 2)}
    return {f"{prefix}1": add_doubles(pa.nulls(len(total)), places, total, np.ones_like(places)), **non_finite}


def _upgrade_moments(columns: dict[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    mean, squares = _to_doubles(columns[f"{prefix}1"]), _to_doubles(columns[f"{prefix}2"])
    finite = np.isfinite(mean) & np.isfinite(squares)
    mean, squares = np.where(finite, mean, 0.0), np.where(finite, squares, 0.0)
    count = columns[f"{prefix}0"].to_numpy() - columns[f"{prefix}3"].to_numpy()
    places = np.arange(len(mean))
    # The sum of squares is that of what values are off their mean, and the square of the mean for each.
    deviations = add_doubles(pa.nulls(len(mean)), places, squares, np.ones_like(places), up=-UNIT)
    return {
        f"{prefix}1": _add_repeated(pa.nulls(len(mean)), places, mean, count, 1),
        f"{prefix}2": _add_repeated(deviations, places, mean, count, 2),
        f"{prefix}3": _add_flags(columns[f"{prefix}3"], ~finite),
    }


def _add_repeated(old: pa.Array, places: Ints, values: Doubles, counts: Ints, power: Literal[1, 2]) -> pa.Array:
    """Sums, to which values, or their squares, are added so many times."""
    for above in range(0, 63, _BITS):
        part = (counts >> above) & (2**_BITS - 1)
        if part.any():
            old = add_doubles(old, places, values, part, power=power, up=above)
    return old


def _add_flags(count: pa.Array, flags: Bools) -> pa.Array:
    return pa.array(count.to_numpy() + flags)


def _to_doubles(array: pa.Array) -> Doubles:
    return array.to_numpy(zero_copy_only=False)


END, COUNT = "#end", "count()#0"
"""The stored columns of a group besides its keys, its code and other accumulators: the end of its window in
microseconds, if it has one, and its number of rows.
"""

KEEPS_ZERO_SIGN = "signed"
"""A number of the directory: ``min``, ``max``, ``first``, ``last`` and the like show -0.0 as such, and keys show 0.0
for it at every depth. A state without it has shown 0.0 for -0.0 as a value, and -0.0 inside structs and arrays as a
key. It continues to do so, so that retractions equal the emitted rows.
"""

TYPES = "types"
"""An entry of the directory's numbers: the Arrow schema of what the aggregates read, in base64, where groups are
emitted once. A batch without arrivals may close groups, and their values depend on these types.
"""


BUDGET = Budget(block=65_536, in_order=True, chunk=262_144)


class _GroupLayout(RowLayout):
    """The layout of groups, which also reads format 1."""

    def rows(self, table: pa.Table | pa.RecordBatch) -> KeyedRows:
        """The table's columns as rows; sums of doubles stored as doubles become exact."""
        return super().rows(upgrade_groups(to_record_batch(table)))


def open_groups(
    state: ShardState, keys: Sequence[str], accumulators: Sequence[str], finality: FinalityBound | None
) -> Spine:
    """The groups of a shard; ``finality``: which of them have ended, by their windows or a key; None: none ever does.

    Without arrivals it is not known which accumulators there are; groups can then be dropped, but not merged.
    """

    def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
        stay = is_newest(rows, keys)
        if finality is not None:
            stay &= finality.is_open(rows)
        return rows.where(stay & ~is_empty(rows.table, keys) if is_oldest else stay)

    times = () if finality is None else (finality.time,)
    # Columns that are not keys follow them.
    layout = _GroupLayout(tuple(dict.fromkeys((*keys, *accumulators, CODE, *times))), times, code=CODE)
    return state.spine("groups", layout, BUDGET if accumulators else replace(BUDGET, merge_at=sys.maxsize), alive)


def find_groups(
    spine: Spine, keys: pa.RecordBatch, codes: Ints, ends: Ints | None = None
) -> tuple[pa.RecordBatch | None, Ints]:
    """Stored groups, and for each of these groups its position among them; -1: not stored.

    The groups are distinct and sorted by code. ``ends``: of sessions, since all those of a key share a code.
    """
    places = np.full(len(codes), -1)
    parts: list[KeyedRows] = []
    count, missing = 0, np.arange(len(codes))
    for run in reversed(spine.runs):
        for block in run:
            first = np.searchsorted(codes[missing], block.lowest_code, "left")
            queried = missing[first : np.searchsorted(codes[missing], block.highest_code, "right")]
            if queried.size:
                rows, _, probes = spine.find(block, codes[queried])
                pairs = _match_groups(rows, keys, codes, queried if probes is None else queried[probes], ends)
                parts.append(rows.take(pairs.build))
                places[pairs.probe] = count + np.arange(pairs.probe.size)
                count += pairs.probe.size
        # Whatever older runs have of these groups counts no longer.
        missing = missing[places[missing] < 0]
    if not parts:
        return None, places
    table = concat_rows(parts).table
    present = np.flatnonzero(places >= 0)
    places[present[is_empty(table, keys.schema.names)[places[present]]]] = -1
    return table, places


def is_empty(groups: pa.RecordBatch, keys: Sequence[str]) -> Bools:
    """A mask of the groups that have no rows left and disappear; the one without keys never does."""
    count = as_int64(groups.column(COUNT))
    return count == 0 if keys else np.zeros(len(count), np.bool_)


def _match_groups(rows: KeyedRows, keys: pa.RecordBatch, codes: Ints, queried: Ints, ends: Ints | None) -> Pairs:
    """The pairs of queried groups and rows with equal keys."""
    if ends is None or END not in rows.times:
        candidates = _match_codes(rows.codes, codes[queried])
    else:
        places = _match_codes(rows.codes, np.unique(codes[queried])).build
        places = places[sort_order(rows.codes[places], rows.times[END][places])]
        lasts = ends[queried]
        candidates = match(rows.codes[places], rows.times[END][places], codes[queried], lasts, lasts)
        candidates = Pairs(candidates.probe, places[candidates.build])
    pairs = Pairs(queried[candidates.probe], candidates.build)
    for name in keys.schema.names:
        values = keys.column(name).take(pa.array(pairs.probe))
        pairs = pairs.where(
            null_safe_equal(values, rows.table.column(name).take(pa.array(pairs.build)).cast(values.type))
        )
    return pairs


def _match_codes(codes: Ints, queried: Ints) -> Pairs:
    return match(codes, np.zeros(len(codes), np.int64), queried, *np.zeros((2, queried.size), np.int64))


def is_newest(rows: KeyedRows, keys: Sequence[str]) -> Bools:
    """A mask of the rows, ordered by code and older first among equals, that are the last of their groups."""
    is_repeat = rows.codes[1:] == rows.codes[:-1]
    several = np.flatnonzero(np.append(is_repeat, False) | np.append(False, is_repeat))[::-1]
    newest = np.ones(len(rows), np.bool_)
    if several.size:
        # Equal codes need not be equal keys.
        first = first_positions(key_ids(rows.table.take(pa.array(several)), keys))
        newest[several] = False
        newest[several[first]] = True
    return newest


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
        return Members(StateTable(state.spine("members", layout, MEMBERS_BUDGET, alive)), tuple(keys), keep_duplicates)

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
