"""What joins tell of a batch: the same, however shards and tasks put it together."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.metrics.metrics import by_join
from watersmeet.metrics.progress import ProgressSchema, progress_of
from watersmeet.operators.core.operator import ShardMetrics, merge_shard_metrics, to_text

quick = settings(derandomize=True, max_examples=examples(200), deadline=None, database=None)
maybe = st.none() | st.integers(-5, 5)
spreads = st.none() | st.dictionaries(st.sampled_from("012"), st.integers(1, 3).map(float))
shards = st.fixed_dictionaries(
    {
        "sum": st.fixed_dictionaries({"rows_left": maybe, "shards": st.just(1)}),
        "highest": st.fixed_dictionaries({"fullest": maybe, "operator": st.just("interval")}),
        "lowest": st.fixed_dictionaries({"watermark:a.t": maybe, "own:a.t": maybe}),
        "sums": st.fixed_dictionaries({"delays": spreads}),
    }
)


@quick
@given(st.lists(shards, min_size=1, max_size=6), st.integers(0, 6))
def test_metrics_are_the_same_however_they_are_merged(told: list[ShardMetrics], cut: int) -> None:
    tasks = [part for part in (told[:cut], told[cut:]) if part]
    found = by_join(to_text("a and b", merge_shard_metrics(part)) for part in tasks)["a and b"]

    def values_of(how: str, name: str) -> list[Any]:
        return [value for one in told if (value := one[how][name]) is not None]

    rows, fullest, mark = (
        values_of("sum", "rows_left"),
        values_of("highest", "fullest"),
        values_of("lowest", "watermark:a.t"),
    )
    assert found["rows_left"] == (sum(rows) if rows else None) and found["shards"] == len(told)
    assert found["fullest"] == (max(fullest) if fullest else None) and found["operator"] == "interval"
    assert found["watermark:a.t"] == (min(mark) if mark else None)
    delays = values_of("sums", "delays")
    ranges = {number for spread in delays for number in spread}
    expected = {number: sum(spread.get(number, 0) for spread in delays) for number in ranges} if delays else None
    assert found["delays"] == expected


def test_the_joins_of_an_operator_have_their_own_numbers_in_the_progress() -> None:
    inner, outer = "watersmeet:a and b#x", "watersmeet:a+b and c#x"
    texts = [
        to_text(inner, {"sum": {"rows_left": 3, "rows_right": 2, "emitted": 2}, "lowest": {"own:b.t": None}}),
        to_text(
            outer,
            {
                "sum": {"rows_left": 2, "rows_right": 5, "emitted": 1},
                "highest": {"cache": 70},
                "lowest": {"watermark:a.t": 7},
            },
        ),
        to_text(
            outer,
            {
                "sum": {"rows_left": 0, "rows_right": 4, "emitted": 3},
                "highest": {"cache": 50},
                "lowest": {"watermark:a.t": 9},
            },
        ),
    ]
    reported = {"batchId": 1, "durationMs": {}, "sources": [], "observedMetrics": {outer: {"reports": texts}}}
    reading = ProgressSchema(feeds={inner: {"left": "a", "right": "b"}, outer: {"right": "c"}}, last=frozenset({outer}))
    found = progress_of("joined", reported, reading)
    assert {name: one.events for name, one in found.operators.items()} == {"a and b": 2, "a+b and c": 4}
    assert (found.sources, found.marks, found.silent) == ({"a": 3, "b": 2, "c": 9}, {"a.t": 7}, frozenset({"b.t"}))
    # All operators of an executor have one cache.
    assert {name: one.cache_bytes for name, one in found.operators.items()} == {"a and b": 0, "a+b and c": 70}
    # Through Spark Connect, values come beside their schema.
    beside = {"values": [texts], "schema": {"fields": [{"name": "reports"}]}}
    assert progress_of("joined", reported | {"observedMetrics": {outer: beside}}, reading) == found
    nothing = progress_of("joined", reported | {"observedMetrics": {outer: {"reports": []}}}, reading)
    assert {name: one.shards for name, one in nothing.operators.items()} == {"a and b": 0, "a+b and c": 0}
