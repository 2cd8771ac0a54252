"""Records with a key and a value, and their formats; the base class of change feeds.

A value is JSON or CSV text, Avro, Protobuf, or bytes. A key is text, a number or bytes as Kafka's serializers write
them. In a table, a record without a value deletes the row of its key. Declared columns named in `RECORD_METADATA` are
metadata of each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from watersmeet.catalog import Field, Source
from watersmeet.codec.avro_schema import AVRO, KEY_SCHEMA, SCHEMA
from watersmeet.errors import Refusal
from watersmeet.formats.base import SourceFormat
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, PROTOBUF
from watersmeet.formats.protobuf.descriptor import OPTIONS as OF_PROTOBUF
from watersmeet.formats.registry import OPTIONS as REGISTRY
from watersmeet.formats.registry import URL
from watersmeet.operators.core.changes import CHANGE
from watersmeet.schema import quote

KEY_FORMAT = "key.format"
"""Our own option: how the key of a record is encoded."""


@dataclass(frozen=True)
class Feed:
    """Rows as changes. In this class: by a column ``_change``, by the option ``deletes``, or all are inserts.

    Whatever the form, the frame of a table has its declared columns and ``_change``; with a primary key, ``+`` is an
    upsert and ``-`` deletes the row of its key. Changes are delivered in the order of the source.

    - ``name``: its name in CHANGES FROM
    - ``wanted``: the column that a DataFrame must have to be read as such a feed
    - ``own``: its options, in small letters
    - ``may_be_malformed``: it decodes values, which may be malformed
    """

    source: Source

    name: ClassVar[str] = ""
    wanted: ClassVar[str] = ""
    own: ClassVar[frozenset[str]] = frozenset()
    may_be_malformed: ClassVar[bool] = False

    def check(self) -> Iterator[Refusal]:
        """The refusals of its options, without Spark."""
        yield from ()

    def accepts(self, names: Iterable[str]) -> bool:
        """Whether a given frame with those columns can be such a feed."""
        return self.wanted in names

    @property
    def options(self) -> Mapping[str, str]:
        """The Spark options for such a feed."""
        return {}

    def schema(self, format_: SourceFormat) -> str | None:
        """The schema that Spark is to read; None: as Spark finds it."""
        source = self.source
        has_changes = "deletes" in source.lowercase_options or source.field(CHANGE) is not None
        adds_change = source.kind == "table" and format_.may_have_change and not has_changes
        return f"{ddl(source)}, {CHANGE} STRING" if adds_change else ddl(source)

    def wrong_option(self, option: str, said: str, reason: str, hint: str) -> Refusal:
        """The refusal of an option."""
        parameters = {"format": str(self.source.format), "option": f"{option} '{said}'"}
        return Refusal("WRONG_OPTION", {**parameters, "reason": reason, "hint": hint})


def ddl(source: Source) -> str:
    """The columns of a source as Spark reads a schema."""
    return ", ".join(f"{quote(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in source.fields)


VALUE_FORMAT = "value.format"
"""Our own option: how the value of a record is encoded."""

JSON = "json"

KEY_TYPES: Mapping[str, str] = {
    "string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "bytes": "BINARY", JSON: "STRING",
}  # fmt: skip
"""The formats of a key that determine its type, each with the type of ``_key``."""
KEYS = (*KEY_TYPES, AVRO)
"""All formats of a key. In Avro it has the type that ``_key`` is declared with, or it holds the primary key of a table;
else it is bytes."""
RAW = "raw"
CSV = "csv"
VALUES = (JSON, CSV, AVRO, PROTOBUF, RAW)
"""The formats of a value. ``raw``: the one declared column is the value as it is."""
RECORD_METADATA: Mapping[str, str] = {
    "_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_headers": "headers",
}  # fmt: skip
"""The metadata columns that a source may declare, with Spark's names."""


def value_fields(source: Source) -> list[Field]:
    """The declared columns that are in the values of records; the others are keys and metadata."""
    return [field for field in source.fields if field.name.lower() not in ("_key", *RECORD_METADATA)]


def format_of_key(source: Source) -> str | None:
    """The format of the key of a source's records; None for a source whose rows are not records with a key.

    >>> format_of_key(Source("orders", (), options={"value.format": "json"}))
    'string'
    """
    return (
        source.lowercase_options.get(KEY_FORMAT, "string" if VALUE_FORMAT in source.lowercase_options else "").lower()
        or None
    )


class Records(Feed):
    """Rows that are the values of records."""

    own: ClassVar = frozenset({VALUE_FORMAT, KEY_FORMAT, SCHEMA, KEY_SCHEMA}) | REGISTRY | OF_PROTOBUF
    may_be_malformed: ClassVar = True

    def check(self) -> Iterator[Refusal]:
        """Refuse an unknown value format, and a raw value with several columns."""
        yield from wrong_format(self, VALUE_FORMAT, VALUES)
        inside = value_fields(self.source)
        # Where none is declared at all, it is refused that they are not known.
        is_declared = any(not f.hidden for f in self.source.fields)
        if self.source.lowercase_options[VALUE_FORMAT].lower() == RAW and len(inside) != 1 and is_declared:
            reason = f"a raw value fills one column, but {len(inside)} are declared"
            hint = "declare one column for the value, for example `value STRING`."
            yield self.wrong_option(VALUE_FORMAT, RAW, reason, hint)
        yield from wrong_schema(self, VALUE_FORMAT, SCHEMA)
        yield from wrong_schema(self, KEY_FORMAT, KEY_SCHEMA)
        wrong = wrong_descriptor(self.source.lowercase_options)
        if wrong is not None:
            yield self.wrong_option(VALUE_FORMAT, PROTOBUF, *wrong)

    def schema(self, format_: SourceFormat) -> None:
        """Records have their own form."""


def wrong_schema(feed: Feed, option: str, schema: str) -> Iterator[Refusal]:
    """The refusal of Avro with no schema, or with two."""
    said = feed.source.lowercase_options
    if said.get(option, "").lower() != AVRO or (schema in said) != (URL in said):
        return
    if schema in said:
        reason, hint = f"`{URL}` gives the schema too", f"leave one of `{schema}` and `{URL}` out."
        yield feed.wrong_option(schema, "...", reason, hint)
        return
    reason = f"the schema of its {option.removesuffix('.format')}s is missing"
    hint = f"add `{URL} 'http://host:8081'` to its OPTIONS, or the schema: `{schema} '${{file:orders.avsc}}'`."
    yield feed.wrong_option(option, AVRO, reason, hint)


def wrong_descriptor(said: Mapping[str, str]) -> tuple[str, str] | None:
    """The reason why Protobuf cannot be read or written with these options, and what to write; None: it can."""
    if said.get(VALUE_FORMAT, "").lower() != PROTOBUF:
        return None
    if URL in said:
        reason = "messages with a schema number of a registry are not supported"
        return reason, f"leave `{URL}` out if values are plain messages; `value.format 'avro'` supports registries."
    if DESCRIPTOR not in said:
        return "no descriptor file is named", f"add `{DESCRIPTOR} 'shop.pb'` to its OPTIONS, as written by `protoc`."
    return None if MESSAGE in said else ("no message is named", f"add `{MESSAGE} 'shop.Order'` to its OPTIONS.")


def wrong_format(feed: Feed, option: str, formats: tuple[str, ...]) -> Iterator[Refusal]:
    """The refusal of a format of values or keys that is not known; of keys only what reads them knows."""
    said = feed.source.lowercase_options.get(option, formats[0]).lower()
    if said not in formats:
        reason = f"a {option.removesuffix('.format')} can be read as {', '.join(formats[:-1])} or {formats[-1]}"
        yield feed.wrong_option(option, said, reason, f"write `{option} '{formats[0]}'`.")
