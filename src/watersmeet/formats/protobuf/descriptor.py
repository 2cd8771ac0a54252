"""Messages of Protobuf, read from a descriptor set: the file that ``protoc --descriptor_set_out`` writes.

Only this module needs the package ``protobuf``, and only when it is called; workers get the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watersmeet.catalog import Field
from watersmeet.errors import did_you_mean
from watersmeet.formats.binary import SchemaError
from watersmeet.plan.words import word

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
"""Messages that stand for their one field, so that it may be left out."""
_TYPES: Mapping[str, str] = {
    "double": "DOUBLE", "float": "FLOAT", "int32": "INT", "sint32": "INT", "sfixed32": "INT", "int64": "BIGINT",
    "sint64": "BIGINT", "sfixed64": "BIGINT", "uint32": "BIGINT", "fixed32": "BIGINT", "uint64": "DECIMAL(20,0)",
    "fixed64": "DECIMAL(20,0)", "bool": "BOOLEAN", "string": "STRING", "bytes": "BINARY", "enum": "STRING",
}  # fmt: skip
"""The type that a column has for each type of a field."""
_MADE = "make it with `protoc --include_imports --descriptor_set_out=FILE ...` and name it with `value.descriptor`."


class DescriptorError(SchemaError):
    """A descriptor set that cannot be had or has not what is asked for, and what to do."""

    def __init__(self, reason: str, hint: str = _MADE) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True)
class ProtoField:
    """A field of a message.

    ``kind``: what Protobuf calls its type. ``default``: what stands for it where it is left out; None: nothing does.
    ``message``: the message that it is; ``symbols``: the names of an enum by their numbers.
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
        found = [one for one in self.fields if one.name == name]
        return next(iter(found or [one for one in self.fields if one.name.lower() == name.lower()]), None)


@dataclass(frozen=True)
class Messages:
    """The message that values are, and all those within it, by their full names."""

    root: str
    known: Mapping[str, ProtoMessage] = field(hash=False)

    @property
    def whole(self) -> ProtoMessage:
        """The message that values are."""
        return self.known[self.root]


def read_messages(path: str, message: str) -> Messages:
    """A message out of a descriptor set; `DescriptorError` if it is not there."""
    found = _found(path, message)
    known: dict[str, ProtoMessage] = {}
    waiting = [found]
    while waiting:
        one = waiting.pop()
        if one.full_name not in known:
            known[one.full_name] = _message(one)
            waiting += [inner.message_type for inner in one.fields if inner.message_type is not None]
    return Messages(found.full_name, known)


def _found(path: str, message: str) -> Any:
    """What the package ``protobuf`` knows of a message."""
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
        raise DescriptorError(f"{path} is no descriptor set") from error
    names = [name for file in files for name in _names(file.package, file.message_type)]
    if not names:
        raise DescriptorError(f"{path} is no descriptor set, or one without messages")
    pool: Any = DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return pool.FindMessageTypeByName(message.removeprefix("."))
    except (KeyError, TypeError) as error:
        if message.removeprefix(".") not in names:
            hint = did_you_mean(message, names)
            raise DescriptorError(f"{path} has no message `{message}`", hint) from error
        lacking = sorted({one for file in files for one in file.dependency} - {file.name for file in files})
        told = f"it imports {', '.join(lacking)}, which it does not hold" if lacking else str(error)
        raise DescriptorError(f"{path} is not whole: {told}") from error


def _names(package: str, messages: Any) -> Iterator[str]:
    """The full names of messages and of those declared within them, but for entries of maps."""
    for one in messages:
        if not one.options.map_entry:
            name = f"{package}.{one.name}" if package else str(one.name)
            yield name
            yield from _names(name, one.nested_type)


def _message(found: Any) -> ProtoMessage:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    told: Any = DescriptorProto()
    found.CopyToProto(told)
    is_entry = bool(told.options.map_entry)
    fields = (_field(one, label, is_entry=is_entry) for one, label in zip(found.fields, told.field, strict=True))
    return ProtoMessage(found.full_name, tuple(fields), is_entry)


def _field(found: Any, told: Any, *, is_entry: bool) -> ProtoField:
    kind = str(told.Type.Name(told.type)).removeprefix("TYPE_").lower()
    is_repeated = told.label == told.LABEL_REPEATED
    has_default = found.has_default_value or is_entry or not found.has_presence
    default = found.default_value if has_default and not is_repeated and found.message_type is None else None
    symbols = () if found.enum_type is None else tuple((one.number, one.name) for one in found.enum_type.values)
    message = "" if found.message_type is None else str(found.message_type.full_name)
    is_required = told.label == told.LABEL_REQUIRED and not is_entry
    return ProtoField(found.number, found.name, kind, is_repeated, is_required, default, message, symbols)


def columns_in(path: str, message: str) -> tuple[Field, ...]:
    """The columns that a message has; `DescriptorError` if it cannot be read, or has a message within itself."""
    messages = read_messages(path, message)
    return tuple(Field(one.name, _type(messages, one, (messages.root,))) for one in messages.whole.fields)


def _type(messages: Messages, found: ProtoField, around: tuple[str, ...]) -> str:
    """The type of a column in Spark's words; ``around``: the messages that it is within."""
    inner = messages.known.get(found.message)
    if inner is not None and inner.is_entry:
        key, value = (_type(messages, one, around) for one in inner.fields)
        return f"MAP<{key}, {value}>"
    one = _type_of_one(messages, found, around)
    return f"ARRAY<{one}>" if found.is_repeated else one


def _type_of_one(messages: Messages, found: ProtoField, around: tuple[str, ...]) -> str:
    name = found.message
    if name in around or found.kind == "group" or (name and not messages.known[name].fields):
        reason = "is within itself" if name in around else "is no column"
        hint = "declare the columns that are needed."
        raise DescriptorError(f"`{found.name}` of `{around[-1]}` {reason}", hint)
    if name == TIMESTAMP:
        return "TIMESTAMP"
    if name == DURATION:
        return "INTERVAL DAY TO SECOND"
    if name in WRAPPERS:
        return _type_of_one(messages, messages.known[name].fields[0], around)
    if not name:
        return _TYPES[found.kind]
    fields = messages.known[name].fields
    inside = (f"{word(one.name)}: {_type(messages, one, (*around, name))}" for one in fields)
    return f"STRUCT<{', '.join(inside)}>"
