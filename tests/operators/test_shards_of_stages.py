"""Groups, sessions, first rows and latest rows in several shards are what their definitions say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.group import test_finality, test_group, test_sessions
from tests.operators.group.test_finality import changes, forgetful
from tests.operators.latest import test_latest
from tests.operators.sharded import ShardedOperator, with_code
from tests.operators.top import test_top

from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.group.definition import GroupReference
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.latest.definition import LatestReference
from watersmeet.operators.latest.kernel import LatestOperator
from watersmeet.operators.top.definition import TopReference
from watersmeet.operators.top.kernel import TopNOperator

small_sizes = test_sessions.small_sizes
quick = settings(test_group.quick, max_examples=examples(40))
CODE = "#code"
SHARDS = st.sampled_from((2, 4, 7))


def expect_groups(
    sharded: ShardedOperator, reference: GroupReference, table: pa.Table, marks: Mapping[str, int]
) -> None:
    """One batch of a grouping, whose rows carry the code of all keys that are not sessions."""
    grouping = reference.grouping
    coded = with_code(table, CODE, grouping.other_keys)
    emission = sharded.step({0: coded} if table.num_rows else {}, marks)
    step = reference.step({0: table.to_pylist()}, marks)
    assert test_group.row_texts(test_group.tuples(emission.rows)) == test_group.row_texts(step.rows)
    assert emission.report.state == step.state
    assert dict(emission.report.watermarks) == step.watermarks


@quick
@given(st.data())
def test_groups_are_their_definition_in_several_shards(data: st.DataObject) -> None:
    # Without keys there is one group, in one shard.
    drawn = test_group.groupings(changes=data.draw(st.booleans())).filter(lambda grouping: grouping.keys != ())
    grouping = replace(data.draw(drawn), code=CODE)
    if grouping.window_end is not None:
        grouping = replace(grouping, finality_outputs=(("end", 0),))
    sharded, reference = ShardedOperator(grouping, data.draw(SHARDS)), GroupReference(grouping)
    for rows, marks, restarted in data.draw(test_group.histories(grouping)):
        if restarted:
            sharded.restart()
        expect_groups(sharded, reference, test_group.table(rows), marks)


@quick
@given(test_sessions.groupings().filter(lambda grouping: grouping.other_keys != ()), test_sessions.histories(), SHARDS)
def test_sessions_are_their_definition_in_several_shards(
    grouping: GroupByOperator, batches: list[test_sessions.Batch], shards: int
) -> None:
    grouping = replace(grouping, code=CODE)
    sharded, reference = ShardedOperator(grouping, shards), GroupReference(grouping)
    for rows, marks, restarted in batches:
        if restarted:
            sharded.restart()
        expect_groups(sharded, reference, test_sessions.sessions(rows), marks)


@quick
@given(st.data())
def test_the_first_rows_of_groups_are_their_definition_in_several_shards(data: st.DataObject) -> None:
    top = replace(data.draw(test_top.tops().filter(lambda top: top.by != ())), code=CODE)
    sharded, reference = ShardedOperator(top, data.draw(SHARDS)), TopReference(top)
    there: list[dict[str, Any]] = []
    for arrived in data.draw(st.lists(st.lists(test_top.ROWS, max_size=6), min_size=1, max_size=7)):
        rows = [{**row, "#weight": data.draw(st.sampled_from((1, 1, 2)))} for row in arrived]
        gone = data.draw(st.lists(st.sampled_from(there), max_size=4, unique_by=id)) if there else []
        there = [row for row in there if not any(row is other for other in gone)] + rows
        if top.changes:
            rows = data.draw(st.permutations([*rows, *({**row, "#weight": -row["#weight"]} for row in gone)]))
        places = data.draw(st.permutations(range(len(rows))))
        table = test_top.table([{**row, "#position": place} for row, place in zip(rows, places, strict=True)])
        if data.draw(st.booleans()):
            sharded.restart()
        emission = sharded.step({0: with_code(table, CODE, top.by)} if rows else {}, {})
        expected = reference.step({0: table.to_pylist()})
        assert isinstance(expected, Counter)
        assert test_top.row_texts(test_top.changes_of(emission.rows)) == test_top.row_texts(expected)
        assert top.changes or emission.report.state == (reference.stored,)


@quick
@given(test_finality.batches(), st.sampled_from((test_finality.FIRST, test_finality.MOST)), SHARDS, SHARDS, st.data())
def test_final_groups_are_forgotten_in_several_shards(
    batches: list[tuple[list[tuple[int, int]], int | None]],
    behind: TopNOperator | GroupByOperator,
    shards: int,
    behind_shards: int,
    data: st.DataObject,
) -> None:
    counts = replace(test_finality.COUNTS, code=CODE)
    before, after = ShardedOperator(counts, shards), ShardedOperator(replace(behind, code=CODE), behind_shards)
    every = forgetful(behind)
    expected: Any = TopReference(every) if isinstance(every, TopNOperator) else GroupReference(every)
    reference = GroupReference(counts)
    for rows, until in batches:
        for sharded in (before, after):
            if data.draw(st.booleans()):
                sharded.restart()
        table = test_finality.arrivals(rows)
        marks = {} if until is None else {"t": test_finality.mark(until)}
        counted = before.step({0: with_code(table, CODE, counts.keys)} if rows else {}, marks)
        step = reference.step({0: table.to_pylist()}, marks)
        assert dict(counted.report.watermarks) == step.watermarks
        handed_on = pa.concat_tables(counted.rows) if counted.rows else None
        tables = {} if handed_on is None else {0: with_code(handed_on, CODE, ("start",))}
        emission = after.step(tables, counted.report.watermarks)
        right = expected.step({0: [] if handed_on is None else handed_on.to_pylist()}, {})
        if not isinstance(right, Counter):
            right = Counter({row[:-1]: row[-1] for row in map(freeze, right.rows)})
        assert changes(emission.rows) == right
        assert dict(emission.report.watermarks) == step.watermarks


@quick
@given(test_finality.batches(), st.sampled_from(test_finality.KEYED), SHARDS, st.data())
def test_windows_by_their_bounds_are_forgotten_in_several_shards(
    batches: list[tuple[list[tuple[int, int]], int | None]],
    keyed: TopNOperator | GroupByOperator,
    shards: int,
    data: st.DataObject,
) -> None:
    sharded = ShardedOperator(replace(keyed, code=CODE), shards)
    keys = keyed.by if isinstance(keyed, TopNOperator) else keyed.keys
    expected: Any = TopReference(keyed) if isinstance(keyed, TopNOperator) else GroupReference(keyed)
    for rows, until in batches:
        if data.draw(st.booleans()):
            sharded.restart()
        table = test_finality.arrivals(rows)
        marks = {} if until is None else {"t": test_finality.mark(until)}
        emission = sharded.step({0: with_code(table, CODE, keys)} if rows else {}, marks)
        step = expected.step({0: table.to_pylist()}, marks)
        assert changes(emission.rows) == Counter({row[:-1]: row[-1] for row in map(freeze, step.rows)})
        assert sum(emission.report.state) == step.state[0]
        assert dict(emission.report.watermarks) == step.watermarks


KEYS = (("k",), ("k", "j"), ("t",))
LATEST_ROWS = st.builds(
    lambda row, k, t: {**row, "k": k, "t": t},
    test_latest.arrivals,
    st.sampled_from((0.0, -0.0, 1.0, 2.0, math.nan, None)),
    st.sampled_from((*range(6), None)),
)


@quick
@given(st.data())
def test_the_latest_rows_are_their_definition_in_several_shards(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from(KEYS))
    # A key that is a number is its own code, which is NULL where the key is.
    code, exact = ("t", True) if keys == ("t",) else (CODE, False)
    columns = data.draw(st.sampled_from((("k", "j", "v"), ("v", "t"))))
    latest = LatestOperator(
        Port(columns, (), keys, code, exact), append=data.draw(st.booleans()), budget=test_latest.SMALL
    )
    sharded, reference = ShardedOperator(latest, data.draw(SHARDS)), LatestReference(latest)
    for rows in data.draw(st.lists(st.lists(LATEST_ROWS, max_size=6), min_size=1, max_size=7)):
        if data.draw(st.booleans()):
            sharded.restart()
        order = data.draw(st.permutations(range(len(rows))))
        table = test_latest.table([{**row, "#position": place} for row, place in zip(rows, order, strict=True)])
        coded = table if exact else with_code(table, code, keys)
        emission = sharded.step({0: coded} if rows else {}, {})
        assert changes(emission.rows) == reference.step({0: table.to_pylist()})
        assert emission.report.state[0] >= len(reference.rows)
