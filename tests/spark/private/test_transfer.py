"""Records that cross to Python by their number: it bounds their bytes, and what sees to that is passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from watersmeet.spark.exchange import packing, stateful
from watersmeet.spark.exchange.output import OUTPUT_NAMES, OutputBuffer, is_bounded
from watersmeet.spark.exchange.packing import LATE, MARKED_ROWS, PACKED, REPORT, ROWS, SPACER, Pack, Unpack, from_blobs
from watersmeet.spark.exchange.stateful import InputBuffer, ShardProcessor, Shards
from watersmeet.spark.private import transfer
from watersmeet.spark.private.transfer import BYTES, RECORDS, UNLIMITED, PythonTransfer, room_here

ROOM, MOST = 1024, 50
SIZES = [0, 10, ROOM - 1, ROOM, 3 * ROOM, 40 * ROOM, 7, 7, 100 * ROOM, 2 * ROOM + 5]


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


def assert_bounded(sizes: Sequence[int]) -> None:
    """No batch of so many records that follow each other has more bytes than there is room, but for its last blob."""
    for start in range(len(sizes)):
        window = sizes[start : start + MOST]
        assert sum(window) < ROOM * MOST + max(sizes)


def pack_rows(rows: int, pieces: int = 10) -> pa.Table:
    pack = Pack(0, "key", "id", (3, 8), (), None, ("id", "v"))
    ids = np.arange(rows)
    given = [pa.record_batch({"c0": part, "c1": part * 2}) for part in np.array_split(ids, pieces)]
    return pa.Table.from_batches(pack(iter(given)))


def test_records_into_the_exchange_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pack_rows(20_000)
    monkeypatch.setattr(packing, "ROWS_PER_BLOB", 1_000)
    monkeypatch.setattr(packing, "room_here", lambda: ROOM)
    spaced = pack_rows(20_000)
    # Each shard is by itself after the shuffle.
    for shard in (3, 8):
        of_shard = [row for row in spaced.to_pylist() if row["shard"] == shard]
        assert_bounded([len(row["blob"] or b"") for row in of_shard])
        assert all((row["blob"] is None) == (row["kind"] == SPACER) for row in of_shard)
        assert sum(row["kind"] == SPACER for row in of_shard) > MOST
        rows = [
            from_blobs(
                [r["blob"] for r in given.to_pylist() if r["shard"] == shard and r["kind"] in (ROWS, MARKED_ROWS)]
            )
            for given in (plain, spaced)
        ]
        assert rows[0].equals(rows[1])


def test_few_rows_and_marks_have_no_spacers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "room_here", lambda: 4096)
    assert SPACER not in pack_rows(100).column("kind").to_pylist()


def test_records_out_of_a_join_are_bounded_by_their_number() -> None:
    leaving = OutputBuffer(ROOM)
    for size in SIZES:
        leaving.add(LATE, blob=bytes(size))
    leaving.add_rows(pa.table({"a": list(range(10_000))}))
    leaving.add(REPORT, report="{}")
    frame = pd.concat(list(leaving.take_frames()), ignore_index=True)
    assert_bounded([len(blob or b"") for blob in frame["blob"]])
    assert [kind for kind in frame["kind"] if kind != SPACER] == [LATE] * len(SIZES) + [ROWS, REPORT]
    assert frame["kind"].iloc[-1] == REPORT and frame["kind"].tolist().count(SPACER) > MOST


def test_spacers_out_of_a_join_become_no_rows() -> None:
    rows = pa.table({"a": list(range(5_000))})
    found: list[pa.Table] = []
    for room in (None, ROOM):
        leaving = OutputBuffer(room)
        leaving.add_rows(rows)
        leaving.add(REPORT, report='{"watermarks": {"l.t": 3}}')
        frame = pd.concat(list(leaving.take_frames()), ignore_index=True)
        types = (pa.int8(), pa.int8(), pa.binary(), pa.string())
        columns = [pa.array(frame[name], type_) for name, type_ in zip(OUTPUT_NAMES, types, strict=True)]
        unpack = Unpack(pa.schema([("a", pa.int64()), (packing.WATERMARKS_COLUMN, pa.string())]), watermarks=True)
        found.append(pa.Table.from_batches(unpack(iter([pa.record_batch(columns, OUTPUT_NAMES)]))))
    assert found[0].equals(found[1]) and found[1].num_rows == 5_001


def test_spacers_never_reach_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "room_here", lambda: ROOM)
    came: list[tuple[int, int, int]] = []

    class Shard:
        input_buffer = InputBuffer(frozenset())

        def __init__(self, processor: Any, label: int, states: Any, leaving: OutputBuffer) -> None:
            self.label = label

        def take(self, port: int, kind: int, blob: bytes) -> None:
            came.append((self.label, port, kind))
            assert isinstance(blob, bytes)

        def take_watermarks(self, *_: object) -> None:
            pass

        @property
        def counters(self) -> Any:
            # All records have come.
            raise StopAsyncIteration

    monkeypatch.setattr(stateful, "_Shard", Shard)
    monkeypatch.setattr(stateful, "group_members", lambda *_: {3: (3, 8)})
    records = pack_rows(5_000).to_pandas()
    assert SPACER in records["kind"].tolist()
    processor: Any = ShardProcessor((), Shards(3, frozenset()))
    processor.handle = processor.state = None
    with pytest.raises(StopAsyncIteration):
        list(processor.handleInputRows((3,), iter([records]), None))
    assert SPACER not in {kind for _, _, kind in came} and {label for label, _, _ in came} == {3, 8}


@pytest.mark.parametrize(
    ("bytes_", "records", "room"),
    [
        (UNLIMITED, "16384", 4096),
        (UNLIMITED, None, 6710),
        # So many records leave no room, and without a limit no room is counted.
        (UNLIMITED, "1000000", None),
        (UNLIMITED, "0", None),
        ("67108864", "16384", None),
        (None, "16384", None),
    ],
)
def test_spacers_come_where_spark_counts_records_alone(
    monkeypatch: pytest.MonkeyPatch, bytes_: str | None, records: str | None, room: int | None
) -> None:
    class Task:
        @staticmethod
        def get() -> Any:
            return Task

        getLocalProperty = {BYTES: bytes_, RECORDS: records}.get  # noqa: N815 - Spark's

    monkeypatch.setattr(transfer, "TaskContext", Task)
    assert room_here() == room


NUMBERS = schema(c0=LongType(), c1=TimestampType(), c2=schema(d=DecimalType(38, 2), b=ByteType()))
PACKED_ROWS = schema(**{name: BinaryType() for name in PACKED.names})
MET_ROWS = schema(**{name: BinaryType() for name in OUTPUT_NAMES})
INTO = PythonTransfer(NUMBERS, PACKED_ROWS)
JOIN = PythonTransfer(StructType([PACKED_ROWS[0], *PACKED_ROWS]), MET_ROWS)
OUT = PythonTransfer(MET_ROWS, NUMBERS)
FILES = PythonTransfer(schema(path=StringType()), PACKED_ROWS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((INTO, JOIN, OUT), True),
        ((INTO, FILES, JOIN, PythonTransfer(MET_ROWS, PACKED_ROWS), JOIN, OUT), True),
        # Rows of others that have fixed width are bounded as ours are.
        ((INTO, JOIN, OUT, PythonTransfer(NUMBERS, schema(x=StringType()))), True),
        # Workers read all of it: there is nothing to gain.
        ((FILES, JOIN, OUT), False),
        ((), False),
        ((INTO, JOIN, OUT, PythonTransfer(schema(path=StringType()), schema(x=LongType()))), False),
        *(
            ((INTO, PythonTransfer(schema(c0=LongType(), c1=type_), PACKED_ROWS), JOIN, OUT), False)
            for type_ in (
                StringType(), BinaryType(), ArrayType(LongType()), VariantType(), schema(x=StringType()),
                schema(**{f"c{n}": DecimalType(38) for n in range(300)}),
            )
        ),
    ],
)  # fmt: skip
def test_queries_of_fixed_width_rows_need_no_count_of_bytes(given: tuple[PythonTransfer, ...], expected: bool) -> None:
    assert is_bounded(given, 4096) is expected
    assert not is_bounded(given, None)
