"""Every case on the definition and on the kernel; `test_on_spark.py` runs the same files on Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import pyarrow as pa
import pytest
from tests.case_files import FILES, case_file, case_name

from watersmeet.errors import WatersmeetError
from watersmeet.local.cells import NeedsSparkError
from watersmeet.tools.testing import Case, CaseBatch, Outcome, compare, parse_case, read_case, run_case
from watersmeet.tools.testing.case import cells_of
from watersmeet.tools.testing.execute import trace_case

OLD_AND_NEW = ("marks", "input_watermarks")


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("path", FILES, ids=case_name)
def test_case(path: Path, on: Literal["reference", "kernel"]) -> None:
    result = run_case(read_case(path), on)
    if result.status == "not run":
        pytest.skip(f"needs Spark: {result.detail}")
    assert result.status == "passed", result.detail


@pytest.mark.parametrize("name", ["changelog/days-in-berlin", "interval/interval-of-the-other-side-in-berlin"])
def test_days_in_a_zone_whose_clocks_move_are_calendar_days(name: str) -> None:
    result = run_case(read_case(case_file(name)), "kernel")
    assert result.status == "passed", result.detail


def test_an_outer_join_by_an_interval_of_the_other_side_fails_alone_where_clocks_move() -> None:
    case = read_case(case_file("interval/interval-of-the-other-side-in-berlin"))
    result = run_case(replace(case, sql=str(case.sql).replace(" JOIN ", " LEFT JOIN ")), "kernel")
    assert result.status == "failed"
    assert "UNSUPPORTED_CONDITION" in result.detail and "no fixed length in Europe/Berlin" in result.detail


def test_a_wrong_expectation_is_shown() -> None:
    case = replace(read_case(case_file("interval/end")), end=((2, 7, None, None), (9, 9, None, None)))
    result = run_case(case, "kernel")
    assert result.status == "failed"
    assert result.detail == "end, out:\n  - [9, 9, null, null]\n  + [null, null, 3, 9]"


def test_rows_compare_as_a_multiset_or_in_order() -> None:
    outcome = Outcome((pa.table({"a": [1, 2, 2]}),))
    assert compare(CaseBatch(out=((2,), (1,), (2,))), outcome) is None
    assert compare(CaseBatch(out=((2,), (1,))), outcome) == "out:\n  + [2]"
    assert compare(CaseBatch(out=((2,), (1,), (2,))), outcome, ordered=True) is not None
    assert compare(CaseBatch(out=((1,), (2,), (2,))), outcome, ordered=True) is None


def test_unreported_cases_are_not_passed() -> None:
    assert compare(CaseBatch(state={"l": 0}), Outcome()) is not None
    assert compare(CaseBatch(late=()), Outcome()) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{name: a, sql: b, batches: [], colour: red}", "there is no field `colour`"),
        ("{name: a, sql: b, batches: [{inn: {}}]}", "there is no field `batches.1.inn`"),
        ("{name: a, batches: []}", "it needs either `sql` or `query`"),
        ("{name: a, sql: b}", "it needs either `batches` or `fails`"),
        ("{name: a, sql: b, fails: NO_SUCH_THING}", "`fails` names an unknown condition: `NO_SUCH_THING`"),
        ("{name: a, sql: b, batches: [{in: {l: 3}}]}", "the field `batches.1.in.l` is wrong"),
        ("{name: a, sql: b, batches: [{out: [[1], 3]}]}", "the field `batches.1.out.2` is wrong: a row is a list of"),
        ("{name: a, sql: b, batches: [{out: [{on: 3}]}]}", "true is not the name of a column; write it in quotes"),
        ("{name: a, spec: 3, sql: b, batches: []}", "the field `spec` is wrong"),
        ("[1, 2]", "it is not a mapping of fields"),
        ("{name: ", "it is not YAML"),
    ],
)
def test_a_wrong_case_names_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        parse_case(text, "some.yaml")
    assert caught.value.getCondition() == "WRONG_CASE"
    assert reason in str(caught.value)


def test_the_old_name_of_input_watermarks_is_read() -> None:
    old, new = (parse_case(f"{{name: a, sql: b, batches: [{{{name}: {{l: 20}}}}]}}") for name in OLD_AND_NEW)
    assert old.batches == new.batches
    assert new.batches[0].input_watermarks == {"l": 20}
    with pytest.raises(WatersmeetError):
        parse_case("{name: a, sql: b, batches: [{marks: {l: 20}, input_watermarks: {l: 20}}]}")


def test_a_case_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WatersmeetError) as caught:
        read_case(tmp_path / "none.yaml")
    assert caught.value.getCondition() == "FILE_NOT_FOUND"


@pytest.mark.parametrize(
    "batch",
    [
        "{in: {x: [[1, 1]]}}",
        "{in: {l: [[1]]}}",
        "{in: {l: [[a, 1]]}}",
        "{input_watermarks: {x: 1}}",
        "{marks: {l: soon}}",
    ],
)
def test_cells_that_do_not_fit_are_refused(batch: str) -> None:
    case = read_case(case_file("interval/end"))
    wrong = parse_case(f"{{name: a, sql: b, batches: [{batch}]}}")
    with pytest.raises(WatersmeetError) as caught:
        run_case(replace(wrong, sql=case.sql), "kernel")
    assert caught.value.getCondition() == "WRONG_CASE"


ORDERS = """
name: rows by column
sql: |
  CREATE STREAM o (id BIGINT, Item STRING, t BIGINT, WATERMARK FOR t AS t - 0);
  CREATE STREAM d (id BIGINT, courier STRING, t BIGINT, WATERMARK FOR t AS t - 0);
  SELECT STREAM o.id, o.Item, d.courier FROM o LEFT JOIN d ON o.id = d.id AND d.t BETWEEN o.t AND o.t + 5;
batches:
- in: {o: [%(o)s, [2, rug, 11]], d: [{courier: north, t: 12, id: 1}]}
  out: [%(out)s]
- in: {d: [{t: 30}, {t: 3}]}
  out: [{item: rug, id: 2}]
  late: [%(late)s]
why: [{of: o, row: %(why)s, is: padded}]
"""
ROWS = {
    "o": "{id: 1, item: lamp, t: 10}",
    "out": "{id: 1, ITEM: lamp, courier: north}",
    "late": "{t: 3}",
    "why": "{id: 2, item: rug, t: 11}",
}


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_case_names_columns_of_rows(on: Literal["reference", "kernel"]) -> None:
    result = run_case(parse_case(ORDERS % ROWS), on)
    assert result.status == "passed", result.detail


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        (
            {"out": "{id: 1, item: lamp}"},
            """
            batch 1, out:
              - {"id": 1, "item": "lamp"}
              + {"id": 1, "Item": "lamp", "courier": "north"}
            """,
        ),
        (
            {"late": "{t: 3, id: 1}"},
            """
            batch 2, late:
              - {"t": 3, "id": 1}
              + {"d.id": null, "d.courier": null, "d.t": 3}
            """,
        ),
        ({"why": "{id: 3}"}, "why:\n  ! o {'id': 3} did not arrive"),
    ],
)
def test_case_shows_the_difference_by_column(
    rows: dict[str, str], detail: str, on: Literal["reference", "kernel"]
) -> None:
    result = run_case(parse_case(ORDERS % (ROWS | rows)), on)
    assert (result.status, result.detail) == ("failed", dedent(detail).strip())


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"o": "{id: 1, itme: lamp}"}, "`itme` is not a column of `o` (did you mean `Item`?)."),
        ({"o": "{id: 1, _change: '+'}"}, "`_change` is not a column of `o` (known names: `Item`, `id`, `t`)."),
        ({"o": "{id: 1, Id: 2}"}, "{'id': 1, 'Id': 2} names `id` twice."),
        ({"out": "{id: 1, itme: lamp}"}, "`itme` is not a column of the result (did you mean `Item`?)."),
        ({"late": "{id: 1, curier: x}"}, "`curier` is not a column of the late rows (did you mean `courier`?)."),
        ({"why": "{courier: x}"}, "`courier` is not a column of `o` (known names: `Item`, `id`, `t`)."),
    ],
)
def test_case_refuses_a_column_that_is_unknown(rows: dict[str, str], reason: str) -> None:
    with pytest.raises(WatersmeetError) as caught:
        run_case(parse_case(ORDERS % (ROWS | rows), "some.yaml"), "kernel")
    assert caught.value.getCondition() == "WRONG_CASE"
    assert f"some.yaml is not a case: {reason}" in str(caught.value)


COUNTS = """
name: changes by column
sql: |
  CREATE TABLE c (id BIGINT, city STRING, PRIMARY KEY (id));
  SELECT TABLE city, count(*) AS n FROM c GROUP BY city;
batches:
- in: {c: [{id: 1, city: Oslo}, [2, Oslo]]}
  out: [{city: Oslo, n: 2}]
- in: {c: [{_change: %s, id: 1}]}
  out: [{_change: "-", city: Oslo, n: 2}, {_change: "+", city: Oslo, n: 1}]
"""


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_case_names_the_change_of_a_row(on: Literal["reference", "kernel"]) -> None:
    result = run_case(parse_case(COUNTS % '"-"'), on)
    assert result.status == "passed", result.detail
    with pytest.raises(WatersmeetError, match=r"`_change` of .* is neither `\+` nor `-`"):
        run_case(parse_case(COUNTS % "minus"), on)


def test_case_names_a_column_by_its_alias() -> None:
    assert cells_of({"r.id": 1, "t": 2}, ["l.id", "r.id", "r.t"], "the late rows") == [None, 1, 2]
    with pytest.raises(ValueError, match=r"`id` could be any of `l.id`, `r.id`"):
        cells_of({"id": 1}, ["l.id", "r.id"], "the late rows")


SOURCES = """
CREATE STREAM l (k BIGINT, x {}, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE STREAM r (k BIGINT, y {}, t BIGINT, WATERMARK FOR t AS t - 0);
"""
JOINED = "SELECT STREAM l.x, r.y FROM l JOIN r WITHIN 1 ON l.k = r.k AND "
TWO_TYPES = {
    "STRING and INT": ("STRING", "a", "INT", 1, "l.x < r.y"),
    "FLOAT and INT beyond 2^24": ("FLOAT", 16777216.0, "INT", 16777217, "NOT (l.x = r.y) OR l.x IS NULL"),
    "TIMESTAMP and TIMESTAMP_NTZ": ("TIMESTAMP", "2024-01-01", "TIMESTAMP_NTZ", "2024-01-01", "NOT (l.x = r.y)"),
    "DATE and TIMESTAMP": ("DATE", "2024-01-01", "TIMESTAMP", "2024-01-01", "l.x <= r.y"),
    "BINARY and STRING": ("BINARY", "a", "STRING", "a", "l.x <= r.y"),
    "decimals that Spark cuts": ("DECIMAL(38,0)", "1", "DECIMAL(38,20)", "2.5", "l.x < r.y"),
    "a product that Spark cuts": ("DECIMAL(32,2)", "1.5", "DECIMAL(32,2)", "2.5", "l.x * r.y > 1"),
    "FLOAT and INT in a sum": ("FLOAT", 1.5, "INT", 1, "l.x + r.y > 1"),
}


def two_types(left: tuple[str, Any], right: tuple[str, Any], condition: str, out: Sequence[Any] = ()) -> Case:
    sql = SOURCES.format(left[0], right[0]) + JOINED + condition + ";"
    rows = {"l": [[1, left[1], 1]], "r": [[1, right[1], 1]]}
    return parse_case(json.dumps({"name": "x", "sql": sql, "batches": [{"in": rows, "out": [*out]}]}), "x")


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("pair", TWO_TYPES)
def test_expressions_that_spark_computes_otherwise_are_not_run(pair: str, on: Literal["reference", "kernel"]) -> None:
    left_type, left, right_type, right, condition = TWO_TYPES[pair]
    result = run_case(two_types((left_type, left), (right_type, right), condition), on)
    assert result.status == "not run", result.detail


def test_expressions_that_spark_computes_otherwise_are_neither_drawn_nor_traced() -> None:
    left_type, left, right_type, right, condition = TWO_TYPES["TIMESTAMP and TIMESTAMP_NTZ"]
    with pytest.raises(NeedsSparkError, match="timestamp"):
        trace_case(two_types((left_type, left), (right_type, right), condition))


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_texts_of_a_collation_are_not_compared_by_their_bytes(on: Literal["reference", "kernel"]) -> None:
    collated = "STRING COLLATE UTF8_LCASE"
    assert run_case(two_types((collated, "A"), ("STRING", "a"), "l.x = r.y"), on).status == "not run"
    assert run_case(
        two_types(("STRING COLLATE UTF8_BINARY", "a"), ("STRING", "a"), "l.x = r.y", [["a", "a"]]), on
    ).status == ("passed")


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_a_bigint_compared_with_a_double_loses_digits_as_on_spark(on: Literal["reference", "kernel"]) -> None:
    double, bigint = ("DOUBLE", 9007199254740992.0), ("BIGINT", 9007199254740993)
    out = [[9007199254740992.0, 9007199254740993]]
    result = run_case(two_types(double, bigint, "l.x >= r.y", out), on)
    assert result.status == "passed", result.detail
    assert run_case(two_types(double, bigint, "l.x < r.y"), on).status == "passed"


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("condition", ["l.x + r.y > 0", "l.x % (r.y - r.y) = 0"])
def test_a_case_whose_query_stops_fails_alone(condition: str, on: Literal["reference", "kernel"]) -> None:
    result = run_case(two_types(("BIGINT", 2**63 - 1), ("BIGINT", 5), condition), on)
    assert result.status == "failed"
    assert "the query stops: " in result.detail


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT STREAM s.name, t.id FROM s LEFT JOIN t ON s.name = t.id;", "{s: [['1', [2]]], t: [[1]]}"),
        ("SELECT STREAM s.name FROM s WHERE s.xs > 0;", "{s: [['1', [2]]]}"),
    ],
)
def test_operands_that_spark_would_cast_are_not_compared_in_the_process(sql: str, rows: str):
    sources = "CREATE STREAM s (name STRING, xs ARRAY<BIGINT>); CREATE TABLE t (id BIGINT, PRIMARY KEY (id));"
    case = parse_case(f'{{name: x, sql: "{sources} {sql}", batches: [{{in: {rows}}}]}}', "x")
    assert run_case(case, "kernel").status == "not run"


@pytest.mark.parametrize("on", ["reference", "kernel"])
def test_a_quotient_of_decimals_filters_the_pairs(on: Literal["reference", "kernel"]) -> None:
    case = two_types(("DECIMAL(5,2)", "1"), ("DECIMAL(5,2)", "3"), "l.x / r.y = 0.33333333BD", [["1.00", "3.00"]])
    result = run_case(case, on)
    assert result.status == "passed", result.detail


def test_expressions_without_ansi_mode_are_left_to_spark_where_that_may_matter() -> None:
    sources = "CREATE STREAM s (x INT, y STRING);"
    for shown, status in (("x + 1", "passed"), ("CAST(y AS INT)", "not run"), ("x / 0", "not run")):
        sql = f"SET spark.sql.ansi.enabled = false; {sources} SELECT STREAM {shown} AS z FROM s;"
        case = parse_case(f'{{name: x, sql: "{sql}", batches: [{{in: {{s: [[1, a]]}}, out: [[2]]}}]}}', "x")
        assert run_case(case, "kernel").status == status, shown


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
@pytest.mark.parametrize("upper", ["r.t <= l.t + INTERVAL 1 DAY", "r.t - l.t <= INTERVAL 1 HOUR"])
def test_local_times_of_a_zone_that_moves_its_clocks(zone: str, upper: str) -> None:
    sources = "".join(f"CREATE STREAM {name} (t TIMESTAMP, WATERMARK FOR t AS t); " for name in "lr")
    query = f"SELECT STREAM l.t FROM l JOIN r ON r.t >= l.t AND {upper};"
    sql = f"SET spark.sql.session.timeZone = '{zone}'; {sources} {query}"
    rows = "{l: [['2025-10-25 10:00:00']], r: [['2025-10-25 10:30:00']]}"
    case = parse_case(f'{{name: x, sql: "{sql}", batches: [{{in: {rows}, out: [["2025-10-25 10:00:00"]]}}]}}', "x")
    result = run_case(case, "kernel")
    assert result.status == "passed", result.detail
