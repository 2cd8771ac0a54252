"""The page of a query that runs: in a real browser, the numbers that Spark reports, as it reports them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from tests.tools.studio.page.chromium import Tab, shows

from watersmeet.cli.script import OpenedScript, open_script
from watersmeet.metrics.history import Recorder, history_file, read_history
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.metrics.prometheus import MetricsRegistry
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.studio.page.description import describe_queries
from watersmeet.tools.studio.page.model import RowSamples
from watersmeet.tools.studio.page.server import Watch, serve_page
from watersmeet.tools.trace.live import LiveDiagnosis

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE STREAM orders (id BIGINT, note STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE)
    USING json OPTIONS (path 'orders', malformed 'drop');
CREATE STREAM deliveries (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE)
    USING json OPTIONS (path 'deliveries');
CREATE SINK joined USING json OPTIONS (path 'output');
INSERT INTO joined
SELECT STREAM o.id, o.note, d.at AS delivered FROM orders o
LEFT JOIN deliveries d ON o.id = d.id AND d.at BETWEEN o.at AND o.at + INTERVAL 2 HOURS;
"""
MARKUP = "<img src=x onerror=document.title='taken'>"
EIGHT = datetime(2026, 3, 2, 8, tzinfo=UTC)


def arrive(folder: Path, source: str, *rows: tuple[int, float]) -> None:
    """Let rows arrive: the number of an order, and how many minutes after eight o'clock."""
    lines = [
        json.dumps({"id": order, "note": MARKUP, "at": f"{EIGHT + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"})
        for order, minutes in rows
    ]
    if source == "orders" and len(rows) == 2:
        lines.append('{"id": "<b>none</b>"}')
    (folder / source).mkdir(exist_ok=True)
    hidden = folder / source / f".{time.time_ns()}"
    hidden.write_text("\n".join(lines))
    hidden.rename(folder / source / f"{time.time_ns()}.json")


def follow(folder: Path) -> HistoryFollower:
    found = HistoryFollower(folder / "storage", "joined")
    found.poll()
    return found


class QueryRun:
    """The query, running in a thread, and what it reported."""

    def __init__(self, opened: OpenedScript, spark: SparkSession, storage: Path) -> None:
        self.opened, self.spark, self.storage = opened, spark, storage
        self.metrics, self.rows, self.seen, self.stop = MetricsRegistry(), RowSamples(), list[Progress](), Event()
        self.thread = Thread(target=self._run)

    def _run(self) -> None:
        from watersmeet.spark.run.running import run_script

        recorder = Recorder(self.storage, print)

        def take(progress: Progress) -> None:
            self.seen.append(progress)
            self.metrics.take(progress)
            self.rows.take(progress)
            recorder.take(progress)

        with suppress(KeyboardInterrupt):
            run_script(
                self.opened.script,
                analyzed=self.opened.queries,
                spark=self.spark,
                storage=self.storage,
                trigger="continuous",
                options=StartOptions(sample_rows="some"),
                listeners=Listeners(
                    on_progress=take,
                    on_start=recorder.start,
                    on_failure=recorder.fail,
                    on_end=recorder.end,
                    is_interrupted=self.stop.is_set,
                ),
            )
        recorder.close()

    def run_batches(self, folder: Path, count: int) -> None:
        """Let so many further batches run, each of some rows."""
        for _ in range(count):
            before, patience = len(self.seen), time.monotonic() + 60
            arrive(folder, "deliveries", *((n, 200) for n in range(500)))
            while len(self.seen) == before and time.monotonic() < patience:
                time.sleep(0.05)

    def __enter__(self) -> QueryRun:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join(60)


def test_the_page_shows_what_the_query_reports_as_it_does(  # noqa: PLR0915 - one query, seen by many views
    spark: SparkSession, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "shop.sql").write_text(SCRIPT)
    arrive(tmp_path, "orders", (1, 0), (2, 10), (3, 20))
    arrive(tmp_path, "deliveries", (1, 12), (2, 40), (9, 30))
    opened = open_script(tmp_path / "shop.sql", "absolute")
    queries = describe_queries(opened.script, opened.queries, tmp_path / "storage")
    with QueryRun(opened, spark, tmp_path / "storage") as running:
        watch = Watch("shop", queries, running.metrics.text, running.rows)
        watch.ask = LiveDiagnosis(
            spark, opened.script.resolve_options(), opened.queries, tmp_path / "storage", "shop.sql"
        ).why
        with serve_page(watch, 0, "127.0.0.1") as address:
            tab = Tab(browser)
            page = tab.open(f"{address}#/joined?open=time,state,delays,batches,rows,query-text")
            shows(page, "#n-rows-in", "6")
            shows(page, "#n-matched", "2")
            # Order 4 is late by nine minutes, and deliveries at eleven let the other one out alone.
            arrive(tmp_path, "orders", (4, 10), (5, 120))
            arrive(tmp_path, "deliveries", (5, 180))
            shows(page, "#n-rows-in", "9")
            total = {name: sum(getattr(one, name) for one in running.seen) for name in ("matched", "padded", "late")}
            for name, number in total.items():
                shows(page, f"#n-{name}", str(number))
            assert total == {"matched": 3, "padded": 1, "late": 1}
            last = running.seen[-1]
            shows(page, "#n-kept", str(last.state_rows))
            sides = last.operators["o and d"].sides
            drawn = page.text_content('[data-box="join1"]') or ""
            assert f"alive: orders {sides['left'].state_rows} · deliveries {sides['right'].state_rows}" in drawn
            for column, words in last.watermarks.items():
                shows(page, f'[data-mark="{column}"]', words)
            seen = page.text_content("main") or ""
            # 60 and 9 minutes are the longest, each known to a quarter of itself.
            assert "99 % within 1 h 2 min, the bound is 2 h." in seen
            assert "Half by no more than 11 min 11 s" in seen
            kinds = {kind["kind"]: kind for kind in running.rows.to_json("joined")["kinds"]}  # pyright: ignore
            assert set(kinds) == {"matched", "padded", "late", "malformed"}
            assert [row["values"][:2] for row in kinds["padded"]["rows"]] == [["3", MARKUP]]
            assert "9 min behind the watermark of o.at" in kinds["late"]["rows"][0]["why"]
            assert seen.count(MARKUP) >= 5 and '{"id": "<b>none</b>"}' in seen
            assert "`id` is BIGINT and the text has <b>none</b>" in seen
            assert page.locator("img[src=x]").count() == 0 and page.title() != "taken"
            page.click("tr.asks:has-text('without a match')")
            page.wait_for_selector("tr.told pre:has-text('arrived')", timeout=60_000)
            told = page.text_content("tr.told pre") or ""
            assert "1 row of orders has id 3" in told and "padded" in told
            assert "No row of d has the key 3." in told and MARKUP[:20] in told
            page.focus("tr.asks:has-text('without a match')")
            page.keyboard.press("Enter")
            page.wait_for_selector("tr.told", state="detached")
            # Bytes per side, as they were written; files that wait are counted.
            page.focus('[data-box="join1"]')
            page.keyboard.press("Enter")
            left = follow(tmp_path).operators["o and d"].sides["left"]
            assert left.state_bytes and left.state_bytes > 20 * left.state_rows
            size = left.state_bytes
            shown = f"{size} B" if size < 1000 else f"{size / 1000:.1f} kB"
            assert shown in (page.text_content("#part") or "")
            page.wait_for_selector('[data-box="source1"]:has-text("backlog 0 files")', timeout=40_000)
            tab.check(address)
            served_metrics = page.request.get(f"{address}metrics").text()
            assert 'watersmeet_source_rows_total{query="joined",source="orders"} 5' in served_metrics
            running.run_batches(tmp_path, 3)
        # The query goes on without its page.
        running.run_batches(tmp_path, 3)
    # Rows are shown, and written down nowhere.
    assert MARKUP not in history_file(tmp_path / "storage", "joined").read_text()
    history = read_history(tmp_path / "storage", "joined")
    assert list(history.batches) == running.seen and history.totals.rows_in == 9 + 6 * 500
    assert [event.kind for event in history.events] == ["started", "stopped"]
