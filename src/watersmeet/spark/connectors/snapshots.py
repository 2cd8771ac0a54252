"""A folder that holds a table as it is: after every batch a version of its own, to which ``current`` is switched.

A version is a folder ``_version-7-...``, named after the batch and the run that wrote it. A link ``current`` points to
the newest; it is switched in one step, so a reader sees a whole table, before or after. A batch that is repeated finds
its version there already. The version before is kept, for readers that have opened it.

A version is written under a hidden name and renamed when it is whole. Between that and the switch the folder is locked,
and the version before must still be the one that the new version was computed from: of two drivers one goes on.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal, refuse
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.schema import quote
from watersmeet.spark.connectors.sinks import BatchPlans, SinkBatch, drain_batch
from watersmeet.spark.exchange.rows import columns_of, comparison_columns, comparison_names, consolidate, text_options

CURRENT = "current"
_VERSION = re.compile(r"_version-(\d+)-(.+)")
_ROWS, _SHOWN = "rows", "shown"
_STAGED, _LOCK = ".staged-", ".lock"
_RECOVERY_HINT = "restore the checkpoint and the folder to the same moment."
_POSITION = "_position"
"""Within a version: which batch it is of, and when that was planned."""


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

    def write(self, changes: DataFrame, batch: int, run: str, plans: BatchPlans | None = None) -> None:
        """Apply the changes of a batch, unless that is done already.

        ``plans``: the batches of the checkpoint, in which that of the current version must be planned.
        """
        before = self.current()
        version = Version(batch, run)
        if before is not None and before.run == run:
            if plans is not None:
                # A version of an earlier batch, too: a batch without changes leaves none that would contradict it.
                plans.check(self._sink_batch(before), str(self.folder), _RECOVERY_HINT)
            if before.batch >= batch:
                drain_batch(changes)
                return
        if before is not None and before.run != run and batch > 0:
            hint = (
                "continue with its storage folder; or give the sink another path and the query another storage folder."
            )
            raise refuse("SINK_OF_ANOTHER_CHECKPOINT", target=self.folder, record=before.name, hint=hint)
        net_changes = consolidate(changes).persist()
        try:
            # What another run has written is not where this one began.
            base = before if before is not None and before.run == run else None
            if base is None or not net_changes.isEmpty():
                staged = self.folder / f"{_STAGED}{uuid4().hex}"
                self._write(net_changes, staged, base)
                self._switch(staged, SinkBatch(batch) if plans is None else plans.sink_batch(batch), version, before)
        finally:
            net_changes.unpersist()

    def last_batch(self, run: str) -> SinkBatch | None:
        """The last batch of a run that changed the table."""
        version = self.current()
        return None if version is None or version.run != run else self._sink_batch(version)

    def version_at_end(self, run: str, plans: BatchPlans) -> Version | None:
        """The version before the current one, if the table was that after the last batch that is planned."""
        last, current = plans.last_planned, self.current()
        if current is None or current.run != run or current.batch <= last:
            return None
        before = max((v for v in self._versions() if v.run == run and v.batch <= last), key=_batch, default=None)
        return None if before is None or plans.difference(self._sink_batch(before)) is not None else before

    def rewind(self, run: str, plans: BatchPlans) -> None:
        """Put that version back, in the place of the current one."""
        with _hold_lock(self.folder):
            current, before = self.current(), self.version_at_end(run, plans)
            if current is not None and before is not None:
                self._point_to(before)
                shutil.rmtree(self.folder / current.name, ignore_errors=True)

    def current(self) -> Version | None:
        """The version that readers see."""
        link = self.folder / CURRENT
        match = _VERSION.fullmatch(link.readlink().parent.name) if link.is_symlink() else None
        return None if match is None else Version(int(match[1]), match[2])

    def _versions(self) -> list[Version]:
        matches = (_VERSION.fullmatch(folder.name) for folder in self.folder.iterdir())
        return [Version(int(match[1]), match[2]) for match in matches if match is not None]

    def _sink_batch(self, version: Version) -> SinkBatch:
        text = None
        with suppress(OSError):
            text = (self.folder / version.name / _POSITION).read_text("utf-8")
        return SinkBatch.from_text(text, version.batch)

    def _write(self, changes: DataFrame, staged: Path, base: Version | None) -> None:
        reader = changes.sparkSession.read
        before = None if base is None else reader.parquet(f"file:{self.folder / base.name / _ROWS}")
        apply_changes(before, changes, str(self.folder)).write.mode("overwrite").parquet(f"file:{staged / _ROWS}")
        if self.format != "parquet":
            # The rows are stored in a lossless format, or retractions would not find them.
            rows = reader.parquet(f"file:{staged / _ROWS}")
            writer = rows.write.mode("overwrite").format(self.format)
            writer.options(**text_options(self.format, self.options)).save(f"file:{staged / _SHOWN}")

    def _switch(self, staged: Path, last_batch: SinkBatch, version: Version, before: Version | None) -> None:
        with _hold_lock(self.folder):
            if self.current() != before or not staged.exists():
                shutil.rmtree(staged, ignore_errors=True)
                raise refuse("SINK_FENCED", target=self.folder, batch=version.batch)
            (staged / _POSITION).write_text(last_batch.to_text(), "utf-8")
            # An existing version was never visible: the process ended before the switch.
            shutil.rmtree(self.folder / version.name, ignore_errors=True)
            staged.rename(self.folder / version.name)
            self._point_to(version)
            current_names = {live_version.name for live_version in (version, before) if live_version is not None}
            for old in self.folder.iterdir():
                is_old = _VERSION.fullmatch(old.name) and old.name not in current_names
                if is_old or old.name.startswith(_STAGED):
                    shutil.rmtree(old, ignore_errors=True)

    def _point_to(self, version: Version) -> None:
        shown = _ROWS if self.format == "parquet" else _SHOWN
        hidden = self.folder / f".{CURRENT}"
        hidden.unlink(missing_ok=True)
        hidden.symlink_to(f"{version.name}/{shown}")
        hidden.replace(self.folder / CURRENT)


def _batch(version: Version) -> int:
    return version.batch


@contextmanager
def _hold_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, where the system and its file system have locks."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def apply_changes(before: DataFrame | None, changes: DataFrame, name: str) -> DataFrame:
    """The rows of a table after its changes, which have a ``#weight``. Rows that do not change are only read."""
    if before is None:
        return _repeat_by_weight(changes, name)
    names = [quote(column) for column in columns_of(changes)]
    keyed = changes.select(*comparison_columns(changes, "c"))
    rows = before.select(*names, *comparison_columns(before))
    pairs = zip(comparison_names(before), comparison_names(changes, "c"), strict=True)
    same = reduce(lambda a, b: a & b, (F.col(quote(a)).eqNullSafe(F.col(quote(b))) for a, b in pairs))
    untouched = rows.join(keyed, same, "left_anti").select(*names)
    touched = rows.join(keyed, same, "left_semi").select(*names, F.lit(1).cast("bigint").alias(WEIGHT))
    return untouched.unionByName(_repeat_by_weight(consolidate(touched.unionByName(changes)), name))


def _repeat_by_weight(rows: DataFrame, name: str) -> DataFrame:
    """Each row as often as its weight says."""
    reason = "it retracts a row that does not exist"
    hint = "write a changelog instead: `changes 'log'`."
    text = Refusal("WRONG_CHANGE", {"source": name, "reason": reason, "hint": hint}).to_message()
    weight = F.col(quote(WEIGHT))
    times = F.when(weight > 0, weight.cast("int")).otherwise(F.raise_error(F.lit(text)).cast("int"))
    copies = F.explode(F.array_repeat(F.lit(True), times))
    return rows.select(*(F.col(quote(n)) for n in columns_of(rows)), copies.alias("#copy")).drop("#copy")
