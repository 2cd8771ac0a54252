"""Comparisons in one form, and the passes that check their types and collations.

``v1.a - v2.a + 10 >= 0`` and ``v2.a <= 10 + v1.a`` say the same: the one column is at least the other less a constant.
Only sums are understood: a column on each side of the difference, each once, and any number of constants.

Groups, DISTINCT and keys compare bytes, so strings of a collation are refused there. Comparisons across the sides of a
join follow UTF8_LCASE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Literal

from watersmeet.catalog import Amount, Source
from watersmeet.duration import DAY
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import ARITHMETIC, CLOSED, COMPARISONS, LISTED, Expr
from watersmeet.logical.nodes import Item, walk_relations
from watersmeet.logical.passes.column_types import TimeType, can_hold, class_of, is_lossless_cast, time_type_of, type_of
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.query import AnalyzedGroup, AnalyzedTop, QueryWarning
from watersmeet.logical.relation import scans
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.aggregates import DISTINCT

Direction = Literal["=", ">", ">="]

_TURNED = {"<": ">", "<=": ">="}
_DENIED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Comparison:
    """``high + constants`` is equal to, greater than or at least ``low``.

    ``casts``: the columns that were cast on the way, each with the type it was cast to.
    """

    high: Expr
    low: Expr
    direction: Direction
    constants: tuple[Amount, ...]
    casts: tuple[tuple[Expr, str], ...] = ()

    def is_lossless(self, type_of: Callable[[Expr], str]) -> bool:
        """True if no cast changes a time, so that the comparison is one of the columns themselves."""
        return all(is_lossless_cast(type_of(column), type_) for column, type_ in self.casts)

    def constant(self, family: TimeType) -> int:
        """The sum of the constants in the unit of the event times. A plain number is days for a DATE, as in Spark."""
        return sum(c.value * (DAY if family == "date" and not c.is_interval else 1) for c in self.constants)

    def misfit(self, family: TimeType) -> Amount | None:
        """A constant that cannot be added to a time of that family."""
        if family == "date":
            return None
        return next((c for c in self.constants if c.is_interval == (family == "integer")), None)


@dataclass(frozen=True)
class OrderedComparison:
    """``high`` is equal to, greater than or at least ``low``, whatever the two are."""

    high: Expr
    low: Expr
    direction: Direction


@dataclass(frozen=True)
class Sum:
    """Columns and constants, added and taken away."""

    plus: tuple[Expr, ...] = ()
    minus: tuple[Expr, ...] = ()
    constants: tuple[Amount, ...] = ()
    casts: tuple[tuple[Expr, str], ...] = ()

    def subtract(self, other: Sum) -> Sum:
        """The difference of two sums."""
        negated = tuple(Amount(-c.value, c.is_interval) for c in other.constants)
        return self.add(Sum(other.minus, other.plus, negated, other.casts))

    def add(self, other: Sum) -> Sum:
        """Both sums together."""
        plus, minus = self.plus + other.plus, self.minus + other.minus
        return Sum(plus, minus, self.constants + other.constants, self.casts + other.casts)


def compare(expr: Expr) -> Comparison | None:
    """The comparison of two columns that an expression is; None if it is something else.

    >>> from watersmeet.logical.expressions import column
    >>> ten = Expr("literal", text="10", value=10)
    >>> a, b = column(("a",)), column(("b",))
    >>> found = compare(Expr("<=", (b, Expr("+", (a, ten)))))
    >>> found.high == a, found.low == b, found.direction, found.constant("integer")
    (True, True, '>=', 10)
    """
    comparison = order_sides(expr)
    if comparison is None:
        return None
    left, right = sum_of(comparison.high), sum_of(comparison.low)
    if left is None or right is None:
        return None
    difference = left.subtract(right)
    if len(difference.plus) != 1 or len(difference.minus) != 1:
        return None
    return Comparison(
        difference.plus[0], difference.minus[0], comparison.direction, difference.constants, difference.casts
    )


def order_sides(expr: Expr) -> OrderedComparison | None:
    """The comparison that an expression is, the greater side first; None if it is something else."""
    op, args = expr.op, expr.args
    if op == "not" and args[0].op in _DENIED:
        # NOT (a < b) is null where a < b is, and otherwise a >= b.
        op, args = _DENIED[args[0].op], args[0].args
    if op in _TURNED:
        op, args = _TURNED[op], args[::-1]
    if op not in ("=", ">", ">=") or len(args) != 2:
        return None
    return OrderedComparison(args[0], args[1], op)


def sum_of(expr: Expr) -> Sum | None:
    """The sum that an expression is; None if it is something else."""
    match expr.op:
        case "column":
            return Sum(plus=(expr,))
        case "literal" | "interval":
            # True is an int to Python, but not to SQL.
            is_whole = isinstance(expr.value, int) and not isinstance(expr.value, bool)
            return Sum(constants=(Amount(int(expr.value or 0), expr.op == "interval"),)) if is_whole else None
        case "negate":
            inner = sum_of(expr.args[0])
            return None if inner is None else Sum().subtract(inner)
        case "+" | "-" | "*":
            first, *rest = (sum_of(arg) for arg in expr.args)
            for other in rest:
                if first is None or other is None:
                    return None
                combine = {"+": Sum.add, "-": Sum.subtract, "*": _product}[expr.op]
                first = combine(first, other)
            return first
        case "cast":
            return _cast(sum_of(expr.args[0]), str(expr.value))
        case _:
            return None


def _cast(inner: Sum | None, type: str) -> Sum | None:
    """A sum that is cast to a type of times; None where the cast may change more than the type."""
    family = time_type_of(type)
    if inner is None or family is None:
        return None
    if not (inner.plus or inner.minus):
        return inner if all(can_hold(type, c.value) and not c.is_interval for c in inner.constants) else None
    # The difference of two timestamps is not a timestamp, and a DATE truncates to whole days.
    is_time = len(inner.plus) == 1 and not inner.minus
    is_whole = all(c.value % DAY == 0 for c in inner.constants if c.is_interval)
    if (family != "integer" and not is_time) or (family == "date" and not is_whole):
        return None
    return replace(inner, casts=(*inner.casts, *((column, type) for column in inner.plus + inner.minus)))


def _product(a: Sum, b: Sum) -> Sum | None:
    """The product of constants, such as ``2 * INTERVAL 1 HOUR``."""
    if a.plus or a.minus or b.plus or b.minus or len(a.constants) != 1 or len(b.constants) != 1:
        return None
    (x,), (y,) = a.constants, b.constants
    if x.is_interval and y.is_interval:
        return None
    return Sum(constants=(Amount(x.value * y.value, x.is_interval or y.is_interval),))


ANSI = "spark.sql.ansi.enabled"

NOT_COMPARED = frozenset({frozenset({"number", "time"}), frozenset({"boolean", "time"})})
"""Kinds of values that Spark does not compare, whatever its settings."""

READ_AS = {"number": "a number", "time": "a time", "boolean": "true or false"}
"""The kind that Spark converts a text to when it is compared with a value of another kind."""


@dataclass(frozen=True)
class _Operand:
    """An operand: its type in words, the kind of its values, and the text of a constant."""

    type: str
    kind: str
    constant: str | None = None


def check_comparisons(draft: Draft) -> Draft:
    """The draft with refusals and warnings about its comparisons; unchanged if it is refused already."""
    if draft.refusals:
        return draft
    compared = [part for expr in _expressions(draft) for part in _tests(expr)]
    refusals = [refusal for test in compared for refusal in _check_operands(draft, test)]
    warnings = [warned for test in compared for warned in (*_warn_cast(draft, test), *_warn_empty_range(test))]
    warnings += [warned for expr in _expressions(draft) for warned in _warn_quoted_columns(draft, expr)]
    # The members of a list are at one place.
    return draft.with_refusals(refusals).with_warnings({warned.span: warned for warned in reversed(warnings)}.values())


def _expressions(draft: Draft) -> Iterator[Expr]:
    """All expressions of the query that hold conditions."""
    query = draft.query
    conditions = (getattr(relation, "on", None) for relation in walk_relations(query.relation))
    items = (item.expr for item in query.items if isinstance(item, Item))
    yield from (expr for expr in (*conditions, query.where, *items) if expr is not None)


def _tests(expr: Expr) -> Iterator[Expr]:
    """The comparisons in an expression, including BETWEEN; one for all members of a list."""
    if expr.op in COMPARISONS or (expr.op == "and" and expr.value == CLOSED):
        yield expr
    for arg in expr.args[:1] if expr.op == "or" and expr.value == LISTED else expr.args:
        yield from _tests(arg)


def _operand(draft: Draft, expr: Expr) -> _Operand | None:
    """The type of an operand; None where only Spark knows it."""
    if expr.op in ARITHMETIC or expr.op == "negate":
        kinds = {operand.kind if (operand := _operand(draft, arg)) else "" for arg in expr.args}
        return _Operand("a number", "number") if kinds == {"number"} else None
    if expr.op == "literal":
        match expr.value:
            case bool():
                return _Operand("BOOLEAN", "boolean", expr.text)
            case str():
                return _Operand("STRING", "text", expr.value)
            case None:
                return None
            case _:
                return _Operand("a number", "number", expr.text)
    type_ = type_of(expr, draft.scope.sources)
    return None if type_ is None else _Operand(type_, class_of(type_))


def _operands(draft: Draft, test: Expr) -> tuple[_Operand, _Operand] | None:
    """The two sides of a comparison, if both are known and of different kinds."""
    if test.op not in COMPARISONS:
        return None
    left, right = (_operand(draft, arg) for arg in test.args)
    return None if left is None or right is None or left.kind == right.kind else (left, right)


def _check_operands(draft: Draft, test: Expr) -> Iterator[Refusal]:
    operands = _operands(draft, test)
    if operands is not None and frozenset({operand.kind for operand in operands}) in NOT_COMPARED:
        reason = f"Spark cannot compare {operands[0].type} with {operands[1].type}."
        numbers = [arg for arg, operand in zip(test.args, operands, strict=True) if operand.kind == "number"]
        seconds = f"`timestamp_seconds({expression_in_words(numbers[0])})`" if numbers else "`CAST(x AS STRING)`"
        parameters = {"expression": f"`{expression_in_words(test)}`", "reason": reason}
        yield draft.refusal("TYPE_MISMATCH", test.span, **parameters, hint=f"cast one of them, for example {seconds}.")


def _warn_cast(draft: Draft, test: Expr) -> Iterator[QueryWarning]:
    """A text that is compared with something else, which Spark reads the text as."""
    operands = _operands(draft, test)
    texts = [operand for operand in operands or () if operand.kind == "text"]
    others = [operand for operand in operands or () if operand.kind in READ_AS]
    if len(texts) != 1 or len(others) != 1 or _is_read(texts[0], others[0]):
        return
    is_ansi = draft.setting(ANSI, "true").lower() != "false"
    else_ = "stops the query" if is_ansi else "becomes NULL and matches nothing"
    left, right = (operand.type for operand in operands or ())
    comparison = f"`{expression_in_words(test)}` compares {left} with {right}"
    then = f"Spark reads the string as {READ_AS[others[0].kind]}, and any other string {else_}"
    yield QueryWarning(f"{comparison}: {then}. Write the CAST that you mean.", test.span)


def _is_read(text: _Operand, other: _Operand) -> bool:
    """Whether it is known that the text can be read: constants of numbers are looked at, others taken as they are."""
    if text.constant is None or other.kind != "number":
        return text.constant is not None
    try:
        Decimal(text.constant.strip())
    except InvalidOperation:
        return False
    return True


def _warn_empty_range(test: Expr) -> Iterator[QueryWarning]:
    """BETWEEN with its ends the wrong way round."""
    if test.op != "and" or [part.op for part in test.args] != [">=", "<="]:
        return
    ends = [part.args[1] for part in test.args]
    low, high = (end.value for end in ends)
    is_number = all(isinstance(end.value, int | Decimal) and not isinstance(end.value, bool) for end in ends)
    if is_number and Decimal(str(low)) > Decimal(str(high)):
        yield QueryWarning(f"No value is between {low} and {high}: BETWEEN takes the smaller one first.", test.span)


def _warn_quoted_columns(draft: Draft, expr: Expr) -> Iterator[QueryWarning]:
    """Texts in double quotes that are the names of columns."""
    if expr.op == "literal" and expr.text.startswith('"') and isinstance(expr.value, str):
        if draft.scope.find_columns(expr.value):
            yield QueryWarning(
                f"{expr.text} is a string, not the column: write {expr.value} without quotes.", expr.span
            )
        return
    for part in expr.parts:
        yield from _warn_quoted_columns(draft, part)


LATEST = "SELECT TABLE over a stream"
"""The comparisons of keys where the result is the latest row of each."""

_COLLATED = re.compile(r"\bCOLLATE\s+(?!UTF8_BINARY\b)", re.IGNORECASE)


def check_collations(draft: Draft) -> Draft:
    """The draft with the refusal of every collation in declared types; Spark finds the others."""
    if draft.relation is None:
        return draft
    keys = [(clause, expr, shown.span) for clause, expr, shown in key_expressions(draft.group, draft.top)]
    keys += [(LATEST, expr, draft.query.span) for expr in draft.latest_key]
    refusals = [
        draft.refusal("TYPE_MISMATCH", span, **collation_parameters(clause, type_))
        for clause, expr, span in keys
        if (type_ := type_of(expr, draft.scope.sources)) and is_collated(type_)
    ]
    for table in {id(scan.source): scan.source for scan in scans(draft.relation)}.values():
        for name in upsert_key(table):
            field = table.field(name)
            if field is not None and is_collated(field.type or ""):
                refusals.append(draft.refusal("TYPE_MISMATCH", table.span, **key_parameters(table, name, field.type)))
    return draft.with_refusals(refusals)


def is_collated(type_: str) -> bool:
    """Whether a type has strings that compare otherwise than by their bytes.

    >>> is_collated("STRUCT<a: STRING COLLATE UTF8_LCASE>"), is_collated("STRING COLLATE UTF8_BINARY")
    (True, False)
    """
    return _COLLATED.search(type_) is not None


def key_expressions(group: AnalyzedGroup | None, top: AnalyzedTop | None) -> Iterator[tuple[str, Expr, Expr]]:
    """The key expressions of a query: the clause, the expression, and the one that was written."""
    if group is not None:
        yield from (("GROUP BY or DISTINCT", by.expr, by.expr) for by in group.by)
        for call in (aggregate.expr for aggregate in group.aggregates):
            if call.function.endswith(DISTINCT):
                yield from ((f"{call.text}(DISTINCT)", arg, arg) for arg in call.args)
    if top is not None:
        yield from (("PARTITION BY", by.expr, by.shown) for by in top.by)


def upsert_key(table: Source) -> tuple[str, ...]:
    """The primary key by which rows of a table replace each other."""
    return table.primary_key if table.kind == "table" and not table.is_static else ()


def collation_parameters(clause: str, type_: str) -> dict[str, str]:
    """The refusal of a clause that compares strings of a type as keys."""
    return {
        "expression": clause,
        "reason": f"it compares strings by their bytes, but {type_} compares by its collation.",
        "hint": "write `CAST(lower(x) AS STRING)` if case does not matter, else `CAST(x AS STRING)`.",
    }


def key_parameters(table: Source, key: str, type_: str) -> dict[str, str]:
    """The refusal of a primary key of a type."""
    return {
        "expression": "PRIMARY KEY",
        "reason": f"rows of {table.name} replace each other by the bytes of `{key}`, but its type is {type_}.",
        "hint": f"declare `{key} STRING`, and compare `lower({key})` in the query if case does not matter.",
    }
