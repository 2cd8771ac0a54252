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


def of_fields(schema: Any) -> dict[str, Kind]:
    """The columns of a schema, but for those that can only be NULL and so have no type."""
    fields = cast("list[dict[str, Any]]", schema["fields"])
    return {str(one["name"]): _of_field(one, "") for one in fields if one["type"] not in _VOID}


def _of_field(told: dict[str, Any], around: str) -> Kind:
    name = f"{around}{told['name']}"
    if _COLLATION in (told.get("metadata") or {}):
        raise NoColumnsError(f"the texts in its column `{name}` have a collation")
    return _of_type(told["type"], name)


def _of_type(told: Any, name: str) -> Kind:
    match told:
        case str() if told in _TYPES:
            return _TYPES[told]
        case str() if found := _DECIMAL.fullmatch(told):
            return f"DECIMAL({found[1]},{found[2]})"
        case {"type": "struct", "fields": list()}:
            inner = cast("list[dict[str, Any]]", told["fields"])
            return {str(one["name"]): _of_field(one, f"{name}.") for one in inner}
        case {"type": "array", "elementType": inner}:
            return [_of_type(inner, name)]
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{type_of(_of_type(key, name))}, {type_of(_of_type(value, name))}>"
        case _:
            called = told if isinstance(told, str) else cast("dict[str, Any]", told).get("type", told)
            raise NoColumnsError(f"its column `{name}` is of the type {called}, which is not known here")
