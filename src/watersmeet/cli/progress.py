"""The progress of a run: a live table on a terminal, else one line of JSON per batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watersmeet.cli.failure import Format

if TYPE_CHECKING:
    from watersmeet.observe.progress import Progress


@dataclass(frozen=True)
class Totals:
    """What a query has done since the run began; ``last`` is its latest batch."""

    rows_in: int = 0
    rows_out: int = 0
    matched: int = 0
    padded: int = 0
    late: int = 0
    malformed: int = 0
    batches: int = 0
    last: Progress | None = None

    def plus(self, progress: Progress) -> Totals:
        """The totals after one more batch."""
        return replace(
            self,
            rows_in=self.rows_in + progress.rows_in,
            rows_out=self.rows_out + progress.rows_out,
            matched=self.matched + progress.matched,
            padded=self.padded + progress.padded,
            late=self.late + progress.late,
            malformed=self.malformed + progress.malformed,
            batches=self.batches + 1,
            last=progress,
        )


class Board:
    """Shows every batch as it ends, and keeps the totals of each query."""

    def __init__(self, format: Format, console: Console | None = None) -> None:
        self.totals: dict[str, Totals] = {}
        self._console = console or Console()
        self._live: Live | None = None
        if format is Format.text and self._console.is_terminal:
            self._live = Live(Text("waiting for the first batch"), console=self._console, refresh_per_second=8)

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Take in one batch."""
        self.totals[progress.query] = self.totals.get(progress.query, Totals()).plus(progress)
        if self._live is not None:
            self._live.update(progress_table(self.totals))
        else:
            self._console.file.write(f"{progress_line(progress)}\n")
            self._console.file.flush()

    @property
    def rows_in(self) -> int:
        """The rows that all queries have read."""
        return sum(totals.rows_in for totals in self.totals.values())

    @property
    def late(self) -> int:
        """The rows that all queries have dropped as late."""
        return sum(totals.late for totals in self.totals.values())


def progress_line(progress: Progress) -> str:
    """A batch as one line of JSON."""
    # The watermarks are there in words.
    names = [field.name for field in fields(progress) if field.name not in ("marks", "temporal")]
    values = {name: getattr(progress, name) for name in names}
    values |= {"watermarks": dict(progress.watermarks), "partitions": dict(progress.partitions)}
    values |= {"malformed_of": dict(progress.malformed_of)}
    return json.dumps(values | {"operators": {name: asdict(numbers) for name, numbers in progress.operators.items()}})


def progress_table(totals: dict[str, Totals]) -> RenderableType:
    """All queries, a row each, and the watermarks below."""
    table = Table(box=None, pad_edge=False)
    table.add_column("query")
    has_partitions = any(total.last is not None and total.last.partitions for total in totals.values())
    partitions = ("partitions",) if has_partitions else ()
    # Shown once there are some.
    has_malformed = any(total.malformed for total in totals.values())
    malformed = ("malformed",) if has_malformed else ()
    for name in (
        "batch",
        "rows in",
        "rows out",
        "matched",
        "padded",
        "late",
        *malformed,
        "state",
        *partitions,
        "s/batch",
    ):
        table.add_column(name, justify="right")
    marks = Table.grid(padding=(0, 2))
    for query, total in totals.items():
        if total.last is None:
            continue
        counts = [total.rows_in, total.rows_out, total.matched, total.padded, total.late]
        counts += [total.malformed, total.last.state_rows] if has_malformed else [total.last.state_rows]
        cells = [str(total.last.batch), *(f"{count:,}" for count in counts)]
        # Of both windows, left first.
        cells += [" + ".join(f"{count:,}" for count in total.last.partitions.values())] if has_partitions else []
        table.add_row(query, *cells, f"{total.last.seconds:.1f}")
        for column, time in total.last.watermarks.items():
            marks.add_row("watermark", column, time)
    return Group(table, marks)
