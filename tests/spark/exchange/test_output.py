"""What leaves a shard: few records in few frames, nothing of it lost, the numbers last."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.spark.exchange import output as module
from watersmeet.spark.exchange.output import OutputBuffer
from watersmeet.spark.exchange.packing import LATE, REPORT, ROWS, UNMATCHED, from_blobs


def test_rows_of_one_kind_and_schema_that_follow_each_other_are_one_record() -> None:
    some, more = pa.table({"a": [1, 2], "b": ["x", None]}), pa.table({"a": [3], "b": ["z"]})
    padded = pa.table({"a": [4], "b": pa.nulls(1)})
    leaving = OutputBuffer()
    for table in (some, more.to_batches()[0], padded):
        leaving.add_rows(table)
    leaving.add_rows(padded, UNMATCHED, 1)
    leaving.add_rows(more, LATE, 0)
    leaving.add(LATE, blob=b"passes through")
    leaving.add_rows(more)
    leaving.add(REPORT, report="{}")
    (frame,) = leaving.take_frames()
    kinds = list(zip(frame["kind"], frame["port"], strict=True))
    assert kinds == [
        (ROWS, None),
        (ROWS, None),
        (UNMATCHED, 1),
        (LATE, 0),
        (LATE, None),
        (ROWS, None),
        (REPORT, None),
    ]
    rows = [None if blob in (None, b"passes through") else from_blobs([blob]).to_pylist() for blob in frame["blob"]]
    alone = [{"a": 4, "b": None}]
    assert rows == [
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "z"}],
        alone,
        alone,
        more.to_pylist(),
        None,
        more.to_pylist(),
        None,
    ]
    assert frame["report"].tolist() == [None] * 6 + ["{}"]
    assert not list(leaving.take_frames()), "nothing leaves twice"


def test_much_is_handed_over_before_the_end() -> None:
    leaving = OutputBuffer()
    table = pa.table({"a": list(range(100_000))})
    leaving.add_rows(table)
    assert not leaving.is_full
    while not leaving.is_full:
        leaving.add_rows(table)
    assert leaving.bytes < module.BYTES_PER_FRAME + 2 * table.nbytes
    frames = list(leaving.take_frames())
    assert all(sum(map(len, frame["blob"])) < 1.1 * module.BYTES_PER_FRAME for frame in frames)
    assert from_blobs([blob for frame in frames for blob in frame["blob"]]).num_rows % table.num_rows == 0
    assert not leaving.is_full
