"""What bounds the state of a query, in the words of `check` and `explain`."""

from __future__ import annotations

import pytest
from tests.logical.conftest import Analyzed, Refused

from watersmeet.logical.query import bounds_in_words, bounds_of

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
def test_state_of_a_query_has_a_named_bound(analyze_sql: Analyzed, query: str, state: str) -> None:
    assert bounds_in_words(bounds_of(analyze_sql(f"{DECLARED} {query};"))) == state


VIEWS = """
CREATE VIEW n AS SELECT TABLE id, window(t, '10 minutes', '1 minute').start AS since,
  window(t, '10 minutes', '1 minute').end AS until, window(t, '10 minutes', '1 minute') AS w, count(*) AS n
  FROM a GROUP BY id, window(t, '10 minutes', '1 minute');
CREATE VIEW seen AS SELECT TABLE id, since AS at, n FROM n WHERE n > 3;
CREATE VIEW ended AS SELECT TABLE window_end, id, count(*) AS n
  FROM TABLE(HOP(TABLE a, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '10' MINUTES))
  GROUP BY id, window_start, window_end;
CREATE VIEW sessions AS SELECT TABLE id, session_window(t, '5 minutes').end AS until, count(*) AS n
  FROM a GROUP BY id, session_window(t, '5 minutes');
CREATE VIEW best AS SELECT TABLE id, since, n FROM n QUALIFY RANK() OVER (PARTITION BY since ORDER BY n DESC) = 1;
"""
KEPT = "bounded by time, and by the number of keys: "


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("SELECT TABLE id FROM n QUALIFY RANK() OVER (PARTITION BY since ORDER BY n DESC) = 1", "bounded by time"),
        ("SELECT TABLE id FROM n QUALIFY ROW_NUMBER() OVER (PARTITION BY until ORDER BY n) <= 2", "bounded by time"),
        ("SELECT TABLE id FROM seen QUALIFY RANK() OVER (PARTITION BY at ORDER BY n DESC) = 1", "bounded by time"),
        ("SELECT TABLE window_end, max(n) AS n FROM ended GROUP BY window_end", "bounded by time"),
        ("SELECT TABLE since, max(n) AS n FROM best GROUP BY since", "bounded by time"),
        ("SELECT TABLE since, n FROM n GROUP BY since, n", "bounded by time"),
        ("SELECT TABLE n.id, m.n FROM n JOIN seen m ON n.since = m.at AND n.id = m.id", "bounded by time"),
        (
            (
                "SELECT TABLE j.a, sum(n) AS n FROM "
                "(SELECT TABLE n.since AS a, m.n AS n FROM n RIGHT JOIN seen m ON n.since = m.at) AS j GROUP BY j.a"
            ),
            f"{KEPT}one row per j.a",
        ),
        (
            (
                "SELECT TABLE j.b, sum(n) AS n FROM "
                "(SELECT TABLE m.at AS b, m.n AS n FROM n RIGHT JOIN seen m ON n.since = m.at) AS j GROUP BY j.b"
            ),
            "bounded by time",
        ),
        (
            "SELECT TABLE id FROM n ORDER BY n DESC LIMIT 3",
            f"{KEPT}the rows that are ordered",
        ),
        (
            "SELECT TABLE id, n FROM n QUALIFY RANK() OVER (PARTITION BY id ORDER BY n DESC) = 1",
            f"{KEPT}the rows that are ordered",
        ),
        ("SELECT TABLE id, max(n) AS n FROM n GROUP BY id", f"{KEPT}one row per n.id, the input of max(n)"),
        ("SELECT TABLE date_trunc('HOUR', since) AS h, sum(n) AS n FROM n GROUP BY date_trunc('HOUR', since)",
         f"{KEPT}one row per date_trunc('HOUR', n.since)"),
        ("SELECT TABLE until, sum(n) AS n FROM sessions GROUP BY until", f"{KEPT}one row per sessions.until"),
        (
            "SELECT TABLE n.id, c.name FROM n JOIN c ON n.id = c.id",
            f"{KEPT}one row per n.id, n.w, one row per c.id",
        ),
    ],
)  # fmt: skip
def test_final_rows_behind_windows_are_bounded_by_time(analyze_sql: Analyzed, query: str, state: str) -> None:
    assert bounds_in_words(bounds_of(analyze_sql(f"{DECLARED} {VIEWS} {query};"))) == state


SOURCES = {
    "TUMBLE": "INTERVAL '1' HOUR",
    "HOP": "INTERVAL '10' MINUTES, INTERVAL '1' HOUR",
    "CUMULATE": "INTERVAL '10' MINUTES, INTERVAL '1' HOUR",
}
COUNTS = "CREATE VIEW c2 AS SELECT TABLE id, window_start AS s, window_end AS e, count(*) AS n"


@pytest.mark.parametrize("function", SOURCES)
@pytest.mark.parametrize("by", ["s", "e"])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT TABLE id, n FROM c2 QUALIFY ROW_NUMBER() OVER (PARTITION BY {0} ORDER BY n) <= 2",
        "SELECT TABLE {0}, max(n) AS n FROM c2 GROUP BY {0}",
        "SELECT TABLE x.n, y.n AS o FROM c2 x JOIN c2 y ON x.{0} = y.{0} AND x.id = y.id",
        "SELECT TABLE {0}, sum(n) AS n FROM (SELECT TABLE {0}, max(n) AS n FROM c2 GROUP BY {0}, id) z GROUP BY {0}",
    ],
)
def test_windows_of_a_source_in_a_subquery_are_final_by_both_bounds(
    analyze_sql: Analyzed, function: str, by: str, query: str
) -> None:
    windows = f"(SELECT STREAM * FROM TABLE({function}(TABLE a, DESCRIPTOR(t), {SOURCES[function]})) AS v) AS w"
    text = f"{COUNTS} FROM {windows} GROUP BY id, window_start, window_end; {query.format(by)}"
    assert bounds_in_words(bounds_of(analyze_sql(f"{DECLARED} {text};"))) == "bounded by time"


def test_the_start_of_other_windows_is_not_final(analyze_sql: Analyzed) -> None:
    inner = "SELECT STREAM id, t, window_start AS s FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(t), INTERVAL '1' DAY)) AS v"
    outer = "SELECT STREAM x.* FROM TABLE(TUMBLE(TABLE v, DESCRIPTOR(t), INTERVAL '1' HOUR)) AS x"
    counts = "SELECT TABLE s, window_end AS e, count(*) AS n FROM w GROUP BY s, window_end"
    text = f"CREATE VIEW v AS {inner}; CREATE VIEW w AS {outer}; CREATE VIEW c2 AS {counts};"
    query = "SELECT TABLE s, max(n) AS n FROM c2 GROUP BY s"
    assert bounds_in_words(bounds_of(analyze_sql(f"{DECLARED} {text} {query};"))).startswith(KEPT)


def test_of_a_view_with_mistakes_nothing_is_reported_that_follows_from_them(refusals_of: Refused) -> None:
    rank = "SELECT TABLE id FROM {} QUALIFY RANK() OVER (PARTITION BY {} ORDER BY id) = 1;"
    (wrong,) = refusals_of(f"{DECLARED} {rank.format('c', 'nme')}")
    assert wrong.condition == "UNKNOWN_COLUMN"
    (wrong,) = refusals_of(f"{DECLARED} {rank.format('a', 'v')}")
    assert wrong.condition == "UNSUPPORTED_STATEMENT"
