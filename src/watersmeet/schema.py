"""Types: the table of Spark's type names, and conversion between Spark's DDL and Arrow, without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, LiteralString

from watersmeet.errors import refuse

if TYPE_CHECKING:
    import pyarrow as pa


TimeType = Literal["timestamp", "timestamp_ntz", "date", "integer"]
"""Event times compare within a family. The two kinds of timestamp are hours apart, by the time zone of the session."""

Form = Literal["plain", "sized", "nested"]
"""The syntax after a type name: nothing, numbers (``DECIMAL(10,2)``), or types in brackets (units, of an interval)."""


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
    """A hint for an unknown type: the name of the nearest type.

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


_DAY_TIME = ("DAY", "HOUR", "MINUTE", "SECOND")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")


@dataclass(frozen=True)
class Type:
    """A type taken apart.

    ``numbers`` are precision and scale, or a length; ``parts`` are the types inside: ``element`` of an array, ``key``
    and ``value`` of a map, the fields of a struct by name.
    """

    name: str
    numbers: tuple[int, ...] = ()
    parts: tuple[TypePart, ...] = ()


@dataclass(frozen=True)
class TypePart:
    """A type inside another."""

    name: str
    type: Type
    nullable: bool = True


def parse_type(text: str) -> Type:
    """The type that a text of Spark's DDL names; refused with UNKNOWN_TYPE if it names none.

    >>> parse_type("decimal(10, 2)")
    Type(name='DECIMAL', numbers=(10, 2), parts=())
    >>> [part.name for part in parse_type("STRUCT<a: INT, b: ARRAY<STRING>>").parts]
    ['a', 'b']
    """
    reader = _Reader(text)
    kind = reader.type()
    reader.expect_end()
    return kind


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type in which Spark hands over values of a type.

    >>> arrow_type("DECIMAL(10,2)")
    Decimal128Type(decimal128(10, 2))
    >>> arrow_type("TIMESTAMP")
    TimestampType(timestamp[us, tz=UTC])
    """
    return _arrow(parse_type(text))


class _Reader:
    """Reads one type from its text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._split(text)
        self.position = 0

    def type(self) -> Type:
        word = self._next().upper()
        type_name = BY_NAME.get(word)
        match name := type_name.name if type_name else word:
            case "ARRAY":
                return Type(name, parts=self._type_arguments(("element",)))
            case "MAP":
                return Type(name, parts=self._type_arguments(("key", "value")))
            case "STRUCT":
                return Type(name, parts=self._fields())
            case "DECIMAL":
                return Type(name, self._precision())
            case "CHAR" | "VARCHAR":
                return Type(name, self._numbers(1))
            case "INTERVAL":
                return self._interval()
            case "STRING" if self._accept("COLLATE"):
                self._next()
                return Type(name)
            case _ if type_name and type_name.arrow:
                return Type(name)
            case _:
                raise self._unknown()

    def expect_end(self) -> None:
        if self.position != len(self.tokens):
            raise self._unknown()

    def _precision(self) -> tuple[int, ...]:
        if self._peek() != "(":
            return (10, 0)
        numbers = self._numbers(1, 2)
        precision, scale = (*numbers, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise self._unknown()
        return (precision, scale)

    def _interval(self) -> Type:
        first = self._next().upper()
        last = self._next().upper() if self._accept("TO") else first
        # Months have no fixed length, and Arrow in Python has no type for them.
        if first not in _DAY_TIME or last not in _DAY_TIME or _DAY_TIME.index(last) < _DAY_TIME.index(first):
            raise self._unknown()
        return Type("INTERVAL")

    def _type_arguments(self, names: tuple[str, ...]) -> tuple[TypePart, ...]:
        self._expect("<")
        parts: list[TypePart] = []
        for name in names:
            if parts:
                self._expect(",")
            # The key of a map is never NULL.
            parts.append(TypePart(name, self.type(), nullable=name != "key"))
        self._expect(">")
        return tuple(parts)

    def _fields(self) -> tuple[TypePart, ...]:
        self._expect("<")
        parts: list[TypePart] = []
        while not self._accept(">"):
            if parts:
                self._expect(",")
            name = _unquote(self._next())
            self._accept(":")
            kind = self.type()
            nullable = not self._accept("NOT")
            if not nullable:
                self._expect("NULL")
            if self._accept("COMMENT"):
                self._next()
            parts.append(TypePart(name, kind, nullable))
        return tuple(parts)

    def _numbers(self, *counts: int) -> tuple[int, ...]:
        self._expect("(")
        numbers = [self._number()]
        while self._accept(","):
            numbers.append(self._number())
        self._expect(")")
        if len(numbers) not in counts:
            raise self._unknown()
        return tuple(numbers)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise self._unknown()
        return int(token)

    def _peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise self._unknown()
        self.position += 1
        return token

    def _accept(self, token: str) -> bool:
        next_token = self._peek()
        if next_token is None or next_token.upper() != token:
            return False
        self.position += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._unknown()

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._unknown()
            tokens.append(match[1])
            position = match.end()
        return tokens

    def _unknown(self) -> Exception:
        return refuse("UNKNOWN_TYPE", type=self.text, hint=did_you_mean_type(self.text))


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _arrow(kind: Type) -> Any:
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa

    parts = [pa.field(part.name, _arrow(part.type), part.nullable) for part in kind.parts]
    match kind.name:
        case "ARRAY":
            return pa.list_(parts[0])
        case "MAP":
            return pa.map_(parts[0], parts[1])
        case "STRUCT":
            return pa.struct(parts)
        case "DECIMAL":
            return pa.decimal128(*kind.numbers)
        case name:
            factory, *arguments = BY_NAME[name].arrow
            return getattr(pa, factory)(*arguments)


def quote(name: str) -> str:
    """The name in backticks.

    >>> quote("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"
