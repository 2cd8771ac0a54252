"""A folder to which every batch adds files, so that any reader sees each row once, even after a crash.

Spark writes a batch into a hidden folder. Then its files are renamed into place, ``part-000000007-00001.json``: the
number of the batch, and of its file. Where the folder of the sink is remote and Spark runs on this machine alone, the
hidden folder is here, and files are copied into place, which takes a request for each file. A repeated batch first
deletes its own files and those of later batches, which a restored checkpoint produces again. In a log of changes a
batch is a folder, ``_batch=7``.

Other files are in ``.watersmeet``, which neither Spark nor a glob reads: the batch that is being written, ``owner``,
the owner of the folder, and ``writer``, the driver that wrote last: a start of the query takes the folder over, and a
driver that finds another one there stops. Earlier versions used Spark's own sink: its log, without which its readers
would also read files of failed batches, is moved there too, with the files that it does not name.

A merged file is called ``part-000000412-since-000000003-5f0c1d2e.json``: its last and its first batch. A start of the
query deletes it if all of its batches are repeated, and is refused if only some of them are. A swap deletes the old
files first and then renames the merged file, so a reader never sees a row twice. A journal in
``.watersmeet/compaction`` records the swap, from before the first deletion until after the rename; `finish_swap`
completes an interrupted swap and may run any number of times.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from pyspark.sql import is_remote

from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.formats.base import PATH
from watersmeet.formats.files import FileSink, NamedColumns, TextSource
from watersmeet.locations import has_scheme, is_local, local_path
from watersmeet.logical.expressions import quote
from watersmeet.spark.connectors.malformed import fit_column, load_text
from watersmeet.spark.connectors.ranges import fields_of, widen_file, widen_orc, widen_schema
from watersmeet.spark.connectors.reading import SourceConnector
from watersmeet.spark.connectors.sinks import (
    BATCH,
    BatchPlans,
    SinkBatch,
    SinkConnector,
    SinkTarget,
    Write,
    batch_writer,
    drain_batch,
    plans_of,
    run_of,
    write_rows,
)
from watersmeet.spark.connectors.snapshots import CURRENT, LocalSnapshot, RemoteSnapshot, Snapshot
from watersmeet.spark.exchange.rows import text_options
from watersmeet.spark.folders import LOCAL_DIRS
from watersmeet.spark.private.checkpoint_files import commit_without_renames
from watersmeet.spark.private.files import (
    LocalFolder,
    folder_of,
    has_local_executors,
    is_reachable,
    place_of,
)
from watersmeet.spark.private.introspection import query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.locations import RemoteStorage
    from watersmeet.spark.private.files import Folder, HadoopStorage


COMPACTION_FOLDER = ".watersmeet/compaction"
JOURNAL, ROWS = f"{COMPACTION_FOLDER}/journal", f"{COMPACTION_FOLDER}/rows"
"""The journal of replaced files, and the merged file before it has its name. Neither name matches a glob of rows."""

_MERGED = re.compile(r"part-(\d{9,})-since-(\d{9,})-.*")


@dataclass(frozen=True)
class Swap:
    """The name of a merged file, and the names of the files that it replaces."""

    merged: str
    replaces: list[str]


def make_merged_name(first: int, last: int, unique: str, suffix: str) -> str:
    """The name of a merged file.

    >>> make_merged_name(3, 412, "5f0c1d2e", "snappy.parquet")
    'part-000000412-since-000000003-5f0c1d2e.snappy.parquet'
    """
    return f"part-{last:09}-since-{first:09}-{unique}.{suffix}"


def batch_range(name: str) -> tuple[int, int] | None:
    """The first and the last batch of a merged file; None: the name is not that of a merged file.

    >>> batch_range("part-000000412-since-000000003-5f0c1d2e.json"), batch_range("part-000000007-00001.json")
    ((3, 412), None)
    """
    match = _MERGED.fullmatch(name)
    return None if match is None else (int(match[2]), int(match[1]))


def has_unfinished_swap(folder: Folder) -> bool:
    """Whether a swap was interrupted: rows of the folder may be only in the hidden merged file."""
    return (place_of(folder) / JOURNAL).is_file()


def begin_swap(folder: Folder, swap: Swap) -> None:
    """Write the journal of a swap whose merged file is complete, so that it survives a power failure."""
    text, place = json.dumps(asdict(swap)), place_of(folder)
    if not is_local(place):
        folder.write(JOURNAL, text)
        return
    sync(place / ROWS)
    hidden = place / f"{JOURNAL}.new"
    hidden.write_text(text, "utf-8")
    sync(hidden)
    hidden.rename(place / JOURNAL)
    sync(place / COMPACTION_FOLDER)


def finish_swap(folder: Folder) -> None:
    """Complete a swap: delete the replaced files, then show the merged file."""
    text, place = folder.read(JOURNAL), place_of(folder)
    if text is None:
        return
    try:
        swap = Swap(**json.loads(text))
    except (ValueError, TypeError):
        difference = f"{place / JOURNAL} was not written by Watersmeet"
        raise refuse("FOLDER_OF_ANOTHER_SINK", folder=place, difference=difference) from None
    is_staged = (place / ROWS).is_file()
    # Without the merged file, which someone must have deleted, the old files are all there is.
    if is_staged or (place / swap.merged).is_file():
        for name in swap.replaces:
            folder.delete(name)
        if is_staged:
            folder.move(ROWS, swap.merged)
        if is_local(place):
            sync(place)
    folder.delete(JOURNAL)


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


HIDDEN = ".watersmeet"
OWNER, WRITER, STAGED = f"{HIDDEN}/owner", f"{HIDDEN}/writer", f"{HIDDEN}/batch"
LOG = "_spark_metadata"
"""The folder in which Spark's own sink lists its files; while it exists, Spark reads no others."""

_OURS = re.compile(rf"(?:part-(?=\d{{9}})|{BATCH}=)(\d+).*")
_SPARKS = re.compile(r"part-\d{5,8}-.*")
_FIRST = "part-00000-"
"""The name prefix of the first task's file: Spark writes that one even if the task has no rows."""
_UNMARKED = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""Leaves out the file that says that a job was successful, which nothing reads."""
_JOB = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-c000)?")
"""The part that Spark adds to the name of a file: the job, and the number of the file within a task."""


@dataclass(frozen=True)
class FolderOwner:
    """The owner of a folder: an output of a query in a format, written with one checkpoint.

    ``run``: the id that Spark gave to that checkpoint. ``after``: the last batch that Spark's own sink wrote there.
    """

    query: str
    format: str
    checkpoint: str
    run: str | None
    after: int = -1


@dataclass(frozen=True)
class Stage:
    """A place for a batch before it is shown: the location for Spark, and the path in a folder; None: the sink's."""

    location: str
    path: str
    folder: LocalFolder | None = None


@dataclass(frozen=True)
class StagedBatch:
    """The names of the files of a batch in its stage, and whether there may be files besides."""

    names: list[str]
    has_others: bool


@dataclass
class Files:
    """The folder of a sink, for one start of its query. ``last``: the last batch written.

    A batch with a higher number is new. So the folder is listed once per start, however many files it has.
    ``blank_size``: the size of a file without rows, once it is known. ``writer`` identifies this start, because others
    may run at the same time on another machine.
    """

    target: SinkTarget
    last: int | None = None
    folder: Folder | None = None
    blank_size: int | None = None
    writer: str = field(default_factory=lambda: uuid4().hex)

    @property
    def path(self) -> str:
        """The folder."""
        return self.target.sink.lowercase_options[PATH].rstrip("/")

    @property
    def display_path(self) -> str:
        """The folder as people write it."""
        return local_path(self.path)

    def check_start(self, spark: SparkSession, place: Place | None) -> None:
        """Refuse a folder of others before the query starts, as far as it can be seen from here."""
        if not is_remote():
            self._check_writable(place)
        if is_reachable(spark, self.path):
            begun = folder_of(spark, self.target.checkpoint).has_files("offsets")
            folder = folder_of(spark, self.path)
            self._owner(folder, place, is_begun=begun)
            plans = BatchPlans.of(spark, self.target.checkpoint)
            if plans.is_visible:
                self._check_merged(folder.names(), plans.last_done + 1, place)

    def _check_writable(self, place: Place | None) -> None:
        """Refuse a folder of this machine that cannot be there, or not be written to."""
        path = local_path(self.path)
        if "://" in path:
            return
        folder = Path(path).absolute()
        there = next(candidate for candidate in (folder, *folder.parents) if candidate.exists())
        if there.is_dir() and os.access(there, os.W_OK):
            return
        reason = f"{there} cannot be written to" if there.is_dir() else f"{there} is a file, not a folder"
        hint = "name a folder that can be created and written to."
        raise WatersmeetError([replace(self.target.format.wrong_option(f"path '{path}'", reason, hint), place=place)])

    def _owner(self, folder: Folder, place: Place | None = None, *, is_begun: bool = True) -> FolderOwner:
        """The owner of the folder from now on, unless it has another one; ``is_begun``: the checkpoint has batches."""
        target = self.target
        checkpoint = str(target.checkpoint)
        now = FolderOwner(target.query, target.sink.format.lower(), checkpoint, query_id(target.checkpoint))
        names = [name for name in folder.names() if not name.startswith(".")]
        is_swapping = not names and has_unfinished_swap(folder)
        text = folder.read(OWNER) if names or is_swapping else None
        if text is None:
            if CURRENT in names and target.changes != "snapshot":
                raise self._other_sink_error("it holds a snapshot of a table", place)
            if not is_begun and any(name == LOG or batch_of(name) is not None for name in names):
                raise self._other_run_error("files of batches", place)
            return now
        if target.changes == "snapshot":
            raise self._other_sink_error("it holds the rows of batches", place)
        was = self._read(text, place)
        for noun, before, after in (("query", was.query, now.query), ("format", was.format, now.format)):
            if before != after:
                raise self._other_sink_error(f"its {noun} was `{before}`, now it would be `{after}`", place)
        if was.run != now.run:
            raise self._other_run_error(f"query `{was.query}`, checkpoint {was.checkpoint}", place)
        return was

    def write(self, rows: DataFrame, number: int, *, is_empty: bool = False) -> None:
        """Write a batch, replacing earlier files of it. An empty batch leaves no file."""
        with self._open_stage(rows.sparkSession) as stage:
            self._write(rows, number, stage, is_empty=is_empty)

    @contextmanager
    def _open_stage(self, spark: SparkSession) -> Generator[Stage]:
        """A place for a batch: on this machine if Spark runs on it alone, which saves requests to a remote folder."""
        if "://" not in local_path(self.path) or not has_local_executors(spark):
            yield Stage(f"{self.path}/{self._stage_path}", self._stage_path)
            return
        base = (os.environ.get(LOCAL_DIRS) or tempfile.gettempdir()).split(",")[0]
        folder = Path(tempfile.mkdtemp(prefix="watersmeet-sink-", dir=base))
        try:
            yield Stage(f"file://{folder}/batch", "batch", LocalFolder(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, rows: DataFrame, number: int, stage: Stage, *, is_empty: bool) -> None:
        # A folder object may belong to the JVM, and this object must be serializable before it is used.
        self.folder = folder = self.folder or folder_of(rows.sparkSession, self.path)
        is_new = self.last is not None and number > self.last
        owner = None if is_new else self._owner(folder)
        if owner is not None and self._is_written(folder, owner, number):
            drain_batch(rows)
            return
        batch = None if is_empty else self._save_batch(rows, stage, folder)
        if owner is not None:
            # This deletes what another driver may have written by now.
            self.target.check_lease()
            self._take_over(folder, number, BatchPlans.of(rows.sparkSession, self.target.checkpoint))
            self._open(folder, owner, number)
        elif folder.read(WRITER) != self.writer:
            raise self._fence_error(folder, number)
        if batch is not None:
            self._place(stage, folder, batch, number)
            self.last = number

    def _save(self, rows: DataFrame, stage: Stage) -> list[str] | None:
        """Let Spark write rows to a folder; the names of the files that count, None if all do."""
        options = {name: value for name, value in self.target.options.items() if name.lower() != PATH}
        format_ = self.target.sink.format
        writer = rows.write.format(format_).options(**_UNMARKED, **text_options(format_, options))
        # The folder of a log is moved as it is, with all files in it.
        if stage.folder is not None or self.target.changes is not None or "://" not in local_path(self.path):
            writer.mode("overwrite").save(stage.location)
            return None
        with commit_without_renames(rows.sparkSession) as take_committed:
            # Where all files count, those of an attempt before must go.
            writer.mode("overwrite" if take_committed is None else "append").save(stage.location)
            if take_committed is None:
                return None
            names = take_committed(stage.path.rpartition("/")[2])
            assert names is not None, "Spark has not used the commit protocol that it was given"
            return names

    def _save_batch(self, rows: DataFrame, stage: Stage, target: Folder) -> StagedBatch:
        """Write a batch where it is not seen yet: its files with rows.

        If the first task of a batch has no rows, Spark writes a file without rows. No file with rows is as small as
        that: it has the same beginning and end, and rows between them.
        """
        folder, path = stage.folder or target, stage.path
        committed = self._save(rows, stage)
        sizes = {name: size for name, size in folder.sizes(path).items() if not name.startswith((".", "_"))}
        if committed is not None:
            for name in sizes.keys() - {*committed}:
                folder.delete(f"{path}/{name}")
            sizes = {name: sizes[name] for name in committed}
        first = next((name for name in sizes if name.startswith(_FIRST)), None)
        if first is not None and sizes[first] <= self._blank_size(rows, stage, folder, sizes[first]):
            del sizes[first]
            if stage.folder is None and (committed is not None or self.target.changes is not None):
                # The folder stays, or, that of a log, is moved as it is.
                folder.delete(f"{path}/{first}")
        return StagedBatch(sorted(sizes), has_others=committed is None)

    def _blank_size(self, rows: DataFrame, stage: Stage, folder: Folder, size: int) -> int:
        """The size of a file without rows; of one without bytes nothing needs to be known."""
        if size and self.blank_size is None:
            # Not `createDataFrame`, which makes the session of the batch the active one of the whole process.
            blank = Stage(f"{stage.location}-blank", f"{stage.path}-blank", stage.folder)
            self._save(rows.where("false").coalesce(1), blank)
            sizes = [size for name, size in folder.sizes(blank.path).items() if name.startswith(_FIRST)]
            folder.delete(blank.path)
            self.blank_size = max(sizes, default=0)
        return self.blank_size or 0

    @property
    def _stage_path(self) -> str:
        """The folder of this driver for files that are not in place yet: no other driver writes there."""
        return f"{STAGED}-{self.writer}"

    def _take_over(self, folder: Folder, number: int, plans: BatchPlans) -> None:
        """Make this driver the only writer; refused if another one has continued to a later batch."""
        for is_taken in (False, True):
            if plans.is_visible and plans.last_planned > number:
                raise self._fence_error(folder, number)
            if not is_taken:
                folder.write(WRITER, self.writer)
        for name in folder.names(HIDDEN):
            path = f"{HIDDEN}/{name}"
            if path.startswith(STAGED) and path != self._stage_path:
                folder.delete(path)

    def _fence_error(self, folder: Folder, number: int) -> WatersmeetError:
        folder.delete(self._stage_path)
        return refuse("SINK_FENCED", target=self.display_path, batch=number)

    def _is_written(self, folder: Folder, owner: FolderOwner, number: int) -> bool:
        """Whether Spark's own sink has written a batch; as its files have no numbers, earlier ones are refused."""
        last = max(owner.after, _last(folder))
        if number < last:
            raise self._other_run_error(f"Spark's own sink has written batch {last}, and batch {number} is next", None)
        return number == last

    def _open(self, folder: Folder, owner: FolderOwner, number: int) -> None:
        """Make the folder one of ours that ends before a batch. Done twice it is done once."""
        finish_swap(folder)
        names = folder.names()
        self._check_merged(names, number)
        last = _last(folder)
        folder.write(OWNER, json.dumps(asdict(replace(owner, after=max(owner.after, last))), indent=2) + "\n")
        if LOG in names:
            listed = {name for log in _logs(folder) for name in _log_entries(folder, log)}
            for name in names:
                if _SPARKS.fullmatch(name) and name not in listed:
                    folder.move(name, f"{HIDDEN}/unlisted/{name}")
            folder.move(LOG, f"{HIDDEN}/{LOG}-{last}")
        for name in names:
            batch = batch_of(name)
            if batch is not None and batch >= number:
                folder.delete(name)
            elif batch is not None and name.startswith(BATCH) and self.target.changes is None:
                # Plain rows were in such folders too, where Spark showed a column of that name.
                _rename(folder, name, batch)

    def _check_merged(self, names: Iterable[str], number: int, place: Place | None = None) -> None:
        """Refuse to begin with a batch in the middle of a merged file, whose earlier rows would be lost."""
        for name in names:
            first, last = batch_range(name) or (number, number)
            if first < number <= last:
                batches = {"first": first, "last": last, "batch": number}
                raise refuse("COMPACTED_AFTER_CHECKPOINT", place, target=self.display_path, file=name, **batches)

    def _place(self, stage: Stage, folder: Folder, batch: StagedBatch, number: int) -> None:
        """Put the files of a batch into place, while this driver has the lease of the query."""
        is_log, names = self.target.changes is not None, batch.names
        if stage.folder is not None:
            remote, check = cast("HadoopStorage", folder), self.target.leases.check_here
            staged = {name: stage.folder.path / stage.path / name for name in names}
            if remote.appears_whole():
                self.target.check_lease()
                whole = {name if is_log else name_of(number, name): file for name, file in staged.items()}
                remote.copy_files(f"{BATCH}={number}" if is_log else "", whole, check)
                return
            remote.copy_files(self._stage_path, staged, check)
        self.target.check_lease()
        if not is_log:
            _move_files(folder, self._stage_path, names, number)
        elif names:
            folder.move(self._stage_path, f"{BATCH}={number}")
        if stage.folder is None and batch.has_others and not (is_log and names):
            folder.delete(self._stage_path)

    def _read(self, text: str, place: Place | None) -> FolderOwner:
        try:
            return FolderOwner(**json.loads(text))
        except (ValueError, TypeError):
            difference = f"{self.display_path}/{OWNER} was not written by Watersmeet"
            raise self._other_sink_error(difference, place) from None

    def _other_run_error(self, record: str, place: Place | None) -> WatersmeetError:
        hint = f"give the sink another path, or delete the folder {self.display_path} and its files."
        return refuse("SINK_OF_ANOTHER_CHECKPOINT", place, target=self.display_path, record=record, hint=hint)

    def _other_sink_error(self, difference: str, place: Place | None) -> WatersmeetError:
        return refuse("FOLDER_OF_ANOTHER_SINK", place, folder=self.display_path, difference=difference)


def batch_of(name: str) -> int | None:
    """The batch number in a file or folder name.

    >>> batch_of("part-000000007-00001.json"), batch_of("_batch=7"), batch_of("part-00001-f00.json")
    (7, 7, None)
    """
    match = _OURS.fullmatch(name)
    return None if match is None else int(match[1])


def name_of(batch: int, staged: str) -> str:
    """The name under which readers see a file of a batch.

    >>> name_of(7, "part-00001-0e5f8d7a-2f0b-4c5e-9d3f-0123456789ab-c000.snappy.parquet")
    'part-000000007-00001.snappy.parquet'
    """
    return f"part-{batch:09}-{_JOB.sub('', staged.removeprefix('part-'))}"


def _rename(folder: Folder, source: str, batch: int) -> None:
    """Put the files of a folder into place as those of a batch, and delete the folder."""
    _move_files(folder, source, [name for name in folder.names(source) if not name.startswith((".", "_"))], batch)
    folder.delete(source)


def _move_files(folder: Folder, source: str, names: Iterable[str], batch: int) -> None:
    """Put the files of a batch into place; one after the other, for readers look for files and not for folders."""
    for name in names:
        folder.move(f"{source}/{name}", name_of(batch, name))


def _logs(folder: Folder) -> Iterator[str]:
    """The logs of Spark's own sink: the one it writes, and those that were put away."""
    yield LOG
    yield from (f"{HIDDEN}/{name}" for name in folder.names(HIDDEN) if name.startswith(LOG))


def _last(folder: Folder) -> int:
    """The last batch that Spark's own sink has written; -1: none."""
    return max((number for number, _ in _entries(folder, LOG)), default=-1)


def _entries(folder: Folder, log: str) -> Iterator[tuple[int, str]]:
    """The files of a log, each with the batch that it ends with."""
    yield from ((int(name.split(".")[0]), name) for name in folder.names(log) if name[0].isdigit())


def _log_entries(folder: Folder, log: str) -> Iterator[str]:
    """The names of the files that a log lists as rows."""
    for _, entry in _entries(folder, log):
        for line in (folder.read(f"{log}/{entry}") or "").splitlines():
            if line.startswith("{"):
                yield json.loads(line)["path"].rsplit("/", 1)[-1]


class TextConnector(SourceConnector[TextSource]):
    """Reads files of JSON and CSV."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """Read the rows, with an error for each malformed one, unless the source has a column for corrupt records."""
        if schema is None or self.source.field(self.format.corrupt_record_column) is not None:
            return super().load(spark, schema, options)
        return load_text(spark, self.source, schema, options, is_json=self.format.holds_json)


class NamedColumnsConnector(SourceConnector[NamedColumns]):
    """Reads files that have names for their columns."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """Read the rows by way of wider types, since Spark's readers change a value that does not fit its type."""
        widen = widen_orc if str(self.source.format).lower() == "orc" else widen_file
        wide = None if schema is None else widen_schema(schema, widen)
        frame = super().load(spark, wide, options)
        if schema is None or wide == schema:
            return frame
        types = {field.name.lower(): field.dataType for field in frame.schema}
        file = frame.metadataColumn("_metadata").getField("file_path")
        declared = {f.name.lower(): f for f in fields_of(schema)}
        fitted = [fit_column(self.source, f.name, f.dataType, types.get(n), file) for n, f in declared.items()]
        return frame.select(*fitted, *(quote(name) for name in frame.columns if name.lower() not in declared))


class FileSinkConnector(SinkConnector[FileSink]):
    """Writes files to a folder, or the table as it is."""

    def check(self, place: Place | None, spark: SparkSession) -> None:
        """Refuse a folder of another query, format or checkpoint, and one that cannot be written to."""
        sink = self.target.sink
        if PATH not in sink.lowercase_options:
            wrong = self.format.wrong_option(f"USING {sink.format}", "no folder is named", "add `path 'folder'`.")
            raise WatersmeetError([replace(wrong, place=place)])
        path = sink.lowercase_options[PATH]
        if self.target.changes == "snapshot" and not is_reachable(spark, path):
            reason = "Spark Connect can only keep a snapshot in a folder on this machine"
            wrong = self.format.wrong_option(f"path '{path}'", reason, "write `changes 'log'`.")
            raise WatersmeetError([replace(wrong, place=place)])
        Files(self.target).check_start(spark, place)

    def prepare(self, rows: DataFrame | None, place: Place | None) -> None:
        """Finish a compaction that was interrupted, so that readers find all rows before the first batch."""
        path = local_path(self.target.sink.lowercase_options[PATH])
        if not has_scheme(path):
            finish_swap(LocalFolder(Path(path)))
        elif rows is not None and is_reachable(rows.sparkSession, path):
            finish_swap(folder_of(rows.sparkSession, path))

    @property
    def checks_lease(self) -> bool:
        """Files do so directly before they put a batch into place, a remote snapshot before a version counts."""
        return self.target.changes != "snapshot" or has_scheme(local_path(self.target.sink.lowercase_options[PATH]))

    def writer(self) -> Write:
        """The function that writes a batch."""
        target = self.target
        if target.changes == "snapshot":

            def replace_table(changes: DataFrame, number: int) -> None:
                snapshot = self._snapshot(changes.sparkSession)
                snapshot.write(changes, number, run_of(target.checkpoint), plans_of(changes, target))

            return replace_table
        files = Files(target)

        def add(rows: DataFrame, number: int, *, is_empty: bool = False) -> None:
            if is_reachable(rows.sparkSession, files.path):
                files.write(rows, number, is_empty=is_empty)
            elif not is_empty:
                write_rows(rows, target.plain, number)

        return batch_writer(target, add)

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch that a table as it is has; other files are replaced by batches that are written again."""
        if self.target.changes != "snapshot":
            return None
        return self._snapshot(spark).last_batch(run_of(self.target.checkpoint))

    def recovery_hint(self, last: int) -> str:
        """The hint for a table that does not match its checkpoint."""
        folder = local_path(self.target.sink.lowercase_options[PATH])
        return f"restore the checkpoint and the folder {folder} to the same moment."

    def can_rewind(self, spark: SparkSession) -> bool:
        """Whether the version of the table that the checkpoint ends with is still there."""
        plans = BatchPlans.of(spark, self.target.checkpoint)
        return self._snapshot(spark).version_at_end(run_of(self.target.checkpoint), plans) is not None

    def rewind(self, spark: SparkSession) -> None:
        """Put that version back."""
        plans = BatchPlans.of(spark, self.target.checkpoint)
        self._snapshot(spark).rewind(run_of(self.target.checkpoint), plans)

    def _snapshot(self, spark: SparkSession) -> Snapshot:
        """The folder that holds a table as it is."""
        options = self.target.plain.lowercase_options
        path, format_ = local_path(options.pop(PATH)), self.target.sink.format.lower()
        place = place_of(folder_of(spark, path)) if has_scheme(path) else Path(path)
        if is_local(place):
            return LocalSnapshot(place, format_, options)
        return RemoteSnapshot(cast("RemoteStorage", place), format_, options, self.target.check_lease)
