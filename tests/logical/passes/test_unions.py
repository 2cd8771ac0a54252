"""Unions inside queries: sides by position, and what is refused."""

from __future__ import annotations

SOURCES = """\
CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE STREAM keyed (id BIGINT, t BIGINT) USING kafka OPTIONS ('value.format' 'json', subscribe 'keyed');
"""


def test_the_key_of_a_record_does_not_count_as_a_column_of_a_union(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT STREAM * FROM (SELECT id FROM keyed UNION ALL SELECT id FROM r) AS u;")
    assert [output.name for output in query.outputs] == ["id"]


def test_sides_of_a_union_of_different_width_are_refused(refusals_of):
    [refusal] = refusals_of(
        f"{SOURCES} SELECT STREAM * FROM (SELECT id, t FROM keyed UNION ALL SELECT id FROM r) AS u;"
    )
    assert refusal.condition == "TYPE_MISMATCH"
    assert "#" not in refusal.message


def test_a_union_inside_a_union_is_refused_because_its_marks_would_be_lost(refusals_of):
    view = "CREATE VIEW v AS SELECT STREAM * FROM (SELECT * FROM r UNION ALL SELECT * FROM r) AS q;"
    refusals = refusals_of(f"{SOURCES} {view} SELECT STREAM * FROM (SELECT * FROM v UNION ALL SELECT * FROM r) AS u;")
    assert [refusal.condition for refusal in refusals] == ["UNSUPPORTED_STATEMENT"]
