"""A Python process that stands ready: it forks what Spark would else start anew for every query.

At the start of a query Spark asks a Python process of its own which state variables the operator has. To start one and
to import PySpark takes most of the start. Where we make the session, one process imports it once and is then copied:
the command that Spark runs as Python (see `python`) hands the request over through a socket, and ends once it is told
that the request was taken. If nobody answers, Spark starts a process as ever.

Why: Spark has no setting to keep that process. Uses: the name of the module that it runs
(``transform_with_state_driver_worker``) and the variables of the environment that tell a worker how to reach Spark.
Seen in: 4.0 to 4.3. Where one of them is missing the process ends at its first import, and the command that looks for
it starts Python as ever.
"""

from __future__ import annotations

import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import MutableMapping
from pathlib import Path

from watersmeet.spark.private.asking import REQUEST, SECONDS, SOCKET, SPARE, TAKEN

WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""What Spark runs at the start of a query."""
_ONCE = (WORKER, "numpy", "pyarrow.compute", "watersmeet.joins.interval.operator", "watersmeet.spark.exchange.stateful")


def start_spare(environ: MutableMapping[str, str], folder: Path) -> None:
    """Start the process, unless it runs already; it ends with this one, which holds its standard input open.

    It listens in a folder of its own below ``folder``, since requests contain Spark's secret.
    """
    kept = _kept.get(environ.get(SPARE, ""))
    if os.name != "posix" or (kept is not None and kept.poll() is None):
        return
    own = tempfile.mkdtemp(prefix="ready-", dir=folder)
    command = [sys.executable, "-m", __name__, own]
    _kept[own] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    environ[SPARE] = own


_kept: dict[str, subprocess.Popen[bytes]] = {}
"""The processes by their folders: one that nobody refers to would lose its standard input."""


def _serve(folder: str) -> None:
    """Fork a worker for every request, until the process that started this one has ended."""
    back = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    requests = socket.socket(socket.AF_UNIX)
    requests.bind(SOCKET)
    # Before the imports, so that requests can wait.
    requests.listen()
    # Where Spark starts its workers, as far as imports from there go.
    os.fchdir(back)
    os.close(back)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in _ONCE:
        importlib.import_module(module)
    while True:
        ready, _, _ = select.select([requests, sys.stdin.fileno()], [], [])
        if sys.stdin.fileno() in ready:
            # Here and not in the process that made the folder, which may have been killed.
            shutil.rmtree(folder, ignore_errors=True)
            return
        asking, _ = requests.accept()
        if os.fork() == 0:
            requests.close()
            _work(asking)
            os._exit(0)
        asking.close()


def _work(asking: socket.socket) -> None:
    """Be the worker that Spark waits for, if the one who asks still does: who waited too long has found another way."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with asking:
        asking.settimeout(SECONDS)
        with asking.makefile("r", encoding="utf-8", newline="\n") as lines:
            request = lines.readline().rstrip("\n")
        try:
            asking.sendall(TAKEN)
        except OSError:
            return
    given = {name: value for name, value in zip(REQUEST, request.split("\t"), strict=True) if value}
    os.environ.update(given)
    # As Spark runs it: how it reaches Spark is its own matter. All that it imports is there already.
    warnings.simplefilter("ignore", RuntimeWarning)
    runpy.run_module(WORKER, run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1])
