"""The frame around a step of one shard: what every family does before rows meet, and after.

A family opens a `Shard`, lets it set late rows apart, lets rows meet and lives end in its own way, asks how many rows
are too many, and closes the shard with what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.joins.core.marks import Bound, Watermarks, hear, with_partitions
from watersmeet.joins.core.matching import Bools, Ints, distances
from watersmeet.joins.core.operator import END_OF_INPUT, Emission, Family, Marks, Report, StateOverflowError, Store
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.spread import Counts, spread, stride
from watersmeet.joins.state.layout import Layout, Rows, as_int64
from watersmeet.joins.state.spine import Spine, State

LATE_COLUMN, LATE_BY = "#late_column", "#late_by"
"""What a late row shows besides its own columns: the mark it missed, and by how much (NULL: its side had ended)."""

Places = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Positions of rows, in whichever width a family counts them."""
FEW_MET = 256
"""So few rows that met are counted with others: to count costs about as much as to count some more."""
EXAMPLES = 3
"""How many late rows of a port are told of, whether it shows them or not."""


class Tally:
    """What a step counts, per port, and the rows that it hands out apart from the result."""

    def __init__(self, ports: int) -> None:
        self.rows, self.late, self.padded, self.dropped = ([0] * ports for _ in range(4))
        self.matched = 0
        self.late_rows: list[tuple[int, pa.Table]] = []
        self.unmatched: list[tuple[int, pa.Table]] = []
        self._apart: list[npt.NDArray[np.uint64]] = []
        self._delays: Counts | None = None
        self.lateness: Counts | None = None
        self.too_late: list[pa.Table] = []

    def met(self, times: Ints, rows: Places, others: Ints, other_rows: Places) -> None:
        """Note how far apart rows are that met: of one side at these places, and of the other."""
        step = stride(rows.size)
        if rows.size:
            apart = distances(times[rows[::step]], others[other_rows[::step]])
            if step == 1 and rows.size < FEW_MET:
                self._apart.append(apart)
            else:
                self._met(spread(apart, rows.size / apart.size))

    @property
    def delays(self) -> Counts | None:
        """How many of the rows that met were how far apart; None: none met."""
        if self._apart:
            self._met(spread(np.concatenate(self._apart)))
            self._apart = []
        return self._delays

    def _met(self, counts: Counts) -> None:
        self._delays = counts if self._delays is None else self._delays + counts

    def missed(self, by: pa.Array) -> None:
        """Note by how much rows were late; NULL where their side had ended."""
        known = by.drop_null()
        if len(known):
            lengths = known.to_numpy(zero_copy_only=False)[:: stride(len(known))]
            counts = spread(lengths, len(known) / lengths.size)
            self.lateness = counts if self.lateness is None else self.lateness + counts


class Shard:
    """A step of one shard: its state, its marks before and after the batch, and what is counted.

    ``bounds`` say how long rows live; ``waits`` which column waits for which, if that differs, and ``slowest`` whether
    columns also wait for each other (see `hear`).
    """

    def __init__(
        self,
        operator: Family,
        store: Store,
        marks: Marks,
        bounds: Sequence[Bound] = (),
        waits: Sequence[Bound] | None = None,
        *,
        slowest: bool = False,
    ) -> None:
        self.operator = operator
        self.state = State(store, operator.canonical)
        known = self.state.directory
        self.before = Watermarks.of(known.received, bounds)
        waits = bounds if waits is None else waits
        unions, idle = with_partitions(operator.unions, operator.idle, {*marks, *known.received})
        heard, self.active = hear(marks, unions, idle, waits, known.received, known.active, slowest=slowest)
        self.after = self.before.folded(heard, bounds)
        self.tally = Tally(len(operator.sides))

    def late(self, port: int, table: pa.Table, times: Mapping[str, Ints]) -> Bools:
        """Which of the arrivals of a port are late; all are counted, and late ones handed out if the port shows them.

        ``times`` are the watermarked columns of the table. Of rows that come once for each window, those of the last
        one stand for all.
        """
        window = self.operator.sides[port].window
        self.tally.rows[port] += table.num_rows
        if window is None:
            late = is_late = self.before.is_late(times, table.num_rows)
        else:
            ends = as_int64(table.column(window.end).combine_chunks())
            is_late = self.before.is_late({**times, window.time: ends - 1}, table.num_rows)
            late = is_late & window.is_last(times[window.time], ends)
        if late.any():
            self.tally.late[port] += int(late.sum())
            missed = self.before.missed({name: values[late] for name, values in times.items()}, int(late.sum()))
            self.tally.missed(missed[1])
            some = np.flatnonzero(late)[:EXAMPLES]
            few = [column.slice(0, len(some)) for column in missed]
            shown = table.take(pa.array(some))
            self.tally.too_late.append(shown.append_column(LATE_COLUMN, few[0]).append_column(LATE_BY, few[1]))
            self.hand_out(port, table, late, *missed)
        return is_late

    def admitted(self, port: int, table: pa.Table, layout: Layout, side: Port | None = None) -> tuple[Rows, Rows]:
        """The arrivals of a port that are in time: those that may match, and those that never can.

        ``side`` says which can, if it is not the port that does.
        """
        side, rows = side or self.operator.sides[port], layout.rows(table)
        known = rows.times
        times = {c: known[c] if c in known else as_int64(table.column(c).combine_chunks()) for c in side.times}
        late = self.late(port, table, times)
        alive = side.alive(table, side.time, *side.ends)
        return rows.where(alive & ~late), rows.where(~(alive | late))

    def hand_out(self, port: int, table: pa.Table, late: Bools, column: pa.Array, by: pa.Array) -> None:
        """Hand out late rows with the mark each missed and by how much, if the port shows them."""
        columns = self.operator.sides[port].late
        if columns:
            shown = table.select(list(columns)).filter(pa.array(late))
            shown = shown.append_column(LATE_COLUMN, column).append_column(LATE_BY, by)
            self.tally.late_rows.append((port, shown))

    def excess(self, kept: Sequence[int]) -> int:
        """How many rows must be dropped for the shard to keep no more than it may; fails if none may be."""
        limit = self.operator.max_rows
        if limit is None or sum(kept) <= limit:
            return 0
        if self.operator.overflow == "fail":
            raise StateOverflowError(tuple(kept), limit)
        return sum(kept) - limit

    def earliest(self, times: Sequence[Ints], kept: Sequence[int]) -> list[Bools]:
        """Which of several lots of rows with these times must be dropped for the shard to keep no more than it may."""
        together = np.concatenate(times)
        chosen = np.zeros(together.size, np.bool_)
        chosen[np.argsort(together, kind="stable")[: self.excess(kept)]] = True
        return np.split(chosen, np.cumsum([part.size for part in times])[:-1])

    @property
    def kept(self) -> tuple[int, ...]:
        """How many rows each spine holds."""
        return tuple(len(spine) for spine in self.state.spines.values())

    def held_back(self, columns: Iterable[str], waiting: Spine) -> dict[str, int]:
        """The marks received for these columns, as far as rows that wait do not hold them back; never back."""
        emitted, marks = self.state.directory.emitted, dict[str, int]()
        for name in (name for name in columns if name in self.after.received):
            mark, earliest = self.after.received[name], waiting.earliest(name)
            if earliest is not None:
                # As long as a row waits the result has not ended, not even in a column that is NULL there.
                mark = min(mark, earliest, END_OF_INPUT - 1)
            marks[name] = max(mark, emitted.get(name, mark))
        return marks

    def close(
        self,
        watermarks: Marks,
        rows: Iterable[pa.Table] = (),
        kept: Sequence[int] | None = None,
        numbers: Mapping[str, Any] | None = None,
        **report: Any,
    ) -> Emission:
        """Save the state and hand out what came of the step: the rest of its ``rows``, and the numbers.

        ``kept`` are the rows that each port keeps; None: there is a spine for each, and it says so. ``numbers`` is what
        the family wants to find again in the directory.
        """
        changes = {} if numbers is None else {"numbers": numbers}
        self.state.save(received=self.after.received, emitted=watermarks, active=self.active, **changes)
        tally = self.tally
        counted = {name: tuple(getattr(tally, name)) for name in ("rows", "late", "padded", "dropped")}
        told = Report(
            **counted, matched=tally.matched, state=tuple(self.kept if kept is None else kept), watermarks=watermarks,
            written=self.state.written, stored=self.state.stored, received=self.after.received,
            delays=tally.delays, lateness=tally.lateness, too_late=tuple(tally.too_late), **report,
        )  # fmt: skip
        return Emission(tuple(rows), tuple(tally.late_rows), told, tuple(tally.unmatched))
