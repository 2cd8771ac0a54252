"""Record the outcomes of rows while they go through a query, and their lineage: what each row was made of.

Each row is an arrival, or was made of several; a join or stage records which.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.local.cells import Definition, definition_of
from watersmeet.local.query import PART, PARTITION, ROW, WHERE, DroppedRows
from watersmeet.operators.core.changes import CHANGE, WEIGHT
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import Port, StreamOperator, Watermarks
from watersmeet.operators.core.python_values import python_rows, python_value, python_values
from watersmeet.operators.core.rowwise import ReferenceStep, RemovedRow, Row, freeze
from watersmeet.operators.explainer import FamilyTracer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind, Words, capital, row_in_words, value_in_words
from watersmeet.operators.state.shard import LEFT_ONLY
from watersmeet.physical import JoinPlan, ScanPlan, leaf_plans

EMPTY_GROUP = "a group without rows"
"""Words for a row that is made of no arrival: that of an aggregate without GROUP BY over nothing."""


@dataclass(frozen=True)
class _Chunk:
    """The rows of a source that arrived on a side in a batch, numbered from ``first`` on."""

    first: int
    side: str
    source: str
    batch: int
    columns: tuple[tuple[str, pa.Array], ...]


@dataclass(frozen=True)
class RawArrival:
    """An arrival as it came from its source."""

    side: str
    source: str
    batch: int
    values: Mapping[str, object]
    where: str
    sign: int

    def __str__(self) -> str:
        return f"the {self.source} row {row_in_words(self.values)}"


@dataclass
class TracedRows:
    """All rows of a query by number. Of the first numbers each is an arrival; others are made of some.

    >>> flights = TracedRows()
    >>> flights.arrive("l", "s", 0, pa.table({"a": [1, 2]})).to_pylist()
    [0, 1]
    >>> made = flights.derive_row(0, (0, 1))
    >>> flights.arrivals(made), str(flights.raw(1))
    ((0, 1), 'the s row (a 2)')
    """

    _chunks: list[_Chunk] = field(default_factory=list[_Chunk])
    _of: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    _places: list[int] = field(default_factory=list[int])
    _arrived: int = 0
    _made: dict[Any, int] = field(default_factory=dict[Any, int])

    def arrive(self, side: str, source: str, batch: int, rows: pa.Table) -> pa.Array:
        """The numbers of rows that arrive."""
        numbers = range(len(self._of), len(self._of) + rows.num_rows)
        columns = tuple((name, rows.column(name).combine_chunks()) for name in rows.column_names)
        self._chunks.append(_Chunk(self._arrived, side, source, batch, columns))
        self._of += [(self._arrived + place,) for place in range(rows.num_rows)]
        self._arrived += rows.num_rows
        return pa.array(numbers, pa.int64())

    def derive_row(self, where: int, parents: Iterable[int]) -> int:
        """The number of the row that some rows make at a place; the same rows make the same there."""
        name = (where, tuple(parents))
        if name not in self._made:
            self._made[name] = len(self._of)
            self._of.append(tuple(dict.fromkeys(arrival for parent in name[1] for arrival in self._of[parent])))
        return self._made[name]

    def arrivals(self, row_id: int) -> tuple[int, ...]:
        """The arrivals that a row is made of."""
        return self._of[row_id]

    def side(self, arrival: int) -> str:
        """The side on which an arrival came."""
        return self._chunk(arrival).side

    def _chunk(self, arrival: int) -> _Chunk:
        # Chunks without rows share their first number with the next one that has some.
        return self._chunks[bisect_right(self._chunks, arrival, key=lambda chunk: chunk.first) - 1]

    def raw(self, arrival: int) -> RawArrival:
        """An arrival as it came."""
        chunk = self._chunk(arrival)
        place = arrival - chunk.first
        values = {name: python_value(column[place]) for name, column in chunk.columns}
        sign = -1 if values.pop(CHANGE, "+") == "-" else 1
        return RawArrival(chunk.side, chunk.source, chunk.batch, values, str(values.pop(WHERE, "") or ""), sign)

    @property
    def count(self) -> int:
        """The number of rows that arrived."""
        return self._arrived


def same_row(values: Mapping[str, object]) -> Any:
    """A key that is equal for equal rows of a table without a primary key."""
    return repr(freeze(dict(values)))


_PLAIN = frozenset({int, str, bytes, datetime, date, Decimal, bool})
"""Values that are counted as they are."""


def row_column(port: int) -> str:
    """The column by which the rows of a port are followed."""
    return f"{ROW}{port}"


@dataclass
class TraceStage:
    """A join or stage: its definition, in ``buckets`` parts by key, and its input rows.

    ``entered``: per port the rows by number, with their batch. ``received``: the watermarks received. ``numbers``: the
    number and the clock of rows that a window has numbered. ``keys``: per port all keys that arrived, also of rows that
    are not traced, with their values. ``hidden``: per port the rows that were removed before it, by key.
    """

    plan: JoinPlan
    family: FamilyTracer
    buckets: int = 1
    operator: Any = field(init=False)
    names: tuple[str, ...] = field(init=False)
    equal: tuple[tuple[str, ...], ...] = field(init=False)
    entered: list[dict[int, tuple[Row, int]]] = field(init=False)
    late: dict[int, int] = field(default_factory=dict[int, int])
    received: dict[str, int] = field(default_factory=dict[str, int])
    numbers: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, int | None]])
    keys: list[dict[Any, Any]] = field(init=False)
    hidden: list[dict[Any, list[int]]] = field(init=False)
    members: dict[Any, list[int]] = field(default_factory=dict[Any, list[int]])
    shown: dict[Any, int] = field(default_factory=dict[Any, int])
    _definitions: dict[int, Definition] = field(default_factory=dict[int, Definition])
    _kinds: dict[str, Any] = field(default_factory=dict[str, Any])
    _context: TraceContext | None = None

    def __post_init__(self) -> None:
        self.operator = _with_row_columns(self.plan.operator)
        self.names = tuple("+".join(leaf.alias for leaf in leaf_plans(port.input)) for port in self.plan.ports)
        self.equal = tuple(self.family.equal_columns(self.operator, port) for port in range(len(self.plan.ports)))
        self.entered = [{} for _ in self.plan.ports]
        self.keys = [{} for _ in self.plan.ports]
        self.hidden = [{} for _ in self.plan.ports]
        if not self.family.by_key or self.operator.max_rows is not None or not all(s.keys for s in self.ports):
            self.buckets = 1

    @property
    def ports(self) -> tuple[Port, ...]:
        """The rows as they arrive."""
        return self.operator.ports

    @property
    def context(self) -> TraceContext:
        """The context for its family."""
        self._context = self._context or self._build_context()
        return self._context

    def _build_context(self) -> TraceContext:
        computed = {
            computed_column.name: computed_column.expr for port in self.plan.ports for computed_column in port.computed
        }
        words = Words(self._kinds, computed)
        return TraceContext(self.plan, self.operator, words, self.names, dict(self.received), self.numbers)

    def note_types(self, tables: Iterable[pa.Table]) -> None:
        """Take in which types the columns of arrivals have."""
        for table in tables:
            self._kinds |= {f.name: f.type for f in table.schema}

    def step(self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks) -> list[Any]:
        """One batch: what the definition gives, part by part."""
        parts: dict[int, dict[int, list[Row]]] = {}
        for port, rows in arrivals.items():
            for row in rows:
                parts.setdefault(self._bucket(port, row), {}).setdefault(port, []).append(row)
        # All begin together, so that each receives every watermark.
        self._definitions = self._definitions or {n: definition_of(self.operator) for n in range(self.buckets)}
        steps = [definition.step(parts.get(bucket, {}), watermarks) for bucket, definition in self._definitions.items()]
        for step in steps:
            self.received |= getattr(step, "received", {})
        self._context = None
        return steps

    @property
    def state_rows(self) -> list[tuple[int, int, Row]]:
        """The rows that it keeps: port, number, row."""
        state_rows: list[tuple[int, int, Row]] = []
        for definition in self._definitions.values():
            for port, rows in enumerate(cast("tuple[list[Row], ...]", getattr(definition, "state_rows", ()))):
                state_rows += [(port, row[row_column(port)], row) for row in rows]
        return state_rows

    def key(self, port: int, row: Row) -> Any:
        """The values of a row that must equal those of a matching row; None where one is NULL."""
        values = tuple([row[name] for name in self.equal[port]])
        if None in values:
            return None
        return values if _PLAIN.issuperset(map(type, values)) else freeze(values)

    def _bucket(self, port: int, row: Row) -> int:
        return 0 if self.buckets == 1 else hash(self.key(port, row)) % self.buckets


def output_rows(step: Any) -> Sequence[tuple[Any, ...]]:
    """The rows that a definition gives, with weights where it counts them."""
    if isinstance(step, Counter):
        counted = cast("Counter[tuple[Any, ...]]", step)
        return [(*row, number) for row, number in counted.items()]
    return cast("ReferenceStep", step).rows


def _with_row_columns(operator: StreamOperator) -> StreamOperator:
    """The operator that shows of each port by what its rows are followed."""
    changed: dict[str, Any] = {}
    for operator_field in fields(operator):
        value = getattr(operator, operator_field.name)
        if isinstance(value, Port):
            changed[operator_field.name] = _with_row_column(value, len(changed))
        elif isinstance(value, tuple) and value and all(isinstance(each, Port) for each in cast("Any", value)):
            changed[operator_field.name] = tuple(
                _with_row_column(port, n) for n, port in enumerate(cast("tuple[Port, ...]", value))
            )
        elif operator_field.name == "columns":
            changed[operator_field.name] = (*value, row_column(0))
    return replace(operator, **changed)


def _with_row_column(port: Port, number: int) -> Port:
    name = row_column(number)
    unmatched = (*port.unmatched, name) if port.unmatched else ()
    return replace(port, columns=(*port.columns, name), unmatched=unmatched)


LEFT: Mapping[str, OutcomeKind] = {
    "expired": "expired",
    "evicted": "evicted",
    "discarded": "dropped",
    "dropped": "dropped",
}
"""The outcome of a row that left, by its reason."""


@dataclass(frozen=True)
class RowEvent:
    """One outcome of a row: ``by`` is the row that caused it, ``until`` the expiry of the row on the time axis."""

    row_id: int
    what: OutcomeKind
    batch: int
    reason: str
    until: int | None = None
    by: int | None = None


@dataclass(frozen=True)
class WatermarkMove:
    """The watermark of a column after a batch, and the arrival that moved it there."""

    batch: int
    column: str
    value: int
    by: int | None


@dataclass
class TraceRecorder:
    """The ``events`` of rows, the row ids of each match in ``matches``, and the ``watermark_moves``."""

    traced_rows: TracedRows = field(default_factory=TracedRows)
    events: list[RowEvent] = field(default_factory=list[RowEvent])
    matches: list[tuple[int, tuple[int, ...]]] = field(default_factory=list[tuple[int, tuple[int, ...]]])
    watermark_moves: list[WatermarkMove] = field(default_factory=list[WatermarkMove])
    batch: int = 0
    _movers: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict[str, list[tuple[int, int, int]]])
    _tables: dict[tuple[str, Any], list[int]] = field(default_factory=dict[tuple[str, Any], list[int]])

    def end(self, stages: Iterable[TraceStage]) -> None:
        """Record the rows that are in the state at the end, and the outcome of rows without any other event."""
        for stage in stages:
            self._note_alive(stage)
        reported = {event.row_id for event in self.events if event.what in ("alive", "filtered", "null key")}
        for row_id in (number for there in self._tables.values() for number in there if number not in reported):
            self.events.append(RowEvent(row_id, "alive", self.batch, "It is in the table."))
        reported = {event.row_id for event in self.events}
        alive = {
            number
            for event in self.events
            if event.what == "alive"
            for number in self.traced_rows.arrivals(event.row_id)
        }
        for stage in stages:
            for port, rows in enumerate(stage.entered):
                for row_id, (row, batch) in rows.items():
                    if row_id not in reported and not alive.issuperset(self.traced_rows.arrivals(row_id)):
                        kind, reason = stage.family.outcome_without_output(stage.context, port, row)
                        self.events.append(RowEvent(row_id, kind, batch, reason))

    def _note_alive(self, stage: TraceStage) -> None:
        context = stage.context
        for port, row_id, row in stage.state_rows:
            until = stage.family.expiry(context, port, row, row_id)
            reason = stage.family.wait_reason(context, port, row, row_id)
            self.events.append(RowEvent(row_id, "alive", self.batch, reason, until))

    def find_mover(self, column: str, watermark: int) -> tuple[int | None, int] | None:
        """The arrival that moved a watermark to where it is, and its batch."""
        for name, movers in self._movers.items():
            for value, row_id, batch in movers if name.split("#")[0] == column else ():
                if value == watermark:
                    return self._first(row_id), batch
        return None

    def change_table(self, plan: ScanPlan, rows: pa.Table, numbers: list[int]) -> pa.Array:
        """Record the rows of a table that replace others; a retraction gets the number of the row that it retracts."""
        key = [plan.source.field(name) for name in plan.source.primary_key]
        keyed = plan.changes == "upserts" or (key and all(key))
        row_ids: list[int] = []
        for number, row in zip(numbers, python_rows(rows), strict=True):
            sign = row.pop(CHANGE, "+")
            row.pop(WHERE, None)
            values = (
                {key_field.name: row[key_field.name] for key_field in key if key_field is not None} if keyed else row
            )
            there = self._tables.setdefault((plan.alias, same_row(values)), [])
            row_ids.append(self._change(there, number, sign, is_keyed=bool(keyed), by_weight=plan.changes == "weights"))
        return pa.array(row_ids, pa.int64())

    def _change(self, there: list[int], number: int, sign: str, *, is_keyed: bool, by_weight: bool) -> int:
        old = there.pop() if there and (is_keyed or sign == "-") else None
        if old is not None:
            kind: OutcomeKind = "deleted" if sign == "-" else "replaced"
            sentence = "deleted it from the table" if sign == "-" else "replaced it in the table"
            self.events.append(
                RowEvent(old, kind, self.batch, f"{capital(self._name(number))} {sentence}.", None, self._first(number))
            )
        if sign == "+":
            there.append(number)
            return number
        sentence = (
            "It deleted a row of the table." if old is not None else "It deletes a row that the table does not have."
        )
        self.events.append(
            RowEvent(number, "passed", self.batch, sentence, None, None if old is None else self._first(old))
        )
        return old if old is not None and by_weight and not is_keyed else number

    def _first(self, row_id: int) -> int | None:
        # A group without rows is made of nothing.
        return next(iter(self.traced_rows.arrivals(row_id)), None)

    def _name(self, row_id: int) -> str:
        arrivals = [self.traced_rows.raw(arrival) for arrival in self.traced_rows.arrivals(row_id)[:3]]
        return " with ".join(str(arrival) for arrival in arrivals) or EMPTY_GROUP

    def note_dropped(self, lost: tuple[DroppedRows, ...], words: Words) -> None:
        """Note rows that go no further."""
        for dropped in lost:
            for row in python_rows(dropped.rows):
                if dropped.part is None:
                    kind, reason = (
                        cast("OutcomeKind", "null key"),
                        "It has no element, or its primary key is NULL.",
                    )
                else:
                    kind, reason = (
                        "filtered",
                        f"WHERE drops it: {words.condition_words(dropped.part, row)} is not true.",
                    )
                self.events.append(RowEvent(row[ROW], kind, self.batch, reason))

    def note_mover(self, watermark: str, part: int | None, rows: pa.Table, column: str, lag: int) -> None:
        """Record which row may move a watermark: the one with the latest time, per partition that has one."""
        if PARTITION in rows.column_names:
            for name in pc.unique(rows.column(PARTITION)).to_pylist():
                some = rows.filter(pc.equal(rows.column(PARTITION), name)).drop_columns([PARTITION])
                self.note_mover(f"{watermark}#@{name}", part, some, column, lag)
            return
        if part is not None:
            rows = rows.filter(pc.equal(rows.column(PART), part))
        rows = rows.select([column, ROW]).filter(rows.column(column).is_valid())
        if rows.num_rows:
            times = as_int64(rows.column(column).combine_chunks())
            place = int(np.argmax(times))
            value = int(times[place]) - lag
            movers = self._movers.setdefault(watermark, [])
            if not movers or value > movers[-1][0]:
                movers.append((value, rows.column(ROW)[place].as_py(), self.batch))

    def note_watermarks(self, stage: TraceStage, watermarks: Watermarks) -> None:
        """Record the watermarks of a stage; those that another stage has recorded stay as they are."""
        noted = {(move.batch, move.column) for move in self.watermark_moves[-64:]}
        heard = stage.received or {n: v for n, v in watermarks.items() if not n.startswith("#")}
        # The value up to which rows of a table are final is not a watermark.
        heard = {name: watermark for name, watermark in heard.items() if name not in stage.operator.finality_marks}
        for column, value in heard.items():
            if "#" not in column and (self.batch, column) not in noted:
                by = self.find_mover(column, value)
                self.watermark_moves.append(WatermarkMove(self.batch, column, value, None if by is None else by[0]))

    def note_late(self, stage: TraceStage, step: Any, context: TraceContext) -> None:
        """Record late rows, each with the row that moved the watermark past it."""
        for port, row in getattr(step, "late", ()):
            row_id = row[row_column(port)]
            reason, column = stage.family.late_reason(context, port, row)
            stage.late[row_id] = self.batch
            by, mover_words = self._mover_of_watermark(column, context.received.get(column or ""))
            ending = f"{mover_words}." if not reason.endswith(".") else ""
            self.events.append(RowEvent(row_id, "late", self.batch, f"{reason}{ending}", None, by))

    def _mover_of_watermark(self, column: str | None, watermark: int | None) -> tuple[int | None, str]:
        """The row that moved a watermark, and a clause about it."""
        mover = None if column is None or watermark is None else self.find_mover(column, watermark)
        if mover is None or mover[0] is None:
            return None, ""
        return mover[0], f"; {self.traced_rows.raw(mover[0])} had moved it there in batch {mover[1]}"

    def note_dead(self, stage: TraceStage, port: int, table: pa.Table) -> None:
        """Record the rows that cannot match."""
        context = stage.context
        for row_id in table.column(row_column(port)).to_pylist():
            if row_id in stage.late:
                continue
            cause = stage.family.unmatchable_reason(context, port, stage.entered[port][row_id][0])
            if cause is not None:
                self.events.append(RowEvent(row_id, cause[0], self.batch, cause[1]))

    def note_counted(self, stage: TraceStage, row: Row, members: list[int]) -> None:
        """Note that a row went into a group with these members, or that it was taken out of it."""
        row_id, comes = row[row_column(0)], row.get(WEIGHT, 1) > 0
        if comes:
            members.append(row_id)
        elif row_id in members:
            members.remove(row_id)
        keys = stage.ports[0].keys
        key_text = ", ".join(value_in_words(row[key]) for key in keys)
        group = f" in the group of {key_text}" if keys else ""
        kind: OutcomeKind = "counted" if comes else "taken back"
        until = stage.family.emission_time(stage.context, row) if comes else ""
        reason = f"It was counted{group}{until}." if comes else f"It is no longer counted{group}."
        self.events.append(RowEvent(row_id, kind, self.batch, reason))

    def note_outputs(self, stage: TraceStage, rows: pa.Table, steps: list[Any], gone: list[RemovedRow]) -> None:
        """Record matches, unmatched rows that were emitted, and rows that left the state."""
        alone: dict[int, int] = {}
        for row_ids, sign in self._pairs(stage, rows, steps):
            present = [(port, row_id) for port, row_id in enumerate(row_ids) if row_id is not None]
            if sign > 0 and len(present) == 1 < len(row_ids):
                alone[present[0][1]] = present[0][0]
                continue
            if sign > 0 and len(present) > 1:
                matched_rows = dict.fromkeys(
                    arrival for _, row_id in present for arrival in self.traced_rows.arrivals(row_id)
                )
                self.matches.append((self.batch, tuple(matched_rows)))
            for port, row_id in present:
                self._note_output(stage, port, row_id, [f for _, f in present if f != row_id], sign)
        for step in steps:
            alone |= {row[-1]: port for port, row in getattr(step, "unmatched", ())}
        for arrival in gone:
            self._note_removal(stage, arrival, alone)
        for row_id, port in alone.items():
            reason = stage.family.alone_reason(stage.context, port, stage.entered[port][row_id][0])
            self.events.append(RowEvent(row_id, stage.family.alone_outcome(stage.operator), self.batch, reason))

    def _pairs(
        self, stage: TraceStage, rows: pa.Table, steps: list[Any]
    ) -> Iterator[tuple[tuple[int | None, ...], int]]:
        """The rows that a result is made of, by port, and whether it comes or goes."""
        names = [row_column(n) for n in range(len(stage.plan.ports)) if row_column(n) in rows.column_names]
        weights = rows.column(WEIGHT).to_pylist() if WEIGHT in rows.column_names else [1] * rows.num_rows
        shown = zip(*(python_values(rows.column(name)) for name in names), strict=True) if names else ()
        is_hidden = getattr(stage.operator, "kind", "") in LEFT_ONLY and isinstance(steps[0], ReferenceStep)
        for row_ids, weight in zip(shown, weights if names else (), strict=True):
            if not (is_hidden and None not in row_ids):
                yield row_ids, weight
        if is_hidden:
            # A SEMI or ANTI join shows the left row once, with any number of matches.
            yield from (((pair[0][row_column(0)], pair[1][row_column(1)]), 1) for step in steps for pair in step.pairs)

    def _note_output(self, stage: TraceStage, port: int, row_id: int, others: list[int], sign: int) -> None:
        by = self._first(others[0]) if others else None
        if not others:
            change = stage.family.change_outcome(stage.context, sign)
            if change is not None:
                self.events.append(RowEvent(row_id, change[0], self.batch, change[1]))
            elif sign < 0:
                self.events.append(RowEvent(row_id, "taken back", self.batch, "It is no longer without a match."))
            return
        name = " and ".join(self._name(other) for other in others)
        row = stage.entered[port][row_id][0]
        until = stage.family.expiry(stage.context, port, row, row_id)
        kind, reason = (
            ("matched", f"It matched {name}.") if sign > 0 else ("taken back", f"It no longer matches {name}.")
        )
        self.events.append(RowEvent(row_id, cast("OutcomeKind", kind), self.batch, reason, until, by))

    def _note_removal(self, stage: TraceStage, gone: RemovedRow, alone: dict[int, int]) -> None:
        context, row_id = stage.context, gone.row[row_column(gone.port)]
        reason, column = stage.family.removal_reason(context, gone)
        by, mover_words = self._mover_of_watermark(column, context.received.get(column or ""))
        if gone.by is not None:
            by = self._first(gone.by[row_column(gone.port)])
            mover_words = f" by {self._name(gone.by[row_column(gone.port)])}" if gone.by is not gone.row else ""
        whats = self._removal_kinds(gone, alone)
        until = stage.family.expiry(context, gone.port, gone.row, row_id)
        if until is None and context.numbers and gone.by is not None:
            until = context.numbers.get(gone.by[row_column(gone.port)], (None, None))[0]
        ending = "" if reason.endswith(".") else f"{mover_words}."
        self.events += [RowEvent(row_id, kind, self.batch, f"{reason}{ending}", until, by) for kind in whats]

    def _removal_kinds(self, gone: RemovedRow, alone: dict[int, int]) -> list[OutcomeKind]:
        """The outcomes of a row that left. One that a limit dropped may be emitted padded, too, and has both."""
        kind = LEFT[gone.reason]
        if alone.pop(gone.row[row_column(gone.port)], None) is None:
            return [kind]
        return [kind, "padded"] if kind == "dropped" else ["padded"]
