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


def of_iceberg(path: str, said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of the table in a folder, and the file that tells them."""
    for name in _EARLIER:
        if name in said:
            raise NoColumnsError(f"which columns it has with `{name}`, only Iceberg knows")
    folder = Path(path) / "metadata"
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    files = {int(found[1]): file for file in names if (found := _METADATA.fullmatch(file.name))}
    if not files and any(file.name.endswith(".metadata.json") for file in names):
        raise NoColumnsError("only its catalog knows which of its metadata counts")
    if not files:
        raise NoColumnsError(f"no table of Iceberg lies in {path} yet")
    file = files[max(files)]
    try:
        kept = file.read_bytes()
        told: Any = json.loads(gzip.decompress(kept) if ".gz" in file.name else kept)
        return _of_fields(_schema(told), ""), str(file)
    except (OSError, EOFError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise NoColumnsError(f"{file} is no metadata of Iceberg") from error


def _schema(told: dict[str, Any]) -> Any:
    if "schemas" not in told:
        return told["schema"]
    return next(one for one in told["schemas"] if one["schema-id"] == told["current-schema-id"])


def _of_fields(struct: Any, around: str) -> dict[str, Kind]:
    fields = cast("list[dict[str, Any]]", struct["fields"])
    return {str(one["name"]): _of_type(one["type"], f"{around}{one['name']}") for one in fields}


def _of_type(told: Any, name: str) -> Kind:
    match told:
        case str() if told in _TYPES:
            return _TYPES[told]
        case str() if found := _DECIMAL.fullmatch(told):
            return f"DECIMAL({found[1]},{found[2]})"
        case str() if _FIXED.fullmatch(told):
            return "BINARY"
        case {"type": "struct"}:
            return _of_fields(told, f"{name}.")
        case {"type": "list", "element": inner}:
            return [_of_type(inner, name)]
        case {"type": "map", "key": key, "value": value}:
            return f"MAP<{type_of(_of_type(key, name))}, {type_of(_of_type(value, name))}>"
        case _:
            raise NoColumnsError(f"its column `{name}` is {told}, which has no type in Spark")
