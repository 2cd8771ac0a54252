"""The marks that rows bring into the exchange: of a column, of each part of a union, of each partition."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.operators.core.changes import POSITION
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.spark.exchange import packing
from watersmeet.spark.exchange.columns import FILE
from watersmeet.spark.exchange.packing import (
    MARKED_ROWS,
    PACKED,
    PART,
    PARTITION,
    ROWS,
    WATERMARKS,
    Pack,
    PackWatermarks,
    fold_watermarks,
    from_blobs,
    watermarks_behind,
)
from watersmeet.spark.exchange.stateful import BatchWatermarks
from watersmeet.spark.exchange.store import group_labels, group_members, labels

PARTS = (WatermarkLag("e.t", 1, "e.t#0", 0), WatermarkLag("e.t", 1, "e.t#1", 1))
ALL = {"e.t": [5, 9, None, 1], PART: [0, 0, 1, 1], PARTITION: ["a-0", "a-1", "a-1", None]}


@pytest.mark.parametrize(
    ("names", "lags", "expected"),
    [
        (("e.t",), (WatermarkLag("e.t", 1, "e.t"),), {"e.t": 8}),
        (("e.t", PART), PARTS, {"e.t#0": 8, "e.t#1": 0}),
        (("e.t", PARTITION), (WatermarkLag("e.t", 1, "e.t"),), {"e.t": 0, "e.t#@a-0": 4, "e.t#@a-1": 8}),
        (("e.t", PART, PARTITION), PARTS, {"e.t#0#@a-0": 4, "e.t#0#@a-1": 8, "e.t#1": 0}),
    ],
)
def test_batch_carries_its_watermarks(
    names: tuple[str, ...], lags: tuple[WatermarkLag, ...], expected: dict[str, int]
) -> None:
    pack = Pack(0, "one", None, (1,), lags, None, names)
    packed = pa.Table.from_batches(pack(iter([pa.record_batch({name: ALL[name] for name in names})])))
    (row,) = packed.to_pylist()
    assert row["kind"] == MARKED_ROWS and from_blobs([row["blob"]]).num_rows == 4
    assert json.loads(watermarks_behind(row["blob"])) == {"lowest": False, "marks": expected}


def test_a_row_without_a_key_always_goes_to_the_same_shard() -> None:
    pack = Pack(0, "key", "#l0", tuple(range(4)), (), None, ("a.code", "#l0"), null_keys=("a.code",))

    def shards_of(codes: list[str]) -> dict[str, int]:
        keys = pa.array([int(code) if code.isdecimal() else None for code in codes], pa.int64())
        records = pa.Table.from_batches(pack(iter([pa.record_batch({"a.code": codes, "#l0": keys})]))).to_pylist()
        rows = [(row["of"], from_blobs([row["blob"]])) for row in records if row["kind"] in (ROWS, MARKED_ROWS)]
        return {code: shard for shard, table in rows for code in table.column("a.code").to_pylist()}

    many = shards_of(["1", "2", *(f"n/a {number}" for number in range(20)), "3"])
    assert len({shard for code, shard in many.items() if not code.isdecimal()}) == 4
    assert shards_of(["n/a 7"]) == {"n/a 7": many["n/a 7"]}
    assert shards_of(["2", "n/a 19", "1"]) == {code: many[code] for code in ("2", "n/a 19", "1")}


Run = tuple[int, int, str, int, int]
"""The part of a union, the time of a file, its path, where in it the run begins, and how many rows it has."""
PATHS = ("", "/b.json", "/a%20b.json", "/a%C3%A4.json", "/a.json")
RUNS = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(-2, 2), st.sampled_from(PATHS),
        st.integers(0, 3), st.integers(1, 4),
    ),
    max_size=12, unique_by=lambda run: run[:4],
)  # fmt: skip


def _batch(runs: list[Run], numbers: dict[int, tuple[Run, int]], *, is_dictionary: bool) -> pa.RecordBatch:
    """The rows of some runs; ``numbers`` gets what each row is."""
    rows = [(run, n) for run in runs for n in range(run[4])]
    values = list(range(len(numbers), len(numbers) + len(rows)))
    numbers.update(zip(values, rows, strict=True))
    fields = pa.struct([("time", pa.int64()), ("path", pa.string()), ("start", pa.int64())])
    files = [None if not run[2] else {"time": run[1], "path": run[2], "start": run[3]} for run, _ in rows]
    column = pa.array(files, fields)
    if is_dictionary:
        different = [{"time": run[1], "path": run[2], "start": run[3]} for run in runs]
        indices = pa.array([n for n, run in enumerate(runs) for _ in range(run[4])], pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, pa.array(different, fields))
    parts = pa.array([run[0] for run, _ in rows], pa.int32())
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), parts, column], names=["v", PART, FILE])


@given(st.lists(RUNS, min_size=1, max_size=4), st.randoms(), st.booleans())
def test_rows_arrive_in_the_order_of_their_files_whatever_task_reads_them(
    tasks: list[list[Run]], chance: Random, is_dictionary: bool
) -> None:
    numbers: dict[int, tuple[Run, int]] = {}
    blobs: dict[int, list[bytes]] = {}
    taken = set[tuple[int, int, str, int]]()
    for runs in tasks:
        own = [run for run in runs if run[:4] not in taken and not (is_dictionary and (run[0] or not run[2]))]
        taken.update(run[:4] for run in own)
        pack = Pack(0, "key", "v", (0, 1), (), None, ("v", PART, FILE), POSITION)
        half = chance.randint(0, len(own))
        batches = [_batch(some, numbers, is_dictionary=is_dictionary) for some in (own[:half], own[half:])]
        for row in pa.Table.from_batches(pack(iter(batches)), PACKED).to_pylist():
            if row["kind"] in (ROWS, MARKED_ROWS):
                blobs.setdefault(row["of"], []).append(row["blob"])
    seen = list[int]()
    for some in blobs.values():
        chance.shuffle(some)
        table = from_blobs(some)
        assert table.column_names == ["v", POSITION]
        values, positions = (table.column(name).to_pylist() for name in table.column_names)
        assert positions == sorted(positions)
        seen += values
        keys = [_key(*numbers[value], is_dictionary=is_dictionary) for value in values]
        assert keys == sorted(keys)
    assert sorted(seen) == sorted(numbers)


def _key(run: Run, row: int, *, is_dictionary: bool) -> tuple[object, ...]:
    """What rows of files are ordered by; those of other sources, which have none, only by the part.

    A dictionary has plain paths, others have those of Spark.
    """
    part, time, path, start, _ = run
    return (part, time, path if is_dictionary else unquote(path), start, row) if path else (part, 0, "", 0, 0)


TASKS = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 99), st.sampled_from("pq")), max_size=12),
    min_size=1,
    max_size=6,
)
"""The rows of map tasks: a key, a time and the partition of the source."""


@given(TASKS, st.integers(1, 9), st.none() | st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_every_shard_has_the_watermarks_of_all_tasks_and_each_task_sends_them_once_to_a_group(
    tasks: list[list[tuple[int, int | None, str]]],
    number: int,
    partitions: int | None,
    is_partitioned: bool,
    chance: Random,
) -> None:
    shards = labels(number)
    names = ("v", "e.t", PARTITION) if is_partitioned else ("v", "e.t")
    lags = (WatermarkLag("e.t", 5, "e.t"),)

    def batches(rows: list[tuple[int, int | None, str]]) -> list[pa.RecordBatch]:
        half = chance.randint(0, len(rows))
        types = {"v": pa.int64(), "e.t": pa.int64(), PARTITION: pa.string()}
        return [
            pa.RecordBatch.from_arrays(
                [pa.array([row[place] for row in some], types[name]) for place, name in enumerate(names)],
                names=list(names),
            )
            for some in (rows[:half], rows[half:])
        ]

    def pack(to: tuple[int, ...], rows: list[tuple[int, int | None, str]]) -> list[dict[str, Any]]:
        task = Pack(0, "key", "v", to, lags, None, names)
        return pa.Table.from_batches(task(iter(batches(rows))), PACKED).to_pylist()

    # By definition: what each task says to a single shard, folded.
    alone = [record for rows in tasks for record in pack((7,), rows) if rows]
    expected = fold_watermarks(
        [r["blob"] if r["kind"] == WATERMARKS else watermarks_behind(r["blob"]) for r in alone if r["kind"] != ROWS]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "state_partitions", lambda: partitions)
        sent = [pack(shards, rows) for rows in tasks]
        outside = PackWatermarks(1, shards, {"x": "x"})
        external = pa.Table.from_batches(
            outside(iter([pa.record_batch({"column": ["x"], "value": [3]})])), PACKED
        ).to_pylist()
    under, members = group_labels(shards, partitions), group_members(shards, partitions)
    assert sorted(shard for group in members.values() for shard in group) == sorted(shards)
    received = {label: BatchWatermarks() for label in members}
    keys: dict[int, list[int]] = {shard: [] for shard in shards}
    for records, rows in zip(sent, tasks, strict=True):
        marks = [r for r in records if r["kind"] in (WATERMARKS, MARKED_ROWS)]
        # Once to each group, and in a record of its own only where no rows of the task go.
        assert sorted(r["shard"] for r in marks) == (sorted(members) if rows or number == 1 else [])
        with_rows = {r["shard"] for r in records if r["kind"] in (ROWS, MARKED_ROWS)}
        assert {r["shard"] for r in marks if r["kind"] == MARKED_ROWS} == with_rows
    assert sorted(r["shard"] for r in external) == sorted(members) and {r["kind"] for r in external} == {WATERMARKS}
    arrived = [record for records in (*sent, external) for record in records]
    chance.shuffle(arrived)
    for record in arrived:
        assert record["shard"] == under[record["of"]]
        if record["kind"] in (ROWS, MARKED_ROWS):
            keys[record["of"]] += from_blobs([record["blob"]]).column("v").to_pylist()
        if record["kind"] in (WATERMARKS, MARKED_ROWS):
            blob = record["blob"] if record["kind"] == WATERMARKS else watermarks_behind(record["blob"])
            received[record["shard"]].add(record["port"], blob)
    for label in members:
        assert received[label].fold((0,)) == expected
        assert received[label].fold((0, 1)) == dict(sorted({**expected, "x": 3}.items()))
    assert sorted(key for some in keys.values() for key in some) == sorted(row[0] for rows in tasks for row in rows)
    owners = {key: shard for shard, some in keys.items() for key in some}
    assert all(owners[key] == shard for shard, some in keys.items() for key in some)
