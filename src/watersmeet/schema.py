"""Types: the text of Spark's DDL on one side, Arrow on the other. No Spark is needed to go between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watersmeet.errors import refuse
from watersmeet.type_names import BY_NAME, did_you_mean_type

if TYPE_CHECKING:
    import pyarrow as pa

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
