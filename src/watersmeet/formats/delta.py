"""Delta's change data feed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from watersmeet.formats.feed import Feed, ddl
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_TYPE = "_change_type"
"""Where Delta tells what a row of its change data feed does."""


class Delta(Feed):
    """Rows that say in ``_change_type`` what they do."""

    name: ClassVar = "delta"
    wanted: ClassVar = CHANGE_TYPE

    @property
    def options(self) -> Mapping[str, str]:
        """What lets a Delta table tell its changes; other formats can hold such rows too."""
        return {"readChangeFeed": "true"} if str(self.source.format).lower() == self.name else {}

    def schema(self, format_: SourceFormat) -> str:
        """The declared columns, and what says what a row does."""
        return f"{ddl(self.source)}, {CHANGE_TYPE} STRING"

    def changes(self, frame: DataFrame) -> DataFrame:
        """The changes; of an upsert by key the row before it does not matter."""
        from watersmeet.spark.sources.feeds import delta_changes

        return delta_changes(self.source, frame)
