"""Limits on the number of a row, as they are read: below 1 no row is left."""

from __future__ import annotations

import pytest

from watersmeet.queries import read_script

STREAM = "CREATE STREAM s (a BIGINT, b BIGINT);"
NUMBER = "ROW_NUMBER() OVER (PARTITION BY a ORDER BY b)"


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        ("<= 2", 2),
        ("< 2", 1),
        ("= 1", 1),
        ("<= 0", 0),
        ("< 1", 0),
        ("< 0", 0),
        ("= 0", 0),
        ("<= -3", 0),
        ("<-1", 0),
        ("= -1", 0),
    ],
)
def test_limits_of_numbers(limit: str, rows: int):
    [query] = read_script(f"{STREAM} SELECT TABLE a FROM s QUALIFY {NUMBER} {limit};").queries
    assert query.limit == rows
    [query] = read_script(f"{STREAM} SELECT TABLE a FROM (SELECT a, {NUMBER} AS n FROM s) x WHERE n {limit};").queries
    assert [view.query.limit for view in query.views if view.query.limit is not None] == [rows]
