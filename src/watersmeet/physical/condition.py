"""Expressions across the sides as conditions of the kernel.

Whatever is over one side (a column, a function call, a constant) becomes an operand: a column as it is, anything else
a column that Spark computes before the exchange. Comparisons, arithmetic and boolean logic between operands are left to
the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import cast

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, Operator
from watersmeet.physical.nodes import Computed
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr, Op

Wrapped = tuple[Expr, str]
"""An expression over one side and the template that wraps it."""

LOGIC = frozenset({"and", "or", "not", "is_null", "negate"})


def plain_condition(expr: Expr) -> Condition | None:
    """An expression of columns, literals, comparisons, arithmetic and logic as a condition; None if it needs Spark."""
    if expr.op in ("literal", "interval"):
        return _constant(expr)
    if expr.op == "column":
        return None if expr.refs[0].path else ColumnRef(expr.refs[0].column)
    if expr.op in ("other", "cast", "call", "aggregate", "around", "windows"):
        return None
    return _fold(expr.op, [plain_condition(arg) for arg in expr.args])


@dataclass
class Operands:
    """The operands of a join's conditions, collected per side while conditions are translated."""

    sides: tuple[frozenset[str], frozenset[str]]
    types: Types
    columns: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    computed: tuple[list[Computed], list[Computed]] = field(default_factory=lambda: ([], []))
    names: tuple[dict[Wrapped, str], dict[Wrapped, str]] = field(default_factory=lambda: ({}, {}))

    def condition(self, expr: Expr) -> Condition | None:
        """The expression as a condition; None if something across the sides is beyond the kernel."""
        if expr.op in ("literal", "interval"):
            return _constant(expr)
        for port, side in enumerate(self.sides):
            if expr.sources <= side:
                return self.operand(port, expr)
        if expr.op in COMPARISONS:
            return self._comparison(expr)
        if expr.op not in LOGIC and expr.op not in ARITHMETIC:
            return None
        if expr.op == "/" and any((self.types.type_of(arg) or "").startswith("DECIMAL") for arg in expr.args):
            # Arrow rounds the quotient of decimals otherwise than Spark.
            return None
        return _fold(expr.op, [self.condition(arg) for arg in expr.args])

    def operand(self, port: int, expr: Expr, template: str = "{}") -> ColumnRef:
        """The column that holds an expression over one side, as the template wraps it."""
        if expr.op == "column" and not expr.refs[0].path and template == "{}":
            name = expr.refs[0].column
            if name not in self.columns[port]:
                self.columns[port].append(name)
            return ColumnRef(name)
        name = self.names[port].setdefault((expr, template), f"#{'lr'[port]}{len(self.computed[port])}")
        if len(self.names[port]) > len(self.computed[port]):
            self.computed[port].append(Computed(name, expr, template))
        return ColumnRef(name)

    def _comparison(self, expr: Expr) -> Condition | None:
        """A comparison; two operands of different types are first cast to the type in which Spark compares them."""
        owners = [
            next((p for p, side in enumerate(self.sides) if arg.sources and arg.sources <= side), None)
            for arg in expr.args
        ]
        if None in owners:
            return _fold(expr.op, [self.condition(arg) for arg in expr.args])
        templates = self.comparable(expr.args[0], expr.args[1])
        operands = tuple(self.operand(cast("int", owners[i]), expr.args[i], templates[i]) for i in (0, 1))
        return Apply(cast("Operator", expr.op), operands)

    def comparable(self, first: Expr, second: Expr) -> tuple[str, str]:
        """How the two must be wrapped so that their values compare as Spark compares them."""
        types = (self.types.type_of(first), self.types.type_of(second))
        common = types[0] if types[0] == types[1] else self.types.common_type(first, second)
        if common is None:
            return ("{}", "{}")
        # Text of another collation is refused where types are known; this one compares by its lower case.
        wrap = key_template(common)
        cast_ = wrap.format(f"CAST({{}} AS {common})")
        return (wrap if types[0] == common else cast_, wrap if types[1] == common else cast_)


def key_template(type_: str | None) -> str:
    """How a value of a type is wrapped so that equal bytes are equal values: UTF8_LCASE compares by lower case.

    ``lower`` alone writes a capital sigma at the end of a word as another letter than the collation does, which takes
    both small sigmas for one.

    >>> key_template("STRING")
    '{}'
    """
    is_folded = type_ is not None and type_.endswith(" COLLATE UTF8_LCASE")
    return "translate(lower(CAST({} AS STRING)), '\u03c2', '\u03c3')" if is_folded else "{}"


def _constant(expr: Expr) -> Constant:
    return Constant(timedelta(microseconds=cast("int", expr.value)) if expr.op == "interval" else expr.value)


def _fold(op: Op, args: list[Condition | None]) -> Condition | None:
    """The operator over its arguments, of arithmetic two at a time; None if one of them is missing."""
    operands, operator = [arg for arg in args if arg is not None], cast("Operator", op)
    if len(operands) < len(args):
        return None
    if len(operands) == 1 or op in ("and", "or"):
        return Apply(operator, tuple(operands))
    return reduce(lambda first, other: Apply(operator, (first, other)), operands)
