"""What explain says of a join, as labels with lines."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.plan.expressions import Expr
from watersmeet.plan.words import expression_in_words

Fact = tuple[str, Sequence[str]]
"""A label and its lines; nothing is said where there are none."""


def keys(pairs: tuple[tuple[Expr, Expr], ...]) -> Fact:
    """The equalities that rows meet by."""
    return "keys", [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in pairs]


def conditions(label: str, parts: tuple[Expr, ...], remark: str = "") -> Fact:
    """Parts of a condition, each with what becomes of a row that fails it."""
    return label, [f"{text} ({remark})" if remark else text for text in texts(parts)]


def texts(parts: tuple[Expr, ...]) -> list[str]:
    """Expressions as people write them."""
    return [expression_in_words(part) for part in parts]
