"""A cache of decoded runs for later batches: a missing run is read from the state.

A shard is not always served by the same process. With a folder, all workers of a machine share their runs as
memory-mapped files, each run once and without decoding; without a folder, each process has its own in memory.

The files never have more bytes than the budget, however many processes write: room is made before a file is written,
and the bytes of all files, unfinished ones included, are in a file that a process locks to change it.

A block in parts has an index, a filter and the rest of its columns, each cached under the block's name with a suffix.
Without room the rest goes first: it is read only for rows that match.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import OrderedDict, defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

BUDGET = 2 * 2**30
"""Bytes of decoded runs that a process without a folder holds."""
OF_DISK = 4
"""A folder may have one part in so many of the free disk space, and no more than the machine has memory."""
SHARE = 16
"""The part of the budget of a folder, one in so many, that becomes free at once: to look at all files takes time."""
ADMIT_EVERY = 8
"""If there is no room, only one in this many runs that are read again is admitted, evicting others. A state larger
than the budget is read in full in every batch: if each run evicted the oldest, none would be cached when it is needed.
"""
HELD = 2**30
"""Bytes of files that a process has mapped at most, besides indexes and filters: mapped pages count as its memory. Of
further files, one in `ADMIT_EVERY` stays mapped, and the others are mapped while they are read.
"""
LEDGER = "bytes"
"""The file of a folder that holds the number of bytes of its runs."""
FEW_OF = 4
"""Fewer than one part in so many are read one by one."""
INDEX, FILTER, REST = ".index", ".filter", ".rest"
"""The suffixes of a block's name for its parts in the cache."""
_SEARCHED = (INDEX, FILTER)
SMALLEST = 64 * 1024
"""A run of fewer bytes is not worth a file: each process that needs it reads it from the state once."""


class RunCache:
    """Runs by owner (a shard) and name; when there are too many bytes of them, the oldest go."""

    def __init__(self, budget: int = BUDGET, folder: Path | None = None) -> None:
        self.budget = budget
        self.folder = folder
        self.files = None if folder is None else RunFiles(folder)
        self.runs: OrderedDict[tuple[str, str], pa.RecordBatch] = OrderedDict()
        self.owned: defaultdict[str, set[str]] = defaultdict(set)
        self.views: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.mapped: set[tuple[str, str]] = set()
        self.size = 0
        self.room = self.rereads = self.remaps = 0
        self.part_reads: dict[tuple[str, str], int] = {}

    def has(self, owner: str, name: str) -> bool:
        """Whether this process holds a run; others may have it in the folder."""
        return (owner, name) in self.runs

    def is_cached(self, owner: str, name: str) -> bool:
        """Whether a run is at hand, in this process or in the folder."""
        return self.has(owner, name) or (self.files is not None and self.files.path(owner, name).exists())

    def find(self, owner: str, name: str) -> pa.RecordBatch | None:
        """A run, if it is at hand."""
        run = self.runs.get((owner, name))
        if run is not None:
            self.runs.move_to_end((owner, name))
        elif self.files is not None:
            run = self.files.map(owner, name)
            if run is not None and self._is_admitted(name, run):
                self._hold(owner, name, run)
                self.mapped.add((owner, name))
        return run

    def find_view(self, owner: str, name: str, shape: Any) -> Any:
        """The view of a run for that shape; None: not cached."""
        entry = self.views.get((owner, name))
        return entry[1] if entry is not None and entry[0] == shape else None

    def put_view(self, owner: str, name: str, shape: Any, view: Any) -> None:
        """Cache a view of a run, as long as the run is cached; it shares the run's memory."""
        if (owner, name) in self.runs:
            self.views[owner, name] = (shape, view)

    def put_read(self, owner: str, name: str, run: pa.RecordBatch) -> pa.RecordBatch:
        """Cache a run that was read from the state, if there is room; returns the cached one."""
        if not name.endswith(_SEARCHED) and not self.has_room(run.nbytes):
            return run
        self.put(owner, name, run)
        return self.runs.get((owner, name), run)

    def has_room(self, size: int) -> bool:
        """Whether a run of so many bytes that was read may be cached; if so, that takes its room."""
        if size > self.room:
            self.rereads += 1
            if self.rereads % ADMIT_EVERY != 1:
                return False
            self.room = self.limit - self.bytes_used
        self.room -= size
        return True

    def is_worth_reading(self, owner: str, block: str, read: int, parts: int, size: int) -> bool:
        """Whether to read all parts of a block and cache them, rather than so many: they take room then.

        They are worth it if that is a good part of them, or once as many were read one by one.
        """
        reads = self.part_reads.get((owner, block), 0) + read
        self.part_reads[owner, block] = reads
        if (read * FEW_OF < parts and reads < parts) or not self.has_room(size):
            return False
        del self.part_reads[owner, block]
        return True

    @property
    def limit(self) -> int:
        """The bytes that are left after room was made."""
        return self.budget if self.folder is None else self.budget - self.budget // SHARE

    @property
    def bytes_used(self) -> int:
        """The bytes of runs in the folder, or in this process."""
        return self.size if self.files is None else self.files.bytes_used

    def is_file_backed(self, run: pa.RecordBatch) -> bool:
        """Whether a run goes into a file, and is read from there."""
        return self.folder is not None and run.nbytes >= SMALLEST

    def put(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Cache a run; without room, the oldest are evicted. One that is larger than the budget is not cached."""
        if self.files is None or not self.is_file_backed(run):
            # A small part of a large table would keep all of it in memory.
            part = run.get_total_buffer_size() > 2 * SMALLEST and self.folder is not None
            self._hold(owner, name, run.take(pa.array(range(run.num_rows))) if part else run)
            return
        for evicted in self.files.write(owner, name, run, self.budget, self.limit):
            self._evict(*evicted)
        mapped = self.files.map(owner, name)
        if mapped is not None:
            self._hold(owner, name, mapped)
            self.mapped.add((owner, name))

    def set_budget(self, budget: int) -> None:
        """Change the budget; if it is smaller than what is there, the oldest runs are evicted."""
        self.budget = budget
        if self.files is not None and self.files.bytes_used > budget:
            for evicted in self.files.make_room(self.limit):
                self._evict(*evicted)
        self._release(0)

    def drop(self, owner: str, name: str) -> None:
        """Forget a run, in the folder too."""
        self._evict(owner, name)
        if self.files is not None:
            self.files.remove([self.files.path(owner, name)])

    def _is_admitted(self, name: str, run: pa.RecordBatch) -> bool:
        """Whether this process goes on holding a run that it found in the folder, rather than those that it holds."""
        if not self._counts(name) or self.size + run.nbytes <= self._mapping_limit:
            return True
        self.remaps += 1
        return self.remaps % ADMIT_EVERY == 0

    @property
    def _mapping_limit(self) -> int:
        return self.budget if self.folder is None else min(self.budget, HELD)

    def _hold(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Hold a run in this process, and let go of those used longest ago, as runs of queries that have ended."""
        self._evict(owner, name)
        size = run.nbytes if self._counts(name) else 0
        if size > self._mapping_limit:
            return
        self._release(size)
        self.runs[owner, name] = run
        self.owned[owner].add(name)
        self.size += size

    def _release(self, size: int) -> None:
        """Let go of the runs used longest ago until this process may hold so many bytes more."""
        while self.size + size > self._mapping_limit:
            self._evict(*next(key for key in self.runs if self._counts(key[1])))

    def _counts(self, name: str) -> bool:
        """Whether a run counts to what this process holds; a mapped index is searched in every batch and stays."""
        return self.folder is None or not name.endswith(_SEARCHED)

    def _evict(self, owner: str, name: str) -> None:
        run = self.runs.pop((owner, name), None)
        self.views.pop((owner, name), None)
        self.mapped.discard((owner, name))
        if run is not None:
            self.size -= run.nbytes if self._counts(name) else 0
            self.owned[owner].discard(name)
            if not self.owned[owner]:
                del self.owned[owner]

    def retain(self, owner: str, names: frozenset[str]) -> None:
        """Forget the runs of a shard that it no longer has: another worker may have expired or merged them."""
        listed = [] if self.files is None else _list_names(self.files.folder / owner)
        there = frozenset(listed)
        for name in list(self.owned.get(owner, ())):
            # A file that another process has removed takes disk space as long as it is mapped.
            is_removed = (owner, name) in self.mapped and f"{name}.arrow" not in there
            if is_removed or name.partition(".")[0] not in names:
                self._evict(owner, name)
        for key in [key for key in self.part_reads if key[0] == owner and key[1] not in names]:
            del self.part_reads[key]
        if self.files is not None:
            # Files that a killed worker left half-written are removed as well.
            self.files.remove(
                [self.files.folder / owner / file for file in listed if file.partition(".")[0] not in names]
            )


@dataclass(frozen=True)
class RunFiles:
    """The runs in a folder, as files that all processes of a machine read and write.

    The number in `LEDGER` is at least the bytes of all files; one that is being written counts as if it was finished.
    Files are made, renamed and removed under its lock. Before a file is written its bytes are added, and if that would
    exceed the budget, files are removed first.
    """

    folder: Path

    def path(self, owner: str, name: str) -> Path:
        """The file of a run, whether it is there or not."""
        return self.folder / owner / f"{name}.arrow"

    def map(self, owner: str, name: str) -> pa.RecordBatch | None:
        """A run, mapped into memory; None: it is not there."""
        try:
            return pa.ipc.open_stream(pa.memory_map(str(self.path(owner, name)))).read_next_batch()
        except (OSError, pa.ArrowInvalid, StopIteration):
            return None

    @property
    def bytes_used(self) -> int:
        """The bytes of all runs."""
        try:
            return int((self.folder / LEDGER).read_bytes())
        except (OSError, ValueError):
            return 0

    def write(self, owner: str, name: str, run: pa.RecordBatch, budget: int, limit: int) -> list[tuple[str, str]]:
        """Write a run, if it fits into a budget of bytes; returns the owners and names of those that had to go for it.

        If the budget is spent, files are removed until no more than ``limit`` bytes are left with it: the oldest, which
        will expire first, and indexes after all others. No other process sees half a run. A full disk costs the help of
        the cache, nothing else.
        """
        path = self.path(owner, name)
        if path.exists():
            # The name is that of a content.
            return []
        size, evicted = _stream_bytes(run), list[tuple[str, str]]()
        if size > limit:
            return []
        unfinished = path.with_suffix(f".{os.getpid()}-{size}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._lock_ledger() as ledger:
                total = ledger.read()
                if total is None or total + size > budget:
                    total, evicted = self._make_room(limit - size)
                file = unfinished.open("wb", buffering=0)
                ledger.write(total + size)
        except OSError:
            return evicted
        try:
            # The file that was opened under the lock: if another process removes it, it is not made again uncounted.
            with file, pa.PythonFile(file, "w") as sink, pa.ipc.new_stream(sink, run.schema) as writer:
                writer.write_batch(run)
            # Under the lock, so that it is counted under one of its names.
            with self._lock_ledger():
                unfinished.replace(path)
        except OSError:
            self.remove([unfinished])
        return evicted

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files; those that are not there do not matter."""
        there = [path for path in paths if path.exists()]
        if there:
            with suppress(OSError), self._lock_ledger() as ledger:
                freed, total = sum(map(_unlink, there)), ledger.read()
                if total is not None:
                    ledger.write(total - freed)

    def list_files(self) -> list[tuple[float, int, Path]]:
        """The files of the folder: when each was written, its bytes when it is finished, and where it is."""
        sized: list[tuple[float, int, Path]] = []
        owners = [self.folder / owner for owner in _list_names(self.folder)]
        for path in (owner / file for owner in owners for file in _list_names(owner)):
            try:
                status = path.stat()
            except OSError:
                continue
            sized.append((status.st_mtime, _final_bytes(path, status.st_size), path))
        return sized

    def make_room(self, most: int) -> list[tuple[str, str]]:
        """Remove the oldest files until there are at most so many bytes; returns the runs that are gone."""
        with self._lock_ledger() as ledger:
            total, evicted = self._make_room(most)
            ledger.write(total)
        return evicted

    def _make_room(self, most: int) -> tuple[int, list[tuple[str, str]]]:
        """Remove files until the others have at most so many bytes: their bytes, and the runs that are gone."""
        files = self.list_files()
        total, evicted = sum(size for _, size, _ in files), list[tuple[str, str]]()
        for _, size, path in sorted(files, key=lambda file: (file[2].stem.endswith(_SEARCHED), file)):
            if total <= most:
                break
            _unlink(path)
            evicted.append((path.parent.name, path.stem))
            total -= size
        return total, evicted

    @contextmanager
    def _lock_ledger(self) -> Generator[_Ledger]:
        # Opened each time: a process that was forked would share the lock of a file that was open before.
        file = os.open(self.folder / LEDGER, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield _Ledger(file)
        finally:
            os.close(file)


@dataclass(frozen=True)
class _Ledger:
    """The number of bytes of a folder, while it is locked."""

    file: int

    def read(self) -> int | None:
        """The number; None: it was not written yet."""
        try:
            return int(os.pread(self.file, _DIGITS, 0))
        except ValueError:
            return None

    def write(self, total: int) -> None:
        os.pwrite(self.file, b"%*d" % (_DIGITS, total), 0)


_DIGITS = 20


run_cache = RunCache()
"""The decoded runs of this process."""


def share_runs(folder: Path, budget: int | None = None) -> None:
    """Keep decoded runs in a folder that all workers of this machine share; ``budget``: its bytes."""
    global run_cache
    if run_cache.folder != folder:
        run_cache = RunCache(default_budget(folder) if budget is None else budget, folder)
    elif budget is not None and budget != run_cache.budget:
        run_cache.set_budget(budget)


def default_budget(folder: Path) -> int:
    """The bytes of runs in a folder by default: a part of the disk that is free without them, at most the memory."""
    used = sum(size for _, size, _ in RunFiles(folder).list_files())
    try:
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except (OSError, StopIteration):
        return BUDGET
    return min((free + used) // OF_DISK, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _stream_bytes(run: pa.RecordBatch) -> int:
    """The bytes of the file of a run."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, run.schema) as writer:
        writer.write_batch(run)
    return sink.size()


def _final_bytes(path: Path, size: int) -> int:
    """The bytes of a file of this size when it is finished: one that is being written has them in its name."""
    _, _, final = path.suffix.partition("-")
    return max(size, int(final)) if final.isdecimal() else size


def _unlink(path: Path) -> int:
    """Remove a file; returns the bytes that it counted for, 0 if it was not there."""
    try:
        size = _final_bytes(path, path.stat().st_size)
        path.unlink()
    except OSError:
        return 0
    return size


def _list_names(folder: Path) -> list[str]:
    """The names in a folder; empty if it does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - every shard asks in every batch, and paths take as long again
    except OSError:
        return []
