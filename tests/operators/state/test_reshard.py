"""States in another number of shards, taken apart and put together in the middle of every case."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.case_files import RUNNING, case_name
from tests.operators.core.chained import ChainedQuery
from tests.operators.core.test_chain import plan_of, queries, quick, stream_tables
from tests.operators.test_chains import STREAMS, batches, rows_of

from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.query import LocalQuery, MemoryStore
from watersmeet.operators import OPERATORS, state_schema_of
from watersmeet.operators.core.identity import canonical_json
from watersmeet.operators.core.matching import Ints
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.routing import shard_of
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.state.reshard import FINGERPRINT, merge_shards, split_shard
from watersmeet.operators.state.state_schema import ShardInspector, UnevenError
from watersmeet.physical import JoinPlan, QueryPlan, join_plans, limits_of, plan_query
from watersmeet.physical.chaining import chain_groups
from watersmeet.physical.identity import assign_names
from watersmeet.queries import analyze
from watersmeet.spark.state.rescale import is_unsharded, make_shard_assignment
from watersmeet.tools.testing import read_case
from watersmeet.tools.testing.case import script_of
from watersmeet.tools.testing.execute import arrivals_of

FILES = sorted({*RUNNING[::3], *(path for path in RUNNING if path.parent.name in ("over", "deduplicate"))})
DRAWN = 3, 2, 5
"""How many shards there are, one number after the other."""


class ShardedQuery(LocalQuery):
    """A query whose joins run in several shards, as on Spark, and whose states are rescaled."""

    def __init__(self, plan: QueryPlan) -> None:
        super().__init__(plan, "kernel", DRAWN[0])

    def rescale(self, shards: int) -> None:
        for stage in join_plans(self.plan.relation):
            old = [
                self.stores.pop((id(stage), shard)) for shard in range(self.shards) if (id(stage), shard) in self.stores
            ]
            made = old if is_unsharded(identity_of(stage)) or not old else respread(stage, old, shards)
            self.stores |= {(id(stage), shard): store for shard, store in enumerate(made)}
        self.shards = shards


class Chains(ChainedQuery):
    """A query whose joins of one key run as chains, whose states are resharded one by one."""

    def places(self, codes: Ints) -> Ints:
        return shard_of(codes, self.shards)

    def rescale(self, shards: int) -> None:
        found: dict[tuple[int, int], MemoryStore] = {}
        for stage in join_plans(self.plan.relation):
            if (id(stage), 0) in self.shard_stores:
                old = [self.shard_stores[id(stage), shard] for shard in range(self.shards)]
                found |= {(id(stage), shard): one for shard, one in enumerate(respread(stage, old, shards))}
        self.shards, self.shard_stores = shards, found


def respread(plan: JoinPlan, stores: list[MemoryStore], shards: int) -> list[MemoryStore]:
    """The state of a stage in so many shards."""
    stage = identity_of(plan)
    keeping = state_schema_of(stage["operator"]["family"])
    places = make_shard_assignment(stage, keeping, shards)
    old = [dict(store.restart()._values) | {FINGERPRINT: b"f"} for store in stores]  # pyright: ignore[reportPrivateUsage]
    taken = [split_shard(one, places, shards, is_first=not n) for n, one in enumerate(old)]
    made = [merge_shards(own, keeping, stage["operator"]) for own in zip(*taken, strict=True)]
    for one in made:
        look = ShardInspector(one)
        problems = look.problems({name: keeping.spine(stage["operator"], name) for name in look.directory.runs})
        assert [p for p in problems if "past its limit" not in p] == []
    return [MemoryStore(one) for one in made]


def identity_of(plan: JoinPlan) -> Any:
    return json.loads(canonical_json(plan.identity))


def count_rows(table: pa.Table) -> Counter[Any]:
    return Counter(freeze(tuple(row.values())) for row in table.to_pylist())


@pytest.mark.parametrize("path", FILES, ids=case_name)
def test_every_case_gives_the_same_in_other_numbers_of_shards(path: Path) -> None:
    case = read_case(path)
    script = script_of(case)
    plan = assign_names(plan_query(analyze(script)[0], OPERATORS, limits=limits_of(script)))
    whole, sharded = LocalQuery(plan, "kernel"), ShardedQuery(plan)
    try:
        for number, (tables, marks) in enumerate(arrivals_of(case, plan, script)):
            if number:
                sharded.rescale(DRAWN[number % len(DRAWN)])
            expected, actual = whole.step(tables, marks), sharded.step(tables, marks)
            assert count_rows(actual.rows) == count_rows(expected.rows), f"batch {number}"
    except NeedsSparkError as needed:
        pytest.skip(f"needs Spark: {needed}")
    except UnevenError as refused:
        pytest.skip(f"refused: {refused}")


def test_joins_that_are_chained_give_the_same_in_other_numbers_of_shards() -> None:
    together = Counter[int]()

    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ways = data.draw(st.integers(3, 4))
        plan = assign_names(plan_of(data.draw(queries(ways))))
        together[max(map(len, chain_groups(plan.relation)), default=0)] += 1
        reference, chained = LocalQuery(plan, "reference"), Chains(plan, DRAWN[0], 1 << 30)
        for batch in [*data.draw(batches(ways)), {}]:
            if data.draw(st.booleans()):
                chained.rescale(data.draw(st.sampled_from((1, *DRAWN))))
            mark = data.draw(st.dictionaries(st.sampled_from(STREAMS[:ways]), st.integers(0, 14), max_size=2))
            marks = {f"{stream}.t": value for stream, value in mark.items()}
            if not batch:
                marks = {f"{stream}.t": END_OF_INPUT for stream in (*STREAMS[:ways], "q")}
            arrivals = stream_tables(batch)
            assert rows_of(chained.step(arrivals, marks).rows) == rows_of(reference.step(arrivals, marks).rows)

    check()
    assert together[2] and together[3], together
