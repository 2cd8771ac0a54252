"""A command in a terminal of its own: what it shows there, as it shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
"""Seconds without a word after which a command hangs."""
_CODES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\r")


class Terminal:
    """What a command has shown so far, without what moves and colours it."""

    def __init__(self, program: subprocess.Popen[bytes], master: int) -> None:
        self.program = program
        self.shown = ""
        self._master = master

    def until(self, text: str) -> str:
        """Wait until a text is shown; all that was shown by then."""
        while text not in self.shown:
            assert self._more(), f"ended without {text!r}: {self.shown}"
        return self.shown

    def end(self) -> int:
        """Wait until the command has ended; its exit code."""
        while self._more():
            pass
        return self.program.wait(PATIENCE)

    def _more(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"silent for {PATIENCE:g} s: {self.shown}"
        try:
            written = os.read(self._master, 65536)
        except OSError:  # the command has closed it
            written = b""
        self.shown += _CODES.sub("", written.decode("utf-8", "replace"))
        return bool(written)


@contextmanager
def type_command(
    *arguments: str, folder: Path, columns: int = 100, told: Mapping[str, str] | None = None
) -> Generator[Terminal]:
    """Type ``watersmeet`` and these arguments in a terminal of so many columns; ``told``: variables besides."""
    master, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "watersmeet.cli", *arguments]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, start_new_session=True,
        env={**environ, "TERM": "xterm-256color", **(told or {})},
    ) as program:  # fmt: skip
        os.close(theirs)
        try:
            yield Terminal(program, master)
        finally:
            program.kill()
            os.close(master)
