"""Synchronising and as-of joins: times, directions, versions and what may follow them."""

from __future__ import annotations

import pytest

from watersmeet.logical.relation import TimeColumn, scans
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.asof.analyze import AnalyzedAsofJoin
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.operators.sync.analyze import AnalyzedSyncJoin

STREAMS = (
    "CREATE STREAM a (k BIGINT, t BIGINT, v STRING, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM b (k BIGINT, t BIGINT, v STRING, ok BOOLEAN, WATERMARK FOR t AS t - 5);"
    "CREATE STREAM c (k BIGINT, t INT, v STRING, WATERMARK FOR t AS t - 0);"
    "CREATE TABLE d (k BIGINT, t BIGINT, name STRING, PRIMARY KEY (K), WATERMARK FOR t AS t - 0);"
    "CREATE SINK s1 USING json OPTIONS (path '1'); CREATE SINK s2 USING json OPTIONS (path '2');"
)
FRAMES = "CREATE STREAM x (k BIGINT, t TIMESTAMP); CREATE STREAM y (k BIGINT, t TIMESTAMP, n BIGINT);"


def asof(analyze_sql, text: str) -> AnalyzedAsofJoin:
    relation = analyze_sql(f"{STREAMS} SELECT STREAM a.k FROM a {text};").relation
    assert isinstance(relation, AnalyzedAsofJoin)
    return relation


def test_ports_meet_at_their_event_times(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM a.t, z.v FROM a SYNC JOIN b SYNC JOIN c AS z;")
    assert isinstance(query.relation, AnalyzedSyncJoin)
    assert query.relation.times == (TimeColumn("a", "t"), TimeColumn("b", "t"), TimeColumn("z", "t"))
    assert (query.relation.disorder, query.relation.aliases) == ("drop", ("a", "b", "z"))


def test_the_last_setting_counts(analyze_sql):
    settings = "SET watersmeet.sync.disorder = drop; SET watersmeet.sync.disorder = ERROR;"
    assert analyze_sql(f"{STREAMS} {settings} SELECT STREAM a.t FROM a SYNC JOIN b;").relation.disorder == "error"


def test_every_port_has_its_sink(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM a SYNC JOIN b PORTS INTO S2, s1;")
    assert (query.into, query.ports_into) == (None, ("s2", "s1"))


def test_late_rows_of_ports_have_a_sink(analyze_sql):
    late = "CREATE SINK late USING json OPTIONS (path 'l');"
    query = analyze_sql(f"{STREAMS} {late} SELECT STREAM * FROM a SYNC JOIN b LATE INTO late PORTS INTO s1, s2;")
    assert (query.late_into, query.ports_into) == ("late", ("s1", "s2"))


def test_two_outputs_may_not_share_a_sink(refusals_of):
    [refusal] = refusals_of(f"{STREAMS} SELECT STREAM * FROM a SYNC JOIN b PORTS INTO s1, s1;")
    assert refusal.condition == "DUPLICATE_NAME"


def test_filters_stay_behind_a_sync_join(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM a.t FROM a SYNC JOIN b WHERE b.ok;")
    assert [expression_in_words(part) for part in query.where] == ["b.ok"]


def test_a_join_may_follow_a_sync_join(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM a.t FROM a SYNC JOIN b JOIN c ON a.k = c.k AND a.t = c.t;")
    assert isinstance(query.relation, AnalyzedIntervalJoin)
    assert [scan.alias for scan in scans(query.relation)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("match", "direction", "strict"),
    [
        ("a.t >= b.t", "backward", False),
        ("b.t < a.t", "backward", True),
        ("a.t <= b.t", "forward", False),
        ("NOT (a.t >= b.t)", "forward", True),
        ("nearest(a.t, b.t)", "nearest", False),
        ("NEAREST ( b.t , a.t )", "nearest", False),
    ],
)
def test_the_match_condition_gives_the_direction(analyze_sql, match: str, direction: str, strict: bool):
    join = asof(analyze_sql, f"ASOF JOIN b MATCH_CONDITION ({match}) ON a.k = b.k WITHIN 10")
    assert (join.direction, join.strict, join.tolerance) == (direction, strict, 10)
    assert (join.left_time, join.right_time) == (TimeColumn("a", "t"), TimeColumn("b", "t"))


def test_a_condition_of_one_side_decides_what_asks_and_what_is_a_version(analyze_sql):
    join = asof(analyze_sql, "ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.k = b.k AND b.ok AND a.v = 'x'")
    assert [(expression_in_words(one), expression_in_words(other)) for one, other in join.keys] == [("a.k", "b.k")]
    assert [expression_in_words(part) for part in (*join.left_only, *join.right_only)] == ["a.v = 'x'", "b.ok"]
    assert join.tolerance is None


def test_without_a_condition_all_rows_have_one_history(analyze_sql):
    join = asof(analyze_sql, "LEFT ASOF JOIN b MATCH_CONDITION (a.t >= b.t) DEFAULT (V '', k 0)")
    assert (join.kind, join.keys) == ("left", ())
    assert [name for name, _ in join.defaults] == ["v", "k"]


def test_a_stream_or_a_table_as_of_a_time(analyze_sql):
    join = asof(analyze_sql, "LEFT JOIN d FOR SYSTEM_TIME AS OF a.t ON a.k = d.k")
    assert (join.kind, join.direction, join.strict, join.right.source.kind) == ("left", "backward", False, "table")
    assert asof(analyze_sql, "JOIN b FOR SYSTEM_TIME AS OF a.t USING (k)").right.source.kind == "stream"


def test_a_table_may_be_matched_by_a_condition_too(analyze_sql):
    join = asof(analyze_sql, "ASOF JOIN d MATCH_CONDITION (a.t > d.t) USING (k)")
    assert (join.right.source.kind, join.strict) == ("table", True)


def test_joins_before_and_behind(analyze_sql):
    text = (
        "JOIN c WITHIN 5 ON a.k = c.k JOIN d FOR SYSTEM_TIME AS OF c.t ON c.k = d.k"
        " LEFT JOIN b ON b.k = a.k AND b.t BETWEEN a.t AND a.t + 5"
    )
    relation = analyze_sql(f"{STREAMS} SELECT STREAM a.k FROM a {text};").relation
    assert isinstance(relation, AnalyzedIntervalJoin)
    assert isinstance(relation.left, AnalyzedAsofJoin)
    assert relation.left.left_time == TimeColumn("c", "t")


def test_the_time_of_versions_is_no_bound_behind_them(refusals_of):
    text = "ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.k = b.k JOIN c ON c.k = a.k AND c.t = b.t"
    [refusal] = refusals_of(f"{STREAMS} SELECT STREAM a.k FROM a {text};")
    assert refusal.condition == "UNBOUNDED_STATE"


def test_filters_on_the_asking_side_alone_move_before_the_join(analyze_sql):
    text = "ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.k = b.k WHERE a.v = 'x' AND b.ok"
    query = analyze_sql(f"{STREAMS} SELECT STREAM a.k FROM a {text};")
    assert [expression_in_words(part) for part in query.relation.left.filters] == ["a.v = 'x'"]
    assert ([expression_in_words(part) for part in query.where], query.relation.right.filters) == (["b.ok"], ())


@pytest.mark.parametrize(
    "join",
    [
        "SYNC JOIN y",
        "ASOF JOIN y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k",
        "ASOF JOIN y MATCH_CONDITION (x.t <= y.t) ON x.k = y.k",
        "JOIN y FOR SYSTEM_TIME AS OF x.t ON x.k = y.k",
    ],
)
def test_batches_need_no_watermark(analyze_sql, join: str):
    query = analyze_sql(f"{FRAMES} SELECT x.k FROM x {join};", inputs="batches")
    assert [[mark.column for mark in scan.source.watermarks] for scan in scans(query.relation)] == [["t"], ["t"]]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("(SELECT * FROM a UNION ALL SELECT * FROM d) u", "A union of the stream a with the table d"),
        ("a SYNC JOIN d", "A SYNC JOIN with the table d"),
        ("a WINDOW (COUNT 1) JOIN d WINDOW (COUNT 1)", "A window join with the table d"),
        ("d ASOF JOIN b MATCH_CONDITION (d.t >= b.t) ON d.k = b.k", "An as-of join of the table d"),
    ],
)
def test_unsupported_sides_of_a_join_are_refused(refusals_of, source: str, what: str):
    refusals = refusals_of(f"{STREAMS} SELECT 1 AS one FROM {source};")
    assert refusals[0].condition in {"UNSUPPORTED_STATEMENT", "TYPE_MISMATCH"}
    assert f"{what} is not supported." in [refusal.message for refusal in refusals]


def test_the_stream_of_a_lookup_needs_its_time(refusals_of):
    lookup = "CREATE STREAM x (k BIGINT, t BIGINT); SELECT STREAM x.k FROM x JOIN d ON d.k = x.k"
    [refusal] = refusals_of(f"{STREAMS} {lookup} ASOF JOIN b MATCH_CONDITION (x.t >= b.t) ON x.k = b.k;")
    assert (refusal.condition, refusal.label) == ("MISSING_WATERMARK", "x has no watermark")


def test_names_in_a_match_condition_are_looked_up(refusals_of):
    [refusal] = refusals_of(f"{STREAMS} SELECT STREAM a.k FROM a ASOF JOIN b MATCH_CONDITION (a.t >= b.time);")
    assert refusal.condition == "UNKNOWN_COLUMN"


def test_a_key_of_a_table_is_a_column_of_it(refusals_of):
    [refusal] = refusals_of("CREATE TABLE t (a INT, PRIMARY KEY (b)); CREATE STREAM s (a INT); SELECT a FROM s;")
    assert refusal.condition == "UNKNOWN_COLUMN"
