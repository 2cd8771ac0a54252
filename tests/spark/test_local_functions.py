"""The functions of `watersmeet.local.functions` give Spark's values and types over a grid of odd values.

Spark computes every expression inside of `TryEval`, which gives NULL where the expression fails, and inside of a
struct, so that NULL as a value is another thing. A cell is right if both have the same value, or both fail, or the
evaluator leaves it to Spark. `make test` compares a share of the expressions, `make cases` all of them, in more zones.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.compile.test_types import session_zone

from watersmeet.local.casts import in_session
from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.functions import CHOICES, FUNCTIONS, evaluate, windows_of_rows
from watersmeet.logical.expressions import Expr
from watersmeet.operators.core.python_values import python_values
from watersmeet.parser.expressions import read_structure

pytestmark = pytest.mark.spark

IS_WHOLE = os.environ.get("WATERSMEET_CASES") == "all"
"""Whether every pair of values is tried: `make cases`."""
EPOCH = datetime(1970, 1, 1)


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


TIMES = [
    None, 0, -1, micros("2024-03-31 01:30:00"), micros("2024-10-27 00:30:00.123456"), micros("2024-10-27 01:30:00"),
    micros("1582-10-14 12:00:00"), micros("0001-01-01 00:00:00.5"), micros("9999-12-31 23:59:59.999999"),
    micros("2024-02-29 12:34:56.7"), micros("1893-03-31 23:10:00"), micros("2100-07-01 22:00:00"),
    micros("2024-03-31 02:30:00"), micros("2024-10-27 02:30:00"), micros("1969-12-31 23:59:59.999"),
    micros("2024-12-30 00:00:00"),
]  # fmt: skip
DAYS = [None, 0, -1, 19782, 19783, 20023, -141428, -719162, 2932896, 19723, 20087, -28035]
WHOLE = [None, 0, 1, -1, 2, 7, -13, 100, 2147483647, -2147483648, 3, 48]
BIG = [None, 0, 1, -1, 9223372036854775807, -9223372036854775808, 9007199254740993, 2147483648, 86400, -3, 5]
DOUBLES = [
    None, 0.0, -0.0, 1.0, -1.5, 2.5, float("nan"), float("inf"), float("-inf"), 0.1, 1234567.125, -0.005, 1e300, 3.0,
    4.9e-324, 2.675, 9007199254740993.0, 123.456, -7.0, 1e7, 0.001,
]  # fmt: skip
FLOATS = [None, 0.0, -0.0, 1.5, float("nan"), float("inf"), 0.1, 16777216.0, -3.25, 100.0, 3.4028234663852886e38]
MONEY = [None, "0.00", "1.00", "-1.50", "2.25", "99999999.99", "-99999999.99", "0.01", "3.33", "10.05", "-0.05"]
HUGE = [
    None, "0E-18", "1.000000000000000001", "-12345678901234567890.123456789012345678", "0.5",
    "99999999999999999999.999999999999999999", "-2.5", "3",
]  # fmt: skip
TEXTS = [
    None, "", " ", "a", "abc", "ABC abc", " trim me ", "żółć", "ŻÓŁĆ 🌊", "Straße", "a,b,,c", "1", " 42 ", "-7",
    "12.50",
    "1e3", "true", "NO", "2024-02-29", "2024-02-30", "2024-03-31 02:30:00", "2024-10-27T02:30:00.5",
    "9223372036854775808", "abcabc", "%_\\", "b", "null", "2024", "+5", "ά Σίσυφος", "2024-01-01 10:00:00Z",
    "x" * 40, "I\u0131\u0130i",
]  # fmt: skip
PARTS = [None, "", "a", "b", "abc", " ", "ó", "%", "c", "xyz", "_", ","]
PATTERNS = [None, "", "%", "a%", "_b%", "%c", "A%", "%🌊", "\\%\\_\\\\", "abc"]
SMALL = [None, 0, 1, 2, -1, 3, -2, 5, 100, -100, 12]
FLAGS = [None, True, False]
SPANS = [None, 0, 1, -1, 86_400_000_000, 3_600_000_000, -90_061_000_001, 172_800_000_000]
JSON = [
    None, "", "{}", '{"a": 1, "b": {"c": ["x", 2, null]}}', '{"a": "text", "b": [1, [2]]}', '{"a": null}',
    "[1, 2]", "7", '{"a": 1.50}', '{"a": 1, "a": 2}', '{"a": "q\\"\\u0041"}', "{'a': 1}", '{"a": 1',
    '{"a": true} rest', '"text"', "nul", '{"a": {"k": "\u017c\u00f3"}, "b": {}}', ' {"a" : -12 } ',
    '{"b": {"c": "plain"}}', '{"a": 12345678901234567890}',
]  # fmt: skip
REGEXES = [
    None, "", "a", "a+", "^a", "c$", ".", "^.*$", "[a-c]+", "[^a-z ]", "\\d+", "\\w+", "\\s", "\\bab", "(a)(b)",
    "(a|b)+", "(?:ab)+", "a{2}", "b{1,2}", "(?i)ABC", "a*", "(a*)*", "x?", "[", "(", "a**", "a*+", "a*?b",
    "(?<=a)b", "(.)\\1", "\\.", "-", ",", "[0-9]{4}-[0-9]{2}", "[\\d,]", "\\D", "\\S+", "(\\d)(\\d)?", "ó|ż",
    "[ó-ż]", "\\p{L}", "a|", "(b)?c", "]", "}", "[]a]", "[a&&b]",
]  # fmt: skip
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), WHOLE), "j": (pa.int32(), WHOLE[::-1]), "n": (pa.int32(), SMALL),
    "tiny": (pa.int8(), [None, 1, -128, 127]), "small": (pa.int16(), [None, 7, -32768, 32767]),
    "l": (pa.int64(), BIG), "m": (pa.int64(), BIG[::-1]),
    "d": (pa.float64(), DOUBLES), "e": (pa.float64(), DOUBLES[::-1]), "f": (pa.float32(), FLOATS),
    "g": (pa.float32(), FLOATS[::-1]),
    "p": (pa.decimal128(10, 2), MONEY), "q": (pa.decimal128(10, 2), MONEY[::-1]), "r": (pa.decimal128(38, 18), HUGE),
    "w": (pa.decimal128(5, 0), [None, "0", "1", "-3", "99999"]),
    "s": (pa.string(), TEXTS), "u": (pa.string(), TEXTS[::-1]),
    "k": (pa.string(), PARTS), "z": (pa.string(), PATTERNS), "b": (pa.bool_(), FLAGS), "c": (pa.bool_(), FLAGS[::-1]),
    "day": (pa.date32(), DAYS), "day2": (pa.date32(), DAYS[::-1]), "t": (pa.timestamp("us", tz="UTC"), TIMES),
    "t2": (pa.timestamp("us", tz="UTC"), TIMES[::-1]), "c1": (pa.timestamp("us"), TIMES),
    "c2": (pa.timestamp("us"), TIMES[::-1]),
    "span": (pa.duration("us"), SPANS), "items": (pa.list_(pa.int32()), [None, [], [1, None, 3], [7]]),
    "nested": (pa.list_(pa.list_(pa.int32())), [None, [], [[1], [2, 3]], [[1], None], [[]]]),
    "st": (pa.struct([("a", pa.int32()), ("B", pa.string())]), [None, {"a": 1, "B": "x"}, {"a": None, "B": None}]),
    "x": (pa.binary(), [None, b"", b"\x00\xff", b"abc"]), "never": (pa.null(), [None]),
    "mp": (pa.map_(pa.string(), pa.int32()), [None, [], [("a", 1), ("b", None)], [("abc", 7)]]),
    "mi": (pa.map_(pa.int32(), pa.string()), [None, [(1, "x"), (-1, None)], [], [(7, "y")]]),
    "words": (pa.list_(pa.string()), [None, ["a", None, "abc"], [], ["b", "b"]]),
    "js": (pa.string(), JSON), "rx": (pa.string(), REGEXES),
}  # fmt: skip


def grid(rows: int) -> pa.Table:
    """Rows in which the values of each column follow each other at another step."""
    columns = {}
    for place, (name, (kind, values)) in enumerate(COLUMNS.items()):
        numbers = (np.arange(rows) + np.arange(rows) // len(values) * (place % 5)) % len(values)
        chosen = [values[number] for number in numbers]
        if pa.types.is_decimal(kind):
            chosen = [None if value is None else Decimal(value) for value in chosen]
        physical = pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind
        physical = pa.int32() if pa.types.is_date(kind) else physical
        columns[name] = pa.array(chosen, physical).cast(kind)
    return pa.table(columns)


NUMBERS = ("tiny", "small", "i", "l", "d", "f", "p", "r", "w")
EVERY = (*NUMBERS, "s", "b", "day", "t", "c1", "span", "never")
TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(5,0)", "DECIMAL(38,18)",
    "STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip
LITERALS = ("1", "-5", "10000000000", "0", "2.50", "0.005", "1e3", "3L", "7S", "1.5D", "'7'", "NULL")


def cells(*names: str) -> Iterator[str]:
    return (f"`{name}`" for name in names)


def expressions() -> Iterator[str]:
    """All that is compared."""
    for left, right in product(cells(*NUMBERS), cells(*NUMBERS)):
        yield from (f"{left} {symbol} {right}" for symbol in ("+", "-", "*", "/", "%"))
        yield from (f"{left} {symbol} {right}" for symbol in ("=", "<", ">=", "<=>"))
        yield from (f"coalesce({left}, {right})", f"greatest({left}, {right})", f"least({left}, {right})")
    for name, literal in product(cells(*NUMBERS), LITERALS):
        yield from (f"{name} {symbol} {literal}" for symbol in ("+", "*", "/", "%", "<", "="))
        yield from (f"{literal} - {name}", f"coalesce({name}, {literal})", f"{name} IN ({literal}, 1, NULL)")
    for name, kind in product(cells(*EVERY), TYPES):
        yield from (f"CAST({name} AS {kind})", f"try_cast({name} AS {kind})")
    for left, right in product(cells(*EVERY), cells(*EVERY)):
        yield from (f"{left} = {right}", f"{left} < {right}", f"coalesce({left}, {right})")
    for name in cells(*EVERY):
        yield from (
            f"CASE WHEN `b` THEN {name} WHEN `c` THEN NULL ELSE {name} END", f"if(`b`, {name}, NULL)",
            f"{name} IS NULL", f"nullif({name}, {name})", f"nvl2({name}, 1, 2.5)", f"{name} <=> NULL",
            f"isnull({name})", f"abs({name})", f"- {name}", f"round({name})", f"round({name}, 1)",
            f"floor({name})", f"ceil({name})",
            f"sign({name})", f"sqrt({name})", f"isnan({name})", f"upper({name})", f"length({name})",
            f"concat({name}, 'x')", f"{name} || `s`", f"year({name})", f"hour({name})", f"to_date({name})",
            f"to_timestamp({name})", f"date_add({name}, 1)", f"date_trunc('day', {name})", f"unix_timestamp({name})",
            f"date_format({name}, 'yyyy-MM-dd')", f"array({name}, {name})", f"struct({name} AS a)",
            f"named_struct('a', {name})",
            f"timestamp_seconds({name})", f"coalesce({name})", f"{name} BETWEEN {name} AND {name}", f"string({name})",
            f"isnotnull({name})", f"round({name}, -1)", f"array_repeat({name}, 2)", f"unix_seconds({name})",
        )  # fmt: skip
    yield from (each for text in REGULAR for each in (text, text.replace("`rx`", "'b'"))[: 1 + ("`rx`" in text)])
    yield from list_items(OTHERS)
    yield from list_items(TIME_EXPRESSIONS)
    yield from list_items(COLLECTIONS)


OTHERS = """
`i` div `j`|`l` div `m`|`p` div `q`|`d` div `e`|mod(`i`, `j`)|mod(`p`, `q`)|pmod(`i`, `j`)|pmod(`l`, `m`)|`p` * `r`|`r` / `w`
`r` * `r`|`r` + `r`|`r` % `p`|`p` / 3|`p` * 1.1|1 / `p`|`i` / 2|100.0 * `i` / `j`|`i` * 1.5|`p` + 1|1 - `p`|- `p`
try_add(`i`, `j`)|try_subtract(`l`, `m`)|try_multiply(`i`, `j`)|try_divide(`i`, `j`)|try_divide(`p`, `q`)|try_mod(`i`, `j`)
`b` AND `c`|`b` OR `c`|NOT `b`|`b` IS TRUE|`b` IS NOT FALSE|`b` IS UNKNOWN|`b` = `c`|`b` < `c`|`b` AND NULL|`b` OR NULL
`i` <> 0 AND 10 / `i` > 1|`i` = 0 OR 10 / `i` > 1|CASE WHEN `i` <> 0 THEN 10 / `i` END|if(`i` = 0, 0, 100 / `i`)|coalesce(`n`, 1 / `n`)
CASE `n` WHEN 0 THEN 'zero' WHEN 1 THEN 'one' ELSE 'many' END|CASE WHEN `b` THEN 1 ELSE 2.5 END|CASE WHEN `b` THEN 'x' END
CASE WHEN `b` THEN 1 WHEN `c` THEN 10000000000 END|CASE WHEN `n` > 1 THEN `p` ELSE 0 END|if(`b`, `i`, `l`)|if(`b`, `i`, 'x')
nvl(`i`, `l`)|ifnull(`s`, 'none')|nullif(`i`, 0)|nullif(`s`, '')|nullif(`i`, `l`)|coalesce(NULL, `s`, 'x')|coalesce(`i`, `p`, `d`)
`i` IN (1, 2, NULL)|`i` NOT IN (1, 2)|`s` IN ('a', 'abc')|`d` IN (0, 'NaN')|`p` IN (1, 2.25)|`l` IN (1, 2147483648)|`i` BETWEEN 0 AND 50
`s` LIKE `z`|`s` LIKE 'a%'|`s` NOT LIKE '%b%'|`s` LIKE '%é_'|`s` ILIKE 'ABC%'|`s` LIKE 'a!%' ESCAPE '!'|`s` RLIKE 'a+'
concat(`s`, ' ', `k`)|`s` || `k` || '!'|concat(`s`)|concat(`s`, `i`)|concat(`i`, `d`)|concat_ws('-', `s`, `k`, 'x')|concat_ws(`k`, `s`, `i`)
upper(`s`)|lower(`s`)|ucase(`s`)|lcase(`s`)|initcap(`s`)|trim(`s`)|ltrim(`s`)|rtrim(`s`)|length(`s`)|char_length(`k`)|length(`x`)
substring(`s`, `n`)|substring(`s`, `n`, 2)|substr(`s`, 2, `n`)|substring(`s`, `i`, `j`)|left(`s`, `n`)|right(`s`, `n`)|left(`s`, 2)
replace(`s`, `k`, '-')|replace(`s`, 'a')|replace(`s`, 'abc', `k`)|translate(`s`, 'abc', '12')|translate(`s`, `k`, 'xy')
split_part(`s`, `k`, 1)|split_part(`s`, ',', `n`)|split_part(`s`, 'b', -1)|lpad(`s`, 5, `k`)|rpad(`s`, 5, '*')|lpad(`s`, `n`)
repeat(`s`, 2)|repeat(`s`, `n`)|reverse(`s`)|startswith(`s`, `k`)|endswith(`s`, `k`)|contains(`s`, `k`)|instr(`s`, `k`)
locate(`k`, `s`)|locate(`k`, `s`, `n`)|position(`k`, `s`)|`s` = `u`|`s` < `u`|`s` >= `u`|greatest(`s`, `u`)|least(`s`, `u`, 'm')
round(`d`, 2)|round(`d`, -2)|round(`p`, 1)|round(`p`, 5)|round(`p`, -1)|round(`r`, 3)|round(`f`, 2)|round(`i`, 2)|round(`d` / 3, 4)
floor(`d` / 3)|ceil(`p`)|ceiling(`r`)|greatest(`i`, `l`, `d`)|greatest(`d`, `e`)|least(`d`, `e`)|greatest(`p`, 1)|sqrt(`i`)
string(`i`)|int(`s`)|bigint(`d`)|double(`s`)|date(`s`)|boolean(`s`)|float(`s`)|`s`::INT|CAST(`p` AS STRING)|CAST('12' AS INT)
isnull(`i`)|isnotnull(`s`)|nvl2(`i`, `j`, 0)|`i` <=> `j`|abs(`i`)|abs(`p`)|abs(`d`)|sign(`d`)|signum(`i`)|negative(`l`)|isnan(`d`)
tinyint(`n`)|smallint(`s`)|character_length(`s`)|len(`u`)|TIMESTAMP_LTZ '2024-01-01 00:00:00'|get(`items`, `n`)
`items`[0]|`items`[`n`]|size(`items`)|cardinality(`items`)|flatten(`nested`)|flatten(array(`items`, `items`))|`st`.a|`st`.b|`st`.`B`
array(1, 2, 3)|array(`i`, `l`)|array(`i`, 2.5)[1]|array_repeat('x', `n`)|array_repeat(`n`, 3)|struct(`i` AS a, `s` AS b).b|`nested`[1][0]
named_struct('a', 1, 'b', `s`)|`items` = array(7)|`st` = named_struct('a', 1, 'B', 'x')|`items` IS NULL|coalesce(`items`, array(1))
1|1.50|-2147483648|9223372036854775807|1e3|'it''s'|TRUE|NULL|0.05|123456789012345678901234567890|INTERVAL 1 DAY|INTERVAL '1 02:03:04' DAY TO SECOND
2 + 3 * 4 - 1|(2 + 3) * 4|1.10 + 2|-7 % 3|7 % -3|-7 div 2|1 / 3|2.0 / 3|1 = 1.0|'a' || 1|- `i`|-5 * `p`|NOT `i` = 1|`i` & 3|~ `i`
"""  # noqa: E501
"""Further expressions, separated by bars and lines."""

REGULAR = [
    "`s` RLIKE `rx`", "regexp(`s`, `rx`)", "regexp_like(`k`, `rx`)", "regexp_extract(`s`, `rx`, 0)",
    "regexp_extract(`s`, `rx`)", "regexp_extract(`s`, `rx`, 2)", "regexp_replace(`s`, `rx`, '-')",
    "regexp_replace(`s`, `rx`, '<$0>')", "regexp_replace(`s`, `rx`, '$1.')", "regexp_count(`s`, `rx`)",
    "split(`s`, `rx`)", "split(`u`, ',')", r"`s` RLIKE '^\\d{4}-(\\d{2})'",
    r"regexp_extract(`s`, '(\\d+)-(\\d+)', 2)", r"regexp_replace(`s`, '[^\\w]', '_')", "`s` NOT RLIKE 'a|b'",
    r"'a\tb\'c\u0041\101\%'", r"concat(`s`, '\n')",
]  # fmt: skip
"""Regular expressions, which have bars themselves."""

COLLECTIONS = """
map('a', 1, 'b', `n`)|map(`i`, `s`)|map(1, 2.5, 2, 3)|map('a', 1, 'a', 2)|map_keys(`mp`)|map_values(`mp`)|map_keys(map(1, 2))
`mp`['a']|`mp`[`k`]|`mi`[1]|`mi`[`n`]|element_at(`mp`, 'b')|element_at(`mi`, `i`)|element_at(`items`, 1)|element_at(`items`, `n`)|element_at(`items`, -1)
try_element_at(`items`, `n`)|try_element_at(`words`, 2)|try_element_at(`mp`, 'z')|map_contains_key(`mp`, 'a')|map_contains_key(`mi`, `n`)|size(`mp`)|cardinality(`mi`)
map_from_arrays(array('a', 'b'), array(`i`, 1))|array_contains(`items`, `i`)|array_contains(`words`, 'b')|array_contains(array(`d`, 1.0), `d`)
transform(`items`, x -> x + 1)|transform(`items`, x -> x + `i`)|transform(`items`, (x, i) -> x * i)|transform(`words`, w -> upper(w))|transform(`items`, x -> NULL)
transform(`words`, w -> w = 'a')|transform(`nested`, xs -> size(xs))|transform(`nested`, xs -> transform(xs, x -> x * 2))|transform(array(1, 2), x -> x / `i`)
filter(`items`, x -> x IS NOT NULL)|filter(`items`, x -> x > `n`)|filter(`words`, (w, i) -> i > 0)|filter(`items`, x -> 10 / (x - 7) > 0)
exists(`items`, x -> x > 2)|exists(`items`, x -> x IS NULL)|exists(`words`, w -> w = `k`)|forall(`items`, x -> x > 0)|exists(`items`, x -> 10 / (x - 7) > 0)
aggregate(`items`, 0, (acc, x) -> acc + coalesce(x, 0))|aggregate(`items`, 0, (acc, x) -> acc + x)|reduce(`items`, `i`, (a, b) -> a + b, a -> a * 2)
aggregate(`words`, '', (acc, w) -> concat(acc, w), acc -> length(acc))|aggregate(`items`, 0L, (acc, x) -> acc + x)|aggregate(`items`, 0, (acc, x) -> acc + 1L)
get_json_object(`js`, '$.a')|get_json_object(`js`, '$.b.c')|get_json_object(`js`, '$.b.c[1]')|get_json_object(`js`, '$.b')|get_json_object(`js`, '$')|get_json_object(`js`, '$[0]')|get_json_object(`js`, '$.b[*]')
"""  # noqa: E501
"""Maps, lambdas and JSON. No map fails for some rows: Spark's builder keeps the keys of such a row for the next one."""

TIME_EXPRESSIONS = """
year(`t`)|quarter(`t`)|month(`t`)|day(`t`)|dayofmonth(`t`)|hour(`t`)|minute(`t`)|second(`t`)|dayofweek(`t`)|weekday(`t`)
dayofyear(`t`)|weekofyear(`t`)|year(`day`)|month(`day`)|weekofyear(`day`)|dayofweek(`day`)|hour(`day`)|hour(`c1`)|second(`c1`)|year(`c1`)
extract(YEAR FROM `t`)|extract(WEEK FROM `day`)|extract(DOW FROM `t`)|extract(MINUTE FROM `c1`)|date_part('HOUR', `t`)|extract(SECOND FROM `t`)
date_trunc('year', `t`)|date_trunc('QUARTER', `t`)|date_trunc('month', `t`)|date_trunc('week', `t`)|date_trunc('day', `t`)
date_trunc('hour', `t`)|date_trunc('minute', `t`)|date_trunc('second', `t`)|date_trunc('millisecond', `t`)|date_trunc('hour', `c1`)
date_trunc('month', `day`)|trunc(`day`, 'year')|trunc(`day`, 'MM')|trunc(`day`, 'week')|trunc(`t`, 'quarter')|date_trunc('odd', `t`)
CAST(`t` AS DATE)|CAST(`t` AS STRING)|CAST(`t` AS TIMESTAMP_NTZ)|CAST(`c1` AS TIMESTAMP)|CAST(`day` AS TIMESTAMP)|CAST(`c1` AS STRING)
CAST(`s` AS TIMESTAMP)|to_timestamp(`s`)|to_date(`s`)|CAST(`t` AS BIGINT)|CAST(`t` AS DOUBLE)|CAST(`t` AS INT)|CAST(`l` AS TIMESTAMP)
try_cast(`s` AS TIMESTAMP)|try_cast(`s` AS DATE)|CAST(`day` AS STRING)|CAST(`c1` AS DATE)|`day` = `t`|`c1` < `t`|`day` < `c1`
date_add(`day`, `n`)|date_sub(`day`, 3)|date_add(`t`, 1)|datediff(`day`, `day2`)|datediff(`t`, `t2`)|add_months(`day`, `n`)|last_day(`day`)
make_date(`i`, `n`, `n`)|make_date(2024, `n`, 31)|`day` + 1|`day` - `n`|1 + `day`|`day` - `day2`|`t` - `t2`|`c1` - `c2`|`t` - `c1`
`t` + INTERVAL 1 DAY|`t` - INTERVAL 1 DAY|`t` + INTERVAL 25 HOURS|`t` - INTERVAL 90 MINUTES|`t` + `span`|`c1` + `span`|`c1` - INTERVAL 1 DAY
`day` + INTERVAL 1 DAY|`day` - INTERVAL 2 WEEKS|`day` + INTERVAL 1 HOUR|`t` + INTERVAL 1 MONTH|`day` - INTERVAL 1 YEAR|`c1` + INTERVAL '3' MONTHS
INTERVAL 1 DAY + `t`|`span` + `span`|`span` * 2|2 * `span`|`span` - INTERVAL 1 HOUR|- `span`|`span` / 2|`span` = INTERVAL 1 DAY|abs(`span`)
timestampadd(HOUR, `n`, `t`)|timestampadd(DAY, `n`, `t`)|timestampadd(MONTH, `n`, `c1`)|timestampadd(WEEK, 1, `day`)|dateadd(MINUTE, `n`, `t`)
timestampdiff(SECOND, `t`, `t2`)|timestampdiff(HOUR, `t`, `t2`)|timestampdiff(DAY, `t`, `t2`)|timestampdiff(WEEK, `c1`, `c2`)|datepart('day', `t`)|date_diff(`day`, `day2`)|datediff(HOUR, `t`, `t2`)
date_format(`t`, 'yyyy-MM-dd HH:mm:ss')|date_format(`t`, 'HH:mm:ss.SSS')|date_format(`day`, 'yyyyMMdd')|date_format(`t`, "yyyy-MM-dd'T'HH")|date_format(`t`, 'E')
unix_timestamp(`t`)|to_unix_timestamp(`t`)|unix_seconds(`t`)|unix_millis(`t`)|unix_micros(`t`)|unix_date(`day`)|timestamp_seconds(`i`)
timestamp_millis(`l`)|timestamp_micros(`l`)|timestamp_millis(`i`)|DATE '2024-02-29'|TIMESTAMP '2024-03-31 02:30:00'|TIMESTAMP_NTZ '2024-01-01 00:00:00'
TIMESTAMP '2024-03-31 02:30:00Z'|`t` >= TIMESTAMP '2024-03-31 00:00:00'|`day` = DATE '2024-02-29'|greatest(`t`, `t2`)|least(`day`, `day2`)
`t` < `t2`|`t` = `t2`|`c1` >= `c2`|coalesce(`t`, `t2`)|coalesce(`day`, `t`)|`t` BETWEEN `t2` AND `t2` + INTERVAL 1 HOUR|`day` > '2024-01-01'
array(`t`, `t2`)|struct(`t` AS at).at|if(`b`, `t`, `t2`)
"""  # noqa: E501
"""Expressions whose values depend on the zone of the session."""


def list_items(text: str) -> list[str]:
    return [
        part.strip()
        for line in text.strip().splitlines()
        for part in re.split(r"(?<!\|)\|(?!\|)", line)
        if part.strip()
    ]


FAILED = object()


def in_utc(kind: Any) -> pa.DataType:
    """A type as Arrow names it, with times in UTC, and fields that may be NULL."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, in_utc(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(in_utc(kind.key_type), in_utc(kind.item_type))
    return pa.list_(in_utc(kind.value_type)) if pa.types.is_list(kind) else kind


def cell_texts(values: pa.Array) -> list[str]:
    return [repr(value) for value in python_values(values.cast(in_utc(values.type)))]


def local_cells(text: str, rows: pa.Table) -> tuple[pa.DataType, list[Any]] | None:
    """The type and values of an expression in this process, or `FAILED`; None for cells that are left to Spark."""
    expr = read_structure(text)
    try:
        kind = evaluate(expr, rows.slice(0, 0)).type
    except (NeedsSparkError, pa.ArrowNotImplementedError):
        return None
    return in_utc(kind), list(_cells(lambda part: evaluate(expr, part), rows))


def _cells(compute: Callable[[pa.Table], pa.Array], rows: pa.Table) -> Iterator[Any]:
    try:
        yield from cell_texts(compute(rows))
    except (NeedsSparkError, pa.ArrowException, ArithmeticError) as error:
        if rows.num_rows == 1:
            yield None if isinstance(error, NeedsSparkError) else FAILED
            return
        half = rows.num_rows // 2
        yield from _cells(compute, rows.slice(0, half))
        yield from _cells(compute, rows.slice(half))


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows on Spark; in a session in UTC, where local times are what they are."""
    before = str(spark.conf.get("spark.sql.timestampType"))
    # Otherwise times without a zone become TIMESTAMP.
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        return spark.createDataFrame(rows.append_column("#row", pa.array(range(rows.num_rows))))
    finally:
        spark.conf.set("spark.sql.timestampType", before)


def spark_cells(frame: DataFrame, texts: Sequence[str]) -> list[tuple[pa.DataType, list[Any]]]:
    """The type and values of expressions on Spark, or `FAILED`."""
    spark: Any = frame.sparkSession
    jvm, reader = spark._jvm, spark._jsparkSession.sessionState().sqlParser()
    expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def column(text: str) -> Column:
        # What fails becomes NULL, which Arrow refuses of a map that cannot be NULL.
        nullable = f"CASE WHEN `#row` IS NOT NULL THEN {text} END"
        tried = expressions.TryEval(reader.parseExpression(f"named_struct('v', {nullable})"))
        return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(tried))

    chosen = frame.select("#row", *(column(text).alias(f"#{n}") for n, text in enumerate(texts))).toArrow()
    chosen = chosen.sort_by("#row").combine_chunks()
    cells: list[tuple[pa.DataType, list[Any]]] = []
    for n in range(len(texts)):
        tried = chosen.column(f"#{n}").combine_chunks()
        tried = tried.chunk(0) if isinstance(tried, pa.ChunkedArray) else tried
        values = cell_texts(tried.field(0)) if len(tried) else []
        valid = tried.is_valid().to_pylist()
        cells.append(
            (
                in_utc(tried.type.field(0).type),
                [one if is_valid else FAILED for one, is_valid in zip(values, valid, strict=True)],
            )
        )
    return cells


def read_calls(expr: Expr) -> Iterator[str]:
    """The names of what evaluates the parts of an expression."""
    yield expr.text.lower() if expr.op == "call" else expr.op
    for arg in expr.args:
        yield from read_calls(arg)


ZONES = {
    "UTC": [*dict.fromkeys(expressions())],
    "Europe/Berlin": list_items(TIME_EXPRESSIONS),
    **(
        {"America/St_Johns": list_items(TIME_EXPRESSIONS), "Asia/Kolkata": list_items(TIME_EXPRESSIONS)}
        if IS_WHOLE
        else {}
    ),
}


def test_functions_have_the_values_and_types_of_spark(spark: SparkSession) -> None:
    rows = grid(150 if IS_WHOLE else 48)
    with session_zone(spark, "UTC"):
        frame = frame_of(spark, rows)
    wrong: list[Any] = []
    evaluated: set[str] = set()
    for zone, texts in ZONES.items():
        with session_zone(spark, zone):
            fixed = {*list_items(f"{OTHERS}{COLLECTIONS}" if zone == "UTC" else TIME_EXPRESSIONS), *REGULAR}
            share = [text for n, text in enumerate(texts) if IS_WHOLE or text in fixed or n % 40 == 0]
            with in_session(zone):
                cells = {text: found for text in share if (found := local_cells(text, rows)) is not None}
            evaluated |= {name for text in cells for name in read_calls(read_structure(text))}
            names = [*cells]
            for start in range(0, len(names), 300):
                part = names[start : start + 300]
                for text, expected in zip(part, spark_cells(frame, part), strict=True):
                    wrong += [(zone, text, *rest) for rest in differences(cells[text], expected)]
    assert wrong == []
    assert evaluated >= (FUNCTIONS.keys() | CHOICES.keys()) - WINDOWS


WINDOWS = {"window", "session_window"}
"""What unfolds rows, and so stands in a projection of its own."""


def differences(mine: tuple[pa.DataType, list[Any]], expected: tuple[pa.DataType, list[Any]]) -> Iterator[Any]:
    """The first difference between the cells of this process and those of Spark."""
    if mine[0] != expected[0]:
        yield mine[0], expected[0]
        return
    pairs = ((n, *pair) for n, pair in enumerate(zip(mine[1], expected[1], strict=True)))
    yield from [(n, left, right) for n, left, right in pairs if left is not None and left != right][:1]


@pytest.mark.parametrize(
    "call",
    [
        "window(`t`, '10 minutes')", "window(`t`, '25 minutes', '10 minutes')", "session_window(`t`, '7 seconds')",
        "window(`c1`, '3 days', '1 day', '5 hours')",
    ],
)  # fmt: skip
def test_windows_are_those_of_spark(spark: SparkSession, call: str) -> None:
    rows = pa.table({name: grid(20).column(name) for name in ("t", "c1")})
    unfolded = windows_of_rows(read_structure(call), rows)
    local = Counter(cell_texts(unfolded.values))
    frame = frame_of(spark, rows)
    if call.startswith("window"):
        windows = frame.selectExpr(f"{call} AS w")
    else:
        # A session of one row is what a row has before sessions are merged.
        windows = frame.where("`t` IS NOT NULL").groupBy("#row", F.expr(call).alias("w")).count().select("w")
    column = windows.toArrow().column("w").combine_chunks()
    assert Counter(cell_texts(column.chunk(0) if isinstance(column, pa.ChunkedArray) else column)) == local


def test_capital_and_small_letters_are_those_of_spark(spark: SparkSession) -> None:
    letters = [chr(code) for code in (*range(0x20, 0x180), *range(0x370, 0x500))]
    texts = ["\u039f\u0394\u039f\u03a3", *letters, *(f"a{letter}b {letter}" for letter in letters)]
    frame = spark.createDataFrame(pa.table({"s": texts}))
    for call in ("upper(`s`)", "lower(`s`)"):
        local = evaluate(read_structure(call), pa.table({"s": texts})).to_pylist()
        assert [row[0] for row in frame.selectExpr(call).collect()] == local


def test_numbers_become_the_texts_of_spark(spark: SparkSession) -> None:
    numbers = [round(0.001 + n * 7919.0137 % 10**k, n % 9) for k in range(7) for n in range(1, 200)]
    rows = pa.table({"d": numbers, "f": pa.array(numbers, pa.float32()), "p": [f"{number}" for number in numbers]})
    calls = ["CAST(`d` AS STRING)", "round(`d`, 2)", "CAST(`p` AS DOUBLE)", "CAST(`d` AS DECIMAL(20,6))"]
    collected = spark.createDataFrame(rows).selectExpr(*(f"{call} AS c{n}" for n, call in enumerate(calls))).toArrow()
    for n, call in enumerate(calls):
        _, cells = local_cells(call, rows) or (None, [])
        values = cell_texts(collected.column(f"c{n}").combine_chunks())
        pairs = [pair for pair in zip(cells, values, strict=True) if pair[0] is not None]
        assert [one for one, _ in pairs] == [other for _, other in pairs]
        assert len(pairs) > 1000
