"""One batch of a sync join in one shard: what is new, which times it completes or closes, what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.marks import Watermarks
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, Ints
from watersmeet.joins.core.operator import END_OF_INPUT, Emission, Marks, Report, StateOverflowError, StepError, Store
from watersmeet.joins.core.shard import LATE_BY, LATE_COLUMN
from watersmeet.joins.core.timeline import Timeline
from watersmeet.joins.state.layout import Layout, Rows
from watersmeet.joins.state.runs import DIRECTORY, Directory

if TYPE_CHECKING:
    from watersmeet.joins.sync.operator import SyncJoin


class DisorderError(StepError):
    """Raised when a port's times do not increase and that is an error.

    ``port`` counts from 0, ``time`` is that of the offending row in ``column``: microseconds for TIMESTAMP and DATE.

    >>> DisorderError(0, "a.t", 1_000_000, is_temporal=True).parameters
    {'column': 'a.t', 'time': '1970-01-01 00:00:01'}
    """

    def __init__(self, port: int, column: str, time: int, *, is_temporal: bool = False) -> None:
        shown = str(np.datetime64(time, "us").astype("datetime64[s]")).replace("T", " ") if is_temporal else str(time)
        super().__init__("DISORDER", {"column": column, "time": shown})
        self.port = port
        self.time = time


class SyncBatch:
    """A step in progress. Its methods are called in the order in which they stand here, `admit` once per port."""

    def __init__(
        self,
        join: SyncJoin,
        store: Store,
        directory: Directory,
        before: Watermarks,
        after: Watermarks,
        active: Marks,
    ) -> None:
        self.join = join
        self.store = store
        self.directory = directory
        self.before, self.after = before, after
        self.active = active
        ports = range(len(join.ports))
        entries = directory.entries
        self.waiting = [Timeline(store, directory.owner, join.layouts[p], entries[p]) for p in ports]
        self.seen = [Timeline(store, directory.owner, _only_time(join, p), entries[len(ports) + p]) for p in ports]
        self.new: dict[int, Rows] = {}
        self.out: list[pa.Table] = []
        self.late: list[tuple[int, pa.Table]] = []
        self.counts = {name: [0] * len(ports) for name in ("rows", "late", "dropped")}
        self.matches = 0

    def admit(self, port: int, table: pa.Table) -> None:
        """Set disorder apart; the other rows are new."""
        rows = self.join.layouts[port].rows(table)
        times = self.times(port, rows)
        timeless = table.column(self.join.ports[port].time).is_null().to_numpy()
        late = self.before.is_late(rows.times, len(rows))
        # Stable: of equal times the first delivered comes first, and wins.
        order = np.argsort(times, kind="stable")
        order = order[~(late | timeless)[order]]
        ascending = times[order]
        again = np.zeros(ascending.size, np.bool_)
        again[1:] = ascending[1:] == ascending[:-1]
        again |= self.waiting[port].has(ascending) | self.seen[port].has(ascending)
        disorder = late | timeless
        disorder[order[again]] = True
        self.counts["rows"][port] += len(rows)
        self.counts["late"][port] += int(disorder.sum())
        if self.join.disorder == "error" and (disorder & ~timeless).any():
            column = self.join.ports[port].time
            is_temporal = pa.types.is_temporal(table.schema.field(column).type)
            time = int(times[np.argmax(disorder & ~timeless)])
            raise DisorderError(port, column, time, is_temporal=is_temporal)
        if self.join.ports[port].late and disorder.any():
            self.keep_late(port, table, times, late, timeless, disorder)
        if not again.all():
            self.new[port] = rows.take(order[~again])

    def keep_late(self, port: int, table: pa.Table, times: Ints, late: Bools, timeless: Bools, disorder: Bools) -> None:
        """Hand out disorder with the mark each row missed and by how much: 0 for a second row of a time."""
        name = self.join.ports[port].time
        mark = self.before.received.get(name, 0)
        by = np.where(late & ~timeless, mark - times, 0)
        unknown = timeless | (late & (mark == END_OF_INPUT))
        shown = table.select(list(self.join.ports[port].late)).filter(pa.array(disorder))
        shown = shown.append_column(LATE_COLUMN, pa.array([name] * shown.num_rows, pa.string()))
        self.late.append((port, shown.append_column(LATE_BY, pa.array(by[disorder], mask=unknown[disorder]))))

    def meet(self) -> None:
        """Emit the times that all ports have, and let the rows leave that can meet nothing any more."""
        touched = self.touched()
        if not touched.size:
            return
        there = np.stack([self.has(port, touched) for port in range(len(self.join.ports))])
        passed = np.stack([self.is_passed(port, touched) for port in range(len(self.join.ports))])
        complete = there.all(axis=0)
        self.emit(touched[complete])
        self.leave(touched[complete | (~there & passed).any(axis=0)])

    def touched(self) -> Ints:
        """The times at which something may happen: those of new rows, and those that a mark of this batch passes."""
        parts = [self.times(port, rows) for port, rows in self.new.items()]
        for port, name in enumerate(self.join.times):
            start, stop = (marks.received.get(name, int(LOWEST)) for marks in (self.before, self.after))
            if start < stop:
                for other, waiting in enumerate(self.waiting):
                    if other != port:
                        # A mark at the end passes all there is.
                        high = int(HIGHEST) if stop == END_OF_INPUT else stop - 1
                        parts += [self.times(other, rows) for rows in waiting.between(start, high)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def has(self, port: int, times: Ints) -> Bools:
        """At which of these times, which are ascending, a port has a row."""
        found = self.waiting[port].has(times)
        if port in self.new:
            found |= np.isin(times, self.times(port, self.new[port]), assume_unique=True)
        return found

    def is_passed(self, port: int, times: Ints) -> Bools:
        """Which of these times the mark of a port has passed."""
        mark = self.after.received.get(self.join.times[port], int(LOWEST))
        return np.ones(times.size, np.bool_) if mark == END_OF_INPUT else times < mark

    def emit(self, times: Ints) -> None:
        """Add the rows of these times, which all ports have, to what comes out."""
        if not times.size:
            return
        self.matches += int(times.size)
        columns: list[pa.ChunkedArray] = []
        for port, waiting in enumerate(self.waiting):
            found = list(waiting.at(times))
            if port in self.new:
                mine = self.times(port, self.new[port])
                hit = np.isin(mine, times, assume_unique=True)
                found.append((self.new[port].where(hit), np.searchsorted(times, mine[hit])))
            columns += _in_order(found, self.join.ports[port].columns)
        names = [name for port in self.join.ports for name in port.columns]
        self.out.append(pa.Table.from_arrays(columns, names=names))

    def leave(self, times: Ints) -> None:
        """Let the rows of these times leave."""
        for port, waiting in enumerate(self.waiting):
            left = waiting.remove_at(times)
            if port in self.new:
                leaving = np.isin(self.times(port, self.new[port]), times, assume_unique=True)
                left.append(self.new[port].where(leaving))
                self.new[port] = self.new[port].where(~leaving)
            self.remember(port, left)

    def remember(self, port: int, left: list[Rows]) -> None:
        """Remember the times of rows that have left, unless a second row of such a time would be late anyhow."""
        layout = self.seen[port].layout
        for rows in left:
            self.seen[port].add(layout.rows(rows.where(~self.is_passed(port, self.times(port, rows))).table))

    def keep(self) -> None:
        """Let new rows that may still meet others wait, and forget the times that a second row would be late for."""
        for port, rows in self.new.items():
            self.waiting[port].add(rows)
        for port, name in enumerate(self.join.times):
            mark = self.after.received.get(name)
            if mark is not None:
                self.seen[port].remove(int(LOWEST), mark, lambda rows, p=port: self.is_passed(p, self.times(p, rows)))

    def limit(self) -> None:
        """Keep no more rows than the shard may: fail, or drop those with the earliest times."""
        limit, kept = self.join.max_rows, [len(waiting) for waiting in self.waiting]
        if limit is None or sum(kept) <= limit:
            return
        if self.join.overflow == "fail":
            raise StateOverflowError(tuple(kept), limit)
        everything = [
            (self.times(port, rows), port)
            for port, waiting in enumerate(self.waiting)
            for rows in waiting.between(int(LOWEST), int(HIGHEST))
        ]
        times = np.concatenate([some for some, _ in everything])
        ports = np.concatenate([np.full(some.size, port) for some, port in everything])
        earliest = np.lexsort((ports, times))[: sum(kept) - limit]
        for port, waiting in enumerate(self.waiting):
            leaving = np.sort(times[earliest[ports[earliest] == port]])
            self.counts["dropped"][port] += leaving.size
            self.remember(port, waiting.remove_at(leaving))
            # Whatever else has such a time waits for a row that is gone, and for none that may come.
            self.leave(leaving[self.is_passed(port, leaving)])

    def finish(self) -> Emission:
        """Store what is kept and hand out what came of the batch."""
        received = self.after.received
        marks = [received[name] for name in self.join.times if name in received]
        watermarks = dict.fromkeys(self.join.times, min(marks)) if len(marks) == len(self.join.ports) else {}
        state = tuple(len(waiting) for waiting in self.waiting)
        entries = tuple(timeline.close() for timeline in (*self.waiting, *self.seen))
        directory = Directory(entries, received, watermarks, self.active, self.directory.owner)
        self.store.put(DIRECTORY, directory.to_bytes())
        rows, late, dropped = (tuple(self.counts[name]) for name in ("rows", "late", "dropped"))
        report = Report(rows, late, self.matches, (0,) * len(self.join.ports), state, dropped, watermarks)
        return Emission(tuple(self.out), tuple(self.late), report)

    def times(self, port: int, rows: Rows) -> Ints:
        """The times of a port's rows."""
        return rows.times[self.join.ports[port].time]


def _only_time(join: SyncJoin, port: int) -> Layout:
    time = join.ports[port].time
    return Layout((time,), (time,), time, None)


def _in_order(found: list[tuple[Rows, Ints]], columns: tuple[str, ...]) -> list[pa.ChunkedArray]:
    """These columns of rows that are to stand at certain places, in the order of these places."""
    # Rows of one port may differ in what does not change a value, such as the time zone a session shows timestamps in.
    schema = found[-1][0].table.select(list(columns)).schema
    parts = [pa.Table.from_batches([rows.table.select(list(columns))]).cast(schema) for rows, _ in found]
    places = np.concatenate([positions for _, positions in found])
    return pa.concat_tables(parts).take(pa.array(np.argsort(places))).columns
