"""Types of a Substrait plan as types of Spark's DDL, and the refusal of what has no counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from watersmeet.catalog import Field
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.plan.expressions import quote
from watersmeet.schema import Type, parse_type
from watersmeet.type_names import TYPES

_SIMPLE = {kind: type_.name for type_ in TYPES for kind in type_.substrait}
"""The types that stand alone. Nanoseconds have no type in Spark: a column of them is one of microseconds there."""


def unsupported(what: str, place: str, hint: str, reason: str = "") -> WatersmeetError:
    """The refusal of a part of a plan; ``place`` is the way to it from the root."""
    reason = f": {reason}" if reason else ""
    return refuse("UNSUPPORTED_SUBSTRAIT", what=what, place=place, hint=hint, reason=reason)


def spark_type(type_: Any, place: str, names: Iterator[str] | None = None) -> str:
    """The type in Spark's DDL; ``names`` are those of the fields of structs inside it, each before those inside it."""
    kind = type_.WhichOneof("kind")
    if kind in _SIMPLE:
        return written_type(Type(_SIMPLE[kind]))
    if kind == "decimal":
        return f"DECIMAL({type_.decimal.precision},{type_.decimal.scale})"
    if kind == "list":
        return f"ARRAY<{spark_type(type_.list.type, place, names)}>"
    if kind == "map":
        return f"MAP<{spark_type(type_.map.key, place, names)}, {spark_type(type_.map.value, place, names)}>"
    if kind == "struct" and names is not None:
        fields = (f"{_plain(next(names, ''))}: {spark_type(inner, place, names)}" for inner in type_.struct.types)
        return f"STRUCT<{', '.join(fields)}>"
    hint = "cast the column to a type such as i64, string or precision_timestamp in the producer."
    reason = "its fields have no names" if kind == "struct" else "Spark has none that would hold its values"
    raise unsupported(f"The type {kind or 'without a kind'}", place, hint, reason)


def fields_of(schema: Any, place: str) -> tuple[Field, ...]:
    """The columns of a named struct. All may be NULL: nobody would check a promise that none is."""
    names = iter(schema.names)
    fields = tuple(Field(next(names, ""), spark_type(type_, place, names)) for type_ in schema.struct.types)
    if next(names, None) is not None or any(not field.name for field in fields):
        hint = "write the plan again: every column, and every field of a struct, has one name."
        raise unsupported("A schema with more or fewer names than columns", place, hint)
    return fields


def names_inside(type_: str) -> int:
    """How many fields the structs inside a type have.

    >>> names_inside("ARRAY<STRUCT<a: INT, b: STRUCT<c: INT>>>"), names_inside("MAP<STRING, INT>")
    (3, 0)
    """
    return _names_inside(parse_type(type_))


def _names_inside(type_: Type) -> int:
    own = len(type_.parts) if type_.name == "STRUCT" else 0
    return own + sum(_names_inside(part.type) for part in type_.parts)


def written_type(type_: Type) -> str:
    """A type that was taken apart, as text again.

    >>> written_type(parse_type("STRUCT<a: INT, b: MAP<STRING, DECIMAL(10,2)>>"))
    'STRUCT<a: INT, b: MAP<STRING, DECIMAL(10,2)>>'
    """
    if type_.name == "INTERVAL":
        return "INTERVAL DAY TO SECOND"
    if type_.name == "STRUCT":
        return f"STRUCT<{', '.join(f'{_plain(part.name)}: {written_type(part.type)}' for part in type_.parts)}>"
    numbers = f"({','.join(map(str, type_.numbers))})" if type_.numbers else ""
    parts = f"<{', '.join(written_type(part.type) for part in type_.parts)}>" if type_.parts else ""
    return type_.name + numbers + parts


def _plain(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else quote(name)
