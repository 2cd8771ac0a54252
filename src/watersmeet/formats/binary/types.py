"""Types of columns in words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_SPELLED = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.binary(): "BINARY", pa.date32(): "DATE",
    pa.time64("ns"): "TIME", pa.duration("us"): "INTERVAL DAY TO SECOND",
}  # fmt: skip


def spark_type_name(type_: Any) -> str:
    """An Arrow type as Spark writes it, as far as it has a short name.

    >>> spark_type_name(pa.int64()), spark_type_name(pa.decimal128(9, 2))
    ('BIGINT', 'DECIMAL(9,2)')
    """
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP_NTZ" if type_.tz is None else "TIMESTAMP"
    nested = {pa.types.is_struct: "STRUCT", pa.types.is_list: "ARRAY", pa.types.is_map: "MAP"}
    return next((name for is_, name in nested.items() if is_(type_)), _SPELLED.get(type_, str(type_)))
