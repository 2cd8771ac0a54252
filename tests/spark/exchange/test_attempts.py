"""Attempts of a batch leave one state, whatever order records come in, and whichever of them an executor has kept.

Spark repeats a task that failed, elsewhere if it must, even after the state of the batch was committed. The executor of
the first attempt then has a state of that version that is not the one in the checkpoint, and goes on with it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from faults.retries.queries import QUERIES, rows_of, script
from tests.case_files import RUNNING, case_name

from watersmeet.catalog import Source
from watersmeet.local import query
from watersmeet.local.cells import NeedsSparkError, arrow_table, change_table, complete_rows, output_schema
from watersmeet.local.query import BatchOutput, LocalQuery
from watersmeet.operators import OPERATORS, state_schema_of
from watersmeet.operators.core.chain import Link
from watersmeet.operators.core.identity import canonical_json
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.state import cache
from watersmeet.operators.state import format as stored_format
from watersmeet.operators.state.state_schema import ShardInspector
from watersmeet.physical import JoinPlan, QueryPlan, limits_of, plan_query
from watersmeet.physical.identity import assign_names
from watersmeet.queries import analyze, read_script
from watersmeet.spark.exchange import stateful
from watersmeet.spark.exchange.packing import REPORT, ROWS, UNMATCHED, WATERMARKS, from_blobs, to_blob
from watersmeet.spark.exchange.stateful import JoinStage, ShardProcessor, Shards
from watersmeet.tools.testing import read_case
from watersmeet.tools.testing.case import script_of
from watersmeet.tools.testing.execute import arrivals_of

FILES = RUNNING[:: 1 if os.environ.get("WATERSMEET_CASES") == "all" else 6]
BATCHES, ROWS_OF_BATCH = 8, 150
"""So many that runs are merged."""
EXECUTORS = 2
Values = dict[str, bytes]
Change = tuple[str, bytes | None]


class MapState:
    """A map of a stateful processor over a dictionary; ``changes``: what Spark would write to a changelog."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.changes: list[Change] = []

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:
        found = self.values.get(key[0])
        return None if found is None else (found,)

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:
        self.values[key[0]] = bytes(value[0])
        self.changes.append((key[0], bytes(value[0])))

    def removeKey(self, key: tuple[str]) -> None:
        self.values.pop(key[0], None)
        self.changes.append((key[0], None))


@dataclass
class Executor:
    """What an executor has: by operator the version of its local store with that, and decoded blocks."""

    stores: dict[int, tuple[int, Values]] = field(default_factory=dict[int, tuple[int, Values]])
    blocks: cache.RunCache = field(default_factory=cache.RunCache)


class QueryWithRetries(LocalQuery):
    """A query of which every batch has several attempts, on several executors, after each of which its state stays."""

    def __init__(self, plan: QueryPlan, random: Random, patched: pytest.MonkeyPatch) -> None:
        super().__init__(plan, "kernel")
        self.random = random
        self.patched = patched
        self.executors = [Executor() for _ in range(EXECUTORS)]
        self.changelogs: dict[int, list[list[Change]]] = {}

    def restart(self) -> None:
        """All executors end; the checkpoint stays."""
        self.run += 1
        self.executors = [Executor() for _ in range(EXECUTORS)]

    def step_join(self, plan: JoinPlan, tables: dict[int, pa.Table], watermarks: Watermarks) -> BatchOutput:
        changelogs = self.changelogs.setdefault(id(plan), [])
        version = len(changelogs)
        places = {port: _cut(self.random, table) for port, table in tables.items() if table.num_rows}
        size = self.random.choice([0, 300, 1 << 30])
        attempts: list[tuple[MapState, BatchOutput]] = []
        for _ in range(self.random.choice([1, 2, 3])):
            executor = self.random.choice(self.executors)
            kept, values = executor.stores.get(id(plan), (-1, {}))
            # As Spark does it: of a store that has this version nothing is read.
            state = MapState(dict(values) if kept == version else _load(changelogs))
            stepped = self.attempt(plan, tables, watermarks, places, size, state, executor)
            executor.stores[id(plan)] = version + 1, state.values
            attempts.append((state, stepped))
        for state, stepped in attempts:
            assert state.values == attempts[0][0].values
            assert _count_rows(stepped.rows) == _count_rows(attempts[0][1].rows)
        changelogs.append(attempts[-1][0].changes)
        loaded = _load(changelogs)
        assert loaded == attempts[0][0].values
        identity = json.loads(canonical_json(plan.operator.identity))
        look, keeping = ShardInspector(loaded), state_schema_of(plan.operator.name)
        problems = look.problems({name: keeping.spine(identity, name) for name in look.directory.runs})
        assert [problem for problem in problems if "past its limit" not in problem] == []
        return attempts[-1][1]

    def attempt(
        self,
        plan: JoinPlan,
        tables: dict[int, pa.Table],
        marks: Watermarks,
        blobs: Mapping[int, list[bytes]],
        size: int,
        state: MapState,
        executor: Executor,
    ) -> BatchOutput:
        """One attempt: the records come in an order of its own."""
        self.patched.setattr(stateful, "run_group", lambda: f"run {self.run}")
        self.patched.setattr(stateful, "_own", set())
        self.patched.setattr(cache, "run_cache", executor.blocks)
        ports = {port: port for port in tables}
        stage = JoinStage(Link(plan.operator), "a join", "digest", ports, "", ())
        processor: Any = ShardProcessor((stage,), Shards(0, frozenset()), size)
        processor.handle, processor.state = SimpleNamespace(_statefulProcessorApiClient=object()), state
        records = [(port, ROWS, blob) for port, some in blobs.items() for blob in some]
        names = list(marks)
        self.random.shuffle(names)
        told = [{"lowest": False, "marks": {name: marks[name]}} for name in names if not name.startswith("#run")]
        records += [(0, WATERMARKS, json.dumps(one).encode()) for one in told or [{"lowest": False, "marks": {}}]]
        self.random.shuffle(records)
        frame = pd.DataFrame(
            [(0, 0, *record) for record in records],
            columns=pd.Index(["shard", "of", "port", "kind", "blob"]),
            dtype=object,
        )
        cut = self.random.randint(0, len(frame))
        given = [part for part in (frame[:cut], frame[cut:]) if len(part)]
        found = pd.concat(list(processor.handleInputRows((0,), iter(given), None)))
        return self._batch_output(plan, tables, found)

    def _batch_output(self, plan: JoinPlan, tables: dict[int, pa.Table], found: pd.DataFrame) -> BatchOutput:
        schema = output_schema(plan.operator, tables)
        blobs = found["blob"][found["kind"] == ROWS]
        rows = pa.concat_tables([schema.empty_table(), *(from_blobs([blob]).cast(schema) for blob in blobs)])
        (report,) = (
            json.loads(text) for kind, text in zip(found["kind"], found["report"], strict=True) if kind == REPORT
        )
        unmatched = tuple(
            (port, from_blobs([blob]))
            for kind, port, blob in zip(found["kind"], found["port"], found["blob"], strict=True)
            if kind == UNMATCHED
        )
        shown = query._where(complete_rows(plan, rows), plan.post_filters)  # pyright: ignore[reportPrivateUsage]
        return BatchOutput(shown, report["watermarks"], unmatched=unmatched)


def _cut(random: Random, table: pa.Table) -> list[bytes]:
    """The rows of a port as the blobs of several map tasks."""
    (batch,) = table.combine_chunks().to_batches()
    edges = sorted({0, len(batch), *(random.randint(0, len(batch)) for _ in range(random.randint(0, 3)))})
    return [to_blob([batch.slice(start, stop - start)], place=start) for start, stop in pairwise(edges)]


def _load(changelogs: list[list[Change]]) -> Values:
    """What a checkpoint holds."""
    found: Values = {}
    for name, value in (change for changes in changelogs for change in changes):
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def _count_rows(table: pa.Table) -> Counter[Any]:
    return Counter(freeze(tuple(row.values())) for row in table.to_pylist())


@pytest.fixture(params=["whole", "in parts"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store blocks as one value, or in parts, as large blocks are."""
    if request.param == "in parts":
        monkeypatch.setattr(stored_format, "SPLIT_AT", 0)
        monkeypatch.setattr(stored_format, "PART_BYTES", 256)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", QUERIES)
def test_every_attempt_of_a_family_leaves_one_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = read_script(script(name, Path("data")), "query.sql")
    plan = assign_names(plan_query(analyze(parsed)[0], OPERATORS, limits=limits_of(parsed)))
    once, repeated = LocalQuery(plan, "kernel"), QueryWithRetries(plan, Random(name), monkeypatch)
    rows = 0
    for batch in range(BATCHES):
        if batch == BATCHES - 3:
            once.restart()
            repeated.restart()
        arrivals = {source.name: _source_table(source, batch) for source in parsed.sources}
        expected, found = once.step(arrivals, {}), repeated.step(arrivals, {})
        assert _count_rows(found.rows) == _count_rows(expected.rows), f"batch {batch}"
        rows += found.rows.num_rows
    assert rows > BATCHES


def _source_table(source: Source, batch: int) -> pa.Table:
    names = [one.name for one in source.fields]
    given = rows_of(batch, ROWS_OF_BATCH)[source.name]
    if source.kind != "table":
        return arrow_table(source.fields, [[row.get(name) for name in names] for row in given])
    changes = [[row.get("_change", "+"), *(row.get(name) for name in names)] for row in given]
    return change_table(source.fields, changes)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("path", FILES, ids=case_name)
def test_every_attempt_of_a_case_leaves_one_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = read_case(path)
    script = script_of(case)
    plan = assign_names(plan_query(analyze(script)[0], OPERATORS, limits=limits_of(script)))
    once, repeated = LocalQuery(plan, "kernel"), QueryWithRetries(plan, Random(case_name(path)), monkeypatch)
    restarts = [batch.restart for batch in case.batches]
    try:
        for number, (tables, marks) in enumerate(arrivals_of(case, plan, script)):
            if number < len(restarts) and restarts[number]:
                once.restart()
                repeated.restart()
            expected, found = once.step(tables, marks), repeated.step(tables, marks)
            assert _count_rows(found.rows) == _count_rows(expected.rows), f"batch {number}"
    except NeedsSparkError as needed:
        pytest.skip(f"needs Spark: {needed}")
