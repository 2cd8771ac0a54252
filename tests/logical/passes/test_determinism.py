"""Expressions that give another value when a row is taken back are refused, by name and at their place."""

from __future__ import annotations

import pytest
from tests.logical.conftest import Analyzed, Refused

STREAM = "CREATE STREAM s (id BIGINT, name STRING, a ARRAY<INT>, t TIMESTAMP, WATERMARK FOR t AS t);"
TABLE = "CREATE TABLE t (id BIGINT, name STRING, a ARRAY<INT>, PRIMARY KEY (id));"
OTHER = "CREATE TABLE o (id BIGINT, name STRING, PRIMARY KEY (id));"
ALL = STREAM + TABLE + OTHER + "CREATE TABLE b (id BIGINT, name STRING);"


@pytest.mark.parametrize(
    ("query", "function"),
    [
        ("SELECT TABLE id, uuid() AS u FROM t", "uuid"),
        ("SELECT TABLE id, concat(name, `uuid`()) AS u FROM t", "`uuid`"),
        ("SELECT TABLE id, builtin.uuid() AS u FROM t", "uuid"),
        ("SELECT TABLE id FROM t WHERE system.`builtin`.rand() < 0.5", "rand"),
        ("SELECT TABLE id, current_timestamp() AS seen FROM t", "current_timestamp"),
        ("SELECT TABLE id, CURRENT_DATE AS seen FROM t", "CURRENT_DATE"),
        ("SELECT TABLE id, CAST(now() AS DATE) AS seen FROM t", "now"),
        ("SELECT TABLE id, unix_timestamp() AS seen FROM t", "unix_timestamp"),
        ("SELECT TABLE id, CAST('today' AS DATE) AS d FROM t", "CAST('today' AS DATE)"),
        ("SELECT TABLE id, timestamp'now' AS d FROM t", "timestamp"),
        ("SELECT TABLE id, TRY_CAST('tomorrow ' AS DATE) AS d FROM t", "TRY_CAST"),
        ("SELECT TABLE id, try_to_timestamp('now') AS d FROM t", "try_to_timestamp"),
        ("SELECT TABLE id, to_timestamp_ltz('now') AS d FROM t", "to_timestamp_ltz"),
        ("SELECT TABLE id, aes_encrypt(name, 'k') AS d FROM t", "aes_encrypt"),
        ("SELECT TABLE id, input_file_name() AS f FROM t", "input_file_name"),
        ("SELECT TABLE id, current_user() AS f FROM t", "current_user"),
        ("SELECT TABLE id FROM t WHERE rand() < 0.5", "rand"),
        ("SELECT TABLE id FROM t WHERE id > 1 AND id + rand() < 5", "rand"),
        ("SELECT TABLE id, CASE WHEN rand() < 0.5 THEN 1 END AS x FROM t", "rand"),
        ("SELECT TABLE t.id FROM t JOIN o ON t.id = o.id AND rand() < 0.5", "rand"),
        ("SELECT TABLE t.id FROM t JOIN o ON t.id + uniform(1, 5) = o.id", "uniform"),
        ("SELECT TABLE t.id FROM t LEFT JOIN o ON t.id = o.id AND o.id > rand()", "rand"),
        ("SELECT STREAM s.id FROM s JOIN t ON s.id = t.id AND t.id > rand()", "rand"),
        ("SELECT STREAM s.id FROM s JOIN t ON s.id = t.id + rand()", "rand"),
        ("SELECT STREAM s.id FROM s JOIN t ON s.id = t.id AND rand() > 0.5", "rand"),
        ("SELECT STREAM s.id FROM s JOIN t ON s.id = t.id WHERE t.id > rand()", "rand"),
        ("SELECT TABLE rand() AS r, count(*) AS n FROM t GROUP BY rand()", "rand"),
        ("SELECT TABLE name, sum(id * rand()) AS n FROM t GROUP BY name", "rand"),
        ("SELECT TABLE name, count(*) FILTER (WHERE rand() < 0.5) AS n FROM t GROUP BY name", "rand"),
        ("SELECT TABLE name, count(*) AS n, uuid() AS u FROM s GROUP BY name", "uuid"),
        ("SELECT TABLE name, concat(uuid(), count(*)) AS u FROM s GROUP BY name", "uuid"),
        ("SELECT TABLE name, count(*) AS n FROM s GROUP BY name HAVING count(*) > rand()", "rand"),
        ("SELECT TABLE DISTINCT uuid() AS u FROM t", "uuid"),
        ("SELECT TABLE * FROM t ORDER BY rand() LIMIT 3", "rand"),
        ("SELECT TABLE * FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY rand() ORDER BY id) <= 3", "rand"),
        ("SELECT TABLE t.id, x FROM t LATERAL shuffle(t.a) AS x", "shuffle"),
        ("WITH v AS (SELECT TABLE id, uuid() AS u FROM t) SELECT TABLE count(DISTINCT u) AS n FROM v", "uuid"),
        ("WITH v AS (SELECT TABLE name, count(*) AS n FROM s GROUP BY name) SELECT TABLE n FROM v WHERE n > rand()",
         "rand"),
        ("SELECT TABLE u.id, uuid() AS x FROM (SELECT TABLE id FROM b UNION ALL SELECT TABLE id FROM b) AS u", "uuid"),
    ],
)  # fmt: skip
def test_impure_expressions_over_what_is_taken_back(refusals_of: Refused, query: str, function: str):
    text = f"{ALL} {query};"
    refusals = [refusal for refusal in refusals_of(text) if refusal.condition == "NON_DETERMINISTIC"]
    assert refusals
    for refusal in refusals:
        place = refusal.place
        assert place is not None
        assert place.text[place.start : place.end] == function
        assert "sink" in refusal.hint
        assert function.strip("`") in refusal.message


@pytest.mark.parametrize(
    "query",
    [
        "SELECT STREAM id, uuid() AS u, current_timestamp() AS seen FROM s WHERE rand() < 0.5",
        "SELECT TABLE id AS _key, uuid() AS u FROM s",
        "SELECT TABLE name, sum(rand()) AS n, max(current_timestamp()) AS m FROM s GROUP BY name, uuid()",
        "SELECT TABLE DISTINCT uuid() AS u FROM s",
        "SELECT TABLE id, rand() AS r FROM s ORDER BY r LIMIT 3",
        "SELECT STREAM s.id, uuid() AS u FROM s JOIN t ON s.id = t.id AND s.id > rand()",
        "SELECT STREAM x.id FROM s x JOIN s y ON x.id = y.id AND x.t > now() AND y.t = x.t",
        "WITH v AS (SELECT STREAM name, uuid() AS u FROM s) SELECT TABLE count(DISTINCT u) AS n FROM v",
        "SELECT TABLE id, 'rand()' AS a, name AS uuid, unix_timestamp(name) AS b, CAST('2026-01-01' AS DATE) FROM t",
        "SELECT TABLE id, aes_encrypt(name, 'k', 'ECB') AS a FROM t",
        "SELECT TABLE id, aes_encrypt(name, 'k', 'CBC', 'PKCS', unhex('00')) AS b FROM t",
    ],
)  # fmt: skip
def test_impure_expressions_that_are_computed_once(analyze_sql: Analyzed, query: str):
    assert analyze_sql(f"{ALL} {query};").outputs


def test_random_part_of_on_that_names_no_side(refusals_of: Refused):
    text = f"{STREAM} SELECT STREAM x.id FROM s x JOIN s y ON x.id = y.id AND x.t = y.t AND rand() < 0.5;"
    [refusal] = refusals_of(text)
    assert refusal.condition == "NON_DETERMINISTIC"
    assert "each side" in refusal.message
