"""The peak memory and the processor time of a run, as the operating system reports them."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path


class Peak:
    """Samples a process and those below it, once a second, until it is left: megabytes, and processor seconds.

    ``unmapped`` is the memory of workers without the files that they have mapped, which the system evicts when it needs
    memory.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.jvm = 0
        self.workers = 0
        self.unmapped = 0
        self.own = 0
        self.processor = 0.0
        self._before = _children_seconds()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        # Processes that ended since the last sample, if their parents have waited for them.
        self.processor = max(self.processor, _children_seconds() - self._before)

    def _watch(self) -> None:
        while not self._stop.wait(1):
            jvm, workers, unmapped = _memory(self.process)
            self.jvm, self.workers = max(self.jvm, jvm), max(self.workers, workers)
            self.unmapped = max(self.unmapped, unmapped)
            self.processor = max(self.processor, processor_seconds(self.process))
            with suppress(OSError):
                self.own = max(self.own, _megabytes(self.process))


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_WORKERS = ("daemon", "driver_worker", "prefork_server", "spare")
"""Words in the command lines of Python workers; `spare` is what older trees call the prefork server."""


def memory(process: int) -> tuple[int, int]:
    """Megabytes of the JVM and of all Python workers below a process; pages that workers share count once."""
    return _memory(process)[:2]


def _memory(process: int) -> tuple[int, int, int]:
    """The same, and the part of the workers' memory that is not a mapped file."""
    jvm = workers = unmapped = 0
    for pid in _below(process):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "java" in command[0]:
                jvm += _megabytes(pid)
            elif any(name in part for part in command for name in _WORKERS):
                workers += _megabytes(pid)
                unmapped += _megabytes(pid, "Pss_Anon")
        except OSError:
            continue
    return jvm, workers, unmapped


def processor_seconds(process: int) -> float:
    """The processor time of a process and all its descendants, including those that have ended."""
    ticks = 0
    for pid in (process, *_below(process)):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _below(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    processes, waiting = [], [process]
    while waiting:
        processes += (below := children.get(waiting.pop(), []))
        waiting += below
    return processes


def _megabytes(pid: int, kind: str = "Pss") -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) // 1024
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
