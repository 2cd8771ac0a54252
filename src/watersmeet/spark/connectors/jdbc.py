"""Tables of databases, read once over JDBC."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.formats.jdbc import Jdbc, driver_of
from watersmeet.spark.connectors.reading import SourceConnector

_NO_DRIVER = ("No suitable driver", "ClassNotFoundException")
"""Java's errors about a missing driver, looked up by an address and by a name."""


class JdbcConnector(SourceConnector[Jdbc]):
    """Reads tables of databases."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """Read the source with Spark. Java finds a driver that came with a package by its name only."""
        driver = driver_of(self.source)
        further = (
            [{**options, "driver": driver.name}] if driver and "driver" not in self.source.lowercase_options else []
        )
        for attempt in (options, *further):
            try:
                frame = super().load(spark, schema, attempt)
                _ = frame.schema
            except Exception as error:
                if all(word not in str(error) for word in _NO_DRIVER):
                    raise
            else:
                return frame
        raise WatersmeetError([self.format.driver_refusal])
