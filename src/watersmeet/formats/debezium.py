"""Debezium: change feeds in records with a key and a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, get_args

from watersmeet.codec.avro_schema import AVRO, SCHEMA
from watersmeet.errors import Refusal
from watersmeet.formats.records import JSON, VALUE_FORMAT, Feed, wrong_format, wrong_schema
from watersmeet.formats.registry import OPTIONS as REGISTRY
from watersmeet.formats.source import SourceFormat
from watersmeet.schema import is_moment, parse_type_name, quote

TRUNCATE, TIME_UNIT, DECIMALS = "debezium.truncate", "debezium.time", "debezium.decimal"
"""Our own options: ``ignore`` truncated tables; the unit of times that come as numbers; how decimals come as text."""
Unit = Literal["millis", "micros", "nanos"]
"""The unit of a time that is encoded as a number since 1970."""
Decimals = Literal["precise", "string"]
"""The encoding of a decimal as text: base64 of its unscaled value, or the number itself."""


class Debezium(Feed):
    """Records with the row before a change and the row after it: in a column ``value``, or as columns."""

    name: ClassVar = "debezium"
    wanted: ClassVar = "value"
    own: ClassVar = frozenset({TRUNCATE, TIME_UNIT, DECIMALS, VALUE_FORMAT, SCHEMA}) | REGISTRY
    may_be_malformed: ClassVar = True

    def check(self) -> Iterator[Refusal]:
        """Refuse a unit that no time comes in, and decimals that come in no form."""
        said = self.source.lowercase_options.get(TIME_UNIT, "micros").lower()
        if said not in get_args(Unit):
            reason, hint = "times can be in millis, micros or nanos", f"write `{TIME_UNIT} 'millis'`, for example."
            yield self.wrong_option(TIME_UNIT, said, reason, hint)
        if self.decimals not in (None, *get_args(Decimals)):
            reason, hint = "decimals can be precise or string", f"write `{DECIMALS} 'precise'`, for example."
            yield self.wrong_option(DECIMALS, str(self.decimals), reason, hint)
        yield from wrong_format(self, VALUE_FORMAT, (JSON, AVRO))
        yield from wrong_schema(self, VALUE_FORMAT, SCHEMA)

    @property
    def is_avro(self) -> bool:
        """Whether records come in Avro, and not as JSON."""
        return self.source.lowercase_options.get(VALUE_FORMAT, JSON).lower() == AVRO

    @property
    def decimals(self) -> str | None:
        """The form of decimals in text, if one is given."""
        said = self.source.lowercase_options.get(DECIMALS)
        return None if said is None else said.lower()

    def accepts(self, names: Iterable[str]) -> bool:
        """Whether a frame with those columns holds such records."""
        return super().accepts(names) or {"op", "before", "after", "payload"}.issubset(names)

    def schema(self, format_: SourceFormat) -> str | None:
        """The schema for JSON; other formats bring their own."""
        return self.record if format_.holds_json else None

    @property
    def record(self) -> str:
        """The columns of a record as Spark reads a schema, with or without the envelope ``payload``.

        >>> from watersmeet.catalog import Field, Source
        >>> Debezium(Source("c", (Field("id", "INT"), Field("at", "TIMESTAMP")))).record
        '`op` STRING, `before` STRUCT<`id`: INT, `at`: STRING>, `after` STRUCT<`id`: INT, `at`: STRING>, \
`payload` STRUCT<`op`: STRING, `before`: STRUCT<`id`: INT, `at`: STRING>, `after`: STRUCT<`id`: INT, `at`: STRING>>'
        """
        typed = ((f.name, type_in_record(f.type)) for f in self.source.fields)
        row = f"STRUCT<{', '.join(f'{quote(name)}: {type_}' for name, type_ in typed)}>"
        fields = (("op", "STRING"), ("before", row), ("after", row))
        payload = ", ".join(f"{quote(name)}: {type_}" for name, type_ in fields)
        return ", ".join([*(f"{quote(name)} {type_}" for name, type_ in fields), f"`payload` STRUCT<{payload}>"])


def is_decimal(type_: str) -> bool:
    """Whether a type is one of decimals.

    >>> is_decimal("NUMERIC(10, 2)"), is_decimal("DOUBLE")
    (True, False)
    """
    type_name = parse_type_name(type_)
    return type_name is not None and type_name.name == "DECIMAL"


def type_in_record(type_: str) -> str:
    """The type that a value is read as: a string for a time, a variant for a decimal, which shows its encoding."""
    if is_moment(type_):
        return "STRING"
    return "VARIANT" if is_decimal(type_) else type_
