"""Queries explained at every stage: as text that people read, compared to the letter, and as JSON and graph."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.tools.explain.parsed import render_script, script_as_json
from watersmeet.tools.explain.query import (
    PlanDetails,
    plan_details,
    query_as_json,
    query_topology,
    render,
    render_query,
)
from watersmeet.tools.explain.topology import Topology

GOLDEN = Path(__file__).parent / "golden"
STREAMS = """
CREATE STREAM orders (id BIGINT NOT NULL, amount DOUBLE, a STRING, t BIGINT, WATERMARK FOR t AS t - 1);
CREATE STREAM customers (id BIGINT NOT NULL, name STRING, b STRING, t BIGINT, WATERMARK FOR t AS t - 1);
"""


def queries_of(text: str) -> tuple[AnalyzedQuery, ...]:
    return analyze(read_script(text, "q.sql"))


def golden_text(path: Path) -> str:
    """What a golden file ``NAME.STAGE.txt`` must hold for the script ``NAME.sql``."""
    name, stage, _ = path.name.split(".")
    text = (path.parent / f"{name}.sql").read_text("utf-8")
    if stage == "plan":
        return render_script(read_script(text, "q.sql"), FAMILIES) + "\n"
    explained = [
        render(query, plan_query(query, OPERATORS), OPERATORS)
        if stage == "physical"
        else render_query(query, PlanDetails(OPERATORS))
        for query in queries_of(text)
    ]
    return "\n\n".join(explained) + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_the_tree_reads_as_agreed(path: Path) -> None:
    """Rewrite the golden files with UPDATE_GOLDEN=1 in the environment, and read the difference."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(golden_text(path), "utf-8")
    assert golden_text(path) == path.read_text("utf-8")


def test_every_script_is_explained() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sql")} == {path.name.split(".")[0] for path in GOLDEN.glob("*.txt")}


# LN-V20: a part of WHERE never moves to a side that the join can show as NULL.
@pytest.mark.parametrize(
    ("kind", "where", "before_left", "before_right", "after"),
    [
        ("INNER", "o.amount > 10 AND c.name = 'x' AND o.a = c.b", ["o.amount > 10"], ["c.name = 'x'"], ["o.a = c.b"]),
        ("LEFT", "o.amount > 10 AND c.name = 'x'", ["o.amount > 10"], [], ["c.name = 'x'"]),
        ("RIGHT", "o.amount > 10 AND c.name = 'x'", [], ["c.name = 'x'"], ["o.amount > 10"]),
        ("FULL", "o.amount > 10", [], [], ["o.amount > 10"]),
    ],
)
def test_explain_tells_which_filters_moved(
    kind: str, where: str, before_left: list[str], before_right: list[str], after: list[str]
) -> None:
    sql = f"SELECT STREAM o.id FROM orders o {kind} JOIN customers c WITHIN 5 ON o.id = c.id WHERE {where};"
    [query] = queries_of(STREAMS + sql)
    found: Any = query_as_json(query, plan_details(plan_query(query, OPERATORS), OPERATORS))
    assert found["where"] == after
    assert (found["relation"]["left"]["filters"], found["relation"]["right"]["filters"]) == (before_left, before_right)
    text = render(query, plan_query(query, OPERATORS), OPERATORS)
    assert all(f"{part} (moved here from WHERE)" in text for part in (*before_left, *before_right))
    assert all(f"{part} (after the join: it " in text for part in after)


def test_the_graph_has_filters_before_and_after_the_join() -> None:
    sql = "SELECT STREAM o.id FROM orders o LEFT JOIN customers c WITHIN 5 ON o.id = c.id WHERE o.id > 0 AND c.id > 0;"
    [query] = queries_of(STREAMS + sql)
    assert ways(query_topology(query, plan_details(plan_query(query, OPERATORS), OPERATORS))) == [
        ["source1", "filter1", "repartition1", "join1", "filter2", "project1", "sink1"],
        ["source2", "repartition2", "join1", "filter2", "project1", "sink1"],
    ]
    assert ways(query_topology(query, PlanDetails(OPERATORS))) == [
        ["source1", "filter1", "join1", "filter2", "project1", "sink1"],
        ["source2", "join1", "filter2", "project1", "sink1"],
    ]


def ways(graph: Topology) -> list[list[str]]:
    """The nodes that rows pass from each source, where every node has one that follows."""
    following = {edge.start: edge.end for edge in graph.edges}
    assert len(following) == len(graph.edges)
    found: list[list[str]] = []
    for node in graph.nodes:
        if node.step.kind == "source":
            way = [node.id]
            while way[-1] in following:
                way.append(following[way[-1]])
            found.append(way)
    return found


def test_late_rows_have_a_sink_of_their_own() -> None:
    sinks = "CREATE SINK joined USING parquet; CREATE SINK late USING parquet;"
    sql = "INSERT INTO joined SELECT STREAM o.id FROM orders o JOIN customers c WITHIN 5 ON o.id = c.id LATE INTO late;"
    [query] = queries_of(STREAMS + sinks + sql)
    graph = query_topology(query, PlanDetails(OPERATORS))
    titles = {node.id: node.step.title for node in graph.nodes}
    assert [titles[edge.end] for edge in graph.edges if edge.start == "join1"] == ["late rows INTO late", ""]


def test_each_window_has_a_node_an_entry_and_a_name_in_metrics() -> None:
    query, _ = queries_of((GOLDEN / "windows.sql").read_text("utf-8"))
    details = plan_details(plan_query(query, OPERATORS, late="side_output"), OPERATORS)
    graph, found = query_topology(query, details), query_as_json(query, details)
    windows: Any = found["over"]
    assert [window["partition_by"] for window in windows] == [[], ["bids.k"], ["bids.k", "upper(bids.u)"]]
    assert [len(window["functions"]) for window in windows] == [1, 1, 2]
    stages = [node for node in graph.nodes if node.step.kind == "group"]
    assert [node.step.operator for node in stages] == [
        "the window functions of bids", "the window functions by bids.k of bids",
        "the window functions by bids.k, upper(bids.u) of bids",
    ]  # fmt: skip
    titles = {node.id: node.step.title for node in graph.nodes}
    sinks = {edge.start: titles[edge.end] for edge in graph.edges if edge.end.startswith("sink")}
    assert sinks == {"group1": "late rows INTO too_late", "project1": "INSERT INTO sums"}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sql")), ids=lambda path: path.stem)
def test_json_and_graph_say_what_the_tree_says(path: Path) -> None:
    for query in queries_of(path.read_text("utf-8")):
        found: Any = json.loads(json.dumps(query_as_json(query, plan_details(plan_query(query, OPERATORS), OPERATORS))))
        text = render(query, plan_query(query, OPERATORS), OPERATORS)
        told = [line for node in found["topology"]["nodes"] for lines in node["facts"].values() for line in lines]
        assert told and all(line in text for line in told)
        assert [column["name"] for column in found["columns"]] == [output.name for output in query.outputs]
        assert {"nullable", "type", "expression"} <= found["columns"][0].keys()


def test_json_tells_what_is_read_and_where_rows_go() -> None:
    [query] = queries_of(
        STREAMS + "SELECT STREAM o.id FROM orders o JOIN customers c WITHIN 5 ON o.id = c.id WHERE o.a = c.b;"
    )
    found: Any = query_as_json(query, plan_details(plan_query(query, OPERATORS), OPERATORS))
    left = found["relation"]["left"]
    assert left["read"] == ["id", "a", "t"]
    assert left["repartition"] == "by o.id, so that rows that can match are in one shard"
    assert found["relation"]["remarks"]["operator"][0].startswith("interval join")
    before: Any = query_as_json(query, PlanDetails(OPERATORS))
    assert (before["relation"]["left"]["read"], before["relation"]["remarks"]) == (None, {})


def test_json_has_the_window_functions_of_each_stage() -> None:
    sql = """SELECT STREAM id, sum(amount) OVER (PARTITION BY a ORDER BY t) AS x,
        count(*) OVER (PARTITION BY id ORDER BY t) AS y, max(amount) OVER (ORDER BY t) AS z FROM orders;"""
    [query] = queries_of(STREAMS + sql)
    found: Any = query_as_json(query, plan_details(plan_query(query, OPERATORS), OPERATORS))
    assert [stage["partition_by"] for stage in found["over"]] == [[], ["orders.a"], ["orders.id"]]
    assert [len(stage["functions"]) for stage in found["over"]] == [1, 1, 1]
    assert [stage["repartition"].partition(",")[0] for stage in found["over"]] == [
        "all into one shard", "by orders.a", "by orders.id",
    ]  # fmt: skip


def test_the_groupings_of_a_query_are_shown_as_they_are_written() -> None:
    sql = "SELECT TABLE a, id, count(*) AS n FROM orders GROUP BY ROLLUP (a, id);"
    [query] = queries_of(STREAMS + sql)
    text = render(query, plan_query(query, OPERATORS), OPERATORS)
    assert "each grouping for itself" in text and "one row per orders.a, orders.id, and grouping" in text
    assert "sets" not in text and "if(" not in text


def test_the_question_needs_no_names_that_are_known() -> None:
    script = read_script("SELECT STREAM a.x FROM nobody a JOIN nothing b ON a.x = b.y OR a.x > 5;", "q.sql")
    assert render_script(script, FAMILIES).splitlines()[-4:] == [
        "└─ INNER JOIN",
        "   ├─ on  a.x = b.y OR a.x > 5",
        "   ├─ nobody AS a",
        "   └─ nothing AS b",
    ]
    [found] = script_as_json(script, FAMILIES)
    assert found["columns"] == ["a.x"]
