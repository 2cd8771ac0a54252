"""Debezium's records of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from watersmeet.errors import Refusal
from watersmeet.formats.avro.schema import AVRO, SCHEMA
from watersmeet.formats.feed import Feed
from watersmeet.formats.records import JSON, VALUE_FORMAT, wrong_format, wrong_schema
from watersmeet.formats.registry import OPTIONS as REGISTRY
from watersmeet.formats.source import SourceFormat
from watersmeet.plan.expressions import quote
from watersmeet.type_names import is_moment, parse_type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRUNCATE, TIME_UNIT, DECIMALS = "debezium.truncate", "debezium.time", "debezium.decimal"
"""Our own options: ``ignore`` truncated tables; the unit of times that come as numbers; how decimals come as text."""

Unit = Literal["millis", "micros", "nanos"]
"""What a time that comes as a number counts since 1970."""
Decimals = Literal["precise", "string"]
"""What a decimal is that comes as text: the bytes of its digits in base 64, or the number as people write it."""


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
        """How decimals come as text, if that is said."""
        said = self.source.lowercase_options.get(DECIMALS)
        return None if said is None else said.lower()

    def accepts(self, names: Iterable[str]) -> bool:
        """Whether a frame with those columns holds such records."""
        return super().accepts(names) or {"op", "before", "after", "payload"}.issubset(names)

    def schema(self, format_: SourceFormat) -> str | None:
        """What is read of JSON; other formats bring records of their own form."""
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

    def changes(self, frame: DataFrame) -> DataFrame:
        """The changes in the records."""
        from watersmeet.spark.sources.debezium import debezium_changes

        return debezium_changes(self, frame)


def is_decimal(type_: str) -> bool:
    """Whether a type is one of decimals.

    >>> is_decimal("NUMERIC(10, 2)"), is_decimal("DOUBLE")
    (True, False)
    """
    type_name = parse_type_name(type_)
    return type_name is not None and type_name.name == "DECIMAL"


def type_in_record(type_: str) -> str:
    """What a value is read as: of a time any text, of a decimal whatever it is, since only that tells its form."""
    if is_moment(type_):
        return "STRING"
    return "VARIANT" if is_decimal(type_) else type_
