"""The progress of a run: a live table on a terminal, else a line per batch, short or as JSON."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields, replace
from types import TracebackType

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.cli.console import REFRESHED, Format, WaitIndicator
from watersmeet.duration import SECOND, format_bytes, format_count, rough_duration
from watersmeet.metrics.progress import Progress, Totals, watermark_text
from watersmeet.operators.core.operator import END_OF_INPUT

_NOT_SHOWN = frozenset({"marks", "temporal", "own", "silent", "at", "batches", "examples"})
"""Fields left out of a line of JSON: the watermarks are there in words."""
_GAP = 2
"""The number of characters between two columns."""
_NAME = 30
"""So many characters of a name stay in one line."""


class ProgressDisplay:
    """Shows every batch as it ends, and keeps the totals of each query.

    On a terminal it moves all the time: before the first batch it says what is waited for, and for how long. Elsewhere
    each of these is a line at the standard error.
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
        else:
            self.wait_for("Starting Spark")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def wait_for(self, subject: str) -> None:
        """Show what the run waits for, until there is a batch."""
        self._waiting.wait_for(subject)
        if self._live is None:
            typer.echo(f"{subject} ...", err=True)

    def start(self, query: str) -> None:
        """Forget the phase of a query that starts: it is that of its batches from now on."""
        totals = self.totals.get(query)
        if totals is not None and totals.last is not None:
            self.totals[query] = replace(totals, last=replace(totals.last, phase=""))

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
        if not self.totals:
            return self._waiting
        return progress_table(self.totals, time.time(), self._console.width, self._console.height)


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
    >>> progress_summary(Progress("joined", 0, 10, 4, phase="history"))
    'joined: history, batch 0, 10 rows in, 4 out, 0 kept, 0.0 s'
    """
    parts = [*([progress.phase] if progress.phase else []), f"batch {progress.batch}"]
    parts += [f"{format_count(progress.rows_in, 'row')} in", f"{progress.rows_out:,} out"]
    rare = {"late": progress.late, "malformed": progress.malformed, "dropped": progress.dropped}
    parts += [f"{count:,} {name}" for name, count in rare.items() if count]
    parts += [f"{progress.state_rows:,} kept", f"{progress.seconds:.1f} s"]
    if progress.marks:
        column = min(progress.marks, key=lambda name: progress.marks[name])
        parts.append(f"watermark {watermark_text(progress.marks[column], is_temporal=column in progress.temporal)}")
    return f"{progress.query}: {', '.join(parts)}"


def progress_table(totals: dict[str, Totals], now: float, width: int, height: int | None = None) -> RenderableType:
    """All queries, a row each; below them their sources and watermarks. ``now``: seconds since 1970.

    Where rows are too long for the terminal, a query is a column or has fewer numbers, and where there are too many
    lines, a query has one line or none below the table: no number is cut off.
    """
    shown = {query: total for query, total in totals.items() if total.last is not None}
    console = Console(file=io.StringIO(), width=width, height=height)
    fullest = [_table(shown, now, width), _compact_table(shown, now, width)]
    details = [_blocks(shown, now), _lines(shown, now), []]
    for detail in details:
        for table in fullest:
            parts = Group(table, *detail)
            if height is None or len(console.render_lines(parts)) < height:
                return parts
    assert height is not None
    # The table alone is too long.
    first = dict(list(shown.items())[: max(1, height - 3)])
    rest = format_count(len(shown) - len(first), "more query").replace("more querys", "more queries")
    return Group(_compact_table(first, now, width), Text(f"and {rest}: `watersmeet page` shows all"))


def _table(shown: dict[str, Totals], now: float, width: int) -> Table:
    """All numbers: a query is a row or, where that is too long, a column."""
    rare = _rare(shown)
    partitions = ["partitions"] if any(t.last is not None and t.last.partitions for t in shown.values()) else []
    counted = ["batch", "rows in", "in/s", "rows out", "out/s", "matched", "padded", "late", *rare]
    names = ["query", *counted, "state", "bytes", *partitions, "s/batch"]
    lines = [
        names,
        *([_label(query, total), *_cells(total, rare, bool(partitions), now)] for query, total in shown.items()),
    ]
    turned = [list(column) for column in zip(*lines, strict=True)]
    if _width(lines) <= width:
        return _build_table(lines)
    return _build_table(turned) if _width(turned) <= width else _compact_table(shown, now, width)


def _label(query: str, total: Totals) -> str:
    """The name of a query, with the phase that it is in."""
    return f"{query} ({total.last.phase})" if total.last is not None and total.last.phase else query


def _rare(shown: dict[str, Totals]) -> list[str]:
    """The lines that are shown once there are some."""
    return [name for name in ("malformed", "dropped") if any(getattr(total, name) for total in shown.values())]


def _compact_table(shown: dict[str, Totals], now: float, width: int) -> Table:
    """The numbers that say most, those above a million in short."""
    rare = _rare(shown)
    lines = [["query", "rows in", "in/s", "rows out", "matched", "padded", "late", *rare, "state", "s/batch"]]
    for query, total in shown.items():
        counts = [total.rows_out, *total.result, total.late, *(getattr(total, name) for name in rare), total.state_rows]
        texts = [_short(total.rows_in), _rate(total.rates(now).rows_in), *map(_short, counts)]
        lines.append([_label(query, total), *texts, f"{total.seconds:.1f}"])
    # Rates come last into the way of counts.
    return _build_table(lines if _width(lines, gap=1) <= width else [[*line[:2], *line[3:-1]] for line in lines], gap=1)


def _short(count: int) -> str:
    """A count in at most seven characters.

    >>> _short(999_999), _short(12_345_678), _short(1_234_567_890_123)
    ('999,999', '12.35 M', '1,234.6 G')
    """
    for power, unit in ((9, "G"), (6, "M")):
        if count >= 10**power:
            number = count / 10**power
            return f"{number:,.2f} {unit}" if number < 100 else f"{number:,.1f} {unit}"
    return f"{count:,}"


def _build_table(lines: list[list[str]], gap: int = _GAP) -> Table:
    """A table whose first line is its header; a long name is wrapped, and no number is."""
    first, *others = lines
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for place, name in enumerate(first):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=place > 0, overflow="fold")
    for line in others:
        table.add_row(*line)
    return table


def _blocks(shown: dict[str, Totals], now: float) -> list[RenderableType]:
    """The sources and watermarks of each query, below its name if there are several queries."""
    parts: list[RenderableType] = []
    for query, total in shown.items():
        block = [_sources(total, now), _watermarks(total, now)]
        holdback = [*_holdback_text(total)]
        if len(shown) > 1 and (any(table.row_count for table in block) or holdback):
            parts.append(Text(f"{query}:", style="bold"))
        parts += [table for table in block if table.row_count]
        parts += holdback
    return parts


def _lines(shown: dict[str, Totals], now: float) -> list[RenderableType]:
    """The progress of each query, in a line of its own."""
    lines: list[RenderableType] = []
    for query, total in shown.items():
        assert total.last is not None
        held = "; ".join(text.plain for text in _holdback_text(total))
        behind = [(name, watermark) for name, watermark in total.last.marks.items() if name in total.last.watermarks]
        column = min(behind, key=lambda pair: pair[1], default=("", 0))[0]
        watermark = f"{column} {total.last.watermarks[column]}" if column else ""
        text = "; ".join(part for part in (watermark, held) if part)
        if text:
            lines.append(Text(f"{query}: {text}"))
    return lines


def _width(lines: list[list[str]], gap: int = _GAP) -> int:
    """The width of a table of these lines, in characters."""
    return sum(max(map(len, column)) + gap for column in zip(*lines, strict=True)) - gap


def _cells(total: Totals, rare: list[str], has_partitions: bool, now: float) -> list[str]:
    assert total.last is not None
    rates, (matched, padded) = total.rates(now), total.result
    cells = [str(total.last.batch), f"{total.rows_in:,}", _rate(rates.rows_in), f"{total.rows_out:,}"]
    cells += [_rate(rates.rows_out), f"{matched:,}", f"{padded:,}", f"{total.late:,}"]
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
    """The column that holds the others back, on a line of its own, which fits where a table would not."""
    last, slowest = total.last, total.slowest
    if last is None or slowest is None or slowest[0] not in {*last.watermarks, *last.silent}:
        return
    column, by = slowest
    length = "" if by is None else rough_duration(by) if column in last.temporal else f"{by:,}"
    yield Text(f"{column} holds the others back{f' by {length}' if length else ': no row yet'}")


def _rate(rows: float) -> str:
    return f"{rows:,.0f}" if rows >= 10 or rows == 0 else f"{rows:.1f}"
