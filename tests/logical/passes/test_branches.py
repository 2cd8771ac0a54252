"""Queries with several sinks: which INSERTs become one, under which checkpoint, and what each branch does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.locations import OWNER, find_recorded_sinks
from watersmeet.logical.passes.branches import share_views
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.parser import format_script
from watersmeet.queries import analyze, read_script
from watersmeet.spark.state.owner import Owner

VIEW = """
CREATE STREAM o (id BIGINT, t BIGINT, v STRING, WATERMARK FOR t AS t - 5);
CREATE STREAM d (id BIGINT, t BIGINT, w STRING, WATERMARK FOR t AS t - 5);
CREATE SINK a USING json OPTIONS (path '/a');
CREATE SINK b USING json OPTIONS (path '/b');
CREATE SINK c USING json OPTIONS (path '/c');
CREATE VIEW j AS SELECT STREAM o.id, v, w, o.t FROM o JOIN d WITHIN 5 ON o.id = d.id;
"""
A, B = "INSERT INTO a SELECT STREAM id FROM j WHERE w > 'x';", "INSERT INTO b SELECT STREAM upper(x.v) AS v FROM j x;"
C = "INSERT INTO c SELECT STREAM * FROM j;"


def share(text: str, recorded: dict[str, tuple[str, ...]] | None = None) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script that runs; the analysis of what was shared gives the same."""
    script = read_script(VIEW + text)
    script, queries = share_views(script, analyze(script), recorded or {})
    assert analyze(script) == queries
    return queries


def sinks(text: str, recorded: dict[str, tuple[str, ...]] | None = None) -> dict[str | None, tuple[str, ...]]:
    """The sinks of each query by the name of its checkpoint."""
    return {query.into: query.sinks for query in share(text, recorded)}


def test_inserts_that_filter_and_project_one_view_are_one_query() -> None:
    [query] = share(A + B)
    assert [output.name for output in query.outputs] == ["id", "v", "w"]
    first, second = query.branches
    assert [part.sql() for part in first.where] == ["(`j.w` > 'x')"]
    assert [output.expr.sql() for output in second.query.outputs] == ["upper(`j.v`)"]
    assert sinks(A + B + C) == {"a": ("a", "b", "c")}
    assert sinks(A.replace("INTO a", "INTO a, c") + B) == {"a": ("a", "c", "b")}


@pytest.mark.parametrize(
    "other",
    [
        "INSERT INTO b SELECT STREAM j.id, d.w FROM j JOIN d WITHIN 9 ON j.id = d.id;",
        "INSERT INTO b SELECT TABLE id, count(*) AS n FROM j GROUP BY id;".replace("INTO b", "INTO tab"),
        "INSERT INTO b SELECT STREAM DISTINCT id, t FROM j WITHIN 5;",
        "INSERT INTO b WITH k AS (SELECT STREAM id FROM j) SELECT STREAM id FROM k;",
        "INSERT INTO b SELECT STREAM id FROM o;",
        "INSERT INTO b SELECT STREAM id FROM (SELECT STREAM id FROM j WHERE id > 1) AS s;",
    ],
)
def test_inserts_that_do_more_are_queries_of_their_own(other: str) -> None:
    table = "CREATE SINK tab USING json OPTIONS (path '/t', changes 'log');"
    assert all(len(each) == 1 for each in sinks(table + A + other).values())


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, {"a": ("a", "b", "c")}),
        # Those with a checkpoint of their own stay separate.
        ({"b": ()}, {"a": ("a", "c"), "b": ("b",)}),
        ({"a": (), "b": (), "c": ()}, {"a": ("a",), "b": ("b",), "c": ("c",)}),
        # A checkpoint of several is theirs, under whatever name; one that a sink has left counts no more.
        ({"c": ("c", "b", "a")}, {"c": ("a", "b", "c")}),
        ({"gone": ("gone", "b")}, {"gone": ("a", "b", "c")}),
        ({"a": ("a", "b"), "b": ()}, {"a": ("a", "b", "c")}),
        ({"other": ()}, {"a": ("a", "b", "c")}),
    ],
)
def test_the_checkpoint_says_which_inserts_share(
    recorded: dict[str, tuple[str, ...]], expected: dict[str, tuple[str, ...]]
) -> None:
    assert sinks(A + B + C, recorded) == expected


def test_settings_say_whether_inserts_share() -> None:
    off, on = (f"SET watersmeet.shared_views = {value};" for value in ("off", "on"))
    assert sinks(off + A + B) == {"a": ("a",), "b": ("b",)}
    assert sinks(on + A + B, {"b": ()}) == {"b": ("a", "b")}
    assert sinks(off + "INSERT INTO a, b SELECT STREAM id FROM j;") == {"a": ("a", "b")}


def test_the_rest_of_a_shared_query_keeps_its_checkpoint() -> None:
    assert sinks(B, {"a": ("a", "b")}) == {"a": ("b",)}
    # Unless the sink that the checkpoint is named after has a query again.
    assert sinks(B + "INSERT INTO a SELECT STREAM id FROM o;", {"a": ("a", "b")}) == {"b": ("b",), "a": ("a",)}


def test_a_statement_names_its_sinks() -> None:
    assert sinks("INSERT INTO a, b SELECT STREAM id FROM o WHERE id > 1;") == {"a": ("a", "b")}
    late = "INSERT INTO a, b SELECT STREAM o.id FROM o JOIN d WITHIN 5 ON o.id = d.id LATE INTO c;"
    [query] = share(late)
    assert (query.late_into, [branch.query.late_into for branch in query.branches]) == ("c", ["c", None])
    assert "INSERT INTO a, b" in format_script("insert into a , b select stream id from o")
    for wrong, condition in (
        ("INSERT INTO a, a SELECT STREAM id FROM o;", "DUPLICATE_NAME"),
        ("INSERT INTO a, SELECT STREAM id FROM o;", "SYNTAX_ERROR"),
        ("INSERT INTO a, missing SELECT STREAM id FROM o;", "UNKNOWN_SINK"),
        ("INSERT INTO a, b SELECT STREAM id FROM o; INSERT INTO b SELECT STREAM id FROM o;", "DUPLICATE_NAME"),
    ):
        with pytest.raises(WatersmeetError) as refused:
            share(wrong)
        assert refused.value.getCondition() == condition, wrong


def test_recorded_sinks_are_those_of_a_storage(tmp_path: Path) -> None:
    assert find_recorded_sinks(tmp_path) == {}
    for name, text in (("a", Owner((), sinks=("a", "b")).to_text("4.1")), ("c", Owner(()).to_text("4.1")), ("d", "[")):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / OWNER).write_text(text)
    assert find_recorded_sinks(tmp_path) == {"a": ("a", "b"), "c": (), "d": ()}
    assert json.loads(Owner(()).to_text("4.1")).keys().isdisjoint({"sinks"})
