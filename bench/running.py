"""Run sections: measure every contender, and compare the results of those that must agree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.contender import LAUNCHED, Run
from bench.data import Workload, write
from bench.memory import Peak
from bench.sections import ROCKSDB, SECTIONS

TREE = Path(__file__).parents[1]
"""The tree of this benchmark."""
FORMATS = ("2", "3", "4")
LOG = Path(tempfile.gettempdir()) / "watersmeet-bench.log"
LARGE = 24_000_000
"""The files of a workload with more rows are removed after its measurement."""

Measured = dict[str, Any]
Measure = Callable[[Run], Measured]
"""Runs a contender and returns its figures."""


def data_of(workload: Workload) -> Path:
    """The folder with the files of a workload, which are written once."""
    return write(workload, Path(tempfile.gettempdir()) / "watersmeet-bench")


def in_a_process(run: Run, tree: Path = TREE) -> Measured:
    """Measure a run in its own process and JVM, on the package of a tree, with its memory.

    A tree that has a benchmark of its own runs its own contenders, because they import modules that may have moved.
    """
    command = [sys.executable, "-m", "bench.contender", json.dumps(asdict(run)), str(data_of(run.workload))]
    home = tree if (tree / "bench" / "contender.py").exists() else TREE
    path = os.pathsep.join((str(tree / "src"), str(home)))
    environ = os.environ | {"PYTHONPATH": path, LAUNCHED: str(time.time())}
    result, peak = run_process(run.contender, command, environ, home)
    return _with_memory(result, peak)


def _with_memory(result: Measured, peak: Peak) -> Measured:
    megabytes = {"jvm": peak.jvm, "workers": peak.workers, "unmapped": peak.unmapped}
    return {**result, **{f"{of}_megabytes": amount for of, amount in megabytes.items()}}


class Processes:
    """Measures each run in its own process and JVM; runs with the same ``shared`` follow each other in one."""

    def __init__(self) -> None:
        self.running: tuple[str, subprocess.Popen[str]] | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None and self.running is not None:
            self.running[1].terminate()
        self._end()

    def __call__(self, run: Run) -> Measured:
        """The measurement of a run."""
        if not run.shared:
            self._end()
            return _without_large_data(run, in_a_process)
        return _without_large_data(run, self._in_the_same)

    def _in_the_same(self, run: Run) -> Measured:
        if self.running is None or self.running[0] != run.shared:
            self._end()
            self.running = run.shared, self._start()
        process = self.running[1]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([asdict(run), str(data_of(run.workload))]) + "\n")
        process.stdin.flush()
        with Peak(process.pid) as peak:
            said = next((line for line in process.stdout if line.startswith("RESULT ")), None)
        if said is None:
            raise RuntimeError(f"{run.label} failed: see {LOG}")
        return _with_memory(json.loads(said.removeprefix("RESULT ")), peak)

    def _start(self) -> subprocess.Popen[str]:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join((str(TREE / "src"), str(TREE)))}
        command = [sys.executable, "-m", "bench.contender"]
        with LOG.open("a") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
            return subprocess.Popen(command, cwd=TREE, env=environ, **pipes)

    def _end(self) -> None:
        if self.running is not None:
            self.running[1].communicate()
            self.running = None


def _without_large_data(run: Run, measure: Measure) -> Measured:
    """Measure a run, and delete its data if it is large."""
    result = measure(run)
    if run.workload.rows > LARGE:
        shutil.rmtree(data_of(run.workload))
    return result


def run_process(
    name: str, command: Sequence[str], environ: Mapping[str, str], folder: Path = TREE
) -> tuple[Measured, Peak]:
    """The RESULT line of a process, and its peak memory."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environ, **pipes)
    with process, Peak(process.pid) as peak:
        output, errors = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if not lines:
        lines_of_errors = errors.strip().splitlines()
        causes = [line.strip() for line in lines_of_errors if line.startswith("Caused by")] or lines_of_errors
        raise RuntimeError(f"{name} failed: {(causes or [f'exit {process.returncode}'])[-1]}")
    return json.loads(lines[0].removeprefix("RESULT ")), peak


@dataclass
class Bench:
    """Runs sections; ``log`` gets a line per run, ``rocksdb`` is the contender for Spark's own join on RocksDB."""

    workload: Workload
    measure: Measure
    log: Callable[[str], None]
    rocksdb: str | None = None
    only: str = ""
    without: str | None = None

    def section(self, name: str) -> list[Measured]:
        """Measure the runs of a section."""
        measured = list(self.runs(name))
        check(measured)
        return measured

    def runs(self, name: str) -> Iterator[Measured]:
        """Measure the runs one by one: only those whose label contains ``only`` and does not contain ``without``."""
        for run in SECTIONS[name](self.workload):
            if run.matches(self.only, self.without):
                yield self.run(run)

    def run(self, run: Run) -> Measured:
        """Measure a run, with its labels."""
        if run.contender == ROCKSDB:
            run = replace(run, contender=self._best_rocksdb())
        run = replace(run, label=run.label or run.contender)
        self.log(f"{run.label}: {run.workload.rows:,} rows")
        return asdict(run) | self.measure(run)

    def _best_rocksdb(self) -> str:
        """The fastest state format of Spark's own join on RocksDB, found by a short run of each."""
        if self.rocksdb is None:
            short = replace(self.workload, rows=self.workload.rows // 8, batches=max(4, self.workload.batches // 4))
            speeds = {v: self.run(Run(f"{ROCKSDB}-{v}", short))["rows_per_second"] for v in FORMATS}
            self.rocksdb = f"{ROCKSDB}-{max(speeds, key=lambda v: speeds[v])}"
        return self.rocksdb


def check(measured: Sequence[Measured]) -> None:
    """Fail where contenders that must agree do not give the same number of rows."""
    groups: defaultdict[str, list[Measured]] = defaultdict(list)
    for m in measured:
        if m["agrees"]:
            groups[m["agrees"]].append(m)
    for group in groups.values():
        ours = {m["results"] for m in group if m["contender"].startswith("watersmeet")}
        others = {m["results"] for m in group} - ours
        # At the end of its input Spark's outer join still holds back padded rows that ours has handed out.
        holds_back = group[0]["how"] != "inner"
        differ = max(others, default=0) > max(ours, default=0) if holds_back else others
        if len(ours) > 1 or (ours and differ):
            said = ", ".join(f"{m['label']} {m['results']:,}" for m in group)
            raise RuntimeError(f"the contenders disagree about the number of result rows: {said}")
