"""One join or stage of a query while it is told what becomes of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa

from watersmeet.fates.family import FamilyFates, Scene
from watersmeet.fates.words import Words
from watersmeet.joins.core.operator import Family, Marks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.rowwise import Row, Step, freeze
from watersmeet.local.definitions import Definition, definition_of
from watersmeet.local.query import ROW
from watersmeet.physical import JoinPlan, leaf_plans

_PLAIN = frozenset({int, str, bytes, datetime, date, Decimal, bool})
"""Values that are counted as they are."""


def row_column(port: int) -> str:
    """The column by which the rows of a port are followed."""
    return f"{ROW}{port}"


@dataclass
class Stage:
    """A join or stage: its definition, in ``buckets`` parts by key, and the rows that came to it.

    ``entered``: per port the rows by number, with their batch. ``received``: the marks heard. ``numbers``: the number
    and the clock of rows that a window has numbered. ``keys``: per port all keys that came, also of rows that nobody
    asks about, with their values. ``hidden``: per port the rows that went no further before it, by key.
    """

    plan: JoinPlan
    family: FamilyFates
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
    _scene: Scene | None = None

    def __post_init__(self) -> None:
        self.operator = _followed(self.plan.operator)
        self.names = tuple("+".join(leaf.alias for leaf in leaf_plans(port.input)) for port in self.plan.ports)
        self.equal = tuple(self.family.equal(self.operator, port) for port in range(len(self.plan.ports)))
        self.entered = [{} for _ in self.plan.ports]
        self.keys = [{} for _ in self.plan.ports]
        self.hidden = [{} for _ in self.plan.ports]
        if not self.family.by_key or self.operator.max_rows is not None or not all(s.keys for s in self.sides):
            self.buckets = 1

    @property
    def sides(self) -> tuple[Port, ...]:
        """How rows arrive."""
        return self.operator.sides

    @property
    def scene(self) -> Scene:
        """What its family is told now."""
        self._scene = self._scene or self._made_scene()
        return self._scene

    def _made_scene(self) -> Scene:
        computed = {one.name: one.expr for port in self.plan.ports for one in port.computed}
        words = Words(self._kinds, computed)
        return Scene(self.plan, self.operator, words, self.names, dict(self.received), self.numbers)

    def know(self, tables: Iterable[pa.Table]) -> None:
        """Take in which types the columns of arrivals have."""
        for table in tables:
            self._kinds |= {f.name: f.type for f in table.schema}

    def step(self, arrivals: Mapping[int, Sequence[Row]], marks: Marks) -> list[Any]:
        """One batch: what the definition gives, part by part."""
        parts: dict[int, dict[int, list[Row]]] = {}
        for port, rows in arrivals.items():
            for row in rows:
                parts.setdefault(self._bucket(port, row), {}).setdefault(port, []).append(row)
        # All begin together, so that each hears every mark.
        self._definitions = self._definitions or {n: definition_of(self.operator) for n in range(self.buckets)}
        steps = [one.step(parts.get(bucket, {}), marks) for bucket, one in self._definitions.items()]
        for step in steps:
            self.received |= getattr(step, "received", {})
        self._scene = None
        return steps

    @property
    def kept(self) -> list[tuple[int, int, Row]]:
        """The rows that it keeps: port, number, row."""
        found: list[tuple[int, int, Row]] = []
        for definition in self._definitions.values():
            for port, rows in enumerate(cast("tuple[list[Row], ...]", getattr(definition, "kept", ()))):
                found += [(port, row[row_column(port)], row) for row in rows]
        return found

    def key(self, port: int, row: Row) -> Any:
        """What of a row must equal that of another; None where a part is NULL."""
        values = tuple([row[name] for name in self.equal[port]])
        if None in values:
            return None
        return values if _PLAIN.issuperset(map(type, values)) else freeze(values)

    def _bucket(self, port: int, row: Row) -> int:
        return 0 if self.buckets == 1 else hash(self.key(port, row)) % self.buckets


def rows_given(step: Any) -> Sequence[tuple[Any, ...]]:
    """The rows that a definition gives, with weights where it counts them."""
    if isinstance(step, Counter):
        counted = cast("Counter[tuple[Any, ...]]", step)
        return [(*row, number) for row, number in counted.items()]
    return cast("Step", step).rows


def _followed(operator: Family) -> Family:
    """The operator that shows of each port by what its rows are followed."""
    changed: dict[str, Any] = {}
    for one in fields(operator):
        value = getattr(operator, one.name)
        if isinstance(value, Port):
            changed[one.name] = _following(value, len(changed))
        elif isinstance(value, tuple) and value and all(isinstance(each, Port) for each in cast("Any", value)):
            changed[one.name] = tuple(_following(port, n) for n, port in enumerate(cast("tuple[Port, ...]", value)))
        elif one.name == "columns":
            changed[one.name] = (*value, row_column(0))
    return replace(operator, **changed)


def _following(port: Port, number: int) -> Port:
    name = row_column(number)
    unmatched = (*port.unmatched, name) if port.unmatched else ()
    return replace(port, columns=(*port.columns, name), unmatched=unmatched)
