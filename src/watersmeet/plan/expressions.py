"""Expressions as the user wrote them, with as much structure as the analysis needs.

Spark evaluates expressions, so their text is kept and only references to columns are replaced in it. The structure
(`op` and `args`) covers what Watersmeet itself must understand: boolean logic, comparisons, arithmetic, casts,
literals. Whatever else there is (functions, CASE) is ``other``: text with the references found in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from watersmeet.catalog import NOWHERE, Span

Op = Literal[
    "column", "literal", "interval",
    "and", "or", "not", "is_null",
    "=", "<=>", "<>", "<", "<=", ">", ">=",
    "+", "-", "*", "/", "%", "negate",
    "cast", "other",
]  # fmt: skip
"""What an expression is. An interval holds microseconds, a cast the type as its value; BETWEEN is read as two
comparisons, IN as equalities."""

COMPARISONS = frozenset({"=", "<=>", "<>", "<", "<=", ">", ">="})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%"})

Value = int | float | Decimal | str | bool | None


@dataclass(frozen=True)
class Reference:
    """A column named in a text: ``parts`` as written, at ``start`` to ``end`` of the expression's own text.

    `resolve` fills in the rest: the alias of the source, the column and the path of fields inside it.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    source: str = ""
    name: str = ""
    path: tuple[str, ...] = ()

    @property
    def column(self) -> str:
        """The name of the column in every frame past the source: ``alias.column``."""
        return f"{self.source}.{self.name}"


@dataclass(frozen=True)
class Expr:
    """One expression.

    Leaves (`column`, `literal`, `interval`, `other`) carry their text and, relative to it, the references in it; the
    others are made of `args`. ``span`` is the place in the script that an error would point at.
    """

    op: Op
    args: tuple[Expr, ...] = ()
    text: str = ""
    refs: tuple[Reference, ...] = ()
    value: Value = None
    span: Span = NOWHERE

    @property
    def references(self) -> Iterator[Reference]:
        """All references in it, in reading order."""
        yield from self.refs
        for arg in self.args:
            yield from arg.references

    @property
    def sources(self) -> frozenset[str]:
        """The aliases it mentions, once resolved."""
        return frozenset(ref.source for ref in self.references)

    def map_references(self, change: Callable[[Reference], Reference]) -> Expr:
        """The same expression with every reference replaced by ``change(reference)``."""
        return replace(
            self,
            refs=tuple(change(ref) for ref in self.refs),
            args=tuple(arg.map_references(change) for arg in self.args),
        )

    def sql(self, name: Callable[[Reference], str] = lambda ref: quote(ref.column)) -> str:
        """Spark SQL for it, every reference written as ``name`` says (fields of a path follow it)."""
        match self.op:
            case "column" | "literal" | "interval" | "other":
                return _splice(self.text, self.refs, name)
            case "not":
                return f"(NOT {self.args[0].sql(name)})"
            case "negate":
                return f"(- {self.args[0].sql(name)})"
            case "is_null":
                return f"({self.args[0].sql(name)} IS NULL)"
            case "cast":
                return f"CAST({self.args[0].sql(name)} AS {self.value})"
            case _:
                return "(" + f" {self.op.upper()} ".join(arg.sql(name) for arg in self.args) + ")"


def quote(name: str) -> str:
    """The name in backticks.

    >>> quote("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"


def conjuncts(expr: Expr | None) -> tuple[Expr, ...]:
    """The parts of an expression that are joined by AND, outermost first to last."""
    if expr is None:
        return ()
    if expr.op == "and":
        return tuple(part for arg in expr.args for part in conjuncts(arg))
    return (expr,)


def column(parts: tuple[str, ...], span: Span = NOWHERE) -> Expr:
    """A reference to a column that stands alone."""
    text = ".".join(quote(part) for part in parts)
    return Expr("column", text=text, refs=(Reference(parts, 0, len(text)),), span=span)


def _splice(text: str, refs: tuple[Reference, ...], name: Callable[[Reference], str]) -> str:
    out: list[str] = []
    position = 0
    for ref in sorted(refs, key=lambda r: r.start):
        out += [text[position : ref.start], name(ref), *(f".{quote(part)}" for part in ref.path)]
        position = ref.end
    return "".join(out) + text[position:]
