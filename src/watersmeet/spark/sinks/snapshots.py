"""A folder that holds a table as it is: after every batch a version of its own, to which ``current`` is switched.

A version is a folder ``_version-7-...``, named after the batch and the run that wrote it. A link ``current`` points to
the newest; it is switched in one step, so a reader sees a whole table, before or after. A batch that is repeated finds
its version there already. The version before is kept, for those who are reading it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.consolidate import columns_of, compared, compared_names, consolidated
from watersmeet.spark.sinks.outputs import go_over
from watersmeet.spark.time_texts import text_options

CURRENT = "current"
_VERSION = re.compile(r"_version-(\d+)-(.+)")
_ROWS, _SHOWN = "rows", "shown"


@dataclass(frozen=True)
class Version:
    """The table after a batch, as a run wrote it."""

    batch: int
    run: str

    @property
    def name(self) -> str:
        """The name of its folder, which Spark takes for hidden."""
        return f"_version-{self.batch}-{self.run}"


@dataclass(frozen=True)
class Snapshot:
    """A folder of this machine, and the format in which it shows the table."""

    folder: Path
    format: str
    options: dict[str, str]

    def write(self, changes: DataFrame, batch: int, run: str) -> None:
        """Apply the changes of a batch, unless that is done already."""
        before = self.current()
        version = Version(batch, run)
        if before is not None and before.run == run and before.batch >= batch:
            go_over(changes)
            return
        kept = consolidated(changes).persist()
        try:
            # What another run has written is not where this one began.
            base = before if before is not None and before.run == run else None
            if base is None or not kept.isEmpty():
                self._write(kept, version, base)
                self._switch(version, before)
        finally:
            kept.unpersist()

    def current(self) -> Version | None:
        """The version that readers see."""
        link = self.folder / CURRENT
        found = _VERSION.fullmatch(link.readlink().parent.name) if link.is_symlink() else None
        return None if found is None else Version(int(found[1]), found[2])

    def _write(self, changes: DataFrame, version: Version, base: Version | None) -> None:
        reader = changes.sparkSession.read
        before = None if base is None else reader.parquet(f"file:{self.folder / base.name / _ROWS}")
        target = self.folder / version.name
        changed(before, changes, str(self.folder)).write.mode("overwrite").parquet(f"file:{target / _ROWS}")
        if self.format != "parquet":
            # The rows themselves are kept in a format that loses nothing, or taken back rows would not be found.
            rows = reader.parquet(f"file:{target / _ROWS}")
            writer = rows.write.mode("overwrite").format(self.format)
            writer.options(**text_options(self.format, self.options)).save(f"file:{target / _SHOWN}")

    def _switch(self, version: Version, before: Version | None) -> None:
        shown = _ROWS if self.format == "parquet" else _SHOWN
        hidden = self.folder / f".{CURRENT}"
        hidden.unlink(missing_ok=True)
        hidden.symlink_to(f"{version.name}/{shown}")
        hidden.replace(self.folder / CURRENT)
        kept = {one.name for one in (version, before) if one is not None}
        for old in self.folder.iterdir():
            if _VERSION.fullmatch(old.name) and old.name not in kept:
                shutil.rmtree(old, ignore_errors=True)


def changed(before: DataFrame | None, changes: DataFrame, name: str) -> DataFrame:
    """The rows of a table after its changes, which have a ``#weight``. Rows that do not change are only read."""
    if before is None:
        return _repeated(changes, name)
    names = [quote(column) for column in columns_of(changes)]
    keyed = changes.select(*compared(changes, "c"))
    rows = before.select(*names, *compared(before))
    pairs = zip(compared_names(before), compared_names(changes, "c"), strict=True)
    same = reduce(lambda a, b: a & b, (F.col(quote(a)).eqNullSafe(F.col(quote(b))) for a, b in pairs))
    untouched = rows.join(keyed, same, "left_anti").select(*names)
    touched = rows.join(keyed, same, "left_semi").select(*names, F.lit(1).cast("bigint").alias(WEIGHT))
    return untouched.unionByName(_repeated(consolidated(touched.unionByName(changes)), name))


def _repeated(rows: DataFrame, name: str) -> DataFrame:
    """Each row as often as its weight says."""
    reason = "it takes back a row that is not there"
    hint = "write a changelog instead: `changes 'log'`."
    text = Refusal("WRONG_CHANGE", {"source": name, "reason": reason, "hint": hint}).travelling()
    weight = F.col(quote(WEIGHT))
    times = F.when(weight > 0, weight.cast("int")).otherwise(F.raise_error(F.lit(text)).cast("int"))
    copies = F.explode(F.array_repeat(F.lit(True), times))
    return rows.select(*(F.col(quote(n)) for n in columns_of(rows)), copies.alias("#copy")).drop("#copy")
