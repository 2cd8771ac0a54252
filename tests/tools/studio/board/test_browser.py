"""The board in a real browser: rows and picture of each family, what a hand can do, and what never happens."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.tools.studio.board.conftest import LARGE, STORIES, Serve

from watersmeet.operators import FAMILIES
from watersmeet.tools.studio.board.model import Board, BoardBatch
from watersmeet.tools.studio.board.server import open_board
from watersmeet.tools.testing import parse_case, read_case, run_case

IMAGE = Path(__file__).parents[4] / "docs" / "images" / "play.png"
MARKUP = "<img src=x onerror=document.title='taken'>"


def open_page(page: Page, address: str) -> Page:
    """The page, once it shows what the server answered."""
    page.goto(address)
    expect(page.locator("#picture svg")).to_be_visible()
    return page


def lane(page: Page, text: str) -> str:
    """What the picture says became of the row with that text."""
    return page.locator(".lane", has_text=text).locator("text").last.text_content() or ""


def test_every_family_opens_and_shows_its_rows_its_picture_and_its_result(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    for family in FAMILIES:
        case = read_case(STORIES / f"{family}.yaml")
        option = page.locator("#picker option", has_text=f"{family}:")
        page.locator("#picker").select_option(value=option.get_attribute("value"))
        expect(page.locator("#name")).to_have_value(case.name)
        rows = sum(len(rows or ()) for batch in case.batches for rows in batch.rows.values())
        expect(page.locator("#batches tbody tr")).to_have_count(rows)
        expect(page.locator("#picture .lane")).to_have_count(rows)
        expect(page.locator("#batches .fate", has_text="matched").first).to_be_visible()
        results = sum(max(1, len(batch.out or ())) for batch in case.batches)
        expect(page.locator("#results tbody tr")).to_have_count(results)


def test_a_row_that_is_moved_to_a_later_batch_becomes_late_and_says_why(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    assert lane(page, "1, north") == "matched, expired"
    row = page.locator("#batches tr", has=page.get_by_label("deliveries row 0 of batch 0, courier"))
    row.get_by_title("Move it one batch later").click()
    expect(page.get_by_label("deliveries row 0 of batch 1, courier")).to_have_value("north")
    page.get_by_label("Move row 0 of deliveries in batch 1").focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(page.get_by_label("deliveries row 0 of batch 2, courier")).to_have_value("north")
    expect(page.locator(".lane", has_text="1, north").locator("text").last).to_have_text("late")
    expect(page.locator(".lane", has_text="1, coffee").locator("text").last).to_have_text("padded")
    page.locator(".lane", has_text="1, north").hover()
    expect(page.locator("#why")).to_contain_text("It was late by 35 min")
    page.locator("#undo").click()
    page.locator("#undo").click()
    page.locator("#undo").click()
    expect(page.locator(".lane", has_text="1, north").locator("text").last).to_have_text("matched, expired")


def test_a_row_is_dragged_into_another_batch_and_carried_by_keys_from_its_bar(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    page.get_by_label("Move row 0 of deliveries in batch 0").drag_to(page.get_by_label("batch 1", exact=True))
    expect(page.get_by_label("deliveries row 1 of batch 1, courier")).to_have_value("north")
    expect(page.locator(".lane", has_text="1, north").locator(".said").first).to_have_text("1")
    page.locator(".lane", has_text="1, north").focus()
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_label("deliveries row 0 of batch 2, courier")).to_have_value("north")
    expect(page.locator(".lane", has_text="1, north").locator("text").last).to_have_text("late")


def test_a_mark_is_promised_without_a_row(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    page.get_by_label("Add a mark to batch 2").select_option("deliveries.t")
    page.get_by_label("watermark of deliveries.t in batch 2").fill("2026-03-02 12:00")
    expect(page.locator(".lane", has_text="4, tea").locator("text").last).to_have_text("padded")
    page.get_by_label("watermark of deliveries.t in batch 2").fill("soon")
    expect(page.locator(".refusal")).to_contain_text("'soon' is not a watermark of `d.t`")


def test_a_cell_that_is_typed_into_is_answered_at_once(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    cell = page.get_by_label("deliveries row 0 of batch 2, t")
    cell.fill("2026-03-02 09:25")
    expect(page.locator(".lane", has_text="2, hill").locator("text").last).to_have_text("alive")
    cell.fill("soon")
    expect(page.locator("#batches .fate", has_text="soon is not a value of type TIMESTAMP.")).to_be_visible()
    expect(page.locator("#picture.old")).to_be_visible()
    cell.fill("2026-03-02 08:50")
    expect(page.locator(".lane", has_text="2, hill").locator("text").last).to_have_text("late")


def test_a_bar_is_moved_by_keys_and_by_the_pointer(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    late = page.locator(".lane", has_text="2, hill")
    late.focus()
    for _ in range(4):
        page.keyboard.press("Shift+ArrowRight")
    expect(late.locator("text").last).not_to_have_text("late")
    time = page.get_by_label("deliveries row 0 of batch 2, t")
    expect(time).to_have_value("2026-03-02 09:30")
    dot = page.locator(".lane", has_text="1, coffee").locator(".start").bounding_box()
    assert dot is not None
    page.mouse.move(dot["x"] + 4, dot["y"] + 4)
    page.mouse.down()
    page.mouse.move(dot["x"] + 150, dot["y"] + 4, steps=4)
    page.mouse.up()
    expect(page.locator(".lane", has_text="1, coffee").locator("text").last).not_to_have_text("matched, expired")
    expect(page.get_by_label("orders row 0 of batch 0, t")).not_to_have_value("2026-03-02 08:00")
    expect(time).to_have_value("2026-03-02 09:30")


def test_batches_are_stepped_through_on_one_scale(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    low = page.locator("#picture svg").get_attribute("data-low")
    for said, lanes in (("after batch 1", 6), ("after batch 0", 4)):
        page.locator("#earlier").click()
        expect(page.locator("#step-said")).to_have_text(said)
        expect(page.locator("#picture .lane")).to_have_count(lanes)
        assert page.locator("#picture svg").get_attribute("data-low") == low
    expect(page.locator(".lane", has_text="2, lamp").locator("text").last).to_have_text("alive")


def test_a_change_does_not_wait_for_a_computation_that_takes_long(page: Page, serve: Serve) -> None:
    quick = replace(LARGE, sql=LARGE.sql.partition("SELECT")[0] + "SELECT TABLE k FROM a")
    page.goto(serve(first=quick, seconds=3600))
    expect(page.locator("#picture svg")).to_be_visible()
    with page.expect_request("**/answer"):
        page.locator("#sql").fill(LARGE.sql)
    page.get_by_label("a row 0 of batch 0, k").fill("one")
    expect(page.locator("#batches .fate", has_text="one is not a value of type INT.")).to_be_visible()


def test_a_refusal_stands_next_to_the_query(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    sql = page.locator("#sql")
    text = sql.input_value()
    sql.fill(text.replace("d.courier", "d.curier"))
    refusal = page.locator(".refusal")
    expect(refusal).to_contain_text("There is no column `d.curier` in deliveries.")
    expect(refusal).to_contain_text("Hint: did you mean `courier`?")
    expect(refusal).to_contain_text("UNKNOWN_COLUMN")
    expect(page.locator("#shade mark")).to_have_text("d.curier")
    expect(page.locator("#save")).to_be_disabled()
    refusal.get_by_role("button").click()
    assert page.evaluate("document.activeElement.id") == "sql"
    sql.fill(text)
    expect(refusal).to_have_count(0)
    expect(page.locator("#picture.old")).to_have_count(0)


def test_rows_and_batches_are_added_and_removed(page: Page, serve: Serve) -> None:
    open_page(page, serve())
    page.get_by_role("button", name="Add a batch").click()
    page.get_by_label("Add a row of deliveries to batch 3").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("4")
    expect(page.locator("#picture .lane")).to_have_count(8)
    page.get_by_label("Remove batch 3").click()
    expect(page.locator("#picture .lane")).to_have_count(7)
    page.locator("#ends").check()
    expect(page.locator("#results")).to_contain_text("the end")


def test_a_script_without_rows_gets_its_first_ones(page: Page, serve: Serve) -> None:
    open_page(page, serve(Board("", open_board(STORIES / "interval.yaml").sql, batches=(BoardBatch(),))))
    for source in ("orders", "deliveries"):
        page.get_by_label(f"Add a row of {source} to batch 0").click()
    expect(page.locator(".lane", has_text="1, a, 2026-03-02 08:00")).to_have_count(2)
    expect(page.locator(".meeting")).to_have_count(1)


def test_a_board_is_saved_as_a_case_that_passes(page: Page, serve: Serve, tmp_path: Path) -> None:
    open_page(page, serve())
    page.locator("#name").fill("what I found")
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "what-i-found.yaml"
    path = tmp_path / "found.yaml"
    download.value.save_as(path)
    case = parse_case(path.read_text("utf-8"))
    assert case.name == "what I found"
    assert run_case(case, "kernel").status == "passed"

    target = tmp_path / "told.yaml"
    open_page(page, serve(save=target))
    page.locator("#save").click()
    expect(page.locator("#told")).to_have_text(f"Saved to {target}.")
    assert target.is_file()


def test_markup_stays_text(page: Page, serve: Serve) -> None:
    name = MARKUP.replace("`", "")
    sql = (
        f"CREATE STREAM a (`{name}` STRING, t BIGINT, WATERMARK FOR t AS t - 0);\n"
        f"CREATE STREAM b (`{name}` STRING, t BIGINT, WATERMARK FOR t AS t - 0);\n"
        f"SELECT STREAM a.`{name}`, b.t FROM a LEFT JOIN b ON a.`{name}` = b.`{name}` AND b.t BETWEEN a.t AND a.t + 5;"
    )
    row = ((MARKUP, "1"),)
    open_page(page, serve(Board(MARKUP, sql, batches=(BoardBatch({"a": row, "b": row}),))))
    expect(page.locator("#results td", has_text=MARKUP)).to_be_visible()
    expect(page.locator("#batches th", has_text=MARKUP).first).to_be_visible()
    page.locator(".lane").first.hover()
    expect(page.locator("#why")).to_contain_text(MARKUP)
    page.locator("#sql").fill(sql.replace("b.t FROM", f"`{MARKUP}<b>` FROM"))
    expect(page.locator(".refusal")).to_contain_text(MARKUP)
    assert page.locator("img, #refusals b b, script:not([src])").count() == 0
    assert page.title() == "Watersmeet drawing board"


def test_no_request_leaves_the_machine(page: Page, serve: Serve) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    address = serve()
    open_page(page, address)
    page.locator("#earlier").click()
    expect(page.locator("#step-said")).to_have_text("after batch 1")
    assert len(asked) > 8
    places = {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
    assert places == {urlsplit(address).netloc}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_the_board_fits_a_screen_and_a_phone_in_light_and_dark(
    browser: Browser, serve: Serve, width: int, scheme: str, tmp_path: Path
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = open_page(context.new_page(), serve())
    expect(page.locator("#results table")).to_be_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.locator(".lane", has_text="2, hill").hover()
    expect(page.locator("#why")).to_contain_text("It was late by 25 min")
    # The image of the documents is made where that is asked for; else a run of the tests changes no file.
    is_kept = "WATERSMEET_IMAGES" in os.environ and (width, scheme) == (1280, "light")
    kept = IMAGE if is_kept else tmp_path / "page.png"
    page.screenshot(path=kept, full_page=True)
    assert kept.stat().st_size > 10_000
    context.close()


def test_everything_can_be_reached_and_has_a_name(page: Page, serve: Serve) -> None:
    open_page(page, serve(open_board(STORIES / "lookup.yaml")))
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, .lane")]
          .filter((one) => !one.closest("[hidden], label") && !one.ariaLabel && !one.textContent.trim())
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    seen: set[str] = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('class') || ''"))
    assert {"picker", "sql", "step", "lane side0 chosen", "lane side1 chosen", "grip"} <= seen
