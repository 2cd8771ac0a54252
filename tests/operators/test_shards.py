"""Operators give in several shards what their definitions give: rows that must meet are routed to one shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators import strategies, window_strategies
from tests.operators.asof import test_asof
from tests.operators.changelog.test_changelog import quick
from tests.operators.interval import test_interval
from tests.operators.lookup import test_lookup
from tests.operators.sharded import Sharded, changed, with_code
from tests.operators.sync import test_sync
from tests.operators.table_strategies import drawn_joins, tuples
from tests.operators.window import test_window_properties

from watersmeet.local.query import MemoryStore
from watersmeet.operators import state_schema_of
from watersmeet.operators.asof.definition import AsofReference
from watersmeet.operators.changelog.definition import ChangelogReference
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator
from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.operator import RUN, Port, StreamOperator
from watersmeet.operators.core.routing import Route, SkewedKeys
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.definition import IntervalReference, multiset
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.lookup.definition import LookupReference
from watersmeet.operators.state.reshard import FINGERPRINT, NULL_KEYS, merge_shards, places_null_keys, split_shard
from watersmeet.operators.sync.definition import SyncReference
from watersmeet.operators.window.definition import WindowReference
from watersmeet.operators.window.kernel import WindowJoinOperator, WindowSpec
from watersmeet.spark.state.rescale import make_shard_assignment


def with_null_codes(tables: dict[int, pa.Table], exact: bool) -> dict[int, pa.Table]:
    """The rows with codes as the exchange has them: an exact key is its own code, which is NULL where the key is."""
    if not exact:
        return tables
    coded: dict[int, pa.Table] = {}
    for port, table in tables.items():
        s = "lr"[port]
        coded[port] = table.set_column(table.column_names.index(f"{s}.code"), f"{s}.code", table.column(f"{s}.k"))
    return coded


@quick
@given(st.data())
def test_a_join_of_tables_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    drawn = data.draw(drawn_joins().filter(lambda one: one.keys != ()))
    reference = ChangelogReference(drawn.join)
    sharded = Sharded(drawn.join, data.draw(st.sampled_from((2, 4, 7))))
    for batch in data.draw(drawn.histories()):
        if data.draw(st.booleans()):
            sharded.restart()
        tables = with_null_codes(drawn.tables(batch), drawn.join.left.exact)
        assert changed(sharded.step(tables, {})) == reference.step(dict(enumerate(batch)))


def plain(side: Port) -> Port:
    return replace(side, upsert_key=())


@quick
@given(st.data())
def test_a_join_without_keys_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    # Upserts need keys, and where both sides are preserved there is one shard.
    drawn = data.draw(drawn_joins(nested=True).filter(lambda one: one.join.kind != "full"))
    drawn = replace(drawn, join=replace(drawn.join, left=plain(drawn.join.left), right=plain(drawn.join.right)))
    routes: tuple[Route, Route] = ("all", "spread") if drawn.join.kind == "right" else ("spread", "all")
    reference, sharded = ChangelogReference(drawn.join), Sharded(drawn.join, 4, routes)
    for batch in data.draw(drawn.histories()):
        assert changed(sharded.step(drawn.tables(batch), {})) == reference.step(dict(enumerate(batch)))


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_an_interval_join_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    join = data.draw(strategies.joins().filter(lambda join: join.left.code is not None or join.kind != "full"))
    # Without keys the side that is not preserved goes to all shards.
    keyless: tuple[Route, Route] = ("all", "time") if join.kind == "right" else ("time", "all")
    reference, sharded = IntervalReference(join), Sharded(join, 7, () if join.left.code else keyless)
    for batch in data.draw(strategies.histories(join)):
        if data.draw(st.booleans()):
            sharded.restart()
        emission = sharded.step(with_null_codes(batch.tables(), join.left.exact), batch.marks)
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        assert test_interval.emitted(emission) == multiset(step.rows)
        assert emission.report.state == step.state
        assert dict(emission.report.watermarks) == step.watermarks


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_an_interval_join_with_skewed_keys_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    """A pair comes out once, an unmatched row of the spread side once, a late row of the copied side once."""
    join = data.draw(strategies.joins().filter(lambda join: join.left.code is not None and join.kind != "full"))
    spread = 1 if join.kind == "right" else data.draw(st.sampled_from((0, 1))) if join.kind == "inner" else 0
    values = tuple(data.draw(st.sets(st.integers(0, 3), max_size=3)))
    column = "code" if join.left.exact else "k"
    skew = (SkewedKeys(f"l.{column}", values, spread != 0), SkewedKeys(f"r.{column}", values, spread != 1))
    shown = [replace(port, columns=tuple(dict.fromkeys((*port.columns, port.keys[0])))) for port in join.ports]
    sharded = Sharded(join, data.draw(st.sampled_from((2, 5))), skew=skew)
    # Rows of one key are spread by all their columns.
    sharded.ports = [replace(port, columns=shown[n].columns) for n, port in enumerate(sharded.ports)]
    reference = IntervalReference(join)
    for batch in data.draw(strategies.histories(join)):
        if data.draw(st.booleans()):
            sharded.restart()
        if data.draw(st.booleans()):
            sharded.stores = rescaled(sharded.stores, data.draw(st.integers(1, 4)), join, skew)
        emission = sharded.step(with_null_codes(batch.tables(), join.left.exact), batch.marks)
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        assert test_interval.emitted(emission) == multiset(step.rows)
        assert dict(emission.report.watermarks) == step.watermarks
        late = Counter((port, row[:-2]) for port, table in emission.late for row in tuples(table))
        assert late == Counter((port, tuple(row[c] for c in join.ports[port].late)) for port, row in step.late)


def test_skewed_keys_are_spread_and_copied() -> None:
    """One key fills all shards of the spread side, and each row of the other side is in each of them."""
    left_port, right_port = (Port((f"{s}.k", f"{s}.v"), (f"{s}.t",), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr")
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join = IntervalJoinOperator("inner", left_port, right_port, -5, 5, bounds)
    sharded = Sharded(join, 4, skew=(SkewedKeys("l.k", (7,)), SkewedKeys("r.k", (7,), is_copied=True)))
    left, right = (
        pa.table({f"{s}.k": pa.array([7] * n), f"{s}.v": pa.array(range(n)), f"{s}.t": pa.array([3] * n)})
        for s, n in (("l", 400), ("r", 3))
    )
    emission = sharded.step({0: left, 1: right}, {})
    assert sum(table.num_rows for table in emission.rows) == 1200
    assert emission.report.state == (400, 12)
    parts = [store.get("directory") for store in sharded.stores]
    assert all(parts), "no shard is empty"
    sharded.stores = rescaled(sharded.stores, 3, join, (sharded.ports[0].skew, sharded.ports[1].skew))
    emission = sharded.step({1: right}, {})
    assert sum(table.num_rows for table in emission.rows) == 1200
    assert emission.report.state == (400, 18)


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_an_asof_join_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    join = data.draw(test_asof.joins())
    reference, sharded = AsofReference(join), Sharded(join, 7, () if join.left.code else ("time", "all"))
    for batch in data.draw(test_asof.histories(join)):
        if data.draw(st.booleans()):
            sharded.restart()
        emission = sharded.step(batch.tables(), batch.marks)
        step = reference.step(batch.dicts(), batch.marks)
        assert Counter(test_asof.tuples(emission.rows)) == Counter(step.rows)
        assert dict(emission.report.watermarks) == step.watermarks


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_a_lookup_join_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    # A limit on rows that wait is divided among the shards.
    join = replace(data.draw(test_lookup.joins()), waiting=None)
    keyless: tuple[Route, Route] = ("all", "spread") if join.table == 0 else ("spread", "all")
    reference, sharded = LookupReference(join), Sharded(join, 7, () if join.left.code else keyless)
    for batch in data.draw(test_lookup.histories(join)):
        if data.draw(st.booleans()):
            sharded.restart()
        step = reference.step(batch.rows(join), batch.marks)
        emission = sharded.step(batch.tables(join), batch.marks)
        assert Counter(test_lookup.tuples(emission.rows)) == Counter(step.rows)
        assert emission.report.state[join.stream_port] == step.state[join.stream_port]


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_a_sync_join_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    # A limit on rows is divided among the shards.
    join = replace(data.draw(test_sync.joins()), max_rows=None)
    routes: tuple[Route, ...] = ("time",) * len(join.ports)
    reference, sharded = SyncReference(join), Sharded(join, 7, routes)
    for batch in data.draw(test_sync.histories(join)):
        if data.draw(st.booleans()):
            sharded.restart()
        emission = sharded.step(batch.tables(), batch.marks)
        step = reference.step(batch.dicts(), batch.marks)
        assert Counter(test_sync.tuples(emission.rows)) == Counter(step.rows)
        late = Counter(port for port, table in emission.late for _ in range(table.num_rows))
        assert late == Counter(port for port, _ in step.late)
        assert emission.report.state == step.state
        assert dict(emission.report.watermarks) == step.watermarks


def is_free(window: WindowSpec) -> bool:
    """Whether a row's stay in the window has nothing to do with other rows."""
    return window.kind == "time" or (window.kind == "count" and window.size == 0)


@st.composite
def window_joins(draw: st.DrawFn) -> tuple[WindowJoinOperator, Sharded]:
    """A window join whose partitions stay together in several shards, and its shards."""
    join = draw(window_strategies.joins(ordered=draw(st.booleans()), limits=False).filter(lambda one: one.left.keys))
    windows: list[WindowSpec] = []
    for s, window in zip("lr", join.windows, strict=True):
        columns = [("k",), ("p", "k"), ("k", "k2"), *[()] * is_free(window)]
        windows.append(replace(window, partition=tuple(f"{s}.{c}" for c in draw(st.sampled_from(columns)))))
    # Without an order, or with windows of time, only one shard knows in which order all rows arrived.
    punctuated = join.punctuated and join.interleaved and all(window.kind != "time" for window in windows)
    join = replace(join, windows=(windows[0], windows[1]), punctuated=punctuated)
    names = [key.removeprefix("l.") for key in join.left.keys]
    sides = list(zip("lr", windows, strict=True))
    chosen = [name for name in names if all(f"{s}.{name}" in (w.partition or (f"{s}.{name}",)) for s, w in sides)]
    shard_by = () if chosen == names else tuple(tuple(f"{s}.{name}" for name in chosen) for s in "lr")
    return join, Sharded(join, draw(st.sampled_from((2, 4, 7))), ("partition", "partition"), shard_by)


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_a_window_join_is_its_definition_in_several_shards(data: st.DataObject) -> None:
    join, sharded = data.draw(window_joins())
    reference = WindowReference(join)
    for batch in data.draw(window_strategies.histories(join)):
        if batch.restarted:
            sharded.restart()
        # After a restart each shard evicts by time once it has a row again, so the run is left out here.
        marks = {name: mark for name, mark in batch.marks.items() if name != RUN}
        tables = with_null_codes(batch.tables(), join.left.exact)
        if not join.left.exact:
            # The code of all keys, of which some may decide about the shard.
            tables = {p: with_code(one, f"{'lr'[p]}.code", join.ports[p].keys) for p, one in tables.items()}
        emission = sharded.step(tables, marks)
        step = reference.step(dict(enumerate(batch.rows)), marks)
        assert Counter(test_window_properties.emitted(emission)) == Counter(step.rows)
        assert Counter(test_window_properties.unmatched(emission)) == Counter(step.unmatched)
        assert (emission.report.state, emission.report.partitions) == (step.state, step.partitions)


def test_rows_with_a_null_key_are_one_partition_in_several_shards() -> None:
    ports = [Port((f"{s}.v",), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr"]
    windows = [WindowSpec("count", 1, None, (f"{s}.k",)) for s in "lr"]
    join = WindowJoinOperator("left", ports[0], ports[1], (windows[0], windows[1]))
    rows = pa.table({"l.k": pa.array([None] * 6, pa.int64()), "l.v": pa.array(range(6))})
    emission = Sharded(join, 4, ("partition", "partition")).step({0: rows}, {})
    # Each row but the last leaves the window of one row without a match.
    assert test_window_properties.emitted(emission) == [(number, None) for number in range(5)]
    assert emission.report.state == (1, 0)


CODES = ("n/a", "none", "?", "-", "7", "unknown", "8", "x")
COMPUTED = ChangelogJoinOperator(
    "left",
    Port(("a.code", "a.v"), (), ("#l0",), "#l0", exact=True, upsert_key=("a.code",)),
    Port(("b.id",), (), ("b.id",), "b.id", exact=True, upsert_key=("b.id",)),
)
"""a LEFT JOIN b ON try_cast(a.code AS BIGINT) = b.id."""


def coded(codes: Sequence[str], op: int = 1, v: int = 1) -> dict[int, pa.Table]:
    """Upserts, or deletes, of rows with these codes."""
    return {0: upserts([(code, op, v) for code in codes])}


def upserts(rows: Sequence[tuple[str, int, int]]) -> pa.Table:
    codes, ops, values = ([row[n] for row in rows] for n in range(3))
    keys = pa.array([int(code) if str(code).isdecimal() else None for code in codes], pa.int64())
    places = pa.array(np.arange(len(rows)))
    columns = [pa.array(codes, pa.string()), pa.array(values, pa.int64()), keys, pa.array(ops, pa.int8()), places]
    return pa.Table.from_arrays(columns, names=["a.code", "a.v", "#l0", OP, POSITION])


@quick
@given(st.lists(st.lists(st.tuples(st.sampled_from(CODES), st.sampled_from((1, 1, -1)), st.integers(0, 2)))), st.data())
def test_rows_with_null_keys_are_taken_back_in_several_shards(
    batches: list[list[tuple[str, int, int]]], data: st.DataObject
) -> None:
    reference, sharded = ChangelogReference(COMPUTED), Sharded(COMPUTED, data.draw(st.integers(2, 4)))
    for rows in batches:
        table = upserts(rows)
        assert changed(sharded.step({0: table}, {})) == reference.step({0: table.to_pylist()})
        if data.draw(st.booleans()):
            shards = data.draw(st.integers(2, 4))
            sharded.stores = rescaled(sharded.stores, shards)


def rescaled(
    stores: list[MemoryStore],
    shards: int,
    operator: StreamOperator = COMPUTED,
    skew: Sequence[SkewedKeys | None] = (None, None),
) -> list[MemoryStore]:
    """The state of an operator in so many shards."""
    ports = [
        {"route": "key", "sharded by": []}
        | ({} if of is None else {"skew": {"column": of.column, "values": of.values, "copied": of.is_copied}})
        for of in skew
    ]
    stage = {"operator": operator.identity, "ports": ports}
    keeping = state_schema_of(operator.name)
    values = [{**store._values, FINGERPRINT: b"f"} for store in stores]  # pyright: ignore[reportPrivateUsage]
    parts = [
        split_shard(one, make_shard_assignment(stage, keeping, shards, (n, len(values))), shards, is_first=not n)
        for n, one in enumerate(values)
    ]
    return [MemoryStore(merge_shards(own, keeping, operator.identity)) for own in zip(*parts, strict=True)]


def test_rows_with_null_keys_are_found_again_after_rescaling() -> None:
    sharded = Sharded(COMPUTED, 3)
    sharded.step(coded(CODES), {})
    assert sum(store.get("directory") is not None for store in sharded.stores) > 1
    sharded.stores = rescaled(sharded.stores, 5)
    gone = changed(sharded.step(coded(CODES, -1), {}))
    assert gone == Counter({(code, 1, None): -1 for code in CODES})


@pytest.mark.parametrize("shards", [1, 2])
def test_a_state_with_null_keys_in_any_shard_is_not_taken_for_its_own(shards: int) -> None:
    before, empty = MemoryStore(), MemoryStore()
    COMPUTED.step(before, coded(CODES), {})
    # With one shard all rows are where they belong.
    assert places_null_keys(COMPUTED, before, shards) is (shards == 1)
    assert places_null_keys(COMPUTED, empty, shards)
    # What says so is kept, also in another number of shards.
    COMPUTED.step(empty, coded(CODES), {})
    assert places_null_keys(COMPUTED, empty, shards)
    assert all(store.get(NULL_KEYS) for store in rescaled([empty], 3))


def test_a_state_without_null_keys_is_its_own() -> None:
    store = MemoryStore()
    COMPUTED.step(store, coded(("7", "8", str(2**63 - 1))), {})
    assert places_null_keys(COMPUTED, store, 2)


def test_hidden_rows_need_not_be_found_again() -> None:
    assert COMPUTED.null_key_spines == (("left", "#l0"),)
    assert replace(COMPUTED, kind="semi").null_key_spines == ()
    weights = replace(COMPUTED, left=replace(COMPUTED.left, upsert_key=()))
    assert weights.null_key_spines == ()
