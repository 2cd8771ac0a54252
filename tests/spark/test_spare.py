"""The process that stands ready for starts of queries: a help, never a condition."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from watersmeet.spark.private.asking import SOCKET, SPARE
from watersmeet.spark.private.python import worker_python
from watersmeet.spark.private.spare import WORKER

pytestmark = pytest.mark.spark

STARTS = """
import os, sys
from pathlib import Path
from watersmeet.spark.private import spare
spare.start_spare(os.environ, Path(sys.argv[1]))
spare.start_spare(os.environ, Path(sys.argv[1]))
((folder, process),) = spare._kept.items()
print(folder, process.pid, flush=True)
sys.stdin.read()
"""
SECRET = b"\0\0\0\x06secret"
"""What a worker says first, as Spark expects it."""

Starter = subprocess.Popen[str]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[Starter, Path, int]]:
    """A process that has started another one, which stands ready in that folder and has that number."""
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, pid = process.stdout.readline().split()
        while not (Path(folder) / SOCKET).exists():
            time.sleep(0.02)
        yield process, Path(folder), int(pid)
        process.kill()


def is_gone(pid: int, folder: Path) -> bool:
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return not folder.exists()
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(started: tuple[Starter, Path, int], end: signal.Signals) -> None:
    process, folder, pid = started
    assert folder.stat().st_mode & 0o077 == 0, "requests carry a secret"
    process.send_signal(end)
    process.communicate()
    assert is_gone(pid, folder)


@pytest.mark.parametrize("state", ["ready", "killed", "stopped", "of others"])
def test_whatever_becomes_of_it_spark_has_its_worker(
    started: tuple[Starter, Path, int], state: Literal["ready", "killed", "stopped", "of others"], tmp_path: Path
) -> None:
    _, folder, pid = started
    if state == "killed":
        # Nobody waits for it: it is a zombie now, with a number that is still taken.
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
        environ = {**os.environ, **asked, SPARE: str(folder)}
        with subprocess.Popen([python, "-m", WORKER], env=environ, stderr=subprocess.DEVNULL) as command:
            connected, _ = spark.accept()
            with connected:
                assert connected.recv(len(SECRET), socket.MSG_WAITALL) == SECRET
                # The command is the worker itself, unless another one took over.
                assert (command.wait(60) if state == "ready" else command.poll()) == (0 if state == "ready" else None)
            command.kill()
        assert (folder / SOCKET).exists() == (state != "stopped"), "who has not answered is not asked again"
    os.kill(pid, signal.SIGKILL)
