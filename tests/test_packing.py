"""The marks that rows bring into the exchange: of a column, of each part of a union, of each partition."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from watersmeet.physical.nodes import WatermarkLag
from watersmeet.spark.exchange.packing import PART, PARTITION, ROWS, WATERMARKS, Pack, from_blobs

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
def test_what_a_batch_says_of_time(
    names: tuple[str, ...], lags: tuple[WatermarkLag, ...], expected: dict[str, int]
) -> None:
    pack = Pack(0, "one", None, (1,), lags, None, names)
    packed = pa.Table.from_batches(pack(iter([pa.record_batch({name: ALL[name] for name in names})])))
    (marks,) = (row["blob"] for row in packed.to_pylist() if row["kind"] == WATERMARKS)
    assert json.loads(marks) == {"lowest": False, "marks": expected}


def test_a_row_without_a_key_always_goes_to_the_same_shard() -> None:
    pack = Pack(0, "key", "#l0", tuple(range(4)), (), None, ("a.code", "#l0"), null_keys=("a.code",))

    def shards_of(codes: list[str]) -> dict[str, int]:
        keys = pa.array([int(code) if code.isdecimal() else None for code in codes], pa.int64())
        records = pa.Table.from_batches(pack(iter([pa.record_batch({"a.code": codes, "#l0": keys})]))).to_pylist()
        rows = [(row["of"], from_blobs([row["blob"]])) for row in records if row["kind"] == ROWS]
        return {code: shard for shard, table in rows for code in table.column("a.code").to_pylist()}

    many = shards_of(["1", "2", *(f"n/a {number}" for number in range(20)), "3"])
    assert len({shard for code, shard in many.items() if not code.isdecimal()}) == 4
    assert shards_of(["n/a 7"]) == {"n/a 7": many["n/a 7"]}
    assert shards_of(["2", "n/a 19", "1"]) == {code: many[code] for code in ("2", "n/a 19", "1")}
