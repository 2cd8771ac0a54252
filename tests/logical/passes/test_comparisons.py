"""Strings of a collation are refused where rows are told apart by their bytes."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.queries import analyze, read_script

SOURCES = """
CREATE STREAM s (k STRING COLLATE UTF8_LCASE, b STRING COLLATE UTF8_BINARY, p STRUCT<a: STRING COLLATE UNICODE>, v INT);
CREATE TABLE t (k STRING COLLATE UNICODE_CI, v INT, PRIMARY KEY (k));
"""
STORED = "CREATE VIEW w AS SELECT TABLE v FROM s GROUP BY k STORE KEY AS string;"


@pytest.mark.parametrize(
    ("clause", "query"),
    [
        ("GROUP BY or DISTINCT", "SELECT TABLE k, count(*) AS n FROM s GROUP BY k"),
        ("GROUP BY or DISTINCT", "SELECT TABLE p, count(*) AS n FROM s GROUP BY p"),
        ("GROUP BY or DISTINCT", "SELECT TABLE DISTINCT k FROM s"),
        ("GROUP BY or DISTINCT", "SELECT TABLE n FROM (SELECT TABLE k, count(*) AS n FROM s GROUP BY k) AS inside"),
        ("count(DISTINCT)", "SELECT TABLE count(DISTINCT v, k) AS n FROM s"),
        ("PARTITION BY", "SELECT TABLE v FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) <= 1"),
        ("PRIMARY KEY", "SELECT TABLE k, v FROM t"),
        ("SELECT TABLE over a stream", "SELECT TABLE k, v FROM s GROUP BY k"),
        ("SELECT TABLE over a stream", "SELECT TABLE k AS _key, v FROM s"),
        ("SELECT TABLE over a stream", f"{STORED} SELECT TABLE v FROM w"),
        ("SELECT TABLE over a stream", "SELECT TABLE v FROM (SELECT TABLE v, k FROM s GROUP BY v, k) AS inside"),
    ],
)
def test_a_collation_is_refused_by_name(clause: str, query: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        analyze(read_script(f"{SOURCES} {query};"))
    assert [(one.condition, one.parameters["expression"]) for one in caught.value.refusals] == [
        ("TYPE_MISMATCH", clause)
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT TABLE b, count(DISTINCT v) AS n FROM s GROUP BY b",
        "SELECT TABLE CAST(lower(k) AS STRING) AS k, count(*) AS n FROM s GROUP BY CAST(lower(k) AS STRING)",
        "SELECT TABLE CAST(k AS STRING) AS k, count(*) AS n FROM s GROUP BY CAST(k AS STRING)",
        "SELECT STREAM k FROM s WHERE k = 'a'",
        "SELECT STREAM k AS _key, v FROM s",
        "SELECT TABLE k, v FROM s GROUP BY CAST(lower(k) AS STRING)",
    ],
)
def test_collations_that_bytes_distinguish_are_accepted(query: str) -> None:
    analyze(read_script(f"{SOURCES} {query};"))
