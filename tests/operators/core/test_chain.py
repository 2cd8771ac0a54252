"""Joins that run together give in every batch what each gives by itself, however rows are sharded and batches cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.core.chained import ChainedQuery
from tests.operators.test_chains import KINDS, LEFT_ONLY, STREAMS, Rows, batches, rows_of

from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.physical import JoinPlan, QueryPlan, join_plans, plan_query
from watersmeet.physical.chaining import chain_groups
from watersmeet.queries import analyze, read_script

quick = settings(
    derandomize=True,
    max_examples=examples(120),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TYPES = {"id": pa.int64(), "n": pa.int32(), "k": pa.string(), "t": pa.int64(), "v": pa.int64()}
DECLARED = "id BIGINT, n INT, k STRING, t BIGINT, v BIGINT, WATERMARK FOR t AS t - 3"


@st.composite
def queries(draw: st.DrawFn, ways: int) -> str:
    """A chain over one key, which is compared as text, as a number, or as numbers of two widths."""
    text, shown = "FROM a", ["a"]
    key = draw(st.sampled_from(("id", "k", "n", "mixed")))
    for stream in STREAMS[1:ways]:
        kind = draw(st.sampled_from((*KINDS, *LEFT_ONLY)))
        earlier, other = draw(st.sampled_from(shown)), draw(st.sampled_from(shown))
        low, high = sorted((draw(st.integers(-4, 4)), draw(st.integers(-4, 4))))
        mine, theirs = (key, key) if key != "mixed" else draw(st.sampled_from((("id", "n"), ("n", "id"), ("n", "n"))))
        more = draw(st.sampled_from(("", "", f" AND {stream}.v <> {earlier}.v")))
        text += f" {kind} {stream} ON {stream}.{mine} = {other}.{theirs}{more}"
        text += f" AND {stream}.t BETWEEN {earlier}.t + {low} AND {earlier}.t + {high}"
        shown += [] if kind in LEFT_ONLY else [stream]
    if draw(st.integers(0, 3)) == 0:
        # No other join stands behind it.
        text += f" {draw(st.sampled_from(('LEFT ASOF JOIN', 'ASOF JOIN')))} q MATCH_CONDITION (a.t >= q.t) ON "
        text += "q.k = a.k" if key == "k" else "q.id = a.id" if key == "id" else "q.n = a.n"
        shown.append("q")
    columns = ", ".join(f"{stream}.{column} AS {stream}_{column}" for stream in shown for column in ("id", "t", "v"))
    return f"SELECT {columns} {text}"


def plan_of(query: str) -> QueryPlan:
    declared = "".join(f"CREATE STREAM {stream} ({DECLARED});" for stream in (*STREAMS, "q"))
    return plan_query(analyze(read_script(declared + query))[0], OPERATORS)


def stream_tables(batch: dict[str, Rows]) -> dict[str, pa.Table]:
    """The rows of each stream, with the same key in three types."""
    tables: dict[str, pa.Table] = {}
    for stream in (*STREAMS, "q"):
        # The versions are the rows of the second stream once more, but for those of a key and a time that there is.
        rows = list({row[:2]: row for row in batch.get("b", [])}.values()) if stream == "q" else batch.get(stream, [])
        ids = [row[0] for row in rows]
        texts = [None if one is None else f"k{one}" for one in ids]
        columns = [ids, ids, texts, [row[1] for row in rows], [row[2] for row in rows]]
        arrays = [pa.array(values, type_) for values, type_ in zip(columns, TYPES.values(), strict=True)]
        tables[stream] = pa.Table.from_arrays(arrays, names=list(TYPES))
    return tables


def test_a_chain_gives_in_every_batch_what_its_joins_give_one_by_one() -> None:
    together = Counter[int]()

    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ways = data.draw(st.integers(3, 4))
        plan = plan_of(data.draw(queries(ways)))
        together[max(map(len, chain_groups(plan.relation)), default=0)] += 1
        shards, bytes_per_step = data.draw(st.sampled_from((1, 3))), data.draw(st.sampled_from((0, 1 << 30)))
        reference, chained = LocalQuery(plan, "reference"), ChainedQuery(plan, shards, bytes_per_step)
        for batch in [*data.draw(batches(ways)), {}]:
            if data.draw(st.booleans()):
                chained.restart()
            mark = data.draw(st.dictionaries(st.sampled_from(STREAMS[:ways]), st.integers(0, 14), max_size=2))
            marks = {f"{stream}.t": value for stream, value in mark.items()}
            if not batch:
                marks = {f"{stream}.t": END_OF_INPUT for stream in (*STREAMS[:ways], "q")}
            check_batch(reference, chained, stream_tables(batch), marks)

    check()
    assert together[2] and together[3], together


def check_batch(reference: LocalQuery, chained: ChainedQuery, arrivals: dict[str, pa.Table], marks: Any) -> None:
    expected, actual = reference.step(arrivals, marks), chained.step(arrivals, marks)
    assert rows_of(actual.rows) == rows_of(expected.rows)
    last = chained.reports[len(chained.reports) - 1]
    if last:
        assert actual.report.watermarks == expected.report.watermarks
    if len(last) == chained.shards:
        kept = zip(*(report.state for report in last), strict=True)
        assert tuple(map(sum, kept)) == expected.report.state


def test_reasons() -> None:
    """Why joins do not run together; None: they do."""
    first = "SELECT a.v FROM a {kind} JOIN b ON {on} AND b.t BETWEEN a.t AND a.t + 5 "
    for kind, on, second, apart in (
        ("", "a.id = b.id", "LEFT JOIN c ON c.id = b.id AND c.t BETWEEN b.t AND b.t + 5", ""),
        ("FULL", "a.k = b.k", "FULL JOIN c ON c.k = b.k AND c.t BETWEEN b.t AND b.t + 5", ""),
        ("", "a.id = b.id", "JOIN c ON c.id = b.v AND c.t BETWEEN b.t AND b.t + 5", "its key is another"),
        (
            "",
            "a.id = b.id",
            "JOIN c ON c.id = b.id AND c.k = b.k AND c.t BETWEEN b.t AND b.t + 5",
            "its key is another",
        ),
        ("", "a.id = b.id", "JOIN c ON c.t BETWEEN b.t AND b.t + 5", "without an equality"),
        ("", "a.id = b.id", "JOIN c ON c.id = b.id AND upper(b.k) = 'X' AND c.t BETWEEN b.t AND b.t + 5", "conditions"),
        ("", "a.id = b.id AND a.v < b.v", "JOIN c ON c.id = b.id AND c.t BETWEEN b.t AND b.t + 5", ""),
        (
            "",
            "a.id = b.id AND soundex(a.k || b.k) = 'X'",
            "JOIN c ON c.id = b.id AND c.t BETWEEN b.t AND b.t + 5",
            "Spark",
        ),
    ):
        last = join_plans(plan_of(first.format(kind=kind, on=on) + second).relation)[-1]
        assert last.ports[0].is_chained == (not apart), (on, second, last.ports[0].unchained_reason)
        assert apart in last.ports[0].unchained_reason


def test_a_mark_that_follows_rows_is_requested_from_all_shards() -> None:
    """The third join follows a.t, which the second holds back for rows of another key: another shard does not know."""
    query = "SELECT a.v AS av, d.v AS dv FROM a JOIN b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + 5 "
    query += "JOIN c ON c.id = b.id AND c.t BETWEEN b.t AND b.t + 5 "
    query += "FULL JOIN d ON d.id = b.id AND d.t BETWEEN {}.t AND {}.t + 5"
    joins = {time: join_plans(plan_of(query.format(time, time)).relation)[-1] for time in "abc"}
    assert {time: join.ports[0].is_chained for time, join in joins.items()} == {"a": False, "b": True, "c": True}
    assert "the watermark of a.t" in joins["a"].ports[0].unchained_reason
    plan = plan_of(query.format("a", "a"))
    assert isinstance(plan.relation, JoinPlan)
    ports = (replace(plan.relation.ports[0], is_chained=True), plan.relation.ports[1])
    wrong = replace(plan, relation=replace(plan.relation, ports=ports))
    arrivals = stream_tables({"a": [(1, 0, 1), (9, 50, 2)], "b": [(1, 1, 3), (9, 50, 4)], "d": [(2, 20, 5)]})
    given = [LocalQuery(plan, "reference"), ChainedQuery(plan, 3, 1 << 30), ChainedQuery(wrong, 3, 1 << 30)]
    rows = [rows_of(one.step(arrivals, {"d.t": 60}).rows) for one in given]
    assert rows[0] == rows[1] == Counter()
    assert rows[2] == {(None, 5): 1}
