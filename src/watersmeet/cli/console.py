"""The failure of a command: with the text of the refusal and an exit code, never with a stack trace."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from watersmeet.errors import WatersmeetError, escape_controls, refuse
from watersmeet.locations import StorageError, mask_secrets

REFUSED, WRONG, MISTAKE, FAILED, DIED, INTERRUPTED = 1, 2, 3, 4, 5, 128
"""The exit codes. Refused: the same again would be refused again. Wrong: a file, a folder or an option. A mistake of
ours. Failed: while running, or for want of something outside; may be retried. Died: Spark did, or did not start; may be
retried. Interrupted: by a signal, whose number is added, as shells have it."""

OF_SPARK = frozenset({"SPARK_DIED", "SPARK_NOT_STARTED"})
UNREADABLE = frozenset({"FILE_NOT_FOUND", "WRONG_PROJECT", "WRONG_CASE", "FOLDER_NOT_EMPTY"})
"""The conditions that are found before there is a query: exit code 2, as for a wrong option."""


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
    """Turn an exception inside the block into a message and an exit code."""
    is_debug = bool(context.find_root().obj)
    try:
        with _refuse_missing_spark():
            yield
    except WatersmeetError as error:
        if is_debug:
            _show_stack()
        print_refusals(error, format)
        raise typer.Exit(exit_code(error)) from None
    except StorageError as error:
        if is_debug:
            _show_stack()
        unreachable = refuse("STORAGE_UNREACHABLE", reason=mask_secrets(str(error.strerror)).rstrip("."))
        print_refusals(unreachable, format)
        raise typer.Exit(exit_code(unreachable)) from None
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
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise refuse("SPARK_NOT_INSTALLED", package="pyspark") from None


def _show_stack() -> None:
    """Print the stack trace for --debug before the message, with secrets masked."""
    sys.stderr.write(escape_controls(mask_secrets(traceback.format_exc())))


def print_refusals(error: WatersmeetError, format: Format) -> None:
    """Print all refusals: as text to the standard error, as JSON to the standard output."""
    if format is Format.json:
        typer.echo(json.dumps({"refusals": [refusal.as_json() for refusal in error.refusals]}))
    else:
        typer.echo(str(error), err=True)


def exit_code(error: WatersmeetError) -> int:
    """Return the exit code, which says whether a retry can help."""
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
"""Refreshes of a live display per second."""


class WaitIndicator:
    """The subject of a wait and its start, shown with the elapsed seconds."""

    def __init__(self, subject: str) -> None:
        self.wait_for(subject)

    def wait_for(self, subject: str) -> None:
        """Show what the command waits for from now on."""
        self._subject, self._began = subject, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self._subject}, {time.monotonic() - self._began:.0f} s")


@contextmanager
def show_wait(subject: str) -> Generator[WaitIndicator]:
    """Show on a terminal at standard error what the block waits for; otherwise nothing.

    The line is gone afterwards. The standard output is left alone.
    """
    indicator = WaitIndicator(subject)
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
