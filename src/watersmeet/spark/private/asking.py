"""Asks the process that stands ready to be a worker of Spark's: what the command that Spark runs as Python does first.

Run as a script and without ``site``, so that it costs some milliseconds; it imports nothing of ours. It exits with 0 if
that process has taken over. If it is dead, hung or of others, this one exits with 1, and Python is started as ever.

Why: as `spare` says. Uses: the variables of the environment that tell a worker how to reach Spark. Seen in: 4.0 to 4.3.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

SPARE = "WATERSMEET_SPARE"
"""The variable that names the folder in which it listens."""
SOCKET = "requests"
REQUEST = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH")
"""What a request says, separated by tabs: how to reach Spark."""
TAKEN = b"taken\n"
SECONDS = 3.0
"""How long an answer is waited for: about as long as it takes to go without."""


def is_taken(folder: str, request: str) -> bool:
    """Whether the process that listens in that folder has taken the request over."""
    found = os.lstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return False
    # The address of a socket must be short, the path of a folder need not be.
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as spare:
        spare.settimeout(SECONDS)
        try:
            spare.connect(SOCKET)
            spare.sendall(f"{request}\n".encode())
            return spare.recv(len(TAKEN)) == TAKEN
        except TimeoutError:
            # Who has not answered once is not asked again.
            os.unlink(SOCKET)  # noqa: PTH108 - to import pathlib takes longer than all the rest
            return False


if __name__ == "__main__":
    with suppress(OSError):
        sys.exit(not is_taken(os.environ[SPARE], "\t".join(os.environ.get(name, "") for name in REQUEST)))
    sys.exit(1)
