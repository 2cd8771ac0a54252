"""A cache of decoded runs for later batches: a missing run is read from the state.

A shard is not always served by the same process. With a folder, all workers of a machine share their runs as
memory-mapped files, each run once and without decoding; without a folder, each process has its own in memory.

A block in parts has an index, a filter and the rest of its columns, each cached under the block's name with a suffix.
Without room the rest goes first: it is read only for rows that match.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

BUDGET = 2 * 2**30
"""Bytes of decoded runs that a process without a folder holds."""
OF_DISK = 4
"""A folder may have one part in so many of the free disk space, and no more than the machine has memory."""
SHARE = 16
"""One part in so many of the budget of a folder stays free, so that all processes together never exceed it: each checks
the size when it has added its part of that, by the number of cores.
"""
ADMIT_EVERY = 8
"""If there is no room, only one in this many runs that are read again is admitted, evicting others. A state larger
than the budget is read in full in every batch: if each run evicted the oldest, none would be cached when it is needed.
"""
HELD = 2**30
"""Bytes of files that a process has mapped at most, besides indexes and filters: mapped pages count as its memory."""
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
        self.runs: OrderedDict[tuple[str, str], pa.RecordBatch] = OrderedDict()
        self.owned: defaultdict[str, set[str]] = defaultdict(set)
        self.views: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.size = 0
        self.added = budget
        self.room = self.rereads = 0
        self.part_reads: dict[tuple[str, str], int] = {}

    def has(self, owner: str, name: str) -> bool:
        """Whether this process holds a run; others may have it in the folder."""
        return (owner, name) in self.runs

    def find(self, owner: str, name: str) -> pa.RecordBatch | None:
        """A run, if it is at hand."""
        run = self.runs.get((owner, name))
        if run is not None:
            self.runs.move_to_end((owner, name))
        elif self.folder is not None:
            run = _map_file(_path(self.folder, owner, name))
            if run is not None:
                self._hold(owner, name, run)
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
            self.room = self.limit - self._bytes_used
        self.room -= size
        return True

    def is_worth_reading(self, owner: str, block: str, read: int, parts: int, size: int) -> bool:
        """Whether to read all parts of a block, so that they are cached: once as many were read one by one."""
        reads = self.part_reads.get((owner, block), 0) + read
        self.part_reads[owner, block] = reads
        if reads < parts or not self.has_room(size):
            return False
        del self.part_reads[owner, block]
        self.room += size
        return True

    @property
    def limit(self) -> int:
        """The bytes that are left after room was made."""
        return self.budget if self.folder is None else self.budget - self.budget // SHARE

    @property
    def _bytes_used(self) -> int:
        """The bytes of runs in the folder, or in this process."""
        return self.size if self.folder is None else sum(size for _, size, _ in self.files())

    def is_file_backed(self, run: pa.RecordBatch) -> bool:
        """Whether a run goes into a file, and is read from there."""
        return self.folder is not None and run.nbytes >= SMALLEST

    def put(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Cache a run; without room, the oldest are evicted."""
        if self.folder is None or not self.is_file_backed(run):
            # A small part of a large table would keep all of it in memory.
            part = run.get_total_buffer_size() > 2 * SMALLEST and self.folder is not None
            self._hold(owner, name, run.take(pa.array(range(run.num_rows))) if part else run)
            return
        path = _path(self.folder, owner, name)
        _write(path, run)
        mapped = _map_file(path)
        if mapped is not None:
            self._hold(owner, name, mapped)
        self.added += run.nbytes
        if self.added * SHARE * (os.cpu_count() or 1) >= self.budget:
            self.added = 0
            self._make_room(path)

    def drop(self, owner: str, name: str) -> None:
        """Forget a run, in the folder too."""
        self._evict(owner, name)
        if self.folder is not None:
            with suppress(OSError):
                _path(self.folder, owner, name).unlink()

    def _hold(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Hold a run in this process, and let go of those used longest ago, as runs of queries that have ended."""
        self._evict(owner, name)
        self.runs[owner, name] = run
        self.owned[owner].add(name)
        self.size += run.nbytes if self._counts(name) else 0
        while self.size > (self.budget if self.folder is None else min(self.budget, HELD)):
            self._evict(*next(key for key in self.runs if self._counts(key[1])))

    def _counts(self, name: str) -> bool:
        """Whether a run counts to what this process holds; a mapped index is searched in every batch and stays."""
        return self.folder is None or not name.endswith(_SEARCHED)

    def _evict(self, owner: str, name: str) -> None:
        run = self.runs.pop((owner, name), None)
        self.views.pop((owner, name), None)
        if run is not None:
            self.size -= run.nbytes if self._counts(name) else 0
            self.owned[owner].discard(name)
            if not self.owned[owner]:
                del self.owned[owner]

    def retain(self, owner: str, names: frozenset[str]) -> None:
        """Forget the runs of a shard that it no longer has: another worker may have expired or merged them."""
        for name in [name for name in self.owned.get(owner, ()) if name.partition(".")[0] not in names]:
            self._evict(owner, name)
        for key in [key for key in self.part_reads if key[0] == owner and key[1] not in names]:
            del self.part_reads[key]
        if self.folder is not None:
            for file in _list_names(self.folder / owner):
                # Files that a killed worker left half-written are removed as well.
                if file.partition(".")[0] not in names:
                    with suppress(OSError):
                        (self.folder / owner / file).unlink()

    def _make_room(self, newest: Path) -> None:
        """Remove files until the others fit: the oldest, which will expire first, and indexes after all others."""
        sized = self.files()
        excess = sum(size for _, size, _ in sized) - self.limit
        for _, size, path in sorted(sized, key=lambda file: (file[2].stem.endswith(_SEARCHED), file)):
            if excess <= 0 or path == newest:
                return
            self._evict(path.parent.name, path.stem)
            with suppress(OSError):
                path.unlink()
            excess -= size

    def files(self) -> list[tuple[float, int, Path]]:
        """The runs in the folder: when each was written, its bytes, and where it is."""
        assert self.folder is not None
        sized: list[tuple[float, int, Path]] = []
        owners = [self.folder / owner for owner in _list_names(self.folder)]
        for path in (owner / file for owner in owners for file in _list_names(owner)):
            try:
                status = path.stat()
            except OSError:
                continue
            sized.append((status.st_mtime, status.st_size, path))
        return sized


run_cache = RunCache()
"""The decoded runs of this process."""


def share_runs(folder: Path, budget: int | None = None) -> None:
    """Keep decoded runs in a folder that all workers of this machine share; ``budget``: its bytes."""
    global run_cache
    if run_cache.folder != folder:
        run_cache = RunCache(default_budget(folder) if budget is None else budget, folder)
    elif budget is not None:
        run_cache.budget = budget


def default_budget(folder: Path) -> int:
    """The bytes of runs in a folder by default: a part of the disk that is free without them, at most the memory."""
    used = sum(size for _, size, _ in RunCache(folder=folder).files())
    try:
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except (OSError, StopIteration):
        return BUDGET
    return min((free + used) // OF_DISK, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _path(folder: Path, owner: str, name: str) -> Path:
    return folder / owner / f"{name}.arrow"


def _write(path: Path, run: pa.RecordBatch) -> None:
    """Write a run so that no other process sees half of it. A full disk costs the help, nothing else."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_stream(sink, run.schema) as writer:
            writer.write_batch(run)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _map_file(path: Path) -> pa.RecordBatch | None:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_next_batch()
    except (OSError, pa.ArrowInvalid, StopIteration):
        return None


def _list_names(folder: Path) -> list[str]:
    """The names in a folder; empty if it does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - every shard asks in every batch, and paths take as long again
    except OSError:
        return []
