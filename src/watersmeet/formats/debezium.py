"""Debezium's records of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from watersmeet.errors import Refusal
from watersmeet.formats.feed import Feed
from watersmeet.formats.source import SourceFormat
from watersmeet.plan.expressions import quote
from watersmeet.type_names import is_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRUNCATE, TIME_UNIT = "debezium.truncate", "debezium.time"
"""Our own options: ``ignore`` truncated tables; the unit of times that come as numbers."""

Unit = Literal["millis", "micros", "nanos"]
"""What a time that comes as a number counts since 1970."""


class Debezium(Feed):
    """Records with the row before a change and the row after it: in a column ``value``, or as columns."""

    name: ClassVar = "debezium"
    wanted: ClassVar = "value"
    own: ClassVar = frozenset({TRUNCATE, TIME_UNIT})

    def check(self) -> Iterator[Refusal]:
        """Refuse a unit that no time comes in."""
        said = self.source.said.get(TIME_UNIT, "micros").lower()
        if said not in get_args(Unit):
            reason, hint = "a time counts millis, micros or nanos", f"write `{TIME_UNIT} 'millis'`, for example."
            yield self.wrong_option(TIME_UNIT, said, reason, hint)

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
        typed = ((f.name, "STRING" if is_moment(f.type) else f.type) for f in self.source.fields)
        row = f"STRUCT<{', '.join(f'{quote(name)}: {type_}' for name, type_ in typed)}>"
        fields = (("op", "STRING"), ("before", row), ("after", row))
        payload = ", ".join(f"{quote(name)}: {type_}" for name, type_ in fields)
        return ", ".join([*(f"{quote(name)} {type_}" for name, type_ in fields), f"`payload` STRUCT<{payload}>"])

    def changes(self, frame: DataFrame) -> DataFrame:
        """The changes in the records."""
        from watersmeet.spark.sources.debezium import debezium_changes

        return debezium_changes(self, frame)
