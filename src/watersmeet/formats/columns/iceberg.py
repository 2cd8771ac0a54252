"""The columns of tables of Iceberg that lie in a folder, from the newest of their metadata files."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from watersmeet.formats.columns.kinds import Kind, NoColumnsError, type_of

_METADATA = re.compile(r"v(\d+)(\.gz)?\.metadata\.json(\.gz)?")
_EARLIER = ("snapshot-id", "as-of-timestamp", "branch", "tag")
"""Options after which another state than the current one is read."""
_TYPES = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP", "string": "STRING", "uuid": "STRING", "binary": "BINARY",
    "variant": "VARIANT",
}  # fmt: skip
_DECIMAL, _FIXED = re.compile(r"decimal\((\d+), ?(\d+)\)"), re.compile(r"fixed\[\d+\]")


def iceberg_columns(path: str, said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of the table in a folder, and the file that tells them."""
    for name in _EARLIER:
        if name in said:
            raise NoColumnsError(f"only Iceberg knows its columns with `{name}`")
    folder = Path(path) / "metadata"
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    files = {int(match[1]): file for file in names if (match := _METADATA.fullmatch(file.name))}
    if not files and any(file.name.endswith(".metadata.json") for file in names):
        raise NoColumnsError("only its catalog knows which metadata is current")
    if not files:
        raise NoColumnsError(f"{path} has no Iceberg table yet")
    file = files[max(files)]
    try:
        data = file.read_bytes()
        metadata: Any = json.loads(gzip.decompress(data) if ".gz" in file.name else data)
        return _field_kinds(_schema(metadata), ""), str(file)
    except (OSError, EOFError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise NoColumnsError(f"{file} is not Iceberg metadata") from error


def _schema(metadata: dict[str, Any]) -> Any:
    if "schemas" not in metadata:
        return metadata["schema"]
    return next(schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])


def _field_kinds(struct: Any, around: str) -> dict[str, Kind]:
    fields = cast("list[dict[str, Any]]", struct["fields"])
    return {str(field["name"]): _type_kind(field["type"], f"{around}{field['name']}") for field in fields}


def _type_kind(spec: Any, name: str) -> Kind:
    match spec:
        case str() if spec in _TYPES:
            return _TYPES[spec]
        case str() if decimal := _DECIMAL.fullmatch(spec):
            return f"DECIMAL({decimal[1]},{decimal[2]})"
        case str() if _FIXED.fullmatch(spec):
            return "BINARY"
        case {"type": "struct"}:
            return _field_kinds(spec, f"{name}.")
        case {"type": "list", "element": inner}:
            return [_type_kind(inner, name)]
        case {"type": "map", "key": key, "value": value}:
            return f"MAP<{type_of(_type_kind(key, name))}, {type_of(_type_kind(value, name))}>"
        case _:
            raise NoColumnsError(f"its column `{name}` is {spec}, which Spark has no type for")
