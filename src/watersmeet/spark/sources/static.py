"""Tables that do not change: read once as a batch, kept in the storage, and from there on a stream like any other.

``static 'true'`` lets a table come from any batch source of Spark, also from those that cannot be read as streams.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from watersmeet.catalog import Source
from watersmeet.formats.malformed import MalformedPolicy, policy_for
from watersmeet.locations import location_of
from watersmeet.plan.nodes import Script
from watersmeet.spark.sources.malformed import count_malformed, readable_rows
from watersmeet.spark.sources.reading import is_static, read_source
from watersmeet.spark.sources.static_copies import DECLARATION, copy_of, write_declaration


@dataclass(frozen=True)
class Static:
    """The rows of a table as they are now, and the folder in which they are kept as they were when first read.

    ``unsaid``: the fate of its malformed rows where the source does not say it.
    """

    source: Source
    read: DataFrame
    folder: Path
    unsaid: MalformedPolicy = "fail"

    @property
    def rows(self) -> DataFrame:
        """The rows that can be read."""
        return readable_rows(self._frame_with_counts)

    @property
    def stream(self) -> DataFrame:
        """What is `kept`, as a stream: with the malformed rows, which count when they come, as those of any source."""
        # A pattern need not match anything yet: nothing is written before all queries are known to start.
        reader = self.read.sparkSession.readStream.schema(self.read.schema)
        return reader.parquet(location_of(self.folder / "*.parquet"))

    def with_unsaid(self, policy: MalformedPolicy) -> Static:
        """The same table where that is done with malformed rows unless the source says otherwise."""
        return replace(self, unsaid=policy)

    def keep(self) -> None:
        """Write the rows, unless that was done by an earlier start. A malformed row that stops the query stops this."""
        if self.folder.exists():
            if not (self.folder / DECLARATION).exists():
                write_declaration(self.source, self.folder)
            return
        hidden = self.folder.with_name(f".{self.folder.name}-{uuid4().hex}")
        rows = self._frame_with_counts if policy_for(self.source, self.unsaid) == "fail" else self.read
        try:
            rows.write.parquet(location_of(hidden))
            write_declaration(self.source, hidden)
            # Renamed when it is whole: a run killed here must not leave half a table.
            hidden.rename(self.folder)
        except OSError:
            # Another start was first: its copy is of the same declaration, and a query may read it by now.
            if not self.folder.is_dir():
                raise
        finally:
            shutil.rmtree(hidden, ignore_errors=True)

    @property
    def _frame_with_counts(self) -> DataFrame:
        return count_malformed(self.source, self.read, policy_for(self.source, self.unsaid))


def static_tables(spark: SparkSession, script: Script, storage: Path) -> dict[str, Static]:
    """The tables of a script that do not change, by name."""
    return {
        source.name: Static(source, read_source(spark, script, source), copy_of(source, storage))
        for source in script.sources
        if is_static(source)
    }
