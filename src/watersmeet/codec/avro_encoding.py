"""Encodes rows as Avro, a column at a time, with the schema for them.

An encoded column is `Ragged`: the bytes of all rows, and where each row begins. A record is its columns row by row; a
list is its elements, which are contiguous already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.codec.avro_schema import is_name
from watersmeet.codec.binary import (
    Ragged,
    SchemaError,
    bytes_of,
    concat_parts,
    constant,
    ends_of,
    floats,
    spark_type_name,
    varints,
    zigzag_encode,
)

_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("ns"): {"type": "long", "logicalType": "time-micros"},
}  # fmt: skip


def schema_of(fields: Sequence[Any], name: str) -> dict[str, Any]:
    """The schema of a record with Arrow fields, as JSON has it; `SchemaError` for what Avro has no type or name for.

    >>> schema_of([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32())], "orders")["fields"]
    [{'name': 'id', 'type': 'long'}, {'name': 'n', 'type': ['null', 'int'], 'default': None}]
    """
    made: list[dict[str, Any]] = []
    for field in fields:
        if not is_name(field.name):
            raise SchemaError(f"`{field.name}` is not a name in Avro: names have letters, digits and _")
        type_ = _schema(field, f"{name}_{field.name}")
        made.append({"name": field.name, "type": type_, **({"default": None} if field.nullable else {})})
    return {"type": "record", "name": name, "fields": made}


def _schema(field: Any, name: str) -> Any:
    made = _of_type(field.type, name)
    return ["null", made] if field.nullable else made


def _of_type(type_: Any, name: str) -> Any:
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_timestamp(type_):
        return {"type": "long", "logicalType": "local-timestamp-micros" if type_.tz is None else "timestamp-micros"}
    if pa.types.is_decimal(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_struct(type_):
        return schema_of([*type_], name)
    if pa.types.is_list(type_):
        return {"type": "array", "items": _schema(type_.value_field, f"{name}_element")}
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": _schema(type_.item_field, f"{name}_value")}
    raise SchemaError(f"Avro has no type for {spark_type_name(type_)}")


def encode_rows(values: Any, header: bytes = b"") -> Any:
    """Structs as an array of their bytes, each behind the same first ones; NULL stays NULL."""
    has = values.is_valid()
    rows = values.filter(has)
    return concat_parts([constant(header, len(rows)), _record(rows)]).array(np.asarray(has))


def _record(rows: Any) -> Ragged:
    columns = [_nullable(column, field) for column, field in zip(rows.flatten(), rows.type, strict=True)]
    return concat_parts([constant(b"", len(rows)), *columns])


def _nullable(column: Any, field: Any) -> Ragged:
    """Values behind the number of their branch, where there may be none."""
    if not field.nullable:
        return _values(column)
    has = np.asarray(column.is_valid())
    return concat_parts([_longs(has.astype(np.int64)), _values(column.drop_null()).spread(has)])


def _values(column: Any) -> Ragged:
    """Encode values without NULLs."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return _record(column)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        return _collection(column)
    if pa.types.is_decimal(type_):
        return _decimals(column)
    if type_ in (pa.string(), pa.binary()):
        inside = bytes_of(column)
        return concat_parts([_longs(inside.lengths), inside])
    if pa.types.is_boolean(type_):
        return Ragged(np.asarray(column.cast(pa.uint8())), np.arange(len(column) + 1))
    if pa.types.is_floating(type_):
        return floats(column)
    if pa.types.is_time64(type_):
        # Spark's times have nanoseconds; the rest of a microsecond is cut off.
        return _longs(np.asarray(column.cast(pa.int64())) // 1000)
    whole = column.cast(pa.int32()) if pa.types.is_date32(type_) else column
    return _longs(np.asarray(whole.cast(pa.int64())))


def _collection(column: Any) -> Ragged:
    """Lists and maps: the number of elements, then these, then the number of no more."""
    is_map = pa.types.is_map(column.type)
    counts = np.diff(np.asarray(column.offsets))
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    if is_map:
        keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
        elements = concat_parts([_values(keys), _nullable(items, column.type.item_field)])
    else:
        elements = _nullable(column.values.slice(first, last - first), column.type.value_field)
    inside = Ragged(elements.data, elements.ends[ends_of(counts)])
    return concat_parts([_nonzero(counts), inside, constant(b"\0", len(column))])


def _nonzero(counts: Any) -> Ragged:
    """Numbers that are not 0; nothing in the place of one that is."""
    return _longs(counts[counts > 0]).spread(counts > 0)


def _longs(values: Any) -> Ragged:
    """Numbers in as many bytes as they need."""
    return varints(zigzag_encode(values))


def _decimals(column: Any) -> Ragged:
    """The digits as a whole number, in as many bytes as it and its sign need, the highest first."""
    size = column.type.byte_width
    start = column.offset * size
    stored = np.frombuffer(column.buffers()[1] or b"", np.uint8)[start : start + len(column) * size]
    digits = stored.reshape(len(column), size)[:, ::-1]
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A byte goes without saying if all up to it are the sign, and the next one shows it.
    shows = (digits[:, 1:] >= 0x80) == (sign > 0)
    needless = np.logical_and.accumulate((digits[:, :-1] == sign) & shows, axis=1).sum(axis=1)
    needed = np.arange(int(size)) >= needless[:, None]
    lengths = size - needless
    return concat_parts([_longs(lengths), Ragged(digits[needed], ends_of(lengths))])
