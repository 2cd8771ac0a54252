"""What is refused of a stream with a history, before anything is read, and what its edits are called."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.operators import OPERATORS, change_rules
from watersmeet.physical import plan_query
from watersmeet.physical.change import NamedIdentity, classify_edit
from watersmeet.physical.identity import identity_of, scan_words
from watersmeet.queries import analyze, format_script, read_script
from watersmeet.spark.connectors import history

UNTIL = "until '2026-03-01 00:00:00'"
OFFSETS = """startingOffsets '{"orders": {"0": 5}}'"""


def script(
    after: str = f"parquet OPTIONS (path '/archive', {UNTIL})",
    type_: str = "TIMESTAMP",
    more: str = "",
    columns: str = "WATERMARK FOR t AS t",
) -> str:
    topic = f"kafka.bootstrap.servers 'h:1', subscribe 'orders', value.format 'json'{more}"
    stream = f"CREATE STREAM orders (id BIGINT, t {type_}, {columns}) USING kafka OPTIONS ({topic})"
    return f"{stream} AFTER {after}; SELECT STREAM a.id FROM orders a JOIN orders b ON a.id = b.id AND a.t = b.t;"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (script("parquet OPTIONS (path '/archive')"), "`until` is missing"),
        (script("parquet OPTIONS (path '/archive', until 'soon')"), "`soon` is not a time"),
        (script("parquet OPTIONS (path '/archive', until '2026-02-30')"), "`2026-02-30` is not a time"),
        (script("parquet OPTIONS (path '/archive', until '20260301')"), "`20260301` is not a time"),
        (script(type_="BIGINT"), "is not a number, and the event time is BIGINT"),
        (script(type_="DATE"), "is not a date, and the event time is DATE"),
        (
            script("orc OPTIONS (path '/a', until '2026-03-01 00:00:00Z')", type_="TIMESTAMP_NTZ"),
            "has a time zone, and the event time TIMESTAMP_NTZ has none",
        ),
        (script("rate OPTIONS (until '2026-03-01')"), "the rows of rate that exist cannot be listed"),
        (script(more=", startingOffsets 'latest'"), "records that arrive before the topic is first read"),
        (script(f"json OPTIONS (path '/a', malformed 'drop', {UNTIL})"), "`malformed` is said once"),
        (script("parquet OPTIONS (path '/a', until 'offsets')"), "needs the offsets at which the topic begins"),
        (script("parquet OPTIONS (path '/a', until 'offsets')", more=f", {OFFSETS}"), "compares `_offset` of each row"),
        (script(columns="id2 BIGINT"), "orders has no watermarks"),
    ],
)
def test_a_history_without_an_end_or_a_seam_is_refused(text: str, reason: str) -> None:
    with pytest.raises(WatersmeetError) as raised:
        analyze(read_script(text))
    assert any(refusal.condition == "WRONG_OPTION" and reason in refusal.message for refusal in raised.value.refusals)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE TABLE o (id BIGINT) USING json OPTIONS (path 'a') AFTER json OPTIONS (path 'b')", "AFTER of a table"),
        ("CREATE STREAM o (id BIGINT) AFTER json OPTIONS (path 'b')", "expected `USING`"),
        ("CREATE STREAM o (id BIGINT) USING kafka OPTIONS (a 'b') AFTER", "expected a format"),
    ],
)
def test_a_history_without_a_stream_is_refused(text: str, reason: str) -> None:
    with pytest.raises(WatersmeetError, match=reason):
        read_script(f"{text};")


@pytest.mark.parametrize(
    ("after", "type_"),
    [
        ("parquet OPTIONS (path '/a', until '2026-03-01')", "TIMESTAMP"),
        ("delta OPTIONS (path '/a', until '2026-03-01T10:00Z')", "TIMESTAMP"),
        ("csv OPTIONS (path '/a', until '-5')", "BIGINT"),
        ("iceberg OPTIONS (path '/a', until '2026-03-01')", "DATE"),
    ],
)
def test_a_history_may_end_at_any_event_time(after: str, type_: str) -> None:
    (query,) = analyze(read_script(script(after, type_)))
    assert query.relation is not None


def test_a_history_has_a_canonical_layout() -> None:
    formatted = format_script("create stream s (id bigint) using kafka options (a 'b') after orc options (until '1');")
    assert formatted == "CREATE STREAM s (id BIGINT) USING kafka OPTIONS (a 'b') AFTER orc OPTIONS (until '1');\n"


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        (
            script(),
            script("parquet OPTIONS (path '/archive', until '2026-04-01')"),
            "`until` of the history of `orders` was `2026-03-01 00:00:00`, now it is `2026-04-01`",
        ),
        (
            script().partition(" AFTER")[0] + ";" + script().partition(";")[2],
            script(),
            "the source `orders` had no history, now it has one",
        ),
    ],
)
def test_an_edit_of_a_history_is_refused(before: str, after: str, difference: str) -> None:
    queries = [plan_query(analyze(read_script(text))[0], OPERATORS) for text in (before, after)]
    was, now = (NamedIdentity(identity_of(plan, 2), scan_words(plan)) for plan in queries)
    edit = classify_edit(was, now, change_rules())
    assert (edit.kind, edit.difference) == ("refused", difference)


def test_a_broker_that_is_silent_when_a_history_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known of a topic is not taken for whole."""
    monkeypatch.setattr(history, "topic_offsets", lambda spark, options: None)
    (source,) = read_script(script().replace("h:1", "127.0.0.1:1")).sources
    (refusal,) = history.find_gaps(cast("SparkSession", None), [source], is_new=True)
    assert refusal.condition == "BROKER_UNREACHABLE" and refusal.may_be_retried
