"""Conditions across the sides, with SQL's three-valued logic, over whole Arrow arrays.

A condition is a small tree of columns, constants and operators. `evaluate` gives one value per row: true, false or null
(unknown). A pair of rows meets only where the condition is true. Comparisons follow Spark: NaN equals NaN and is greater
than every number, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

Operator = Literal[
    "and", "or", "not", "is_null",
    "=", "<=>", "<>", "<", "<=", ">", ">=",
    "+", "-", "*", "/", "%", "negate",
]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of either side, by its name in the exchange."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: int | float | Decimal | str | bool | None


@dataclass(frozen=True)
class Apply:
    """An operator and what it is applied to."""

    operator: Operator
    args: tuple[Condition, ...]


Condition = Column | Constant | Apply
