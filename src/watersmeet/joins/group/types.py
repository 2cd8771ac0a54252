"""The aggregate functions of a grouping: which there are, which can be undone, and the types they give, as in Spark."""

from __future__ import annotations

import re

import pyarrow as pa

SYNONYMS = {
    "mean": "avg",
    "every": "bool_and",
    "some": "bool_or",
    "any": "bool_or",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "any_value": "first",
    "first_value": "first",
    "last_value": "last",
}

MOMENTS = frozenset({"stddev_samp", "stddev_pop", "var_samp", "var_pop"})
RETRACTABLE = frozenset({"count", "count_if", "sum", "avg", *MOMENTS})
"""Functions whose value follows from sums, so that a row can be taken back without knowing the others."""
CHOSEN = frozenset({"min", "max", "min_by", "max_by", "bool_and", "bool_or", "first", "last"})
"""Functions whose value is that of one of the rows."""
BITS = frozenset({"bit_and", "bit_or", "bit_xor"})
FUNCTIONS = RETRACTABLE | CHOSEN | BITS

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_ORDERED = frozenset(
    {*_INTEGERS, *_FLOATS, "BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL", "INTERVAL"}
)
_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "CHAR": "STRING",
    "VARCHAR": "STRING",
}
_NAME = re.compile(r"\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(.*)", re.DOTALL)
_DAY_TIME = re.compile(r"(DAY|HOUR|MINUTE|SECOND)(\s+TO\s+(HOUR|MINUTE|SECOND))?", re.IGNORECASE)


def canonical(function: str) -> str:
    """The name of a function among its synonyms.

    >>> canonical("STD"), canonical("any_value"), canonical("sum")
    ('stddev_samp', 'first', 'sum')
    """
    name = function.lower()
    return SYNONYMS.get(name, name)


def is_aggregate(function: str) -> bool:
    """Whether a grouping knows that function.

    >>> is_aggregate("every"), is_aggregate("collect_list")
    (True, False)
    """
    return canonical(function) in FUNCTIONS


def is_retractable(function: str) -> bool:
    """Whether rows can be taken back from that aggregate, so that it may be asked of a table that changes.

    >>> is_retractable("avg"), is_retractable("max")
    (True, False)
    """
    return canonical(function) in RETRACTABLE


def result_type(function: str, types: tuple[str, ...]) -> str | None:
    """The type of an aggregate over arguments of these types, both as Spark's DDL; None: it does not take them.

    >>> result_type("sum", ("INT",)), result_type("avg", ("DECIMAL(10,2)",)), result_type("max_by", ("STRING", "DATE"))
    ('BIGINT', 'DECIMAL(14,6)', 'STRING')
    >>> print(result_type("sum", ("STRING",)))
    None
    """
    name = canonical(function)
    if name == "count":
        return "BIGINT"
    if len(types) != (2 if name.endswith("_by") else 1) or name not in FUNCTIONS:
        return None
    kind, numbers = _taken_apart(types[-1])
    match name:
        case "first" | "last":
            return types[0]
        case "min" | "max" | "min_by" | "max_by":
            return types[0] if kind in _ORDERED else None
        case "bool_and" | "bool_or":
            return "BOOLEAN" if kind == "BOOLEAN" else None
        case "count_if":
            return "BIGINT" if kind == "BOOLEAN" else None
        case "bit_and" | "bit_or" | "bit_xor":
            return kind if kind in _INTEGERS else None
        case "sum" | "avg":
            return _total_type(name, kind, numbers, types[0])
        case _:
            return "DOUBLE" if kind in {*_INTEGERS, *_FLOATS, "DECIMAL"} else None


def arrow_result(function: str, types: tuple[pa.DataType, ...]) -> pa.DataType:
    """The same for Arrow types, which the function takes.

    >>> arrow_result("sum", (pa.decimal128(38, 2),)), arrow_result("avg", (pa.int8(),))
    (Decimal128Type(decimal128(38, 2)), DataType(double))
    """
    name = canonical(function)
    if name in ("count", "count_if"):
        return pa.int64()
    if name in CHOSEN or name in BITS:
        return types[0]
    if name in ("sum", "avg"):
        if pa.types.is_decimal(types[0]):
            widen = widened if name == "sum" else averaged
            return pa.decimal128(*widen(types[0].precision, types[0].scale))
        if pa.types.is_duration(types[0]):
            return types[0]
        if name == "sum" and pa.types.is_integer(types[0]):
            return pa.int64()
    return pa.float64()


def widened(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of a sum of decimals."""
    return min(38, precision + 10), scale


def averaged(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of an average of decimals.

    >>> averaged(36, 36)
    (38, 38)
    """
    return min(38, precision + 4), min(38, scale + 4)


def _total_type(name: str, kind: str | None, numbers: tuple[int, int], given: str) -> str | None:
    if kind == "DECIMAL":
        precision, scale = (widened if name == "sum" else averaged)(*numbers)
        return f"DECIMAL({precision},{scale})"
    if kind == "INTERVAL":
        return given if name == "sum" else "INTERVAL DAY TO SECOND"
    if kind in _INTEGERS:
        return "BIGINT" if name == "sum" else "DOUBLE"
    return "DOUBLE" if kind in _FLOATS else None


def _taken_apart(text: str) -> tuple[str | None, tuple[int, int]]:
    """The name of a type, and precision and scale; None for a type that has no order here, or none that is plain."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None, (0, 0)
    word, rest = found[1].upper(), found[4].strip()
    name = _ALIASES.get(word, word)
    # Other collations than this one do not order texts by their bytes.
    is_plain = not rest or rest.upper().split() == ["COLLATE", "UTF8_BINARY"]
    if name == "INTERVAL":
        is_plain = _DAY_TIME.fullmatch(rest) is not None
    return name if is_plain else None, (int(found[2] or 10), int(found[3] or 0))
