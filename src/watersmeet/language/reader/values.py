"""Constants that stand for columns: ``(column value, ...)``."""

from __future__ import annotations

from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.expression import read_or
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Values


def read_values(cursor: Cursor, hint: str) -> Values:
    """``(column value, ...)``."""
    cursor.expect("(", hint)
    values: list[tuple[str, Expr]] = []
    while True:
        name = cursor.take_name("the name of a column", hint)
        if any(name.value.lower() == known.lower() for known, _ in values):
            raise cursor.failure("a column that has no value yet", "give every column once.", name)
        values.append((name.value, read_or(cursor)))
        if not cursor.take(","):
            break
    cursor.expect(")", hint)
    return tuple(values)
