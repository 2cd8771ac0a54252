"""The picture of lifetimes: its rows, watermarks and matches, and that it is plain XML for any content of rows."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from watersmeet.operators.outcomes import (
    Lineage,
    OutcomeKind,
    RowArrival,
    RowMatch,
    RowOutcome,
    TracedWatermark,
    UnmatchedReason,
)
from watersmeet.tools.explain.svg import text_width
from watersmeet.tools.studio.drawing import draw_timeline
from watersmeet.tools.studio.lanes import SHAPES, TimeScale

SVG = "{http://www.w3.org/2000/svg}"


def arrival(number: int, side: str, key: str | None, time: int | None, batch: int = 1) -> RowArrival:
    return RowArrival(number, side, {"o": "orders", "d": "deliveries"}[side], batch, {"id": key, "t": time}, key, time)


TOLD = Lineage(
    "joined",
    "event time",
    arrivals=(
        arrival(0, "o", "1", 0),
        arrival(1, "o", "2", 10),
        arrival(2, "d", "1", 40),
        arrival(3, "d", "9", 80, 2),
        arrival(4, "d", "2", 20, 3),
    ),
    watermarks=(
        TracedWatermark(1, "d", "d.t", 40),
        TracedWatermark(2, "d", "d.t", 80),
        TracedWatermark(3, "d", "d.t", 80),
    ),
    matches=(RowMatch(1, (0, 2)),),
    outcomes=(
        RowOutcome(0, "matched", 1, 60, 2, "It met the delivery of 40."),
        RowOutcome(2, "matched", 1, 40, 0, "It met the order of 0."),
        RowOutcome(0, "expired", 2, 60, 3, "The watermark passed 60."),
        RowOutcome(1, "padded", 2, 70, 3, "Nothing came for it until 70."),
        RowOutcome(3, "alive", 2, 80, None, "It may still meet an order."),
        RowOutcome(4, "late", 3, None, 3, "The watermark was 80 when it came."),
    ),
)


def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def lanes(picture: str) -> dict[int, ElementTree.Element]:
    found = [g for g in parse(picture).iter(f"{SVG}g") if g.get("class", "").startswith("lane")]
    return {int(lane.attrib["data-arrival"]): lane for lane in found}


def bar(lane: ElementTree.Element) -> tuple[float, float] | None:
    life = next((line for line in lane.iter(f"{SVG}line") if line.get("class") == "life"), None)
    return None if life is None else (float(life.attrib["x1"]), float(life.attrib["x2"]))


def shapes(lane: ElementTree.Element) -> set[str]:
    return {one.attrib["class"].split()[1] for one in lane.iter() if one.get("class", "").startswith("shape")}


def scale_of(picture: str) -> TimeScale:
    given = parse(picture).attrib
    return TimeScale(
        int(given["data-low"]), int(given["data-high"]), float(given["data-left"]), float(given["data-right"])
    )


def test_a_bar_is_as_long_as_the_life_of_its_row() -> None:
    picture = draw_timeline(TOLD)
    scale, drawn = scale_of(picture), lanes(picture)
    assert bar(drawn[0]) == (scale.x(0), scale.x(60))
    assert bar(drawn[1]) == (scale.x(10), scale.x(70))
    assert bar(drawn[4]) is None


def test_outcome_of_a_row_is_shown_by_shape_word_and_sentence() -> None:
    drawn = lanes(draw_timeline(TOLD))
    assert [shapes(drawn[n]) - {"dot"} for n in range(5)] == [{"cap"}, {"ring"}, {"cap"}, {"arrow"}, {"cross"}]
    said = {number: [text.text for text in lane.iter(f"{SVG}text")][-1] for number, lane in drawn.items()}
    assert said == {0: "matched, expired", 1: "padded", 2: "matched", 3: "alive", 4: "late"}
    assert "The watermark was 80 when it came." in str(drawn[4].findtext(f"{SVG}title"))


def test_why_a_row_matched_nothing_is_said_with_it() -> None:
    told = replace(TOLD, unmatched_reasons={1: UnmatchedReason("no such key", "No delivery has the id 2.")})
    assert "No delivery has the id 2." in str(lanes(draw_timeline(told))[1].findtext(f"{SVG}title"))


def test_every_fate_has_a_shape() -> None:
    assert set(OutcomeKind.__args__) <= set(SHAPES)
    for what in SHAPES:
        lineage = Lineage("q", "event time", TOLD.arrivals[:1], outcomes=(RowOutcome(0, what, 1, 9, None, "So."),))
        assert SHAPES[what] in shapes(lanes(draw_timeline(lineage))[0])


def test_rows_of_a_key_are_neighbours_and_a_line_joins_those_that_matched() -> None:
    picture = draw_timeline(TOLD)
    assert list(lanes(picture)) == [0, 2, 1, 4, 3]
    links = [line for line in parse(picture).iter(f"{SVG}line") if line.get("class") == "link"]
    assert [float(link.attrib["x1"]) for link in links[:-1]] == [scale_of(picture).x(40)]


def test_a_watermark_is_a_line_where_it_stands_and_dotted_where_it_stood() -> None:
    picture = draw_timeline(TOLD)
    lines = [(one.get("class"), float(one.attrib["x1"])) for one in parse(picture).iter(f"{SVG}line")]
    scale = scale_of(picture)
    assert ("mark past", scale.x(40)) in lines
    assert ("mark", scale.x(80)) in lines
    assert "d.t after batch 2: 80" in picture


def test_a_part_of_the_batches_is_drawn_on_the_scale_of_all() -> None:
    first = replace(TOLD, arrivals=TOLD.arrivals[:3], watermarks=TOLD.watermarks[:1], outcomes=TOLD.outcomes[:2])
    assert scale_of(draw_timeline(first, whole=TOLD)) == scale_of(draw_timeline(TOLD))
    assert scale_of(draw_timeline(first)) != scale_of(draw_timeline(TOLD))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a\x00b\x1f&amp;", "]]>"])
def test_markup_stays_text(text: str) -> None:
    lineage = Lineage(
        text,
        "event time",
        (replace(arrival(0, "o", text, 5), side=text, values={text: text}),),
        watermarks=(TracedWatermark(1, text, text, 4),),
        outcomes=(RowOutcome(0, "alive", 1, 9, None, text),),
    )
    names = {element.tag.removeprefix(SVG) for element in parse(draw_timeline(lineage, text)).iter()}
    assert names <= {"svg", "style", "rect", "text", "line", "path", "circle", "g", "title"}


def test_times_are_written_as_times_and_numbers_as_numbers() -> None:
    day = 1_772_409_600_000_000 + 8 * 3_600_000_000  # 2026-03-02 08:00
    arrivals = tuple(replace(one, time=day + (one.time or 0) * 60_000_000) for one in TOLD.arrivals)
    lineage = Lineage("q", "event time", arrivals, unit="microseconds")
    texts = [text.text for text in parse(draw_timeline(lineage)).iter(f"{SVG}text")]
    assert "08:30" in texts
    assert any(text and "(2026-03-02, UTC)" in text for text in texts)
    assert "20" in [text.text for text in parse(draw_timeline(TOLD)).iter(f"{SVG}text")]


def test_far_marks_and_the_end_of_the_input_do_not_stretch_the_axis() -> None:
    far = replace(
        TOLD, watermarks=(TracedWatermark(1, "o", "o.t", -(10**12)), TracedWatermark(2, "d", "d.t", 2**63 - 1))
    )
    scale = scale_of(draw_timeline(far))
    assert scale.high - scale.low < 200
    assert "the end" in draw_timeline(far)


def test_rows_without_a_time_and_no_rows_at_all_are_drawn() -> None:
    lineage = Lineage(
        "q", "event time", (arrival(0, "o", None, None),), outcomes=(RowOutcome(0, "null time", 1, None, None, "So."),)
    )
    assert shapes(lanes(draw_timeline(lineage))[0]) == {"dash"}
    assert parse(draw_timeline(Lineage("q", "arrivals"))) is not None


def test_a_drawing_is_the_same_every_time_and_carries_its_style_only_where_it_must() -> None:
    assert draw_timeline(TOLD) == draw_timeline(TOLD)
    assert "<style>" in draw_timeline(TOLD)
    apart = draw_timeline(TOLD, style="apart")
    assert "<style>" not in apart
    assert not re.search(r"\bstyle=", apart)


@pytest.mark.parametrize("width", [300, 560, 1000, 2000])
def test_texts_end_before_the_edge(width: int) -> None:
    picture = parse(
        draw_timeline(TOLD, "a name that is rather long, longer than a phone is wide, and so goes on", width=width)
    )
    room = float(picture.attrib["width"])
    assert room == max(width, 560)
    for one in picture.iter(f"{SVG}text"):
        size = 16 if one.get("class") == "title" else 10.5 if one.get("class") == "small" else 12
        end = float(one.attrib["x"]) + text_width(str(one.text), size) * (one.get("text-anchor") is None)
        assert end <= room, one.text


def test_too_many_rows_are_counted_and_not_drawn() -> None:
    lineage = Lineage("q", "event time", tuple(arrival(n, "o", "1", n) for n in range(160)))
    picture = draw_timeline(lineage)
    assert len(lanes(picture)) == 150
    assert "10 more rows are not drawn." in picture
