"""``make kills``: processes of a cluster are killed at random moments, and the rows compared with an undisturbed run.

A standalone cluster on loopback has two workers. One project with four queries has its storage on HDFS, another one on
S3; they write files, Postgres and Kafka. Executors, workers, Python workers, daemons, the driver and the NameNode are
killed; each kill affects all queries of a project. One project runs with speculation, one with dynamic allocation.
The driver is started again after it was killed or has ended, and restarts queries that fail, which is counted.

A kill follows when every query has had two batches since the last one, and after a pause; a query that takes longer
than the patience is counted as slow, and is not waited for. After the last kill, files that no query has come near are
deleted, and a run in local mode reads the rest: it needs no executors, and continues from their checkpoints.

    .venv/bin/python -m faults.cluster --kills 40 --only s3
    .venv/bin/python -m faults.cluster --kills 7 --pause 1 3 --minutes 6     a round of some minutes, each process once
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.cluster.standalone import DRIVER, Standalone, start_standalone
from tests.cluster.hdfs import Hdfs
from tests.cluster.processes import stop_process
from tests.cluster.s3 import start_s3

from faults.harms import BATCH_SECONDS, END_SECONDS
from faults.processes import Run
from faults.scenarios import Rows, Scenario
from faults.servers import Servers, servers

CONF = {
    **DRIVER,
    "spark.executor.memory": "640m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.python.daemon.module": "watersmeet.spark.daemon",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SPECULATION = {"spark.speculation": "true", "spark.speculation.multiplier": "2", "spark.speculation.quantile": "0.5"}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
}
MASTER = {"SPARK_DAEMON_MEMORY": "256m"}
RETRY_CODES = (4, 5)
"""Exit codes of a run that may be started again."""
AHEAD = 20
"""So many files after the last reported batch stay: some of them may be in a batch that is planned."""
SHOWN = 5
"""The number of different failures that are printed."""


@dataclass(frozen=True)
class Group:
    """Queries of one project: its storage, the processes that are killed, and further settings."""

    name: str
    scenarios: tuple[Scenario, ...]
    kinds: tuple[str, ...]
    settings: Mapping[str, str]


GROUPS = (
    Group(
        "hdfs",
        (Scenario("interval", "files"), Scenario("interval", "kafka"), Scenario("table", "postgres"),
         Scenario("group", "files")),
        ("executor", "worker", "python", "daemon", "driver", "namenode", "executor", "python", "executor"),
        SPECULATION,
    ),
    # The rows in a window depend on the batches, and a killed driver may merge two: so no driver is killed here.
    Group(
        "s3",
        (Scenario("window", "files"), Scenario("interval", "postgres"), Scenario("group", "kafka"),
         Scenario("table", "files")),
        ("executor", "worker", "python", "daemon", "executor", "python", "executor"),
        DYNAMIC,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Pace:
    """The number of kills, the time after which there are no more, and the seconds between two of them."""

    kills: int
    seconds: float
    pause: tuple[float, float]
    patience: float
    """The seconds for which all queries are waited for."""


@dataclass
class Outcome:
    """The kills of a group, how its driver ended, the seconds that losses cost, and rows that are wrong."""

    kills: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    costs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    slow: Counter[str] = field(default_factory=Counter[str])
    """Kills after which a query had not had two batches when the patience was over."""
    batches: dict[str, int] = field(default_factory=dict[str, int])
    """The last batch of each query."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """The messages of failed queries that were restarted."""
    rows: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """By query: the rows of the undisturbed run, those that are lost, and those that are doubled."""

    @property
    def is_right(self) -> bool:
        """Whether every row is there exactly once."""
        return bool(self.rows) and all(count and not lost + doubled for count, lost, doubled in self.rows.values())


def make_project(
    group: Group, folder: Path, files: int, backends: Servers, storage: str, conf: Mapping[str, str]
) -> None:
    """Write one project with the queries of a group, whose sources and sinks have unique names."""
    is_calm = folder.name == "calm"
    folder.mkdir(parents=True)
    (folder / "sql").mkdir()
    for number, scenario in enumerate(group.scenarios):
        made = folder / f"made-{number}"
        scenario.make(made, files, backends.address(scenario.sink), table_name(group, number, folder), is_calm=is_calm)
        text = (made / "sql" / "query.sql").read_text()
        text = re.sub(r"(?<![/\w])(orders|deliveries|result)\b", rf"\g<1>_{number}", text)
        text = text.replace("'data/", f"'made-{number}/data/").replace(f"'result_{number}'", f"'made-{number}/result'")
        (folder / "sql" / f"{number}.sql").write_text(text)
    lines = ["name: faults", f"storage: {storage}", *(["configuration:"] if conf else [])]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in conf.items()]
    (folder / "watersmeet.yml").write_text("\n".join(lines) + "\n")


def table_name(group: Group, number: int, folder: Path) -> str:
    """The table or the topic of a query."""
    return f"{group.name}_{number}_{folder.name}"


def rows_of(group: Group, number: int, folder: Path, backends: Servers) -> Rows:
    """The rows of a query of a project."""
    scenario = group.scenarios[number]
    return scenario.rows(folder / f"made-{number}", backends.address(scenario.sink), table_name(group, number, folder))


class Killer:
    """Kills processes of a cluster that run for one driver."""

    def __init__(self, cluster: Standalone, hdfs: Hdfs | None, chance: random.Random) -> None:
        self.cluster, self.hdfs, self.chance = cluster, hdfs, chance

    def kill(self, kind: str) -> bool:
        """Kill a process of a kind, and restart what an operator would; returns whether there was one."""
        if kind == "namenode":
            assert self.hdfs is not None
            self.hdfs.kill()
            self.hdfs.start(is_new=False)
            return True
        if kind == "worker":
            number = self.chance.choice([*self.cluster.workers])
            worker = self.cluster.workers[number]
            worker.kill()
            worker.wait()
            self.cluster.start_worker(number)
            return True
        victims = [pid for pid, its in self.processes() if its == kind]
        if not victims:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(victims), signal.SIGKILL)
        return True

    def processes(self) -> Iterator[tuple[int, str]]:
        """The executors, the daemons and the Python workers, which are children of a daemon."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if not str((process / "cwd").readlink()).startswith(str(self.cluster.folder)):
                    continue
                command = (process / "cmdline").read_text("utf-8", "replace")
                if "CoarseGrainedExecutorBackend" in command:
                    yield int(process.name), "executor"
                elif "daemon" in command:
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    above = Path(f"/proc/{parent}/cmdline").read_text("utf-8", "replace")
                    yield int(process.name), "daemon" if "CoarseGrainedExecutorBackend" in above else "python"


class Trial:
    """A group that runs on the cluster with kills, whose rows are compared with those of an undisturbed run."""

    def __init__(self, group: Group, folder: Path, backends: Servers, killer: Killer) -> None:
        self.group, self.backends, self.killer = group, backends, killer
        self.calm, self.disturbed = folder / "calm", folder / "disturbed"
        self.outcome, self.starts, self._began = Outcome(), 0, time.monotonic()
        self._runs: list[Run] = []

    def run(self, storage: str, conf: Mapping[str, str], files: int, pace: Pace) -> Outcome:
        """Kill, let the queries end, and compare."""
        make_project(self.group, self.calm, files, self.backends, "storage", {})
        make_project(self.group, self.disturbed, files, self.backends, storage, {**CONF, **conf, **self.group.settings})
        try:
            self._report("starts on the cluster")
            self._disturb(files, pace)
            self._report("no more kills; the rest of the input is read")
            self.trim()
            self._finish()
            self._report("the same input is read without kills")
            run = self._run(self.calm, "--end")
            # A window has its batches one by one here, too.
            code = run.wait(4 * END_SECONDS)
        finally:
            # Of an interrupted trial, too.
            for started in self._runs:
                if started.is_running:
                    started.kill("group")
        if code != 0:
            raise SystemExit(f"{self.group.name} fails undisturbed: {run.errors[-2000:]}")
        for number, scenario in enumerate(self.group.scenarios):
            expected, actual = (
                rows_of(self.group, number, project, self.backends) for project in (self.calm, self.disturbed)
            )
            self.outcome.rows[scenario.name] = (
                expected.total(), (expected - actual).total(), (actual - expected).total(),
            )  # fmt: skip
        return self.outcome

    def _disturb(self, files: int, pace: Pace) -> None:
        """Run with kills until there were all, or the time is over, or a query has read nearly all files."""
        outcome, chance = self.outcome, self.killer.chance
        run, until = self._start(), time.monotonic() + pace.seconds
        run.next_batch(BATCH_SECONDS)
        deck: list[str] = []
        while outcome.kills.total() < pace.kills and time.monotonic() < until:
            time.sleep(chance.uniform(*pace.pause))
            run = self._restart_ended(run)
            if max(outcome.batches.values(), default=0) > files - 2 * AHEAD:
                self._report("too few files: there are no more kills")
                break
            deck = deck or chance.sample(self.group.kinds, len(self.group.kinds))
            kind, began = deck.pop(), time.monotonic()
            if kind == "driver":
                run.kill("group")
                run.wait(30)
                run = self._start()
            elif not self.killer.kill(kind):
                continue
            outcome.kills[kind] += 1
            cost = self._wait_for_all(run, began, pace.patience)
            if cost is not None:
                outcome.costs.setdefault(kind, []).append(cost)
            else:
                outcome.slow[kind] += 1
            took = f"two batches after {cost:.1f} s" if cost is not None else "slow"
            self._report(f"kill {outcome.kills.total()} of {pace.kills}: {kind}; {took}; at batches {self._progress}")
        # Directly after a batch the next one is planned, and in the middle of that two batches could become one.
        batches = {**run.last_batches}
        while run.is_running and run.last_batches == batches and time.monotonic() < until + BATCH_SECONDS:
            time.sleep(0.05)
        time.sleep(0.5)
        run.kill("group")
        run.wait(60)
        outcome.batches |= run.last_batches

    def _start(self) -> Run:
        """Start a driver on the cluster."""
        self.starts += 1
        return self._run(self.disturbed, "--master", self.killer.cluster.master, "--restart", "on-failure")

    def _run(self, project: Path, *options: str) -> Run:
        self._runs.append(Run(project, *options))
        return self._runs[-1]

    def _restart_ended(self, run: Run) -> Run:
        """The run, or another one if it has ended by itself."""
        if run.is_running:
            return run
        code = run.process.poll()
        self.outcome.ends[str(code)] += 1
        self._report(f"the driver has ended with {code}, and is started again: {' '.join(run.reasons)[:300]}")
        if code not in RETRY_CODES:
            print(run.errors[-1500:], file=sys.stderr)
        run = self._start()
        run.next_batch(BATCH_SECONDS)
        return run

    def _wait_for_all(self, run: Run, began: float, patience: float) -> float | None:
        """The seconds from a kill until a query has had two batches, as a median of the queries.

        The first of the two may have been written when the process was killed. None: not all queries had two within
        the patience. Before the first batch of any query, it waits longer.
        """
        while run.is_running:
            since: dict[str, list[float]] = {}
            for moment, query in run.arrivals[:]:
                if moment > began:
                    since.setdefault(query, []).append(moment - began)
            self.outcome.batches |= run.last_batches
            second = [moments[1] for moments in since.values() if len(moments) > 1]
            if len(second) == len(self.group.scenarios):
                return statistics.median(second)
            if time.monotonic() - began > (patience if since else BATCH_SECONDS):
                break
            time.sleep(0.1)
        return None

    @property
    def _progress(self) -> str:
        return ", ".join(str(batch) for _, batch in sorted(self.outcome.batches.items()))

    def trim(self) -> None:
        """Delete the files that no query has come near, from the undisturbed project too."""
        for number in range(len(self.group.scenarios)):
            last = self.outcome.batches.get(f"result_{number}", -1) + self.starts + AHEAD
            for project in (self.calm, self.disturbed):
                for file in (project / f"made-{number}" / "data").glob("*/*.json"):
                    if int(file.stem) > last:
                        file.unlink()

    def _finish(self) -> None:
        """Read the rest of the input, in local mode."""
        for _ in range(3):
            last = self._run(self.disturbed, "--end")
            code = last.wait(END_SECONDS)
            if code == 0:
                break
            self.outcome.ends[f"last: {code}"] += 1
            print(last.errors[-1500:], file=sys.stderr)
        said = (self.disturbed / "said.txt").read_text(errors="replace")
        self.outcome.failures.update(re.findall(r": failed, restarting in .*?\. (.*)", said))

    def _report(self, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        print(f"{self.group.name} {seconds // 60:3}:{seconds % 60:02} {text}", flush=True)


def on_class_path(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings whose jars are not copied to executors: those of S3 have 700 MB, and each new executor would do so."""
    jars = settings["spark.jars"].replace(",", os.pathsep)
    paths = {f"spark.{process}.extraClassPath": jars for process in ("driver", "executor")}
    return {name: value for name, value in settings.items() if name != "spark.jars"} | paths


@contextmanager
def start_storages(folder: Path, names: Sequence[str]) -> Generator[dict[str, tuple[str, dict[str, str], Hdfs | None]]]:
    """Start the storages of groups: address, settings, and the HDFS whose NameNode can be killed."""
    made: dict[str, tuple[str, dict[str, str], Hdfs | None]] = {}
    hdfs: Hdfs | None = None
    buckets = None
    try:
        if "hdfs" in names:
            (folder / "hdfs-server").mkdir()
            hdfs = Hdfs(folder / "hdfs-server")
            hdfs.start()
            made["hdfs"] = (f"{hdfs.url}/faults", {}, hdfs)
        if "s3" in names:
            (folder / "s3-server").mkdir()
            buckets = start_s3(folder / "s3-server")
            bucket = next(buckets)
            made["s3"] = (f"{bucket.url}/faults", on_class_path(bucket.settings), None)
        yield made
    finally:
        if hdfs is not None and hdfs.process is not None:
            stop_process(hdfs.process)
        if buckets is not None:
            next(buckets, None)


def print_outcome(name: str, outcome: Outcome) -> None:
    """Print the kills by kind with the median of their cost, the failures, and the rows of each query."""
    for kind, count in sorted(outcome.kills.items()):
        costs = outcome.costs.get(kind, [])
        times = f"median {statistics.median(costs):.0f} s, at most {max(costs):.0f} s" if costs else "not measured"
        slow = f"; {outcome.slow[kind]} were slower" if outcome.slow[kind] else ""
        print(f"{name}: {count} x {kind}; until all queries had two batches: {times}{slow}")
    print(f"{name}: {outcome.kills.total()} kills; drivers that ended, by exit code: {dict(outcome.ends)}")
    print(f"{name}: {outcome.failures.total()} times a query failed and was restarted")
    for failure, count in outcome.failures.most_common(SHOWN):
        print(f"{name}:   {count} x {failure[:200]}")
    for query, (rows, lost, doubled) in outcome.rows.items():
        print(f"{name}: {query}: {rows} rows, {lost} lost, {doubled} doubled")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested groups with kills, and print the outcome of their rows."""
    parser = argparse.ArgumentParser(
        "python -m faults.cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [group.name for group in GROUPS]
    parser.add_argument("--kills", type=int, default=100, help="of each project")
    parser.add_argument("--minutes", type=float, default=240.0, help="the time after which a project has no more kills")
    parser.add_argument("--files", type=int, default=3000, help="files of each source, a batch each, at most")
    parser.add_argument("--pause", type=float, nargs=2, default=(1.0, 5.0), help="seconds before each kill")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds for which all queries are waited for")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STORAGE")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kinds and moments of kills")
    parser.add_argument("--folder", type=Path, help="a new folder for all files, which stay there")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also where a shell has started it in the background, and ignores the first one for it.
        signal.signal(number, signal.default_int_handler)
    outcomes: list[Outcome] = []
    with TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as temporary, servers() as backends:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with start_storages(folder, options.only) as storages:
            for group in (group for group in GROUPS if group.name in options.only):
                place = folder / group.name
                storage, conf, hdfs = storages[group.name]
                with start_standalone(place / "cluster", environ=MASTER) as cluster:
                    killer = Killer(cluster, hdfs, random.Random(options.seed))
                    pace = Pace(options.kills, options.minutes * 60, tuple(options.pause), options.patience)
                    outcome = Trial(group, place, backends, killer).run(storage, conf, options.files, pace)
                outcomes.append(outcome)
                print_outcome(group.name, outcome)
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
