"""Schemas as Spark writes them into JSON, which is how tables of Delta keep theirs."""

from __future__ import annotations

import re
from typing import Any, cast

from watersmeet.formats.columns.kinds import Kind, NoColumnsError, type_of

_TYPES = {
    "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "boolean": "BOOLEAN", "string": "STRING", "binary": "BINARY", "date": "DATE", "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ", "variant": "VARIANT", "decimal": "DECIMAL(10,0)",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_VOID = ("void", "null")
_COLLATION = "__COLLATIONS"
"""Where a field says in which order its texts are."""


def field_kinds(schema: Any) -> dict[str, Kind]:
    """The columns of a schema, but for those that can only be NULL and so have no type."""
    fields = cast("list[dict[str, Any]]", schema["fields"])
    return {str(field["name"]): _field_kind(field, "") for field in fields if field["type"] not in _VOID}


def _field_kind(spec: dict[str, Any], around: str) -> Kind:
    name = f"{around}{spec['name']}"
    if _COLLATION in (spec.get("metadata") or {}):
        raise NoColumnsError(f"its column `{name}` has a collation")
    return _type_kind(spec["type"], name)


def _type_kind(spec: Any, name: str) -> Kind:
    match spec:
        case str() if spec in _TYPES:
            return _TYPES[spec]
        case str() if decimal := _DECIMAL.fullmatch(spec):
            return f"DECIMAL({decimal[1]},{decimal[2]})"
        case {"type": "struct", "fields": list()}:
            inner = cast("list[dict[str, Any]]", spec["fields"])
            return {str(field["name"]): _field_kind(field, f"{name}.") for field in inner}
        case {"type": "array", "elementType": inner}:
            return [_type_kind(inner, name)]
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{type_of(_type_kind(key, name))}, {type_of(_type_kind(value, name))}>"
        case _:
            called = spec if isinstance(spec, str) else cast("dict[str, Any]", spec).get("type", spec)
            raise NoColumnsError(f"its column `{name}` has the unknown type {called}")
