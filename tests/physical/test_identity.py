"""Whose a state is: edits that leave it what it was, and edits that do not, told in the user's words."""

from __future__ import annotations

import re

import pytest

from watersmeet.operators import OPERATORS
from watersmeet.operators.core.identity import canonical_json
from watersmeet.physical import QueryPlan, join_plans, limits_of, plan_query
from watersmeet.physical.change import NamedIdentity, difference
from watersmeet.physical.identity import identity_of, outcome_digest, scan_words
from watersmeet.queries import analyze, read_script

ORDERS = """
CREATE STREAM orders (id BIGINT, customer STRING, city STRING, items ARRAY<STRING>, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL 5 MINUTES) USING parquet OPTIONS (path '/data/orders');
CREATE STREAM deliveries (order_id BIGINT, customer STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL 5 MINUTES) USING parquet OPTIONS (path '/data/deliveries');
CREATE STREAM clicks (id BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL 5 MINUTES)
    USING kafka OPTIONS (subscribe 'clicks', 'kafka.bootstrap.servers' 'a:9092', 'value.format' 'json');
CREATE TABLE customers (name STRING, city STRING, PRIMARY KEY (name)) USING parquet OPTIONS (path '/data/customers');
"""
JOIN = (
    ORDERS
    + """
SELECT STREAM o.id, o.customer, upper(o.city) AS city, d.ts
FROM orders o JOIN deliveries d
  ON o.id = d.order_id AND d.ts BETWEEN o.ts - INTERVAL 5 MINUTES AND o.ts + INTERVAL 1 HOUR
WHERE o.customer <> 'test';
"""
)
GROUPED = (
    ORDERS
    + """
SELECT TABLE o.city AS city, count(*) AS n, max(o.ts) AS latest FROM orders o GROUP BY o.city;
"""
)
LATEST = ORDERS + "SELECT TABLE o.id AS _key, o.customer AS name, lower(o.city) AS place FROM orders o;"
LOOKUP = (
    ORDERS
    + """
SELECT STREAM o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name;
"""
)
VIEW = (
    ORDERS
    + """
CREATE VIEW big AS SELECT o.id AS number, o.ts AS at FROM orders o WHERE o.id > 100;
SELECT STREAM b.number, d.ts FROM big b JOIN deliveries d ON b.number = d.order_id WITHIN 10 MINUTES;
"""
)
WINDOWED = (
    ORDERS
    + """
SELECT STREAM o.id, d.customer FROM orders o WINDOW (COUNT 10 PARTITION BY id)
JOIN deliveries d WINDOW (COUNT 5 PARTITION BY order_id) ON o.id = d.order_id;
"""
)
ASOF = (
    ORDERS
    + """
SELECT STREAM o.id, d.customer FROM orders o ASOF JOIN deliveries d MATCH_CONDITION (o.ts >= d.ts) ON o.id = d.order_id
WITHIN 1 HOUR;
"""
)
COUNTED = (
    ORDERS
    + """
CREATE TABLE cities (city STRING, PRIMARY KEY (city)) USING parquet OPTIONS (path '/data/cities');
SELECT TABLE c.city AS city, count(*) AS n
FROM customers c JOIN cities z ON c.city = z.city AND levenshtein(c.name, z.city) < 3 GROUP BY c.city;
"""
)
EVENTS = """
CREATE STREAM events (k STRING) USING parquet OPTIONS (path '/data/events');
SELECT TABLE k, count(*) AS n FROM events GROUP BY k;
"""
CLICKS = ORDERS + "SELECT STREAM o.id FROM orders o JOIN clicks k ON o.id = k.id WITHIN 1 HOUR;"


def identify(text: str, shards: int = 4) -> NamedIdentity:
    """A script of one query with its identity."""
    plan = plan_of(text)
    return NamedIdentity(identity_of(plan, shards), scan_words(plan), outcome_digest(plan, "UTC"))


def plan_of(text: str) -> QueryPlan:
    """The plan of a script of one query."""
    script = read_script(text)
    (query,) = analyze(script)
    return plan_query(query, OPERATORS, limits=limits_of(script))


def edit_sql(text: str, edits: dict[str, str]) -> str:
    """The text with its edits, each of which must find something to change."""
    for before, after in edits.items():
        changed = re.sub(before, after, text)
        assert changed != text, before
        text = changed
    return text


SAME = {
    "an alias": (JOIN, {r"\bo\.": "orders1.", r"orders o\b": "orders orders1"}),
    "aliases that trade places": (JOIN, {
        r"\bo\.": "x.", r"orders o\b": "orders x", r"\bd\.": "o.", r"deliveries d\b": "deliveries o",
        r"\bx\.": "d.", r"orders x\b": "orders d"}),
    "a name of an output": (JOIN, {"AS city": "AS town"}),
    "the order of outputs": (JOIN, {r"o.id, o.customer, upper\(o.city\) AS city": "upper(o.city), o.customer, o.id"}),
    "an output computed otherwise": (JOIN, {r"upper\(o.city\)": "length(o.city)"}),
    "comments and layout": (JOIN, {"FROM orders": "\n-- all of them\n FROM   orders", "ON o.id": "ON /* ! */ o.id"}),
    "small letters": (JOIN, {"BETWEEN": "between", r"\bJOIN\b": "join", "orders o": "ORDERS o"}),
    "the order of declared columns": (JOIN, {r"id BIGINT, customer STRING, city": "customer STRING, id BIGINT, city"}),
    "a column that nobody reads": (JOIN, {
        r"ARRAY<STRING>": "ARRAY<BIGINT>", "order_id BIGINT,": "order_id BIGINT, n INT,"}),
    "a synonym of a type": (JOIN, {r"id BIGINT": "id LONG"}),
    "rates": (JOIN, {"path '/data/orders'": "path '/data/orders', maxFilesPerTrigger '3', maxBytesPerTrigger '1g'"}),
    "what becomes of files that were read": (JOIN, {
        "path '/data/orders'": "path '/data/orders', cleanSource 'delete'"}),
    "a path with its scheme": (JOIN, {"'/data/orders'": "'file:///data/orders/'"}),
    "settings of Kafka's client": (CLICKS, {
        "'a:9092'": "'a:9092,b:9092', 'kafka.security.protocol' 'SSL', maxOffsetsPerTrigger '100', "
                    "minOffsetsPerTrigger '10', maxTriggerDelay '1m', startingOffsets 'earliest'"}),
    "limits": (JOIN, {"SELECT STREAM": "SET watersmeet.state.max_rows = 1000;\nSELECT STREAM"}),
    "WHERE above the last join": (
        edit_sql(JOIN, {"<> 'test'": "<> 'test' AND o.id + d.order_id > 3"}), {r"d.order_id > 3": "d.order_id > 4"}),
    "names inside a view": (VIEW, {"number": "n", "AS at": "AS t", r"\bo\.": "z.", "orders o": "orders z"}),
    "the alias of a view": (VIEW, {r"\bb\.": "v.", r"big b\b": "big v"}),
    "the layout of a filter": (JOIN, {"<> 'test'": "<>   'test' -- not those"}),
    "names and order of a grouped result": (GROUPED, {
        r"o.city AS city, count\(\*\) AS n": "COUNT( * ) AS m, o.city AS town"}),
    "the order of aggregates of one column": (
        edit_sql(GROUPED, {r"max\(o.ts\) AS latest": "max(o.ts) AS a, min(o.ts) AS b, max_by(o.id, o.ts) AS c"}),
        {r"max\(o.ts\) AS a, min\(o.ts\) AS b, max_by\(o.id, o.ts\) AS c":
            "max_by(o.id, o.ts) AS c, min(o.ts) AS b, max(o.ts) AS a"}),
    "names and order of a table's columns": (LATEST, {
        r"o.customer AS name, lower\(o.city\) AS place": "LOWER(o.city) AS town, o.customer AS who"}),
    "an alias in a lookup": (LOOKUP, {r"\bc\.": "people.", r"customers c\b": "customers people"}),
    "an alias in windows": (WINDOWED, {r"\bo\.": "x.", r"orders o\b": "orders x"}),
    "an alias in an as-of join": (ASOF, {r"\bd\.": "x.", r"deliveries d\b": "deliveries x"}),
}  # fmt: skip

OTHER = {
    "a lower bound": (
        JOIN, {r"o.ts - INTERVAL 5 MINUTES": "o.ts - INTERVAL 10 MINUTES"},
        "the lower bound of `d.ts` was 5 minutes, now it is 10 minutes"),
    "an upper bound, under another alias": (
        JOIN, {"INTERVAL 1 HOUR": "INTERVAL 90 MINUTES", r"\bd\.": "x.", r"deliveries d\b": "deliveries x"},
        "the upper bound of `x.ts` was 1 hour, now it is 1 hour 30 minutes"),
    "a key": (JOIN, {"o.id = d.order_id": "o.customer = d.customer"}, "the key was `o.id`, now it is `o.customer`"),
    "a further key": (
        JOIN, {"o.id = d.order_id": "o.id = d.order_id AND o.customer = d.customer"},
        "the key was `o.id`, now it is `o.id`, `o.customer`"),
    "the kind": (
        JOIN, {r"orders o JOIN": "orders o LEFT JOIN"}, "the join of `o` and `d` was `inner`, now it is `left`"),
    "a lag": (
        JOIN, {r"(?s)^(.*?)ts - INTERVAL 5": r"\1ts - INTERVAL 7"},
        "the lag of the watermark of `o.ts` was 5 minutes, now it is 7 minutes"),
    "a filter that moves before the join": (
        JOIN, {"<> 'test'": "<> 'demo'"}, "the filter `o.customer<>'test'` is now `o.customer<>'demo'`"),
    "a filter that is gone": (JOIN, {"WHERE o.customer <> 'test'": ""}, "the filter `o.customer<>'test'` was removed"),
    "a filter of a view": (VIEW, {"> 100": "> 200"}, "the filter `o.id>100` is now `o.id>200`"),
    "a path": (
        JOIN, {"/data/orders": "/data/archive"},
        "the source `orders` read `path` `/data/orders`, now it reads `/data/archive`"),
    "a format": (
        JOIN, {"(?s)USING parquet(.*?orders')": r"USING json\1"},
        "the format of the source `orders` was `parquet`, now it is `json`"),
    "a topic": (CLICKS, {"'clicks'": "'taps'"}, "the source `clicks` read `subscribe` `clicks`, now it reads `taps`"),
    "which records of Kafka count": (
        CLICKS, {"'a:9092'": "'a:9092', 'kafka.isolation.level' 'read_committed'"},
        "the option `kafka.isolation.level` of the source `clicks` is new (`read_committed`)"),
    "another source": (
        JOIN, {r"FROM orders o\b": "FROM deliveries o", "o.id": "o.order_id", r"upper\(o.city\) AS city,": ""},
        "`o` read the source `orders`, now `o` reads `deliveries`"),
    "a type": (JOIN, {r"city STRING, items": "city BINARY, items"}, "`o.city` was STRING, now it is BINARY"),
    "a column more": (JOIN, {"o.id, o.customer": "o.id, o.items, o.customer"}, "`o.items` was not read, now it is"),
    "a join more": (
        JOIN, {"WHERE": "JOIN clicks k ON o.id = k.id AND k.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR WHERE"},
        "it had 2 sources, now it has 3"),
    "what rows are grouped by": (
        GROUPED, {r"o.city AS city": "o.customer AS city", "BY o.city": "BY o.customer"},
        "the key was `o.city`, now it is `o.customer`"),
    "an idle side": (
        JOIN, {r"(?s)^(.*?ts - INTERVAL 5 MINUTES)": r"\1 IDLE AFTER 1 MINUTE"},
        "no side could be idle, now one may"),
    "a window": (
        WINDOWED, {"COUNT 10": "COUNT 20"},
        "the window of `o` was COUNT 10 PARTITION BY `o.id`, now it is COUNT 20 PARTITION BY `o.id`"),
    "an aggregate more": (
        GROUPED, {r"count\(\*\)": "count(*), sum(o.id)"}, "`sum(o.id)` was not aggregated, now it is"),
    "a condition between two stages": (
        COUNTED, {"< 3": "< 9"},
        "the filter `(levenshtein(c.name,z.city)<3)` is now `(levenshtein(c.name,z.city)<9)`"),
    "a stream that becomes a table": (
        EVENTS, {"CREATE STREAM": "CREATE TABLE"}, "the kind of the source `events` was `stream`, now it is `table`"),
    "a column that is called like a field of an identity": (
        edit_sql(JOIN, {"items ARRAY": "kind STRING, items ARRAY"}), {"o.id, o.customer": "o.id, o.kind, o.customer"},
        "`o.kind` was not read, now it is"),
    "how far a version may be": (
        ASOF, {"WITHIN 1 HOUR": "WITHIN 2 HOURS"}, "the tolerance was 1 hour, now it is 2 hours"),
}  # fmt: skip


@pytest.mark.parametrize("edit", SAME)
def test_presentation_of_a_query_is_not_in_its_identity(edit: str) -> None:
    before, edits = SAME[edit]
    assert difference(identify(before), identify(edit_sql(before, edits))) is None
    assert canonical_json(identify(before).identity) == canonical_json(identify(edit_sql(before, edits)).identity)


@pytest.mark.parametrize("edit", OTHER)
def test_differences_of_a_state_are_reported_in_the_users_words(edit: str) -> None:
    before, edits, words = OTHER[edit]
    assert difference(identify(before), identify(edit_sql(before, edits))) == words


def test_idle_time_of_a_side_does_not_matter() -> None:
    idle = edit_sql(JOIN, {r"(?s)^(.*?ts - INTERVAL 5 MINUTES)": r"\1 IDLE AFTER 1 MINUTE"})
    assert difference(identify(idle), identify(edit_sql(idle, {"1 MINUTE": "2 MINUTES"}))) is None


def test_the_number_of_shards_is_reported() -> None:
    assert difference(identify(JOIN), identify(JOIN, 2)) == "its state has 4 shards, now it would have 2"


def test_secrets_are_not_stored() -> None:
    text = edit_sql(
        JOIN, {"path '/data/orders'": "path '/data/orders', password 'swordfish', \"fs.s3a.secret.key\" 'x'"}
    )
    assert "swordfish" not in canonical_json(identify(text).identity)
    assert "s3a" not in canonical_json(identify(text).identity)


@pytest.mark.parametrize("text", [JOIN, GROUPED, LATEST, LOOKUP, VIEW, WINDOWED, ASOF])
def test_every_column_has_one_canonical_name(text: str) -> None:
    (query,) = analyze(read_script(text))
    for join in join_plans(plan_query(query, OPERATORS).relation):
        names = dict(getattr(join.operator, "names", ()))
        assert len(set(names.values())) == len(names)
