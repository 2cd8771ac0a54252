"""The columns of Parquet, from the footers of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from watersmeet.formats.columns.kinds import Kind, NoColumnsError, type_of


def parquet_columns(file: Path) -> dict[str, Kind]:
    """The columns of a file."""
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read: Any = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise NoColumnsError(f"{file} is not a Parquet file ({str(error).splitlines()[0]})") from error
    leaves = [read.schema.column(i) for i in range(len(read.schema.names))]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    return {field.name: _arrow_kind(field.type, field.name, is_int96=field.name in old) for field in read.schema_arrow}


_ARROW = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "uint8": "SMALLINT", "uint16": "INT",
    "uint32": "BIGINT", "uint64": "DECIMAL(20,0)", "float": "FLOAT", "double": "DOUBLE", "bool": "BOOLEAN",
    "string": "STRING", "large_string": "STRING", "string_view": "STRING", "binary": "BINARY", "null": "STRING",
    "large_binary": "BINARY", "binary_view": "BINARY", "date32[day]": "DATE",
}  # fmt: skip


def _arrow_kind(type: Any, name: str, *, is_int96: bool = False) -> Kind:
    """The type that Spark reads a column of Parquet as."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return _arrow_kind(type.value_type, name)
    if pa.types.is_decimal(type) and type.precision <= 38:
        return f"DECIMAL({type.precision},{type.scale})"
    if pa.types.is_timestamp(type) and (type.unit in ("us", "ms") or is_int96):
        return "TIMESTAMP" if type.tz or is_int96 else "TIMESTAMP_NTZ"
    if pa.types.is_fixed_size_binary(type):
        return "BINARY"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_arrow_kind(type.value_type, name)]
    if pa.types.is_struct(type):
        return {inner.name: _arrow_kind(inner.type, f"{name}.{inner.name}") for inner in type}
    if pa.types.is_map(type):
        key, value = (type_of(_arrow_kind(inner, name)) for inner in (type.key_type, type.item_type))
        return f"MAP<{key}, {value}>"
    if str(type) not in _ARROW:
        raise NoColumnsError(f"its column `{name}` is {type}, which Spark has no type for")
    return _ARROW[str(type)]
