"""Drawings: valid SVG that needs nothing else, boxes apart from each other, text inside its box."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from fontTools.ttLib import TTFont
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.tools.explain.parsed import script_topologies
from watersmeet.tools.explain.query import Explanation, plan_details, query_topology
from watersmeet.tools.explain.svg import MOST_ACROSS, BoxPlace, card_of, draw, layout, text_width, wrap_text
from watersmeet.tools.explain.topology import Edge, Node, PlanBlock, PlanStep, Topology, sketch, topology

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCRIPTS = [*sorted((Path(__file__).parent / "golden").glob("*.sql"))]
SVG = "{http://www.w3.org/2000/svg}"

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""A drawing is looked at rather than made smaller, which takes minutes."""

words = st.text(st.characters(codec="utf-8"), max_size=40)
facts = st.lists(st.tuples(st.sampled_from(["keys", "why", "columns"]), st.lists(words, max_size=3)), max_size=2)


@st.composite
def blocks(draw_: st.DrawFn, depth: int = 2) -> PlanBlock:
    inputs = draw_(st.lists(blocks(depth - 1), max_size=3)) if depth else []
    kinds = st.sampled_from(["filter", "repartition", "project"]) if inputs else st.just("source")
    steps = draw_(st.lists(st.builds(PlanStep, kinds, words, facts.map(tuple)), min_size=1, max_size=2))
    beside = draw_(st.lists(st.builds(PlanStep, st.just("sink"), words), max_size=2))
    first = PlanStep("join" if inputs else "source", draw_(words), draw_(facts.map(tuple)), side_outputs=tuple(beside))
    return PlanBlock(draw_(words), (first, *steps), tuple(inputs))


def graphs_of(path: Path) -> list[Topology]:
    script = read_script(path.read_text("utf-8"), path.name)
    return [
        *(query_topology(query, plan_details(plan_query(query, OPERATORS), OPERATORS)) for query in analyze(script)),
        *script_topologies(script, FAMILIES),
    ]


def check(graphs: list[Topology]) -> None:
    text = draw(graphs)
    graphs = sketch(graphs)
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [_check_box(group) for group in root.iter(f"{SVG}g")]
    assert len(boxes) == sum(len(graph.nodes) for graph in graphs)
    assert all(box.x >= 0 and box.y >= 0 for box in boxes)
    # Sizes are rounded to whole pixels, places to tenths.
    assert all(box.x + box.width <= width + 1 and box.y + box.height <= height + 1 for box in boxes)
    assert not [pair for pair in combinations(boxes, 2) if _overlap(*pair)]
    assert len(list(root.iter(f"{SVG}path"))) == 1 + sum(len(graph.edges) for graph in graphs)


def _check_box(group: ElementTree.Element) -> BoxPlace:
    """The box of a node, after a look whether its lines are inside and below each other."""
    rect = next(one for one in group.iter(f"{SVG}rect") if one.attrib["class"] == "box")
    box = BoxPlace(*(float(rect.attrib[name]) for name in ("x", "y", "width", "height")))
    lines = list(group.iter(f"{SVG}text"))
    for line in lines:
        x, y, size = (float(line.attrib[name]) for name in ("x", "y", "font-size"))
        assert box.x < x and x + text_width(line.text or "", size) <= box.x + box.width
        assert box.y <= y - size and y < box.y + box.height
    tops = [(float(line.attrib["y"]), float(line.attrib["font-size"])) for line in lines]
    assert all(later - size >= earlier for (earlier, _), (later, size) in pairwise(tops))
    return box


def _overlap(a: BoxPlace, b: BoxPlace) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_queries_are_drawn(path: Path) -> None:
    check(graphs_of(path))


@settings(max_examples=examples(20), deadline=None, phases=UNSHRUNK)
@given(st.lists(blocks(), min_size=1, max_size=2))
def test_every_description_can_be_drawn(described: list[PlanBlock]) -> None:
    check([topology(block) for block in described])


@settings(max_examples=examples(20), deadline=None, phases=UNSHRUNK)
@given(blocks())
def test_no_edge_passes_a_box(block: PlanBlock) -> None:
    graph = topology(block)
    places = layout(graph, {node.id: card_of(node).size for node in graph.nodes})
    for edge in graph.edges:
        left, right = places[edge.start].x + places[edge.start].width, places[edge.end].x
        if right < left:
            # It goes on in the next row, below everything in this one.
            assert places[edge.end].y > places[edge.start].y + places[edge.start].height
            continue
        # The way from one box to the next is the gap between two columns, and whatever is wider in the first of them.
        # Columns of another row are above or below it.
        ends = [places[edge.start], places[edge.end]]
        low, high = min(place.y for place in ends), max(place.y + place.height for place in ends)
        beside = [place for place in places.values() if place.y < high and place.y + place.height > low]
        assert not [place for place in beside if places[edge.start].x < place.x < right]


def test_a_drawing_needs_nothing_else() -> None:
    text = draw(graphs_of(SCRIPTS[0]))
    assert "prefers-color-scheme: dark" in text
    assert not any(word in text for word in ("<script", "@import", "url(http", "href", "@font-face"))


def test_names_cannot_break_out_of_the_drawing() -> None:
    node = Node("source1", PlanStep("source", '</text><script>alert("x")</script>\x00'))
    text = draw([Topology("<&>", (node,), ())])
    assert "<script" not in text
    assert ElementTree.fromstring(text).find(f".//{SVG}script") is None


def test_side_outputs_stand_below_the_result() -> None:
    late = PlanStep("sink", "late rows")
    nodes = (
        Node("join1", PlanStep("join", side_outputs=(late,))),
        Node("sink1", late),
        Node("project1", PlanStep("project")),
    )
    graph = Topology("", nodes, (Edge("join1", "sink1"), Edge("join1", "project1")))
    places = layout(graph, {node.id: (80.0, 40.0) for node in nodes})
    assert places["sink1"].x == places["project1"].x
    assert places["sink1"].y > places["project1"].y
    assert places["project1"].middle == places["join1"].middle


TWO = """
CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 MINUTES) USING json OPTIONS (path 'in');
CREATE SINK pairs USING parquet OPTIONS (path 'out/pairs');
CREATE SINK late USING json OPTIONS (path 'out/late');
CREATE SINK some USING kafka OPTIONS (topic 'some', kafka.bootstrap.servers 'localhost:9092');
INSERT INTO pairs SELECT STREAM a.id, b.t FROM orders a JOIN orders b WITHIN 1h ON a.id = b.id LATE INTO late;
INSERT INTO some SELECT STREAM id FROM orders WHERE id > 5;
"""


def test_a_drawing_shows_what_its_readers_ask_for() -> None:
    """A source once, how long rows are kept, where rows go; nothing of how we do it."""
    script = read_script(TWO)
    planned = [(query, plan_details(plan_query(query, OPERATORS), OPERATORS)) for query in analyze(script)]
    graphs = [query_topology(query, found.with_sinks(script.sinks)) for query, found in planned]
    [drawn] = sketch(graphs)
    kinds = [node.step.kind for node in drawn.nodes]
    assert (kinds.count("source"), kinds.count("sink"), kinds.count("repartition")) == (1, 3, 0)
    check(graphs)
    texts = [[text.text for text in card_of(node).texts] for node in drawn.nodes]
    source, join = (next(t for t in texts if t[0] == kind) for kind in ("SOURCE", "JOIN"))
    assert source[1] == "stream orders from json"
    shown = " ".join(filter(None, join))
    assert "kept: a rows are kept until the watermark of b.t passes" in shown
    assert not any(word in shown for word in ("operator", "why", "repartition"))
    written = [line for text in texts if text[0] == "SINK" for line in text if (line or "").startswith("writes")]
    assert sorted(map(str, written)) == ["writes: json out/late", "writes: kafka some", "writes: parquet out/pairs"]


def test_a_wide_query_goes_on_below() -> None:
    nodes = tuple(Node(f"n{number}", PlanStep("join" if number else "source")) for number in range(9))
    graph = Topology("", nodes, tuple(Edge(f"n{n}", f"n{n + 1}") for n in range(8)))
    places = layout(graph, {node.id: (400.0, 40.0) for node in nodes})
    assert max(place.x + place.width for place in places.values()) <= MOST_ACROSS
    assert [places[f"n{n}"].x for n in (0, 3, 6)] == [0, 0, 0]
    assert places["n0"].y < places["n3"].y < places["n6"].y
    check([graph])


def test_the_widths_are_those_of_the_widest_font() -> None:
    # matplotlib brings the font along; importing it would take longer than all other tests here.
    matplotlib = find_spec("matplotlib")
    assert matplotlib is not None and matplotlib.origin is not None
    font: Any = TTFont(Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf")
    names, widths, unit = font.getBestCmap(), font["hmtx"], font["head"].unitsPerEm
    for place in range(32, 127):
        assert abs(text_width(chr(place), 1000) - widths[names[place]][0] * 1000 / unit) <= 1


@settings(max_examples=examples(100), deadline=None)
@given(words, st.floats(20, 200))
def test_broken_lines_fit_and_hold_the_whole_text(text: str, most: float) -> None:
    lines = wrap_text(text, 10, most)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(text_width(line, 10) <= most for line in lines)


def test_in_a_notebook_the_drawing_is_an_image_next_to_the_text(browser: Browser) -> None:
    shown = Explanation("a < b\n└─ c & d")
    shown.topologies = tuple(graphs_of(SCRIPTS[0]))
    page = browser.new_page()
    page.set_content(f"<!DOCTYPE html><body>{shown._repr_html_()}</body>")
    page.wait_for_function("document.images[0].complete")
    width, height = (float(ElementTree.fromstring(shown.svg).attrib[name]) for name in ("width", "height"))
    drawn = page.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
    assert drawn == [round(width), round(height)]
    assert page.locator("details pre").text_content() == shown
    assert page.locator("body > *").count() == 2
    page.close()
