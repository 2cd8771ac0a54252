from __future__ import annotations

import re
from decimal import Decimal

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr, aggregates_in, alternative
from watersmeet.parser import read_expression
from watersmeet.schema import quote


def shape(expr: Expr) -> str:
    """The structure of an expression as brackets, leaves by their text."""
    if not expr.args:
        return expr.text
    if expr.op == "cast":
        return f"(cast {shape(expr.args[0])} {expr.value})"
    if expr.op in ("call", "aggregate"):
        distinct = "distinct " if expr.value == "distinct" else ""
        return f"{expr.text}({distinct}{' '.join(shape(arg) for arg in expr.args)})"
    return f"({expr.op} {' '.join(shape(arg) for arg in expr.args)})"


def parts(expr: Expr) -> list[str]:
    return [".".join(ref.parts) for ref in expr.references]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a OR b AND NOT c", "(or a (and b (not c)))"),
        ("a AND b AND c", "(and a b c)"),
        ("(a AND b) AND c", "(and (and a b) c)"),
        ("a = b", "(= a b)"),
        ("a == b", "(= a b)"),
        ("a != b", "(<> a b)"),
        ("a <> b", "(<> a b)"),
        ("a <=> b", "(<=> a b)"),
        ("a IS NOT DISTINCT FROM b", "(<=> a b)"),
        ("a IS DISTINCT FROM b", "(not (<=> a b))"),
        ("a IS NULL", "(is_null a)"),
        ("a IS NOT NULL", "(not (is_null a))"),
        ("x BETWEEN a - 1 AND a + 4", "(and (>= x (- a 1)) (<= x (+ a 4)))"),
        ("x NOT BETWEEN 1 AND 2", "(not (and (>= x 1) (<= x 2)))"),
        ("x IN (1, 2)", "(or (= x 1) (= x 2))"),
        ("x IN (1)", "(= x 1)"),
        ("x IN (a LIKE b, 2)", "(or (= x (a LIKE b)) (= x 2))"),
        ("x NOT IN (1, 2)", "(not (or (= x 1) (= x 2)))"),
        ("a - b - c * d / e % f", "(- (- a b) (% (/ (* c d) e) f))"),
        ("a - (b - c)", "(- a (- b c))"),
        ("-a + +b", "(+ (negate a) b)"),
        ("-a * b", "(* (negate a) b)"),
        ("NOT a = b", "(not (= a b))"),
        ("!a", "(not a)"),
        ("NOT `x`", "(not `x`)"),
        ("a = b IS NULL", "(is_null (= a b))"),
        ("a >> 1 > 2", "(> a >> 1 2)"),
        ("a LIKE b = c OR d", "(or a LIKE b = c d)"),
        ("a BETWEEN 1 AND 2 AND b", "(and (and (>= a 1) (<= a 2)) b)"),
        ("a LIKE 'x%' AND b", "(and a LIKE 'x%' b)"),
        ("(a || b) * 2", "(* (a || b) 2)"),
        ("within = left.key", "(= within left.key)"),
        ("CAST(a AS long) + 1", "(+ (cast a BIGINT) 1)"),
        ("-a::int::string", "(negate (cast (cast a INT) STRING))"),
        ("(a || b)::decimal(5,2) * 2", "(* (cast a || b DECIMAL(5,2)) 2)"),
        ("(a - b)::INT", "(cast (- a b) INT)"),
        ("f(a)[0]::INT = cast(b OR c AS INT)", "(= (cast f(a)[0] INT) (cast (or b c) INT))"),
        ("CAST(CAST(a AS VARCHAR(5)) AS TIMESTAMP_LTZ)", "(cast (cast a VARCHAR(5)) TIMESTAMP)"),
        ("cast + cast.a", "(+ cast cast.a)"),
    ],
)
def test_the_structure_follows_sparks_precedence(text: str, expected: str):
    assert shape(read_expression(text)) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("10L", 10),
        ("1.5", Decimal("1.5")),
        (".5", Decimal("0.5")),
        ("1e3", 1000.0),
        ("1.5D", 1.5),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", Decimal(2**63)),
        ("2BD", Decimal(2)),
        ("'it''s'", "it's"),
        ("'a' 'b'", "ab"),
        ('"a"', "a"),
        ("true", True),
        ("FALSE", False),
        ("NULL", None),
    ],
)
def test_a_literal_has_its_python_value(text: str, value: object):
    expr = read_expression(text)
    assert (expr.op, expr.text, expr.value) == ("literal", text, value)
    assert type(expr.value) is type(value)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("INTERVAL 5 SECONDS", 5_000_000),
        ("interval '1' hour", 3_600_000_000),
        ("INTERVAL '1:30' HOUR TO MINUTE", 5_400_000_000),
        ("INTERVAL 1 HOUR 30 MINUTES", 5_400_000_000),
        ("INTERVAL -1 SECOND", -1_000_000),
        ("INTERVAL '5 seconds'", 5_000_000),
    ],
)
def test_an_interval_is_microseconds(text: str, micros: int):
    expr = read_expression(text)
    assert (expr.op, expr.text, expr.value) == ("interval", text, micros)


@pytest.mark.parametrize(
    "text", ["INTERVAL 2 MONTHS", "INTERVAL '1-2' YEAR TO MONTH", "TIMESTAMP '2020-01-01'", "x'1F'", r"'a\n'"]
)
def test_expressions_for_spark_alone_stay_text(text: str):
    expr = read_expression(text)
    assert (expr.op, expr.text, expr.refs) == ("other", text, ())


@pytest.mark.parametrize(
    ("text", "references"),
    [
        ("substr(c.name, 5)", ["c.name"]),
        ("transform(xs, x -> x + y.z + x.k)", ["xs", "y.z"]),
        ("aggregate(a, 0, (acc, x) -> acc + x)", ["a"]),
        ("try_cast(a.b.c.d.e.f AS INT)", ["a.b.c.d.e.f"]),
        ("a.b[d.e].f", ["a.b", "d.e"]),
        ("CAST(x.y AS STRUCT<a: INT>).a", ["x.y"]),
        ("x.y::STRUCT<a: INT>.a", ["x.y"]),
        ("CASE WHEN left = 1 THEN key ELSE time END", ["left", "key", "time"]),
        ("timestampdiff(MINUTE, a.t, b.t)", ["a.t", "b.t"]),
        ("date_trunc(unit, t)", ["unit", "t"]),
        ("extract(DAY FROM a.t)", ["a.t"]),
        ("struct(a AS b)", ["a"]),
        ("`a``b`.`c d` || x", ["a`b.c d", "x"]),
        ("if(a, b, a)", ["a", "b", "a"]),
        ("(a, b)", ["a", "b"]),
        ("current_date", []),
        ("f(k => v)", ["v"]),
        ("a NOT LIKE b ESCAPE '/'", ["a", "b"]),
    ],
)
def test_text_knows_the_columns_in_it(text: str, references: list[str]):
    expr = read_expression(text)
    assert (expr.op, expr.text) == ("other", text)
    assert parts(expr) == references


def test_references_are_located_in_the_text_of_their_leaf():
    expr = read_expression("upper(o.name) || `d`.`city` = 'X'")
    text = expr.args[0]
    assert [text.text[ref.start : ref.end] for ref in text.refs] == ["o.name", "`d`.`city`"]
    assert expr.sql(lambda ref: quote("/".join(ref.parts))) == "(upper(`o/name`) || `d/city` = 'X')"


def test_spans_are_places_in_the_whole_script():
    text = "a.id = b.id AND (b.t >= a.t - INTERVAL 5 SECONDS)"
    expr = read_expression(text, script_offset=100)
    spans = [text[e.span.start - 100 : e.span.end - 100] for e in (expr, *expr.args, expr.args[1].args[1])]
    assert spans == [text, "a.id = b.id", "b.t >= a.t - INTERVAL 5 SECONDS", "a.t - INTERVAL 5 SECONDS"]


def test_a_cast_is_written_as_spark_reads_it():
    expr = read_expression("(a.x + 1)::long > CAST('5' AS INT)")
    assert expr.sql(lambda ref: quote(".".join(ref.parts))) == "(CAST((`a.x` + 1) AS BIGINT) > CAST('5' AS INT))"
    assert [arg.span.end - arg.span.start for arg in expr.args] == [len("(a.x + 1)::long"), len("CAST('5' AS INT)")]


def test_comments_become_spaces_so_that_text_can_stand_on_one_line():
    expr = read_expression("f(a, -- the first\n  b /* the second */) = c -- end")
    text = expr.args[0]
    assert "--" not in text.text
    assert "/*" not in text.text
    assert [text.text[ref.start : ref.end] for ref in text.refs] == ["a", "b"]


def test_words_are_names_where_a_name_is_expected():
    text = "left.id = right.order_id AND key = time AND interval - 5 > case AND date = `select`"
    assert parts(read_expression(text)) == [
        "left.id", "right.order_id", "key", "time", "interval", "case", "date", "select",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "condition", "found"),
    [
        ("", "SYNTAX_ERROR", "the end of the script"),
        ("a +", "SYNTAX_ERROR", "the end of the script"),
        ("a b", "SYNTAX_ERROR", "`b`"),
        ("(a", "SYNTAX_ERROR", "the end of the script"),
        ("f(a", "SYNTAX_ERROR", "the end of the script"),
        ("f(a]", "SYNTAX_ERROR", "`]`"),
        ("f(a b c)", "SYNTAX_ERROR", "`b`"),
        ("t - 5m", "SYNTAX_ERROR", "`5m`"),
        ("a = 'x", "SYNTAX_ERROR", "the end of the script"),
        ("CAST(a BIGINT)", "SYNTAX_ERROR", "`BIGINT`"),
        ("CAST(a AS BIGINT", "SYNTAX_ERROR", "the end of the script"),
        ("CAST(a AS BIGNIT)", "UNKNOWN_TYPE", None),
        ("a::BIGNIT", "UNKNOWN_TYPE", None),
        ("CASE WHEN a THEN b", "SYNTAX_ERROR", "the end of the script"),
        ("1" * 5000, "SYNTAX_ERROR", "`" + "1" * 27 + "...`"),
        ("1e99999999999999999999BD", "SYNTAX_ERROR", "`1e99999999999999999999BD`"),
        ("(SELECT 1)", "UNSUPPORTED_STATEMENT", None),
        ("a IN (SELECT 1)", "UNSUPPORTED_STATEMENT", None),
        ("f((SELECT 1))", "UNSUPPORTED_STATEMENT", None),
        ("struct(t.*)", "UNSUPPORTED_STATEMENT", None),
    ],
)
def test_unreadable_expressions_are_refused(text: str, condition: str, found: str | None):
    with pytest.raises(WatersmeetError) as error:
        read_expression(text)
    assert error.value.getCondition() == condition
    assert error.value.getMessageParameters().get("found") == found


@pytest.mark.parametrize(
    "text", ["(" * 3000 + "a" + ")" * 3000, "f(" * 3000 + "a" + ")" * 3000, "NOT " * 3000 + "a", "a" + " + a" * 3000]
)
def test_deep_nesting_is_refused(text: str):
    with pytest.raises(WatersmeetError) as error:
        read_expression(text)
    assert error.value.getMessageParameters()["expected"] == "an expression of ordinary depth"


def test_a_long_list_is_no_deep_nesting():
    expr = read_expression("x IN (" + ", ".join(map(str, range(3000))) + ") AND " + " AND ".join(["a = b"] * 2000))
    assert len(expr.args) == 2001
    assert len(expr.args[0].args) == 3000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(x)", "sum(x)"),
        ("Sum(DISTINCT a + b)", "sum(distinct (+ a b))"),
        ("count(DISTINCT(x))", "count(distinct x)"),
        ("count(DISTINCT a, b)", "count(distinct a b)"),
        ("count(distinct)", "count(distinct)"),
        ("sum(ALL x)", "sum(x)"),
        ("sum(x) / count(x) > 1", "(> (/ sum(x) count(x)) 1)"),
        ("coalesce(max(x), upper(y), 0)", "coalesce(max(x) upper(y) 0)"),
        ("round(sum(x * 1.5), 2)::INT", "(cast round(sum((* x 1.5)) 2) INT)"),
        ("abs(least(min(x), -1))", "abs(least(min(x) (negate 1)))"),
        ("my.f(sum(x))", "my.f(sum(x))"),
        ("sum(CASE WHEN a THEN b END)", "sum(CASE WHEN a THEN b END)"),
        ("CAST(avg(x) AS INT) BETWEEN 1 AND 2", "(and (>= (cast avg(x) INT) 1) (<= (cast avg(x) INT) 2))"),
        ("NOT bool_or(x) AND y", "(and (not bool_or(x)) y)"),
        ("`count`(x)", "count(x)"),
        ("window(t, '5 minutes')", "window(t, '5 minutes')"),
        ("a LIKE ANY ('x', 'y')", "a LIKE ANY ('x', 'y')"),
        ("my.count(x)", "my.count(x)"),
        ("sum + first.last", "(+ sum first.last)"),
    ],
)
def test_aggregates_are_distinguished_from_the_rest(text: str, expected: str):
    assert shape(read_expression(text)) == expected


def test_a_count_of_rows_has_no_arguments():
    expr = read_expression("COUNT(*)")
    assert (expr.op, expr.text, expr.args, expr.sql()) == ("aggregate", "count", (), "count(*)")


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("sum(x) OVER (ORDER BY t)", "sum(x) OVER (ORDER BY t)"),
        (
            "COUNT(*) FILTER (WHERE y) over (partition by a, b order by t asc rows unbounded preceding)",
            "count_if(y) OVER (PARTITION BY a, b ORDER BY t ROWS UNBOUNDED PRECEDING)",
        ),
        (
            "first_value(x) IGNORE NULLS OVER (ORDER BY t RANGE 5 SECONDS PRECEDING)",
            "first_value(x) FILTER (WHERE (NOT (x IS NULL))) OVER (ORDER BY t RANGE INTERVAL 5 s PRECEDING)",
        ),
        ("1 + LAG(x) OVER (ORDER BY t)", "(1 + lag(x, 1) OVER (ORDER BY t))"),
        (
            "last_value(x IGNORE NULLS) OVER (ORDER BY t)",
            "last_value(x) FILTER (WHERE (NOT (x IS NULL))) OVER (ORDER BY t)",
        ),
        ("lag(x IGNORE NULLS) OVER (ORDER BY t DESC)", "lag(x, 1) IGNORE NULLS OVER (ORDER BY t DESC)"),
        ("1 + ROW_NUMBER() OVER (ORDER BY t)", "(1 + row_number() OVER (ORDER BY t))"),
        ("sum(x) OVER ()", "sum(x) OVER ()"),
        (
            "sum(x) OVER (ORDER BY t ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING)",
            "sum(x) OVER (ORDER BY t ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING)",
        ),
        (
            "max(x) OVER (PARTITION BY k ORDER BY a DESC, b RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
            "max(x) OVER (PARTITION BY k ORDER BY a DESC, b RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
        ),
        ("f(lead(x, 2, 0) OVER (ORDER BY t))", "f(lead(x, 2, 0) OVER (ORDER BY t))"),
        ("CASE WHEN lag(x) OVER (ORDER BY t) > 1 THEN 2 END", "CASE WHEN lag(x, 1) OVER (ORDER BY t) > 1 THEN 2 END"),
        # A function of that name without OVER is not a window function.
        ("lag(x)", "lag(x)"),
    ],
)
def test_window_functions_are_read(text: str, sql: str):
    assert read_expression(text).sql(lambda ref: ref.parts[-1]) == sql


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("sum(max(x))", "The aggregate `max` inside this expression", "max"),
        ("sum(f(max(x)))", "The aggregate `max` inside this expression", "max"),
        ("sum(x ORDER BY y)", "ORDER BY in sum()", "ORDER BY"),
        ("percentile(x)", "percentile() of these arguments", "percentile"),
        ("percentile(x, 1.5)", "percentile() of these arguments", "percentile"),
        ("listagg(x, y)", "listagg() of these arguments", "listagg"),
        ("percentile_cont(0.5)", "percentile_cont() without WITHIN GROUP", "percentile_cont"),
        ("listagg(DISTINCT x, ',') WITHIN GROUP (ORDER BY y)", "DISTINCT with ORDER BY another expression", "listagg"),
        ("sum(CASE WHEN max(x) > 1 THEN 2 END)", "The aggregate `max` inside this expression", "max"),
        ("sum(x) FILTER (WHERE max(y))", "The aggregate `max` inside this expression", "max"),
        ("sum(x) IGNORE NULLS", "IGNORE NULLS", "IGNORE NULLS"),
        ("first(x) FILTER (WHERE max(y))", "The aggregate `max` inside this expression", "max"),
        ("coalesce(sum(x), 0) OVER w", "A window function of this kind", "OVER"),
        ("stddev(x) OVER (ORDER BY y)", "stddev() OVER", "stddev"),
        ("sum(DISTINCT x) OVER (ORDER BY y)", "sum(DISTINCT ...) OVER", "sum"),
        ("sum(lag(x) OVER (ORDER BY y)) OVER (ORDER BY y)", "The aggregate `lag` inside this expression", "lag"),
        ("lag(x, y) OVER (ORDER BY y)", "LAG() of these arguments", "lag"),
        ("lag(x) OVER (ORDER BY y ROWS 1 PRECEDING)", "A frame for lag()", "ROWS"),
        ("sum(x) OVER (ORDER BY y GROUPS 1 PRECEDING)", "A frame in GROUPS", "GROUPS"),
        ("sum(x) OVER (ORDER BY y ROWS 1 FOLLOWING)", "A frame that ends before it begins", "ROWS"),
        ("rank() OVER (ORDER BY y ROWS 1 PRECEDING) + 1", "A frame for rank()", "ROWS"),
        ("max(x) WITHIN GROUP (ORDER BY x)", "WITHIN GROUP", "WITHIN GROUP"),
    ],
)
def test_aggregates_that_cannot_be_distinguished_are_refused(text: str, what: str, at: str):
    with pytest.raises(WatersmeetError) as error:
        read_expression(text)
    (refusal,) = error.value.refusals
    assert (refusal.condition, refusal.parameters["what"]) == ("UNSUPPORTED_STATEMENT", what)
    assert refusal.place is not None
    assert text[refusal.place.start : refusal.place.end] == at
    assert refusal.hint


@pytest.mark.parametrize(
    ("text", "sql", "function"),
    [
        ("first(x)", "first(`x`)", "first"),
        ("first(x, false)", "first(`x`)", "first"),
        ("last(x) RESPECT NULLS", "last(`x`)", "last"),
        ("first(x) FILTER (WHERE y > 1)", "first(`x`) FILTER (WHERE (`y` > 1))", "first filtered"),
        ("last(x, true)", "last(`x`) FILTER (WHERE (NOT (`x` IS NULL)))", "last filtered"),
        (
            "any_value(x) IGNORE NULLS FILTER (WHERE y)",
            "any_value(`x`) FILTER (WHERE ((NOT (`x` IS NULL)) AND `y`))",
            "any_value filtered",
        ),
    ],
)
def test_the_value_of_one_row_says_which_rows_it_sees(text: str, sql: str, function: str):
    expr = read_expression(text)
    assert (expr.sql(lambda ref: f"`{ref.parts[-1]}`"), expr.function) == (sql, function)


def test_another_second_argument_is_refused():
    with pytest.raises(WatersmeetError, match="IGNORE NULLS"):
        read_expression("first(x, y)")


@pytest.mark.parametrize(
    ("text", "sql", "calls"),
    [
        ("CASE WHEN sum(x) > a THEN 2 END", "CASE WHEN sum(`x`) > a THEN 2 END", ["sum(`x`)"]),
        ("'a' || max(x) || b", "'a' || max(`x`) || b", ["max(`x`)"]),
        ("collect_list(x)[0]", "collect_list(`x`)[0]", ["collect_list(`x`)"]),
        ("[min(x), [1, count(*)]]", "array(min(`x`), array(1, count(*)))", ["min(`x`)", "count(*)"]),
        ("extract(DAY FROM max(t))", "extract(DAY FROM max(`t`))", ["max(`t`)"]),
        ("struct(sum(x) AS s, b)", "struct(sum(`x`) AS s, b AS `b`)", ["sum(`x`)"]),
        (
            "struct(a, sum(x), 1 + max(y), [b])",
            "struct(a AS `a`, sum(`x`) AS `col2`, 1 + max(`y`) AS `col3`, array(b))",
            ["sum(`x`)", "max(`y`)"],
        ),
        (
            "arrays_zip(a, collect_list(x))",
            (
                "transform(arrays_zip(coalesce(a),coalesce( collect_list(`x`))), zipped_row -> "
                "named_struct('a', zipped_row['0'], '1', zipped_row['1']))"
            ),
            ["collect_list(`x`)"],
        ),
        ("count(*) LIKE '1%'", "count(*) LIKE '1%'", ["count(*)"]),
        ("count(*) FILTER (WHERE y > 1) || 'x'", "count_if((`y` > 1)) || 'x'", ["count_if((`y` > 1))"]),
    ],
)
def test_text_around_aggregates_is_split(text: str, sql: str, calls: list[str]):
    expr = read_expression(text)
    assert expr.op == "around"
    assert expr.sql(lambda ref: ref.parts[0] if ref.parts[0] in "ab" else f"`{ref.parts[0]}`") == sql
    assert [call.sql(lambda ref: f"`{ref.parts[0]}`") for call in aggregates_in(expr)] == calls
    # Pieces know their own columns.
    assert {ref.parts[0] for ref in expr.references} == set(re.findall(r"\b[abxyt]\b(?!')", text))


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("count(*) FILTER (WHERE y)", "count_if(y)"),
        ("sum(x) FILTER (WHERE y > 2)", "sum(if((y > 2), x, NULL))"),
        ("count(DISTINCT x, z) FILTER (WHERE y)", "count(DISTINCT if(y, x, NULL), z)"),
        ("max_by(x, z) FILTER (WHERE y)", "max_by(x, if(y, z, NULL))"),
    ],
)
def test_filter_makes_null_of_the_other_rows(text: str, sql: str):
    assert read_expression(text).sql(lambda ref: ref.parts[0]) == sql


@pytest.mark.parametrize("text", ["sum()", "sum(*)", "sum(x", "sum(x,)", "coalesce(sum(x), 0"])
def test_aggregates_with_parts_missing_are_refused(text: str):
    with pytest.raises(WatersmeetError) as error:
        read_expression(text)
    assert error.value.getCondition() == "SYNTAX_ERROR"


@pytest.mark.parametrize(
    ("text", "written", "references"),
    [
        ("[a, b.c]", "array(a, b.c)", ["a", "b.c"]),
        ("flatten([day, night])[0]", "flatten(array(day, night))[0]", ["day", "night"]),
        ("[[a], [x.y]]", "array(array(a), array(x.y))", ["a", "x.y"]),
        ("CASE WHEN a[0] THEN [b] END", "CASE WHEN a[0] THEN array(b) END", ["a", "b"]),
        ("[a][b[c]]", "array(a)[b[c]]", ["a", "b", "c"]),
        ("size([])", "size(array())", []),
    ],
)
def test_an_array_in_brackets_is_sparks_function(text: str, written: str, references: list[str]):
    expr = read_expression(text)
    assert (expr.op, expr.text) == ("other", written)
    assert parts(expr) == references
    assert [written[ref.start : ref.end] for ref in expr.refs] == references


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b AND c > 1 OR d", "(and (= a b) (or (> c 1) d))"),
        ("a OR b AND c", "(and (or a b) c)"),
        ("a AND b OR c AND d OR e", "(and a (or b c) (or d e))"),
        ("(a AND b OR c)", "(and a (or b c))"),
        ("a AND (b OR c) OR d", "(and a (or (or b c) d))"),
        ("a AND b BETWEEN 1 AND 2 OR c", "(and a (or (and (>= b 1) (<= b 2)) c))"),
    ],
)
def test_an_or_may_be_read_with_and_split_first(text: str, expected: str):
    read = alternative(read_expression(text))
    assert read is not None
    assert shape(read) == expected


@pytest.mark.parametrize(
    "text",
    ["(a AND b) OR c", "a OR b", "a AND b", "a AND (b OR c)", "a BETWEEN 1 AND 2 OR c", "x IN (1, 2)", "a", "NOT a"],
)
def test_brackets_leave_one_way_to_read(text: str):
    assert alternative(read_expression(text)) is None
