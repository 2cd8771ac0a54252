"""Schemas of Avro: read from their JSON, made of columns, and compared with declared columns.

A schema is a tree of `AvroType`. Types that have a name may be used again by it, also within themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from watersmeet.formats.binary import SchemaError

AVRO = "avro"
"""The format of values and keys, as ``value.format`` and ``key.format`` call it."""
SCHEMA = "avro.schema"
KEY_SCHEMA = "avro.key.schema"
"""Our own options: the schema of values, and of keys, that come without the number of theirs."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_LOGICAL: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset({
        "time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros",
    }),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal"}),
}  # fmt: skip
"""The logical types that are known of each type; any other one is what it is stored as."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WIDEST = 38
"""The most digits that a decimal of Spark's has."""


@dataclass(frozen=True)
class AvroField:
    """A field of a record, its other names, and what stands for it where a writer did not have it."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = None


@dataclass(frozen=True)
class AvroType:
    """A type. ``kind`` is Avro's name of it, or ``ref`` for one that ``name`` has been given to before."""

    kind: str
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    inner: tuple[AvroType, ...] = ()
    """The elements of an array, the values of a map, or the branches of a union."""


@dataclass(frozen=True)
class AvroSchema:
    """A whole schema: its type, and those that have names."""

    type: AvroType
    named: Mapping[str, AvroType] = field(hash=False, compare=False)

    def whole(self, type_: AvroType) -> AvroType:
        """A type in place of its name."""
        return self.named[type_.name] if type_.kind == "ref" else type_


@lru_cache(256)
def read_schema(text: str, *before: str) -> AvroSchema:
    """A schema from its JSON, with the types that schemas ``before`` it have names for.

    >>> read_schema('["null", {"type": "long", "logicalType": "timestamp-micros"}]').type.inner[1].logical
    'timestamp-micros'
    """
    named: dict[str, AvroType] = {}
    try:
        for one in before:
            _type(_json(one), "", named)
        return AvroSchema(_type(_json(text), "", named), named)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"it is not whole ({error!r})") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # The name of a type is a schema, too, with quotation marks or without.
        if text.strip() not in PRIMITIVES:
            raise SchemaError(f"it is no JSON ({error})") from error
        return text.strip()


def _type(told: Any, space: str, named: dict[str, AvroType]) -> AvroType:
    match told:
        case str():
            return AvroType(told) if told in PRIMITIVES else AvroType("ref", _known(told, space, named))
        case list():
            return AvroType("union", inner=tuple(_type(one, space, named) for one in cast("list[Any]", told)))
        case {"type": "array", "items": items}:
            return AvroType("array", inner=(_type(items, space, named),))
        case {"type": "map", "values": values}:
            return AvroType("map", inner=(_type(values, space, named),))
        case {"type": ("record" | "error" | "enum" | "fixed") as kind}:
            return _named(str(kind), cast("dict[str, Any]", told), space, named)
        case {"type": str(kind)} if kind in PRIMITIVES:
            return _logical(AvroType(kind), cast("dict[str, Any]", told))
        case {"type": inner}:
            return _type(inner, space, named)
        case _:
            raise SchemaError(f"{json.dumps(told)[:80]} is no type")


def _known(name: str, space: str, named: Mapping[str, AvroType]) -> str:
    found = next((full for full in (f"{space}.{name}", name) if full in named), None)
    if found is None:
        raise SchemaError(f"`{name}` is no type of Avro and nothing of that name comes before it")
    return found


def _named(kind: str, told: dict[str, Any], space: str, named: dict[str, AvroType]) -> AvroType:
    own, dot, last = str(told.get("name", "")).rpartition(".")
    inside = own if dot else str(told.get("namespace", space))
    name = f"{inside}.{last}" if inside else last
    if not last:
        raise SchemaError(f"a type of kind {kind} has no name")
    # It may be used within itself.
    named[name] = AvroType("ref", name)
    if kind == "enum":
        made = AvroType(kind, name, symbols=tuple(map(str, told["symbols"])))
    elif kind == "fixed":
        made = _logical(AvroType(kind, name, size=int(told["size"])), told)
    else:
        made = AvroType("record", name, fields=tuple(_fields(told, inside, named)))
    named[name] = made
    return made


def _fields(told: dict[str, Any], space: str, named: dict[str, AvroType]) -> Iterator[AvroField]:
    for one in told.get("fields", ()):
        aliases = tuple(map(str, one.get("aliases", ())))
        yield AvroField(str(one["name"]), _type(one["type"], space, named), aliases, one.get("default"))


def _logical(plain: AvroType, told: Mapping[str, Any]) -> AvroType:
    """The type with its meaning, if that is known."""
    logical = str(told.get("logicalType", ""))
    if logical not in _LOGICAL.get(plain.kind, ()):
        return plain
    precision = int(told.get("precision", 0))
    if logical == "decimal" and not 0 < precision <= _WIDEST:
        return plain
    return AvroType(plain.kind, plain.name, logical, precision, int(told.get("scale", 0)), plain.size)


def is_name(text: str) -> bool:
    """Whether a column may be called so in Avro.

    >>> is_name("order_id"), is_name("order id")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def nullable(type_: AvroType) -> tuple[AvroType, bool]:
    """What a type is besides NULL, and whether it may be NULL; a union of several others stays one.

    >>> nullable(read_schema('["null", "long"]').type)[0].kind
    'long'
    """
    if type_.kind != "union":
        return type_, type_.kind == "null"
    others = tuple(one for one in type_.inner if one.kind != "null")
    may_miss = len(others) < len(type_.inner)
    return (others[0] if len(others) == 1 else type_), may_miss


def field_of(record: AvroType, name: str, aliases: tuple[str, ...] = ()) -> AvroField | None:
    """The field of a record for a column: of its name, of that name in other letters, or of one of its aliases."""
    for wanted in (name, *aliases):
        found = [one for one in record.fields if one.name == wanted]
        found = found or [one for one in record.fields if one.name.lower() == wanted.lower()]
        if found:
            return found[0]
    return None
