"""The definition of the joins of two changing tables, slow and obvious: the oracle of their tests.

A table is a bag: rows with their multiplicities, which may be negative for a while. Two rows are one if all their
columns are the same, where NaN is NaN and -0.0 is not 0.0.

A left and a right row *match* when neither is dead (its side says so, or a key is NULL), their keys are equal, and the
rest of the condition is true: false and unknown are both "no".

`join_bags` is the join of two bags. The multiplicity of a pair is the product of those of its rows. A row of a
preserved side is in the result padded, if the multiplicities of its matches add up to zero. ``semi``: the left rows for
which they do not add up to zero; ``anti``: those for which they do.

A batch (`ChangelogReference.step`) gives the difference of `join_bags` after and before its changes. An upsert replaces
the row with its key, a delete removes it; changes of one key count in the order of their positions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from watersmeet.operators.changelog.kernel import TableJoinOperator
from watersmeet.operators.core.changes import OP, POSITION, WEIGHT
from watersmeet.operators.core.operator import Port, Watermarks
from watersmeet.operators.core.rowwise import Row, compare, is_match


@dataclass
class Bag:
    """Rows with their multiplicities; a row with zero is removed."""

    rows: dict[Any, tuple[Row, int]] = field(default_factory=dict[Any, tuple[Row, int]])

    def add(self, row: Row, number: int) -> None:
        """Let a row be there so many times more."""
        key = freeze_bits(row)
        total = self.rows.get(key, (row, 0))[1] + number
        if total:
            self.rows[key] = (row, total)
        else:
            self.rows.pop(key, None)

    def __iter__(self) -> Any:
        return iter(list(self.rows.values()))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class ChangelogReference:
    """A join of two tables in progress; ``tables`` are their current contents.

    >>> join = TableJoinOperator("left", Port(("a",), keys=("a",)), Port(("b",), keys=("b",)))
    >>> reference = ChangelogReference(join)
    >>> reference.step({0: [{"a": 1, "#weight": 1}]})
    Counter({(1, None): 1})
    >>> sorted(reference.step({1: [{"b": 1, "#weight": 2}]}).items(), key=str)
    [((1, 1), 2), ((1, None), -1)]
    """

    join: TableJoinOperator
    tables: tuple[Bag, Bag] = field(default_factory=lambda: (Bag(), Bag()))

    def step(
        self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None
    ) -> Counter[tuple[Any, ...]]:
        """One batch: the changes per port; gives what changes in the result, each row with a number."""
        before = join_bags(self.join, *self.tables)
        for port, rows in arrivals.items():
            apply_changes(self.join.ports[port], self.tables[port], rows)
        after = join_bags(self.join, *self.tables)
        after.subtract(before)
        return Counter({row: number for row, number in after.items() if number})


def apply_changes(side: Port, table: Bag, rows: Sequence[Row]) -> None:
    """Let changes happen to a table."""
    stored = (*side.columns, *side.keys, *side.operands, *side.upsert_key, *([] if side.dead is None else [side.dead]))
    if not side.upsert_key:
        for row in rows:
            table.add({name: row[name] for name in stored}, row.get(WEIGHT, 1))
        return
    for row in sorted(rows, key=lambda row: row.get(POSITION, 0)):
        for old, number in table:
            if all(is_same(old[name], row[name]) for name in side.upsert_key):
                table.add(old, -number)
        if row[OP] > 0:
            table.add({name: row[name] for name in stored}, 1)


def join_bags(join: TableJoinOperator, left: Bag, right: Bag) -> Counter[tuple[Any, ...]]:
    """The join of two bags: each row of the result with its count."""
    result: Counter[tuple[Any, ...]] = Counter()
    match_weights: dict[tuple[int, Any], int] = {}
    for left_row, left_count in left:
        for right_row, right_count in right:
            if is_match(join.ports, join.condition, left_row, right_row):
                for port, row, number in ((0, left_row, right_count), (1, right_row, left_count)):
                    match_weights[port, freeze_bits(row)] = match_weights.get((port, freeze_bits(row)), 0) + number
                if join.kind not in ("semi", "anti"):
                    result[result_row(join, left_row, right_row)] += left_count * right_count
    for port, table in enumerate((left, right)):
        for row, number in table:
            is_alone = match_weights.get((port, freeze_bits(row)), 0) == 0
            if is_alone != (join.kind == "semi") and can_emit_unmatched(join, port):
                result[result_row(join, row, None) if port == 0 else result_row(join, None, row)] += number
    return Counter({row: number for row, number in result.items() if number})


def can_emit_unmatched(join: TableJoinOperator, port: int) -> bool:
    """Whether rows of that port are emitted without a match."""
    return join.kind == "full" or join.kind in (("left", "semi", "anti"), ("right",))[port]


def result_row(join: TableJoinOperator, left: Row | None, right: Row | None) -> tuple[Any, ...]:
    """The result row of a pair, or of an unmatched row."""
    left_values = [None if left is None else freeze_bits(left[name]) for name in join.left.columns]
    return (*left_values, *(None if right is None else freeze_bits(right[name]) for name in join.right.columns))


def is_same(left: Any, right: Any) -> bool:
    """Whether two values of a key are equal; NULL is NULL."""
    return left is right or compare(left, right) == 0


def freeze_bits(value: Any) -> Any:
    """A hashable value that is equal only to values with the same text: every NaN is the same, -0.0 is not 0.0.

    >>> freeze_bits(-0.0) == freeze_bits(0.0), freeze_bits(math.nan) == freeze_bits(-math.nan)
    (False, True)
    """
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else ("-0.0",) if str(value) == "-0.0" else value
    if isinstance(value, dict):
        return tuple((name, freeze_bits(part)) for name, part in cast("dict[str, Any]", value).items())
    if isinstance(value, list | tuple):
        return tuple(freeze_bits(part) for part in cast("Iterable[Any]", value))
    return value


DEFINITION = ChangelogReference
