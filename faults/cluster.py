"""``make kills``: processes of a cluster are killed at random moments, and the rows compared with an undisturbed run.

A standalone cluster on loopback has two workers. One project with four queries has its storage on HDFS, another one on
S3; they write files, Postgres and Kafka. Executors, workers, Python workers, daemons, the driver and the NameNode are
killed; each kill affects all queries of a project. One project runs with speculation, one with dynamic allocation.
The driver is started again after it was killed or has ended, and restarts queries that fail, which is counted. The last
run, to the end of the input, is in local mode: it needs no executors, and continues from their checkpoints.

    .venv/bin/python -m faults.cluster --kills 40 --only s3
    .venv/bin/python -m faults.cluster --kills 8 --files 60 --pause 2 6 --minutes 3     a round of some minutes
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
        ("executor", "executor", "worker", "python", "daemon", "driver", "namenode"),
        SPECULATION,
    ),
    # The rows in a window depend on the batches, and a killed driver may merge two: so no driver is killed here.
    Group(
        "s3",
        (Scenario("window", "files"), Scenario("interval", "postgres"), Scenario("group", "kafka"),
         Scenario("table", "files")),
        ("executor", "executor", "worker", "python", "daemon"),
        DYNAMIC,
    ),
)  # fmt: skip


@dataclass
class Outcome:
    """The kills of a group, how its driver ended, the seconds that losses cost, and rows that are wrong."""

    kills: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    costs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
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


def disturb(
    group: Group, folder: Path, files: int, backends: Servers, killer: Killer, storage: str, conf: Mapping[str, str],
    kills: int, seconds: float, pause: tuple[float, float],
) -> Outcome:  # fmt: skip
    """Run a group undisturbed in local mode, then on the cluster with kills, and compare the rows."""
    calm, disturbed = folder / "calm", folder / "disturbed"
    make_project(group, calm, files, backends, "storage", {})
    make_project(group, disturbed, files, backends, storage, {**CONF, **conf, **group.settings})
    run = Run(calm, "--end")
    if run.wait(END_SECONDS) != 0:
        raise SystemExit(f"{group.name} fails undisturbed: {run.errors[-2000:]}")
    print(f"{group.name}: the undisturbed run has ended", flush=True)
    outcome, until = Outcome(), time.monotonic() + seconds
    run = start(disturbed, killer)
    run.next_batch(BATCH_SECONDS)
    for _ in range(kills):
        if time.monotonic() > until:
            break
        time.sleep(killer.chance.uniform(*pause))
        run = restart_ended(run, disturbed, killer, outcome)
        kind = killer.chance.choice(group.kinds)
        began = time.monotonic()
        if kind == "driver":
            run.kill("group")
            run.wait(30)
            run = start(disturbed, killer)
        elif not killer.kill(kind):
            continue
        outcome.kills[kind] += 1
        print(f"{group.name}: {kind}", flush=True)
        cost = wait_for_all(run, began, len(group.scenarios))
        if cost is not None:
            outcome.costs.setdefault(kind, []).append(cost)
    run.kill("group")
    run.wait(60)
    for _ in range(3):
        last = Run(disturbed, "--end")
        code = last.wait(END_SECONDS)
        if code == 0:
            break
        outcome.ends[f"last: {code}"] += 1
        print(last.errors[-1500:], file=sys.stderr)
    outcome.ends["a query failed and was restarted"] = (disturbed / "said.txt").read_text().count(": failed")
    for number, scenario in enumerate(group.scenarios):
        expected, actual = (rows_of(group, number, project, backends) for project in (calm, disturbed))
        outcome.rows[scenario.name] = (expected.total(), (expected - actual).total(), (actual - expected).total())
    return outcome


def start(project: Path, killer: Killer) -> Run:
    """Start a driver on the cluster."""
    return Run(project, "--master", killer.cluster.master, "--restart", "on-failure")


def restart_ended(run: Run, project: Path, killer: Killer, outcome: Outcome) -> Run:
    """The run, or another one if it has ended by itself."""
    if run.is_running:
        return run
    code = run.process.poll()
    outcome.ends[str(code)] += 1
    if code not in RETRY_CODES:
        print(run.errors[-1500:], file=sys.stderr)
    run = start(project, killer)
    run.next_batch(BATCH_SECONDS)
    return run


def wait_for_all(run: Run, began: float, queries: int) -> float | None:
    """The seconds from a kill until a query has had two batches, as a median of the queries; None: the run has ended.

    The first of the two may have been written when the process was killed. Queries without input are not counted.
    """
    until = began + BATCH_SECONDS
    while time.monotonic() < until and run.is_running:
        since: dict[str, list[float]] = {}
        for moment, query in run.arrivals[:]:
            if moment > began:
                since.setdefault(query, []).append(moment - began)
        second = [moments[1] for moments in since.values() if len(moments) > 1]
        if len(second) == queries:
            return statistics.median(second)
        time.sleep(0.2)
    return None


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
            made["s3"] = (f"{bucket.url}/faults", bucket.settings, None)
        yield made
    finally:
        if hdfs is not None and hdfs.process is not None:
            stop_process(hdfs.process)
        if buckets is not None:
            next(buckets, None)


def print_outcome(name: str, outcome: Outcome) -> None:
    """Print the kills by kind with the median of their cost, and the rows of each query."""
    for kind, count in sorted(outcome.kills.items()):
        costs = outcome.costs.get(kind, [])
        median = (
            f"two batches after a median of {statistics.median(costs):.0f} s, at most {max(costs):.0f} s"
            if costs
            else ""
        )
        print(f"{name}: {count} x {kind}; {median}")
    print(f"{name}: {outcome.kills.total()} kills; ends by exit code: {dict(outcome.ends)}")
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
    parser.add_argument("--files", type=int, default=1500, help="files of each source, a batch each")
    parser.add_argument("--pause", type=float, nargs=2, default=(8.0, 20.0), help="seconds between two kills")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STORAGE")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kinds and moments of kills")
    parser.add_argument("--folder", type=Path, help="a new folder for all files, which stay there")
    options = parser.parse_args(arguments)
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
                    outcome = disturb(
                        group,
                        place,
                        options.files,
                        backends,
                        killer,
                        storage,
                        conf,
                        options.kills,
                        options.minutes * 60,
                        options.pause,
                    )
                outcomes.append(outcome)
                print_outcome(group.name, outcome)
    sys.exit(0 if all(outcome.is_right for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
