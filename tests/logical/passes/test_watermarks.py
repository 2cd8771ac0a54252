"""Watermarks that a query gives."""

from __future__ import annotations

import pytest

SOURCES = """\
CREATE STREAM s (id BIGINT, t BIGINT, name STRING, st STRUCT<a: BIGINT, b: STRING>, WATERMARK FOR t AS t - 0);
"""


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        ("s WATERMARK nosuch DELAY OF 5", "UNKNOWN_COLUMN"),
        ("s WATERMARK name DELAY OF INTERVAL 5 SECONDS", "WRONG_EVENT_TIME"),
        ("s WATERMARK t DELAY OF INTERVAL 5 SECONDS", "WRONG_TIME_UNIT"),
        ("(SELECT STREAM id, t + 1 AS t FROM s) AS v WATERMARK t DELAY OF 5", "WRONG_EVENT_TIME"),
    ],
)
def test_a_watermark_that_a_query_gives_is_checked_like_a_declared_one(refusals_of, source: str, condition: str):
    [refusal] = refusals_of(f"{SOURCES} SELECT STREAM * FROM {source};")
    assert refusal.condition == condition
    assert refusal.place is not None


def test_a_watermark_that_a_query_gives_is_spelled_as_its_column(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT STREAM * FROM s WATERMARK T DELAY OF 5;")
    assert [(mark.column, mark.lag.value) for mark in query.relation.source.watermarks] == [("t", 5)]
