"""The interval join: two rows meet when their event times lie within constant bounds of each other.

Definition. A left row l and a right row r are a pair of the result when their keys are equal (NULL never is), the time
bounds hold, the rest of the condition is true, and neither was late. See `reference` for the same in slow and obvious steps.

A batch is one instant of a shard:

1. A new row is late if one of its times is below the mark its column had received before the batch. It is dropped and
   counted, and never padded.
2. A new row that can never match (NULL key, NULL time, own predicate not true) is padded at once if its side is preserved.
3. The other new rows meet what the other side has in state, and each other.
4. The marks of the batch are folded in. Whatever has now expired leaves, new rows included; of a preserved side, the rows
   that never matched leave padded, in this same batch.

Nothing that is in time can satisfy the bounds of a row beyond its limit: that is what the limit says. So an expired row may stay in
its run until the whole run is dropped, and new rows of both sides may all meet, whether they arrive in one batch or in two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.condition import Condition, holds, same
from watersmeet.joins.marks import Watermarks
from watersmeet.joins.matching import Bools, Ints, Pairs, match, shifted
from watersmeet.joins.operator import Emission, Marks, Report, Store
from watersmeet.joins.runs import (
    DIRECTORY,
    Directory,
    Entry,
    Layout,
    Rows,
    merged,
    put_flags,
    put_run,
    read_flags,
    read_run,
    remove_run,
)

Kind = Literal["inner", "left", "right", "full"]
"""Which side is preserved: a row of a preserved side that dies alone is emitted padded with nulls."""

LEFT, RIGHT = 0, 1
PRESERVED: Mapping[Kind, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
}

MERGE_AT = 4
"""So many runs of about one size become one: a row is rewritten once per size it passes through."""
SMALLEST_TIER = 4_096
LARGEST_MERGED = 1_000_000
"""Runs grow no larger by merging, so that expired runs can be dropped whole."""


@dataclass(frozen=True)
class Side:
    """How one side's rows arrive: the names of their Arrow columns.

    - ``columns``: what the result shows of a row, in order
    - ``times``: the watermarked columns (TIMESTAMP, DATE or integers), which are also the names of their marks
    - ``keys``: the key columns; a NULL in one of them never matches. Empty: every row has the same key
    - ``code``: an int64 column that is equal wherever the keys are equal; None without keys
    - ``exact``: equal codes imply equal keys, so that candidates need no second look
    - ``dead``: a boolean column, true where the row's own predicate is not true, so that it can never match; None: all may
    - ``operands``: further columns that the condition reads
    - ``late``: what a late row shows; nothing: late rows are only counted
    """

    columns: tuple[str, ...]
    times: tuple[str, ...]
    keys: tuple[str, ...] = ()
    code: str | None = None
    exact: bool = False
    dead: str | None = None
    operands: tuple[str, ...] = ()
    late: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bound:
    """``column >= other - constant``: rows of ``column``'s side live until the mark of ``other`` minus ``constant`` passes them."""

    column: str
    other: str
    constant: int


@dataclass(frozen=True)
class IntervalJoin:
    """An interval join, ready to run.

    ``left_time`` and ``right_time`` are the pair of columns that the range matcher works on:
    ``lower <= right_time - left_time <= upper``. ``bounds`` says how long rows live; ``condition`` is whatever else must hold.
    """

    kind: Kind
    left: Side
    right: Side
    left_time: str
    right_time: str
    lower: int
    upper: int
    bounds: tuple[Bound, ...]
    condition: Condition | None = None

    def step(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        directory = Directory.from_bytes(store.get(DIRECTORY), 2)
        before = Watermarks.of(directory.received, self.bounds)
        batch = _Batch(self, store, directory, before, before.folded(marks, self.bounds))
        for port, table in arrivals.items():
            batch.admit(port, table)
        batch.meet()
        batch.expire()
        batch.keep()
        return batch.finish()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left and right, by port."""
        return (self.left, self.right)

    @property
    def late_columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a late row of each port shows, if late rows are kept."""
        return (self.left.late, self.right.late)

    @property
    def preserved(self) -> tuple[bool, bool]:
        """Whether a port's rows are emitted padded when they die alone."""
        return PRESERVED[self.kind]

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """What is stored of each side: what the result, the match and the condition still need, each column once."""
        return (_layout(self.left, self.left_time), _layout(self.right, self.right_time))

    def pairs(self, left: Rows, right: Rows, probe: int) -> Pairs:
        """The pairs of a left and a right row for which keys, bounds and condition hold; ``probe`` names the port that asks.

        ``probe`` and ``build`` of the result are positions in ``left`` and ``right``.
        """
        if probe == LEFT:
            times = left.times[self.left_time]
            low, high = shifted(times, self.lower), shifted(times, self.upper)
            found = match(right.codes, right.times[self.right_time], left.codes, low, high)
        else:
            times = right.times[self.right_time]
            low, high = shifted(times, -self.upper), shifted(times, -self.lower)
            found = match(left.codes, left.times[self.left_time], right.codes, low, high)
            found = Pairs(found.build, found.probe)
        if not self.left.exact:
            for mine, theirs in zip(self.left.keys, self.right.keys, strict=True):
                values = left.table.column(mine).take(pa.array(found.probe))
                found = found.where(same(values, right.table.column(theirs).take(pa.array(found.build))))
        return found if self.condition is None else found.where(self._holds(self.condition, left, right, found))

    def _holds(self, condition: Condition, left: Rows, right: Rows, found: Pairs) -> Bools:
        ours = frozenset(self.layouts[LEFT].columns)

        def column(name: str) -> pa.Array:
            rows, positions = (left, found.probe) if name in ours else (right, found.build)
            return rows.table.column(name).take(pa.array(positions))

        return holds(condition, column, len(found.probe))

    def may_meet(self, port: int, rows: Rows, entry: Entry) -> bool:
        """Whether the new rows of ``port`` reach into the times of a run of the other side at all."""
        times = rows.times[self.left_time if port == LEFT else self.right_time]
        lower, upper = (self.lower, self.upper) if port == LEFT else (-self.upper, -self.lower)
        theirs = self.right_time if port == LEFT else self.left_time
        return int(times.min()) + lower <= entry.highest[theirs] and entry.lowest[theirs] <= int(times.max()) + upper


def _layout(side: Side, time: str) -> Layout:
    code = () if side.code is None else (side.code,)
    keys = () if side.exact else side.keys
    return Layout(tuple(dict.fromkeys((*side.columns, *side.times, *keys, *code, *side.operands))), side.times, time, side.code)


@dataclass
class _Held:
    """Rows of one side during a step: a run with its flags, or the rows that are new. Flags are read when first needed."""

    rows: Rows
    matched: Bools | None = None
    changed: bool = False

    def mark(self, positions: Ints) -> None:
        """Note that these rows have matched."""
        if self.matched is not None and not bool(self.matched[positions].all()):
            self.matched[positions] = True
            self.changed = True


class _Batch:
    """One step in progress: what is new, what of the state was touched, what comes out."""

    def __init__(self, join: IntervalJoin, store: Store, directory: Directory, before: Watermarks, after: Watermarks):
        self.join = join
        self.store = store
        self.entries = [list(entries) for entries in directory.entries]
        self.emitted_before = directory.emitted
        self.before, self.after = before, after
        self.new: dict[int, _Held] = {}
        self.touched: dict[str, _Held] = {}
        self.out: list[pa.Table] = []
        self.late: list[tuple[int, pa.Table]] = []
        self.counts = {"rows": [0, 0], "late": [0, 0], "padded": [0, 0], "state": [0, 0]}
        self.matches = 0
        self.kept: dict[str, int] = {}

    def admit(self, port: int, table: pa.Table) -> None:
        """Sort the arrivals of a port into late rows, rows that can never match, and rows that may."""
        side, layout = self.join.sides[port], self.join.layouts[port]
        self.counts["rows"][port] += table.num_rows
        rows = layout.rows(table)
        late = self.before.is_late(rows.times, len(rows))
        dead = _dead(side, layout, table)
        if late.any():
            self.counts["late"][port] += int(late.sum())
            if side.late:
                self.late.append((port, table.select(list(side.late)).filter(pa.array(late))))
        if dead.any():
            self.pad(port, rows.where(dead & ~late))
        alive = layout.sorted(rows.where(~(late | dead)))
        if len(alive):
            self.new[port] = _Held(alive, np.zeros(len(alive), np.bool_) if self.join.preserved[port] else None)

    def meet(self) -> None:
        """Let the new rows meet the state of the other side, and each other."""
        for port, new in self.new.items():
            for entry in self.entries[1 - port]:
                if self.join.may_meet(port, new.rows, entry):
                    old = self.held(1 - port, entry)
                    self.join_rows(*((new, old) if port == LEFT else (old, new)), port)
        if len(self.new) == 2:
            self.join_rows(self.new[LEFT], self.new[RIGHT], LEFT)

    def join_rows(self, left: _Held, right: _Held, probe: int) -> None:
        """Emit what meets and note who has matched."""
        found = self.join.pairs(left.rows, right.rows, probe)
        if not found.probe.size:
            return
        left.mark(found.probe)
        right.mark(found.build)
        self.matches += int(found.probe.size)
        mine = _columns(left.rows, self.join.left).take(pa.array(found.probe))
        theirs = _columns(right.rows, self.join.right).take(pa.array(found.build))
        self.emit(mine.columns, theirs.columns)

    def expire(self) -> None:
        """Drop the runs that have expired whole, and pad the rows of a preserved side that expired alone."""
        for port in (LEFT, RIGHT):
            remaining: list[Entry] = []
            for entry in self.entries[port]:
                if not self.after.expires_any(entry.lowest):
                    self.count_kept(port, entry.rows, entry.lowest)
                    remaining.append(entry)
                    continue
                if self.join.preserved[port]:
                    self.pad_expired(port, self.held(port, entry))
                if self.after.expires_all(entry.highest) or not self.survivors(port, entry):
                    remove_run(self.store, entry, flagged=self.join.preserved[port])
                    self.touched.pop(entry.name, None)
                else:
                    remaining.append(entry)
            self.entries[port] = remaining

    def survivors(self, port: int, entry: Entry) -> int:
        """How many rows of a run that has begun to expire are still alive."""
        rows = self.held(port, entry).rows
        alive = ~self.after.is_expired(rows.times, len(rows))
        if alive.any():
            self.count_kept(port, int(alive.sum()), {name: int(times[alive].min()) for name, times in rows.times.items()})
        return int(alive.sum())

    def pad_expired(self, port: int, held: _Held) -> None:
        """Pad the rows that expire in this batch and never matched."""
        times, size = held.rows.times, len(held.rows)
        newly = self.after.is_expired(times, size) & ~self.before.is_expired(times, size)
        assert held.matched is not None
        self.pad(port, held.rows.where(newly & ~held.matched))

    def keep(self) -> None:
        """Store the new rows that live on, and merge runs that have become many."""
        for port, new in self.new.items():
            gone = self.after.is_expired(new.rows.times, len(new.rows))
            if new.matched is not None:
                self.pad(port, new.rows.where(gone & ~new.matched))
            rows = new.rows.where(~gone)
            if len(rows):
                entry = Entry.of(rows)
                put_run(self.store, entry, rows, None if new.matched is None else new.matched[~gone])
                self.entries[port].append(entry)
                self.count_kept(port, len(rows), entry.lowest)
        for port in (LEFT, RIGHT):
            for entry in self.entries[port]:
                held = self.touched.get(entry.name)
                if held is not None and held.changed and held.matched is not None:
                    put_flags(self.store, entry, held.matched)
            self.entries[port] = self.merge(port, self.entries[port])

    def merge(self, port: int, entries: list[Entry]) -> list[Entry]:
        """The entries with groups of runs of about one size merged into one run each, expired rows left out."""
        tiers: dict[int, list[Entry]] = {}
        for entry in entries:
            tiers.setdefault(_tier(entry.rows), []).append(entry)
        for group in tiers.values():
            if len(group) < MERGE_AT or sum(entry.rows for entry in group) > LARGEST_MERGED:
                continue
            held = [self.held(port, entry) for entry in group]
            rows, order = merged([h.rows for h in held], self.join.layouts[port])
            alive = ~self.after.is_expired(rows.times, len(rows))
            matched = np.concatenate([h.matched for h in held if h.matched is not None])[order][alive] if self.join.preserved[port] else None
            rows = rows.where(alive)
            one = Entry.of(rows)
            put_run(self.store, one, rows, matched)
            for entry in group:
                remove_run(self.store, entry, flagged=matched is not None)
            entries = [one if entry is group[0] else entry for entry in entries if entry is group[0] or entry not in group]
        return entries

    def finish(self) -> Emission:
        """Store the directory and hand out what came of the batch."""
        join = self.join
        columns = (*join.left.times, *join.right.times)
        bounded = frozenset(bound.column for bound in join.bounds)
        watermarks = self.after.emitted(columns, bounded, self.kept, self.emitted_before)
        entries = (tuple(self.entries[LEFT]), tuple(self.entries[RIGHT]))
        self.store.put(DIRECTORY, Directory(entries, self.after.received, watermarks).to_bytes())
        numbers = {name: (values[LEFT], values[RIGHT]) for name, values in self.counts.items()}
        report = Report(matched=self.matches, watermarks=watermarks, **numbers)
        return Emission(tuple(self.out), tuple(self.late), report)

    def held(self, port: int, entry: Entry) -> _Held:
        """A run of the state, read once per step."""
        held = self.touched.get(entry.name)
        if held is None:
            matched = read_flags(self.store, entry) if self.join.preserved[port] else None
            held = self.touched[entry.name] = _Held(read_run(self.store, entry, self.join.layouts[port]), matched)
        return held

    def count_kept(self, port: int, rows: int, lowest: Marks) -> None:
        """Note rows that stay, for the report and for the marks of columns without a bound."""
        self.counts["state"][port] += rows
        for name, time in lowest.items():
            self.kept[name] = min(time, self.kept.get(name, time))

    def pad(self, port: int, rows: Rows) -> None:
        """Emit rows of a preserved side with nulls for the other."""
        if not len(rows) or not self.join.preserved[port]:
            return
        self.counts["padded"][port] += len(rows)
        mine = _columns(rows, self.join.sides[port]).columns
        nulls = [pa.nulls(len(rows))] * len(self.join.sides[1 - port].columns)
        self.emit(*((mine, nulls) if port == LEFT else (nulls, mine)))

    def emit(self, left: list[pa.Array], right: list[pa.Array]) -> None:
        """Add joined rows to what comes out."""
        names = [*self.join.left.columns, *self.join.right.columns]
        self.out.append(pa.Table.from_arrays([*left, *right], names=names))


def _columns(rows: Rows, side: Side) -> pa.RecordBatch:
    return rows.table.select(list(side.columns))


def _dead(side: Side, layout: Layout, table: pa.Table) -> Bools:
    """Which rows can never match: their own predicate is not true, or a key or the matched time is NULL."""
    dead = np.zeros(table.num_rows, np.bool_)
    for name in (*side.keys, layout.sort_time):
        column = table.column(name)
        if column.null_count:
            dead |= column.is_null().to_numpy()
    if side.dead is not None:
        dead |= pc.fill_null(table.column(side.dead), True).to_numpy()
    return dead


def _tier(rows: int) -> int:
    return 0 if rows <= SMALLEST_TIER else 1 + int(np.log(rows / SMALLEST_TIER) / np.log(MERGE_AT))
