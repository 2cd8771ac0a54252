"""Tables that do not change: read once as a batch, kept in the storage, and from there on a stream like any other.

``static 'true'`` lets a table come from any batch source of Spark, also from those that cannot be read as streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from watersmeet.catalog import Source
from watersmeet.formats.malformed import fate_of
from watersmeet.plan.nodes import Script
from watersmeet.spark.sources.malformed import counted, readable
from watersmeet.spark.sources.reading import is_static, read_source


@dataclass(frozen=True)
class Static:
    """The rows of a table as they were when it was first read, and the folder in which they are kept."""

    rows: DataFrame
    folder: Path

    @property
    def stream(self) -> DataFrame:
        """The rows as a stream, once they are `kept`."""
        # A pattern need not match anything yet: nothing is written before all queries are known to start.
        reader = self.rows.sparkSession.readStream.schema(self.rows.schema)
        return reader.parquet(f"file:{self.folder / '*.parquet'}")

    def keep(self) -> None:
        """Write the rows, unless that was done by an earlier start."""
        if self.folder.exists():
            return
        hidden = self.folder.with_name(f".{self.folder.name}")
        self.rows.write.mode("overwrite").parquet(f"file:{hidden}")
        # Renamed when it is whole: a run killed here must not leave half a table.
        hidden.rename(self.folder)


def static_tables(spark: SparkSession, script: Script, storage: Path) -> dict[str, Static]:
    """The tables of a script that do not change, by name."""
    return {
        source.name: Static(_readable(source, read_source(spark, script, source)), storage / source.name)
        for source in script.sources
        if is_static(source)
    }


def _readable(source: Source, frame: DataFrame) -> DataFrame:
    return readable(counted(source, frame, fate_of(source)))
