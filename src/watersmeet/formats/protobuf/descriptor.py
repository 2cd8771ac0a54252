"""Protobuf messages from a descriptor set, which is what ``protoc --descriptor_set_out`` writes.

The driver reads it. Workers get its bytes and what `Messages` says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.catalog import Field
from watersmeet.codec.binary import SchemaError
from watersmeet.errors import did_you_mean
from watersmeet.logical.words import word

PROTOBUF = "protobuf"
"""The format of values, as ``value.format`` calls it."""
DESCRIPTOR, MESSAGE = "value.descriptor", "value.message"
OPTIONS = frozenset({DESCRIPTOR, MESSAGE})
"""Our own options: the file with the descriptor set, and the full name of the message that values are."""

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Wrapper messages, which stand for their only field, so that it may be missing."""
_TYPES: Mapping[str, str] = {
    "double": "DOUBLE", "float": "FLOAT", "int32": "INT", "sint32": "INT", "sfixed32": "INT", "int64": "BIGINT",
    "sint64": "BIGINT", "sfixed64": "BIGINT", "uint32": "BIGINT", "fixed32": "BIGINT", "uint64": "DECIMAL(20,0)",
    "fixed64": "DECIMAL(20,0)", "bool": "BOOLEAN", "string": "STRING", "bytes": "BINARY", "enum": "STRING",
}  # fmt: skip
"""The type that a column has for each type of a field."""
UNSIGNED = pa.decimal128(20, 0)
"""The Arrow type that has room for 64 bits without a sign."""
_MADE = "make it with `protoc --include_imports --descriptor_set_out=FILE ...` and name it with `value.descriptor`."


class DescriptorError(SchemaError):
    """A descriptor set that cannot be read or lacks the message, and a hint."""

    def __init__(self, reason: str, hint: str = _MADE) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True)
class ProtoField:
    """A field of a message.

    ``kind``: its Protobuf type. ``default``: its value where it is missing; None: NULL. ``message``: its message type;
    ``symbols``: the names of an enum by their numbers.
    """

    number: int
    name: str
    kind: str
    is_repeated: bool = False
    is_required: bool = False
    default: Any = None
    message: str = ""
    symbols: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class ProtoMessage:
    """A message. ``is_entry``: it is the key and the value of a map."""

    name: str
    fields: tuple[ProtoField, ...]
    is_entry: bool = False

    def field(self, name: str) -> ProtoField | None:
        """The field for a column: of its name, or of that name in other letters."""
        matches = [member for member in self.fields if member.name == name]
        return next(iter(matches or [member for member in self.fields if member.name.lower() == name.lower()]), None)


@dataclass(frozen=True)
class Messages:
    """The message that values are, and all those within it, by their full names; ``files``: the descriptor set."""

    root: str
    by_name: Mapping[str, ProtoMessage] = field(hash=False)
    files: bytes = field(default=b"", repr=False)

    @property
    def root_message(self) -> ProtoMessage:
        """The message that values are."""
        return self.by_name[self.root]

    @property
    def has_required(self) -> bool:
        """Whether some field must be there."""
        return any(member.is_required for message in self.by_name.values() for member in message.fields)


def read_messages(path: str, message: str) -> Messages:
    """A message out of a descriptor set; `DescriptorError` if it is not there."""
    descriptor = _load_descriptor(path, message)
    messages: dict[str, ProtoMessage] = {}
    waiting = [descriptor]
    while waiting:
        current = waiting.pop()
        if current.full_name not in messages:
            messages[current.full_name] = _message(current)
            waiting += [inner.message_type for inner in current.fields if inner.message_type is not None]
    return Messages(descriptor.full_name, messages, Path(path).read_bytes())


def _load_descriptor(path: str, message: str) -> Any:
    """The descriptor of a message from the package ``protobuf``."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise DescriptorError("the package protobuf is not installed", "`pip install protobuf`.") from error
    try:
        files: Any = FileDescriptorSet.FromString(Path(path).read_bytes()).file
    except OSError as error:
        raise DescriptorError(f"{path} cannot be read ({error.strerror})") from error
    except DecodeError as error:
        raise DescriptorError(f"{path} is not a descriptor set") from error
    names = [name for file in files for name in _names(file.package, file.message_type)]
    if not names:
        raise DescriptorError(f"{path} is not a descriptor set, or has no messages")
    pool: Any = DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return pool.FindMessageTypeByName(message.removeprefix("."))
    except (KeyError, TypeError) as error:
        if message.removeprefix(".") not in names:
            hint = did_you_mean(message, names)
            raise DescriptorError(f"{path} has no message `{message}`", hint) from error
        lacking = sorted(
            {dependency for file in files for dependency in file.dependency} - {file.name for file in files}
        )
        reason = f"it imports {', '.join(lacking)}, which it does not contain" if lacking else str(error)
        raise DescriptorError(f"{path} is incomplete: {reason}") from error


def _names(package: str, messages: Any) -> Iterator[str]:
    """The full names of messages and of those declared within them, but for entries of maps."""
    for message in messages:
        if not message.options.map_entry:
            name = f"{package}.{message.name}" if package else str(message.name)
            yield name
            yield from _names(name, message.nested_type)


def _message(descriptor: Any) -> ProtoMessage:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    proto: Any = DescriptorProto()
    descriptor.CopyToProto(proto)
    is_entry = bool(proto.options.map_entry)
    fields = (
        _field(member, label, is_entry=is_entry) for member, label in zip(descriptor.fields, proto.field, strict=True)
    )
    return ProtoMessage(descriptor.full_name, tuple(fields), is_entry)


def _field(descriptor: Any, proto: Any, *, is_entry: bool) -> ProtoField:
    kind = str(proto.Type.Name(proto.type)).removeprefix("TYPE_").lower()
    is_repeated = proto.label == proto.LABEL_REPEATED
    has_default = descriptor.has_default_value or is_entry or not descriptor.has_presence
    default = descriptor.default_value if has_default and not is_repeated and descriptor.message_type is None else None
    symbols = (
        ()
        if descriptor.enum_type is None
        else tuple((symbol.number, symbol.name) for symbol in descriptor.enum_type.values)
    )
    message = "" if descriptor.message_type is None else str(descriptor.message_type.full_name)
    is_required = proto.label == proto.LABEL_REQUIRED and not is_entry
    return ProtoField(descriptor.number, descriptor.name, kind, is_repeated, is_required, default, message, symbols)


def columns_in(path: str, message: str) -> tuple[Field, ...]:
    """The columns that a message has; `DescriptorError` if it cannot be read, or has a message within itself."""
    messages = read_messages(path, message)
    return tuple(
        Field(member.name, _type(messages, member, (messages.root,))) for member in messages.root_message.fields
    )


def _type(messages: Messages, member: ProtoField, around: tuple[str, ...]) -> str:
    """The type of a column in Spark's words; ``around``: the messages that it is within."""
    inner = messages.by_name.get(member.message)
    if inner is not None and inner.is_entry:
        key, value = (_type(messages, element, around) for element in inner.fields)
        return f"MAP<{key}, {value}>"
    element = _element_type(messages, member, around)
    return f"ARRAY<{element}>" if member.is_repeated else element


def _element_type(messages: Messages, member: ProtoField, around: tuple[str, ...]) -> str:
    name = member.message
    if name in around or member.kind == "group" or (name and not messages.by_name[name].fields):
        reason = "contains itself" if name in around else "cannot be a column"
        hint = "declare the columns that are needed."
        raise DescriptorError(f"`{member.name}` of `{around[-1]}` {reason}", hint)
    if name == TIMESTAMP:
        return "TIMESTAMP"
    if name == DURATION:
        return "INTERVAL DAY TO SECOND"
    if name in WRAPPERS:
        return _element_type(messages, messages.by_name[name].fields[0], around)
    if not name:
        return _TYPES[member.kind]
    fields = messages.by_name[name].fields
    inside = (f"{word(inner.name)}: {_type(messages, inner, (*around, name))}" for inner in fields)
    return f"STRUCT<{', '.join(inside)}>"
