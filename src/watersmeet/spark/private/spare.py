"""A Python process that stands ready: it forks what Spark would else start anew for every query.

At the start of a query Spark asks a Python process of its own which state variables the operator has. To start one and
to import PySpark takes most of the start. Where we make the session, one process imports it once and is then copied:
the command that Spark runs as Python (see `python`) hands the request over through a pipe and is done. If that process
is gone, Spark starts one as ever.

Why: Spark has no setting to keep that process. Uses: the name of the module that it runs
(``transform_with_state_driver_worker``), its ``main``, ``pyspark.worker_util`` and the variables of the environment
that tell a worker how to reach Spark. Seen in: 4.3.0. Where one of them is missing the process ends at its
first import, and the command that looks for it starts Python as ever.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""What Spark runs at the start of a query."""
PIPE, PROCESS = "WATERSMEET_SPARE", "WATERSMEET_SPARE_PID"
"""Where requests go, and who reads them: what the command is told through its environment."""
REQUEST = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH")
"""What a request says, separated by tabs: how to reach Spark."""
_ONCE = (WORKER, "numpy", "pyarrow.compute", "watersmeet.joins.interval.operator", "watersmeet.spark.exchange.stateful")


def start_spare(environ: MutableMapping[str, str]) -> None:
    """Start the process, unless it runs already; it ends with this one, which holds its standard input open."""
    if os.name != "posix" or _is_alive(environ.get(PROCESS, "")):
        return
    pipe = Path(tempfile.mkdtemp(prefix="watersmeet-spare-")) / "requests"
    os.mkfifo(pipe, 0o600)
    command = [sys.executable, "-m", __name__, str(pipe)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    _kept.append(process)
    environ[PIPE], environ[PROCESS] = str(pipe), str(process.pid)


_kept: list[subprocess.Popen[bytes]] = []
"""Never read: a process that nobody refers to would lose its standard input."""


def _is_alive(pid: str) -> bool:
    return any(str(process.pid) == pid and process.poll() is None for process in _kept)


def _serve(pipe: str) -> None:
    """Fork a worker for every request, until the process that started this one has ended."""
    # Opened for both, so that it never comes to an end, and before the imports, so that requests can wait there.
    requests = os.open(pipe, os.O_RDWR)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in _ONCE:
        importlib.import_module(module)
    waiting = b""
    while True:
        ready, _, _ = select.select([requests, sys.stdin.fileno()], [], [])
        if sys.stdin.fileno() in ready:
            # Here and not in the process that made the folder, which may have been killed.
            shutil.rmtree(Path(pipe).parent, ignore_errors=True)
            return
        *lines, waiting = (waiting + os.read(requests, 65_536)).split(b"\n")
        for line in lines:
            if os.fork() == 0:
                os.close(requests)
                _work(line.decode())
                os._exit(0)


def _work(request: str) -> None:
    """Be the worker that Spark waits for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    given = {name: value for name, value in zip(REQUEST, request.split("\t"), strict=True) if value}
    os.environ.update(given)
    worker = importlib.import_module(WORKER)
    with importlib.import_module("pyspark.worker_util").get_sock_file_to_executor() as file:
        worker.main(file, file)


if __name__ == "__main__":
    _serve(sys.argv[1])
