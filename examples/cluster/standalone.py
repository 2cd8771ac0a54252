"""A standalone Spark cluster on this machine, for trying things out: a master and workers that listen on loopback only.

It is started from the package PySpark, which has no ``start-master.sh``: the same classes through ``spark-class``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from watersmeet.spark.session.java import prepare_java

HOST = "127.0.0.1"
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.2
DRIVER = {
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""What a driver on this cluster is set to: the executors find it on loopback, and there is a shard per core."""


class Standalone:
    """A master and its workers; a worker that was killed can be started again."""

    def __init__(self, folder: Path, cores: int, memory: str, environ: Mapping[str, str]) -> None:
        self.folder, self.cores, self.memory = folder, cores, memory
        self.port, self.ui_port = free_ports(2)
        self.settings = spark_environment(folder) | dict(environ)
        self.started: list[subprocess.Popen[bytes]] = []
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def master(self) -> str:
        """The URL of the master."""
        return f"spark://{HOST}:{self.port}"

    def start_master(self) -> None:
        """Start the master."""
        listens = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.ui_port)]
        self.started.append(_start("master.Master", listens, self.folder / "master.log", self.settings))

    def start_worker(self, number: int) -> None:
        """Start the worker of that number."""
        has = ["--host", HOST, "--webui-port", "0", "--cores", str(self.cores), "--memory", self.memory]
        where = ["--work-dir", str(self.folder / f"worker-{number}"), self.master]
        log = self.folder / f"worker-{number}.log"
        self.workers[number] = _start("worker.Worker", [*has, *where], log, self.settings)
        self.started.append(self.workers[number])


@contextmanager
def start_standalone(
    folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", environ: Mapping[str, str] | None = None
) -> Generator[Standalone]:
    """A master and workers with so many cores and so much memory each.

    Whatever happens inside, all its processes are stopped. ``folder`` holds their logs and what the executors write;
    ``environ`` is added to the environment of master, workers and executors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Standalone(folder, cores, memory, environ or {})
    try:
        cluster.start_master()
        for number in range(1, workers + 1):
            cluster.start_worker(number)
        _wait_until_ready(f"http://{HOST}:{cluster.ui_port}/json/", workers, cluster.started, folder)
        yield cluster
    finally:
        stop(cluster.started)


@contextmanager
def standalone_cluster(
    folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", environ: Mapping[str, str] | None = None
) -> Generator[str]:
    """The URL of the master of a cluster, as `start_standalone` makes one."""
    with start_standalone(folder, workers, cores, memory, environ) as cluster:
        yield cluster.master


def package_zip(target: Path) -> Path:
    """The installed package as an archive that executors can import it from, with all that is not Python in it."""
    spec = find_spec("watersmeet")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(package.parent))
    return target


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def spark_class() -> str:
    """The command of PySpark that starts a class of Spark."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "spark-class")


def spark_environment(folder: Path) -> dict[str, str]:
    """The environment of a process of Spark that listens on loopback only and writes into ``folder``."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_CONF_DIR")}
    prepare_java(environ)
    return environ | {
        # The web pages listen where this says; --host does not move them.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        # A port that is taken meanwhile is an error: on the next one, nobody would look for the master.
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false "
        # Master and workers do little: compiling their code well would cost more than it saves.
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": sys.executable,
    }


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop processes that lead a group of their own, last started first, and with them what they started."""
    for process in reversed(processes):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(name: str, arguments: list[str], log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [spark_class(), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(environ), start_new_session=True
        )


def _wait_until_ready(page: str, workers: int, started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until the master knows all workers; its page tells that to machines as well."""
    # A proxy that the environment names is not asked for pages of this machine.
    opener = build_opener(ProxyHandler({}))
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if any(process.poll() is not None for process in started):
            raise RuntimeError(f"a process of the cluster has ended; its log is in {folder}")
        with suppress(URLError, ConnectionError, TimeoutError), opener.open(page, timeout=5) as answer:
            if json.load(answer)["aliveworkers"] == workers:
                return
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"the cluster was not ready after {PATIENCE_SECONDS} s; its logs are in {folder}")
