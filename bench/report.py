"""Tables that can be read on a narrow screen, and arguments that list names."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from textwrap import fill

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table


@dataclass(frozen=True)
class Report:
    """A table whose first ``labels`` columns name the run and whose others are numbers.

    Where the screen is too narrow for all columns, it is several tables, each with the labels.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    caption: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [self._width(column) + len(" | ") for column in range(len(self.headings))]
        room = options.max_width - 1 - sum(widths[: self.labels])
        parts: list[list[int]] = [[]]
        for column in range(self.labels, len(self.headings)):
            if parts[-1] and sum(widths[n] for n in parts[-1]) + widths[column] > room:
                parts.append([])
            parts[-1].append(column)
        for number, part in enumerate(parts):
            table = self._table(part)
            table.title = self.title if number == 0 else None
            table.caption = self.caption if number == len(parts) - 1 else None
            yield table

    def _width(self, column: int) -> int:
        """The width of a column: that of its longest value, or of the longest word of its heading."""
        return max(len(text) for text in (*self.headings[column].split(), *(row[column] for row in self.rows)))

    def _table(self, numbers: Sequence[int]) -> Table:
        table = Table(title_justify="left", caption_justify="left")
        columns = [*range(self.labels), *numbers]
        for column in columns:
            heading = fill(self.headings[column], self._width(column))
            # A long name continues in the next line: a truncated one cannot be read.
            table.add_column(heading, justify="right" if column >= self.labels else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(row[column] for column in columns))
        return table


def names_among(names: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an argument that lists some of these names; others are refused before anything runs."""

    def read(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := sorted(set(chosen) - set(names)):
            raise ArgumentTypeError(f"there is no {', '.join(unknown)}, but {', '.join(names)}")
        return chosen

    return read
