"""Two drivers on one storage: the second is refused, or takes over from one that is dead or silent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.exercise import QUICK
from tests.cluster.processes import LONG
from tests.cluster.s3 import Bucket

pytestmark = [pytest.mark.spark, LONG, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SECONDS, ATTEMPTS = 150, 20
HOST = ("unshare", "--uts", "--pid", "--fork", "--mount-proc")
SCRIPT = """
CREATE STREAM orders (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at) USING json OPTIONS (path 'orders');
CREATE STREAM deliveries (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at) USING json OPTIONS (path 'deliveries');
CREATE SINK joined USING json OPTIONS (path 'joined');
INSERT INTO joined SELECT STREAM o.id FROM orders o JOIN deliveries d
  ON o.id = d.id AND d.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR;
"""


@dataclass
class Drivers:
    """The drivers of a project, each as on a host of its own."""

    project: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def start(self, host: str, *options: str) -> subprocess.Popen[bytes]:
        """A driver on a host of that name, which does not see the processes of others."""
        program = (
            f"hostname {host} && exec {sys.executable} -m tests.cluster.driver run {self.project} {' '.join(options)}"
        )
        isolated = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", program]
        with self.log(host).open("wb") as log:
            # Into a group of its own, so that all of the host stops with it.
            process = subprocess.Popen(
                isolated, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return process

    def log(self, host: str) -> Path:
        """The output of the driver on a host."""
        return self.project / f"{host}.log"

    def refusal(self, host: str) -> str:
        """The output of a driver that ends at once."""
        process = self.start(host, "--once")
        process.wait(SECONDS)
        return self.log(host).read_text()

    def take_over(self, host: str) -> subprocess.Popen[bytes]:
        """A driver that is started again until it is not refused."""
        log = self.log(host)
        for _ in range(ATTEMPTS):
            process = self.start(host)
            wait_for(partial(self.is_going, process, log), log)
            if process.poll() is None:
                return process
            assert "QUERY_IN_USE" in log.read_text(), log.read_text()
        raise AssertionError("the lease did not expire")

    def is_going(self, process: subprocess.Popen[bytes], log: Path) -> bool:
        """Whether a driver has ended, or has had a batch."""
        return process.poll() is not None or "batch" in log.read_text()

    def write(self, id_: int) -> None:
        """A row for each side."""
        for number, table in enumerate(("orders", "deliveries")):
            row = {"id": id_, "at": f"2024-01-01 10:{id_:02}:0{number}"}
            hidden = self.project / f"{table}-{id_}"
            hidden.write_text(json.dumps(row) + "\n")
            hidden.rename(self.project / table / f"{id_}.json")

    def ids(self) -> list[int]:
        """The rows that have been delivered."""
        files = list((self.project / "joined").glob("*.json"))
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    def wait_for_ids(self, ids: list[int], host: str) -> None:
        """Wait until so much has been delivered."""
        wait_for(lambda: len(self.ids()) >= len(ids), self.log(host))
        assert self.ids() == ids


def batches(log: str) -> set[str]:
    """The batches that a driver says it has finished."""
    return {*re.findall(r"batch (\d+)", log)}


def wait_for(is_done: Callable[[], bool], log: Path) -> None:
    """Wait for what a driver is to do."""
    until = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < until, log.read_text("utf-8", "replace")[-3000:]
        time.sleep(0.2)


def signal_python(isolated: int, number: int) -> None:
    """Send a signal to the Python of a driver alone, given what isolates it."""
    [child] = Path(f"/proc/{isolated}/task/{isolated}/children").read_text().split()
    os.kill(int(child), number)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    """A project whose storage is not set yet, and drivers that end with the test."""
    if subprocess.run([*HOST, "hostname", "probe"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot make hosts with `unshare`")
    project = tmp_path / "shop"
    for folder in ("sql", "orders", "deliveries"):
        (project / folder).mkdir(parents=True)
    (project / "sql" / "joined.sql").write_text(SCRIPT)
    drivers = Drivers(project)
    try:
        yield drivers
    finally:
        for process in drivers.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def exercise(drivers: Drivers, url: str, settings: Mapping[str, str], paused: Callable[[int, int], None]) -> None:
    """A driver is refused, one that is dead is replaced, and one that wakes up stops."""
    lines = ["name: shop", f"storage: {url}", "libraries:", "- glob:", "    include: sql/**", "configuration:"]
    conf = {**QUICK, **settings}
    lines += [f"  {name}: {json.dumps(value)}" for name, value in conf.items()]
    (drivers.project / "watersmeet.yml").write_text("\n".join(lines) + "\n")
    drivers.write(1)
    first = drivers.start("first")
    drivers.wait_for_ids([1], "first")
    refused = drivers.refusal("other")
    assert "QUERY_IN_USE" in refused
    assert "on first, since 20" in refused
    drivers.write(2)
    # In the middle of the batch, or before it: whatever was written of it must not come twice.
    time.sleep(2)
    os.killpg(first.pid, signal.SIGKILL)
    # A driver that takes over is known by a batch, and the one before may have delivered all that there was.
    drivers.write(3)
    second = drivers.take_over("second")
    drivers.wait_for_ids([1, 2, 3], "second")
    paused(second.pid, signal.SIGSTOP)
    drivers.write(4)
    drivers.take_over("third")
    drivers.wait_for_ids([1, 2, 3, 4], "third")
    printed = drivers.log("second").read_text()
    drivers.write(5)
    paused(second.pid, signal.SIGCONT)
    assert second.wait(SECONDS) == 4
    after = drivers.log("second").read_text().removeprefix(printed)
    assert "LEASE_LOST" in after
    # It may say what it had finished before it was paused, and finishes nothing that the third has.
    assert not batches(after.partition("LEASE_LOST")[0]) & batches(drivers.log("third").read_text()), after
    drivers.wait_for_ids([1, 2, 3, 4, 5], "third")


def test_two_drivers_on_s3(drivers: Drivers, s3: Bucket) -> None:
    exercise(drivers, f"{s3.url}/drivers", s3.settings, os.killpg)


def test_two_drivers_on_hdfs(drivers: Drivers, hdfs: str) -> None:
    # Spark goes on by itself while Python is paused.
    exercise(drivers, f"{hdfs}/drivers", {}, signal_python)
