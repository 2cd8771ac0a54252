"""The columns of Avro files, and of record values whose schema is a descriptor or in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from watersmeet.catalog import Source
from watersmeet.codec.avro_schema import AVRO, SCHEMA, AvroSchema, AvroType, read_schema, split_null
from watersmeet.codec.binary import SchemaError
from watersmeet.formats.columns.files import Kind, NoColumnsError, type_of
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, OPTIONS, PROTOBUF, DescriptorError, columns_in
from watersmeet.formats.registry import SUBJECT, URL, Registry, RegistryError, subject_in
from watersmeet.locations import find_missing, local_path, resolve_references

_MAGIC = b"Obj\x01"
_SCHEMA, _SCHEMA_URL = "avroschema", "avroschemaurl"
"""Spark's options, in small letters, that set the schema whatever the files have."""
_STABLE = "enablestableidentifiersforuniontype"
_OWN_TYPE = "spark.sql.catalyst.type"
"""The property in which Spark notes a type that Avro does not have."""
_TYPES = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BINARY",
    "fixed": "BINARY", "string": "STRING", "enum": "STRING", "null": "",
}  # fmt: skip
_LOGICAL = {
    "date": "DATE", "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ",
}  # fmt: skip
_WIDER = ({"int", "long"}, {"float", "double"})
"""Types whose union Spark reads as the wider one."""


def avro_columns(file: Path, said: Mapping[str, str]) -> dict[str, Kind]:
    """The columns of a file, with those options, in small letters."""
    try:
        with file.open("rb") as bytes_:
            text = _schema_in(bytes_)
    except (OSError, EOFError, ValueError) as error:
        raise NoColumnsError(f"{file} is not an Avro file") from error
    return _as_spark_reads(text, said, f"the schema of {file}")


def schema_option_columns(said: Mapping[str, str]) -> tuple[dict[str, Kind], str] | None:
    """The columns of the schema that an option sets; None: no such option."""
    if _SCHEMA_URL in said:
        raise NoColumnsError("only Spark reads the schema that `avroSchemaUrl` names")
    if _SCHEMA not in said:
        return None
    lacking = [*find_missing(said[_SCHEMA])]
    if lacking:
        raise NoColumnsError(lacking[0])
    text = resolve_references({_SCHEMA: said[_SCHEMA]})[_SCHEMA]
    return _as_spark_reads(text, said, "`avroSchema`"), "`avroSchema`"


def schema_columns(schema: AvroSchema) -> dict[str, Kind]:
    """The columns of values of records, which are opened without Spark."""
    return _Columns(schema).all


def _as_spark_reads(text: str, said: Mapping[str, str], origin: str) -> dict[str, Kind]:
    if _OWN_TYPE in text:
        raise NoColumnsError(f"{origin} has types of Spark's own (`{_OWN_TYPE}`)")
    try:
        schema = read_schema(text)
    except SchemaError as error:
        raise NoColumnsError(f"{origin} cannot be read: {error}") from error
    return _Columns(schema, has_unions=True, is_stable=said.get(_STABLE, "").lower() == "true").all


@dataclass(frozen=True)
class _Columns:
    """The columns of a schema.

    ``has_unions``: a value of several types is a struct with a member for each; ``is_stable``: named after these types.
    """

    schema: AvroSchema
    has_unions: bool = False
    is_stable: bool = False

    @property
    def all(self) -> dict[str, Kind]:
        """The columns: the fields of the record that every row is."""
        record = self.schema.resolve(self.schema.type)
        if record.kind != "record" or not record.fields:
            raise NoColumnsError("a row in its schema is not a record with fields")
        return self._record(record, "", ())

    def _record(self, record: AvroType, name: str, around: tuple[str, ...]) -> dict[str, Kind]:
        if record.name in around:
            raise NoColumnsError(f"its column `{name}` contains itself")
        inside = (*around, record.name)
        before = f"{name}." if name else ""
        return {field.name: self._kind(field.type, f"{before}{field.name}", inside) for field in record.fields}

    def _kind(self, declared: AvroType, name: str, around: tuple[str, ...]) -> Kind:
        type_ = self.schema.resolve(split_null(self.schema.resolve(declared))[0])
        match type_.kind:
            case "record":
                return self._record(type_, name, around)
            case "union":
                return self._union(type_, name, around)
            case "array":
                return [self._kind(type_.inner[0], name, around)]
            case "map":
                return f"MAP<STRING, {type_of(self._kind(type_.inner[0], name, around))}>"
            case _ if type_.logical == "decimal":
                return f"DECIMAL({type_.precision},{type_.scale})"
            case _:
                return _LOGICAL.get(type_.logical, _TYPES[type_.kind])

    def _union(self, union: AvroType, name: str, around: tuple[str, ...]) -> Kind:
        members = [member for member in union.inner if member.kind != "null"]
        kinds = {member.kind for member in members}
        if not members:
            return ""
        if not self.has_unions or self.is_stable:
            raise NoColumnsError(f"its column `{name}` is of several types")
        if kinds in _WIDER:
            return "BIGINT" if "long" in kinds else "DOUBLE"
        return {f"member{n}": self._kind(member, f"{name}.member{n}", around) for n, member in enumerate(members)}


def _schema_in(file: BinaryIO) -> str:
    """The schema that a file begins with: behind four bytes a map of names and values, in blocks."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("its first bytes are not those of an Avro file")
    metadata: dict[str, bytes] = {}
    while count := _long(file):
        if count < 0:
            # The block has a size, too.
            _long(file)
        for _ in range(abs(count)):
            name = _bytes(file).decode()
            metadata[name] = _bytes(file)
    if "avro.schema" not in metadata:
        raise ValueError("it has no schema")
    return metadata["avro.schema"].decode()


def _bytes(file: BinaryIO) -> bytes:
    length = _long(file)
    data = file.read(max(length, 0))
    if len(data) != length:
        raise EOFError
    return data


def _long(file: BinaryIO) -> int:
    """A number in as many bytes as it needs, seven places in each, the lowest first, and the sign lowest of all."""
    value = place = 0
    while True:
        byte = file.read(1)
        if not byte or place > 63:
            raise EOFError
        value |= (byte[0] & 0x7F) << place
        place += 7
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)


def record_columns(source: Source) -> tuple[dict[str, Kind], str]:
    """The columns of the values of a source's records, and where they were read."""
    said = source.lowercase_options
    match said.get("value.format", "").lower():
        case format_ if format_ == PROTOBUF and said.keys() >= OPTIONS and source.changes is None:
            return _message_columns(said)
        case format_ if format_ == AVRO and (SCHEMA in said) != (URL in said) and source.changes is None:
            lacking = [reason for value in said.values() for reason in find_missing(value)]
            if lacking:
                raise NoColumnsError(lacking[0])
            return _avro_columns(resolve_references(said))
        case _:
            raise NoColumnsError("records do not declare the columns of their values")


def _message_columns(said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    try:
        columns = columns_in(local_path(said[DESCRIPTOR]), said[MESSAGE])
    except DescriptorError as error:
        raise NoColumnsError(str(error)) from error
    return {field.name: field.type for field in columns}, said[DESCRIPTOR]


def _avro_columns(said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of the schema that is given, or of the latest one of the subject."""
    registry = Registry.of(said)
    subject = subject_in(said, SUBJECT, "value", said.get("subscribe", "").split(",")[0].strip())
    try:
        texts = (said[SCHEMA],) if registry is None else registry.latest(subject).texts
        schema = read_schema(texts[-1], *texts[:-1])
    except RegistryError as error:
        raise NoColumnsError(f"the registry at {said[URL]} {error}, asked for the subject `{subject}`") from error
    except SchemaError as error:
        raise NoColumnsError(f"its schema cannot be read: {error}") from error
    return schema_columns(schema), f"`{SCHEMA}`" if registry is None else f"the subject `{subject}` of the registry"
