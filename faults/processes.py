"""The processes of a run: find them by kind, and kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))
KINDS = {"jvm": "SparkSubmit", "worker": "watersmeet.spark.daemon", "ready": "watersmeet.spark.private.prefork_server"}
"""The word in the command line of each kind of process."""


class Run:
    """A run of a project in a process group of its own, and the batches that it has reported."""

    def __init__(self, project: Path, *options: str, before: Sequence[str] = ()) -> None:
        """Start it; ``before``: the beginning of its command line."""
        command = [*before, WATERSMEET, "run", str(project), "--master", "local[2]", "--format", "json", *options]
        self.said = project / "said.txt"
        self._began = self.said.stat().st_size if self.said.exists() else 0
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
            )
        self._batches: Queue[int] = Queue()
        self.arrivals: list[tuple[float, str]] = []
        """The time at which each batch was reported, in seconds of a monotonic clock, and its query."""
        self.last_batches: dict[str, int] = {}
        """The last batch that each query has reported."""
        self.last_lines: deque[str] = deque(maxlen=5)
        self._refusals: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last_lines.append(line)
            with suppress(ValueError):
                report = json.loads(line)
                if "batch" in report:
                    self._batches.put(report["batch"])
                    self.arrivals.append((time.monotonic(), report.get("query", "")))
                    self.last_batches[report.get("query", "")] = report["batch"]
                elif "refusals" in report:
                    self._refusals.append(line)

    def next_batch(self, seconds: float) -> int | None:
        """The next batch that it reports; None if it reports none in that time, or has ended."""
        for _ in range(int(seconds * 10)):
            with suppress(Empty):
                return self._batches.get(timeout=0.1)
            if self.process.poll() is not None:
                return None
        return None

    @property
    def errors(self) -> str:
        """Its refusals, and the standard error of runs of the project since it began."""
        if not self.is_running:
            self._reader.join(10)
        return self.said.read_bytes()[self._began :].decode(errors="replace") + "".join(self._refusals)

    @property
    def reasons(self) -> list[str]:
        """The messages of its refusals, once it has ended."""
        self._reader.join(10)
        return [refusal["message"] for line in self._refusals for refusal in json.loads(line)["refusals"]]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self, kind: str) -> bool:
        """Kill the whole group, or one process of a kind; returns whether there was one."""
        victims = [self.process.pid] if kind == "group" else [*self._of(kind)]
        if not victims:
            return False
        with suppress(ProcessLookupError):
            if kind == "group":
                os.killpg(victims[0], signal.SIGKILL)
            else:
                # The last worker, because the first one starts the others.
                os.kill(victims[-1], signal.SIGKILL)
        return True

    def pause(self) -> None:
        """Stop all its processes, the JVM and the workers too, as a machine that is suspended does."""
        self._signal_all(signal.SIGSTOP)

    def wake(self) -> None:
        """Resume all its processes."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        # Workers have their own process groups.
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it had to be killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill("group")
            self.process.wait()
            return None

    def _of(self, kind: str) -> Iterator[int]:
        for pid in self._processes():
            with suppress(OSError):
                if KINDS[kind] in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                    yield pid

    def _processes(self) -> Iterator[int]:
        """All processes of the run, the oldest first."""
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            with suppress(OSError):
                group = int((path / "stat").read_text().rpartition(")")[2].split()[2])
                if group == self.process.pid or _has_ancestor(path, self.process.pid):
                    yield int(path.name)


def _has_ancestor(path: Path, pid: int) -> bool:
    """Whether a process descends from another one: workers have their own process groups."""
    while path.name not in ("0", "1"):
        parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        if int(parent) == pid:
            return True
        path = path.parent / parent
    return False
