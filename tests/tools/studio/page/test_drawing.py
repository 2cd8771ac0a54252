"""The living drawing: boxes with room for their lines, and edges that pass no box, where it goes on below too."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.queries import analyze
from watersmeet.tools.studio.page.description import Box, Drawing, QueryDescription, describe_queries
from watersmeet.tools.testing.case import read_case, script_of

ROOT = Path(__file__).parents[4]


def drawings() -> list[Drawing]:
    found: list[Drawing] = []
    for project in ("examples/shop", "examples/clicks"):
        opened = open_script(ROOT / project)
        found += [query.drawing for query in describe_queries(opened.script, opened.queries, Path("storage"))]
    return found


def is_inside(box: Box, x: float, y: float) -> bool:
    return box.x < x < box.x + box.width and box.y < y < box.y + box.height


@pytest.mark.parametrize("drawing", drawings())
def test_drawn_parts_do_not_overlap(drawing: Drawing) -> None:
    for one, other in combinations(drawing.boxes, 2):
        apart = one.x + one.width <= other.x or other.x + other.width <= one.x
        assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y
    for line in drawing.lines:
        corners = re.findall(r"([HV]) (-?\d+)", line.path)
        if [way for way, _ in corners] != ["H", "V", "H", "V", "H"]:
            continue
        (_, beside), (_, lane), (_, before), (_, _), (_, _) = corners
        for box in drawing.boxes:
            ys = range(int(box.y) + 1, int(lane))
            assert not any(is_inside(box, float(beside), y) for y in ys)
            assert not any(is_inside(box, x, float(lane)) for x in range(int(before), int(beside)))


def test_a_wide_query_goes_on_below() -> None:
    ways = [re.sub(r"[^HVC]", "", line.path) for drawing in drawings() for line in drawing.lines]
    assert "HVHVH" in ways and "HC" in ways


@pytest.mark.parametrize("family", ["group", "nexmark", "top", "window"])
def test_no_generated_name_is_drawn(family: str) -> None:
    """Subqueries, columns to sort by and times of windows have names that no user gave them."""
    drawn, generated = 0, list[str]()
    for path in sorted((ROOT / "tests" / "cases" / family).glob("*.yaml")):
        try:
            script = script_of(read_case(path))
            queries = describe_queries(script, analyze(script), Path("storage"))
        except WatersmeetError:  # a case of a refusal
            continue
        texts = [text for query in queries for text in box_texts(query)]
        drawn += len(texts)
        generated += [f"{path.name}: {text}" for text in texts if re.search(r"(?<!\w)#\w", text)]
    assert drawn > 100 and generated == []


def box_texts(query: QueryDescription) -> list[str]:
    """What a box shows, and its part when it is opened; and what sides and watermarks are called."""
    boxes = [text for box in query.drawing.boxes for text in (*box.title, *box.lines)]
    facts = [text for box in query.drawing.boxes for _, lines in box.facts for text in lines]
    return [*boxes, *facts, *query.columns, *(side.name for sides in query.sides.values() for side in sides.values())]
