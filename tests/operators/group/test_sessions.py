"""Sessions: the kernel beside its definition, batches cut anywhere, and DuckDB for all rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.group.test_group import (
    CALLS,
    EPOCH,
    SCHEMA,
    Row,
    aggregates_of,
    expect_same,
    quick,
    rows_of_values,
    table,
    tuples,
)

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core.operator import StateOverflowError
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.group import groups as stored_groups
from watersmeet.operators.group.definition import GroupReference
from watersmeet.operators.group.kernel import Aggregate, GroupByOperator
from watersmeet.operators.state.layout import Budget

WINDOW = pa.struct({"start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")})
GAP = 3
Batch = tuple[list[Row], Mapping[str, int], bool]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and runs so small that a few rows fill several."""
    small = Budget(block=3, merge_at=3, smallest_tier=2, in_order=True, chunk=5)
    monkeypatch.setattr(stored_groups, "BUDGET", small)
    monkeypatch.setattr(stored_groups, "MEMBERS_BUDGET", Budget(block=3, balanced=True, chunk=5))


def sessions(rows: list[Row]) -> pa.Table:
    """The rows, with the session that each brings and its end."""
    given = [{**row, "w": {"start": row["end"], "end": row["end"] + timedelta(seconds=GAP)}} for row in rows]
    ends = [row["w"]["end"] for row in given]
    made = pa.array([row["w"] for row in given], WINDOW)
    plain = table([{**row, "end": end} for row, end in zip(given, ends, strict=True)])
    return plain.append_column("w", made)


@st.composite
def groupings(draw: st.DrawFn) -> GroupByOperator:
    chosen = draw(st.lists(st.sampled_from(CALLS), max_size=5))
    aggregates = aggregates_of(chosen)
    keys = draw(st.sampled_from((("w",), ("k", "w"), ("w", "f"), ("k", "w", "g"))))
    position = draw(st.sampled_from((None, "#position")))
    return GroupByOperator(keys, aggregates, position=position, window_end="end", time="t", session="w")


@st.composite
def histories(draw: st.DrawFn) -> list[Batch]:
    """Batches of rows at the seconds 0 to 30, the mark, and whether all starts again."""
    batches: list[Batch] = []
    seconds = st.integers(0, 30)
    for _ in range(draw(st.integers(1, 7))):
        rows = [
            {**row, "end": EPOCH + timedelta(seconds=draw(seconds))}
            for row in draw(st.lists(rows_of_values, max_size=5))
        ]
        order = draw(st.permutations(range(len(rows))))
        mark = draw(st.none() | seconds)
        marks = {} if mark is None else {"t": mark * 1_000_000}
        batch = [{**row, "#position": place} for row, place in zip(rows, order, strict=True)]
        batches.append((batch, marks, draw(st.sampled_from((False, False, True)))))
    return batches


@settings(quick, max_examples=examples(80))
@given(groupings(), histories())
def test_kernel_equals_definition_in_every_batch(grouping: GroupByOperator, batches: list[Batch]) -> None:
    store, reference = MemoryStore(), GroupReference(grouping)
    for rows, marks, restarted in batches:
        store = store.restart() if restarted else store
        emission = grouping.step(store, {0: sessions(rows)} if rows else {}, marks)
        step = reference.step({0: sessions(rows).to_pylist()}, marks)
        expect_same(grouping, emission, step, rows)


@settings(quick, max_examples=examples(30))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=30), st.data())
def test_all_rows_are_in_the_sessions_that_duckdb_finds(rows: list[tuple[str, int]], data: st.DataObject) -> None:
    grouping = GroupByOperator(("k", "w"), (Aggregate("count", (), "n"),), window_end="end", time="t", session="w")
    store, shown = MemoryStore(), Counter[Any]()
    left = [{"k": k, "end": EPOCH + timedelta(seconds=t)} for k, t in rows]
    while left:
        size = data.draw(st.integers(1, len(left)))
        batch, left = left[:size], left[size:]
        given = sessions([dict.fromkeys(SCHEMA.names) | row for row in batch])
        for k, w, n, weight in tuples(grouping.step(store, {0: given}, {}).rows):
            shown[k, w["start"], w["end"], n] += weight
    there = pa.table({"k": [k for k, _ in rows], "t": [t for _, t in rows]})
    query = f"""
        WITH g AS (SELECT k, t, t - lag(t, 1, -1000) OVER (PARTITION BY k ORDER BY t) > {GAP} AS b FROM there),
             s AS (SELECT k, t, sum(b::INT) OVER (PARTITION BY k ORDER BY t RANGE UNBOUNDED PRECEDING) AS s FROM g)
        SELECT k, min(t), max(t) + {GAP}, count(*) FROM s GROUP BY k, s"""
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        found = database.execute(query).fetchall()
    assert there.num_rows == len(rows)
    at = [EPOCH + timedelta(seconds=second) for second in range(100)]
    assert +shown == Counter((k, at[start], at[end], n) for k, start, end, n in found)


def test_a_row_between_two_sessions_makes_them_one_and_late_rows_are_counted() -> None:
    grouping = GroupByOperator(
        ("w",), (Aggregate("collect_list", ("v",), "vs"),), window_end="end", time="t", session="w"
    )
    store = MemoryStore()

    def step(rows: list[tuple[int, int]], mark: int | None = None) -> tuple[list[Any], tuple[int, ...]]:
        given = [dict.fromkeys(SCHEMA.names) | {"end": EPOCH + timedelta(seconds=t), "v": v} for t, v in rows]
        emission = grouping.step(store, {0: sessions(given)}, {} if mark is None else {"t": mark * 1_000_000})
        found = [
            ((w["start"] - EPOCH).seconds, (w["end"] - EPOCH).seconds, vs, n) for w, vs, n in tuples(emission.rows)
        ]
        return found, emission.report.late

    assert step([(10, 1), (16, 2)]) == ([(10, 13, [1], 1), (16, 19, [2], 1)], (0,))
    merged, late = step([(13, 3)], mark=14)
    assert (sorted(merged), late) == ([(10, 13, [1], -1), (10, 19, [1, 2, 3], 1), (16, 19, [2], -1)], (0,))
    assert step([(11, 4), (12, 5)], mark=19) == ([(10, 19, [1, 2, 3], -1), (10, 19, [1, 2, 3, 5], 1)], (1,))
    assert step([(17, 6)]) == ([(17, 20, [6], 1)], (0,))


def test_sessions_of_one_key_are_found_by_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them share a code: compared each with each, a few thousand of them were millions of pairs."""
    compared: list[int] = []
    is_equal = stored_groups.null_safe_equal
    monkeypatch.setattr(stored_groups, "null_safe_equal", lambda a, b: (compared.append(len(a)), is_equal(a, b))[1])
    grouping = GroupByOperator(("k", "w"), (Aggregate("count", (), "n"),), window_end="end", time="t", session="w")
    store = MemoryStore()

    def step(offset: int) -> list[Any]:
        rows = [
            dict.fromkeys(SCHEMA.names) | {"k": "a", "end": EPOCH + timedelta(seconds=10 * n + offset)}
            for n in range(60)
        ]
        return tuples(grouping.step(store, {0: sessions(rows)}, {}).rows)

    assert len(step(0)) == 60
    assert len(step(1)) == 120
    # Two keys of each session that goes or comes, which is looked for in a few blocks of three.
    assert sum(compared) <= 2 * 120


def test_more_rows_than_allowed_fail_the_batch() -> None:
    grouping = GroupByOperator(("w",), (), max_rows=2, window_end="end", time="t", session="w")
    rows = [dict.fromkeys(SCHEMA.names) | {"end": EPOCH} for _ in range(3)]
    with pytest.raises(StateOverflowError):
        grouping.step(MemoryStore(), {0: sessions(rows)}, {})
    assert freeze(grouping.identity) != freeze(GroupByOperator(("w",), (), window_end="end", time="t").identity)
