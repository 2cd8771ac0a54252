"""Container files of Avro, written by hand: a header with the schema, then blocks of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SYNC = bytes(range(16))


def write_avro(file: Path, schema: Any, rows: tuple[bytes, ...] = ()) -> Path:
    """A file with that schema and those rows, each as its bytes."""
    meta = {"avro.codec": b"null", "avro.schema": json.dumps(schema).encode()}
    entries = b"".join(_bytes(name.encode()) + _bytes(value) for name, value in meta.items())
    # The block says how long it is, as a writer may do.
    header = b"Obj\x01" + long(-len(meta)) + long(len(entries)) + entries + long(0) + _SYNC
    blocks = b"".join(long(1) + _bytes(row) + _SYNC for row in rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header + blocks)
    return file


def record(*fields: tuple[str, Any], name: str = "row") -> dict[str, Any]:
    """The schema of a record."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type_} for field, type_ in fields]}


def long(value: int) -> bytes:
    """A number as Avro writes it."""
    rest, found = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _bytes(value: bytes) -> bytes:
    return long(len(value)) + value


def _logical(kind: Any, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def _avro_fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


INNER = record(("x", "int"), ("y", ["null", "string"]), name="inner")
READ = {
    "b": ("boolean", "BOOLEAN"), "i": ("int", "INT"), "l": ("long", "BIGINT"), "f": ("float", "FLOAT"),
    "d": ("double", "DOUBLE"), "by": ("bytes", "BINARY"), "s": (["string", "null"], "STRING"),
    "e": ({"type": "enum", "name": "colour", "symbols": ["RED"]}, "STRING"), "fx": (_avro_fixed("four", 4), "BINARY"),
    "day": (_logical("int", "date"), "DATE"), "ms": (_logical("long", "timestamp-millis"), "TIMESTAMP"),
    "us": (["null", _logical("long", "timestamp-micros")], "TIMESTAMP"),
    "lms": (_logical("long", "local-timestamp-millis"), "TIMESTAMP_NTZ"),
    "lus": (_logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ"),
    "tms": (_logical("int", "time-millis"), "INT"),
    "dec": (_logical("bytes", "decimal", precision=10, scale=2), "DECIMAL(10,2)"),
    "whole": (_logical("bytes", "decimal", precision=10), "DECIMAL(10,0)"),
    "decf": (_avro_fixed("money", 8, logicalType="decimal", precision=12, scale=3), "DECIMAL(12,3)"),
    "id": (_logical("string", "uuid"), "STRING"), "dur": (_avro_fixed("dur", 12, logicalType="duration"), "BINARY"),
    "list": ({"type": "array", "items": ["null", "int"]}, "ARRAY<INT>"),
    "map": ({"type": "map", "values": "long"}, "MAP<STRING, BIGINT>"), "rec": (INNER, "STRUCT<x: INT, y: STRING>"),
    "again": (["null", "inner"], "STRUCT<x: INT, y: STRING>"), "one": (["int"], "INT"),
    "il": (["int", "long"], "BIGINT"), "fd": (["double", "null", "float"], "DOUBLE"),
    "some": (["null", "int", "string"], "STRUCT<member0: INT, member1: STRING>"),
    "deep": ({"type": "array", "items": ["inner", "long"]},
             "ARRAY<STRUCT<member0: STRUCT<x: INT, y: STRING>, member1: BIGINT>>"),
}  # fmt: skip
"""Columns of all kinds, each with its type in Avro and with the one that Spark reads it as."""
