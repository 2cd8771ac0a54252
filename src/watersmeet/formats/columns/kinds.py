"""What values are, whatever their format: kinds, what holds two of them, and the type that a column of them has."""

from __future__ import annotations

from typing import Any

from watersmeet.plan.words import word

Kind = str | dict[str, Any] | list[Any]
"""What a value is: a type; the fields of an object by name; a list with the kind of the elements. "": only NULL."""


class NoColumnsError(Exception):
    """Columns that cannot be known, and why."""


_WIDER = (
    ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(38,0)"),
    ("FLOAT", "DOUBLE"), ("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP"),
)  # fmt: skip
"""Types in the order in which one holds the values of those before it."""
_WIDENED = (("TINYINT", "SMALLINT", "INT", "BIGINT"), ("FLOAT", "DOUBLE"))
"""The same, of files that have types: Spark reads an earlier type as a later one."""


def merge_kinds(a: Kind, b: Kind, name: str, *, is_typed: bool = False) -> Kind:
    """What holds both; text, if nothing else does, which values of a file that has types never become."""
    if a == b or b == "":
        return a
    if a == "":
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        return {
            key: merge_kinds(a.get(key, ""), b.get(key, ""), f"{name}.{key}", is_typed=is_typed)
            for key in (*a, *(k for k in b if k not in a))
        }
    if isinstance(a, list) and isinstance(b, list):
        return [merge_kinds(a[0], b[0], name, is_typed=is_typed)]
    order = next((wider for wider in (_WIDENED if is_typed else _WIDER) if a in wider and b in wider), None)
    if order is None and is_typed:
        raise NoColumnsError(f"its column `{name}` is {type_of(a)} in one file and {type_of(b)} in another")
    return "STRING" if order is None else max(str(a), str(b), key=order.index)


def type_of(kind: Kind) -> str:
    """The type of a column, in the words of Spark's DDL."""
    match kind:
        case "":
            return "STRING"
        case dict():
            return f"STRUCT<{', '.join(f'{word(name)}: {type_of(inner)}' for name, inner in kind.items())}>"
        case list():
            return f"ARRAY<{type_of(kind[0])}>"
        case _:
            return kind
