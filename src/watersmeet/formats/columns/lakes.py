"""The columns of Delta tables, from their log, and of Iceberg tables, from their newest metadata file.

The log is a file for every version, and now and then a checkpoint with the accumulated state; versions before one may
be gone. A schema is valid until a later version sets it again, so the search goes backwards from the newest one.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from watersmeet.formats.columns.files import Kind, NoColumnsError, type_of

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
    """The columns of the table in a folder, and the file with them."""
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


_SPARK_TYPES = {
    "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "boolean": "BOOLEAN", "string": "STRING", "binary": "BINARY", "date": "DATE", "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ", "variant": "VARIANT", "decimal": "DECIMAL(10,0)",
}  # fmt: skip
_SPARK_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_VOID = ("void", "null")
_COLLATION = "__COLLATIONS"
"""The key under which a field says in which order its texts are."""


def field_kinds(schema: Any) -> dict[str, Kind]:
    """The columns of a schema, but for those that can only be NULL and so have no type."""
    fields = cast("list[dict[str, Any]]", schema["fields"])
    return {str(field["name"]): _field_kind(field, "") for field in fields if field["type"] not in _VOID}


def _field_kind(spec: dict[str, Any], around: str) -> Kind:
    name = f"{around}{spec['name']}"
    if _COLLATION in (spec.get("metadata") or {}):
        raise NoColumnsError(f"its column `{name}` has a collation")
    return _spark_type_kind(spec["type"], name)


def _spark_type_kind(spec: Any, name: str) -> Kind:
    match spec:
        case str() if spec in _SPARK_TYPES:
            return _SPARK_TYPES[spec]
        case str() if decimal := _SPARK_DECIMAL.fullmatch(spec):
            return f"DECIMAL({decimal[1]},{decimal[2]})"
        case {"type": "struct", "fields": list()}:
            inner = cast("list[dict[str, Any]]", spec["fields"])
            return {str(field["name"]): _field_kind(field, f"{name}.") for field in inner}
        case {"type": "array", "elementType": inner}:
            return [_spark_type_kind(inner, name)]
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{type_of(_spark_type_kind(key, name))}, {type_of(_spark_type_kind(value, name))}>"
        case _:
            called = spec if isinstance(spec, str) else cast("dict[str, Any]", spec).get("type", spec)
            raise NoColumnsError(f"its column `{name}` has the unknown type {called}")


FEED: Mapping[str, Kind] = {"_change_type": "STRING", "_commit_version": "BIGINT", "_commit_timestamp": "TIMESTAMP"}
"""The columns that a change feed has besides those of the table."""

_FEEDS = ("readchangefeed", "readchangedata")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\..+)?\.(?:parquet|json)")
_STAGED = re.compile(r"(\d{20})\..+\.json")


def delta_columns(path: str, said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of the table in a folder, and the file of the log with them."""
    if "timestampasof" in said:
        raise NoColumnsError("only Delta knows which version `timestampAsOf` means")
    log = _Log.of(Path(path) / "_delta_log")
    schema, file = log.schema(log.version(said.get("versionasof")))
    try:
        kinds = field_kinds(json.loads(schema))
    except (ValueError, KeyError, TypeError) as error:
        raise NoColumnsError(f"{file} is not a Delta log") from error
    is_feed = any(said.get(name, "").lower() == "true" for name in _FEEDS)
    return {**kinds, **(FEED if is_feed else {})}, str(file)


@dataclass(frozen=True)
class _Log:
    """The files of a log by their versions: of commits one each, of checkpoints the parts of all that there are."""

    folder: Path
    commits: Mapping[int, Path]
    checkpoints: Mapping[int, list[Path]]

    @staticmethod
    def of(folder: Path) -> _Log:
        """The log in a folder."""
        names = sorted(folder.iterdir()) if folder.is_dir() else []
        commits = {int(match[1]): file for file in names if (match := _COMMIT.fullmatch(file.name))}
        checkpoints: dict[int, list[Path]] = {}
        for file in names:
            if match := _CHECKPOINT.fullmatch(file.name):
                checkpoints.setdefault(int(match[1]), []).append(file)
        if not commits and not checkpoints:
            raise NoColumnsError(f"{folder.parent} has no Delta table yet")
        return _Log(folder, commits, checkpoints)

    def version(self, requested: str | None) -> int:
        """The version to read: the requested one, else the newest."""
        newest = max((*self.commits, *self.checkpoints))
        if requested is not None:
            if not requested.isdecimal() or int(requested) > newest:
                raise NoColumnsError(f"the table has no version {requested}")
            return int(requested)
        staged = (_STAGED.fullmatch(file.name) for file in (self.folder / "_staged_commits").glob("*.json"))
        if any(match and int(match[1]) > newest for match in staged):
            raise NoColumnsError("only its catalog knows its newest version")
        return newest

    def schema(self, version: int) -> tuple[str, Path]:
        """The schema of a version, as JSON, and its file."""
        for number in range(version, -1, -1):
            commit = [self.commits[number]] if number in self.commits else []
            for file in (*commit, *self.checkpoints.get(number, ())):
                for schema in _schemas(file):
                    return schema, file
            if not commit:
                break
        raise NoColumnsError(f"the log in {self.folder} is incomplete")


def _schemas(file: Path) -> Iterator[str]:
    """The schemas in a file of the log, at most one."""
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa

    try:
        yield from _in_parquet(file) if file.suffix == ".parquet" else _in_json(file)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise NoColumnsError(f"{file} is not a Delta log") from error


def _in_json(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8") as lines:
        # Most lines are about files of the table, and long.
        for line in lines:
            entry: Any = json.loads(line) if '"metaData"' in line else {}
            if "metaData" in entry:
                yield str(entry["metaData"]["schemaString"])


def _in_parquet(file: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    read: Any = pq.ParquetFile(file)
    for group in range(read.num_row_groups):
        rows: Iterable[Any] = read.read_row_group(group, columns=["metaData.schemaString"]).column(0).to_pylist()
        yield from (str(row["schemaString"]) for row in rows if row is not None and row["schemaString"] is not None)
