"""What bounds the state of a query, in the words of `check` and `explain`."""

from __future__ import annotations

import pytest
from tests.analyze.conftest import Analyzed

from watersmeet.plan.bounds import bounds_in_words, bounds_of

DECLARED = """
CREATE STREAM a (id INT, v INT, t TIMESTAMP, WATERMARK FOR t AS t);
CREATE STREAM b (id INT, w INT, t TIMESTAMP, WATERMARK FOR t AS t);
CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id));
CREATE TABLE bag (id INT, name STRING);
"""


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("SELECT STREAM v FROM a WHERE v > 0", "none: nothing is kept"),
        ("SELECT STREAM v, w FROM a JOIN b WITHIN 1h ON a.id = b.id", "bounded by time"),
        ("SELECT STREAM v, w FROM a SYNC JOIN b", "bounded by time"),
        ("SELECT TABLE id, count(*) AS n FROM a GROUP BY id", "bounded by the number of keys: one row per a.id"),
        ("SELECT TABLE count(*) AS n FROM a", "bounded by the number of keys: one row"),
        ("SELECT TABLE count(*) AS n FROM a GROUP BY window(t, '1 hour')", "bounded by time"),
        ("SELECT TABLE id AS _key, v FROM a", "bounded by the number of keys: one row per a.id"),
        ("SELECT TABLE * FROM c", "bounded by the number of keys: one row per c.id"),
        (
            "SELECT STREAM v, name FROM a LEFT JOIN c ON a.id = c.id",
            "bounded by time, and by the number of keys: one row per c.id",
        ),
        ("SELECT STREAM v, name FROM a JOIN c ON a.id = c.id", "bounded by the number of keys: one row per c.id"),
        (
            "SELECT TABLE c.name, bag.name AS other FROM c JOIN bag ON c.id = bag.id",
            "bounded by the number of keys: one row per c.id, the rows of the table bag",
        ),
        (
            "SELECT STREAM v, w FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.id = b.id",
            "bounded by time, and by the number of keys: one version per b.id",
        ),
        (
            "SELECT STREAM v, w FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.id = b.id WITHIN 1h",
            "bounded by time",
        ),
        (
            "SELECT STREAM v, w FROM a WINDOW (COUNT 5) JOIN b WINDOW (TIME 10s) ON a.id = b.id",
            "bounded by time, and by a limit: 5 rows",
        ),
        (
            "SELECT STREAM v, w FROM a WINDOW (COUNT 5 PARTITION BY id) JOIN b WINDOW (COUNT 0) ON a.id = b.id",
            "bounded by the number of keys: 5 rows per a.id",
        ),
        (
            (
                "SELECT STREAM v, w FROM a WINDOW (COUNT 5 PARTITION BY id PARTITION COUNT 7) "
                "JOIN b WINDOW (COUNT 0) ON a.id = b.id"
            ),
            "bounded by a limit: 7 partitions",
        ),
        (
            (
                "SELECT STREAM g.n, w FROM (SELECT TABLE id, count(*) AS n FROM a GROUP BY id) AS g "
                "RIGHT JOIN b ON g.id = b.id"
            ),
            "bounded by time, and by the number of keys: one row per a.id, one row per g.id",
        ),
    ],
)
def test_what_bounds_the_state_of_a_query(analyzed: Analyzed, query: str, state: str) -> None:
    assert bounds_in_words(bounds_of(analyzed(f"{DECLARED} {query};"))) == state
