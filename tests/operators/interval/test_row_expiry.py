"""The ends that rows carry: what is one, whose life it ends, and what bounds the state then."""

from __future__ import annotations

import pytest

from watersmeet.logical.query import bounds_in_words, bounds_of
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin

SOURCES = """
CREATE STREAM a (id BIGINT, start TIMESTAMP, expires TIMESTAMP, runs INTERVAL DAY TO SECOND, until STRING, last DATE,
  n INT, WATERMARK FOR start AS start - INTERVAL 1 SECOND);
CREATE STREAM b (id BIGINT, t TIMESTAMP, d DATE, n BIGINT, WATERMARK FOR t AS t - INTERVAL 1 SECOND);
CREATE STREAM c (id BIGINT, n BIGINT, m BIGINT, WATERMARK FOR n AS n - 1);
"""
MINUTE = 60_000_000


def row_expiries(analyze_sql, on: str, tables: str = "a JOIN b"):
    query = analyze_sql(f"{SOURCES} SELECT STREAM {tables.split()[0]}.id FROM {tables} ON {on};")
    join = query.relation
    assert isinstance(join, AnalyzedIntervalJoin)
    found = [(life.port, expression_in_words(life.end), str(life.time), life.constant) for life in join.row_expiries]
    return query, found


@pytest.mark.parametrize(
    ("on", "end", "constant"),
    [
        ("b.t BETWEEN a.start AND a.expires", "a.expires", 0),
        ("a.expires >= b.t AND b.t >= a.start", "a.expires", 0),
        ("b.t >= a.start AND NOT (b.t > a.expires)", "a.expires", 0),
        ("b.t >= a.start AND b.t - INTERVAL 1 MINUTE <= a.expires", "a.expires", MINUTE),
        ("b.t BETWEEN a.start AND a.start + a.runs", "a.start + a.runs", 0),
        ("b.t BETWEEN a.start AND a.start + a.n * INTERVAL 1 SECOND", "a.start + a.n * INTERVAL 1 SECOND", 0),
        ("b.t BETWEEN a.start AND CAST(a.until AS TIMESTAMP)", "CAST(a.until AS TIMESTAMP)", 0),
    ],
)
def test_an_end_is_a_value_of_its_row(analyze_sql, on, end, constant):
    query, found = row_expiries(analyze_sql, on)
    assert found == [(0, end, "b.t", constant)]
    assert bounds_in_words(bounds_of(query)) == f"bounded by time, and by the end time in each row: {end}"


def test_ends_of_both_sides_need_no_bound(analyze_sql):
    query = analyze_sql(
        f"{SOURCES} SELECT STREAM x.id FROM a x FULL JOIN a y ON x.start <= y.expires AND y.start <= x.expires;"
    )
    assert [(life.port, expression_in_words(life.end)) for life in query.relation.row_expiries] == [
        (1, "y.expires"),
        (0, "x.expires"),
    ]


def test_a_bound_of_time_alone_bounds_the_state(analyze_sql):
    query, found = row_expiries(analyze_sql, "b.t BETWEEN a.start AND a.expires AND b.t <= a.start + INTERVAL 1 DAY")
    assert found == [(0, "a.expires", "b.t", 0)]
    assert bounds_in_words(bounds_of(query)) == "bounded by time"


def test_whole_numbers_of_any_width_are_ends(analyze_sql):
    _, found = row_expiries(analyze_sql, "c.n <= x.m + 3 AND c.n >= x.n", "c x JOIN c")
    assert found == [(0, "x.m + 3", "c.n", 0)]


@pytest.mark.parametrize(
    ("on", "hint"),
    [
        ("b.t >= a.start AND b.t <= coalesce(a.expires, a.start)", "CAST(coalesce(a.expires, a.start) AS TIMESTAMP)"),
        ("b.t BETWEEN a.start AND a.until", "CAST(a.until AS TIMESTAMP)"),
        ("b.t >= a.start AND b.t <= a.last", "b.t <= a.start + INTERVAL 1 HOUR"),
        ("b.t >= a.start AND b.d <= a.last", "b.t <= a.start + INTERVAL 1 HOUR"),
        ("b.t >= a.start AND (a.expires IS NULL OR b.t <= a.expires)", "b.t <= a.start + INTERVAL 1 HOUR"),
        ("b.t >= a.start AND b.t <> a.expires", "b.t <= a.start + INTERVAL 1 HOUR"),
    ],
)
def test_wrong_ends_are_refused_with_a_bound_as_hint(analyze_sql, refusals_of, on, hint):
    [refusal] = refusals_of(f"{SOURCES} SELECT STREAM a.id FROM a JOIN b ON {on};")
    assert refusal.condition == "UNBOUNDED_STATE"
    assert refusal.parameters["unbounded"] == "a"
    assert hint in refusal.hint
    # A hint that is followed must work.
    text = hint.removeprefix("CAST(").removesuffix(" AS TIMESTAMP)")
    row_expiries(analyze_sql, on.replace(text, hint) if hint.startswith("CAST") else f"{on} AND {hint}")


def test_a_batch_needs_no_watermark_to_find_the_times(analyze_sql):
    tables = "CREATE STREAM a (id BIGINT, x TIMESTAMP, y TIMESTAMP); CREATE STREAM b (id BIGINT, t TIMESTAMP);"
    for on in ("b.t <= a.y AND b.t >= a.x", "b.t >= a.x AND b.t <= a.y"):
        query = analyze_sql(f"{tables} SELECT STREAM a.id FROM a JOIN b ON a.id = b.id AND {on};", inputs="batches")
        assert [str(bound.column) for bound in query.relation.bounds] == ["b.t"]
        assert [expression_in_words(life.end) for life in query.relation.row_expiries] == ["a.y"]
