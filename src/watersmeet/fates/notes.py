"""What became of rows, noted while they go through a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.fates.family import Scene
from watersmeet.fates.flights import WHERE, Flights, same_row
from watersmeet.fates.model import What
from watersmeet.fates.stage import Stage, row_column
from watersmeet.fates.words import Words, capital, value_in_words
from watersmeet.formats.feed import CHANGE
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.joins.core.operator import Marks
from watersmeet.joins.core.python_values import python_rows, python_values
from watersmeet.joins.core.rowwise import Gone, Row, Step
from watersmeet.joins.core.two_sided import LEFT_ONLY
from watersmeet.joins.state.layout import as_int64
from watersmeet.local.query import PART, PARTITION, ROW, Lost
from watersmeet.physical import ScanPlan

LEFT: Mapping[str, What] = {"expired": "expired", "evicted": "evicted", "discarded": "dropped", "dropped": "dropped"}
"""What it means for a row that it left, by why."""


@dataclass(frozen=True)
class Event:
    """Something that became of a row on its way: by which other, and what ends its life."""

    flight: int
    what: What
    batch: int
    reason: str
    until: int | None = None
    by: int | None = None


@dataclass(frozen=True)
class Moved:
    """The mark of a column after a batch, and the arrival that moved it there."""

    batch: int
    column: str
    value: int
    by: int | None


@dataclass
class Notes:
    """What became of rows: ``events``, the rows that ``met``, and where marks ``moved``."""

    flights: Flights = field(default_factory=Flights)
    events: list[Event] = field(default_factory=list[Event])
    met: list[tuple[int, tuple[int, ...]]] = field(default_factory=list[tuple[int, tuple[int, ...]]])
    moved: list[Moved] = field(default_factory=list[Moved])
    batch: int = 0
    _movers: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict[str, list[tuple[int, int, int]]])
    _tables: dict[tuple[str, Any], list[int]] = field(default_factory=dict[tuple[str, Any], list[int]])

    def end(self, stages: Iterable[Stage]) -> None:
        """Note which rows are still kept."""
        for stage in stages:
            self._alive(stage)
        told = {event.flight for event in self.events if event.what in ("alive", "filtered", "null key")}
        for flight in (one for there in self._tables.values() for one in there if one not in told):
            self.events.append(Event(flight, "alive", self.batch, "It is in the table."))
        told = {event.flight for event in self.events}
        alive = {one for event in self.events if event.what == "alive" for one in self.flights.arrivals(event.flight)}
        for stage in stages:
            for port, rows in enumerate(stage.entered):
                for flight, (row, batch) in rows.items():
                    if flight not in told and not alive.issuperset(self.flights.arrivals(flight)):
                        what, reason = stage.family.nothing(stage.scene, port, row)
                        self.events.append(Event(flight, what, batch, reason))

    def _alive(self, stage: Stage) -> None:
        scene = stage.scene
        for port, flight, row in stage.kept:
            until = stage.family.until(scene, port, row, flight)
            reason = stage.family.waits(scene, port, row, flight)
            self.events.append(Event(flight, "alive", self.batch, reason, until))

    def mover(self, column: str, mark: int) -> tuple[int | None, int] | None:
        """The arrival that moved a mark to where it is, and its batch."""
        for name, movers in self._movers.items():
            for value, flight, batch in movers if name.split("#")[0] == column else ():
                if value == mark:
                    return self._first(flight), batch
        return None

    def change_table(self, plan: ScanPlan, rows: pa.Table, numbers: list[int]) -> pa.Array:
        """Note which rows of a table take the place of others; one that takes a row back goes by its number."""
        key = [plan.source.field(name) for name in plan.source.primary_key]
        keyed = plan.changes == "upserts" or (key and all(key))
        found: list[int] = []
        for number, row in zip(numbers, python_rows(rows), strict=True):
            sign = row.pop(CHANGE, "+")
            row.pop(WHERE, None)
            values = {one.name: row[one.name] for one in key if one is not None} if keyed else row
            there = self._tables.setdefault((plan.alias, same_row(values)), [])
            found.append(self._change(there, number, sign, is_keyed=bool(keyed), by_weight=plan.changes == "weights"))
        return pa.array(found, pa.int64())

    def _change(self, there: list[int], number: int, sign: str, *, is_keyed: bool, by_weight: bool) -> int:
        old = there.pop() if there and (is_keyed or sign == "-") else None
        if old is not None:
            what: What = "deleted" if sign == "-" else "replaced"
            told = "took it out of the table" if sign == "-" else "took its place in the table"
            self.events.append(
                Event(old, what, self.batch, f"{capital(self._name(number))} {told}.", None, self._first(number))
            )
        if sign == "+":
            there.append(number)
            return number
        told = (
            "It took a row out of the table." if old is not None else "It takes out a row that the table does not have."
        )
        self.events.append(Event(number, "passed", self.batch, told, None, None if old is None else self._first(old)))
        return old if old is not None and by_weight and not is_keyed else number

    def _first(self, flight: int) -> int | None:
        # A group without rows is made of nothing.
        return next(iter(self.flights.arrivals(flight)), None)

    def _name(self, flight: int) -> str:
        arrivals = [self.flights.raw(one) for one in self.flights.arrivals(flight)[:3]]
        return " with ".join(str(one) for one in arrivals)

    def lose(self, lost: tuple[Lost, ...], words: Words) -> None:
        """Note rows that go no further."""
        for one in lost:
            for row in python_rows(one.rows):
                if one.part is None:
                    what, reason = cast("What", "null key"), "It has no element to show, or its primary key is NULL."
                else:
                    what, reason = "filtered", f"WHERE drops it: {words.failing(one.part, row)} is not true."
                self.events.append(Event(row[ROW], what, self.batch, reason))

    def mover_of(self, mark: str, part: int | None, rows: pa.Table, column: str, lag: int) -> None:
        """Note who may move a mark: the row with the latest time, of each partition that has marks of its own."""
        if PARTITION in rows.column_names:
            for name in pc.unique(rows.column(PARTITION)).to_pylist():
                some = rows.filter(pc.equal(rows.column(PARTITION), name)).drop_columns([PARTITION])
                self.mover_of(f"{mark}#@{name}", part, some, column, lag)
            return
        if part is not None:
            rows = rows.filter(pc.equal(rows.column(PART), part))
        rows = rows.select([column, ROW]).filter(rows.column(column).is_valid())
        if rows.num_rows:
            times = as_int64(rows.column(column).combine_chunks())
            place = int(np.argmax(times))
            value = int(times[place]) - lag
            movers = self._movers.setdefault(mark, [])
            if not movers or value > movers[-1][0]:
                movers.append((value, rows.column(ROW)[place].as_py(), self.batch))

    def marks(self, stage: Stage, marks: Marks) -> None:
        """Note where the marks of a stage are; those that another stage has told already stay as they are."""
        known = {(one.batch, one.column) for one in self.moved[-64:]}
        heard = stage.received or {n: v for n, v in marks.items() if not n.startswith("#")}
        # What tells of a table's rows that they are settled is no watermark.
        heard = {name: mark for name, mark in heard.items() if name not in stage.operator.settling}
        for column, value in heard.items():
            if "#" not in column and (self.batch, column) not in known:
                by = self.mover(column, value)
                self.moved.append(Moved(self.batch, column, value, None if by is None else by[0]))

    def late(self, stage: Stage, step: Any, scene: Scene) -> None:
        """Note who came too late, given what had been heard before."""
        for port, row in getattr(step, "late", ()):
            flight = row[row_column(port)]
            reason, column = stage.family.late(scene, port, row)
            stage.late[flight] = self.batch
            by, told = self._by_mark(column, scene.received.get(column or ""))
            ending = f"{told}." if not reason.endswith(".") else ""
            self.events.append(Event(flight, "late", self.batch, f"{reason}{ending}", None, by))

    def _by_mark(self, column: str | None, mark: int | None) -> tuple[int | None, str]:
        """Who moved a mark, and that in words."""
        found = None if column is None or mark is None else self.mover(column, mark)
        if found is None or found[0] is None:
            return None, ""
        return found[0], f"; {self.flights.raw(found[0])} had moved it there in batch {found[1]}"

    def dead(self, stage: Stage, port: int, table: pa.Table) -> None:
        """Note which rows can match nothing."""
        scene = stage.scene
        for flight in table.column(row_column(port)).to_pylist():
            if flight in stage.late:
                continue
            found = stage.family.cannot(scene, port, stage.entered[port][flight][0])
            if found is not None:
                self.events.append(Event(flight, found[0], self.batch, found[1]))

    def count(self, stage: Stage, row: Row, members: list[int]) -> None:
        """Note that a row went into a group with these members, or that it was taken out of it."""
        flight, comes = row[row_column(0)], row.get(WEIGHT, 1) > 0
        if comes:
            members.append(flight)
        elif flight in members:
            members.remove(flight)
        keys = stage.sides[0].keys
        told = ", ".join(value_in_words(row[key]) for key in keys)
        group = f" in the group of {told}" if keys else ""
        what: What = "counted" if comes else "taken back"
        reason = f"It was counted{group}." if comes else f"It is no longer counted{group}."
        self.events.append(Event(flight, what, self.batch, reason))

    def out(self, stage: Stage, rows: pa.Table, steps: list[Any], gone: list[Gone]) -> None:
        """Note who met whom, who came out alone, and who left."""
        alone: dict[int, int] = {}
        for flights, sign in self._pairs(stage, rows, steps):
            present = [(port, flight) for port, flight in enumerate(flights) if flight is not None]
            if sign > 0 and len(present) == 1 < len(flights):
                alone[present[0][1]] = present[0][0]
                continue
            if sign > 0 and len(present) > 1:
                together = dict.fromkeys(one for _, flight in present for one in self.flights.arrivals(flight))
                self.met.append((self.batch, tuple(together)))
            for port, flight in present:
                self._shown(stage, port, flight, [f for _, f in present if f != flight], sign)
        for step in steps:
            alone |= {row[-1]: port for port, row in getattr(step, "unmatched", ())}
        for one in gone:
            self._gone(stage, one, alone)
        for flight, port in alone.items():
            reason = stage.family.alone(stage.scene, port, stage.entered[port][flight][0])
            self.events.append(Event(flight, stage.family.alone_is(stage.operator), self.batch, reason))

    def _pairs(self, stage: Stage, rows: pa.Table, steps: list[Any]) -> Iterator[tuple[tuple[int | None, ...], int]]:
        """The rows that a result is made of, by port, and whether it comes or goes."""
        names = [row_column(n) for n in range(len(stage.plan.ports)) if row_column(n) in rows.column_names]
        weights = rows.column(WEIGHT).to_pylist() if WEIGHT in rows.column_names else [1] * rows.num_rows
        shown = zip(*(python_values(rows.column(name)) for name in names), strict=True) if names else ()
        is_hidden = getattr(stage.operator, "kind", "") in LEFT_ONLY and isinstance(steps[0], Step)
        for flights, weight in zip(shown, weights if names else (), strict=True):
            if not (is_hidden and None not in flights):
                yield flights, weight
        if is_hidden:
            # Of these the result shows the left side once, whatever it met.
            yield from (((pair[0][row_column(0)], pair[1][row_column(1)]), 1) for step in steps for pair in step.met)

    def _shown(self, stage: Stage, port: int, flight: int, others: list[int], sign: int) -> None:
        by = self._first(others[0]) if others else None
        if not others:
            found = stage.family.shown(stage.scene, sign)
            if found is not None:
                self.events.append(Event(flight, found[0], self.batch, found[1]))
            elif sign < 0:
                self.events.append(Event(flight, "taken back", self.batch, "It no longer stands alone."))
            return
        name = " and ".join(self._name(other) for other in others)
        row = stage.entered[port][flight][0]
        until = stage.family.until(stage.scene, port, row, flight)
        what, reason = ("matched", f"It met {name}.") if sign > 0 else ("taken back", f"It no longer meets {name}.")
        self.events.append(Event(flight, cast("What", what), self.batch, reason, until, by))

    def _gone(self, stage: Stage, gone: Gone, alone: dict[int, int]) -> None:
        scene, flight = stage.scene, gone.row[row_column(gone.port)]
        reason, column = stage.family.left(scene, gone)
        by, told = self._by_mark(column, scene.received.get(column or ""))
        if gone.by is not None:
            by = self._first(gone.by[row_column(gone.port)])
            told = f" by {self._name(gone.by[row_column(gone.port)])}" if gone.by is not gone.row else ""
        whats = self._left(gone, alone)
        until = stage.family.until(scene, gone.port, gone.row, flight)
        if until is None and scene.numbers and gone.by is not None:
            until = scene.numbers.get(gone.by[row_column(gone.port)], (None, None))[0]
        ending = "" if reason.endswith(".") else f"{told}."
        self.events += [Event(flight, what, self.batch, f"{reason}{ending}", until, by) for what in whats]

    def _left(self, gone: Gone, alone: dict[int, int]) -> list[What]:
        """What it means for a row that it left. One that a limit took may come out alone, and is both."""
        what = LEFT[gone.why]
        if alone.pop(gone.row[row_column(gone.port)], None) is None:
            return [what]
        return [what, "padded"] if what == "dropped" else ["padded"]
