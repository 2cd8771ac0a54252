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

from watersmeet.codec.binary import SchemaError

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
"""The supported logical types of each type; a value of any other one has its stored type."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WIDEST = 38
"""The most digits that a decimal of Spark's has."""


@dataclass(frozen=True)
class AvroField:
    """A field of a record, its aliases, and its default, which may be NULL; ``has_default``: whether it has one."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = None
    has_default: bool = False


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

    def resolve(self, type_: AvroType) -> AvroType:
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
        for earlier in before:
            _type(_json(earlier), "", named)
        return AvroSchema(_type(_json(text), "", named), named)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"it is incomplete ({error!r})") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # The name of a type is a schema, too, with quotation marks or without.
        if text.strip() not in PRIMITIVES:
            raise SchemaError(f"it is not JSON ({error})") from error
        return text.strip()


def _type(spec: Any, space: str, named: dict[str, AvroType]) -> AvroType:
    match spec:
        case str():
            return AvroType(spec) if spec in PRIMITIVES else AvroType("ref", _resolve_name(spec, space, named))
        case list():
            return AvroType("union", inner=tuple(_type(branch, space, named) for branch in cast("list[Any]", spec)))
        case {"type": "array", "items": items}:
            return AvroType("array", inner=(_type(items, space, named),))
        case {"type": "map", "values": values}:
            return AvroType("map", inner=(_type(values, space, named),))
        case {"type": ("record" | "error" | "enum" | "fixed") as kind}:
            return _define_type(str(kind), cast("dict[str, Any]", spec), space, named)
        case {"type": str(kind)} if kind in PRIMITIVES:
            return _logical(AvroType(kind), cast("dict[str, Any]", spec))
        case {"type": inner}:
            return _type(inner, space, named)
        case _:
            raise SchemaError(f"{json.dumps(spec)[:80]} is not a type")


def _resolve_name(name: str, space: str, named: Mapping[str, AvroType]) -> str:
    full_name = next((full for full in (f"{space}.{name}", name) if full in named), None)
    if full_name is None:
        raise SchemaError(f"`{name}` is not an Avro type, and is not defined before it is used")
    return full_name


def _define_type(kind: str, spec: dict[str, Any], space: str, named: dict[str, AvroType]) -> AvroType:
    own, dot, last = str(spec.get("name", "")).rpartition(".")
    inside = own if dot else str(spec.get("namespace", space))
    name = f"{inside}.{last}" if inside else last
    if not last:
        raise SchemaError(f"a type of kind {kind} has no name")
    # It may be used within itself.
    named[name] = AvroType("ref", name)
    if kind == "enum":
        made = AvroType(kind, name, symbols=tuple(map(str, spec["symbols"])))
    elif kind == "fixed":
        made = _logical(AvroType(kind, name, size=int(spec["size"])), spec)
    else:
        made = AvroType("record", name, fields=tuple(_fields(spec, inside, named)))
    named[name] = made
    return made


def _fields(spec: dict[str, Any], space: str, named: dict[str, AvroType]) -> Iterator[AvroField]:
    for member in spec.get("fields", ()):
        aliases = tuple(map(str, member.get("aliases", ())))
        type_ = _type(member["type"], space, named)
        yield AvroField(str(member["name"]), type_, aliases, member.get("default"), "default" in member)


def _logical(plain: AvroType, spec: Mapping[str, Any]) -> AvroType:
    """The type with its meaning, if that is known."""
    logical = str(spec.get("logicalType", ""))
    if logical not in _LOGICAL.get(plain.kind, ()):
        return plain
    precision = int(spec.get("precision", 0))
    if logical == "decimal" and not 0 < precision <= _WIDEST:
        return plain
    return AvroType(plain.kind, plain.name, logical, precision, int(spec.get("scale", 0)), plain.size)


def is_name(text: str) -> bool:
    """Whether a column may be called so in Avro.

    >>> is_name("order_id"), is_name("order id")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def split_null(type_: AvroType) -> tuple[AvroType, bool]:
    """A type without NULL, and whether it may be NULL; a union of several others remains one.

    >>> split_null(read_schema('["null", "long"]').type)[0].kind
    'long'
    """
    if type_.kind != "union":
        return type_, type_.kind == "null"
    others = tuple(branch for branch in type_.inner if branch.kind != "null")
    may_miss = len(others) < len(type_.inner)
    return (others[0] if len(others) == 1 else type_), may_miss


def field_of(record: AvroType, name: str, aliases: tuple[str, ...] = ()) -> AvroField | None:
    """The field of a record for a column: of its name, of that name in other letters, or of one of its aliases."""
    for wanted in (name, *aliases):
        fields = [member for member in record.fields if member.name == wanted]
        fields = fields or [member for member in record.fields if member.name.lower() == wanted.lower()]
        if fields:
            return fields[0]
    return None
