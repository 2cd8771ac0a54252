"""A folder that holds a table as it is: after every batch a version of its own, to which ``current`` is switched.

A version is a folder ``_version-7-...``, named after the batch and the run that wrote it. ``current`` points to the
newest; it is switched in one step, so a reader sees a whole table, before or after. A batch that is repeated finds its
version there already. The version before is kept, for readers that have opened it. Of two drivers that write a version
after the same one, one goes on.

On this machine ``current`` is a link. A version is written under a hidden name and renamed when it is whole. Between
that and the switch the folder is locked.

Elsewhere, where there are no links, and no locks, ``current`` is a file with the path of the rows. A version has a name
that no other has, so it is written in its place. It counts once its entry is there, the next number in
``.watersmeet/versions``, which the store creates once; ``current`` is for readers, and is replaced after that.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal, refuse
from watersmeet.locations import RemoteStorage, Storage, location_of, write_whole
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.schema import quote
from watersmeet.spark.connectors.sinks import BatchPlans, SinkBatch, drain_batch
from watersmeet.spark.exchange.rows import columns_of, comparison_columns, comparison_names, consolidate, text_options
from watersmeet.spark.private.checkpoint_files import commit_without_renames

CURRENT = "current"
_VERSION = re.compile(r"_version-(\d+)-([^@]+)(?:@([^@]+))?")
_ROWS, _SHOWN = "rows", "shown"
_STAGED, _LOCK = ".staged-", ".lock"
_RECOVERY_HINT = "restore the checkpoint and the folder to the same moment."
_POSITION = "_position"
"""Within a version: which batch it is of, and when that was planned."""
_ENTRIES = ".watersmeet/versions"
"""The folder with an entry for each version that counts, or has counted, where there are no links."""


@dataclass(frozen=True)
class Version:
    """The table after a batch, as a run wrote it.

    ``unique``: a part of the name that no other version has, where versions are written in their place.
    """

    batch: int
    run: str
    unique: str = ""

    @staticmethod
    def from_name(name: str) -> Version | None:
        """The version in a folder of that name.

        >>> Version.from_name("_version-7-5f0c@ab12"), Version.from_name("current")
        (Version(batch=7, run='5f0c', unique='ab12'), None)
        """
        match = _VERSION.fullmatch(name)
        return None if match is None else Version(int(match[1]), match[2], match[3] or "")

    @property
    def name(self) -> str:
        """The name of its folder, which Spark takes for hidden."""
        return f"_version-{self.batch}-{self.run}" + (f"@{self.unique}" if self.unique else "")

    def part(self, name: str) -> str:
        """The name of a folder in it, which is unique too."""
        return f"{name}-{self.unique}" if self.unique else name


@dataclass(frozen=True)
class Snapshot(ABC):
    """A folder, and the format in which it shows the table."""

    folder: Storage
    format: str
    options: dict[str, str]

    def write(self, changes: DataFrame, batch: int, run: str, plans: BatchPlans | None = None) -> None:
        """Apply the changes of a batch, unless that is done already.

        ``plans``: the batches of the checkpoint, in which that of the current version must be planned.
        """
        before = self.current()
        version = self._make_version(batch, run)
        if before is not None and before.run == run:
            if plans is not None:
                # A version of an earlier batch, too: a batch without changes leaves none that would contradict it.
                plans.check(self._sink_batch(before), str(self.folder), _RECOVERY_HINT)
            if before.batch >= batch:
                drain_batch(changes)
                self._finish_switch(before)
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
                staged = self._stage(version)
                self._write(net_changes, staged, version, base)
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

    @abstractmethod
    def rewind(self, run: str, plans: BatchPlans) -> None:
        """Put that version back, in the place of the current one."""

    @abstractmethod
    def current(self) -> Version | None:
        """The version that counts."""

    @abstractmethod
    def _versions(self) -> list[Version]:
        """The versions that count or have counted, as far as they are there."""

    @abstractmethod
    def _sink_batch(self, version: Version) -> SinkBatch:
        """The batch of a version, and when it was planned."""

    @abstractmethod
    def _make_version(self, batch: int, run: str) -> Version:
        """The version after a batch."""

    @abstractmethod
    def _stage(self, version: Version) -> Storage:
        """The folder to write a version to."""

    @abstractmethod
    def _save(self, rows: DataFrame, place: Storage, format_: str, options: dict[str, str]) -> None:
        """Let Spark write rows to a new folder."""

    @abstractmethod
    def _switch(self, staged: Storage, last_batch: SinkBatch, version: Version, before: Version | None) -> None:
        """Let a version count from now on; refused if another one does than when it was begun."""

    @abstractmethod
    def _finish_switch(self, version: Version) -> None:
        """Complete what a driver that has ended may have left undone after a version counted."""

    def _write(self, changes: DataFrame, staged: Storage, version: Version, base: Version | None) -> None:
        reader = changes.sparkSession.read
        before = None if base is None else reader.parquet(location_of(self.folder / base.name / base.part(_ROWS)))
        place = staged / version.part(_ROWS)
        self._save(apply_changes(before, changes, str(self.folder)), place, "parquet", {})
        if self.format != "parquet":
            # The rows are stored in a lossless format, or retractions would not find them.
            rows = reader.parquet(location_of(place))
            self._save(rows, staged / version.part(_SHOWN), self.format, text_options(self.format, self.options))

    def _rows_path(self, version: Version) -> str:
        """The path of the rows of a version, for readers, within the folder."""
        return f"{version.name}/{version.part(_ROWS if self.format == 'parquet' else _SHOWN)}"


def _batch(version: Version) -> int:
    return version.batch


@dataclass(frozen=True)
class LocalSnapshot(Snapshot):
    """A folder of this machine."""

    folder: Path

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
        return Version.from_name(link.readlink().parent.name) if link.is_symlink() else None

    def _versions(self) -> list[Version]:
        return [version for entry in self.folder.iterdir() if (version := Version.from_name(entry.name)) is not None]

    def _sink_batch(self, version: Version) -> SinkBatch:
        text = None
        with suppress(OSError):
            text = (self.folder / version.name / _POSITION).read_text("utf-8")
        return SinkBatch.from_text(text, version.batch)

    def _make_version(self, batch: int, run: str) -> Version:
        return Version(batch, run)

    def _stage(self, version: Version) -> Path:
        return self.folder / f"{_STAGED}{uuid4().hex}"

    def _save(self, rows: DataFrame, place: Storage, format_: str, options: dict[str, str]) -> None:
        rows.write.mode("overwrite").format(format_).options(**options).save(location_of(place))

    def _switch(self, staged: Storage, last_batch: SinkBatch, version: Version, before: Version | None) -> None:
        with _hold_lock(self.folder):
            if self.current() != before or not staged.exists():
                shutil.rmtree(str(staged), ignore_errors=True)
                raise refuse("SINK_FENCED", target=self.folder, batch=version.batch)
            (staged / _POSITION).write_text(last_batch.to_text(), "utf-8")
            # An existing version was never visible: the process ended before the switch.
            shutil.rmtree(self.folder / version.name, ignore_errors=True)
            staged.rename(self.folder / version.name)
            self._point_to(version)
            current_names = {live_version.name for live_version in (version, before) if live_version is not None}
            for old in self.folder.iterdir():
                is_old = Version.from_name(old.name) is not None and old.name not in current_names
                if is_old or old.name.startswith(_STAGED):
                    shutil.rmtree(old, ignore_errors=True)

    def _finish_switch(self, version: Version) -> None:
        """Nothing is left: a version counts once the link points to it."""

    def _point_to(self, version: Version) -> None:
        hidden = self.folder / f".{CURRENT}"
        hidden.unlink(missing_ok=True)
        hidden.symlink_to(self._rows_path(version))
        hidden.replace(self.folder / CURRENT)


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


@dataclass(frozen=True)
class Entry:
    """An entry for a version that counts, or has counted: its number, and the batch as the sink records it."""

    number: int
    version: Version
    last_batch: SinkBatch

    @staticmethod
    def from_text(number: int, text: str) -> Entry | None:
        """The entry from a file; None: its driver has ended while it wrote it."""
        name, _, position = text.partition("\n")
        version = Version.from_name(name)
        return None if version is None else Entry(number, version, SinkBatch.from_text(position, version.batch))


@dataclass(frozen=True)
class RemoteSnapshot(Snapshot):
    """A folder of a file system of Hadoop's. ``check_lease`` refuses if another driver has the query by now."""

    folder: RemoteStorage
    check_lease: Callable[[], None]

    def rewind(self, run: str, plans: BatchPlans) -> None:
        """Put that version back, in the place of the current one."""
        current, before = self.current(), self.version_at_end(run, plans)
        if current is not None and before is not None:
            self._commit(Entry(self._next_number(), before, self._sink_batch(before)), {current.name})

    def current(self) -> Version | None:
        """The version with the highest entry."""
        return next((entry.version for entry in self._entries()), None)

    def _versions(self) -> list[Version]:
        return [entry.version for entry in self._entries()]

    def _sink_batch(self, version: Version) -> SinkBatch:
        batches = (entry.last_batch for entry in self._entries() if entry.version == version)
        return next(batches, SinkBatch(version.batch))

    def _make_version(self, batch: int, run: str) -> Version:
        return Version(batch, run, uuid4().hex[:8])

    def _stage(self, version: Version) -> Storage:
        return self.folder / version.name

    def _save(self, rows: DataFrame, place: Storage, format_: str, options: dict[str, str]) -> None:
        with commit_without_renames(rows.sparkSession) as take_committed:
            rows.write.mode("append").format(format_).options(**options).save(location_of(place))
            committed = None if take_committed is None else take_committed(place.name)
        if committed is not None:
            for file in place.iterdir():
                # Of an attempt that was given up.
                if file.name not in committed and not file.name.startswith("_"):
                    file.unlink()

    def _switch(self, staged: Storage, last_batch: SinkBatch, version: Version, before: Version | None) -> None:
        # Listed before it counts: a driver that writes one of these now began with an earlier version, and is refused.
        live = {version.name} if before is None else {version.name, before.name}
        old = {name for name in _names(self.folder) if Version.from_name(name) is not None} - live
        entry = Entry(self._next_number(), version, last_batch)
        self.check_lease()
        if self.current() != before or not self._commit(entry, old):
            self._delete({version.name})
            raise refuse("SINK_FENCED", target=self.folder, batch=version.batch)

    def _finish_switch(self, version: Version) -> None:
        """Point to the version that counts, if the driver that wrote it has ended before it did so."""
        with suppress(FileNotFoundError):
            if (self.folder / CURRENT).read_text().strip() == self._rows_path(version):
                return
        self._point_to(version)

    def _commit(self, entry: Entry, old: set[str]) -> bool:
        """Add an entry, point to its version, and delete what is older; False: another one has that number."""
        text = f"{entry.version.name}\n{entry.last_batch.to_text()}\n"
        if not self._file(entry.number).create(text):
            return False
        self._point_to(entry.version)
        self._delete(old)
        for number in self._numbers():
            # The one before it is that of the version before, which is there for readers.
            if number < entry.number - 1:
                with suppress(OSError):
                    self._file(number).unlink()
        return True

    def _point_to(self, version: Version) -> None:
        write_whole(self.folder / CURRENT, f"{self._rows_path(version)}\n")

    def _delete(self, names: set[str]) -> None:
        for name in names:
            # The table is right whether they are there or not, and the next switch deletes them.
            with suppress(OSError):
                (self.folder / name).delete_tree()

    def _entries(self) -> Iterator[Entry]:
        """The entries, the newest first."""
        for number in reversed(self._numbers()):
            with suppress(FileNotFoundError):
                entry = Entry.from_text(number, self._file(number).read_text())
                if entry is not None:
                    yield entry

    def _next_number(self) -> int:
        return max(self._numbers(), default=0) + 1

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in _names(self.folder / _ENTRIES) if name.isdecimal())

    def _file(self, number: int) -> RemoteStorage:
        return self.folder / _ENTRIES / f"{number:010}"


def _names(folder: Storage) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []


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
