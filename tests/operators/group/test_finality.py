"""What is settled behind windows: the kernels that forget it, beside definitions that forget nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators import state_schema_of
from watersmeet.operators.changelog.definition import ChangelogReference
from watersmeet.operators.changelog.kernel import ChangelogJoinOperator
from watersmeet.operators.core.aggregates import Aggregate
from watersmeet.operators.core.condition import Apply, ColumnRef
from watersmeet.operators.core.operator import END_OF_INPUT, Port
from watersmeet.operators.core.order import SortColumn, TopN
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.group.definition import GroupReference
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.state.shard import Kind
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.state.state_schema import ShardInspector
from watersmeet.operators.top.definition import TopReference
from watersmeet.operators.top.kernel import TopNOperator
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(60), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
START = datetime(2026, 3, 1, tzinfo=UTC)
SIZE = 10_000_000

COUNTS = GroupByOperator(
    ("k", "start"), (Aggregate("count", (), "n"),), window_end="end", time="t", finality_outputs=(("start", SIZE),),
)  # fmt: skip
FIRST = TopNOperator(
    ("k", "n", "start"), (SortColumn("n", descending=True),), 1, changes=True, by=("start",), ties=True,
    final_key="start", finality_outputs=(("start", 0),),
)  # fmt: skip
MOST = GroupByOperator(
    ("start",), (Aggregate("max", ("n",), "most"), Aggregate("sum", ("n",), "all")), changes=True, final_key="start",
    finality_outputs=(("start", 0),),
)  # fmt: skip


JOINED = ChangelogJoinOperator(
    "left",
    Port(("l.start", "l.n"), (), ("l.start",), "l.#code"),
    Port(("r.start", "r.n"), (), ("r.start",), "r.#code"),
    Apply(">=", (ColumnRef("l.n"), ColumnRef("r.n"))), final_keys=("l.start", "r.start"),
)  # fmt: skip


BY_START = GroupByOperator(
    ("start",), (Aggregate("count", (), "n"), Aggregate("max", ("k",), "most")), time="t", final_key="start",
    before_end=SIZE, finality_outputs=(("start", SIZE),),
)  # fmt: skip
BY_END = GroupByOperator(
    ("end", "k"), (Aggregate("collect_list", ("k",), "all"),), time="t", final_key="end",
    finality_outputs=(("end", 0),),
)  # fmt: skip
FIRST_OF_STARTS = TopNOperator(
    ("k", "start"), (SortColumn("k", descending=True),), 2, by=("start",), final_key="start", time="t", before_end=SIZE,
    finality_outputs=(("start", SIZE), ("end", 0)),
)  # fmt: skip
FIRST_OF_ENDS = TopNOperator(
    ("k", "end"), (SortColumn("k"),), 1, by=("end",), final_key="end", time="t", finality_outputs=(("end", 0),),
)  # fmt: skip
KEYED = (BY_START, BY_END, FIRST_OF_STARTS, FIRST_OF_ENDS)
"""Rows of windows, by what a window starts or ends at."""


def moment(micros: int) -> datetime:
    return START + timedelta(microseconds=micros)


def arrivals(rows: list[tuple[int, int]]) -> pa.Table:
    """Rows with a key, in windows of ten seconds."""
    starts = [time - time % SIZE for _, time in rows]
    kind = pa.timestamp("us", "UTC")
    return pa.table({
        "k": pa.array([k for k, _ in rows], pa.int64()),
        "start": pa.array([moment(start) for start in starts], kind),
        "end": pa.array([moment(start + SIZE) for start in starts], kind),
    })  # fmt: skip


def mark(micros: int) -> int:
    return micros if micros == END_OF_INPUT else int(START.timestamp()) * 1_000_000 + micros


def changes(tables: tuple[pa.Table, ...]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in tables:
        for *row, weight in zip(*(column.to_pylist() for column in one.columns), strict=True):
            found[tuple(freeze(value) for value in row)] += weight
    return Counter({row: number for row, number in found.items() if number})


def count_read_rows(store: MemoryStore) -> int:
    return sum(block.left for runs in ShardState(store).directory.runs.values() for run in runs for block in run)


def forgetful(operator: Any) -> Any:
    """The same that forgets nothing."""
    timed = {} if operator not in KEYED else {"time": None, "before_end": 0}
    return replace(operator, final_key=None, finality_outputs=(), **timed)


@st.composite
def batches(
    draw: st.DrawFn, keys: int = 4, most: int = 6, ahead: int = 0
) -> list[tuple[list[tuple[int, int]], int | None]]:
    """Rows that arrive within half a minute, in any order, and how far the mark is after each batch: ``ahead``, or not.

    There are so many ``keys``, and at ``most`` so many rows in a batch.
    """
    made: list[tuple[list[tuple[int, int]], int | None]] = []
    at = 0
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.integers(0, 15)) * 1_000_000
        rows = st.tuples(st.integers(0, keys - 1), st.integers(-20, 10).map(lambda s, at=at: at + s * 1_000_000))
        until = at + draw(st.sampled_from((0, ahead)))
        made.append((draw(st.lists(rows, max_size=most)), until if draw(st.integers(0, 3)) else None))
    if draw(st.booleans()):
        made.append(([], END_OF_INPUT))
    return made


@quick
@given(batches(), st.sampled_from((FIRST, MOST)), st.data())
def test_final_groups_are_forgotten_and_results_stay(
    given_: list[tuple[list[tuple[int, int]], int | None]], behind: TopNOperator | GroupByOperator, data: st.DataObject
) -> None:
    groups, behind_, upgraded = MemoryStore(), MemoryStore(), data.draw(st.integers(0, 8))
    counts = GroupReference(forgetful(COUNTS))
    expected: Any = (
        TopReference(forgetful(FIRST)) if isinstance(behind, TopNOperator) else GroupReference(forgetful(MOST))
    )
    for number, (rows, until) in enumerate(given_):
        table = arrivals(rows)
        marks = {} if until is None else {"t": mark(until)}
        # A state from before groups expired continues.
        operator = forgetful(behind) if number < upgraded else behind
        groups, behind_ = (store.restart() if data.draw(st.booleans()) else store for store in (groups, behind_))
        emission = COUNTS.step(groups, {0: table} if rows else {}, marks)
        reference = counts.step({0: table.to_pylist()}, marks)
        assert changes(emission.rows) == Counter({row[:-1]: row[-1] for row in map(freeze, reference.rows)})
        given_rows = {0: pa.concat_tables(emission.rows)} if emission.rows else {}
        told = operator.step(behind_, given_rows, emission.report.watermarks)
        before = given_rows[0].to_pylist() if given_rows else []
        right = expected.step({0: before}, {})
        right = right if isinstance(right, Counter) else Counter({row[:-1]: row[-1] for row in map(freeze, right.rows)})
        assert changes(told.rows) == right
        if until is not None and operator is behind:
            settled = END_OF_INPUT if until == END_OF_INPUT else mark(until) - SIZE
            assert emission.report.watermarks == {"start": settled}
            assert told.report.watermarks == {"start": settled}


VALUES = (None, 0.0, -0.0, 1.5, math.nan, -math.inf)
TOLD = GroupByOperator(
    ("k", "start"), (Aggregate("count", (), "n"), Aggregate("max", ("x",), "most")), window_end="end", time="t",
    finality_outputs=(("start", SIZE),),
)  # fmt: skip


@st.composite
def top_n_operators(draw: st.DrawFn) -> TopNOperator:
    """The first rows of all windows, of each, or of each key, by one or two columns."""
    names = draw(st.lists(st.sampled_from(("n", "most", "k", "start")), min_size=1, max_size=2, unique=True))
    order = tuple(SortColumn(name, draw(st.booleans()), draw(st.booleans())) for name in names)
    columns = draw(st.sampled_from((("k", "n", "most", "start"), ("n",), ("most", "start"))))
    by = draw(st.sampled_from(((), ("start",), ("start",), ("k",), ("most",))))
    own: dict[str, Any] = {"final_key": "start", "finality_outputs": (("start", 0),)} if by == ("start",) else {}
    return TopNOperator(columns, order, draw(st.integers(1, 3)), changes=True, by=by, ties=draw(st.booleans()), **own)


@quick
@given(batches(16, 30, SIZE), top_n_operators(), st.data())
def test_outranked_groups_are_left_out_and_results_stay(
    given_: list[tuple[list[tuple[int, int]], int | None]], behind: TopNOperator, data: st.DataObject
) -> None:
    # Two shards, of which each knows its own rows; a state that was begun when all were handed on goes on.
    assert behind.top_n is not None
    groups, plain = [MemoryStore(), MemoryStore()], [MemoryStore(), MemoryStore()]
    upgraded = data.draw(st.integers(0, 4))
    store, expected = MemoryStore(), TopReference(forgetful(behind))
    for number, (rows, until) in enumerate(given_):
        marks = {} if until is None else {"t": mark(until)}
        operator = TOLD if number < upgraded else TOLD.with_top_n(behind.top_n)
        handed_on, all_rows, settled = list[pa.Table](), list[pa.Table](), dict[str, int]()
        for shard in range(2):
            own = arrivals([row for row in rows if row[0] % 2 == shard])
            values = [data.draw(st.sampled_from(VALUES)) for _ in range(own.num_rows)]
            given_rows = {0: own.append_column("x", pa.array(values, pa.float64()))} if values else {}
            groups[shard] = groups[shard].restart() if data.draw(st.booleans()) else groups[shard]
            emission = operator.step(groups[shard], given_rows, marks)
            handed_on += emission.rows
            settled |= emission.report.watermarks
            all_rows += TOLD.step(plain[shard], given_rows, marks).rows
        assert count_read_rows(groups[0]) == count_read_rows(plain[0])
        store = store.restart() if data.draw(st.booleans()) else store
        shown = behind.step(store, {0: pa.concat_tables(handed_on)} if handed_on else {}, settled)
        right = expected.step({0: [row for table in all_rows for row in table.to_pylist()]}, {})
        assert isinstance(right, Counter)
        assert row_texts(changes(shown.rows)) == row_texts(right)


def row_texts(found: Counter[Any]) -> Counter[str]:
    """The rows as texts, in which NaN equals NaN, and -0.0 what it is counted with."""
    told: Counter[str] = Counter()
    for row, number in found.items():
        told[repr(row).replace("-0.0", "0.0")] += number
    return Counter({row: number for row, number in told.items() if number})


def test_of_windows_that_end_only_the_first_are_handed_on() -> None:
    assert FIRST.top_n is not None
    first = COUNTS.with_top_n(FIRST.top_n)
    rows = [(k, second * 1_000_000) for second in (1, 11, 21) for k in range(9) for _ in range(k // 2 + 1)]
    emission = first.step(MemoryStore(), {0: arrivals(rows)}, {"t": mark(20_000_000)})
    (table,) = emission.rows
    # Of two windows that have ended one each, and all of the one that has not.
    assert Counter(row.second for row in table.column("start").to_pylist()) == {0: 1, 10: 1, 20: 9}
    assert first.identity == COUNTS.identity
    assert forgetful(MOST).with_top_n(TopN((), (), 1)) == forgetful(MOST)


def as_side(side: str, tables: tuple[pa.Table, ...], columns: tuple[str, str]) -> pa.Table:
    """What a stage gave as one side of a join on the start of the window."""
    shown = pa.concat_tables(table.select([*columns, "#weight"]) for table in tables)
    codes = shown.column("start").cast(pa.int64())
    return shown.rename_columns([f"{side}.start", f"{side}.n", "#weight"]).append_column(f"{side}.#code", codes)


@quick
@given(batches(), st.sampled_from(("inner", "left", "full", "semi", "anti")), st.data())
def test_joins_on_what_is_final_forget_it(
    given_: list[tuple[list[tuple[int, int]], int | None]], kind: Kind, data: st.DataObject
) -> None:
    join = replace(JOINED, kind=kind)
    groups, most, joined = MemoryStore(), MemoryStore(), MemoryStore()
    reference, upgraded = ChangelogReference(replace(join, final_keys=None)), data.draw(st.integers(0, 8))
    for number, (rows, until) in enumerate(given_):
        marks = {} if until is None else {"t": mark(until)}
        counted = COUNTS.step(groups, {0: arrivals(rows)} if rows else {}, marks)
        greatest = MOST.step(
            most, {0: pa.concat_tables(counted.rows)} if counted.rows else {}, counted.report.watermarks
        )
        sides = {}
        if counted.rows:
            sides[0] = as_side("l", counted.rows, ("start", "n"))
        if greatest.rows:
            sides[1] = as_side("r", greatest.rows, ("start", "most"))
        known = [{f"{side}.{k}": v for k, v in one.report.watermarks.items()} for side, one in
                 (("l", counted), ("r", greatest))]  # fmt: skip
        operator = replace(join, final_keys=None) if number < upgraded else join
        joined = joined.restart() if data.draw(st.booleans()) else joined
        emission = operator.step(joined, sides, known[0] | known[1])
        given_rows = {port: table.to_pylist() for port, table in sides.items()}
        assert changes(emission.rows) == Counter({row: n for row, n in reference.step(given_rows).items() if n})
        if until == END_OF_INPUT and operator is join and not upgraded:
            assert count_read_rows(joined) == 0


def test_a_joined_state_does_not_grow() -> None:
    groups, most, joined, sizes = MemoryStore(), MemoryStore(), MemoryStore(), list[int]()
    for batch in range(40):
        at = batch * 5_000_000
        counted = COUNTS.step(groups, {0: arrivals([(k, at + k) for k in range(50)])}, {"t": mark(at)})
        greatest = MOST.step(most, {0: pa.concat_tables(counted.rows)}, counted.report.watermarks)
        sides = {0: as_side("l", counted.rows, ("start", "n")), 1: as_side("r", greatest.rows, ("start", "most"))}
        marks = {f"{s}.start": one.report.watermarks["start"] for s, one in (("l", counted), ("r", greatest))}
        emission = JOINED.step(joined, sides, marks)
        sizes.append(count_read_rows(joined))
        assert emission.report.watermarks == marks
    assert max(sizes) <= 4 * 51


@pytest.mark.parametrize("behind", [FIRST, MOST])
def test_a_state_behind_windows_does_not_grow(behind: TopNOperator | GroupByOperator) -> None:
    groups, store, sizes = MemoryStore(), MemoryStore(), list[int]()
    for batch in range(40):
        at = batch * 5_000_000
        table = arrivals([(k, at + k) for k in range(50)])
        emission = COUNTS.step(groups, {0: table}, {"t": mark(at)})
        told = behind.step(store, {0: pa.concat_tables(emission.rows)}, emission.report.watermarks)
        sizes.append(count_read_rows(store))
        assert told.report.late == (0,)
    # One window, and what of another has come and gone but not met yet.
    assert max(sizes) <= 4 * 50 + 2
    assert count_read_rows(groups) <= 3 * 50


@quick
@given(batches(), st.sampled_from(KEYED), st.data())
def test_windows_are_forgotten_by_their_bounds(
    given_: list[tuple[list[tuple[int, int]], int | None]], keyed: TopNOperator | GroupByOperator, data: st.DataObject
) -> None:
    store = MemoryStore()
    expected: Any = TopReference(keyed) if isinstance(keyed, TopNOperator) else GroupReference(keyed)
    for rows, until in given_:
        store = store.restart() if data.draw(st.booleans()) else store
        table, marks = arrivals(rows), {} if until is None else {"t": mark(until)}
        emission = keyed.step(store, {0: table} if rows else {}, marks)
        step = expected.step({0: table.to_pylist()}, marks)
        assert changes(emission.rows) == Counter({row[:-1]: row[-1] for row in map(freeze, step.rows)})
        assert emission.report.late == (len(step.late),)
        assert emission.report.state == step.state
        assert emission.report.watermarks == step.watermarks


@quick
@given(batches(), st.sampled_from(KEYED), st.integers(1, 6), st.data())
def test_a_state_with_all_windows_continues_and_drops_the_ended_ones(
    given_: list[tuple[list[tuple[int, int]], int | None]],
    keyed: TopNOperator | GroupByOperator,
    upgraded: int,
    data: st.DataObject,
) -> None:
    store, forgets_nothing = MemoryStore(), MemoryStore()
    watermark: int | None = None
    for number, (rows, until) in enumerate(given_):
        store = store.restart() if data.draw(st.booleans()) else store
        # Rows that are late for the one that forgets are left out, since the other would count them.
        ends = [mark(time - time % SIZE + SIZE) for _, time in rows]
        rows = [row for row, end in zip(rows, ends, strict=True) if watermark is None or end > watermark]
        table, marks = arrivals(rows), {} if until is None or number < upgraded else {"t": mark(until)}
        operator = forgetful(keyed) if number < upgraded else keyed
        emission = operator.step(store, {0: table} if rows else {}, marks)
        right = forgetful(keyed).step(forgets_nothing, {0: table} if rows else {}, {})
        assert changes(emission.rows) == changes(right.rows)
        watermark = max(watermark or marks["t"], marks["t"]) if marks else watermark
        if operator is keyed and watermark is not None and rows:
            bounds = {row[str(keyed.final_key)] for row in read_all(store, keyed)}
            assert emission.report.late == (0,)
            assert emission.report.state[0] <= 20 * max(len(bounds), 1)
    if watermark is not None:
        last = keyed.step(store, {0: arrivals([(0, 100_000_000)])}, {"t": END_OF_INPUT})
        assert last.report.state == (0,)


def read_all(store: MemoryStore, operator: Any) -> list[dict[str, Any]]:
    look, rows = ShardInspector(store._values), list[dict[str, Any]]()  # pyright: ignore[reportPrivateUsage]
    for spine in look.directory.runs:
        found = look.rows(spine, state_schema_of(operator.name).spine(operator.identity, spine))
        rows += [] if found is None else found.table.to_pylist()
    return rows


@pytest.mark.parametrize("keyed", KEYED)
@pytest.mark.parametrize("begun", [0, 5])
def test_a_state_of_windows_by_their_bounds_does_not_grow(keyed: TopNOperator | GroupByOperator, begun: int) -> None:
    store, sizes, kept = MemoryStore(), list[int](), list[int]()
    for window in range(30):
        at = window * SIZE
        store = store.restart()
        # A state was begun by the one that forgets nothing, or not.
        operator = forgetful(keyed) if window < begun else keyed
        rows = [(k, at + k) for k in range(20)]
        late = [(k, at - 2 * SIZE) for k in range(3)] if window > begun + 2 else []
        emission = operator.step(store, {0: arrivals([*rows, *late])}, {"t": mark(at)} if operator is keyed else {})
        assert emission.report.late == (len(late),)
        sizes.append(count_read_rows(store))
        kept.append(emission.report.state[0])
    assert max(kept[begun:]) <= 20
    # Blocks of the state from before go with the next merge.
    assert max(sizes[begun + 10 :]) <= 4 * 20


def test_a_state_from_before_is_counted_anew() -> None:
    groups, store = MemoryStore(), MemoryStore()
    for batch in range(6):
        at = batch * 10_000_000
        emission = COUNTS.step(groups, {0: arrivals([(0, at), (1, at)])}, {"t": mark(at)})
        operator = forgetful(MOST) if batch < 3 else MOST
        report = operator.step(store, {0: pa.concat_tables(emission.rows)}, emission.report.watermarks).report
        assert report.state == ((batch + 1,) if batch < 3 else (1,))


@pytest.mark.parametrize("behind", [FIRST, MOST])
def test_a_look_shows_nothing_that_is_final(behind: TopNOperator | GroupByOperator) -> None:
    groups, store = MemoryStore(), MemoryStore()
    # The second batch adds to the first window and ends it; its older row lies in a block with one that goes on.
    for rows, at in (([(0, 1_000_000), (0, 11_000_000)], 2_000_000), ([(0, 2_000_000)], 10_000_000)):
        emission = COUNTS.step(groups, {0: arrivals(rows)}, {"t": mark(at)})
        behind.step(store, {0: pa.concat_tables(emission.rows)}, emission.report.watermarks)
    look = ShardInspector(store._values)  # pyright: ignore[reportPrivateUsage]
    keeping = state_schema_of(behind.name)
    for spine in look.directory.runs:
        rows = look.rows(spine, keeping.spine(behind.identity, spine))
        assert rows is not None
        assert [row.second for row in rows.table.column("start").to_pylist()] == [10]


def test_finality_is_not_part_of_an_identity() -> None:
    assert forgetful(FIRST).identity == FIRST.identity
    assert forgetful(MOST).identity == MOST.identity
    assert forgetful(COUNTS).identity == COUNTS.identity
    assert replace(JOINED, final_keys=None).identity == JOINED.identity


@pytest.mark.parametrize("wrong", [{"changes": False}, {"final_key": "k"}])
def test_groups_of_a_table_alone_are_final(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="settled"):
        replace(FIRST, **wrong)
    with pytest.raises(ValueError, match="settled"):
        replace(MOST, **wrong)
