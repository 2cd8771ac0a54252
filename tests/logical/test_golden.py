"""Texts that people read, compared to the letter: refusals, and queries explained.

Every ``golden/NAME.sql`` belongs to a ``golden/NAME.txt``; UPDATE_GOLDEN=1 in the environment writes the latter.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.words import Fact
from watersmeet.operators import OPERATORS
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.queries import analyze, read_script
from watersmeet.tools.explain.query import PlanDetails, query_as_json, render_query

GOLDEN = Path(__file__).parent / "golden"


def answer(path: Path) -> str:
    try:
        queries = analyze(read_script(path.read_text("utf-8"), path.name, external_names=()))
    except WatersmeetError as error:
        return f"{error}\n"
    warnings = [f"Warning: {warned.message}" for query in queries for warned in query.warnings]
    return "\n\n".join([*(render_query(query, PlanDetails(OPERATORS)) for query in queries), *warnings]) + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sql")), ids=lambda path: path.stem)
def test_the_answer_reads_as_agreed(path: Path):
    expected = path.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(answer(path), "utf-8")
    assert answer(path) == expected.read_text("utf-8")


def test_every_golden_text_has_its_script():
    assert {p.stem for p in GOLDEN.glob("*.sql")} == {p.stem for p in GOLDEN.glob("*.txt")}


def test_json_says_what_the_tree_says():
    [query] = analyze(read_script((GOLDEN / "bounded_left_join.sql").read_text("utf-8"), "q.sql"))
    remarks: list[Fact] = [("operator", ["an interval join"]), ("why", ["it has bounds", "in both directions"])]
    found = query_as_json(
        query, PlanDetails(OPERATORS, lambda kept: remarks if isinstance(kept, AnalyzedIntervalJoin) else [])
    )
    relation = json.loads(json.dumps(found))["relation"]
    assert relation["remarks"] == dict(remarks)
    assert relation["keys"] == [["o.order_id", "d.order_id"]]
    assert relation["bounds"] == [
        {"column": "o.order_time", "other": "d.delivery_time", "constant": 3_600_000_000, "strict": False},
        {"column": "d.delivery_time", "other": "o.order_time", "constant": 300_000_000, "strict": False},
    ]
    assert relation["left"]["filters"] == ["o.item_id > 0"]
    assert all(line in render_query(query, PlanDetails(OPERATORS)) for line in relation["kept"])


def test_json_tells_of_unions_heartbeats_and_late_rows():
    [query] = analyze(read_script((GOLDEN / "union.sql").read_text("utf-8"), "q.sql"))
    found = json.loads(json.dumps(query_as_json(query, PlanDetails(OPERATORS))))
    assert found["late_into"] == "too_late"
    union = found["relation"]["left"]
    assert (union["alias"], union["heartbeat"]) == ("s", "s.kind = 'hb'")
    assert [part["scan"] for part in union["parts"]] == ["web", "shop"]
    assert [mark["idle"] for part in union["parts"] for mark in part["watermarks"]] == ["30 s", "5 min"]


def test_json_tells_what_a_join_of_the_left_side_emits():
    [query] = analyze(read_script((GOLDEN / "semi_join.sql").read_text("utf-8"), "q.sql"))
    found = json.loads(json.dumps(query_as_json(query, PlanDetails(OPERATORS))))["relation"]
    assert (found["join"], found["left"]["join"]) == ("anti", "semi")
    assert all(
        line in render_query(query, PlanDetails(OPERATORS))
        for join in (found, found["left"])
        for line in join["emitted"]
    )
    assert all(join["emitted"] for join in (found, found["left"]))


@pytest.mark.parametrize(("name", "joins"), [("window_join", 2), ("sync_join", 2), ("asof_join", 3)])
def test_json_says_of_every_family_what_the_tree_says(name: str, joins: int):
    queries = analyze(read_script((GOLDEN / f"{name}.sql").read_text("utf-8"), "q.sql"))
    assert len(queries) == joins
    for query in queries:
        found = json.loads(json.dumps(query_as_json(query, PlanDetails(OPERATORS))))["relation"]
        text = render_query(query, PlanDetails(OPERATORS))
        lines = [
            line
            for label in ("windows", "arrival", "alone", "ports", "version", "kept")
            for line in found.get(label, [])
        ]
        assert lines
        assert all(line in text for line in lines)


def test_remarks_stand_in_the_tree():
    [query] = analyze(read_script((GOLDEN / "bounded_left_join.sql").read_text("utf-8"), "q.sql"))
    remarks: list[Fact] = [("operator", ["interval join"]), ("why", ["it has bounds", "in both directions"])]
    text = render_query(
        query, PlanDetails(OPERATORS, lambda kept: remarks if isinstance(kept, AnalyzedIntervalJoin) else [])
    )
    assert "├─ operator    interval join" in text
    assert "├─ why         it has bounds\n   │              in both directions" in text
