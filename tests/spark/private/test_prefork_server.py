"""The process that stands ready for starts of queries: a help, never a condition."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from watersmeet.spark.private.jvm import worker_python
from watersmeet.spark.private.prefork_client import PREFORK_DIR, SOCKET
from watersmeet.spark.private.prefork_server import DAEMON, WORKER, spark_worker_environ

pytestmark = pytest.mark.spark

STARTS = """
import os, sys
from pathlib import Path
from watersmeet.spark.private import prefork_server
prefork_server.start_prefork_server(os.environ, Path(sys.argv[1]))
prefork_server.start_prefork_server(os.environ, Path(sys.argv[1]))
((folder, process),) = prefork_server._processes.items()
print(folder, process.pid, flush=True)
sys.stdin.read()
"""
SECRET = b"\0\0\0\x06secret"
"""What a worker says first, as Spark expects it."""

Starter = subprocess.Popen[str]


@pytest.fixture
def ready_process(tmp_path: Path) -> Iterator[tuple[Starter, Path, int]]:
    """A process that has started another one, which stands ready in that folder and has that number."""
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, pid = process.stdout.readline().split()
        while not (Path(folder) / SOCKET).exists():
            time.sleep(0.02)
        try:
            yield process, Path(folder), int(pid)
        finally:
            process.kill()
            # One that is stopped would never see that.
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def ends(pid: int) -> bool:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_process_that_started_it(
    ready_process: tuple[Starter, Path, int], end: signal.Signals
) -> None:
    process, folder, pid = ready_process
    assert folder.stat().st_mode & 0o077 == 0, "requests carry a secret"
    process.send_signal(end)
    process.communicate()
    assert ends(pid)
    assert not folder.exists()


@pytest.mark.parametrize("state", ["ready", "killed", "stopped", "of others"])
def test_spark_has_its_worker_whatever_becomes_of_the_server(
    ready_process: tuple[Starter, Path, int], state: Literal["ready", "killed", "stopped", "of others"], tmp_path: Path
) -> None:
    _, folder, pid = ready_process
    if state == "killed":
        # No one waits for it: it is a zombie now, with a number that is still taken.
        os.kill(pid, signal.SIGKILL)
    elif state == "stopped":
        os.kill(pid, signal.SIGSTOP)
    elif state == "of others":
        folder.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as spark:
        spark.settimeout(60)
        port = spark.getsockname()[1]
        asked = {"PYTHON_WORKER_FACTORY_PORT": str(port), "PYTHON_WORKER_FACTORY_SECRET": "secret"}
        python = worker_python({**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
        environ = {**os.environ, **asked, PREFORK_DIR: str(folder)}
        with subprocess.Popen([python, "-m", WORKER], env=environ, stderr=subprocess.DEVNULL) as command:
            connected, _ = spark.accept()
            with connected:
                assert connected.recv(len(SECRET), socket.MSG_WAITALL) == SECRET
                # The command is the worker itself, unless another one took over.
                assert (command.wait(60) if state == "ready" else command.poll()) == (0 if state == "ready" else None)
            command.kill()
        assert (folder / SOCKET).exists() == (state != "stopped"), "who has not answered is not asked again"


def as_spark_asks(starter: Starter, folder: Path) -> dict[str, str]:
    """The environment in which Spark starts a daemon in a session that the process has made."""
    told = Path(f"/proc/{starter.pid}/environ").read_bytes().split(b"\0")
    made = dict(os.fsdecode(variable).split("=", 1) for variable in told if variable)
    return spark_worker_environ(made) | {PREFORK_DIR: str(folder), "PYTHON_WORKER_FACTORY_SECRET": "secret"}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])


@pytest.mark.parametrize("state", ["ready", "killed", "stopped", "of another environment"])
def test_spark_has_its_daemon_whatever_becomes_of_the_server(
    ready_process: tuple[Starter, Path, int],
    state: Literal["ready", "killed", "stopped", "of another environment"],
    tmp_path: Path,
) -> None:
    starter, folder, pid = ready_process
    environ = as_spark_asks(starter, folder)
    if state == "killed":
        os.kill(pid, signal.SIGKILL)
    elif state == "stopped":
        os.kill(pid, signal.SIGSTOP)
    elif state == "of another environment":
        environ["ARROW_IO_THREADS"] = "3"
    python = worker_python({**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    command = [python, "-m", DAEMON, "pyspark.worker"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with subprocess.Popen(
        command, env=environ, cwd=elsewhere, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port), 60) as spark:
            worker = int.from_bytes(spark.recv(4, socket.MSG_WAITALL), "big")
            daemon = parent(worker)
            # A fork of the one that stands ready, else the command itself.
            assert (parent(daemon) if state == "ready" else daemon) == (pid if state == "ready" else process.pid)
            assert Path(f"/proc/{worker}/cwd").resolve() == elsewhere
            told = Path(f"/proc/{worker}/fd/2").readlink()
            assert told == Path(f"/proc/{process.pid}/fd/2").readlink(), "what a worker says goes where Spark reads it"
        assert process.poll() is None, "Spark would take the end of the command for that of the daemon"
        process.stdin.close()
        process.wait(60)
    assert ends(daemon)


def test_a_daemon_ends_when_spark_destroys_its_command(
    ready_process: tuple[Starter, Path, int], tmp_path: Path
) -> None:
    starter, folder, _ = ready_process
    environ = as_spark_asks(starter, folder)
    python = worker_python({**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    command = [python, "-m", DAEMON, "pyspark.worker"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port), 60) as spark:
            daemon = parent(int.from_bytes(spark.recv(4, socket.MSG_WAITALL), "big"))
        # As Java does it: the signal, then the streams.
        process.terminate()
    assert ends(daemon)
