"""What a command prints: the progress of a run; and its failures, a refusal and an exit code, never a stack trace."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from enum import StrEnum
from types import FrameType, TracebackType

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.duration import SECOND, format_bytes, format_count, rough_duration
from watersmeet.errors import WatersmeetError, escape_controls, refuse
from watersmeet.locations import StorageError, mask_secrets
from watersmeet.metrics.progress import Progress, Totals, watermark_text
from watersmeet.operators.core.operator import END_OF_INPUT

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
    """What a command waits for, and since when; shown with the elapsed seconds."""

    def __init__(self, what: str) -> None:
        self.wait_for(what)

    def wait_for(self, what: str) -> None:
        """Show what the command waits for from now on."""
        self._what, self._began = what, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self._what}, {time.monotonic() - self._began:.0f} s")


@contextmanager
def show_wait(what: str) -> Generator[WaitIndicator]:
    """Show on a terminal at standard error what the block waits for; otherwise nothing.

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


_NOT_SHOWN = frozenset({"marks", "temporal", "own", "silent", "at", "batches", "examples"})
"""What a line of JSON leaves out: the watermarks are there in words."""
_GAP = 2
_NAME = 30
"""So many characters of a name stay in one line."""
"""How many characters are between two columns."""


class ProgressDisplay:
    """Shows every batch as it ends, and keeps the totals of each query.

    On a terminal it moves all the time: before the first batch it says what is waited for, and for how long.
    """

    def __init__(self, format: Format, console: Console | None = None) -> None:
        self.totals: dict[str, Totals] = {}
        self._format = format
        self._console = console or Console()
        self._waiting = WaitIndicator("Starting Spark")
        self._live: Live | None = None
        if format is Format.text and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=REFRESHED, get_renderable=self._renderable)

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def wait_for(self, what: str) -> None:
        """Show what the run waits for, until there is a batch."""
        self._waiting.wait_for(what)

    def show(self, progress: Progress) -> None:
        """Take in one batch."""
        self.totals[progress.query] = self.totals.get(progress.query, Totals()).plus(progress)
        if self._live is not None:
            self._live.refresh()
            return
        line = progress_line(progress) if self._format is Format.json else progress_summary(progress)
        self._console.file.write(f"{line}\n")
        self._console.file.flush()

    @property
    def rows_in(self) -> int:
        """The rows that all queries have read."""
        return sum(totals.rows_in for totals in self.totals.values())

    @property
    def late(self) -> int:
        """The rows that all queries have dropped as late."""
        return sum(totals.late for totals in self.totals.values())

    def _renderable(self) -> RenderableType:
        return progress_table(self.totals, time.time(), self._console.width) if self.totals else self._waiting


def progress_line(progress: Progress) -> str:
    """A batch as one line of JSON."""
    names = [field.name for field in fields(progress) if field.name not in _NOT_SHOWN]
    values = {name: getattr(progress, name) for name in names}
    for name in ("watermarks", "partitions", "malformed_of", "sources", "parts", "backlog"):
        values[name] = dict(values[name])
    return json.dumps(values | {"operators": {name: asdict(numbers) for name, numbers in progress.operators.items()}})


def progress_summary(progress: Progress) -> str:
    """A batch as one short line, without numbers that are usually zero and are zero here.

    >>> progress_summary(Progress("joined", 3, 1200, 700, 600, 100, 2, 400, seconds=1.25, marks={"o.t": 17}))
    'joined: batch 3, 1,200 rows in, 700 out, 2 late, 400 kept, 1.2 s, watermark 17'
    """
    parts = [f"batch {progress.batch}", f"{format_count(progress.rows_in, 'row')} in", f"{progress.rows_out:,} out"]
    rare = {"late": progress.late, "malformed": progress.malformed, "dropped": progress.dropped}
    parts += [f"{count:,} {name}" for name, count in rare.items() if count]
    parts += [f"{progress.state_rows:,} kept", f"{progress.seconds:.1f} s"]
    if progress.marks:
        column = min(progress.marks, key=lambda name: progress.marks[name])
        parts.append(f"watermark {watermark_text(progress.marks[column], is_temporal=column in progress.temporal)}")
    return f"{progress.query}: {', '.join(parts)}"


def progress_table(totals: dict[str, Totals], now: float, width: int) -> RenderableType:
    """All queries, a row each; below them their sources and watermarks. ``now``: seconds since 1970.

    Where rows are too long for the terminal, a query is a column, so that no number is cut off.
    """
    shown_totals = {query: total for query, total in totals.items() if total.last is not None}
    # Shown once there are some.
    rare = [name for name in ("malformed", "dropped") if any(getattr(total, name) for total in shown_totals.values())]
    partitions = ["partitions"] if any(t.last is not None and t.last.partitions for t in shown_totals.values()) else []
    counted = ["batch", "rows in", "in/s", "rows out", "out/s", "matched", "padded", "late", *rare]
    names = ["query", *counted, "state", "bytes", *partitions, "s/batch"]
    lines = [names, *([query, *_cells(total, rare, bool(partitions), now)] for query, total in shown_totals.items())]
    turned = [list(column) for column in zip(*lines, strict=True)]
    first, *others = turned if _width(lines) > width >= _width(turned) else lines
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for place, name in enumerate(first):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for line in others:
        table.add_row(*line)
    parts: list[RenderableType] = [table]
    for total in shown_totals.values():
        parts += [_sources(total, now), _watermarks(total, now), *_holdback_text(total)]
    return Group(*parts)


def _width(lines: list[list[str]]) -> int:
    """How many characters a table of these lines has across."""
    return sum(max(map(len, column)) + _GAP for column in zip(*lines, strict=True)) - _GAP


def _cells(total: Totals, rare: list[str], has_partitions: bool, now: float) -> list[str]:
    assert total.last is not None
    rates = total.rates(now)
    cells = [str(total.last.batch), f"{total.rows_in:,}", _rate(rates.rows_in), f"{total.rows_out:,}"]
    cells += [_rate(rates.rows_out), f"{total.matched:,}", f"{total.padded:,}", f"{total.late:,}"]
    cells += [f"{getattr(total, name):,}" for name in rare]
    cells += [f"{total.state_rows:,}", format_bytes(total.state_bytes)]
    # Of both windows, left first.
    cells += [" + ".join(f"{count:,}" for count in total.last.partitions.values())] if has_partitions else []
    return [*cells, f"{total.seconds:.1f}"]


def _grid(names: Iterable[str]) -> Table:
    """A table without lines whose second column has these names; long cells are wrapped, not cut off."""
    table = Table.grid(padding=(0, _GAP))
    for width in (None, min(_NAME, max(map(len, names), default=0)), None, None):
        table.add_column(overflow="fold", min_width=width)
    return table


def _sources(total: Totals, now: float) -> Table:
    """The rows of each source, if there are several."""
    table, rates = _grid(total.sources), total.rates(now).sources
    for source, rows in total.sources.items() if len(total.sources) > 1 else ():
        table.add_row("source", source, format_count(rows, "row"), f"{_rate(rates.get(source, 0.0))}/s")
    return table


def _watermarks(total: Totals, now: float) -> Table:
    """The watermarks of the result, and how far each is behind the clock."""
    last = total.last
    assert last is not None
    columns = dict.fromkeys((*last.watermarks, *sorted(last.silent)))
    table = _grid(columns)
    for column in columns:
        watermark = last.marks.get(column)
        is_time = column in last.temporal and watermark is not None and watermark != END_OF_INPUT
        behind = f"{rough_duration(int(now * SECOND) - watermark)} behind" if is_time and watermark is not None else ""
        table.add_row("watermark", column, last.watermarks.get(column, "none"), behind)
    return table


def _holdback_text(total: Totals) -> Iterator[Text]:
    """Which column holds the others back, in a line of its own, which fits where a table would not."""
    last, slowest = total.last, total.slowest
    if last is None or slowest is None or slowest[0] not in {*last.watermarks, *last.silent}:
        return
    column, by = slowest
    length = "" if by is None else rough_duration(by) if column in last.temporal else f"{by:,}"
    yield Text(f"{column} holds the others back{f' by {length}' if length else ': no row yet'}")


def _rate(rows: float) -> str:
    return f"{rows:,.0f}" if rows >= 10 or rows == 0 else f"{rows:.1f}"
