"""One batch of an as-of join in one shard: new questions and versions, what is settled, what waits on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.asof.versions import Found, Versions
from watersmeet.joins.core.marks import Watermarks
from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools, Ints, shifted
from watersmeet.joins.core.operator import END_OF_INPUT, LEFT, RIGHT, Emission, Marks, Report, StateOverflowError, Store
from watersmeet.joins.core.shard import LATE_BY, LATE_COLUMN
from watersmeet.joins.core.timeline import Timeline
from watersmeet.joins.state.layout import Rows, as_int64
from watersmeet.joins.state.runs import DIRECTORY, Directory

if TYPE_CHECKING:
    from watersmeet.joins.asof.operator import AsofJoin


class AsofBatch:
    """A step in progress. Its methods are called in the order in which they stand here, `admit` once per port."""

    def __init__(
        self,
        join: AsofJoin,
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
        self.open = Timeline(store, directory.owner, join.layouts[LEFT], directory.entries[LEFT])
        self.versions = Versions(join, store, directory.owner, directory.entries[RIGHT])
        self.asked: Rows | None = None
        self.out: list[pa.Table] = []
        self.late: list[tuple[int, pa.Table]] = []
        self.counts = {name: [0, 0] for name in ("rows", "late", "padded", "dropped")}
        self.matches = 0

    def admit(self, port: int, table: pa.Table) -> None:
        """Set late rows apart, and rows that nothing can fit; the others are new questions or versions."""
        side = self.join.sides[port]
        times = {name: as_int64(table.column(name).combine_chunks()) for name in side.times}
        late = self.before.is_late(times, table.num_rows)
        dead = ~side.alive(table, side.time)
        self.counts["rows"][port] += table.num_rows
        self.counts["late"][port] += int(late.sum())
        if side.late and late.any():
            column, by = self.before.missed({name: some[late] for name, some in times.items()}, int(late.sum()))
            shown = table.select(list(side.late)).filter(pa.array(late))
            self.late.append((port, shown.append_column(LATE_COLUMN, column).append_column(LATE_BY, by)))
        rows = self.join.layouts[port].rows(table)
        alive = rows.where(~(late | dead))
        if port == RIGHT:
            self.counts["dropped"][RIGHT] += self.versions.admit(alive, self.horizon(self.before))
        else:
            self.pad(rows.where(dead & ~late))
            # By key, so that neighbours look for their versions in the same place.
            self.asked = alive.take(np.argsort(self.codes(alive), kind="stable"))

    def answer(self) -> None:
        """Emit every question that is now settled."""
        if self.asked is not None:
            self.asked = self.asked.where(~self.settle(self.asked))
        mark = self.mark
        ranges = [(int(LOWEST), mark)]
        if self.versions.new is not None:
            # A version at the very time of a question, or next to it, may settle it before the mark gets there.
            times = self.versions.times(self.versions.new)
            ranges.append((max(mark + 1, int(times.min()) - 1), int(times.max()) + 1))
        for low, high in ranges:
            self.open.remove(low, high, lambda rows, low=low, high=high: self.settle_between(rows, low, high))

    def settle_between(self, rows: Rows, low: int, high: int) -> Bools:
        """Emit those of the rows that have times within ``low`` and ``high`` and are settled; returns which."""
        times = rows.times[self.join.left.time]
        first, beyond = np.searchsorted(times, low, "left"), np.searchsorted(times, high, "right")
        settled = np.zeros(len(rows), np.bool_)
        if first < beyond:
            settled[first:beyond] = self.settle(rows.take(np.arange(first, beyond)))
        return settled

    def settle(self, rows: Rows) -> Bools:
        """Emit those of the questions that are settled; returns which."""
        match self.join.direction:
            case "backward":
                found, settled = self.backward(rows)
            case "forward":
                found, settled = self.forward(rows)
            case "nearest":
                found, settled = self.nearest(rows)
        if self.mark == END_OF_INPUT:
            settled[:] = True
        for number in np.unique(found.source[settled & found.any]).tolist():
            which = np.flatnonzero(settled & (found.source == number))
            theirs = self.versions.source(number).table.select(list(self.join.right.columns))
            self.matches += which.size
            self.emit(rows.take(which), theirs.take(pa.array(found.place[which])).columns, -1)
        self.pad(rows.where(settled & ~found.any))
        return settled

    def backward(self, rows: Rows) -> tuple[Found, Bools]:
        """The last version before each question, and whether no later one can come before it."""
        low, high = self.reach_back(rows)
        found = self.find_last(rows, low, high)
        return found, (self.mark > high) | (low > high) | (found.any & (found.times == high))

    def forward(self, rows: Rows) -> tuple[Found, Bools]:
        """The first version after each question, and whether no earlier one can come after it."""
        low, high = self.reach_on(rows)
        found = self.find_first(rows, low, high)
        is_first = (found.times == low) | (self.mark >= found.times)
        return found, np.where(found.any, is_first, (self.mark > high) | (low > high))

    def nearest(self, rows: Rows) -> tuple[Found, Bools]:
        """The nearest version of each question, and whether no nearer one can come."""
        times = rows.times[self.join.left.time]
        back, on = self.find_last(rows, *self.reach_back(rows)), self.find_first(rows, *self.reach_on(rows))
        # Unsigned: two times may be further apart than a signed number tells.
        behind, ahead = (times - back.times).view(np.uint64), (on.times - times).view(np.uint64)
        earlier = back.any & (~on.any | (behind <= ahead))
        found = Found(*(np.where(earlier, one, other) for one, other in zip(_parts(back), _parts(on), strict=True)))
        distance = np.where(earlier, behind, ahead)
        room = (np.int64(HIGHEST) - times).view(np.uint64)
        nearer = times + np.minimum(distance, room).view(np.int64) - 1
        last = np.where(found.any, nearer, self.reach_on(rows)[1])
        if self.join.strict:
            # The time of the question itself is none at which a version could come.
            last = np.where(last == times, times - 1, last)
        none = found.any & ((distance == 0) | (self.join.strict & earlier & (distance == 1)))
        return found, none | (self.mark > last) | (self.join.strict and self.join.tolerance == 0)

    def reach_back(self, rows: Rows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or before each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        low = np.full(len(rows), LOWEST) if tolerance is None else shifted(times, -tolerance)
        return low, shifted(times, -1) if self.join.strict else times

    def reach_on(self, rows: Rows) -> tuple[Ints, Ints]:
        """The first and last time of a version at or after each question."""
        times, tolerance = rows.times[self.join.left.time], self.join.tolerance
        high = np.full(len(rows), HIGHEST) if tolerance is None else shifted(times, tolerance)
        return shifted(times, 1) if self.join.strict else times, high

    def find_last(self, rows: Rows, low: Ints, high: Ints) -> Found:
        """For each question the last version of its key between two times."""
        return self.versions.find(self.codes(rows), self.versions.keys(rows, self.join.left.keys), low, high, "last")

    def find_first(self, rows: Rows, low: Ints, high: Ints) -> Found:
        """For each question the first version of its key between two times."""
        return self.versions.find(self.codes(rows), self.versions.keys(rows, self.join.left.keys), low, high, "first")

    def keep(self) -> None:
        """Let questions that are not settled wait, and keep the versions that may still be asked for."""
        if self.asked is not None:
            self.open.add(self.asked)
        self.versions.keep(self.horizon(self.after))

    def limit(self) -> None:
        """Keep no more rows than the shard may: fail, or drop those with the earliest times."""
        limit = self.join.max_rows
        if limit is None or len(self.open) + len(self.versions) <= limit:
            return
        horizon = self.horizon(self.after)
        versions = self.versions.compact(horizon)
        excess = len(self.open) + len(self.versions) - limit
        if excess <= 0:
            return
        if self.join.overflow == "fail":
            raise StateOverflowError((len(self.open), len(self.versions)), limit)
        times = [rows.times[self.join.left.time] for rows in self.open.between(int(LOWEST), int(HIGHEST))]
        asked = np.sort(np.concatenate(times)) if times else np.zeros(0, np.int64)
        known = np.zeros(0, np.int64) if versions is None else self.versions.times(versions)
        both = np.concatenate([asked, known])
        earliest = np.argsort(both, kind="stable")[:excess]
        if versions is not None:
            stay = ~np.isin(np.arange(known.size), earliest - asked.size)
            self.versions.replace_all(versions.where(stay), horizon)
            self.counts["dropped"][RIGHT] += int((~stay).sum())
        self.drop_questions(asked, int((earliest < asked.size).sum()))

    def drop_questions(self, times: Ints, number: int) -> None:
        """Drop that many questions, the earliest; without an answer, they come out padded."""
        if not number:
            return
        last = int(times[number - 1])
        spare = number - int(np.searchsorted(times, last, "left"))

        def leaving(rows: Rows) -> Bools:
            nonlocal spare
            mine = rows.times[self.join.left.time]
            ties = np.flatnonzero(mine == last)[:spare]
            spare -= ties.size
            leaves = mine < last
            leaves[ties] = True
            return leaves

        self.counts["dropped"][LEFT] += number
        for rows in self.open.remove(int(LOWEST), last, leaving):
            self.pad(rows)

    def finish(self) -> Emission:
        """Store what is kept and hand out what came of the batch."""
        watermarks = self.watermarks()
        state = (len(self.open), len(self.versions))
        entries = (self.open.close(), tuple(self.versions.entries))
        directory = Directory(entries, self.after.received, watermarks, self.active, self.directory.owner)
        self.store.put(DIRECTORY, directory.to_bytes())
        rows, late, padded, dropped = (tuple(values) for values in self.counts.values())
        report = Report(rows, late, self.matches, padded, state, dropped, watermarks)
        return Emission(tuple(self.out), tuple(self.late), report)

    def watermarks(self) -> dict[str, int]:
        """The marks of the result: those of the left side, as far as open questions do not hold them back."""
        marks: dict[str, int] = {}
        for name in self.join.times:
            if name in self.after.received:
                earliest = self.open.earliest(name)
                # As long as a question is open the result has not ended, not even in a column that is NULL there.
                hold = END_OF_INPUT if earliest is None else min(earliest, END_OF_INPUT - 1)
                mark = min(self.after.received[name], hold)
                marks[name] = max(mark, self.directory.emitted.get(name, mark))
        return marks

    def horizon(self, marks: Watermarks) -> int:
        """The earliest time that a question may have, of those that are open and of those that may come."""
        name = self.join.left.time
        earliest = self.open.earliest(name)
        mark = marks.received.get(name, int(LOWEST))
        return mark if earliest is None else min(mark, earliest)

    @property
    def mark(self) -> int:
        """Versions that may still come have times at or after this."""
        return self.after.received.get(self.join.right.time, int(LOWEST))

    def codes(self, rows: Rows) -> Ints:
        """The codes of questions."""
        code = self.join.left.code
        return np.zeros(len(rows), np.int64) if code is None else as_int64(rows.table.column(code))

    def pad(self, rows: Rows) -> None:
        """Emit questions without an answer, if the join is ``left``."""
        if len(rows) and self.join.kind == "left":
            self.counts["padded"][LEFT] += len(rows)
            self.emit(rows, [pa.nulls(len(rows))] * len(self.join.right.columns), RIGHT)

    def emit(self, rows: Rows, right: list[pa.Array], missing: int) -> None:
        """Add joined rows to what comes out; ``missing`` is the port without a row, or -1."""
        left = rows.table.select(list(self.join.left.columns)).columns
        names = [*self.join.left.columns, *self.join.right.columns, *self.join.extra]
        extra = [pa.array(np.full(len(rows), missing, np.int8))] * len(self.join.extra)
        self.out.append(pa.Table.from_arrays([*left, *right, *extra], names=names))


def _parts(found: Found) -> tuple[Ints, Ints, Ints]:
    return found.times, found.source, found.place
