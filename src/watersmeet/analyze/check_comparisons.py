"""The pass that looks at what is compared with what: types that Spark does not compare, and those it casts first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from watersmeet.analyze.column_types import class_of, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import ARITHMETIC, CLOSED, COMPARISONS, LISTED, Expr
from watersmeet.plan.nodes import Item, walk_relations
from watersmeet.plan.query import QueryWarning
from watersmeet.plan.words import expression_in_words

ANSI = "spark.sql.ansi.enabled"

NOT_COMPARED = frozenset({frozenset({"number", "time"}), frozenset({"boolean", "time"})})
"""Kinds of values that Spark does not compare, whatever its settings."""

READ_AS = {"number": "a number", "time": "a time", "boolean": "true or false"}
"""What Spark reads a text as that is compared with another kind of value."""


@dataclass(frozen=True)
class _Operand:
    """What is compared: its type as a sentence calls it, the kind of its values, and the text of a constant."""

    type: str
    kind: str
    constant: str | None = None


def check_comparisons(draft: Draft) -> Draft:
    """The draft with what is to be said of its comparisons; of one that is refused anyway, nothing."""
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
    """The comparisons in an expression, one for all members of a list, and what is written as BETWEEN."""
    if expr.op in COMPARISONS or (expr.op == "and" and expr.value == CLOSED):
        yield expr
    for arg in expr.args[:1] if expr.op == "or" and expr.value == LISTED else expr.args:
        yield from _tests(arg)


def _operand(draft: Draft, expr: Expr) -> _Operand | None:
    """What is known of an operand; None where only Spark can tell."""
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
    what = f"`{expression_in_words(test)}` compares {left} with {right}"
    then = f"Spark reads the string as {READ_AS[others[0].kind]}, and any other string {else_}"
    yield QueryWarning(f"{what}: {then}. Write the CAST that you mean.", test.span)


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
