"""How a command fails: with the text of the refusal and an exit code, never with a stack trace."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from watersmeet.errors import Refusal, WatersmeetError, escape_controls, refuse
from watersmeet.formats.records import VALUE_FORMAT
from watersmeet.locations import local_path, mask_secrets
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes import sort_refusals
from watersmeet.logical.passes.check_declarations import check_references
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.parser import UnreadPart
from watersmeet.project import Project, Sends, absolute_path, fill_columns, open_project, resolve_paths, root_references
from watersmeet.queries import analyze, read_readable, refusals_in

REFUSED, WRONG, MISTAKE, FAILED, DIED, INTERRUPTED = 1, 2, 3, 4, 5, 128
"""The exit codes. Refused: the same again would be refused again. Wrong: a file, a folder or an option. A mistake of
ours. Failed: while running, or for want of something outside; may be retried. Died: Spark did, or did not start; may be
retried. Interrupted: by a signal, whose number is added, as shells have it."""

OF_SPARK = frozenset({"SPARK_DIED", "SPARK_NOT_STARTED"})
UNREADABLE = frozenset({"FILE_NOT_FOUND", "WRONG_PROJECT", "WRONG_CASE", "FOLDER_NOT_EMPTY"})
"""What is wrong before there is a query: exit code 2, as for a wrong option."""


class Format(StrEnum):
    """``text`` is for people, ``json`` for machines."""

    text = "text"
    json = "json"


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to stop, and it did."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = number
        super().__init__()


@contextmanager
def report_errors(context: typer.Context, format: Format = Format.text) -> Generator[None]:
    """Turn what is raised inside into a message and an exit code."""
    is_debug = bool(context.find_root().obj)
    try:
        with _refuse_missing_spark():
            yield
    except WatersmeetError as error:
        if is_debug:
            _show_stack()
        print_refusals(error, format)
        raise typer.Exit(exit_code(error)) from None
    except KeyboardInterrupt as interrupt:
        number = interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT
        raise typer.Exit(INTERRUPTED + number) from None
    except Exception as error:
        # typer's own exceptions are its way to end a command.
        if type(error).__module__.startswith(("typer", "click")):
            raise
        if is_debug:
            _show_stack()
        hint = "" if is_debug else " Run again with --debug to see the stack trace."
        sys.stderr.write(f"watersmeet: {escape_controls(_one_line(error))}\nThis is a bug in Watersmeet.{hint}\n")
        raise typer.Exit(MISTAKE) from None


@contextmanager
def _refuse_missing_spark() -> Generator[None]:
    """Turn the want of PySpark, wherever a command first imports it, into a refusal that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise refuse("SPARK_NOT_INSTALLED", package="pyspark") from None


def _show_stack() -> None:
    """What was asked for with --debug, before the message: without what nobody else may read."""
    sys.stderr.write(escape_controls(mask_secrets(traceback.format_exc())))


def print_refusals(error: WatersmeetError, format: Format) -> None:
    """Print all refusals: as text to the standard error, as JSON to the standard output."""
    if format is Format.json:
        typer.echo(json.dumps({"refusals": [refusal.as_json() for refusal in error.refusals]}))
    else:
        typer.echo(str(error), err=True)


def exit_code(error: WatersmeetError) -> int:
    """What tells whoever started the command what to do: to mend something, or to try again."""
    conditions = {refusal.condition for refusal in error.refusals}
    if conditions & UNREADABLE:
        return WRONG
    if conditions & OF_SPARK:
        return DIED
    return FAILED if all(refusal.may_be_retried for refusal in error.refusals) else REFUSED


def _one_line(error: Exception) -> str:
    from watersmeet.spark.private.jvm import root_cause  # imported late: most commands need nothing of Spark's

    lines = mask_secrets(str(error)).strip().splitlines()
    cause = root_cause(error)
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return message if cause is None else f"{message} {mask_secrets(cause)}"


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text in which others may have put control characters: in names, in values, in messages of libraries."""
    typer.echo(escape_controls(text), err=err)


REFRESHED = 4
"""How often in a second what moves is shown anew."""


class WaitIndicator:
    """What is waited for, and since when; shown with the seconds that have gone by."""

    def __init__(self, what: str) -> None:
        self.wait_for(what)

    def wait_for(self, what: str) -> None:
        """Say what is waited for from now on."""
        self._what, self._began = what, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self._what}, {time.monotonic() - self._began:.0f} s")


@contextmanager
def show_wait(what: str) -> Generator[WaitIndicator]:
    """Show on the terminal of the standard error what is waited for meanwhile; elsewhere nothing.

    The line is gone afterwards. The standard output is left alone.
    """
    indicator = WaitIndicator(what)
    if not sys.stderr.isatty():
        yield indicator
        return
    # By a way of its own: while Spark starts, what goes to the standard error goes to its log.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        console = Console(file=terminal)
        with Live(indicator, console=console, refresh_per_second=REFRESHED, transient=True, redirect_stdout=False):
            yield indicator


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C and a polite kill raise `Interrupted`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _install_handler(interrupt):
        yield


@contextmanager
def defer_interruptions() -> Generator[list[int]]:
    """Note Ctrl-C and a polite kill instead of acting on them, once: a second one raises `Interrupted`."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise Interrupted(number)
        noted.append(number)

    with _install_handler(note):
        yield noted


@contextmanager
def _install_handler(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in wanted]
    try:
        yield
    finally:
        for number, former in zip(wanted, before, strict=True):
            signal.signal(number, former)


PLAN = ".substrait"
"""What the files of Substrait plans end with."""


@dataclass(frozen=True)
class OpenedScript:
    """A project whose queries may all run."""

    project: Project
    script: Script
    queries: tuple[AnalyzedQuery, ...]


Paths = Literal["written", "absolute"]
"""Paths of sources and sinks as they are written, or as seen from the folder of the project."""


def open_script(
    path: Path,
    paths: Paths = "written",
    further: Callable[[Project, Script], Iterable[Refusal]] | None = None,
    sends: Sends = "resolved",
) -> OpenedScript:
    """Read and analyze all queries of a project; refuses with places in the files that the user wrote.

    ``further`` is what else is refused in a script, together with all the rest.
    """
    project, script, unread = _read_readable(path)
    script = root_references(script, project.root.absolute())
    script = resolve_paths(script, project.root) if paths == "absolute" else script
    script, unfilled = fill_columns(script, project.root, _storage(project), sends=sends)
    refusals = [*unread.refusals, *unfilled, *(further(project, script) if further else ())]
    if refusals:
        raise project.relocate(WatersmeetError(sort_refusals([*refusals, *refusals_in(script, unread)])))
    try:
        queries = analyze(script)
    except WatersmeetError as error:
        raise project.relocate(error) from error
    if not queries:
        raise refuse("NO_QUERY", script=project.script_name)
    return OpenedScript(project, script, queries)


def _storage(project: Project) -> Path:
    return Path(local_path(absolute_path(project.storage, project.root)))


def check_external_references(opened: OpenedScript) -> None:
    """Refuse what refers to variables and files that are not there."""
    opened.project.check_settings()
    try:
        check_references(opened.script)
    except WatersmeetError as error:
        raise opened.project.relocate(error) from error


def check_declared(opened: OpenedScript) -> None:
    """Refuse columns that were read from files of this machine, where Spark reads those of another.

    Schemas of the values of records are read here in any case.
    """
    reason = "Spark has files of its own"
    refusals = [
        Refusal(
            "UNKNOWN_COLUMNS",
            {"source": source.name, "reason": reason, "format": str(source.format), "kind": source.kind.upper()},
            opened.script.place(source.span),
        )
        for source in opened.script.sources
        if source.read_from and VALUE_FORMAT not in source.lowercase_options
    ]
    if refusals:
        raise opened.project.relocate(WatersmeetError(refusals))


def read_project(path: Path) -> tuple[Project, Script]:
    """A project and the script that its files are."""
    project, script, unread = _read_readable(path)
    if unread.refusals:
        raise project.relocate(WatersmeetError(sort_refusals([*unread.refusals, *refusals_in(script, unread)])))
    return project, script


def _read_readable(path: Path) -> tuple[Project, Script, UnreadPart]:
    """A project, what can be read of the script that its files are, and what is wrong with the rest.

    A Substrait plan reads the tables that the SQL file of the same name beside it declares, if there is one, and writes
    to its one sink.
    """
    if path.suffix != PLAN or not path.is_file():
        project = open_project(path)
        return project, *read_readable(project.text, project.script_name)
    sql_file = path.with_suffix(".sql")
    project = (
        open_project(sql_file) if sql_file.is_file() else Project(path.parent, path.stem, f"{path.stem}.storage", ())
    )
    script, unread = read_readable(project.text, project.script_name)
    return project, _with_plan(script, path), unread


def _with_plan(script: Script, path: Path) -> Script:
    """The declarations of a SQL file with the query of a plan."""
    from watersmeet.tools.substrait.relations import read_substrait  # imported late: only plans need it

    read = read_substrait(path.read_bytes(), str(path), script.sources)
    declared = {source.name.lower() for source in script.sources}
    unread = tuple(source for source in read.sources if source.name.lower() not in declared)
    into = script.sinks[0].name if len(script.sinks) == 1 else None
    queries = tuple(replace(query, into=into) for query in read.queries)
    return replace(script, sources=(*script.sources, *unread), queries=(*script.queries, *queries))
