"""Declarations, settings and units that are refused."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Join, Query, Scan, Script, Setting, Star, Within
from watersmeet.logical.passes.settings import OVERFLOW
from watersmeet.queries import analyze

V = "CREATE STREAM v (id INT, t BIGINT, WATERMARK FOR t AS t - 0);"
TIME = "CREATE STREAM w (id INT, u TIMESTAMP, WATERMARK FOR u AS u - INTERVAL 5 SECONDS);"
DATE = "CREATE STREAM d (id INT, day DATE, WATERMARK FOR day AS day - INTERVAL 1 DAY);"


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        (f"{V} CREATE STREAM V (x INT);", "DUPLICATE_NAME"),
        (
            "CREATE SINK s USING parquet OPTIONS (path 'a'); CREATE SINK S USING parquet OPTIONS (path 'b');",
            "DUPLICATE_NAME",
        ),
        ("CREATE STREAM v (id INT, ID INT);", "DUPLICATE_NAME"),
        ("CREATE STREAM v (t INT, WATERMARK FOR t AS t - 1, WATERMARK FOR t AS t - 2);", "DUPLICATE_NAME"),
        ("CREATE STREAM v (t INT, WATERMARK FOR tt AS tt - 1);", "UNKNOWN_COLUMN"),
        ("CREATE STREAM v (t STRING, WATERMARK FOR t AS t - 1);", "WRONG_EVENT_TIME"),
        ("CREATE STREAM v (t TIMESTAMP, WATERMARK FOR t AS t - 1);", "WRONG_TIME_UNIT"),
        ("CREATE STREAM v (t INT, WATERMARK FOR t AS t - INTERVAL 1 SECOND);", "WRONG_TIME_UNIT"),
        ("CREATE STREAM v (c CHAR(3)) USING json OPTIONS (path 'a');", "UNKNOWN_TYPE"),
        ("CREATE STREAM v (c ARRAY<VARCHAR(3)>) USING parquet OPTIONS (path 'a');", "UNKNOWN_TYPE"),
        ("CREATE STREAM v (c DECIMAL(39,2));", "UNKNOWN_TYPE"),
        ("CREATE STREAM v (c STRUCT<a: DECIMAL(10,12)>);", "UNKNOWN_TYPE"),
        ("SET watersmeet.shard = 3;", "UNKNOWN_SETTING"),
        ("SET watersmeet.shards = none;", "WRONG_ARGUMENT"),
        ("SET watersmeet.shards = 0;", "WRONG_ARGUMENT"),
        ("SET watersmeet.state.max_rows = 1.5;", "WRONG_ARGUMENT"),
        ("SET watersmeet.state.max_rows = -1;", "WRONG_ARGUMENT"),
        ("SET watersmeet.together = maybe;", "WRONG_ARGUMENT"),
        ("SET watersmeet.state.overflow = ignore;", "WRONG_ARGUMENT"),
        ("SET watersmeet.state.max_row = 5;", "UNKNOWN_SETTING"),
    ],
)
def test_refuses_declarations(refusals_of, sql, condition):
    [refusal] = refusals_of(sql)
    assert refusal.condition == condition
    assert refusal.place is not None
    assert refusal.hint


def test_accepts_sized_text_where_spark_does(analyze_sql):
    source = "CREATE STREAM v (c CHAR(3), d DECIMAL(38,38)) USING {} OPTIONS (path 'a');"
    query = "SELECT STREAM c FROM v;"
    analyze_sql(f"SET spark.sql.legacy.charVarcharAsString = true; {source.format('json')} {query}")
    analyze_sql(f"{source.format('delta')} {query}")


def test_accepts_settings_of_spark_and_of_watersmeet():
    settings = (Setting("spark.sql.shuffle.partitions", "2"), Setting("watersmeet.shards", "8"))
    caps = [Setting("watersmeet.state.max_rows", "100"), *(Setting("watersmeet.state.overflow", p) for p in OVERFLOW)]
    settings = (*settings, *caps)
    assert analyze(Script("s", "", settings=settings)) == ()


@pytest.mark.parametrize(
    ("on", "cause"),
    [
        ("v JOIN w ON v.t = w.u", "compares BIGINT with TIMESTAMP"),
        ("w JOIN d ON w.u = d.day", "compares TIMESTAMP with DATE"),
        ("v JOIN w WITHIN 5s ON v.id = w.id", "compares TIMESTAMP with BIGINT"),
        ("v JOIN v AS x WITHIN 5s ON v.id = x.id", "plain numbers"),
        ("w JOIN w AS x ON x.u BETWEEN w.u AND w.u + 5", "a number without a unit"),
        ("v JOIN v AS x ON x.t BETWEEN v.t AND v.t + INTERVAL 5 SECONDS", "plain numbers"),
    ],
)
def test_refuses_units_that_do_not_fit(refusals_of, on, cause):
    [refusal] = refusals_of(f"{V} {TIME} {DATE} SELECT STREAM 1 AS one FROM {on};")
    assert refusal.condition == "WRONG_TIME_UNIT"
    assert cause in refusal.label


def test_refuses_within_where_a_side_has_two_times(refusals_of):
    sql = (
        f"{V} CREATE STREAM x (t BIGINT, u BIGINT, WATERMARK FOR t AS t - 0, WATERMARK FOR u AS u - 0);"
        "SELECT STREAM v.id FROM v JOIN x WITHIN 5 ON v.id = x.u;"
    )
    [refusal] = refusals_of(sql)
    assert refusal.condition == "WITHIN_NEEDS_ONE_TIME"
    assert "x.t and x.u" in refusal.label


def test_refuses_a_join_with_a_table_within_a_time():
    table = Source("c", (Field("id", "INT"),), kind="table")
    stream = Source("v", (Field("id", "INT"), Field("t", "INT")), (Watermark("t", Amount(0, False)),))
    join = Join(Scan("v", "v"), Scan("c", "c"), "inner", using=("id",), within=Within(Amount(5, False)))
    with pytest.raises(WatersmeetError) as caught:
        analyze(Script("s", "", queries=(Query(join, (Star(),)),)), {"c": table, "v": stream})
    assert [refusal.condition for refusal in caught.value.refusals] == ["INCOMPATIBLE_JOIN"]


def test_a_frame_without_watermark_is_refused_with_what_to_call():
    fields = (Field("id", "INT"), Field("seen_at", "TIMESTAMP"))
    join = Join(Scan("a", "a"), Scan("b", "b"), "left", using=("id",), within=Within(Amount(5, True)))
    frames = {"a": Source("a", fields, (Watermark("seen_at", Amount(0, True)),)), "b": Source("b", fields)}
    with pytest.raises(WatersmeetError) as caught:
        analyze(Script("s", "", queries=(Query(join, (Star(),)),)), frames)
    [refusal] = caught.value.refusals
    assert refusal.condition == "MISSING_WATERMARK"
    assert '`.withWatermark("seen_at", "5 seconds")`' in refusal.hint


def test_the_watermark_that_a_frame_brings_is_checked_too(refusals_of):
    frame = Source("v", (Field("t", "INT"), Field("u", "INT")), (Watermark("u", Amount(0, False)),))
    refusals = refusals_of("CREATE STREAM v (t INT); SELECT STREAM a.t FROM v a JOIN v b ON a.t = b.t;", v=frame)
    assert [refusal.condition for refusal in refusals] == ["UNKNOWN_COLUMN"]


def test_refuses_within_around_a_join_of_two_times(refusals_of):
    [refusal] = refusals_of(
        f"{V} SELECT STREAM v.id FROM v JOIN v AS w ON v.t = w.t JOIN v AS x WITHIN 5 ON v.id = x.id;"
    )
    assert refusal.condition == "WITHIN_NEEDS_ONE_TIME"
    assert refusal.label == "the join of v and w has the watermarked columns v.t and w.t"


@pytest.mark.parametrize("query", ["CREATE VIEW v AS {}; SELECT v.id FROM v;", "{} GROUP BY w.id;", "{};"])
def test_a_wrong_declaration_is_all_that_is_said_of_a_join_over_it(refusals_of, query: str):
    wrong = "CREATE STREAM w (id BIGINT, t BIGINT, WATERMARK FOR nosuch AS nosuch - 0);"
    other = "CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);"
    join = "SELECT TABLE w.id FROM w JOIN r WITHIN 5 ON w.id = r.id"
    refusals = refusals_of(f"{other} {wrong} {query.format(join)}")
    assert [refusal.condition for refusal in refusals] == ["UNKNOWN_COLUMN"]


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".", "/etc/x"])
def test_a_name_that_is_none_of_a_folder_is_refused(refusals_of, name):
    sink = f"CREATE STREAM s (v INT); CREATE SINK `{name}` USING console; INSERT INTO `{name}` SELECT STREAM v FROM s;"
    [refusal] = refusals_of(sink)
    assert refusal.condition == "WRONG_NAME" and "outside the project" in refusal.message
    table = f"CREATE TABLE `{name}` (v INT); CREATE STREAM s (v INT); SELECT STREAM v FROM s;"
    assert [refusal.condition for refusal in refusals_of(table)] == ["WRONG_NAME"]


def test_names_with_dots_are_names_of_folders(analyze_sql):
    assert analyze_sql(
        "CREATE STREAM `a/b` (v INT); CREATE SINK `x.y` USING console; INSERT INTO `x.y` SELECT v FROM `a/b`;"
    )
