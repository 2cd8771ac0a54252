"""The page in a real browser, over made-up histories.

With WRITE_GOLDEN=1 in the environment the pictures in docs/images are made again.
"""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.tools.studio.page.chromium import Tab, shows
from tests.tools.studio.page.histories import JOIN, batch, project, write
from tests.tools.studio.page.histories import start_event as start_of

from watersmeet.cli.script import open_script
from watersmeet.metrics.metrics import OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress
from watersmeet.tools.studio.page.description import QueryDescription, describe_queries
from watersmeet.tools.studio.page.model import RowSamples
from watersmeet.tools.studio.page.server import Watch, serve_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES = Path(__file__).parents[4] / "docs" / "images"


@pytest.fixture
def query(tmp_path: Path) -> QueryDescription:
    return project(tmp_path / "shop")


EXAMPLES = {
    JOIN: {
        "matched": [
            {"o.order_id": "8121", "o.item": "lamp", "o.order_time": "2026-03-02 08:10:04", "d.courier": "north"},
            {"o.order_id": "8119", "o.item": "coffee", "o.order_time": "2026-03-02 08:09:51", "d.courier": "hill"},
        ],
        "padded": [{"o.order_id": "7702", "o.item": "rug", "o.order_time": "2026-03-02 07:08:17", "d.courier": None}],
        "late": [
            {"o.order_id": "7655", "o.item": "bread", "late_by": "74000000", "watermark": "o.order_time"},
        ],
    },
    "orders": {
        "malformed": [{"place": "data/orders/17.json", "reason": "it is not a JSON object", "value": '{"order_id"'}]
    },
}


def lively(number: int, at: float, draw: random.Random) -> Progress:
    """A batch that is a little different from the one before."""
    kept = (int(6000 + 2500 * math.sin(number / 40) + draw.randint(0, 300)), int(900 + 300 * math.sin(number / 25)))
    found = batch(number, at, draw.randint(350, 450), draw.randint(250, 330), kept, draw.choice((0, 0, 1, 2)))
    # Most deliveries come within half an hour.
    delays = {str(number): int(60 * math.exp(-((number - 119) ** 2) / 18)) for number in range(108, 126)}
    lateness = {"108": found.late} if found.late else {}
    operators = {JOIN: replace(found.operators[JOIN], delays=delays, lateness=lateness)}
    return replace(
        found,
        operators=operators,
        seconds=0.6 + draw.random() / 2,
        parts={**found.parts, "addBatch": 0.4 + draw.random() / 2},
    )


ALL = "time,state,delays,batches,rows,query-text"
"""All sections."""


def test_numbers_are_those_of_the_history_and_live(query: QueryDescription, browser: Browser) -> None:
    now = time.time()
    write(query.storage, start_of(now - 30), *(batch(n, now - 30 + 3 * n) for n in range(10)))
    with serve_page(Watch("shop", [query], lambda: ""), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(f"{address}#/joined?open={ALL}")
        assert page.text_content("#n-rows-in") == "7,000"
        assert page.text_content("#n-matched") == "2,500"
        assert page.text_content("#n-kept") == "1,100"
        assert (
            page.text_content("#held") == "deliveries holds the others back, by 1 min. 900 rows of orders wait for it."
        )
        drawn = page.text_content('[data-box="join1"]') or ""
        assert "alive: orders 900 · deliveries 200" in drawn and "2,500 matched · 400 padded" in drawn
        assert "No problems" in (page.text_content("main") or "")
        write(query.storage, batch(10, now, kept=(1234, 5)))
        shows(page, "#n-rows-in", "7,700")
        assert "alive: orders 1,234 · deliveries 5" in (page.text_content('[data-box="join1"]') or "")
        assert page.locator("canvas").count() >= 5
        tab.check(address)


def test_keys_open_parts_and_choose_queries(query: QueryDescription, browser: Browser) -> None:
    now = time.time()
    other = replace(query, name="other")
    for name in ("joined", "other"):
        write(query.storage, start_of(now - 9), batch(0, now - 3), query=name)
    with serve_page(Watch("shop", [query, other]), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(address)
        page.focus('[data-box="join1"]')
        page.keyboard.press("Enter")
        part = page.text_content("#part") or ""
        assert "orders rows are kept until the watermark of d.delivery_time passes o.order_time + 1 h" in part
        page.keyboard.press("Escape")
        page.wait_for_selector("#part", state="detached")
        page.keyboard.press("2")
        shows(page, "#query span", "other")
        tab.check(address)


def test_a_link_shows_what_is_open_and_queries_are_found(query: QueryDescription, browser: Browser) -> None:
    now = time.time()
    for name in ("joined", "other"):
        write(query.storage, start_of(now - 9), batch(0, now - 3), query=name)
    with serve_page(Watch("shop", [query, replace(query, name="other")]), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(address)
        # Short at first: what is folded says in a line what is in it.
        assert page.locator("#batches table").count() == 0 and page.locator("#state canvas").count() == 2
        assert "1 batch in all runs" in (page.text_content("#batches-short") or "")
        page.click("#batches summary")
        page.click('[data-box="join1"]')
        page.keyboard.press("/")
        page.keyboard.type("oth")
        assert page.locator("nav a").all_text_contents()[0].strip().startswith("other")
        assert page.locator("nav a").count() == 1
        page.keyboard.press("Enter")
        shows(page, "#query span", "other")
        page.go_back()
        shows(page, "#query span", "joined")
        link = page.url
        assert "open=time,state,batches" in link and "part=join1" in link and "find=oth" in link
        other = Tab(browser).open(link)
        assert other.locator("#batches canvas").count() == 2 and other.locator("#part").count() == 1
        assert other.input_value("#find") == "oth"
        tab.check(address)


def test_before_the_first_batch_no_time_is_shown(query: QueryDescription, browser: Browser) -> None:
    write(query.storage, start_of(time.time()))
    with serve_page(Watch("shop", [query]), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(f"{address}#/joined?open={ALL}")
        assert page.locator("canvas").count() == 0
        seen = page.inner_text("main")
        assert "no batch yet" in seen
        assert not [word for word in ("undefined", "NaN", "00:0", "9223372036854775807") if word in seen]
        tab.check(address)


def test_a_page_whose_run_has_ended_says_so(query: QueryDescription, browser: Browser) -> None:
    now = time.time()
    write(query.storage, start_of(now - 9), batch(0, now - 3))
    tab = Tab(browser)
    with serve_page(Watch("shop", [query]), 0, "127.0.0.1") as address:
        page = tab.open(address)
        shows(page, "#query small", "runs")
        write(query.storage, replace(start_of(now), kind="ended"))
    shows(page, ".pulse", "the run has ended")
    shows(page, "#query small", "ended")
    assert "It has ended; the next run continues" in page.inner_text("main") and "/s" not in page.inner_text(".numbers")


SINKS = """
CREATE STREAM a (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING json OPTIONS (path 'a');
CREATE STREAM a2 (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING json OPTIONS (path 'a2');
CREATE STREAM b (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING json OPTIONS (path 'b');
CREATE SINK joined USING json OPTIONS (path 'out');
CREATE SINK tardy USING json OPTIONS (path 'late');
INSERT INTO joined SELECT STREAM l.id FROM (SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM a2) AS l
    JOIN b WITHIN 4 ON l.id = b.id LATE INTO tardy;
"""


def test_each_box_has_its_own_numbers(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "shop.sql").write_text(SINKS)
    opened = open_script(tmp_path / "shop.sql")
    [query] = describe_queries(opened.script, opened.queries, tmp_path / "storage")
    sides = {"left": SideMetrics(7, 2, 0, 0, 2), "right": SideMetrics(3, 0, 0, 0, 1)}
    numbers = OperatorMetrics("interval", matched=4, late=2, state_rows=3, shards=1, sides=sides)
    sources = {"a+a2": 7, "b": 3}
    progress = Progress("joined", 0, 10, 4, 4, late=2, operators={"l and b": numbers}, sources=sources, at=time.time())
    write(query.storage, start_of(time.time()), progress)
    with serve_page(Watch("shop", [query]), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(address)
        labels = page.locator("g.box").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        shown = " | ".join(labels)
        assert "10 rows" not in shown
        for part in ("b from json: ", "counted with its union", "7 rows", "INSERT INTO joined: ", "4 rows"):
            assert part in shown
        assert "late rows INTO tardy: 2 rows" in shown
        tab.check(address)


MARKUP = "<img src=x onerror=document.title='taken'>"


def test_markup_stays_text(tmp_path: Path, browser: Browser) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    script = f"""
    CREATE STREAM `{MARKUP}` (id BIGINT, `<script>t</script>` BIGINT,
        WATERMARK FOR `<script>t</script>` AS `<script>t</script>` - 0) USING json OPTIONS (path 'a');
    CREATE STREAM b (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) USING json OPTIONS (path 'b');
    CREATE SINK `s<b>` USING json OPTIONS (path 'out');
    INSERT INTO `s<b>` SELECT STREAM l.id FROM `{MARKUP}` l JOIN b ON l.id = b.id AND b.t BETWEEN l.`<script>t</script>`
        AND l.`<script>t</script>` + 4;
    """
    (folder / "shop.sql").write_text(script)
    opened = open_script(folder / "shop.sql")
    [query] = describe_queries(opened.script, opened.queries, folder / "storage")
    sides = {"left": SideMetrics(3, 0, 0, 0, 2), "right": SideMetrics(3, 0, 0, 0, 1)}
    numbers = OperatorMetrics("interval", matched=2, state_rows=3, shards=1, sides=sides)
    own = {"l.<script>t</script>": 5, "b.t": 3}
    progress = Progress(
        query.name, 0, 6, 2, 2, operators={"l and b": numbers}, own=own, marks=own, at=time.time(),
        sources={MARKUP: 3, "b": 3}, malformed=1, malformed_of={MARKUP: 1},
    )  # fmt: skip
    failed = replace(
        start_of(time.time()), kind="failed", text=f"{MARKUP}</script><script>document.title='taken'</script>"
    )
    write(query.storage, start_of(time.time()), progress, failed, query=query.name)
    with serve_page(Watch(MARKUP, [query]), 0, "127.0.0.1") as address:
        tab = Tab(browser)
        page = tab.open(f"{address}#/s%3Cb%3E?open={ALL}")
        page.click('[data-box="source1"]')
        seen = page.text_content("body") or ""
        assert page.text_content("h1") == MARKUP and page.text_content("#query span") == "s<b>"
        assert "l.<script>t</script>" in seen and f"1 row of {MARKUP} could not be read" in seen
        assert page.locator("img[src=x]").count() == 0 and page.locator("script").count() == 2
        assert page.title() == "(2) s<b> · Watersmeet"
        tab.check(address)


def test_the_page_fits_a_desk_and_a_phone_by_day_and_by_night(
    query: QueryDescription, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pictures are to show where things lie in a project, not on this machine.
    monkeypatch.chdir(str(query.storage.parent.parent))
    query = replace(query, storage=Path("shop/storage"))
    now = time.time()
    draw = random.Random(7)
    batches = [lively(n, now - 900 + 3 * n, draw) for n in range(250)]
    silent = [
        replace(lively(n, now - 900 + 3 * n, draw), sources={"orders": 400, "deliveries": 0}) for n in range(250, 300)
    ]
    silent = [replace(one, own={**one.own, "d.delivery_time": batches[-1].own["d.delivery_time"]}) for one in silent]
    write(query.storage, start_of(now - 900), *batches, *silent)
    rows = RowSamples()
    rows.take(replace(batches[-1], examples=EXAMPLES))
    looks = (("page", 1280, "light"), ("page-dark", 1280, "dark"), ("page-phone", 390, "light"))
    with serve_page(Watch("shop", [query], lambda: "", rows), 0, "127.0.0.1") as address:
        for name, width, scheme in looks:
            tab = Tab(browser, width, 900, scheme)
            page = tab.open(address)
            # What is wider than the screen says so.
            assert page.locator("#wider").count() == (width < 900)
            assert "deliveries has been silent for 2 min" in (page.text_content(".problems") or "")
            # Nothing hangs out at the side: what is wider scrolls by itself.
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert "99 % within 44 min 44 s, the bound is 1 h." in (page.text_content("main") or "")
            if name == "page":
                page.click('[data-box="join1"]')
            page.wait_for_timeout(400)
            if os.environ.get("WRITE_GOLDEN"):
                page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(16, 21, 28)") == (scheme == "dark")
            tab.check(address)
