"""Joins of windows: a row is late once all of its windows are over, and joins in those that are open."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import END_OF_INPUT, Emission, Port, PortWindow
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.definition import IntervalReference
from watersmeet.operators.interval.kernel import UNLIMITED, IntervalJoinOperator
from watersmeet.tools.testing import MemoryStore

Row = dict[str, Any]
quick = settings(
    derandomize=True, max_examples=examples(100), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
SIZES = ((10, 10, False), (10, 5, False), (7, 3, False), (12, 4, True))


def window_ends(time: int, size: int, step: int, cumulative: bool) -> list[int]:
    """The ends of the windows of a time, from the longest history of all possible ends."""
    ends = [first + size for first in range(-10 * step, 60, step)]
    if cumulative:
        base = time // size * size
        return [end for end in range(base + step, base + size + 1, step) if end > time]
    return [end for end in ends if end - size <= time < end]


def join_of(kind: str, size: int, step: int, cumulative: bool) -> IntervalJoinOperator:
    def side(s: str) -> Port:
        window = PortWindow(f"{s}.t", f"{s}.e", size, step, cumulative)
        columns = (f"{s}.t", f"{s}.v", f"{s}.e")
        return Port(
            columns, (f"{s}.t",), (f"{s}.e",), f"{s}.e", exact=True, late=columns[:2], ends=(f"{s}.e",), window=window
        )

    lives = (Bound("l.e", "r.t", 0, True), Bound("r.e", "l.t", 0, True))
    return IntervalJoinOperator(kind, side("l"), side("r"), -UNLIMITED, UNLIMITED, (), None, lives)  # pyright: ignore[reportArgumentType]


def unfold(side: str, rows: list[tuple[int, int]], sizes: tuple[int, int, bool]) -> list[Row]:
    return [
        {f"{side}.t": time, f"{side}.v": value, f"{side}.e": end}
        for time, value in rows
        for end in window_ends(time, *sizes)
    ]


def rows_of(emission: Emission) -> list[tuple[Any, ...]]:
    return [one for table in emission.rows for one in zip(*(c.to_pylist() for c in table.columns), strict=True)]


@quick
@given(st.data())
def test_kernel_and_shards_equal_the_definition(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SIZES))
    join = join_of(data.draw(st.sampled_from(("inner", "left", "full"))), *sizes)
    reference, stores = IntervalReference(join), [MemoryStore(), MemoryStore(), MemoryStore()]
    some = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 99)), max_size=4)
    emitted: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        came = [data.draw(some), data.draw(some)]
        before = dict(reference._tracker.received)  # pyright: ignore[reportPrivateUsage]
        rows = {port: unfold("lr"[port], came[port], sizes) for port in (0, 1) if came[port]}
        mark = st.integers(0, 40) | st.just(END_OF_INPUT)
        marks: dict[str, int] = data.draw(st.dictionaries(st.sampled_from(("l.t", "r.t")), mark, max_size=2))
        step = reference.step(rows, marks)
        whole = join.step(stores[0], {port: pa.Table.from_pylist(some) for port, some in rows.items()}, marks)
        assert Counter(rows_of(whole)) == Counter(step.rows)
        assert dict(whole.report.watermarks) == step.watermarks
        assert whole.report.late == tuple(sum(port == p for p, _ in step.late) for port in (0, 1))
        shards = [
            join.step(
                stores[1 + shard],
                {
                    port: pa.Table.from_pylist(own)
                    for port, some in rows.items()
                    if (own := [row for row in some if row[f"{'lr'[port]}.e"] % 2 == shard])
                },
                marks,
            )
            for shard in (0, 1)
        ]
        assert Counter(one for shard in shards for one in rows_of(shard)) == Counter(step.rows)
        shown = [
            (port, one[:2])
            for shard in shards
            for port, table in shard.late
            for one in zip(*(c.to_pylist() for c in table.columns), strict=True)
        ]
        # Each row of the source once, if all of its windows were over before the batch.
        expected = [
            (port, row)
            for port in (0, 1)
            for row in came[port]
            if max(window_ends(row[0], *sizes)) <= before.get(f"{'lr'[port]}.t", -1)
        ]
        assert Counter(shown) == Counter(expected)
        for one in step.rows:
            for place, name in ((0, "l.t"), (3, "r.t")):
                assert one[place] is None or one[place] >= emitted.get(name, 0)
        emitted |= step.watermarks


@quick
@given(st.data())
def test_rows_of_some_windows_are_late_for_each(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SIZES))
    whole = join_of("left", *sizes)
    left = replace(whole.left, window=replace(whole.left.window, has_all=False))  # pyright: ignore[reportArgumentType]
    join, store = replace(whole, left=left), MemoryStore()
    reference, watermark = IntervalReference(join), -1
    for _ in range(data.draw(st.integers(1, 6))):
        came = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 99)), max_size=4))
        rows = [row for row in unfold("l", came, sizes) if data.draw(st.booleans())]
        marks: dict[str, int] = data.draw(
            st.dictionaries(st.sampled_from(["l.t", "r.t"]), st.integers(0, 40), max_size=2)
        )
        step = reference.step({0: rows} if rows else {}, marks)
        emission = join.step(store, {0: pa.Table.from_pylist(rows)} if rows else {}, marks)
        assert Counter(rows_of(emission)) == Counter(step.rows)
        assert emission.report.late[0] == len(step.late) == sum(row["l.e"] <= watermark for row in rows)
        watermark = max(watermark, marks.get("l.t", -1))


def test_a_row_joins_in_the_windows_that_are_open() -> None:
    sizes = (10, 5, False)
    join, store = join_of("inner", *sizes), MemoryStore()

    def step(left: list[tuple[int, int]], right: list[tuple[int, int]], **marks: int) -> Emission:
        sides = {0: unfold("l", left, sizes), 1: unfold("r", right, sizes)}
        arrivals = {port: pa.Table.from_pylist(rows) for port, rows in sides.items() if rows}
        return join.step(store, arrivals, {name.replace("_", "."): mark for name, mark in marks.items()})

    step([(17, 1)], [(17, 2)], l_t=17, r_t=17)
    found = step([(12, 3)], [])
    assert (found.report.late, rows_of(found)) == ((0, 0), [(12, 3, 20, 17, 2, 20)])
    found = step([(2, 4)], [])
    assert (found.report.late, found.rows) == ((1, 0), ())
    [(port, table)] = found.late
    assert (port, table.select(["l.t", "l.v"]).to_pylist()) == (0, [{"l.t": 2, "l.v": 4}])
    assert replace(join, left=replace(join.left, window=None)).identity == join.identity
