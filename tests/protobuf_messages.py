"""Messages of Protobuf for tests, and the descriptor set that says what they are, as protoc would make it.

``shop.Order`` is of proto3 and has a field of every type, ``old.Stock`` is of proto2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_SCALARS = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
    "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
KINDS = (("NONE", 0), ("BOOK", 1), ("LAMP", 2))


def _files() -> Any:
    made = descriptor_pb2.FileDescriptorSet()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(made.file.add())
    file = made.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers"))
    kind = file.enum_type.add(name="Kind")
    for name, number in KINDS:
        kind.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    _add(line, "item", "string")
    _add(line, "pieces", "int32")
    _add(line, "next", ".shop.Line")
    order = file.message_type.add(name="Order")
    for name in _SCALARS:
        _add(order, f"a_{name}", name)
    for name in _SCALARS:
        _add(order, f"many_{name}", name, is_repeated=True)
    _add(order, "kind", ".shop.Kind", is_enum=True)
    _add(order, "kinds", ".shop.Kind", is_enum=True, is_repeated=True)
    _add(order, "line", ".shop.Line")
    _add(order, "lines", ".shop.Line", is_repeated=True)
    _add(order, "at", ".google.protobuf.Timestamp")
    _add(order, "takes", ".google.protobuf.Duration")
    _add(order, "note", ".google.protobuf.StringValue")
    _add(order, "said", "int32", is_optional=True)
    _add_map(order, "counts", "string", "int64")
    _add_map(order, "parts", "int32", ".shop.Line")
    # A message as it was written before: with defaults, and with a field that must be there.
    old = made.file.add(name="old.proto", package="old", syntax="proto2")
    stock = old.message_type.add(name="Stock")
    _add(stock, "id", "int64").label = 2
    _add(stock, "pieces", "int32").default_value = "7"
    _add(stock, "place", "string")
    _add(stock, "packed", "int32", is_repeated=True)
    _add(old.message_type.add(name="Box"), "stock", ".old.Stock")
    return made


def _add(
    message: Any, name: str, type_: str, *, is_repeated: bool = False, is_enum: bool = False, is_optional: bool = False
) -> Any:
    field = message.field.add(name=name, number=len(message.field) + 1, label=3 if is_repeated else 1)
    if type_.startswith("."):
        field.type, field.type_name = (14 if is_enum else 11), type_
    else:
        field.type = field.Type.Value(f"TYPE_{type_.upper()}")
    if is_optional:
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return field


def _add_map(message: Any, name: str, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    _add(entry, "key", key)
    _add(entry, "value", value)
    _add(message, name, f".shop.{message.name}.{entry.name}", is_repeated=True)


FILES = _files()


def write_descriptors(folder: Path) -> Path:
    """The file with the descriptor set."""
    file = folder / "shop.pb"
    file.write_bytes(FILES.SerializeToString())
    return file


def message_class(name: str) -> Any:
    """The class of a message, as its author's program has it."""
    pool = DescriptorPool()
    for file in FILES.file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))
