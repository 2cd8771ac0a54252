"""Random joins of two tables and random histories of their changes.

The ranges are small on purpose: keys collide, codes of unequal keys do too, rows come, go and come again.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tests.operators.strategies import KINDS, Row, conditions

from watersmeet.operators.changelog.definition import Bag, freeze_bits
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator, NestedLoopJoinOperator, TableJoinOperator
from watersmeet.operators.core.changes import OP, POSITION, WEIGHT
from watersmeet.operators.core.operator import Emission, Port
from watersmeet.operators.state.layout import Budget
from watersmeet.operators.state.table import BUDGET

TINY = Budget(block=3, merge_at=2, smallest_tier=2, balanced=True, chunk=4)
"""So that a few rows are many: runs have several blocks, are merged often, and a batch is worked off in parts."""

NESTED = pa.struct([("a", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.int64()))])
TYPES = {
    "k": pa.int64(),
    "k2": pa.int64(),
    "f": pa.float64(),
    "v": pa.int64(),
    "x": pa.decimal128(12, 2),
    "t": pa.string(),
    "n": NESTED,
    "g": pa.struct([("a", pa.list_(pa.float64()))]),
    "code": pa.int64(),
    "dead": pa.bool_(),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "k": (1, 1, 2, None),
    "k2": (0, 0, 1, None),
    "f": (0.0, -0.0, math.nan, 1.5, None),
    "v": (0, 1, 2, None),
    "x": (Decimal("1.50"), None),
    "t": ("a", "", None),
    "n": ({"a": [-0.0, None], "m": [("x", 1)]}, {"a": [0.0, None], "m": []}, {"a": None, "m": None}, None),
    "g": ({"a": [0.0, math.nan]}, {"a": [-0.0, math.nan]}, {"a": [None]}, None),
    "dead": (False, False, False, True),
    "change": (1, 1, 1, 2, -1, -1),
}
_NUMBERS = math.prod(len(values) for values in _CHOICES.values())

KEYS = ((), ("k",), ("k", "k2"), ("f",), ("g",))
UPSERT_KEYS = {(): ("k",), ("k",): ("k", "k2"), ("k", "k2"): ("k2", "k"), ("f",): ("f",), ("g",): ("g", "t")}

Changes = tuple[list[Row], list[Row]]


@dataclass(frozen=True)
class JoinExample:
    """A join and how codes follow from its keys: with few values, so that unequal keys have equal codes."""

    join: TableJoinOperator
    keys: tuple[str, ...]

    def rows(self, port: int) -> st.SearchStrategy[Row]:
        """A change of a side. One number says it all, which is many times faster to draw than a value per column."""
        s, side = "lr"[port], self.join.ports[port]

        def row_of(number: int) -> Row:
            row: Row = {}
            for name, values in _CHOICES.items():
                number, choice = divmod(number, len(values))
                row[f"{s}.{name}"] = values[choice]
            change = row.pop(f"{s}.change")
            row[f"{s}.code"] = self.code(row, s)
            if not side.upsert_key:
                return {**row, WEIGHT: change}
            if change > 0:
                return {**row, OP: 1}
            known = (*side.upsert_key, *side.keys, f"{s}.code")
            return {**{name: value if name in known else None for name, value in row.items()}, OP: -1}

        return st.integers(0, _NUMBERS - 1).map(row_of)

    def code(self, row: Row, s: str) -> int:
        if self.keys == ("f",):
            return int(row[f"{s}.f"] == 1.5)
        if self.keys == ("g",) or not self.keys:
            return 0
        return (row[f"{s}.k"] or 0) if self.join.left.exact else (row[f"{s}.k"] or 0) % 2

    @property
    def batches(self) -> st.SearchStrategy[Changes]:
        return st.tuples(*(st.lists(self.rows(port), max_size=5) for port in (0, 1)))

    def histories(self, size: int = 6) -> st.SearchStrategy[list[Changes]]:
        return st.lists(self.batches, min_size=1, max_size=size).map(self.with_positions)

    def with_positions(self, batches: list[Changes]) -> list[Changes]:
        """The same, with the positions of upserts against the order in which they stand."""

        def positions(rows: list[Row]) -> list[Row]:
            return [{**row, POSITION: -i} if OP in row else row for i, row in enumerate(rows)]

        return [(positions(left), positions(right)) for left, right in batches]

    def tables(self, batch: Changes) -> dict[int, pa.Table]:
        """The changes as a kernel takes them; a port without changes is absent."""
        return {port: self.table(port, rows) for port, rows in enumerate(batch) if rows}

    def table(self, port: int, rows: list[Row]) -> pa.Table:
        fields = [pa.field(f"{'lr'[port]}.{name}", type_) for name, type_ in TYPES.items()]
        changes = (
            [(OP, pa.int8()), (POSITION, pa.int64())] if self.join.ports[port].upsert_key else [(WEIGHT, pa.int64())]
        )
        return pa.Table.from_pylist(rows, schema=pa.schema([*fields, *changes]))


@st.composite
def join_examples(draw: st.DrawFn, *, nested: bool = False, plain: bool = False) -> JoinExample:
    """A join; ``plain``: without nested keys, decimals and zeros of two signs."""
    keys = () if nested else draw(st.sampled_from(KEYS[:3] if plain else KEYS))
    exact = keys == ("k",) and draw(st.booleans())
    dead = draw(st.booleans())
    kind = draw(st.sampled_from(KINDS))
    choices = (("k", "v"), ("v",), ("t", "v", "k")) if plain else (("k", "f", "x"), ("n", "t"), ("v",))
    shown: list[tuple[str, ...]] = [draw(st.sampled_from(choices)) for _ in "lr"]
    if kind in ("semi", "anti"):
        shown[1] = ()
    sides = [
        Port(
            columns=tuple(f"{s}.{c}" for c in shown[i]),
            keys=tuple(f"{s}.{c}" for c in keys),
            code=None if nested else f"{s}.code",
            exact=exact,
            dead=f"{s}.dead" if dead else None,
            operands=(f"{s}.v",),
            upsert_key=tuple(f"{s}.{c}" for c in UPSERT_KEYS[keys]) if draw(st.booleans()) else (),
        )
        for i, s in enumerate("lr")
    ]
    condition = draw(conditions()) if nested or draw(st.booleans()) else None
    make = NestedLoopJoinOperator if nested else ChangelogJoinOperator
    return JoinExample(make(kind, sides[0], sides[1], condition, budget=draw(st.sampled_from((TINY, BUDGET)))), keys)


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    # By position: a table of joined rows may carry one name twice.
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def changes_of(join: TableJoinOperator, emission: Emission) -> Counter[tuple[Any, ...]]:
    """The changes that came out; no row both comes and goes."""
    found: Counter[tuple[Any, ...]] = Counter()
    for table in emission.rows:
        assert table.column_names == [*join.left.columns, *join.right.columns, WEIGHT]
        for row in tuples(table):
            name = tuple(freeze_bits(value) for value in row[:-1])
            found[name] += row[-1]
            assert row[-1] * found[name] > 0
    return found


def repair(side: Port, table: Bag) -> list[Row]:
    """Changes after which no row of the table is there less than zero times."""
    return [{**row, WEIGHT: -number} for row, number in table if number < 0 and not side.upsert_key]
