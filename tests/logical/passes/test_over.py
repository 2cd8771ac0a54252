"""Window functions after the analysis: what bounds their state, and the types and event time of their result."""

from __future__ import annotations

import pytest

from watersmeet.logical.query import bounds_in_words, bounds_of, nullable
from watersmeet.logical.relation import AnalyzedView
from watersmeet.queries import analyze, read_script

BIDS = "CREATE STREAM bids (k STRING, v BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 MINUTE);\n"
WINDOW = "OVER (PARTITION BY k ORDER BY t"


@pytest.mark.parametrize(
    ("functions", "bound"),
    [
        (f"sum(v) {WINDOW})", "by the number of keys: one row per bids.k"),
        (f"sum(v) {WINDOW} ROWS 9 PRECEDING), lag(v, 12) {WINDOW})", "by the number of keys: 12 rows per bids.k"),
        (f"sum(v) {WINDOW} RANGE 1 HOUR PRECEDING), max(v) {WINDOW} ROWS CURRENT ROW)", "by time"),
        (f"last_value(v) {WINDOW})", "by time"),
        (f"last_value(v) IGNORE NULLS {WINDOW})", "by the number of keys: one row per bids.k"),
        ("count(*) OVER (ORDER BY t ROWS 2 PRECEDING)", "by a limit: 2 rows"),
        (f"lag(v, 3) IGNORE NULLS {WINDOW})", "by the number of keys: 3 rows per bids.k"),
        (f"row_number() {WINDOW}) + 0", "by the number of keys: one row per bids.k"),
        (f"lead(v, 4) {WINDOW} DESC)", "by the number of keys: 4 rows per bids.k"),
        (
            f"max(v) {WINDOW}), max(v) OVER (ORDER BY t)",
            "by the number of keys: one row per bids.k, and by a limit: one row",
        ),
    ],
)
def test_frames_bound_the_state(functions: str, bound: str) -> None:
    [query] = analyze(read_script(f"{BIDS}SELECT STREAM {functions} FROM bids;", "q"))
    assert bounds_in_words(bounds_of(query)) == f"bounded {bound}"


def test_the_result_keeps_its_event_time_and_counts_are_never_null() -> None:
    view = f"CREATE VIEW w AS SELECT STREAM k, t AS at, count(v) {WINDOW}) AS n, max(v) {WINDOW}) AS most FROM bids;\n"
    grouped = "SELECT STREAM window(at, '1 minute').end AS until, sum(n) AS n FROM w GROUP BY window(at, '1 minute');"
    [query] = analyze(read_script(f"{BIDS}{view}{grouped}", "q"))
    assert query.result == "stream"
    assert isinstance(query.relation, AnalyzedView)
    assert nullable(query.relation.query) == (True, True, False, True)
