"""A prefork server: a Python process with PySpark imported that forks the processes Spark would otherwise start.

At the start of a query Spark runs a Python process to get the state variables of the operator, and with its first batch
it starts daemons that fork the workers: one for each environment, and a query has two. Starting them and importing
PySpark takes most of the start. Where we make the session, one process imports it once, while Java starts, and is then
forked: the command that Spark runs as Python (see `python`) sends its request through a socket, with its standard
streams, and gets an acknowledgement. If no server answers, or the request needs an environment that differs in a
variable that Python reads at startup, the command starts a process as usual.

Why: Spark has no setting to keep that process, or to start daemons earlier. Uses: the name of the module that it runs
(``transform_with_state_driver_worker``), that of our daemon, and the environment variables that it sets.
Seen in: 4.0 to 4.3. Where a module is missing the process ends at its first import, and the command starts Python as
usual.
"""

from __future__ import annotations

import importlib
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from watersmeet.spark.private.daemon import import_once
from watersmeet.spark.private.prefork_client import (
    PREFORK_DIR,
    SECONDS,
    SOCKET,
    STREAMS,
    TAKEN,
    parse_request,
)

WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""The module that Spark runs at the start of a query."""
DAEMON = "watersmeet.spark.daemon"
"""The module that Spark runs for the workers of its tasks."""
READS = ("PYSPARK_ENABLE_NAMEDTUPLE_PATCH",)
"""A variable that PySpark reads when it is imported."""
_OF_SPARK = (
    "SPARK_", "PYSPARK_", "_PYSPARK_", "WATERSMEET_", "PYTHON_WORKER_", "PYTHON_UDF_", "PYTHON_UNIX_", "PYTHON_DAEMON_",
    "PYTHON_FAULTHANDLER_", "PYTHON_TRACEBACK_",
)  # fmt: skip
_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL")


def start_prefork_server(environ: MutableMapping[str, str], folder: Path) -> None:
    """Start the server, unless it runs already; it ends with this process, which holds its standard input open.

    It listens in a private folder below ``folder``, since requests contain Spark's secret.
    """
    process = _processes.get(environ.get(PREFORK_DIR, ""))
    if os.name != "posix" or (process is not None and process.poll() is None):
        return
    own = tempfile.mkdtemp(prefix="ready-", dir=folder)
    command = [sys.executable, "-m", __name__, own]
    _processes[own] = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=spark_worker_environ(environ),
    )
    environ[PREFORK_DIR] = own


def spark_worker_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with what Spark sets for workers and Python, or a library, reads when it starts."""
    return {"PYTHONHASHSEED": "0", **environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}


def is_compatible_environ(own: Mapping[bytes, bytes], requested: Mapping[bytes, bytes]) -> bool:
    """Whether a process with one environment may become that with the other.

    What Spark sets is read when it is needed, but for a few variables, and what shells set, or drop for its name, is of
    no account; all else must be the same, since it may have been read already.

    >>> is_compatible_environ({b"LANG": b"C"}, {b"LANG": b"C", b"SPARK_REUSE_WORKER": b"1"})
    True
    >>> is_compatible_environ({}, {b"ARROW_IO_THREADS": b"2"}), is_compatible_environ({b"LANG": b"C"}, {})
    (False, False)
    """
    changed = {os.fsdecode(name) for name, _ in own.items() ^ requested.items()}
    return all(
        name not in READS and (name.startswith(_OF_SPARK) or name in _OF_SHELLS or not name.isidentifier())
        for name in changed
    )


_processes: dict[str, subprocess.Popen[bytes]] = {}
"""The processes by their folders: an unreferenced one would lose its standard input."""


def _serve(folder: str) -> None:
    """Fork a process per request, until the process that started this one has ended."""
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
    importlib.import_module(WORKER)
    import_once()
    while True:
        ready, _, _ = select.select([requests, sys.stdin.fileno()], [], [])
        if sys.stdin.fileno() in ready:
            # Here and not in the process that made the folder, which may have been killed.
            shutil.rmtree(folder, ignore_errors=True)
            return
        connection, _ = requests.accept()
        if os.fork() == 0:
            requests.close()
            _work(connection)
            os._exit(0)
        connection.close()


def _work(connection: socket.socket) -> None:
    """Become the process that Spark waits for, if the client still waits: after a timeout it starts Python itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        payload, streams = _read(connection)
        (_, module, *arguments), folder, environ = parse_request(payload)
        is_daemon = os.fsdecode(module) == DAEMON
        # The driver worker runs only our own code, so its environment does not matter.
        if len(streams) != len(STREAMS) or (is_daemon and not is_compatible_environ(os.environb, environ)):
            return
        os.chdir(folder)
        os.environb.clear()
        os.environb.update(environ)
        for own, other in zip(STREAMS, streams, strict=True):
            # The client of a worker ends at once, and its streams are not read any more.
            if is_daemon:
                os.dup2(other, own)
            os.close(other)
        connection.sendall(TAKEN)
    except (OSError, ValueError):
        return
    if is_daemon:
        _imitate_java_child(os.fsdecode(folder))
    else:
        connection.close()
        # That it is imported already.
        warnings.simplefilter("ignore", RuntimeWarning)
    # Run the module as Spark does; all of its imports are loaded already.
    sys.argv[1:] = [os.fsdecode(argument) for argument in arguments]
    runpy.run_module(os.fsdecode(module), run_name="__main__", alter_sys=True)


def _imitate_java_child(folder: str) -> None:
    """Set up what a process that Java starts in that folder has: its path, signals and limits."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Each process needs its own random seed.
    importlib.import_module("numpy.random").seed()


def _read(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A request, and the streams of the client."""
    connection.settimeout(SECONDS)
    start, streams, _, _ = socket.recv_fds(connection, 1 << 16, len(STREAMS))
    parts = [start]
    while parts[-1]:
        parts.append(connection.recv(1 << 16))
    return b"".join(parts), streams


if __name__ == "__main__":
    _serve(sys.argv[1])
