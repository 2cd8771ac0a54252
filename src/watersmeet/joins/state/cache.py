"""Decoded runs at hand for later batches. A help, never the truth: what is not here is read from the state.

A shard is not always served by the same process. In a folder, all workers of a machine share their runs as files mapped
into memory, each run there once and without decoding; without a folder, each process has its own in memory.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

BUDGET = 2 * 2**30
"""Bytes of decoded runs, of one process or of one folder."""


class RunCache:
    """Runs by owner (a shard) and name; when there are too many bytes of them, the oldest go."""

    def __init__(self, budget: int = BUDGET, folder: Path | None = None) -> None:
        self.budget = budget
        self.folder = folder
        self.runs: OrderedDict[tuple[str, str], pa.RecordBatch] = OrderedDict()
        self.size = 0

    def find(self, owner: str, name: str) -> pa.RecordBatch | None:
        """A run, if it is at hand."""
        found = self.runs.get((owner, name))
        if found is not None:
            self.runs.move_to_end((owner, name))
        elif self.folder is not None:
            found = _mapped(_path(self.folder, owner, name))
            if found is not None:
                self._hold(owner, name, found)
        return found

    def put(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Keep a run at hand."""
        if self.folder is None:
            self._hold(owner, name, run)
            return
        path = _path(self.folder, owner, name)
        _write(path, run)
        mapped = _mapped(path)
        if mapped is not None:
            self._hold(owner, name, mapped)
        self._make_room(path)

    def drop(self, owner: str, name: str) -> None:
        """Forget a run, in the folder too."""
        self._let_go(owner, name)
        if self.folder is not None:
            with suppress(OSError):
                _path(self.folder, owner, name).unlink()

    def _hold(self, owner: str, name: str, run: pa.RecordBatch) -> None:
        """Hold a run in this process, and let go of those used longest ago, as runs of queries that have ended."""
        self._let_go(owner, name)
        self.runs[owner, name] = run
        self.size += run.nbytes
        while self.size > self.budget and self.runs:
            self._let_go(*next(iter(self.runs)))

    def _let_go(self, owner: str, name: str) -> None:
        found = self.runs.pop((owner, name), None)
        if found is not None:
            self.size -= found.nbytes

    def retain(self, owner: str, names: frozenset[str]) -> None:
        """Forget the runs of a shard that it no longer has: another worker may have expired or merged them."""
        known = {name for whose, name in self.runs if whose == owner}
        if self.folder is not None:
            known |= {path.stem for path in _files(self.folder / owner)}
        for name in known - names:
            self.drop(owner, name)
            self._clear(owner, name)

    def _make_room(self, newest: Path) -> None:
        """Remove the oldest files until the rest fits: they are the nearest to the end of their lives."""
        assert self.folder is not None
        sized: list[tuple[float, int, Path]] = []
        for path in (path for owner in _files(self.folder) for path in _files(owner)):
            try:
                found = path.stat()
            except OSError:
                continue
            sized.append((found.st_mtime, found.st_size, path))
        excess = sum(size for _, size, _ in sized) - self.budget
        for _, size, path in sorted(sized):
            if excess <= 0 or path == newest:
                return
            self.drop(path.parent.name, path.stem)
            self._clear(path.parent.name, path.stem)
            excess -= size

    def _clear(self, owner: str, name: str) -> None:
        """Remove what a worker that was ended while it wrote a run has left; one that still writes it goes without."""
        if self.folder is not None:
            for path in (self.folder / owner).glob(f"{name}.*"):
                with suppress(OSError):
                    path.unlink()


at_hand = RunCache()
"""The decoded runs of this process."""


def share_runs(folder: Path) -> None:
    """Keep decoded runs in a folder that all workers of this machine share."""
    global at_hand
    if at_hand.folder != folder:
        at_hand = RunCache(folder=folder)


def _path(folder: Path, owner: str, name: str) -> Path:
    return folder / owner / f"{name}.arrow"


def _write(path: Path, run: pa.RecordBatch) -> None:
    """Write a run so that no other process sees half of it. A full disk costs the help, nothing else."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, run.schema) as writer:
            writer.write_batch(run)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _mapped(path: Path) -> pa.RecordBatch | None:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except (OSError, pa.ArrowInvalid):
        return None


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from list(folder.iterdir())
    except OSError:
        return
