"""How progress is shown: a table on a terminal, else a short line per batch, or one of JSON."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from watersmeet.cli.console import Format
from watersmeet.cli.progress import ProgressDisplay, progress_summary, progress_table
from watersmeet.cli.run import notify
from watersmeet.metrics.progress import Progress, ProgressSchema, Totals, progress_of

SECOND_LONG = 1_000_000
EIGHT = 1_772_438_400
"""2026-03-02 08:00:00."""
FIRST = Progress(
    "delivered", 0, 1000, 700, 600, 100, 3, 400, {"o.order_time": "2026-03-02 08:00:00"}, 2.0,
    marks={"o.order_time": EIGHT * SECOND_LONG}, temporal=frozenset({"o.order_time", "d.delivery_time"}),
    sources={"orders": 600, "deliveries": 400}, state_bytes=2_500_000, at=EIGHT + 60.0,
    own={"o.order_time": EIGHT * SECOND_LONG, "d.delivery_time": (EIGHT - 90) * SECOND_LONG},
)  # fmt: skip
LATER = replace(
    FIRST, batch=1, rows_in=500, rows_out=300, matched=250, padded=50, late=1, state_rows=380, seconds=0.5,
    watermarks={"o.order_time": "2026-03-02 09:00:00"}, sources={"orders": 500, "deliveries": 0}, at=EIGHT + 63.0,
)  # fmt: skip


def show_two_batches(format: Format, *, is_terminal: bool) -> tuple[ProgressDisplay, str]:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120, legacy_windows=False)
    with ProgressDisplay(format, console) as board:
        board.show(FIRST)
        board.show(LATER)
    assert isinstance(console.file, io.StringIO)
    return board, console.file.getvalue()


def table(*batches: Progress, now: float, width: int = 160) -> list[str]:
    """The lines of the table, its columns one space apart."""
    totals = Totals()
    for batch in batches:
        totals = totals.plus(batch)
    console = Console(file=io.StringIO(), width=width)
    console.print(progress_table({"delivered": totals}, now, width))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_terminal_shows_totals_and_the_latest_watermarks() -> None:
    board, text = show_two_batches(Format.text, is_terminal=True)
    last = text.split("query")[-1]
    for part in ("1,500", "1,000", "850", "150", "4", "380", "2026-03-02 09:00:00", "0.5", "2.5 MB"):
        assert part in last
    assert (board.rows_in, board.late) == (1500, 4)


def test_the_table_has_rates_lags_and_which_side_holds_the_others_back() -> None:
    names, counts, *below = table(FIRST, LATER, now=EIGHT + 65.0)
    assert names == "query batch rows in in/s rows out out/s matched padded late state bytes s/batch"
    # 1,500 rows came in and 1,000 went out in the five seconds since the first of these batches began.
    assert counts == "delivered 1 1,500 300 1,000 200 850 150 4 380 2.5 MB 0.5"
    assert below == [
        "source orders 1,100 rows 220/s",
        "source deliveries 400 rows 80/s",
        "watermark o.order_time 2026-03-02 09:00:00 1 min 5 s behind",
    ]
    held = replace(LATER, watermarks={**LATER.watermarks, "d.delivery_time": "2026-03-02 07:58:30"})
    assert table(FIRST, held, now=EIGHT + 65.0)[-1] == "d.delivery_time holds the others back by 1 min 30 s"
    silent = replace(FIRST, own={"o.order_time": 1}, silent=frozenset({"d.delivery_time"}))
    assert table(silent, now=EIGHT)[-2:] == [
        "watermark d.delivery_time none", "d.delivery_time holds the others back: no row yet",
    ]  # fmt: skip


def test_on_a_narrow_terminal_a_query_is_a_column_and_no_number_is_cut() -> None:
    lines = table(FIRST, replace(LATER, rows_in=123_456_789), now=EIGHT + 65.0, width=80)
    assert lines[:3] == ["query delivered", "batch 1", "rows in 123,457,789"]
    assert "bytes 2.5 MB" in lines and not any("…" in line for line in lines)


CHAIN = replace(
    FIRST, query="chained", rows_in=12_345_678, rows_out=4_000_000, matched=9_876_543, padded=12_000, late=123_456,
    malformed=17, state_rows=7_654_321, matched_out=3_990_000, padded_out=10_000,
    sources={"orders": 8_000_000, "deliveries": 4_000_000, "customers": 345_678},
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 9, 19, 40])
def test_several_queries_fit_a_terminal_of_80_by_24(count: int) -> None:
    names = [f"chain_{number}" for number in range(count)]
    totals = {name: Totals().plus(replace(CHAIN, query=name)) for name in names}
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(progress_table(totals, EIGHT + 65.0, 80, 24))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) < 24 and all(len(line.rstrip()) <= 80 for line in lines)
    # No number is cut off: not by an ellipsis, and not by going on in the next line.
    assert "…" not in "".join(lines)
    shown = [name for name in names if any(line.startswith(name) for line in lines)]
    assert shown == names[: 21 if count == 40 else count] or count == 1
    assert lines[-1].startswith("and 19 more queries") == (count == 40)
    words = [" ".join(line.split()) for line in lines]
    flat = " ".join(words)
    assert "3.99 M 10,000 123,456" in flat or ("matched 3,990,000" in flat and "padded 10,000" in flat)
    if count > 1 and "source" in flat:
        places = [n for n, line in enumerate(words) if line.startswith("source orders")]
        assert [words[n - 1] for n in places] == [f"{name}:" for name in names]


def test_matched_and_padded_add_up_to_the_rows_out_of_a_chain() -> None:
    """The rows that joins pass to each other are not those of the result."""
    observed = {
        "watersmeet:o and d#0": {"matched": 70, "padded": 5, "shards": 1},
        "watersmeet:o+d and c#1": {"matched": 60, "padded": 15, "shards": 1},
        "watersmeet": {"rows": 75},
    }
    reported = {"batchId": 0, "durationMs": {}, "observedMetrics": observed}
    schema = ProgressSchema(last=frozenset({"watersmeet:o+d and c#1"}))
    totals = Totals().plus(*[progress_of("chained", reported, schema)] * 2)
    assert (totals.rows_out, totals.matched, totals.result) == (150, 260, (120, 30))
    # A history of an earlier version has no such numbers.
    assert Totals().plus(FIRST).result == (600, 100)


def test_rates_fade_when_nothing_comes() -> None:
    totals = Totals().plus(FIRST)
    assert totals.rates(EIGHT + 62.0).rows_in == 500
    assert totals.rates(EIGHT + 90.0).rows_in == 0


def test_something_moves_before_the_first_batch() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with ProgressDisplay(Format.text, console) as board:
        time.sleep(1.7)
        assert isinstance(console.file, io.StringIO)
        assert "Starting Spark, 0 s" in console.file.getvalue() and "Starting Spark, 1 s" in console.file.getvalue()
        board.wait_for("Waiting for the first batch")
        time.sleep(0.5)
        assert "Waiting for the first batch, 0 s" in console.file.getvalue()


def test_a_pipe_says_what_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(Format.text, Console(file=io.StringIO(), force_terminal=False)) as board:
        board.wait_for("Waiting for the first batch")
    assert capsys.readouterr().err == "Starting Spark ...\nWaiting for the first batch ...\n"


def test_news_stand_above_the_table() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with ProgressDisplay(Format.text, console) as board:
        board.show(FIRST)
        notify("joined: c loaded, 3 rows.")
    assert isinstance(console.file, io.StringIO)
    before, news, after = console.file.getvalue().partition("joined: c loaded, 3 rows.\n")
    assert news and before.endswith("\x1b[2K") and "rows in" in after


def test_the_partitions_of_windows_have_a_column() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, legacy_windows=False)
    with ProgressDisplay(Format.text, console) as board:
        board.show(replace(FIRST, partitions={"left": 1200, "right": 0}))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().split("query")[-1]
    assert "partitions" in shown and "1,200 + 0" in shown


def test_without_a_terminal_there_is_a_short_line_per_batch() -> None:
    _, text = show_two_batches(Format.text, is_terminal=False)
    first, second = text.splitlines()
    assert first == (
        "delivered: batch 0, 1,000 rows in, 700 out, 3 late, 400 kept, 2.0 s, watermark 2026-03-02 08:00:00"
    )
    assert len(second) < 120
    assert "late" not in progress_summary(replace(FIRST, late=0))
    assert progress_summary(replace(FIRST, rows_in=1)).startswith("delivered: batch 0, 1 row in, ")


def test_the_full_record_is_json() -> None:
    for is_terminal in (True, False):
        _, text = show_two_batches(Format.json, is_terminal=is_terminal)
        lines = [json.loads(line) for line in text.splitlines()]
        assert [(line["batch"], line["rows_in"], line["late"]) for line in lines] == [(0, 1000, 3), (1, 500, 1)]
        assert lines[0]["watermarks"] == {"o.order_time": "2026-03-02 08:00:00"}
        assert (lines[0]["sources"], lines[0]["state_bytes"]) == ({"orders": 600, "deliveries": 400}, 2_500_000)


def test_a_watermark_that_is_far_behind_is_not_cut_off_where_it_is_narrow() -> None:
    hours = 259 * 24 + 10
    lines = table(FIRST, LATER, now=EIGHT + hours * 3600.0, width=50)
    assert not any("…" in line for line in lines)
    assert any("o.order_time" in line for line in lines)


def test_a_phase_is_shown_until_its_query_starts_again() -> None:
    display = ProgressDisplay(Format.text, Console(file=io.StringIO()))
    display.show(Progress("joined", 0, 10, phase="history"))
    console = Console(file=io.StringIO(), width=100)
    console.print(progress_table(display.totals, time.time(), 100))
    display.start("joined")
    display.start("other")
    console.print(progress_table(display.totals, time.time(), 100))
    before, after = console.file.getvalue().split("joined")[1:]  # pyright: ignore[reportAttributeAccessIssue]
    assert before.startswith(" (history)") and not after.startswith(" (")
