"""How progress is shown: a table on a terminal, lines of JSON elsewhere."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from watersmeet.cli.failure import Format
from watersmeet.cli.progress import Board
from watersmeet.observe.progress import Progress

FIRST = Progress("delivered", 0, 1000, 700, 600, 100, 3, 400, {"o.order_time": "2026-03-02 08:00:00"}, 1.25)
SECOND = Progress("delivered", 1, 500, 300, 250, 50, 1, 380, {"o.order_time": "2026-03-02 09:00:00"}, 0.5)


def shown(format: Format, *, is_terminal: bool) -> tuple[Board, str]:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, legacy_windows=False)
    with Board(format, console) as board:
        board.show(FIRST)
        board.show(SECOND)
    assert isinstance(console.file, io.StringIO)
    return board, console.file.getvalue()


def test_a_terminal_shows_totals_and_the_latest_watermarks() -> None:
    board, text = shown(Format.text, is_terminal=True)
    last = text.split("query")[-1]
    for part in ("1,500", "1,000", "850", "150", "4", "380", "2026-03-02 09:00:00", "0.5"):
        assert part in last
    assert (board.rows_in, board.late) == (1500, 4)


def test_the_partitions_of_windows_have_a_column() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with Board(Format.text, console) as board:
        board.show(replace(FIRST, partitions={"left": 1200, "right": 0}))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().split("query")[-1]
    assert "partitions" in shown and "1,200 + 0" in shown


def test_elsewhere_there_is_a_line_per_batch() -> None:
    for format, is_terminal in ((Format.text, False), (Format.json, True), (Format.json, False)):
        _, text = shown(format, is_terminal=is_terminal)
        lines = [json.loads(line) for line in text.splitlines()]
        assert [(line["batch"], line["rows_in"], line["late"]) for line in lines] == [(0, 1000, 3), (1, 500, 1)]
        assert lines[0]["watermarks"] == {"o.order_time": "2026-03-02 08:00:00"}
