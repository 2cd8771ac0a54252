"""The changelog join gives what its definition says, batch by batch, wherever batches are cut and it restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.interval.test_duckdb import JOIN, sql
from tests.operators.interval.test_interval import forget_decoded_runs
from tests.operators.strategies import KINDS
from tests.operators.table_strategies import TINY, Changes, JoinExample, changes_of, join_examples, repair

from watersmeet.operators.changelog.definition import ChangelogReference, freeze_bits
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator, TableJoinOperator
from watersmeet.operators.core.changes import OP, ROWS_PER_PIECE, WEIGHT
from watersmeet.operators.core.operator import Port, StateOverflowError
from watersmeet.operators.state import table as state_table
from watersmeet.operators.state.layout import Budget, KeyedRows
from watersmeet.operators.state.table import consolidate_rows
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True,
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def expect_same(drawn: JoinExample, batches: list[Changes], restarts: list[bool]) -> Counter[tuple[Any, ...]]:
    """The kernel gives the definition's changes in every batch; returns their sum."""
    reference, store, join = ChangelogReference(drawn.join), MemoryStore(), drawn.join
    total: Counter[tuple[Any, ...]] = Counter()
    for batch, restart in zip(batches, restarts, strict=True):
        if restart:
            store, join = store.restart(), replace(join)
            forget_decoded_runs()
        emission = join.step(store, drawn.tables(batch), {})
        expected = reference.step(dict(enumerate(batch)))
        found = changes_of(join, emission)
        assert found == expected
        assert emission.report.rows == tuple(len(rows) for rows in batch)
        total.update(found)
    return total


@quick
@given(st.data())
def test_kernel_equals_definition_in_every_batch(data: st.DataObject) -> None:
    drawn = data.draw(join_examples())
    batches = data.draw(drawn.histories())
    expect_same(drawn, batches, [data.draw(st.booleans()) for _ in batches])


@settings(quick, max_examples=examples(15))
@given(st.data())
def test_many_batches_merge_runs_without_a_trace(data: st.DataObject) -> None:
    drawn = data.draw(join_examples())
    drawn = replace(drawn, join=replace(drawn.join, budget=TINY))
    batches = [batch for _ in range(3) for batch in data.draw(drawn.histories())]
    expect_same(drawn, batches, [i % 4 == 3 for i in range(len(batches))])


@quick
@given(st.data())
def test_the_cuts_of_batches_do_not_matter(data: st.DataObject) -> None:
    drawn = data.draw(join_examples())
    batches = data.draw(drawn.histories())
    whole: Counter[tuple[Any, ...]] = Counter()
    for one in (batches, [cut for left, right in batches for cut in ((left, []), ([], right))]):
        found = expect_same(drawn, one, [False] * len(one))
        found.subtract(whole)
        whole = found
    assert not any(whole.values())


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        yield connection


def query(join: TableJoinOperator) -> str:
    parts = [f'"{one}" = "{other}"' for one, other in zip(join.left.keys, join.right.keys, strict=True)]
    parts += [f'NOT "{side.dead}"' for side in (join.left, join.right) if side.dead]
    parts += [sql(join.condition)] if join.condition is not None else []
    names = ", ".join([f'lefts."{name}"' for name in join.left.columns] + [f'"{name}"' for name in join.right.columns])
    return f"SELECT {names} FROM lefts {JOIN[join.kind]} rights ON {' AND '.join(parts) or 'true'}"


def expect_agreement(database: duckdb.DuckDBPyConnection, drawn: JoinExample, batches: list[Changes]) -> None:
    """All changes together make the join of the tables as they are in the end, as another engine sees it."""
    reference, store, join = ChangelogReference(drawn.join), MemoryStore(), drawn.join
    total: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        reference.step(dict(enumerate(batch)))
        total.update(changes_of(join, join.step(store, drawn.tables(batch), {})))
    last = tuple(repair(side, table) for side, table in zip(join.ports, reference.tables, strict=True))
    left, right = (
        [{**dict.fromkeys(names), **row} for row in rows] for names, rows in zip(_names(drawn), last, strict=True)
    )
    full = (left, right)
    reference.step(dict(enumerate(full)))
    total.update(changes_of(join, join.step(store, drawn.tables(full), {})))
    for name, port in (("lefts", 0), ("rights", 1)):
        rows = [row for row, number in reference.tables[port] for _ in range(number)]
        database.register(name, drawn.table(port, rows).select(_plain(port)))
    expected = Counter(tuple(freeze_bits(v) for v in row) for row in database.execute(query(join)).fetchall())
    assert {row: n for row, n in total.items() if n} == expected


def _plain(port: int) -> list[str]:
    return [f"{'lr'[port]}.{name}" for name in ("k", "k2", "v", "t", "dead")]


def _names(drawn: JoinExample) -> list[list[str]]:
    return [drawn.table(port, []).column_names for port in (0, 1)]


@settings(quick, max_examples=examples(30))
@given(st.data())
def test_the_sum_of_all_changes_is_the_join_of_the_tables(
    database: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    drawn = data.draw(join_examples(plain=True))
    expect_agreement(database, drawn, data.draw(drawn.histories()))


def side(s: str, **more: Any) -> Port:
    return Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True, **more)


def changes(s: str, rows: list[tuple[int, str, int]], column: str = WEIGHT) -> pa.Table:
    keys, values, numbers = zip(*rows, strict=True)
    return pa.table({f"{s}.k": keys, f"{s}.v": values, column: pa.array(numbers, pa.int64())})


def weights(join: TableJoinOperator, store: MemoryStore, port: int, rows: list[tuple[int, str, int]]) -> dict[Any, int]:
    column = OP if join.ports[port].upsert_key else WEIGHT
    return dict(changes_of(join, join.step(store, {port: changes("lr"[port], rows, column)}, {})))


def test_the_operator_hands_out_pieces() -> None:
    join = ChangelogJoinOperator("inner", side("l"), side("r"))
    assert not join.can_split_batch
    assert join.extra == (WEIGHT,) and join.result_columns == (("l.k", "l.v"), ("r.k", "r.v"))
    assert (
        join.identity
        == replace(join, budget=TINY).with_limit(5, "fail").identity
        != replace(join, kind="left").identity
    )


def test_weights_multiply() -> None:
    # FT-V6
    join, store = ChangelogJoinOperator("inner", side("l"), side("r")), MemoryStore()
    assert weights(join, store, 0, [(1, "a", 2)]) == {}
    assert weights(join, store, 1, [(1, "b", 3)]) == {(1, "a", 1, "b"): 6}
    assert weights(join, store, 0, [(1, "a", -1)]) == {(1, "a", 1, "b"): -3}


def test_an_upsert_replaces_and_an_equal_one_changes_nothing() -> None:
    join = ChangelogJoinOperator("full", side("l", upsert_key=("l.k",)), side("r", upsert_key=("r.k",)))
    store = MemoryStore()
    assert weights(join, store, 0, [(1, "a", 1), (1, "b", 1)]) == {(1, "b", None, None): 1}
    assert weights(join, store, 1, [(1, "x", 1)]) == {(1, "b", None, None): -1, (1, "b", 1, "x"): 1}
    assert weights(join, store, 1, [(1, "x", 1)]) == {}
    assert weights(join, store, 0, [(1, "b", -1)]) == {(1, "b", 1, "x"): -1, (None, None, 1, "x"): 1}
    assert weights(join, store, 0, [(7, "z", -1)]) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_gone_from_both_tables_leave_no_state(kind: Any) -> None:
    shown = Port((), (), ("r.k",), "r.k", exact=True) if kind in ("semi", "anti") else side("r")
    join, store = ChangelogJoinOperator(kind, side("l"), shown, budget=TINY), MemoryStore()
    for sign in (1, -1):
        for port, s in enumerate("lr"):
            for k in range(9):
                report = join.step(store, {port: changes(s, [(k, "x", sign)])}, {}).report
    assert report.state[0] + report.state[1] <= 4


def test_more_rows_than_the_limit_are_an_error_and_what_cancels_out_does_not_count() -> None:
    join = ChangelogJoinOperator("inner", side("l"), side("r")).with_limit(4, "fail").for_shards(2)
    store = MemoryStore()
    for sign in (1, -1, 1, -1, 1):
        weights(join, store, 0, [(1, "a", sign)])
    with pytest.raises(StateOverflowError):
        weights(join, store, 0, [(2, "a", 1), (3, "a", 1)])
    assert weights(join, store, 1, [(1, "b", 1)]) == {(1, "a", 1, "b"): 1}


def test_a_change_does_not_read_the_other_rows_of_its_own_side() -> None:
    class CountingStore(MemoryStore):
        read = 0

        def get(self, name: str) -> bytes | None:
            value = super().get(name)
            self.read += len(value or b"") if name.startswith("run/") else 0
            return value

    join, store = ChangelogJoinOperator("left", side("l"), side("r")), CountingStore()
    values = [str(i) for i in range(20_000)]
    hot = pa.table({"l.k": np.ones(20_000, np.int64), "l.v": values})
    join.step(store, {0: hot}, {})
    weights(join, store, 1, [(1, "x", 1)])
    forget_decoded_runs()
    store.read = 0
    assert weights(join, store, 0, [(1, "new", 1)]) == {(1, "new", 1, "x"): 1}
    assert 0 < store.read < 2_000


def test_a_large_result_comes_in_pieces() -> None:
    join, store = ChangelogJoinOperator("inner", side("l"), side("r")), MemoryStore()
    for port, s in enumerate("lr"):
        table = pa.table({f"{s}.k": np.ones(800, np.int64), f"{s}.v": [str(i) for i in range(800)]})
        pieces: list[Any] = list(join.stream(store, {port: table}, {}))
    rows = [piece.num_rows for piece in pieces if isinstance(piece, pa.Table)]
    assert sum(rows) == 640_000 and len(rows) > 1


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_one_key_with_many_rows_takes_no_more_memory_than_many_keys(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def count_rows(rows: KeyedRows, is_oldest: bool = True) -> KeyedRows:
        held.append(len(rows))
        return consolidate_rows(rows, is_oldest)

    budget = Budget(block=1_000, balanced=True, chunk=1_000)
    join = ChangelogJoinOperator(kind, side("l"), side("r"), budget=budget)
    store, size, few = MemoryStore(), 20_000, 30
    for start in range(0, size, 4_000):
        values = [str(i) for i in range(start, start + 4_000)]
        join.step(store, {0: pa.table({"l.k": np.ones(4_000, np.int64), "l.v": values})}, {})
    monkeypatch.setattr(state_table, "consolidate_rows", count_rows)
    pieces: list[Any] = list(join.stream(store, {1: changes("r", [(1, f"x{i}", 1) for i in range(few)])}, {}))
    rows = [piece.num_rows for piece in pieces if isinstance(piece, pa.Table)]
    assert sum(rows) == size * few + (size if kind == "full" else 0)
    assert max(rows) < 2 * ROWS_PER_PIECE < sum(rows)
    assert max(held) <= 3 * budget.chunk
