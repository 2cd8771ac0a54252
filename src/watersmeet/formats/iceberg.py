"""Iceberg: tables as streams of what is added to them, and tables that rows are added to.

``path`` names the folder of a table, ``table`` its name in a catalog. To Spark both are the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from watersmeet.formats.sink import PATH, SinkFormat
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = "table"


class IcebergSource(SourceFormat):
    """A table of Iceberg. It has a schema of its own, and takes none."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """What Spark reads."""
        return super().load(spark, None, _named(options))


class IcebergSink(SinkFormat):
    """A table of Iceberg, which knows the batches that it has."""

    names: ClassVar = ("iceberg",)
    title: ClassVar = "Iceberg"

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return _named(super().options)


def _named(options: Mapping[str, str]) -> dict[str, str]:
    return {PATH if name.lower() == _TABLE else name: value for name, value in options.items()}
