"""Lineage: each row is an arrival, or was made of several; and a join or stage that records it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa

from watersmeet.local.cells import Definition, definition_of
from watersmeet.local.query import ROW, WHERE
from watersmeet.operators.core.changes import CHANGE
from watersmeet.operators.core.operator import Port, StreamOperator, Watermarks
from watersmeet.operators.core.python_values import python_value
from watersmeet.operators.core.rowwise import ReferenceStep, Row, freeze
from watersmeet.operators.explainer import FamilyTracer, TraceContext
from watersmeet.operators.outcomes import Words, row_in_words
from watersmeet.physical import JoinPlan, leaf_plans

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
