"""What is most likely a mistake, though only Spark can tell."""

from __future__ import annotations

import pytest
from tests.case_files import FILES
from tests.logical.conftest import Analyzed, Refused

from watersmeet.logical.passes.check_declarations import find_suspicions
from watersmeet.queries import read_readable, read_script
from watersmeet.tools.testing.case import read_case

STREAM = "CREATE STREAM s (id BIGINT, name STRING, t TIMESTAMP, d DATE, WATERMARK FOR t AS t)"
PAIR = f"{STREAM}; CREATE STREAM r (id STRING, t TIMESTAMP, d DATE, b BOOLEAN, WATERMARK FOR t AS t);"


@pytest.mark.parametrize(
    ("expression", "condition", "hint"),
    [
        ("uper(name)", "UNKNOWN_FUNCTION", "did you mean `upper`?"),
        ("concat(name, lenght(name))", "UNKNOWN_FUNCTION", "did you mean `length`?"),
        ("PROCTIME()", "UNKNOWN_FUNCTION", "write `current_timestamp()`."),
        ("xyzzy(name)", "UNKNOWN_FUNCTION", "look it up among the functions of Spark SQL."),
        ("coalesce(uper(max(name)), 'x')", "UNKNOWN_FUNCTION", "did you mean `upper`?"),
        ("upper(name, id)", "WRONG_CALL", "write `upper(a)`, for example."),
        ("date_format(t)", "WRONG_CALL", "write `date_format(a, b)`, for example."),
        ("substring_index()", "WRONG_CALL", "write `substring_index(a, b, c)`, for example."),
    ],
)
def test_functions_that_spark_does_not_have(expression: str, condition: str, hint: str):
    script = read_script(f"{STREAM}; SELECT STREAM {expression} AS x FROM s;")
    [refusal] = find_suspicions(script).refusals
    assert (refusal.condition, refusal.hint) == (condition, hint)
    assert refusal.place is not None
    assert refusal.place.text[refusal.place.start : refusal.place.end] in expression
    likely = find_suspicions(script, may_add_functions=True)
    assert not likely.refusals
    assert hint in likely.warnings[0].message


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(id AS DECIMAL(10, 2))", "id::DECIMAL(10, 2)", "trim(BOTH ' ' FROM name)", "substring(name FROM 2 FOR 3)",
        "transform(array(1, 2), (x, i) -> x + i)", "name LIKE ANY ('a', 'b')", "id IN (1, 2)", "catalog.own(name)",
        "CASE WHEN (id > 1) THEN (2) ELSE (3) END", "struct(id, name)", "timestampdiff(HOUR, t, t)", "if(true, 1, 2)",
        "named_struct('a', id)", "extract(HOUR FROM t)", "window(t, '5 minutes').start", "position('a' IN name)",
        "NOT (id > 1) AND (name = 'f(x)')", "concat_ws(',', name, name, name)", "`upper`(name)", "date_add(t, 1)",
        "TUMBLE(t, INTERVAL '5' MINUTES)", "hop_start(t, INTERVAL '1' MINUTE, INTERVAL '5' MINUTES)",
    ],
)  # fmt: skip
def test_suspicions_leave_functions_that_may_be_called(expression: str):
    assert not find_suspicions(read_script(f"{STREAM}; SELECT STREAM {expression} AS x FROM s;")).refusals


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("s (id INT) USING json OPTIONS (pth '/in')", ["did you mean `path`?"]),
        ("s (id INT) USING csv OPTIONS (path '/in', Heder true)", ["did you mean `header`?"]),
        ("s (id INT) USING json OPTIONS (path '/in', malformd 'drop')", ["did you mean `malformed`?"]),
        ("s (id INT) USING json", ["write `OPTIONS (path 'data/orders')`."]),
        ("s (id INT) USING jsn OPTIONS (path '/in')", ["did you mean `json`?"]),
        ("s (id INT) USING kafka OPTIONS (subscribe 'a', valu.format 'json', 'kafka.bootstrap.servers' 'h:1')",
         ["did you mean `value.format`?"]),
        ("s (id INT) USING kafka OPTIONS (subscribe 'a')", ["write `OPTIONS (kafka.bootstrap.servers 'host:9092')`."]),
        ("s (id INT) USING JSON OPTIONS (PATH '/in', multiline true, 'fs.s3a.endpoint' 'x')", []),
        ("s (id INT) USING org.example.Own OPTIONS (colour 'red')", []),
        ("s (id INT) USING iceberg OPTIONS (colour 'red')", []),
    ],
)  # fmt: skip
def test_formats_and_options(declared: str, told: list[str]):
    script = read_script(f"CREATE STREAM {declared}; SELECT STREAM id FROM s;")
    assert [refusal.hint for refusal in find_suspicions(script).refusals] == told


def test_cases_are_not_taken_for_mistakes():
    cases = [case for path in FILES if (case := read_case(path)).fails is None]
    assert len(cases) > 150
    assert not [refusal for case in cases for refusal in find_suspicions(read_script(case.sql, case.path)).refusals]


def test_an_option_that_is_near_none_is_noted():
    script = read_script("CREATE SINK s USING parquet OPTIONS (path '/out', colour 'red');")
    likely = find_suspicions(script)
    assert not likely.refusals
    [warned] = likely.warnings
    assert "`colour` is not a known option of parquet" in warned.message
    assert script.text[warned.span.start : warned.span.end] == "colour"


def test_functions_are_found_in_what_could_be_read():
    script, unread = read_readable("SELECT STREAM uper(id) FROM;\nSELECT STREAM lowr(id) FROM s;")
    assert unread.refusals
    assert [r.parameters["function"] for r in find_suspicions(script).refusals] == ["uper", "lowr"]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("s.id = r.id", "compares BIGINT with STRING: Spark reads the string as a number, and any other string stops"),
        ("s.name > 5", "compares STRING with a number"),
        ("s.name IN (3, 4)", "`s.name = 3` compares STRING with a number"),
        ("s.id = 'seven'", "compares BIGINT with STRING"),
        ("s.t = s.name", "reads the string as a time"),
        ("r.b = s.name", "reads the string as true or false"),
        ("s.id + 1 = r.id", "compares a number with STRING"),
        ('s.name = "id"', '"id" is a string, not the column: write id without quotes.'),
        ("s.id BETWEEN 9 AND 3", "No value is between 9 and 3: BETWEEN takes the smaller one first."),
    ],
)
def test_a_comparison_that_may_surprise_is_noted(analyze_sql: Analyzed, condition: str, said: str):
    query = analyze_sql(f"{PAIR} SELECT STREAM s.id FROM s JOIN r WITHIN 1h ON s.d = r.d AND {condition};")
    [warned] = query.warnings
    assert said in warned.message


def test_without_ansi_a_text_that_cannot_be_read_is_null(analyze_sql: Analyzed):
    setting = "SET spark.sql.ansi.enabled = false;"
    query = analyze_sql(f"{setting} {PAIR} SELECT STREAM s.id FROM s JOIN r WITHIN 1h ON s.id = r.id;")
    assert "becomes NULL and matches nothing" in query.warnings[0].message


@pytest.mark.parametrize("condition", ["s.id = '7'", "s.t > '2026-01-01'", "s.name = 'id'", "s.id = 7.5", "s.d = s.t"])
def test_a_plain_comparison_is_not_noted(analyze_sql: Analyzed, condition: str):
    query = analyze_sql(f"{PAIR} SELECT STREAM s.id FROM s JOIN r WITHIN 1h ON s.d = r.d WHERE {condition};")
    assert not query.warnings


@pytest.mark.parametrize(
    ("condition", "types"), [("s.id > s.t", "BIGINT with TIMESTAMP"), ("r.b = s.d", "BOOLEAN with")]
)
def test_types_that_spark_does_not_compare_are_refused(refusals_of: Refused, condition: str, types: str):
    [refusal] = refusals_of(f"{PAIR} SELECT STREAM s.id FROM s JOIN r WITHIN 1h ON s.d = r.d WHERE {condition};")
    assert refusal.condition == "TYPE_MISMATCH"
    assert types in refusal.message
