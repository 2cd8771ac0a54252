"""Chains of joins: every executor gives the same, in every batch; and all of it together is what SQL says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.interval.definition import multiset
from watersmeet.physical import QueryPlan, plan_query
from watersmeet.queries import analyze, read_script

quick = settings(
    derandomize=True,
    max_examples=examples(60),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
STREAMS = "abcd"
KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
LEFT_ONLY = ("LEFT SEMI JOIN", "LEFT ANTI JOIN")
SCHEMA = pa.schema([("id", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
Rows = list[tuple[int | None, int | None, int]]


@st.composite
def queries(draw: st.DrawFn, ways: int) -> str:
    """A left-deep chain; each stream is bounded to one before it, by key and time, or by time alone."""
    text = "FROM a"
    shown = ["a"]
    for stream in STREAMS[1:ways]:
        # A SEMI or ANTI JOIN hides its right side, so that nothing later may name it.
        kind = draw(st.sampled_from((*KINDS, *LEFT_ONLY)))
        earlier = draw(st.sampled_from(shown))
        low, high = sorted((draw(st.integers(-4, 4)), draw(st.integers(-4, 4))))
        on = f"{stream}.t BETWEEN {earlier}.t + {low} AND {earlier}.t + {high}"
        if draw(st.integers(0, 3)):
            on += f" AND {stream}.id = {draw(st.sampled_from(shown))}.id"
        text += f" {kind} {stream} ON {on}"
        if kind not in LEFT_ONLY:
            shown.append(stream)
    columns = ", ".join(f"{stream}.{column} AS {stream}_{column}" for stream in shown for column in ("id", "t", "v"))
    return f"SELECT {columns} {text}"


def plan_of(query: str, lag: int) -> QueryPlan:
    columns = f"id BIGINT, t BIGINT, v BIGINT, WATERMARK FOR t AS t - {lag}"
    declared = "".join(f"CREATE STREAM {stream} ({columns});" for stream in STREAMS)
    return plan_query(analyze(read_script(declared + query))[0], OPERATORS)


def rows() -> st.SearchStrategy[Rows]:
    times = st.integers(0, 12) | st.none()
    return st.lists(st.tuples(st.sampled_from((1, 1, 2, None)), times, st.integers(0, 99)), max_size=4)


def batches(ways: int) -> st.SearchStrategy[list[dict[str, Rows]]]:
    return st.lists(st.fixed_dictionaries({s: rows() for s in STREAMS[:ways]}), min_size=1, max_size=4)


def table(given_rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given_rows], SCHEMA)


def stream_tables(batch: dict[str, Rows]) -> dict[str, pa.Table]:
    return {stream: table(batch.get(stream, [])) for stream in STREAMS}


def rows_of(result: pa.Table) -> Counter[Any]:
    return multiset(zip(*(column.to_pylist() for column in result.columns), strict=True))


def test_kernel_equals_definition_in_chains_of_three_and_four() -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ways = data.draw(st.integers(3, 4))
        plan = plan_of(data.draw(queries(ways)), lag=3)
        reference, kernel = LocalQuery(plan, "reference"), LocalQuery(plan, "kernel")
        for batch in data.draw(batches(ways)):
            if data.draw(st.booleans()):
                kernel.restart()
            mark = data.draw(st.dictionaries(st.sampled_from(STREAMS[:ways]), st.integers(0, 14), max_size=2))
            marks = {f"{stream}.t": value for stream, value in mark.items()}
            expected, actual = reference.step(stream_tables(batch), marks), kernel.step(stream_tables(batch), marks)
            assert rows_of(actual.rows) == rows_of(expected.rows)
            assert actual.report.watermarks == expected.report.watermarks
            assert actual.report.state == expected.report.state

    check()


def test_chains_are_what_sql_says() -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ways = data.draw(st.integers(3, 4))
        query = data.draw(queries(ways))
        given_batches = data.draw(batches(ways))
        # The lag is so long that nothing is late: only the end closes lifetimes.
        kernel = LocalQuery(plan_of(query, lag=1000), "kernel")
        end = {f"{stream}.t": END_OF_INPUT for stream in STREAMS[:ways]}
        total: Counter[Any] = Counter()
        for batch in given_batches:
            total += rows_of(kernel.step(stream_tables(batch), {}).rows)
        total += rows_of(kernel.step(stream_tables({}), end).rows)
        with duckdb.connect() as database:
            for stream in STREAMS[:ways]:
                together = [row for batch in given_batches for row in batch[stream]]
                database.register(stream, table(together))
            sql = query.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
            assert total == multiset(database.execute(sql).fetchall())

    check()
