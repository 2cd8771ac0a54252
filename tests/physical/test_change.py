"""The table of docs/changing.md: every kind of edit is of the class that it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.physical.test_identity import (
    ASOF,
    CLICKS,
    GROUPED,
    JOIN,
    LOOKUP,
    OTHER,
    SAME,
    VIEW,
    WINDOWED,
    edit_sql,
    identify,
    plan_of,
)

from watersmeet.operators import change_rules, gives_table
from watersmeet.physical.change import Edit, classify_edit
from watersmeet.physical.identity import changes_outcomes, outcome_digest

PAGE = (Path(__file__).parents[2] / "docs" / "changing.md").read_text("utf-8")
TABLE = dict(
    re.findall(
        r"^\| (.+) \| (free|continued|rebuilt|refused) \|$", PAGE.split("## Every kind of edit")[1], re.MULTILINE
    )
)

CONDITION = edit_sql(JOIN, {r"AND d\.ts": "AND o.customer < d.customer AND d.ts"})
SHOWN = edit_sql(CONDITION, {"o.id, o.customer,": "o.id,"})
LAG = r"(?s)^(.*?ts - INTERVAL) 5"
IDLE = r"(?s)^(.*?ts - INTERVAL 5 MINUTES)"
CHAIN = edit_sql(JOIN, OTHER["a join more"][1])
SINK = edit_sql(
    JOIN,
    {"SELECT STREAM o.id": "CREATE SINK out USING json OPTIONS (path '/out');\nINSERT INTO out SELECT STREAM o.id"},
)

LIMITED = edit_sql(WINDOWED, {"PARTITION BY id": "PARTITION BY id PARTITION COUNT 100"})
LATE = {"SELECT STREAM": "SET watersmeet.table.late = ignore;\nSELECT STREAM"}
SYNC = edit_sql(
    JOIN, {r"(?s)SELECT STREAM.*": "SELECT STREAM o.ts, o.id, d.customer FROM orders o SYNC JOIN deliveries d;"}
)

QUERY = "(?s)SELECT STREAM.*"
ONCE = edit_sql(
    JOIN, {QUERY: "SELECT STREAM o.city, count(*) AS n FROM orders o GROUP BY o.city, window(o.ts, '1 hour');"}
)
DISTINCT = edit_sql(JOIN, {QUERY: "SELECT STREAM DISTINCT id FROM orders WITHIN 5 MINUTES;"})
FRAMED = edit_sql(
    JOIN,
    {
        QUERY: "SELECT STREAM city, ts, lead(id) OVER w AS next, max(id) OVER nine AS most FROM orders "
        "WINDOW w AS (PARTITION BY city ORDER BY ts), nine AS (PARTITION BY city ORDER BY ts ROWS 9 PRECEDING) "
        "WITHIN 1 HOUR;"
    },
)
LAG_OF_NAMES = "lag(name) OVER (PARTITION BY city ORDER BY name) AS other"
RANKED = edit_sql(JOIN, {QUERY: f"SELECT TABLE name, {LAG_OF_NAMES} FROM customers;"})

Edits = list[tuple[str, dict[str, str]]]


def other(*names: str) -> Edits:
    return [(OTHER[name][0], OTHER[name][1]) for name in names]


EDITS: dict[str, Edits] = {
    "an alias, also of a view; names inside a view": [
        SAME[name] for name in ("an alias", "the alias of a view", "names inside a view", "an alias in windows")
    ],
    "a name of an output": [SAME["a name of an output"]],
    "the order of outputs": [SAME["the order of outputs"]],
    "what SELECT computes from columns that are kept": [SAME["an output computed otherwise"]],
    "a column that is kept, but was not shown: a key, an event time, a part of the condition": [
        (JOIN, {"d.ts\nFROM": "d.ts, o.ts AS ordered, d.order_id\nFROM"}),
        (SHOWN, {"o.id,": "o.id, o.customer,"}),
    ],
    "a part of WHERE that stays behind the last join": [SAME["WHERE above the last join"]],
    "comments, layout and capitals": [SAME[name] for name in ("comments and layout", "small letters")],
    "where the result is a table: what SELECT shows, or a part of WHERE behind the last join or grouping": [
        (GROUPED, {r"count\(\*\) AS n": "count(*) + 1 AS n"}),
        (GROUPED, {r"o.city AS city": "upper(o.city) AS city"}),
        (GROUPED, {r"GROUP BY o.city": "GROUP BY o.city HAVING count(*) > 1"}),
    ],
    "a declared column that the query does not read; another name of a type": [
        SAME[name] for name in ("a column that nobody reads", "a synonym of a type")
    ],
    "options of speed and of access, such as `maxFilesPerTrigger`": [
        SAME[name] for name in ("rates", "settings of Kafka's client")
    ],
    "`watersmeet.state.max_rows`": [SAME["limits"]],
    "`watersmeet.table.retention`": [
        (LOOKUP, {"SELECT STREAM": "SET watersmeet.table.retention = 5 minutes;\nSELECT STREAM"})
    ],
    "options of a sink, but for its format and where it writes": [(SINK, {"'/out'": "'/out', compression 'gzip'"})],
    "how long `IDLE AFTER` is": [
        (edit_sql(JOIN, {IDLE: r"\1 IDLE AFTER 1 MINUTE"}), {"AFTER 1 MINUTE": "AFTER 2 MINUTES"})
    ],
    "a longer bound of an interval join": other("a lower bound", "an upper bound, under another alias"),
    "a shorter bound of an interval join": [
        (JOIN, {"INTERVAL 1 HOUR": "INTERVAL 30 MINUTES"}), (VIEW, {"10 MINUTES": "2 MINUTES"}),
    ],
    "a bound that becomes strict": [
        (edit_sql(JOIN, {r"BETWEEN o.ts - INTERVAL 5 MINUTES AND": ">= o.ts AND d.ts <="}), {"<= o.ts": "< o.ts"})
    ],
    "a longer lag": [*other("a lag"), (ASOF, {LAG: r"\1 50"})],
    "a shorter lag": [(JOIN, {LAG: r"\1 2"})],
    "a column of an interval join that is no longer selected or used": [
        (JOIN, {r"upper\(o.city\) AS city, ": ""})
    ],
    "a column that was not kept": other("a column more"),
    "a part of WHERE that moves before a join": other("a filter that moves before the join", "a filter of a view"),
    "another key": other("a key", "a further key"),
    "another kind of join": other("the kind"),
    "a join more": other("a join more"),
    "another condition besides keys and bounds": [(CONDITION, {"<= d.customer|< d.customer": "> d.customer"})],
    "a window of another size, or another limit on its partitions": [
        *other("a window"), (WINDOWED, {"COUNT 5": "COUNT 3"}),
        (LIMITED, {"COUNT 100": "COUNT 50"}), (LIMITED, {"PARTITION COUNT": "TUPLE COUNT"}),
    ],
    "a window of another kind, with other partitions, or a limit on them more or less": [
        (LIMITED, {" PARTITION COUNT 100": ""}), (LIMITED, {"PARTITION COUNT 100": "PARTITION AGE 10s"}),
        (WINDOWED, {"COUNT 10": "TIME 10s"}), (WINDOWED, {"PARTITION BY id": "PARTITION BY id, city"}),
    ],
    "another tolerance of an as-of join": [
        *other("how far a version may be"), (ASOF, {"WITHIN 1 HOUR": "WITHIN 1 MINUTE"}),
        (edit_sql(ASOF, {"o.ts >= d.ts": "o.ts <= d.ts"}), {"WITHIN 1 HOUR": "WITHIN 2 HOURS"}),
    ],
    "whether rows wait for table rows that come late: `watersmeet.table.late`": [
        (LOOKUP, LATE),
        (edit_sql(LOOKUP, LATE), {"= ignore": "= reemit"}),
    ],
    "what a sync join does with rows out of order: `watersmeet.sync.disorder`": [
        (SYNC, {"SELECT STREAM": "SET watersmeet.sync.disorder = error;\nSELECT STREAM"})
    ],
    "where the result is a table, another aggregate, or something else to group by": other(
        "an aggregate more", "what rows are grouped by"
    ),
    "where groups come out once, another aggregate, or something else to group by": [
        (ONCE, {r"count\(\*\) AS n": "count(*) AS n, max(o.id) AS most"}), (ONCE, {"o.city,": "o.customer,"}),
        (DISTINCT, {"id FROM": "city FROM"}),
    ],
    "window functions over a stream: a shorter frame, another bound of LEAD, a function less, or one that reads rows "
    "that are kept": [(FRAMED, {"ROWS 9": "ROWS 4"}), (FRAMED, {"WITHIN 1 HOUR": "WITHIN 2 HOURS"}),
                      (FRAMED, {r"max\(id\)": "min(id)"})],
    "window functions over a stream: a longer frame, or a function of more rows than are kept": [
        (FRAMED, {"ROWS 9": "ROWS 10"}), (FRAMED, {"OVER nine": "OVER w"}),
    ],
    "window functions over a table: other functions, frames or another order of columns that are kept": [
        (RANKED, {r"lag\(name\)": "lead(name)"}), (RANKED, {"ORDER BY name": "ORDER BY name DESC"}),
    ],
    "`IDLE AFTER` in a join where no side of it had it": [
        *other("an idle side"), (CHAIN, {r"(?s)(clicks \(.*?ts - INTERVAL 5 MINUTES)": r"\1 IDLE AFTER 1 MINUTE"}),
        (CHAIN, {IDLE: r"\1 IDLE AFTER 1 MINUTE"}),
    ],
    "`IDLE AFTER` in no side of a join where one had it": [
        (edit_sql(JOIN, {IDLE: r"\1 IDLE AFTER 1 MINUTE"}), {" IDLE AFTER 1 MINUTE": ""}),
        (edit_sql(CHAIN, {IDLE: r"\1 IDLE AFTER 1 MINUTE"}), {" IDLE AFTER 1 MINUTE": ""}),
    ],
    "another source, path, topic or format of a source": other("a path", "a format", "a topic", "another source"),
    "the type of a column that is kept": other("a type"),
    "the history of a stream, but for [one of files that was read](reference/sql.md#history-then-live)": [
        (CLICKS, {r"(?s)(USING kafka OPTIONS \(.*?\))": r"\1 AFTER orc OPTIONS (path '/old', until '2026-03-01')"})
    ],
    "the number of shards": [],
}  # fmt: skip


def edit(before: str, edits: dict[str, str], marks: list[dict[str, int]] | None = None) -> Edit:
    return classify_edit(identify(before), identify(edit_sql(before, edits)), change_rules(), marks, gives_table)


def test_the_table_has_every_edit_that_is_tried() -> None:
    assert set(TABLE) == set(EDITS)
    assert (
        classify_edit(identify(JOIN), identify(JOIN, 2), change_rules(), None, gives_table).kind
        == TABLE["the number of shards"]
    )


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_of_the_class_that_the_page_says(name: str) -> None:
    for before, edits in EDITS[name]:
        found = edit(before, edits)
        assert (found.kind, bool(found.effects)) == (TABLE[name], TABLE[name] == "continued")


OUTCOMES = {
    "what SELECT computes from columns that are kept",
    "a column that is kept, but was not shown: a key, an event time, a part of the condition",
    "a part of WHERE that stays behind the last join",
    "`watersmeet.state.max_rows`",
    "`watersmeet.table.retention`",
    "how long `IDLE AFTER` is",
}


@pytest.mark.parametrize("name", [name for name in EDITS if TABLE[name] == "free"])
def test_a_free_edit_may_change_what_becomes_of_rows(name: str) -> None:
    for before, edits in EDITS[name]:
        plans = [plan_of(text) for text in (before, edit_sql(before, edits))]
        names = [{output.name for output in plan.outputs} for plan in plans]
        is_changed = changes_outcomes(*(outcome_digest(plan, "UTC") for plan in plans))
        assert is_changed == (name in OUTCOMES or names[0] != names[1])


def test_time_zone_may_change_what_becomes_of_rows() -> None:
    assert changes_outcomes(*(outcome_digest(plan_of(JOIN), zone) for zone in ("UTC", "Europe/Berlin")))


def test_outcomes_of_an_earlier_version_are_not_compared() -> None:
    now = outcome_digest(plan_of(JOIN), "UTC")
    assert not any(changes_outcomes(before, now) for before in ("", now.removeprefix("2:"), now))


HOUR = 3_600_000_000


def test_effects_are_reported_with_their_times() -> None:
    marks = [{"0.ts": 5 * HOUR, "1.ts": 6 * HOUR}]
    (longer,) = edit(JOIN, {"INTERVAL 1 HOUR": "INTERVAL 2 HOURS"}, marks).effects
    assert longer.consequence.startswith(
        "rows of `o` with `o.ts` before 1970-01-01 05:00:00 were removed and do not come back"
    )
    (shorter,) = edit(JOIN, {"INTERVAL 1 HOUR": "INTERVAL 30 MINUTES"}, marks).effects
    assert shorter.consequence.startswith(
        "rows of `o` with `o.ts` before 1970-01-01 05:30:00 are removed with the next batch;"
    )
    (padded,) = edit(
        edit_sql(JOIN, {"orders o JOIN": "orders o LEFT JOIN"}), {"INTERVAL 1 HOUR": "INTERVAL 30 MINUTES"}, marks
    ).effects
    assert "05:30:00 are removed with the next batch, and emitted if unmatched" in padded.consequence
    (lag,) = edit(JOIN, {LAG: r"\1 65"}, marks).effects
    assert lag.consequence == (
        "the watermark of `o.ts` stays at 1970-01-01 05:00:00 until a row later than 1970-01-01 06:05:00 arrives; "
        "older rows are late"
    )
    (none,) = edit(JOIN, {"INTERVAL 1 HOUR": "INTERVAL 2 HOURS"}, [{}]).effects
    assert none.consequence.startswith("no row of it has expired yet")


def test_another_query_of_the_same_sources_is_no_table_and_reads_no_other_source() -> None:
    assert edit(JOIN, {r"orders o JOIN": "orders o LEFT JOIN"}).kind == "rebuilt"
    less = classify_edit(identify(CHAIN), identify(JOIN), change_rules(), None, gives_table)
    assert (less.kind, less.difference) == ("rebuilt", "it had 3 sources, now it has 2")


def test_of_two_edits_the_one_that_cannot_be_accepted_is_reported() -> None:
    found = edit(JOIN, {"INTERVAL 1 HOUR": "INTERVAL 2 HOURS", r"orders o JOIN": "orders o LEFT JOIN"})
    assert (found.kind, found.difference) == ("rebuilt", "the join of `o` and `d` was `inner`, now it is `left`")


def test_clicks_of_kafka_may_have_another_bound() -> None:
    assert edit(CLICKS, {"1 HOUR": "2 HOURS"}).kind == "continued"


VERSIONED = """
CREATE STREAM orders (item STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL 5 MINUTES)
USING parquet OPTIONS (path '/data/orders');
CREATE TABLE prices (
  item STRING, price BIGINT, since TIMESTAMP, PRIMARY KEY (item), WATERMARK FOR since AS since - INTERVAL 5 MINUTES
) USING parquet OPTIONS (path '/data/prices');
SELECT STREAM o.item, p.price FROM orders o JOIN prices FOR SYSTEM_TIME AS OF o.ts AS p ON o.item = p.item;
"""


def test_deletes_of_a_versioned_table_count_once_that_is_accepted() -> None:
    now = identify(VERSIONED)
    identity = json.loads(json.dumps(now.identity))
    versions = identity["stages"][0]["operator"]["ports"][1]
    versions["stored"].remove("#void")
    del versions["upsert_key"]
    found = classify_edit(replace(now, identity=identity), now, change_rules(), None, gives_table)
    assert found.kind == "continued"
    assert [one.change for one in found.effects] == [
        "deletes of `p` were ordinary versions, now they end the version before"
    ]
    # The other way round nothing says which of the versions are deletes.
    assert classify_edit(now, replace(now, identity=identity), change_rules(), None, gives_table).kind == "rebuilt"


WINDOWS = """
CREATE STREAM bids (auction BIGINT, price BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 MINUTES)
USING parquet OPTIONS (path '/data/bids');
CREATE VIEW windowed AS SELECT STREAM auction, price, window_start, window_end
FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL '10' MINUTES));
"""


@pytest.mark.parametrize(
    "query",
    [
        "SELECT TABLE window_start, count(*) AS n FROM windowed GROUP BY window_start;",
        "SELECT TABLE window_end, auction, count(*) AS n FROM windowed GROUP BY auction, window_end;",
        "SELECT TABLE DISTINCT auction, window_start FROM windowed;",
        "SELECT TABLE * FROM windowed QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY price) = 1;",
    ],
)
def test_groups_of_ended_windows_are_removed_once_that_is_accepted(query: str) -> None:
    now = identify(WINDOWS + query)
    identity = json.loads(json.dumps(now.identity))
    stage = identity["stages"][0]
    assert stage["ports"][0]["lags"] == {"0.at": 300_000_000}
    stage["ports"][0]["lags"] = {}
    stage["operator"].pop("window", None)
    for name in ("time", "times"):
        del stage["operator"]["ports"][0][name]
    found = classify_edit(replace(now, identity=identity), now, change_rules(), None, gives_table)
    assert found.kind == "continued"
    assert [one.change for one in found.effects] == [
        "groups of windows of `bids` were kept forever, now each is removed once its window has ended"
    ]
    # The other way round, groups would be missing.
    back = classify_edit(now, replace(now, identity=identity), change_rules(), None, gives_table)
    assert back.kind == "refused"
    # Another lag is not the only thing that differs.
    stage["operator"]["changes"] = True
    found = classify_edit(replace(now, identity=identity), now, change_rules(), None, gives_table)
    assert found.kind == "refused"


def test_groups_that_come_out_once_do_not_continue_as_a_table() -> None:
    grouped = "auction, count(*) AS n FROM bids GROUP BY auction, window(at, '1 hour');"
    table, stream = (identify(f"{WINDOWS} SELECT {kind} {grouped}") for kind in ("TABLE", "STREAM"))
    for was, now, before, after in ((table, stream, "table", "stream"), (stream, table, "stream", "table")):
        found = classify_edit(was, now, change_rules(), None, gives_table)
        assert found.kind == "refused"
        assert found.difference.startswith(f"the result of the groups was a {before}")
        assert f"now it is a {after}" in found.difference
    lagged = identify(f"{WINDOWS} SELECT STREAM {grouped}".replace("5 MINUTES", "9 MINUTES"))
    assert classify_edit(stream, lagged, change_rules(), None, gives_table).kind == "continued"


FRAMES = """
SELECT STREAM auction, at, sum(price) OVER w AS total, lead(price) OVER w AS next,
  avg(price) OVER (PARTITION BY auction ORDER BY at ROWS 9 PRECEDING) AS mean,
  max(price) OVER (PARTITION BY auction ORDER BY at RANGE INTERVAL 1 HOUR PRECEDING) AS most
FROM bids WINDOW w AS (PARTITION BY auction ORDER BY at) WITHIN 10 MINUTES;
"""
PRICES = """
CREATE TABLE prices (id BIGINT, item STRING, price BIGINT, PRIMARY KEY (id)) USING delta OPTIONS (path '/prices');
SELECT TABLE id, price, sum(price) OVER (PARTITION BY item ORDER BY price ROWS 9 PRECEDING) AS total FROM prices;
"""


@pytest.mark.parametrize(
    ("text", "edit", "kind", "words"),
    [
        (FRAMES, ("auction, at,", "at AS time, auction AS item,"), "free", ""),
        (FRAMES, ("5 MINUTES", "9 MINUTES"), "continued", "lag of the watermark"),
        (FRAMES, ("ROWS 9", "ROWS 4"), "continued", "`avg(bids.price)` in ROWS 4 PRECEDING is new"),
        (FRAMES, ("ROWS 9", "ROWS 10"), "rebuilt", "`avg(bids.price)` in ROWS 10 PRECEDING was not computed"),
        (FRAMES, ("1 HOUR", "30 MINUTES"), "continued", "`max(bids.price)` in RANGE 30 minutes PRECEDING is new"),
        (FRAMES, ("1 HOUR", "61 MINUTES"), "rebuilt", "`max(bids.price)` in RANGE 1 hour 1 minute PRECEDING was not"),
        (FRAMES, ("avg(price)", "lag(price, 9) OVER w AS l, min(price)"), "continued", "`lag(bids.price, 9)` is new"),
        (FRAMES, ("avg(price)", "lag(price, 10) OVER w AS l, avg(price)"), "rebuilt", "`lag(bids.price, 10)` was not"),
        (
            FRAMES,
            ("sum(price) OVER w AS total,", ""),
            "continued",
            "`sum(bids.price)` in RANGE UNBOUNDED PRECEDING is no",
        ),
        (FRAMES, ("sum(price) OVER w", "count(price) OVER w"), "rebuilt", "`count(bids.price)` in RANGE UNBOUNDED"),
        (FRAMES, ("lead(price)", "lead(price, 3)"), "continued", "`lead(bids.price, 3)` is new"),
        (FRAMES, ("WITHIN 10", "WITHIN 20"), "continued", "the bound of LEAD was 10 minutes, now it is 20 minutes"),
        (FRAMES, ("SELECT STREAM auction, at,", "SELECT STREAM at,"), "free", ""),
        (FRAMES, ("auction ORDER BY", "price ORDER BY"), "rebuilt", "the key was"),
        (FRAMES, ("total, lead", "total, sum(price) OVER (ORDER BY at) AS s, lead"), "rebuilt", "it had 1 joins"),
        (PRICES, ("ROWS 9", "ROWS 4"), "continued", "what the table shows of its rows"),
        (PRICES, ("ORDER BY price", "ORDER BY price DESC"), "continued", "what the table shows of its rows"),
        (
            PRICES,
            ("sum(price)", "lead(id) OVER (PARTITION BY item ORDER BY price) AS next, sum(id)"),
            "continued",
            "what",
        ),
        (PRICES, ("PARTITION BY item", "PARTITION BY price"), "refused", "the key was"),
        (PRICES, ("ORDER BY price", "ORDER BY id % 2"), "refused", "the query now needs"),
    ],
)
def test_window_functions_continue_if_the_state_has_the_rows_that_they_need(
    text: str, edit: tuple[str, str], kind: str, words: str
) -> None:
    text = WINDOWS + text
    assert edit[0] in text
    found = classify_edit(identify(text), identify(text.replace(*edit)), change_rules(), None, gives_table)
    assert found.kind == kind, found
    assert words in f"{found.difference} {' '.join(effect.change for effect in found.effects)}"


def test_a_condition_over_versions_was_a_filter_and_is_none() -> None:
    text = edit_sql(VERSIONED, {"= p.item;": "= p.item AND p.price > 5;"})
    stage = identify(text).identity["stages"][0]
    assert [(port["filters"], len(port["on"])) for port in stage["ports"]] == [([], 0), ([], 1)]
