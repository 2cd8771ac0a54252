"""What follows from marks, where the reviewed corners are."""

from __future__ import annotations

from itertools import permutations

import pyarrow as pa

from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Port
from watersmeet.operators.core.watermarks import Bound, derive_watermarks
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.state import cache
from watersmeet.operators.state.cache import RunCache
from watersmeet.tools.testing import MemoryStore


def test_silent_sources_follow_in_the_declared_order() -> None:
    bounds = [Bound("l1", "r1", 0), Bound("r1", "l1", 0), Bound("l2", "r1", 0)]
    received = {"l1": 1, "l2": 30, "r1": 20}
    active = {NOW: 5, "l1": 0, "r1": 0}
    marks, _ = derive_watermarks({NOW: 10}, [], [("l1", 8), ("r1", 8)], bounds, received, active)
    assert (marks["l1"], marks["r1"]) == (20, 30)


def test_a_pause_of_the_query_is_no_silence_of_its_sources() -> None:
    marks, active = derive_watermarks(
        {NOW: 1000}, [], [("r", 10)], [Bound("l", "r", 0)], {"l": 50, "r": 1}, {NOW: 5, "r": 5}
    )
    assert "r" not in marks
    marks, _ = derive_watermarks({NOW: 1009}, [], [("r", 10)], [Bound("l", "r", 0)], {"l": 50, "r": 1}, active)
    assert "r" not in marks
    marks, _ = derive_watermarks(
        {NOW: 1010}, [], [("r", 10)], [Bound("l", "r", 0)], {"l": 50, "r": 1}, {**active, NOW: 1009}
    )
    assert marks["r"] == 50


def idle_clocks(*batches: tuple[int, str], after: int = 10) -> list[bool]:
    """Whether the column r, which may be idle, is so in each of the batches: a clock and what the batch brings."""
    received, active, found = {"l": 50, "r": 1}, dict[str, int](), list[bool]()
    for clock, brought in batches:
        marks = {NOW: clock} | ({"r": 1} if "r" in brought else {})
        heard, active = derive_watermarks(marks, [], [("r", after)], [Bound("l", "r", 0)], received, active)
        found.append(heard.get("r") == 50)
    return found


def test_a_column_is_idle_where_every_batch_covers_more_than_its_idle_time() -> None:
    # The second of two batches without it proves that the query ran and the column was silent.
    assert idle_clocks((0, "r"), (60, ""), (120, ""), (180, "")) == [False, False, True, True]
    assert idle_clocks((0, "r"), (60, ""), (120, "r"), (180, ""), (240, "")) == [False, False, False, False, True]
    assert idle_clocks((0, "r"), (10, ""), (20, ""), after=10) == [False, False, True]


def test_batches_that_are_long_and_short_by_turns_add_up() -> None:
    assert idle_clocks((0, "r"), (12, ""), (18, ""), (30, ""), (36, "")) == [False, False, False, False, True]


def test_a_restart_does_not_take_away_the_silence_before_it() -> None:
    # Eight are silent before a day's pause, and two after it.
    assert idle_clocks((0, "r"), (8, ""), (1008, ""), (1009, ""), (1010, "")) == [False, False, False, False, True]


def test_a_pause_does_not_end_the_silence_of_a_column_that_is_idle() -> None:
    assert idle_clocks((0, "r"), (5, ""), (10, ""), (1000, ""), (1001, "")) == [False, False, True, True, True]


def test_the_end_of_one_side_is_no_end_of_the_result() -> None:
    side = Port(("r.t", "r.u"), ("r.t", "r.u"))
    bounds = (Bound("l.t", "r.t", 1), Bound("r.t", "l.t", 1))
    join = IntervalJoinOperator("left", Port(("l.t",), ("l.t",)), side, -1, 1, bounds)
    report = join.step(MemoryStore(), {}, {"l.t": 5, "r.t": END_OF_INPUT, "r.u": END_OF_INPUT}).report
    assert report.watermarks == {"l.t": 5, "r.t": 4, "r.u": END_OF_INPUT - 1}


def test_runs_written_under_another_time_zone_still_merge() -> None:
    side = Port(("l.t",), ("l.t",))
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join = IntervalJoinOperator("left", side, Port(("r.t",), ("r.t",)), -5, 5, bounds)
    store = MemoryStore()
    for number in range(6):
        zone = "UTC" if number < 3 else "Europe/Berlin"
        join.step(store, {0: pa.table({"l.t": pa.array([number], pa.timestamp("us", tz=zone))})}, {})
    report = join.step(store, {}, {"r.t": END_OF_INPUT}).report
    assert report.padded == (6, 0)


def test_a_worker_forgets_runs_that_another_one_expired() -> None:
    side = Port(("l.t",), ("l.t",))
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join = IntervalJoinOperator("inner", side, Port(("r.t",), ("r.t",)), -5, 5, bounds)
    store = MemoryStore()
    join.step(store, {0: pa.table({"l.t": [1]})}, {})
    first, cache.run_cache = cache.run_cache, RunCache()
    join.step(store, {}, {"r.t": 100})
    kept, cache.run_cache = len(first.runs), first
    join.step(store, {}, {})
    assert len(cache.run_cache.runs) == kept - 1


def test_of_columns_that_wait_for_each_other_a_silent_one_follows_the_slowest():
    waits = [Bound(one, other, 0) for one, other in permutations("abc", 2)]
    received, active = {"a": 100, "b": 50, "c": 1}, {NOW: 9, "a": 9, "b": 9, "c": 0}

    def mark(marks: dict[str, int], idle: str, received: dict[str, int] = received) -> int | None:
        return derive_watermarks({NOW: 10, **marks}, [], [(i, 8) for i in idle], waits, received, active, slowest=True)[
            0
        ].get("c")

    assert mark({}, "c") == 50
    assert mark({"b": 70}, "c") == 70
    assert mark({}, "c", {"a": 100}) is None
    silent = {NOW: 10, "a": 0, "b": 0, "c": 0}
    assert derive_watermarks({NOW: 11}, [], [("b", 8), ("c", 8)], waits, received, silent, slowest=True)[0]["c"] == 100
    idle = [(name, 8) for name in "abc"]
    assert derive_watermarks({NOW: 11}, [], idle, waits, received, silent, slowest=True)[0]["c"] == 100
