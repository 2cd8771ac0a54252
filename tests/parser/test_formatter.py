"""The canonical layout: what it looks like, that it says the same, and that it is the only one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.parser.meaning import all_scripts, comments, meaning, words
from tests.parser.test_fuzz import SCRIPT, WORDS

from watersmeet.errors import WatersmeetError
from watersmeet.parser.cursor import tokenize
from watersmeet.parser.formatter import WIDTH
from watersmeet.queries import format_script, read_script

KNOWN = all_scripts()
UNSET = SCRIPT.split(";", 1)[1]
FUZZ = settings(
    derandomize=True, max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

MESSY = """\
-- head

set a.b = 1; set c=  x   y;
/* about l */ create stream l (`id` bigint NOT NULL, t TIMESTAMP, x ARRAY<STRUCT<a: INT>>, -- an array
    WATERMARK FOR t AS t - INTERVAL '5' SECONDS IDLE AFTER 30s HEARTBEAT WHEN kind = 'hb' OR id::STRING LIKE 'h%')
    USING kafka OPTIONS(subscribe 'l', 'a.b'='c', value.format 'json'); -- behind
create stream r (id bigint); create stream s (id bigint);
with v as (select table a, count( distinct b) n from l group by a;);
WITH q AS (SELECT * FROM l), w as (select stream * from q)
INSERT INTO s STORE KEY AS JSON SELECT STREAM l.*, f(r.x, y -> y + 1)[0] AS z -- the z
, case when l.id in (1, 2) THEN 1.5D ELSE -.5 END c
FROM l LEFT JOIN STREAM(r) AS q WITHIN 5 seconds ON l.id=q.id AND q.t BETWEEN l.t-INTERVAL 1 HOUR AND l.t /* c */ + 1
WHERE NOT (l.id <=> 5 OR x.y.z IS NOT NULL) AND a || 'b' LIKE '%'
-- too late
LATE INTO s -- end

;
-- last
select x from (select a from b where c union all select * from d) u lateral flatten([a,b]) as m where a>>1>2 and b
-- foot
"""
CLEAN = """\
-- head

SET a.b = 1;
SET c = x   y;

/* about l */
CREATE STREAM l (
  `id` BIGINT NOT NULL,
  t TIMESTAMP,
  x ARRAY<STRUCT<a: INT>>,  -- an array
  WATERMARK FOR t AS t - INTERVAL '5' SECONDS
    IDLE AFTER 30s
    HEARTBEAT WHEN kind = 'hb'
    OR id::STRING LIKE 'h%'
) USING kafka OPTIONS (subscribe 'l', 'a.b' = 'c', value.format 'json');  -- behind

CREATE STREAM r (id BIGINT);
CREATE STREAM s (id BIGINT);

WITH v AS (
  SELECT TABLE a, count(DISTINCT b) n
  FROM l
  GROUP BY a
);

WITH q AS (
  SELECT *
  FROM l
),
w AS (
  SELECT STREAM *
  FROM q
)
INSERT INTO s
STORE KEY AS JSON
SELECT STREAM
  l.*,
  f(r.x, y -> y + 1)[0] AS z,  -- the z
  CASE WHEN l.id IN (1, 2) THEN 1.5D ELSE -.5 END c
FROM l
LEFT JOIN STREAM(r) AS q WITHIN 5 SECONDS
  ON l.id = q.id
  AND q.t BETWEEN l.t - INTERVAL 1 HOUR AND l.t /* c */ + 1
WHERE NOT (l.id <=> 5 OR x.y.z IS NOT NULL) AND a || 'b' LIKE '%'
-- too late
LATE INTO s;  -- end

-- last
SELECT x
FROM (
  SELECT a
  FROM b
  WHERE c
  UNION ALL
  SELECT *
  FROM d
) u
LATERAL flatten([a, b]) AS m
WHERE a >> 1 > 2 AND b;

-- foot
"""


def assert_same_and_stable(text: str) -> str:
    formatted = format_script(text)
    assert meaning(read_script(formatted)) == meaning(read_script(text))
    assert words(formatted) == words(text)
    assert comments(formatted) == comments(text)
    assert format_script(formatted) == formatted
    return formatted


def test_the_layout():
    assert assert_same_and_stable(MESSY) == CLEAN


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ("", ""),
        (" ;; ", ""),
        ("-- nothing", "-- nothing\n"),
        ("; -- a\nset b = 1", "-- a\nSET b = 1;\n"),
        ("set a = 1 /* x */ 2;", "SET a = 1 /* x */ 2;\n"),
        ("set a = 1 -- x\n;", "SET a = 1;  -- x\n"),
        ("set a = 1;\n\nset b = 1;set c = 1", "SET a = 1;\n\nSET b = 1;\nSET c = 1;\n"),
        ("select a from b /* x\n y */ where c", "SELECT a\nFROM b  /* x\n y */\nWHERE c;\n"),
        ("select a, -- x\n-- y\nb from c", "SELECT\n  a,  -- x\n  -- y\n  b\nFROM c;\n"),
        ("select a -- x\n-- y\n, b from c", "SELECT\n  a,  -- x\n  -- y\n  b\nFROM c;\n"),
        ("select left, key from key as left", "SELECT left, key\nFROM key AS left;\n"),
        ("select 'a''b' 'c', 1-  -1 from c", "SELECT 'a''b' 'c', 1 - -1\nFROM c;\n"),
        ("with a as (select b from c -- x\n);", "WITH a AS (\n  SELECT b\n  FROM c  -- x\n);\n"),
        ("with a as (select b from c\n-- x\n);", "WITH a AS (\n  SELECT b\n  FROM c\n  -- x\n);\n"),
        ("select case when x.in then `in` end from b", "SELECT CASE WHEN x.in THEN `in` END\nFROM b;\n"),
    ],
)
def test_small_scripts(text: str, formatted: str):
    assert assert_same_and_stable(text) == formatted


def test_lines_that_are_too_long_are_broken_at_entries_and_conditions():
    names = ", ".join(f"column_number_{i}" for i in range(8))
    conditions = " AND ".join(f"(a.c{i} = b.c{i} OR a.d{i} = b.d{i})" for i in range(4))
    text = f"CREATE SINK s ({names.replace(',', ' INT,')} INT) USING json; SELECT {names} FROM a JOIN b ON {conditions}"
    formatted = assert_same_and_stable(text)
    assert max(map(len, formatted.splitlines())) <= WIDTH
    assert "\n  column_number_7 INT\n) USING json;\n" in formatted
    assert "SELECT\n  column_number_0,\n" in formatted
    assert "JOIN b\n  ON (a.c0 = b.c0 OR a.d0 = b.d0)\n  AND (a.c1" in formatted


@pytest.mark.parametrize("number", range(0, len(KNOWN), 40))
def test_scripts_of_cases_and_examples(number: int):
    read = 0
    for text in KNOWN[number : number + 40]:
        try:
            read_script(text)
        except WatersmeetError:
            continue  # a case of a refusal
        assert_same_and_stable(text)
        read += 1
    assert read > 0


@st.composite
def layouts(draw: st.DrawFn, separators: list[str]) -> tuple[str, str]:
    """A known script without settings, in which all spaces count, and the same with other separators."""
    text = draw(st.sampled_from([text for text in (*KNOWN, UNSET) if "SET " not in text.upper()]))
    tokens = tokenize(text, "<sql>")
    parts: list[str] = []
    for before, token in pairwise(tokens):
        gap = text[before.end : token.start]
        parts.append(before.text)
        if gap and not (set("-/") & set(gap)):
            parts.append(gap if before.word == ";" else draw(st.sampled_from(separators)))
        else:
            parts.append(gap)
    return text, text[: tokens[0].start] + "".join(parts) + tokens[-1].text + text[tokens[-1].end :]


@given(layouts([" ", "\n", "\n   "]))
@FUZZ
def test_one_text_has_one_layout(texts: tuple[str, str]):
    try:
        formatted = format_script(texts[0])
    except WatersmeetError:
        reject()
    assert format_script(texts[1]) == formatted


@given(layouts([" ", "\n", " -- c\n", "\n-- d\n", " /* e */ ", "\n\n/* f\n g */\n"]))
@FUZZ
def test_comments_stay_wherever_they_stand(texts: tuple[str, str]):
    try:
        read_script(texts[1])
    except WatersmeetError:
        reject()
    assert_same_and_stable(texts[1])


@given(st.data())
@FUZZ
def test_mutated_scripts_have_one_meaning(data: st.DataObject):
    text = data.draw(st.sampled_from([MESSY, SCRIPT, *KNOWN]))
    tokens = [*tokenize(text, "<sql>")]
    spelled = [text[token.start : following.start] for token, following in pairwise(tokens)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spelled) - 1))
        other = data.draw(st.integers(0, len(spelled) - 1))
        match data.draw(st.sampled_from(["delete", "duplicate", "swap", "insert"])):
            case "delete" if len(spelled) > 1:
                del spelled[at]
                spelled = spelled or [""]
            case "duplicate":
                spelled.insert(at, f"{spelled[at]} ")
            case "swap" if other < len(spelled) and at < len(spelled):
                spelled[at], spelled[other] = spelled[other], spelled[at]
            case _:
                spelled.insert(at, f" {data.draw(st.sampled_from(WORDS))} ")
    mutated = "".join(spelled)
    try:
        script = read_script(mutated)
    except WatersmeetError as error:
        assert error.refusals
        return
    assert meaning(read_script(mutated)) == meaning(script)
    assert_same_and_stable(mutated)
