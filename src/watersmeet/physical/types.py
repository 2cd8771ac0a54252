"""What the choice of an operator must know about types, and who tells it.

Spark's analyser is the authority. Without a JVM the declared types of plain columns are known, which is enough to
explain a query; of any other expression the type is not known then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from watersmeet.catalog import Source
from watersmeet.plan.expressions import Expr
from watersmeet.type_names import INTEGERS, normalise_type


class Types(Protocol):
    """Tells types, as normalised DDL text; None where it cannot."""

    def type_of(self, expr: Expr) -> str | None:
        """The type of an expression over one side."""
        ...

    def common_type(self, left: Expr, right: Expr) -> str | None:
        """The type in which the two compare."""
        ...


class DeclaredTypes:
    """The types of plain columns, as the sources declare them."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    def type_of(self, expr: Expr) -> str | None:
        """The declared type of a plain column."""
        if expr.op != "column" or expr.refs[0].path:
            return None
        ref = expr.refs[0]
        source = self.sources.get(ref.source)
        field = source.field(ref.name) if source is not None else None
        return normalise_type(field.type) if field is not None and field.type else None

    def common_type(self, left: Expr, right: Expr) -> str | None:
        """The wider of two integer types, or the type that both have."""
        first, second = self.type_of(left), self.type_of(right)
        if first == second:
            return first
        if first in INTEGERS and second in INTEGERS:
            return max(first, second, key=INTEGERS.index)
        return None
