"""The one table of types: how Spark's DDL names each, what its values are, and what stands for it elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, LiteralString

TimeType = Literal["timestamp", "timestamp_ntz", "date", "integer"]
"""Event times compare within a family. The two kinds of timestamp are hours apart, by the time zone of the session."""

Form = Literal["plain", "sized", "nested"]
"""What follows a name: nothing, numbers in brackets (``DECIMAL(10,2)``), or other types (units, of an interval)."""


@dataclass(frozen=True)
class TypeName:
    """A type by its name.

    - ``values``: what its values are; types whose values are the same compare with each other
    - ``synonyms``: the other names that Spark knows it by
    - ``time_type``: which event time it can be; None: it cannot be one. Such values fit an int64 without loss
    - ``width``: the bytes of an integer
    - ``arrow``: what makes the type in pyarrow, and with which arguments; none where Spark does not hand values over
    - ``postgres``: what holds its values in a table of Postgres
    - ``substrait``: the kinds of a Substrait plan that are read as this type
    """

    name: str
    values: str
    synonyms: tuple[str, ...] = ()
    time_type: TimeType | None = None
    width: int = 0
    form: Form = "plain"
    arrow: tuple[str, ...] = ()
    postgres: LiteralString = "text"
    substrait: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it has."""
        return (self.name, *self.synonyms)


def _integer(name: str, synonym: str, width: int, postgres: LiteralString) -> TypeName:
    bits = str(8 * width)
    return TypeName(name, "number", (synonym,), "integer", width, "plain", (f"int{bits}",), postgres, (f"i{bits}",))


TYPES = (
    _integer("TINYINT", "BYTE", 1, "smallint"),
    _integer("SMALLINT", "SHORT", 2, "smallint"),
    _integer("INT", "INTEGER", 4, "integer"),
    _integer("BIGINT", "LONG", 8, "bigint"),
    TypeName("FLOAT", "number", ("REAL",), arrow=("float32",), postgres="real", substrait=("fp32",)),
    TypeName("DOUBLE", "number", arrow=("float64",), postgres="double precision", substrait=("fp64",)),
    TypeName("DECIMAL", "number", ("DEC", "NUMERIC"), form="sized", arrow=("decimal128",), postgres="numeric"),
    TypeName("BOOLEAN", "boolean", arrow=("bool_",), postgres="boolean", substrait=("bool",)),
    TypeName("STRING", "text", arrow=("string",), substrait=("string", "fixed_char", "varchar")),
    TypeName("CHAR", "text", ("CHARACTER",), form="sized", arrow=("string",)),
    TypeName("VARCHAR", "text", form="sized", arrow=("string",)),
    TypeName("BINARY", "binary", arrow=("binary",), postgres="bytea", substrait=("binary", "fixed_binary")),
    TypeName("DATE", "time", time_type="date", arrow=("date32",), postgres="date", substrait=("date",)),
    TypeName(
        "TIMESTAMP", "time", ("TIMESTAMP_LTZ",), "timestamp", arrow=("timestamp", "us", "UTC"), postgres="timestamptz",
        substrait=("timestamp_tz", "precision_timestamp_tz"),
    ),
    TypeName(
        "TIMESTAMP_NTZ", "time", time_type="timestamp_ntz", arrow=("timestamp", "us"), postgres="timestamp",
        substrait=("timestamp", "precision_timestamp"),
    ),
    TypeName("TIME", "time", form="sized"),
    # Months have no fixed length, and Arrow in Python has no type for them: this is an interval of days and below.
    TypeName("INTERVAL", "interval", form="nested", arrow=("duration", "us"), substrait=("interval_day",)),
    TypeName("VARIANT", "variant", postgres="jsonb"),
    TypeName("VOID", "void", arrow=("null",)),
    TypeName("ARRAY", "array", form="nested", postgres="jsonb"),
    TypeName("MAP", "map", form="nested", postgres="jsonb"),
    TypeName("STRUCT", "struct", form="nested", postgres="jsonb"),
)  # fmt: skip

FOREIGN_TYPES = {
    "DATETIME": "TIMESTAMP", "DATETIME2": "TIMESTAMP", "SMALLDATETIME": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMP_TZ": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP", "TIMESTAMP_S": "TIMESTAMP",
    "UUID": "STRING", "UNIQUEIDENTIFIER": "STRING", "TEXT": "STRING", "CLOB": "STRING", "NVARCHAR": "STRING",
    "VARCHAR2": "STRING", "CHARACTER VARYING": "STRING",
    "JSON": "STRING, and read it with `from_json` or `get_json_object`",
    "JSONB": "VARIANT", "ENUM": "STRING", "INET": "STRING", "SYMBOL": "STRING",
    "INT1": "TINYINT", "INT2": "SMALLINT", "INT4": "INT", "INT8": "BIGINT", "INT16": "SMALLINT", "INT32": "INT",
    "INT64": "BIGINT", "HUGEINT": "DECIMAL(38,0)", "MEDIUMINT": "INT", "SERIAL": "INT", "BIGSERIAL": "BIGINT",
    "UINT8": "SMALLINT", "UINT16": "INT", "UINT32": "BIGINT", "UINT64": "DECIMAL(20,0)", "UBIGINT": "DECIMAL(20,0)",
    "UINTEGER": "BIGINT", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "FLOAT32": "FLOAT", "FLOAT64": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE", "NUMBER": "DECIMAL(38,0), with the digits after the point as its second number",
    "MONEY": "DECIMAL(19,4)", "BIGNUMERIC": "DECIMAL(38,18)", "BOOL": "BOOLEAN", "BIT": "BOOLEAN",
    "BYTES": "BINARY", "BYTEA": "BINARY", "BLOB": "BINARY", "VARBINARY": "BINARY", "RAW": "BINARY",
    "ROW": "STRUCT<name: type, ...>", "RECORD": "STRUCT<name: type, ...>", "OBJECT": "STRUCT<name: type, ...>",
    "LIST": "ARRAY<type>", "MULTISET": "ARRAY<type>",
}  # fmt: skip
"""Names that other systems give to types, and what Spark calls these."""

BY_NAME = {name: type_ for type_ in TYPES for name in type_.names}
"""The types by each of their names, in capital letters."""

INTEGERS = tuple(type_.name for type_ in TYPES if type_.time_type == "integer")
"""From the narrowest to the widest."""

NUMBERS = tuple(type_.name for type_ in TYPES if type_.values == "number")

EXACT = frozenset(type_.name for type_ in TYPES if type_.time_type)
"""Types whose values fit an int64 without loss: such a key is its own code."""


def parse_type_name(text: str) -> TypeName | None:
    """The type that a text of Spark's DDL begins with.

    >>> parse_type_name("decimal(10, 2)").name, parse_type_name("STRUCT<a: INT>").values, parse_type_name("GEOGRAPHY")
    ('DECIMAL', 'struct', None)
    """
    match = re.match(r"\s*(\w+)", text)
    return BY_NAME.get(match[1].upper()) if match else None


def did_you_mean_type(name: str) -> str:
    """A hint that names the type nearest to a name that is none.

    >>> did_you_mean_type("BIGNIT"), did_you_mean_type("GEOGRAPHY")
    ('did you mean `BIGINT`?', 'use a type such as BIGINT, STRING, TIMESTAMP or DECIMAL(10,2).')
    """
    near = get_close_matches(name.upper(), BY_NAME, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else "use a type such as BIGINT, STRING, TIMESTAMP or DECIMAL(10,2)."


def time_type_of(type: str) -> TimeType | None:
    """The family of an event time of that type; None if it cannot be one.

    >>> time_type_of("bigint"), time_type_of("STRING")
    ('integer', None)
    """
    type_name = BY_NAME.get(type.strip().upper())
    return type_name.time_type if type_name else None


def is_moment(type: str) -> bool:
    """Whether its values are times or days.

    >>> is_moment("date"), is_moment("BIGINT")
    (True, False)
    """
    return time_type_of(type) not in (None, "integer")


_PARTS = re.compile(r"`(?:``|[^`])*`|\w+|\s+|.", re.DOTALL)


def normalise_type(type_: str) -> str:
    """A type in the spelling that comparisons use. The names of fields stay as they are.

    >>> normalise_type("integer"), normalise_type("array<struct<userName: string, b map<int,  int>>>")
    ('INT', 'ARRAY<STRUCT<userName: STRING, b MAP<INT, INT>>>')
    """
    text = " ".join(type_.split())
    if "<" in text:
        return _with_field_names(text)
    type_name = BY_NAME.get(text.upper())
    return type_name.name if type_name else text.upper()


def _with_field_names(text: str) -> str:
    parts, open_, is_name = list[str](), list[bool](), False
    for part in _PARTS.findall(text):
        if part == "<":
            open_.append("".join(parts).rstrip().endswith("STRUCT"))
        elif part == ">" and open_:
            open_.pop()
        is_field = is_name and not part.isspace()
        parts.append(part if is_field else part.upper())
        is_name = open_[-1:] == [True] and (part in ("<", ",") or (is_name and not is_field))
    return "".join(parts)
