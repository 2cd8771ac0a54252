"""A look into a stored state finds the rows that are alive, by what the state says of itself."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.strategies import histories, joins

from watersmeet.operators import state_schema_of
from watersmeet.operators.core.condition import Apply, ColumnRef
from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.group.kernel import Aggregate, GroupByOperator
from watersmeet.operators.interval.definition import IntervalReference, multiset
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.latest.kernel import LatestOperator
from watersmeet.operators.state.format import encode_rows
from watersmeet.operators.state.state_schema import ShardInspector, SpineSchema
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def look(store: MemoryStore) -> ShardInspector:
    return ShardInspector(store._values)  # pyright: ignore[reportPrivateUsage]


def spine_schema(operator: object, spine: str) -> SpineSchema:
    identity = json.loads(json.dumps(operator.identity))  # pyright: ignore
    return state_schema_of(identity["family"]).spine(identity, spine)


@quick
@given(st.data())
def test_rows_that_are_alive_are_those_of_the_definition(data: st.DataObject) -> None:
    join = data.draw(joins())
    told = {(b.column, b.other) for b in join.bounds if b.strict} - {
        (join.left.time, join.right.time), (join.right.time, join.left.time)
    }  # fmt: skip
    # Whether other bounds are strict, and which ends rows carry, a plan says in its condition; these joins need not.
    if told or join.end_bounds:
        return
    reference, store = IntervalReference(join), MemoryStore()
    for batch in data.draw(histories(join)):
        reference.step(dict(enumerate(batch.rows)), batch.marks)
        join.step(store, batch.tables(), batch.marks)
        for port, spine in enumerate(("left", "right")):
            found = look(store).rows(spine, spine_schema(join, spine))
            alive = reference._state[port]  # pyright: ignore[reportPrivateUsage]
            names = join.layouts[port].columns
            rows = [] if found is None else found.table.select(list(names)).to_pylist()
            assert multiset(row.values() for row in rows) == multiset([one.row[c] for c in names] for one in alive)
            if found is not None and join.tracks_matches[port]:
                assert sorted(found.matched.to_pylist()) == sorted(one.matched for one in alive)
        assert list(look(store).problems({s: spine_schema(join, s) for s in ("left", "right")})) == []


def join_with_ends() -> IntervalJoinOperator:
    """A join whose left rows carry their ends, as it is planned."""
    left = Port(("l.t", "l.until"), ("l.t",), operands=("l.until",), ends=("l.until",))
    right = Port(("r.t",), ("r.t",))
    condition = Apply("<", (ColumnRef("r.t"), ColumnRef("l.until")))
    bounds = (Bound("r.t", "l.t", 0), Bound("l.t", "r.t", 50))
    return IntervalJoinOperator(
        "left", left, right, 0, 50, bounds, condition, (Bound("l.until", "r.t", 0, strict=True),)
    )


def test_rows_that_carry_their_ends_live_until_then() -> None:
    join, store = join_with_ends(), MemoryStore()
    join.step(store, {0: pa.table({"l.t": [1, 2, 3], "l.until": [10, 30, 90]})}, {"l.t": 3, "r.t": 9})
    found = look(store).rows("left", spine_schema(join, "left"))
    assert found is not None
    assert {mark: until.tolist() for mark, until in found.expiry.items()} == {"r.t": [9, 29, 53]}
    join.step(store, {}, {"r.t": 10})
    found = look(store).rows("left", spine_schema(join, "left"))
    assert found is not None
    assert found.table.column("l.t").to_pylist() == [2, 3]
    of, until = found.nearest({"r.t": 10})
    assert (of.to_pylist(), until.to_pylist()) == (["r.t", "r.t"], [29, 53])


def test_of_a_table_rows_are_merged_and_of_groups_the_newest_counts() -> None:
    latest, store = LatestOperator(Port(("k", "v"), (), ("k",), "k", exact=True), append=True), MemoryStore()
    for value in ("a", "b"):
        latest.step(store, {0: pa.table({"k": [1], "v": [value]})}, {})
    found = look(store).rows("latest", spine_schema(latest, "latest"))
    assert found is not None
    assert found.table.select(["k", "v", "#weight"]).to_pylist() == [{"k": 1, "v": "b", "#weight": 1}]
    grouping, store = GroupByOperator(("k",), (Aggregate("count", (), "n"),)), MemoryStore()
    for keys in (["a", "b"], ["a"]):
        grouping.step(store, {0: pa.table({"k": keys})}, {})
    found = look(store).rows("groups", spine_schema(grouping, "groups"))
    assert found is not None
    assert {row["k"]: row["count()#0"] for row in found.table.to_pylist()} == {"a": 2, "b": 1}


BROKEN = {
    "bytes that are no rows": (lambda name, value: b"gone", "cannot be read"),
    "other rows": (lambda name, value: encode_rows(pa.record_batch({"l.t": [1]})), "its directory counts 3"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_states_are_reported(case: str) -> None:
    broken, said = BROKEN[case]
    join, store = join_with_ends(), MemoryStore()
    join.step(store, {0: pa.table({"l.t": [1, 2, 3], "l.until": [70, 80, 90]})}, {"r.t": 9})
    spines = {"left": spine_schema(join, "left")}
    values = dict(look(store).values)
    assert list(ShardInspector(values).problems(spines)) == []
    (name,) = (name for name in values if name.startswith("run/"))
    (problem,) = ShardInspector({**values, name: broken(name, values[name])}).problems(spines)
    assert said in problem
    (problem,) = ShardInspector({k: v for k, v in values.items() if k != name}).problems(spines)
    assert "is not stored" in problem
    (problem,) = ShardInspector({**values, "run/other": b""}).problems(spines)
    assert "no directory lists it" in problem
    late = {**values, "directory": values["directory"].replace(b'"r.t": 9', b'"r.t": 99')}
    (problem,) = ShardInspector(late).problems(spines)
    assert "past its limit" in problem
