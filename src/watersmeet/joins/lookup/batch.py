"""One batch of a lookup join in one shard: the table changes, rows that waited are shown, new rows are looked up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import OP, POSITION
from watersmeet.joins.core.condition import holds, same
from watersmeet.joins.core.marks import Watermarks, hear
from watersmeet.joins.core.matching import LOWEST, Bools, Ints, Pairs, stretches
from watersmeet.joins.core.operator import END_OF_INPUT, LEFT, NOW, Emission, Marks, Report, StateOverflowError, Store
from watersmeet.joins.core.timeline import Timeline
from watersmeet.joins.lookup.waiting import ARRIVED, NUMBER, Waiting
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.runs import DIRECTORY, Directory
from watersmeet.joins.state.spine import State
from watersmeet.joins.state.table import Table, chunked

if TYPE_CHECKING:
    from watersmeet.joins.lookup.operator import LookupJoin

ROWS_PER_PIECE = 262_144
"""So many rows are joined or released at once: a column of them must stay below the 2 GiB that Arrow allows it."""

_FIRST = "#first"
"""Among the clocks of the directory: the first there ever was."""


class LookupBatch:
    """A step in progress. Its public methods are called once each, in the order in which they stand here."""

    def __init__(self, join: LookupJoin, store: Store, marks: Marks) -> None:
        self.join = join
        self.store = store
        self.directory = Directory.from_bytes(store.get(DIRECTORY), 2)
        before = Watermarks.of(self.directory.received, ())
        heard, active = hear(marks, join.unions, join.idle, (), before.received, self.directory.active)
        self.received = before.folded(heard, ()).received
        self.clocks = _clocks(active, self.directory.active, marks.get(NOW))
        owner = self.directory.owner
        waiting, held = self.directory.entries
        self.waiting = Waiting(store, owner, join.waiting_layout, waiting)
        self.held = Timeline(store, owner, join.held_layout, held)
        self.shard_state = State(store, join.canonical)
        self.state = Table.of(self.shard_state, "table", join.table_layout, join.budget)
        self.mine, self.theirs = join.sides[join.stream_port], join.sides[join.table]
        self.rows = [0, 0]
        self.matched = self.padded = self.dropped = self.written = 0

    def expire(self) -> None:
        """Forget the rows that have waited for too long."""
        now, retention = self.clocks.get(NOW), self.join.retention
        if now is not None and retention is not None:
            self.waiting.forget_before(now - retention, self.clocks[_FIRST])

    def change(self, table: pa.Table | None) -> Ints:
        """Apply the changes of the table; gives the codes of the rows that it gained."""
        if table is None or not table.num_rows:
            return np.zeros(0, np.int64)
        self.rows[self.join.table] += table.num_rows
        alive = self.theirs.alive(table)
        if self.theirs.upsert_key:
            # A row that can never match takes away the one that it replaces, and need not be stored.
            op = pa.array(np.where(alive & (table.column(OP).to_numpy() > 0), 1, -1).astype(np.int8))
            table = table.set_column(table.column_names.index(OP), OP, op)
            changes = self.state.upserted(table, self.theirs.upsert_key)
        else:
            changes = self.state.rows(table.filter(pa.array(alive)))
        self.state.spine.add(changes)
        return np.unique(changes.codes[changes.weights > 0])

    def show_again(self, codes: Ints) -> Iterator[pa.Table]:
        """Show the rows that wait and now meet something, for which the table gained rows of these codes."""
        for entry, positions in self.waiting.of(codes):
            rows = self.waiting.read(entry).take(positions)
            met = np.zeros(len(rows), np.bool_)
            yield from self._meet(rows, met)
            if met.any():
                self.waiting.remove(entry, positions[met])

    def is_loaded(self, mark: str) -> bool:
        """Whether the mark has come that says that the table is caught up."""
        return self.received.get(mark, 0) > 0

    def look_up(self, table: pa.Table | None, *, is_loaded: bool) -> Iterator[pa.Table]:
        """Look up the new stream rows, after those that were held back, or hold them back until the table is loaded."""
        if is_loaded and len(self.held):
            yield from self._release()
        if table is None or not table.num_rows:
            return
        self.rows[self.join.stream_port] += table.num_rows
        is_placed = POSITION in table.column_names
        order = np.argsort(table.column(POSITION).to_numpy(), kind="stable") if is_placed else None
        rows: pa.Table = table if order is None else table.take(pa.array(order))
        if is_loaded:
            yield from self._answer(rows)
            return
        numbers = pa.array(self.waiting.numbered(rows.num_rows))
        self.held.add(self.join.held_layout.rows(rows.append_column(NUMBER, numbers)))
        self.written += rows.num_rows

    def limit(self) -> None:
        """Keep no more rows than the shard may: rows that wait are forgotten, the table is not."""
        if self.join.waiting is not None:
            self._forget(len(self.waiting) - self.join.waiting)
        limit = self.join.max_rows
        if limit is None or self._kept <= limit:
            return
        self.state.spine.compact()
        if self.join.overflow == "drop_oldest":
            self._forget(min(len(self.waiting), self._kept - limit))
        if self._kept > limit:
            raise StateOverflowError(self._per_port(self._streamed, len(self.state)), limit)

    def finish(self) -> Emission:
        """Store what is kept and hand out the numbers of the batch."""
        watermarks = self._watermarks()
        state = self._per_port(self._streamed, len(self.state))
        self.shard_state.save()
        entries = (self.waiting.save(), self.held.close())
        directory = Directory(entries, self.received, watermarks, self.clocks, self.directory.owner)
        self.store.put(DIRECTORY, directory.to_bytes())
        report = Report(
            rows=(self.rows[0], self.rows[1]),
            matched=self.matched,
            padded=self._per_port(self.padded, 0),
            state=state,
            dropped=self._per_port(self.dropped, 0),
            watermarks=watermarks,
            written=self.written + self.waiting.written + self.shard_state.written,
        )
        return Emission(report=report)

    def _release(self) -> Iterator[pa.Table]:
        """Look up the rows that were held back, in the order of arrival, some at a time."""
        while len(self.held):
            low = self.held.earliest(NUMBER)
            assert low is not None
            parts = self._taken(low + ROWS_PER_PIECE - 1)
            table = pa.concat_tables([pa.Table.from_batches([part.table]) for part in parts])
            yield from self._answer(table.sort_by(NUMBER).drop_columns([NUMBER]))

    def _taken(self, last: int) -> list[Rows]:
        """The rows up to that number; they are held back no longer."""
        return self.held.remove(int(LOWEST), last, lambda rows: rows.times[NUMBER] <= last)

    def _answer(self, table: pa.Table) -> Iterator[pa.Table]:
        """Look up stream rows, in the order of arrival; what meets nothing is padded, and may wait."""
        alive = self.mine.alive(table)
        numbers = pa.array(self.waiting.numbered(table.num_rows))
        clocks = pa.array(np.full(table.num_rows, self.clocks.get(NOW, int(LOWEST))))
        rows = self.join.waiting_layout.rows(table.append_column(NUMBER, numbers).append_column(ARRIVED, clocks))
        met = np.zeros(len(rows), np.bool_)
        asking = np.flatnonzero(alive)
        asking = asking[np.argsort(rows.codes[asking], kind="stable")]
        answered = np.zeros(len(asking), np.bool_)
        yield from self._meet(rows.take(asking), answered)
        met[asking] = answered
        if self.join.preserves and not met.all():
            alone = rows.where(~met)
            self.padded += len(alone)
            yield self._joined(alone, None)
        if self.join.reemits:
            self.waiting.add(rows.where(alive & ~met))

    def _meet(self, rows: Rows, met: Bools) -> Iterator[pa.Table]:
        """What the table has for rows in the order of their codes; ``met`` is set for those that meet something."""
        codes = np.unique(rows.codes)
        for some in chunked(codes, self.state.counts(codes), self.join.budget.chunk):
            found = self.state.matching(some)
            first, last = int(some[0]), int(some[-1])
            start = int(np.searchsorted(rows.codes, first, "left"))
            asking = rows.codes[start : int(np.searchsorted(rows.codes, last, "right"))]
            times, none = np.zeros(len(found), np.int64), np.zeros(asking.size, np.int64)
            for piece in stretches(found.codes, times, asking, none, none).pieces(ROWS_PER_PIECE):
                pairs = self._verified(rows, found, Pairs(piece.probe + start, piece.build))
                if pairs.probe.size:
                    met[pairs.probe] = True
                    yield self._joined(rows.take(pairs.probe), found.take(pairs.build))

    def _verified(self, rows: Rows, found: Rows, pairs: Pairs) -> Pairs:
        """The pairs whose keys are equal and for which the condition holds, each as often as the table has its row."""
        if not self.mine.exact:
            for mine, theirs in zip(self.mine.keys, self.theirs.keys, strict=True):
                values = rows.table.column(mine).take(pa.array(pairs.probe))
                pairs = pairs.where(same(values, found.table.column(theirs).take(pa.array(pairs.build))))
        if self.join.condition is not None:
            ours = frozenset(rows.table.schema.names)

            def column(name: str) -> pa.Array:
                if name in ours:
                    return rows.table.column(name).take(pa.array(pairs.probe))
                return found.table.column(name).take(pa.array(pairs.build))

            pairs = pairs.where(holds(self.join.condition, column, len(pairs.probe)))
        times = np.maximum(found.weights[pairs.build], 0)
        return pairs if (times == 1).all() else Pairs(np.repeat(pairs.probe, times), np.repeat(pairs.build, times))

    def _joined(self, rows: Rows, found: Rows | None) -> pa.Table:
        """Rows of the result: stream rows, each beside a table row or alone."""
        mine = rows.table.select(list(self.mine.columns)).columns
        if found is None:
            theirs = [pa.nulls(len(rows))] * len(self.theirs.columns)
        else:
            self.matched += len(rows)
            theirs = found.table.select(list(self.theirs.columns)).columns
        left, right = (mine, theirs) if self.join.stream_port == LEFT else (theirs, mine)
        return pa.Table.from_arrays([*left, *right], names=[*self.join.left.columns, *self.join.right.columns])

    def _forget(self, rows: int) -> None:
        if rows > 0:
            self.waiting.forget(rows)
            self.dropped += rows

    def _watermarks(self) -> dict[str, int]:
        """The marks of the result: those of the stream, as far as rows that are held back do not hold them back."""
        marks: dict[str, int] = {}
        for name in self.mine.times:
            if name in self.received:
                earliest = self.held.earliest(name)
                # As long as a row is held back the result has not ended, not even in a column that is NULL there.
                hold = END_OF_INPUT if earliest is None else min(earliest, END_OF_INPUT - 1)
                mark = min(self.received[name], hold)
                marks[name] = max(mark, self.directory.emitted.get(name, mark))
        return marks

    @property
    def _streamed(self) -> int:
        return len(self.waiting) + len(self.held)

    @property
    def _kept(self) -> int:
        return self._streamed + len(self.state)

    def _per_port(self, stream: int, table: int) -> tuple[int, int]:
        return (stream, table) if self.join.stream_port == LEFT else (table, stream)


def _clocks(active: Marks, before: Marks, now: int | None) -> dict[str, int]:
    """When columns were last heard of, with the clock, which never goes back, and the first there was."""
    known = [clock for clock in (before.get(NOW), now) if clock is not None]
    if not known:
        return dict(active)
    clock = max(known)
    return {**active, NOW: clock, _FIRST: before.get(_FIRST, clock)}
