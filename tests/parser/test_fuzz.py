"""Whatever the text, the reader reads it or refuses it: no other exception, no place outside the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Join, Lateral, Relation, Scan, Union
from watersmeet.operators.asof.analyze import ParsedAsofJoin
from watersmeet.operators.sync.analyze import ParsedSyncJoin
from watersmeet.parser import read_expression
from watersmeet.queries import read_script
from watersmeet.schema import quote

SCRIPT = """\
SET a.b = 1;
CREATE STREAM l (`id` BIGINT NOT NULL, t TIMESTAMP, x ARRAY<STRUCT<a: INT>>,
    WATERMARK FOR t AS t - INTERVAL '5' SECONDS IDLE AFTER 30s HEARTBEAT WHEN kind = 'hb' OR id::STRING LIKE 'h%')
    USING kafka OPTIONS (subscribe 'l', 'a.b' = 'c', value.format 'json');
CREATE SINK s USING parquet OPTIONS (path '/x');
INSERT INTO s SELECT STREAM l.*, f(r.x, y -> y + 1)[0] AS z, CASE WHEN l.id IN (1, 2) THEN 1.5D ELSE -.5 END c
FROM l LEFT JOIN STREAM(r) AS q WITHIN 5s ON l.id = q.id AND q.t BETWEEN l.t - INTERVAL 1 HOUR AND l.t /* c */ + 1
WHERE NOT (l.id <=> 5 OR x.y.z IS NOT NULL) AND a || 'b' LIKE '%' LATE INTO s; -- end
SELECT STREAM CAST(u.id AS DECIMAL(10, 2)) FROM (SELECT STREAM * FROM l UNION ALL SELECT * FROM r) AS u
LEFT SEMI JOIN r WITHIN 5s ON r.t::DATE = u.t ANTI JOIN (SELECT * FROM l UNION ALL SELECT * FROM l) v USING (id);
CREATE TABLE c (id BIGINT, t BIGINT, PRIMARY KEY (id), WATERMARK FOR t AS t);
CREATE STREAM o (id BIGINT, t BIGINT) ORDER BY t;
CREATE SINK w (id BIGINT, n STRING) USING json;
SELECT STREAM x.id, _seq FROM l x WINDOW (COUNT 5 PARTITION BY id, x.t + 1 PARTITION AGE 60s)
FULL JOIN r WINDOW (DELTA t 10s) AS y ON x.id = y.id PAD LEFT WITH (id -1, t 'x') PAD RIGHT ZEROS
UNMATCHED LEFT INTO s UNMATCHED RIGHT INTO w;
SELECT STREAM * FROM l SYNC JOIN r SYNC JOIN o PORTS INTO s, w, s;
SELECT STREAM l.id FROM l LEFT ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.id = r.id WITHIN 5s DEFAULT (x 1)
JOIN c FOR SYSTEM_TIME AS OF l.t AS d ON l.id = d.id;
CREATE TABLE d (id BIGINT, PRIMARY KEY (id)) USING kafka OPTIONS (a 'b') CHANGES FROM debezium;
CREATE OR REPLACE TEMPORARY VIEW v AS SELECT TABLE id, count(*) AS n, sum(DISTINCT t) FROM l
GROUP BY id, window(t, '1 h');
WITH j AS (SELECT STREAM * FROM TABLE(IMPOSE_ORDER(TABLE l, DESCRIPTOR(t), INTERVAL '5' SECONDS)));
WITH p AS (SELECT * FROM l), q AS (SELECT * FROM p WHERE id > 1) INSERT INTO s STORE KEY AS json VALUE AS avro
SELECT STREAM x.id, coalesce(max(y.n), 0) FROM (SELECT id FROM q WHERE id = 1 AND t > 2 OR id = 3) AS x
JOIN (SELECT * FROM l UNION ALL SELECT id FROM r WATERMARK t DELAY OF INTERVAL 5 SECONDS) y ON x.id = y.id
LATERAL flatten([y.a, y.b]) AS e LATERAL e AS f WHERE f > 90 GROUP BY x.id LATE INTO s;
"""
TOKENS = """\
SELECT STREAM TABLE FROM JOIN LEFT RIGHT FULL OUTER INNER ON USING WITHIN WHERE AND OR NOT IS NULL IN BETWEEN LIKE
CASE WHEN THEN ELSE END CREATE SINK SET INSERT INTO WATERMARK FOR AS INTERVAL HOUR TO MINUTE OPTIONS BIGINT ARRAY MAP
SEMI ANTI ALL CAST LATE IDLE AFTER HEARTBEAT WINDOW COUNT TIME DELTA PARTITION AGE TUPLE PAD WITH ZEROS NULLS
CHANGES debezium VIEW REPLACE TEMPORARY IMPOSE_ORDER DESCRIPTOR DELAY STORE VALUE count sum HAVING
UNMATCHED PORTS SYNC ASOF MATCH_CONDITION DEFAULT SYSTEM_TIME OF ORDER PRIMARY KEY -1
STRUCT DECIMAL a b `c` 'd' "e" 5s 500ms 5 1.5 1e3 .5 5. 0x1F X'1' r'x' SHOW CALL DATE TIMESTAMP COLLATE OVER FILTER
DISTINCT GROUP BY LATERAL UNION VALUES DIV EXISTS ( ) [ ] < > <= >= <> <=> = == != + - * / % || | & ^ ~ ! :: : . , ;
-> => @ $ ? { } # /*c*/ /*+ */ /* ' ` " é 😀
"""
WORDS = [*TOKENS.split(), "--c\n", "\n", "\\", "\x00"]
FUZZ = settings(
    derandomize=True, max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def expressions(relation: Relation) -> list[Expr]:
    if isinstance(relation, Scan | Union):
        return [expr for _, expr in relation.expressions]
    if isinstance(relation, Lateral):
        return [*expressions(relation.input), relation.array]
    if isinstance(relation, ParsedSyncJoin):
        return [expr for leaf in relation.inputs for expr in expressions(leaf)]
    assert isinstance(relation, Join | ParsedAsofJoin)
    own = [relation.on] if isinstance(relation, Join) else [relation.on, relation.match, relation.as_of]
    return [*expressions(relation.left), *expressions(relation.right), *(expr for expr in own if expr is not None)]


def assert_references_lie_in_their_text(expr: Expr) -> None:
    for ref in expr.refs:
        assert 0 <= ref.start < ref.end <= len(expr.text)
        assert expr.text[ref.start : ref.end].strip("` ").lower().startswith(ref.parts[0][:1].lower().strip("`"))
    for arg in expr.args:
        assert_references_lie_in_their_text(arg)


def assert_read_or_refused(text: str) -> None:
    try:
        script = read_script(text)
    except WatersmeetError as error:
        assert error.refusals
        for refusal in error.refusals:
            assert refusal.place is not None
            assert 0 <= refusal.place.start <= refusal.place.end <= len(text)
            assert refusal.render()
        return
    for query in script.queries:
        assert text[query.span.start : query.span.end].upper().startswith(("SELECT", "INSERT", "WITH"))
        for expr in (*expressions(query.relation), *query.group_by):
            assert_references_lie_in_their_text(expr)


def test_the_script_that_is_mutated_can_be_read():
    script = read_script(SCRIPT)
    assert (len(script.queries), len(script.views)) == (6, 2)


@given(st.lists(st.sampled_from(WORDS), max_size=30))
@FUZZ
def test_token_soup(words: list[str]):
    assert_read_or_refused(" ".join(words))


@given(
    st.lists(st.sampled_from(WORDS), max_size=15),
    st.sampled_from(
        [
            "SELECT a FROM b WHERE ",
            "CREATE STREAM s (a ",
            "SELECT ",
            "SELECT a FROM (SELECT * FROM b UNION ALL ",
            "CREATE STREAM s (a INT, WATERMARK FOR a AS a - 5 ",
            "SELECT a FROM b WINDOW (COUNT 5 ",
            "SELECT a FROM b LEFT ASOF JOIN c ",
            "SELECT a FROM b WINDOW (COUNT 5) FULL JOIN c WINDOW (COUNT 5) ON x PAD LEFT ",
            "SELECT a FROM b SYNC JOIN c ",
            "CREATE TABLE s (a INT, PRIMARY KEY ",
            "WITH v AS (SELECT a FROM b ",
            "WITH v AS (SELECT a FROM b) ",
            "CREATE VIEW v AS ",
            "SELECT a FROM (SELECT b FROM c ",
            "SELECT a FROM b LATERAL ",
            "SELECT a, count(*) FROM b GROUP BY ",
            "SELECT coalesce(sum(a), ",
            "SELECT a FROM TABLE(IMPOSE_ORDER( ",
            "INSERT INTO s STORE KEY AS ",
        ]
    ),
)
@FUZZ
def test_token_soup_behind_a_good_beginning(words: list[str], beginning: str):
    assert_read_or_refused(beginning + " ".join(words))


@given(st.data())
@FUZZ
def test_mutated_scripts(data: st.DataObject):
    text = SCRIPT
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 6)))
        text = text[:start] + data.draw(st.sampled_from(["", " ", *WORDS])) + text[end:]
    assert_read_or_refused(text)


@given(st.text(max_size=40))
@FUZZ
def test_any_text(text: str):
    assert_read_or_refused(text)
    try:
        assert_references_lie_in_their_text(read_expression(text))
    except WatersmeetError as error:
        assert error.refusals


@pytest.mark.parametrize(
    "unit", ["(", "f(", "NOT ", "- ", "CASE WHEN ", "[", "a[", "ARRAY<", "f(- ", "STRUCT<a: ", "CAST("]
)
@pytest.mark.parametrize("beginning", ["SELECT ", "CREATE STREAM s (a "])
def test_deep_nesting(beginning: str, unit: str):
    assert_read_or_refused(beginning + unit * 3000)
    assert_read_or_refused(beginning + unit * 3000 + "a" + ")" * 3000 + " FROM b")


LEAVES = ["a", "b.c", "`d`.e.f", "1", "'x'", "INTERVAL 5 SECONDS"]
FORMS = [
    *(f"{{}} {op} {{}}" for op in ("AND", "OR", "=", "<=>", "<", ">=", "+", "-", "*", "%", "||", "&", "|", "<<")),
    "({}) LIKE ({})", "({}) BETWEEN ({}) AND ({})", "({}) NOT IN ({}, {})", "({})", "NOT ({})", "- ({})",
    "f({}, -- c\n x)", "({}) IS NULL", "CASE WHEN {} THEN 1 END", "({})::INT", "{}::INT",
    "CAST({} AS STRING)", "CAST({} AS DATE)[0]",
]  # fmt: skip


@st.composite
def expression_texts(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0:
        return draw(st.sampled_from(LEAVES))
    form = draw(st.sampled_from(["{}", *FORMS]))
    return form.format(*(draw(expression_texts(depth - 1)) for _ in range(form.count("{}"))))


def meaning(expr: Expr) -> object:
    """What an expression says, however its texts are spaced and quoted."""
    if expr.args:
        flat = [part for arg in expr.args for part in (arg.args if arg.op == expr.op in ("and", "or") else (arg,))]
        value = None if expr.op in ("and", "or") else expr.value  # whether there are brackets
        return (expr.op, value, *map(meaning, flat))
    return (expr.op, re.sub(r"[\s`()]", "", expr.text), [ref.parts for ref in expr.refs])


@given(expression_texts())
@FUZZ
def test_the_sql_of_an_expression_reads_as_the_same_expression(text: str):
    try:
        expr = read_expression(text)
    except WatersmeetError:
        reject()  # Spark's grammar has one predicate per value: `a IS NULL = b` needs brackets
    again = read_expression(expr.sql(lambda ref: ".".join(quote(part) for part in ref.parts)))
    assert meaning(again) == meaning(expr)
