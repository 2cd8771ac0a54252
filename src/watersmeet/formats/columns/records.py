"""The columns of the values of records, where a schema tells them: a descriptor of messages, or a registry."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.catalog import Source
from watersmeet.formats.avro.schema import AVRO, SCHEMA, read_schema
from watersmeet.formats.binary import SchemaError
from watersmeet.formats.columns.avro import schema_columns
from watersmeet.formats.columns.kinds import Kind, NoColumnsError
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, OPTIONS, PROTOBUF, DescriptorError, columns_in
from watersmeet.formats.registry import SUBJECT, URL, Registry, RegistryError, subject_in
from watersmeet.locations import local_path
from watersmeet.references import find_missing, resolve_references


def record_columns(source: Source) -> tuple[dict[str, Kind], str]:
    """The columns of the values of a source's records, and where they are told."""
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
