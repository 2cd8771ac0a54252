"""The client of the prefork server: the first step of the command that Spark runs as Python.

Run as a script and without ``site``, so that it costs some milliseconds; it imports none of our modules. If the server
has taken the request, this process ends: for a worker at once, for a daemon when that has ended, since Spark takes this
process for the daemon. If the server is dead, hung or of another user, this process runs the requested module itself.

Why: see `prefork_server`. Uses: that Spark takes the end of the process for the end of the daemon, and communicates
through its standard streams. Seen in: 4.0 to 4.3.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

PREFORK_DIR = "WATERSMEET_SPARE"
"""The variable that names the folder in which it listens."""
SOCKET = "requests"
TAKEN = b"taken\n"
SECONDS = 3.0
"""The time that an answer is waited for: about as long as it takes to go without."""
STREAMS = (0, 1, 2)
"""The standard streams, which go with a request."""


def encode_request(arguments: list[bytes], folder: bytes, environ: dict[bytes, bytes]) -> bytes:
    """The payload of a request: the arguments of Python, its working directory, and its environment; none is empty.

    >>> parse_request(encode_request([b"-m", b"module"], b"/tmp", {b"PATH": b"/bin", b"NONE": b""}))
    ([b'-m', b'module'], b'/tmp', {b'PATH': b'/bin', b'NONE': b''})
    """
    variables = (name + b"=" + value for name, value in environ.items())
    return b"\0\0".join((b"\0".join(arguments), folder, b"\0".join(variables)))


def parse_request(text: bytes) -> tuple[list[bytes], bytes, dict[bytes, bytes]]:
    """The same of a request that was read."""
    arguments, folder, variables = text.split(b"\0\0")
    environ = dict(variable.split(b"=", 1) for variable in variables.split(b"\0"))
    return arguments.split(b"\0"), folder, environ


def take(folder: str, payload: bytes) -> socket.socket | None:
    """The connection to the process that listens in that folder, if it has taken the request over."""
    stat = os.lstat(folder)
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o077:
        return None
    # The address of a socket must be short, the path of a folder need not be.
    os.chdir(folder)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SECONDS)
    try:
        connection.connect(SOCKET)
        # The streams go with the first bytes.
        sent = socket.send_fds(connection, [payload], STREAMS)
        connection.sendall(payload[sent:])
        connection.shutdown(socket.SHUT_WR)
        return connection if connection.recv(len(TAKEN)) == TAKEN else None
    except TimeoutError:
        # From here on the server cannot take the request any more: only earlier answers count.
        connection.shutdown(socket.SHUT_RDWR)
        if connection.recv(len(TAKEN)) == TAKEN:
            return connection
        # A server that has not answered once is not contacted again.
        os.unlink(SOCKET)  # noqa: PTH108 - to import pathlib takes longer than all the rest
        return None


def main(command: list[str]) -> None:
    """Send a Python command to the prefork server; run it here if the server does not take it."""
    here = os.getcwd()  # noqa: PTH109 - as above
    with suppress(OSError):
        payload = encode_request([os.fsencode(part) for part in command[1:]], os.fsencode(here), dict(os.environb))
        connection = take(os.environ[PREFORK_DIR], payload)
        if connection is not None:
            connection.settimeout(None)
            # A daemon keeps the connection open for as long as it runs.
            with suppress(OSError):
                while connection.recv(1):
                    pass
            return
    os.chdir(here)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
