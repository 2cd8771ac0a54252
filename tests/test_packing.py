"""The marks that rows bring into the exchange: of a column, of each part of a union, of each partition."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from watersmeet.physical.nodes import Lag
from watersmeet.spark.exchange.packing import MARKS, PART, PARTITION, Pack

PARTS = (Lag("e.t", 1, "e.t#0", 0), Lag("e.t", 1, "e.t#1", 1))
ALL = {"e.t": [5, 9, None, 1], PART: [0, 0, 1, 1], PARTITION: ["a-0", "a-1", "a-1", None]}


@pytest.mark.parametrize(
    ("names", "lags", "expected"),
    [
        (("e.t",), (Lag("e.t", 1, "e.t"),), {"e.t": 8}),
        (("e.t", PART), PARTS, {"e.t#0": 8, "e.t#1": 0}),
        (("e.t", PARTITION), (Lag("e.t", 1, "e.t"),), {"e.t": 0, "e.t#@a-0": 4, "e.t#@a-1": 8}),
        (("e.t", PART, PARTITION), PARTS, {"e.t#0#@a-0": 4, "e.t#0#@a-1": 8, "e.t#1": 0}),
    ],
)
def test_what_a_batch_says_of_time(names: tuple[str, ...], lags: tuple[Lag, ...], expected: dict[str, int]) -> None:
    pack = Pack(0, "one", None, (1,), lags, None, names)
    packed = pa.Table.from_batches(pack(iter([pa.record_batch({name: ALL[name] for name in names})])))
    (marks,) = (row["blob"] for row in packed.to_pylist() if row["kind"] == MARKS)
    assert json.loads(marks) == {"lowest": False, "marks": expected}
