"""One batch of an interval join in one shard: what is new, what of the state it touches, what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.marks import Watermarks
from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Report, StateOverflowError, Store
from watersmeet.joins.core.port import Port
from watersmeet.joins.state.runs import (
    DIRECTORY,
    Directory,
    Entry,
    Rows,
    as_int64,
    merged,
    put_flags,
    put_run,
    read_flags,
    read_run,
    remove_run,
)

if TYPE_CHECKING:
    from watersmeet.joins.interval.operator import IntervalJoin

MERGE_AT = 4
"""So many runs of about one size become one: a row is rewritten once per size it passes through."""
SMALLEST_TIER = 4_096
LARGEST_MERGED = 1_000_000
"""Runs grow no larger by merging, so that expired runs can be dropped whole."""


ROWS_PER_PIECE = 262_144
"""So many joined rows come out at once: a column of them must stay below the 2 GiB that Arrow allows it."""

LATE_COLUMN, LATE_BY = "#late_column", "#late_by"
"""What a late row shows besides its own columns: the mark it missed, and by how much (NULL: its side had ended)."""


@dataclass
class _Held:
    """Rows of one side during a step: a run with its flags, or the rows that are new."""

    rows: Rows
    matched: Bools | None = None
    changed: bool = False

    def mark(self, positions: Ints) -> Ints:
        """Note that these rows have matched; returns those that had not before."""
        if self.matched is None:
            return positions[:0]
        first = np.unique(positions[~self.matched[positions]])
        if first.size:
            self.matched[first] = True
            self.changed = True
        return first

    def where(self, keep: Bools) -> _Held:
        """Only the rows for which ``keep`` is true."""
        return _Held(self.rows.where(keep), None if self.matched is None else self.matched[keep])


class IntervalBatch:
    """A step in progress. Its methods are called once each, in the order in which they stand here."""

    def __init__(
        self,
        join: IntervalJoin,
        store: Store,
        directory: Directory,
        before: Watermarks,
        after: Watermarks,
        active: Marks,
    ) -> None:
        self.join = join
        self.store = store
        self.entries = [list(entries) for entries in directory.entries]
        self.emitted_before = directory.emitted
        self.owner = directory.owner
        self.before, self.after = before, after
        self.active = active
        self.new: dict[int, _Held] = {}
        self.touched: dict[str, _Held] = {}
        self.out: list[pa.Table] = []
        self.late: list[tuple[int, pa.Table]] = []
        self.counts = {"rows": [0, 0], "late": [0, 0], "padded": [0, 0], "state": [0, 0], "dropped": [0, 0]}
        self.matches = 0
        self.written = 0
        self.kept: dict[str, int] = {}

    def admit(self, port: int, table: pa.Table) -> None:
        """Sort the arrivals of a port into late rows, rows that can never match, and rows that may."""
        side, layout = self.join.sides[port], self.join.layouts[port]
        self.counts["rows"][port] += table.num_rows
        rows = layout.rows(table)
        late = self.before.is_late(rows.times, len(rows))
        dead = ~side.alive(table, side.time)
        if late.any():
            self.counts["late"][port] += int(late.sum())
            if side.late:
                self.keep_late(port, table, late)
        if dead.any():
            self.pad(port, rows.where(dead & ~late))
        alive = layout.sorted(rows.where(~(late | dead)))
        if len(alive):
            self.new[port] = _Held(alive, np.zeros(len(alive), np.bool_) if self.join.tracked[port] else None)

    def keep_late(self, port: int, table: pa.Table, late: Bools) -> None:
        """Hand out late rows with the mark they missed and by how much."""
        rows = table.filter(pa.array(late))
        times = {name: as_int64(rows.column(name).combine_chunks()) for name in self.join.sides[port].times}
        column, by = self.before.missed(times, rows.num_rows)
        shown = rows.select(list(self.join.sides[port].late))
        self.late.append((port, shown.append_column(LATE_COLUMN, column).append_column(LATE_BY, by)))

    def meet(self) -> Iterator[pa.Table]:
        """Let the new rows meet the state of the other side, and each other; gives the joined rows as they come."""
        for port, new in self.new.items():
            for entry in self.entries[1 - port]:
                if self.join.may_meet(port, new.rows, entry):
                    old = self.held(1 - port, entry)
                    yield from self.join_rows(*((new, old) if port == LEFT else (old, new)), port)
        if len(self.new) == 2:
            yield from self.join_rows(self.new[LEFT], self.new[RIGHT], LEFT)

    def join_rows(self, left: _Held, right: _Held, probe: int) -> Iterator[pa.Table]:
        """What meets; and note who has matched."""
        for found in self.join.pairs(left.rows, right.rows, probe):
            first = left.mark(found.probe)
            right.mark(found.build)
            if self.join.kind == "semi":
                self.matches += int(first.size)
                yield self.joined(_columns(left.rows, self.join.left).take(pa.array(first)).columns, [])
            elif self.join.kind != "anti":
                self.matches += int(found.probe.size)
                mine = _columns(left.rows, self.join.left).take(pa.array(found.probe))
                theirs = _columns(right.rows, self.join.right).take(pa.array(found.build))
                yield self.joined(mine.columns, theirs.columns)

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
                    self.forget(port, entry)
                else:
                    remaining.append(entry)
            self.entries[port] = remaining
        for port, new in self.new.items():
            gone = self.after.is_expired(new.rows.times, len(new.rows))
            if gone.any():
                self.pad_alone(port, new, gone)
                self.new[port] = new.where(~gone)
            rows = self.new[port].rows
            if len(rows):
                self.count_kept(port, len(rows), {name: int(times.min()) for name, times in rows.times.items()})

    def survivors(self, port: int, entry: Entry) -> int:
        """How many rows of a run that has begun to expire are still alive."""
        rows = self.held(port, entry).rows
        alive = ~self.after.is_expired(rows.times, len(rows))
        if alive.any():
            self.count_kept(
                port, int(alive.sum()), {name: int(times[alive].min()) for name, times in rows.times.items()}
            )
        return int(alive.sum())

    def pad_expired(self, port: int, held: _Held) -> None:
        """Pad the rows that expire in this batch and never matched."""
        times, size = held.rows.times, len(held.rows)
        self.pad_alone(port, held, self.after.is_expired(times, size) & ~self.before.is_expired(times, size))

    def pad_alone(self, port: int, held: _Held, leaving: Bools) -> None:
        """Pad those of the leaving rows that never matched, if their side is preserved."""
        if self.join.preserved[port] and held.matched is not None:
            self.pad(port, held.rows.where(leaving & ~held.matched))

    def store_rows(self, held: _Held) -> list[Entry]:
        """Store rows as a run of its own; no rows, no run."""
        if not len(held.rows):
            return []
        entry = Entry.of(held.rows)
        put_run(self.store, self.owner, entry, held.rows, held.matched)
        self.written += len(held.rows)
        self.touched[entry.name] = _Held(held.rows, held.matched)
        return [entry]

    def forget(self, port: int, entry: Entry) -> None:
        """Remove a run from the state."""
        remove_run(self.store, self.owner, entry, flagged=self.join.tracked[port])
        self.touched.pop(entry.name, None)

    def limit(self) -> None:
        """Keep no more rows than the shard may: fail, or drop those with the earliest times."""
        limit, kept = self.join.max_rows, self.counts["state"]
        if limit is None or sum(kept) <= limit:
            return
        if self.join.overflow == "fail":
            raise StateOverflowError((kept[LEFT], kept[RIGHT]), limit)
        held = [(port, entry, self.held(port, entry)) for port in (LEFT, RIGHT) for entry in self.entries[port]]
        parts = [*held, *((port, None, new) for port, new in self.new.items())]
        alive = [~self.after.is_expired(part.rows.times, len(part.rows)) for _, _, part in parts]
        times = np.concatenate([part.rows.times[self.join.layouts[port].sort_time] for port, _, part in parts])
        ranked = np.where(np.concatenate(alive), times, HIGHEST)
        oldest = np.zeros(len(times), np.bool_)
        oldest[np.argsort(ranked, kind="stable")[: sum(kept) - limit]] = True
        ends = np.cumsum([len(part.rows) for _, _, part in parts])
        for (port, entry, part), drop, lives in zip(parts, np.split(oldest, ends[:-1]), alive, strict=True):
            if drop.any():
                self.counts["dropped"][port] += int(drop.sum())
                self.counts["state"][port] -= int(drop.sum())
                self.pad_alone(port, part, drop)
                self.replace(port, entry, part.where(lives & ~drop))

    def replace(self, port: int, entry: Entry | None, rest: _Held) -> None:
        """Let the rest of a run, or of the new rows, take its place."""
        if entry is None:
            self.new[port] = rest
            return
        self.forget(port, entry)
        position = self.entries[port].index(entry)
        self.entries[port][position : position + 1] = self.store_rows(rest)

    def keep(self) -> None:
        """Store the new rows that live on, and merge runs that have become many."""
        for port, new in self.new.items():
            self.entries[port] += self.store_rows(new)
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
            matched = (
                np.concatenate([h.matched for h in held if h.matched is not None])[order][alive]
                if self.join.tracked[port]
                else None
            )
            rows = rows.where(alive)
            one = Entry.of(rows)
            put_run(self.store, self.owner, one, rows, matched)
            self.written += len(rows)
            for entry in group:
                remove_run(self.store, self.owner, entry, flagged=matched is not None)
            entries = [
                one if entry is group[0] else entry for entry in entries if entry is group[0] or entry not in group
            ]
        return entries

    def finish(self) -> Emission:
        """Store the directory and hand out what came of the batch."""
        join = self.join
        bounded = frozenset(bound.column for bound in join.bounds)
        watermarks = self.after.emitted(join.times, bounded, self.kept, self.emitted_before)
        entries = (tuple(self.entries[LEFT]), tuple(self.entries[RIGHT]))
        self.store.put(
            DIRECTORY, Directory(entries, self.after.received, watermarks, self.active, self.owner).to_bytes()
        )
        numbers = {name: (values[LEFT], values[RIGHT]) for name, values in self.counts.items()}
        report = Report(matched=self.matches, watermarks=watermarks, written=self.written, **numbers)
        return Emission(tuple(self.out), tuple(self.late), report)

    def held(self, port: int, entry: Entry) -> _Held:
        """A run of the state, read once per step."""
        held = self.touched.get(entry.name)
        if held is None:
            matched = read_flags(self.store, entry) if self.join.tracked[port] else None
            held = self.touched[entry.name] = _Held(
                read_run(self.store, self.owner, entry, self.join.layouts[port]), matched
            )
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
        self.out.append(self.joined(*((mine, nulls) if port == LEFT else (nulls, mine))))

    def joined(self, left: list[pa.Array], right: list[pa.Array]) -> pa.Table:
        """Rows of the result from the columns of both sides."""
        return pa.Table.from_arrays([*left, *right], names=[*self.join.left.columns, *self.join.right.columns])


def _columns(rows: Rows, side: Port) -> pa.RecordBatch:
    return rows.table.select(list(side.columns))


def _tier(rows: int) -> int:
    return 0 if rows <= SMALLEST_TIER else 1 + int(np.log(rows / SMALLEST_TIER) / np.log(MERGE_AT))
