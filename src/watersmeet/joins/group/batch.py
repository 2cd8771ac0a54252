"""One batch of a grouping in one shard: which groups it touches, what they were, what they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import COPIES, WEIGHT, consolidated, firsts, joined_tables, key_ids, row_codes
from watersmeet.joins.core.condition import same_at
from watersmeet.joins.core.marks import postponed
from watersmeet.joins.core.matching import HIGHEST, Bools, Ints, stable_order
from watersmeet.joins.core.operator import Emission, Marks, StateOverflowError, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.group.aggregates import DISTINCT, Function, function_of
from watersmeet.joins.group.fold import (
    Count,
    Fold,
    Grouped,
    fold_of,
    looks_same,
    numbers,
    plain_floats,
    plain_keys,
)
from watersmeet.joins.group.groups import CODE, END, SIGNED, EndCounts, find, groups_of, is_gone
from watersmeet.joins.group.members import Members
from watersmeet.joins.group.sessions import ARRIVAL, OWN, bounds, moved
from watersmeet.joins.group.values import values
from watersmeet.joins.state.layout import NO_MARK, Layout, Over, Rows, as_int64, one_batch
from watersmeet.joins.state.spine import Spine
from watersmeet.joins.state.table import keep_within

if TYPE_CHECKING:
    from watersmeet.joins.group.operator import GroupBy

Accumulators = Sequence[Sequence[pa.Array]]
"""The accumulators of some groups, fold by fold."""


@dataclass(frozen=True)
class Folding:
    """The folds that aggregates need, each once: the first counts rows.

    ``uses`` says for each aggregate which fold it takes its value from, ``types`` what the type of its first column is;
    ``kept`` what the accumulators of each fold are called in a state; ``whole`` which folds see all rows of a group.
    """

    folds: tuple[Fold, ...] = ()
    uses: tuple[int, ...] = ()
    types: tuple[pa.DataType | None, ...] = ()
    kept: tuple[str, ...] = ()
    whole: frozenset[Fold] = frozenset()

    @staticmethod
    def of(grouping: GroupBy, schema: pa.Schema) -> Folding:
        """What the aggregates need for arrivals with that schema."""
        aggregates = grouping.aggregates
        types = tuple(schema.field(part.columns[0]).type if part.columns else None for part in aggregates)
        wanted = [fold_of(a.function, a.columns, type_) for a, type_ in zip(aggregates, types, strict=True)]
        # Under names of their own, so that a state outlives the order and the names of what is shown.
        names = grouping.canonical
        told: dict[Fold, str] = {Count(()): "count()"}
        told |= {
            fold: f"{_kept_by(a.function)}({', '.join(names.listed(a.columns))})"
            for fold, a in zip(wanted, aggregates, strict=True)
        }
        folds = tuple(told)
        whole = frozenset(fold for fold, a in zip(wanted, aggregates, strict=True) if a in grouping.seeing_all)
        return Folding(folds, tuple(folds.index(fold) for fold in wanted), types, tuple(told.values()), whole)

    @property
    def names(self) -> list[list[str]]:
        """The names of the accumulators, fold by fold."""
        kept = zip(self.folds, self.kept, strict=True)
        return [[f"{name}#{place}" for place in range(fold.width)] for fold, name in kept]


def _kept_by(function: str) -> str:
    """What an aggregate shares its accumulators with: those of its fold, or only its own kind."""
    found = function_of(function)
    if found.is_distinct:
        return f"{found.fold}{DISTINCT}"
    return found.name if found.fold in ("count", "bits") else found.fold


@dataclass(frozen=True)
class Groups:
    """The groups that a batch touches, in the order of their codes, what they were before and what they are now.

    ``known``: which were there before; the one without keys is from the first batch on, rows or none. ``ends``: of
    their windows, the highest number without.
    """

    keys: pa.RecordBatch
    codes: Ints
    ends: Ints
    known: Bools
    old: Accumulators
    new: Accumulators

    def shown(self) -> tuple[Bools, Bools]:
        """Which the table showed before, and which it shows now: those with rows; without keys, the one there is."""
        if not self.keys.num_columns:
            return self.known, np.ones(len(self.codes), np.bool_)
        return self.known & (numbers(self.old[0][0]) > 0), numbers(self.new[0][0]) > 0


def step(grouping: GroupBy, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
    """Process one batch of one shard (the definition is in `operator`)."""
    shard = Shard(grouping, store, marks)
    over = _over(grouping, shard)
    rows = _in_time(grouping, shard, arrivals.get(0))
    folding = Folding() if rows is None else Folding.of(grouping, rows.schema)
    names = [name for fold in folding.names for name in fold]
    spine = groups_of(shard.state, grouping.keys, names, over)
    counts = EndCounts.of(shard.state.directory.numbers)
    number = int(shard.state.directory.numbers.get("number", 0))
    signed = shard.state.directory.is_blank or bool(shard.state.directory.numbers.get(SIGNED))
    members = _members(grouping, shard, over)
    changes: tuple[pa.Table, ...] = ()
    if rows is not None:
        if grouping.session is not None and members is not None and grouping.time is not None:
            before = shard.before.received.get(grouping.time, NO_MARK)
            rows = moved(grouping, rows, members, before, number)
        groups = _folded(grouping, folding, rows, spine, members, number, begun=bool(counts.counts), signed=signed)
        number += rows.num_rows
        stored = _stored(spine.layout, groups)
        gone = is_gone(stored.table, grouping.keys)
        goes_on = np.ones(len(stored), np.bool_) if over is None else over.left(stored)
        # What has ended with this batch is never asked for again.
        spine.add(stored.where((groups.known | ~gone) & goes_on))
        counts = counts.changed(groups.ends, (~gone).astype(np.int64) - groups.known)
        changes = _changes(grouping, folding, groups, goes_on, signed=signed)
    elif not grouping.keys and not counts.counts:
        counts, changes = EndCounts({int(HIGHEST): 1}), (_of_nothing(grouping),)
    spine.forget(over)
    if members is not None:
        members.table.spine.forget(over)
    if grouping.settled is not None and int(HIGHEST) in counts.counts and rows is not None:
        # The state is from when nobody asked for that time, or its shards were others.
        counts = _recount_ends(spine, grouping.settled)
    if over is not None:
        counts = counts.open_after(over.mark)
        if grouping.max_rows is not None and counts.grain > 1 and counts.total > grouping.max_rows and rows is not None:
            # The total may be too high by groups that have ended.
            counts = _recount_ends(spine, over.time).open_after(over.mark)
    total = counts.total
    if grouping.max_rows is not None and total > grouping.max_rows:
        raise StateOverflowError((total,), grouping.max_rows)
    if members is not None:
        keep_within([members.table], grouping.max_rows)
    shard.tally.matched = sum(table.num_rows for table in changes)
    told = {**counts.numbers, **({"number": number} if members is not None else {})}
    told |= {SIGNED: 1} if signed else {}
    return shard.close(_settled(grouping, shard.after.received), changes, (total,), told)


def _over(grouping: GroupBy, shard: Shard) -> Over | None:
    """Which groups have ended with this batch; None: none ever does."""
    if grouping.ending is None:
        return None
    return Over(grouping.settled or END, shard.after.received.get(grouping.ending, NO_MARK))


def _recount_ends(spine: Spine, time: str) -> EndCounts:
    """How many groups there are by their times, which are told exactly as far as possible."""
    found = EndCounts()
    for rows in spine.merged():
        found = found.changed(np.minimum(rows.times[time], HIGHEST - 1), np.ones(len(rows), np.int64))
    return found


def _settled(grouping: GroupBy, received: Marks) -> Marks:
    """The marks of what the groups are by: those at or before them change no more."""
    if grouping.time is None:
        return {name: received[name] for name, _ in grouping.settles if name in received}
    if grouping.time not in received:
        return {}
    return {name: postponed(received[grouping.time], behind) for name, behind in grouping.settles}


def _members(grouping: GroupBy, shard: Shard, over: Over | None) -> Members | None:
    """The rows of the groups, if an aggregate must see all of them."""
    if grouping.session is not None:
        read = [*(name for part in grouping.aggregates for name in part.columns), OWN, ARRIVAL]
        return Members.of(shard.state, grouping.keys, read, over, apart=False)
    read = [name for part in grouping.seeing_all for name in part.columns]
    # Without rows that are taken back, only a list can tell equal rows apart.
    apart = not grouping.changes and any(function_of(part.function).fold == "list" for part in grouping.seeing_all)
    return Members.of(shard.state, grouping.keys, read, over, apart=apart) if grouping.seeing_all else None


def _in_time(grouping: GroupBy, shard: Shard, table: pa.Table | None) -> pa.RecordBatch | None:
    """What is needed of the arrivals, in order, without those whose windows had ended; None: there is nothing."""
    if table is None:
        return None
    read = (*grouping.keys, *(name for part in grouping.aggregates for name in part.columns))
    further = (
        grouping.code, grouping.position, grouping.window_end, WEIGHT if grouping.changes else None,
        COPIES if COPIES in table.column_names else None,
    )  # fmt: skip
    columns = tuple(dict.fromkeys((*read, *(name for name in further if name is not None))))
    # Without a column to read a batch would not know how many rows it has.
    rows = one_batch(table.select(list(columns or table.column_names[:1])))
    shard.tally.rows[0] = _number_of(rows)
    if grouping.position is not None:
        rows = rows.take(pa.array(np.argsort(as_int64(rows.column(grouping.position)), kind="stable")))
    if grouping.window_end is not None and grouping.time is not None:
        mark = shard.before.received.get(grouping.time, NO_MARK)
        rows = rows.filter(pa.array(as_int64(rows.column(grouping.window_end)) > mark))
        shard.tally.late[0] = shard.tally.rows[0] - _number_of(rows)
    return rows if rows.num_rows else None


def _number_of(rows: pa.RecordBatch) -> int:
    """How many rows they are, those that stand for others counted as these."""
    return int(rows.column(COPIES).to_numpy().sum()) if COPIES in rows.schema.names else rows.num_rows


def _weights(grouping: GroupBy, rows: pa.RecordBatch) -> Ints:
    """How often each row comes or goes."""
    if grouping.is_weighted or COPIES in rows.schema.names:
        return as_int64(rows.column(WEIGHT if grouping.is_weighted else COPIES))
    number: int = rows.num_rows
    return np.ones(number, np.int64)


def _folded(
    grouping: GroupBy,
    folding: Folding,
    rows: pa.RecordBatch,
    spine: Spine,
    members: Members | None,
    number: int,
    *,
    begun: bool,
    signed: bool,
) -> Groups:
    """The groups of these rows, with the rows folded in; ``begun``: this is not the first batch; ``signed``: `SIGNED`.

    Rows that an aggregate must see all of are kept among the ``members``, the first of them with that ``number``.
    """
    ids, first, codes = _grouped(grouping, rows)
    given = _keys(grouping, rows, pa.array(first), signed=signed)
    found, places = find(spine, given, codes)
    known = places >= 0
    keys, old = given, [[pa.nulls(len(places))] * fold.width for fold in folding.folds]
    if found is not None:
        positions = pa.array(places, mask=~known)
        keys = _chosen(given, _keys(grouping, found, positions, signed=signed), known)
        old = [[found.column(name).take(positions) for name in fold] for fold in folding.names]
    weights = _weights(grouping, rows)
    grouped = Grouped(rows, ids, len(codes), weights, known)
    ends = _ends(grouping, rows)[first]
    seen: tuple[Grouped, Ints] | None = None
    if members is not None:
        each = _keys(grouping, rows, pa.array(np.arange(len(ids))), signed=signed)
        kept = {name: rows.column(name) for name in rows.schema.names} | dict(
            zip(grouping.keys, each.columns, strict=True)
        )
        members.add(pa.RecordBatch.from_pydict(kept), codes[ids], ends[ids], weights, number)
        seen = members.grouped(keys, codes)
    new = [
        _whole(fold, seen, grouped) if seen is not None and fold in folding.whole else fold.fold(grouped, before)
        for fold, before in zip(folding.folds, old, strict=True)
    ]
    return Groups(keys, codes, ends, known if grouping.keys else np.full(len(codes), begun), old, new)


def _ends(grouping: GroupBy, rows: pa.RecordBatch) -> Ints:
    """The end of each row's window, or what else a group ends by; the highest number without."""
    if grouping.session is not None:
        return bounds(rows.column(grouping.session))[1]
    if grouping.settled is not None:
        return np.minimum(as_int64(rows.column(grouping.settled)), HIGHEST - 1)
    end = grouping.window_end
    return np.full(len(rows), HIGHEST) if end is None else as_int64(rows.column(end))


def _whole(fold: Fold, seen: tuple[Grouped, Ints], arrived: Grouped) -> list[pa.Array]:
    """The accumulators of a fold over all rows of the groups that rows have ``arrived`` for; NULL: none are left."""
    rows, there = seen
    places = np.full(arrived.groups, -1)
    places[there] = np.arange(there.size)
    if not there.size:
        # The types are those of any row.
        one = np.zeros(1, np.int64)
        rows = Grouped(arrived.table.slice(0, 1), one, 1, one + 1, np.zeros(1, np.bool_))
    positions = pa.array(places, mask=places < 0)
    return [column.take(positions) for column in fold.fold(rows, [pa.nulls(rows.groups)] * fold.width)]


def _grouped(grouping: GroupBy, rows: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
    """For each row the number of its group, for each group its first row and its code; numbers are by code."""
    code = grouping.code if grouping.session is None else CODE
    # Those of sessions are of their other keys.
    if code is not None and grouping.session is None:
        by_code = _by_code(grouping, rows, as_int64(rows.column(code)))
        if by_code is not None:
            return by_code
    ids = key_ids(rows, grouping.keys)
    first = firsts(ids)
    if code is not None:
        codes = as_int64(rows.column(code))[first]
    else:
        # Whether -0.0 is shown as 0.0 makes no difference to a code.
        keys = _keys(grouping, rows, pa.array(first), signed=False)
        codes = row_codes(keys, grouping.keys) if grouping.keys else first
    order = stable_order(codes)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[ids], first[order], codes[order]


def _by_code(grouping: GroupBy, rows: pa.RecordBatch, codes: Ints) -> tuple[Ints, Ints, Ints] | None:
    """The same, if rows with equal codes have equal keys, which is seen more quickly; None: some have not."""
    order = stable_order(codes)
    codes = codes[order]
    again = np.flatnonzero(codes[1:] == codes[:-1]) + 1
    keys = [rows.column(name) for name in grouping.keys]
    if not same_at(keys, order[again], keys, order[again - 1]).all():
        return None
    begins = np.ones(len(codes), np.bool_)
    begins[again] = False
    ids = np.empty(len(codes), np.int64)
    ids[order] = np.cumsum(begins) - 1
    return ids, order[begins], codes[begins]


def _keys(grouping: GroupBy, rows: pa.RecordBatch, positions: pa.Array, *, signed: bool) -> pa.RecordBatch:
    plain = plain_keys if signed else plain_floats
    taken = [plain(rows.column(name).take(positions)) for name in grouping.keys]
    return pa.RecordBatch.from_arrays(taken, names=list(grouping.keys))


def _stored(layout: Layout, groups: Groups) -> Rows:
    """The groups as they are kept."""
    accumulators = (part for fold in groups.new for part in fold)
    columns = [*groups.keys.columns, *accumulators, pa.array(groups.codes), pa.array(groups.ends)]
    names = layout.columns if END in layout.columns else (*layout.columns, END)
    return layout.rows(pa.RecordBatch.from_arrays(columns, names=list(names)))


def _changes(
    grouping: GroupBy, folding: Folding, groups: Groups, goes_on: Bools, *, signed: bool
) -> tuple[pa.Table, ...]:
    """The old rows that are shown no longer, with -1, and the new ones, with 1; ``goes_on``: whose group has not ended.

    Of new rows of groups that have ended, only those that may be among the first that are asked for.
    """
    old, new = (_values(grouping, folding, accumulators, signed=signed) for accumulators in (groups.old, groups.new))
    old = [_like(one, other) for one, other in zip(old, new, strict=True)]
    shown = groups.shown()
    changed = shown[0] != shown[1]
    for one, other in zip(old, new, strict=True):
        # What is equal but not the same bit by bit, deep inside, must be told: it would not cancel out later.
        changed |= True if pa.types.is_nested(other.type) else ~looks_same(one, other)
    leave, come = (changed & some for some in shown)
    come[_left_out(grouping, groups.keys, new, np.flatnonzero(come & ~goes_on))] = False
    tables = [
        _told(grouping, groups.keys, part, some, weight) for part, some, weight in ((old, leave, -1), (new, come, 1))
    ]
    if any(pa.types.is_nested(column.type) for column in new) and all(table.num_rows for table in tables):
        together = joined_tables(tables)
        tables = [consolidated(together, together.column_names[:-1])]
    return tuple(table for table in tables if table.num_rows)


def _left_out(grouping: GroupBy, keys: pa.RecordBatch, columns: Sequence[pa.Array], settled: Ints) -> Ints:
    """Which of the rows at these places, that are settled, will never be among the first that are asked for."""
    if grouping.first is None or not settled.size:
        return settled[:0]
    named = dict(zip([*keys.schema.names, *grouping.extra[:-1]], [*keys.columns, *columns], strict=True))
    asked = dict.fromkeys((*grouping.first.by, *(by.column for by in grouping.first.order)))
    rows = pa.RecordBatch.from_arrays([named[name].take(pa.array(settled)) for name in asked], names=list(asked))
    return settled[~grouping.first.may_have(rows)]


def _values(grouping: GroupBy, folding: Folding, accumulators: Accumulators, *, signed: bool) -> list[pa.Array]:
    """The values of the aggregates."""
    found = [
        values(part.function, type_, accumulators[fold], f"{part.function}({', '.join(part.columns)})")
        for part, type_, fold in zip(grouping.aggregates, folding.types, folding.uses, strict=True)
    ]
    return found if signed else [plain_floats(column) for column in found]


def _told(grouping: GroupBy, keys: pa.RecordBatch, columns: Sequence[pa.Array], some: Bools, weight: int) -> pa.Table:
    rows = pa.Table.from_arrays(
        [*keys.columns, *columns, pa.repeat(pa.scalar(weight, pa.int64()), len(some))],
        names=[*keys.schema.names, *grouping.extra],
    )
    return rows.filter(pa.array(some))


def _of_nothing(grouping: GroupBy) -> pa.Table:
    """What the group of all shows before there are rows, whose types nobody can tell yet."""
    shown = [_empty(function_of(part.function)) for part in grouping.aggregates]
    return _told(grouping, pa.RecordBatch.from_arrays([], names=[]), shown, np.ones(1, np.bool_), 1)


def _empty(function: Function) -> pa.Array:
    """What an aggregate shows of no rows."""
    return pa.nulls(1) if function.nullable else pa.array([[]] if function.gives == "list" else [0])


def _chosen(given: pa.RecordBatch, stored: pa.RecordBatch, is_known: Bools) -> pa.RecordBatch:
    """The keys of groups as they were stored, if they were, so that a row leaves exactly as it came; else as given."""
    positions = pa.array(np.arange(len(is_known)) + np.where(is_known, len(is_known), 0))
    columns = [
        pa.concat_arrays([new, old.cast(new.type)]).take(positions) if _has_floats(new.type) else new
        for new, old in zip(given.columns, stored.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=given.schema.names)


def _has_floats(kind: pa.DataType) -> bool:
    """Whether values may be equal that look different: -0.0 and 0.0."""
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _like(one: pa.Array, other: pa.Array) -> pa.Array:
    return pa.nulls(len(one), other.type) if pa.types.is_null(one.type) else one.cast(other.type)
