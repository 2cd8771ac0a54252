"""Rows through Spark in bulk: packed by shard into Arrow blobs before the shuffle, unpacked after the join.

A record of the exchange is ``(shard, port, kind, blob)``, preceded by the label of the shard's group
(`watersmeet.spark.exchange.store`). Every map task sends its watermarks to every group, once: behind a blob of rows, or
as a record of their own where it has no rows for the group. So after the shuffle each shard knows the watermarks of the
whole batch. These functions run in Spark's workers: they import only what they need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from watersmeet.operators.core.changes import POSITION
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.core.routing import Route, SkewedKeys, route_codes, split_rows
from watersmeet.operators.core.watermarks import PARTITION as OF_PARTITION
from watersmeet.operators.core.watermarks import WatermarkLag, watermark_behind
from watersmeet.operators.state.format import cut_rows
from watersmeet.operators.state.shard import LATE_BY, LATE_COLUMN
from watersmeet.spark.exchange.columns import (
    FILE,
    LATE_ROW,
    ORDER,
    PART,
    PARTITION,
    WATERMARKS_COLUMN,
    Batches,
    ColumnPipeline,
    FileKeys,
    Precombine,
    merge_runs_of_files,
)
from watersmeet.spark.exchange.store import group_labels
from watersmeet.spark.private.introspection import state_partitions
from watersmeet.spark.private.transfer import room_here

ROWS, WATERMARKS, LATE, REPORT, UNMATCHED, METRICS, SPACER, MARKED_ROWS = 0, 1, 2, 3, 4, 5, 6, 7
"""The kinds of records: rows, watermarks, and rows with watermarks behind them (`append_watermarks`). As output of a
join: rows, late rows, the report of a shard with its watermarks and state sizes, unmatched rows with a side output, and
the metrics of each join of an operator. Spacers are skipped, see `spacers`.
"""

PACKED_DDL = "shard INT, of INT, port TINYINT, kind TINYINT, blob BINARY"
PACKED = pa.schema(
    [("shard", pa.int32()), ("of", pa.int32()), ("port", pa.int8()), ("kind", pa.int8()), ("blob", pa.binary())]
)
"""Records: the label under which Spark groups them, which is that of a shard, and the shard of each."""
SHARD = "#shard"
"""The column that determines the shard, where no other does; it is dropped after routing."""
UNMATCHED_OUTPUT_COLUMNS = ("_unmatched_left", "_unmatched_right")
"""The columns of a result with the unmatched rows of a side that go to a side output."""
DUPLICATES_OUTPUT_COLUMN = "_duplicates"
"""The column of a result with the rows that repeat another and go to a side output."""
LATE_OUTPUT_COLUMN = "_late"
LATE_FIELDS = {"watermark": LATE_COLUMN, "late_by": LATE_BY}
"""The column of a result with late rows, and the fields that describe each."""

PLACE, RUNS_OF_FILES = b"place", b"files"
"""The metadata of a blob: its place in the order of delivery, and the runs of its rows by file."""
ROWS_PER_BLOB, BYTES_PER_BLOB = 262_144, 4 * 2**20
"""The rows of a blob, and its bytes before compression, at most: a single row may have more bytes."""
BYTES_PER_FLUSH = 64 * 2**20
"""A map task sends its rows once they have this many bytes, however many shards there are."""
SAMPLE = 4_096
"""The sample size that decides whether to compress; fewer rows in all are not compressed."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
BYTES_AT_ONCE = 4 * 2**20
"""Records are sent once they have this many bytes."""

Record = tuple[int, int, int, bytes]
"""Shard, port, kind and blob."""
Spacer = tuple[int, int, int, None]


@dataclass(frozen=True)
class Pack:
    """Packs the rows of one port: sends each to its shard, and the watermarks of all of them to every group of shards.

    - ``route`` gives the shard by the column ``by``; where that is NULL, by a hash of the columns ``null_keys``
    - ``lags`` are the watermarked columns of a source; a port fed by a join has none and finds its watermarks in
      `WATERMARKS_COLUMN`, and late rows that only pass through in `LATE_ROW`
    - ``keep``: rows for which it is false only count for their event times and are dropped; None: all are kept
    - ``names``: the columns arrive under other names, because Spark would parse the dot of ``alias.column`` as a path
    - ``position``: a column to add with the delivery order of the batch's rows, or the source's order in `ORDER`; None:
      no such column
    - ``precombine``: combines equal rows before the shuffle; None: every row is sent
    - ``skew``: keys whose rows are spread over all shards, or copied to them
    """

    port: int
    route: Route
    by: str | None
    shards: tuple[int, ...]
    lags: tuple[WatermarkLag, ...]
    keep: str | None
    names: tuple[str, ...]
    position: str | None = None
    precombine: Precombine | None = None
    null_keys: tuple[str, ...] = ()
    skew: SkewedKeys | None = None

    def __call__(self, batches: Batches) -> Batches:
        """Pack the batches of one map task."""
        waiting: list[list[pa.RecordBatch]] = [[] for _ in self.shards]
        rows = size = seen = 0
        watermarks, keys = _WatermarkFold(), FileKeys()
        renamed = (batch.rename_columns(list(self.names)) for batch in batches)
        for named in renamed if self.precombine is None else self.precombine(renamed):
            if self.position is not None:
                order = named.column(ORDER) if ORDER in self.names else None
                places = pa.array(_place(seen) + np.arange(named.num_rows)) if order is None else order
                named = named.append_column(self.position, places)
            seen += named.num_rows
            if FILE in self.names:
                parts = named.column(PART) if PART in self.names else None
                numbers = keys.numbers_of(named.column(FILE), parts)
                named = named.set_column(self.names.index(FILE), FILE, numbers)
            self._fold_watermarks(named, watermarks)
            yield from self._late_records(named)
            retained = self._select_rows(named)
            self._split(retained, waiting)
            rows, size = rows + retained.num_rows, size + retained.nbytes
            if rows >= ROWS_PER_BLOB * len(self.shards) or size >= BYTES_PER_FLUSH:
                yield from pack_records(self._flush(waiting, seen, keys), self.shards)
                rows = size = 0
        records = self._flush(waiting, seen, keys)
        if seen or len(self.shards) == 1:
            # Also without a watermark: every shard must be visited, or the watermarks that a join emits would be those
            # of some of its shards only. A single shard may have output without rows: the group without keys.
            records = _with_watermarks(records, self.port, self.shards, watermarks.to_bytes())
        yield from pack_records(records, self.shards)

    def _fold_watermarks(self, batch: pa.RecordBatch, watermarks: _WatermarkFold) -> None:
        """Fold in the watermarks of a batch."""
        for lag in self.lags:
            rows = batch.select([lag.column, *(name for name in (PARTITION,) if name in self.names)])
            rows = rows if lag.part is None else rows.filter(pc.equal(batch.column(PART), lag.part))
            watermarks.fold(
                {name: watermark_of(latest, lag.lag) for name, latest in self._latest(lag, rows)}, lowest=False
            )
        if WATERMARKS_COLUMN in self.names:
            for text in batch.column(WATERMARKS_COLUMN).drop_null().to_pylist():
                watermarks.fold(json.loads(text), lowest=True)

    def _latest(self, lag: WatermarkLag, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Scalar]]:
        """The latest time of a column under the name of its watermark: one, or one per partition."""
        times_by_partition = [(None, pc.max(rows.column(lag.column)))]
        if PARTITION in self.names:
            latest = pa.Table.from_batches([rows]).rename_columns(["time", "by"]).group_by("by")
            by, times = latest.aggregate([("time", "max")]).select(["by", "time_max"]).columns
            times_by_partition = list(zip(by.to_pylist(), times, strict=True))
        for name, time in times_by_partition:
            if time.is_valid:
                yield lag.watermark if name is None else f"{lag.watermark}{OF_PARTITION}{name}", time

    def _late_records(self, batch: pa.RecordBatch) -> Batches:
        """Late rows of a join further up, which pass through this one: any shard will do."""
        if LATE_ROW in self.names:
            blobs = batch.column(LATE_ROW).drop_null().to_pylist()
            yield from pack_records(((self.shards[0], self.port, LATE, blob) for blob in blobs), self.shards)

    def _select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that go on, with the columns that the operator knows."""
        mask = pa.repeat(pa.scalar(True), batch.num_rows) if self.keep is None else batch.column(self.keep)
        for name in (WATERMARKS_COLUMN, LATE_ROW):
            if name in self.names:
                mask = pc.and_(mask, batch.column(name).is_null())
        ours = [name for name in (self.keep, WATERMARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER) if name in self.names]
        batch = batch.drop_columns(ours) if ours else batch
        return batch if pc.all(mask).as_py() else batch.filter(mask)

    def _split(self, batch: pa.RecordBatch, waiting: list[list[pa.RecordBatch]]) -> None:
        if len(self.shards) == 1 or self.route == "all" or self.by is None:
            for part in waiting if self.route == "all" else waiting[:1]:
                part.append(batch)
            return
        codes = route_codes(batch, self.by, () if self.route == "partition" else self.null_keys, self.skew)
        batch = batch.drop_columns([SHARD]) if self.by == SHARD else batch
        for part, rows in zip(waiting, split_rows(batch, codes, len(self.shards), self.skew), strict=True):
            if rows is not None:
                part.append(rows)

    def _flush(self, waiting: list[list[pa.RecordBatch]], seen: int, keys: FileKeys) -> Iterator[Record]:
        for shard, part in zip(self.shards, waiting, strict=True):
            pieces = list(split_batches(part))
            part.clear()
            for number, piece in enumerate(pieces, 1):
                batches, runs = keys.sort(piece, FILE) if FILE in self.names else (piece, b"")
                # Each piece has a row at least, so their places lie after those of earlier rows.
                yield shard, self.port, ROWS, compress_blob(batches, _place(seen - len(pieces) + number), runs)


@dataclass(frozen=True)
class PackWatermarks:
    """Sends external watermarks, as rows ``(column, value)``, to every group of shards.

    ``columns`` are the ones to send, each with the name of its watermark here.
    """

    port: int
    shards: tuple[int, ...]
    columns: Mapping[str, str]

    def __call__(self, batches: Batches) -> Batches:
        """Pack the watermarks of one map task."""
        watermarks = _WatermarkFold()
        for batch in batches:
            for row in batch.to_pylist():
                if row["column"] in self.columns:
                    watermarks.fold({self.columns[row["column"]]: row["value"]}, lowest=False)
        if watermarks.watermarks or len(self.shards) == 1:
            records = _with_watermarks(iter(()), self.port, self.shards, watermarks.to_bytes())
            yield from pack_records(records, self.shards)


LateMode = Literal["dropped", "shown", "passed"]
"""The treatment of late rows: they are dropped, shown in a column of the result, or passed on unchanged."""


@dataclass(frozen=True)
class Unpack:
    """Turns the records of a join back into rows of ``schema``.

    With ``watermarks``, its watermarks follow in separate rows; with ``late``, late rows do, in a column of the schema.
    So do unmatched rows with a side output, if the schema has a column for them.
    """

    schema: pa.Schema
    watermarks: bool = False
    late: LateMode = "dropped"

    def __call__(self, batches: Batches) -> Batches:
        """Unpack the records of one task."""
        for batch in batches:
            for i, kind in enumerate(batch.column("kind").to_pylist()):
                if kind == ROWS:
                    yield from self._rows(batch.column("blob")[i].as_buffer())
                elif kind == REPORT and self.watermarks:
                    report = json.loads(batch.column("report")[i].as_py())
                    yield self._sparse_batch({WATERMARKS_COLUMN: pa.array([json.dumps(report["watermarks"])])})
                elif kind == LATE and self.late == "passed":
                    yield self._sparse_batch({LATE_ROW: pa.array([batch.column("blob")[i].as_py()])})
                elif kind == LATE and self.late == "shown":
                    yield self._late_batch(from_blobs([batch.column("blob")[i].as_py()]))
                elif kind == UNMATCHED:
                    yield self._batch_of_unmatched(
                        batch.column("port")[i].as_py(), from_blobs([batch.column("blob")[i].as_py()])
                    )

    def _rows(self, blob: pa.Buffer) -> Batches:
        for batch in pa.ipc.open_stream(blob):
            present = frozenset(batch.schema.names)
            columns = [
                _as_type(batch.column(f.name), f.type) if f.name in present else pa.nulls(batch.num_rows, f.type)
                for f in self.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _sparse_batch(self, values: dict[str, pa.Array]) -> pa.RecordBatch:
        """Rows with only these columns; the others are NULL."""
        size = len(next(iter(values.values())))
        columns = [values.get(f.name, pa.nulls(size, f.type)) for f in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _late_batch(self, late: pa.Table) -> pa.RecordBatch:
        """Late rows as structs: the side, the watermark they missed, by how much, and the row under the side's name."""
        kind = self.schema.field(LATE_OUTPUT_COLUMN).type
        alias = late.column_names[0].split(".", 1)[0]
        values: list[pa.Array] = []
        for field in kind:
            if field.name == "side":
                values.append(pa.repeat(pa.scalar(alias), late.num_rows))
            elif field.name in LATE_FIELDS:
                values.append(late.column(LATE_FIELDS[field.name]).combine_chunks().cast(field.type))
            elif field.name == alias:
                parts = [late.column(f"{alias}.{f.name}").combine_chunks().cast(f.type) for f in field.type]
                values.append(pa.StructArray.from_arrays(parts, fields=list(field.type)))
            else:
                values.append(pa.nulls(late.num_rows, field.type))
        return self._sparse_batch({LATE_OUTPUT_COLUMN: pa.StructArray.from_arrays(values, fields=list(kind))})

    def _batch_of_unmatched(self, port: int, rows: pa.Table) -> pa.RecordBatch:
        """Unmatched or repeated rows as structs, each with the columns of its side."""
        names = (UNMATCHED_OUTPUT_COLUMNS[port], DUPLICATES_OUTPUT_COLUMN)
        name = next(name for name in names if name in self.schema.names)
        kind = self.schema.field(name).type
        parts = [column.combine_chunks().cast(f.type) for column, f in zip(rows.columns, kind, strict=True)]
        return self._sparse_batch({name: pa.StructArray.from_arrays(parts, fields=list(kind))})


@dataclass(frozen=True)
class Repack:
    """Packs the rows of a join for the next exchange, which never become rows of Spark's."""

    unpack: Unpack
    columns: ColumnPipeline
    pack: Pack

    def __call__(self, batches: Batches) -> Batches:
        """Pack the records of one task."""
        return self.pack(self.columns(self.unpack(batches)))


class _WatermarkFold:
    """The watermarks of a map task: the latest per column of a source, the earliest over the shards of a join."""

    def __init__(self) -> None:
        self.watermarks: dict[str, int] = {}
        self.lowest = False

    def fold(self, watermarks: Watermarks, *, lowest: bool) -> None:
        choose: Callable[[int, int], int] = min if lowest else max
        self.lowest = lowest
        for column, value in watermarks.items():
            self.watermarks[column] = choose(value, self.watermarks.get(column, value))

    def to_bytes(self) -> bytes:
        return json.dumps({"lowest": self.lowest, "marks": self.watermarks}).encode()


def _with_watermarks(
    records: Iterator[Record], port: int, shards: tuple[int, ...], watermarks: bytes
) -> Iterator[Record]:
    """Records of rows with the watermarks of their task: behind one of each group, or else in a record of its own."""
    under = group_labels(shards, state_partitions())
    missing = dict.fromkeys(under.values())
    for shard, of, kind, blob in records:
        if under[shard] in missing:
            del missing[under[shard]]
            yield shard, of, MARKED_ROWS, append_watermarks(blob, watermarks)
        else:
            yield shard, of, kind, blob
    yield from ((label, port, WATERMARKS, watermarks) for label in missing)


def append_watermarks(blob: bytes, watermarks: bytes) -> bytes:
    """A blob of rows with watermarks behind it: an Arrow stream knows where it ends, so it is read as before.

    >>> watermarks_behind(append_watermarks(b"rows", b"{}"))
    b'{}'
    """
    return blob + watermarks + len(watermarks).to_bytes(4, "little")


def watermarks_behind(blob: bytes) -> bytes:
    """The watermarks behind a blob of rows."""
    return blob[-4 - int.from_bytes(blob[-4:], "little") : -4]


def watermark_of(latest: pa.Scalar, lag: int) -> int:
    """The watermark for the latest time of a column; a time of a row never equals the end of input."""
    time = int(as_int64(pa.array([latest], latest.type))[0])
    return watermark_behind(time, lag)


def fold_watermarks(blobs: Sequence[bytes]) -> dict[str, int]:
    """The watermarks of a batch from the records of all its map tasks."""
    folded: dict[bool, _WatermarkFold] = {False: _WatermarkFold(), True: _WatermarkFold()}
    # Parsed at once: one by one they take longer than the rows of a small batch, and there is one for each map task.
    for read in json.loads(b"[" + b",".join(set(blobs)) + b"]"):
        folded[read["lowest"]].fold(read["marks"], lowest=read["lowest"])
    return dict(sorted((folded[False].watermarks | folded[True].watermarks).items()))


def compress_blob(batches: Sequence[pa.RecordBatch], place: int, runs: bytes = b"") -> bytes:
    """The same as `to_blob`, compressed if a sample shrinks to half its size.

    Between two stages a blob is copied about five times: to the JVM, into a file, out of it, to a worker.
    """
    if sum(batch.num_rows for batch in batches) < SAMPLE:
        return to_blob(batches, place, runs=runs)
    sample = max(batches, key=len).slice(0, SAMPLE)
    is_worth_it = 2 * len(to_blob([sample], 0, _COMPRESSED)) < sample.nbytes
    return to_blob(batches, place, _COMPRESSED if is_worth_it else None, runs)


def split_batches(batches: Sequence[pa.RecordBatch], size: int = BYTES_PER_BLOB) -> Iterator[list[pa.RecordBatch]]:
    """The rows of some batches in their order, in pieces of about ``size`` bytes; a single row may have more.

    >>> batch = pa.record_batch({"a": ["x" * 50, "y" * 50, "z" * 50]})
    >>> [[part.num_rows for part in piece] for piece in split_batches([batch, batch], 120)]
    [[2], [1], [2], [1]]
    """
    piece, waiting = list[pa.RecordBatch](), 0
    for batch in batches:
        edges = cut_rows(batch, batch.num_rows, size) if batch.num_rows else []
        for start, stop in pairwise(edges):
            part = batch.slice(start, stop - start)
            if piece and waiting + part.nbytes > size:
                yield piece
                piece, waiting = [], 0
            piece.append(part)
            waiting += part.nbytes
    if piece:
        yield piece


def to_blob(
    batches: Sequence[pa.RecordBatch], place: int = 0, options: pa.ipc.IpcWriteOptions | None = None, runs: bytes = b""
) -> bytes:
    """Batches of one schema as an Arrow stream, with its place in the order of delivery, and ``runs`` of files."""
    sink = pa.BufferOutputStream()
    metadata = {PLACE: str(place).encode(), **({RUNS_OF_FILES: runs} if runs else {})}
    with pa.ipc.new_stream(sink, batches[0].schema.with_metadata(metadata), options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_blobs(blobs: Sequence[bytes]) -> pa.Table:
    """The rows of several blobs as one table, in the order of delivery: a shuffle reorders blobs.

    Rows with runs of files are sorted by file.
    """
    opened = [pa.ipc.open_stream(pa.py_buffer(blob)) for blob in blobs]
    # Blobs of one place, which should not occur, are ordered by content, the same in every attempt.
    order = sorted(range(len(blobs)), key=lambda n: (_place_in(opened[n].schema), blobs[n]))
    table = pa.concat_tables([opened[n].read_all().replace_schema_metadata() for n in order])
    runs = [_metadata_of(opened[n].schema).get(RUNS_OF_FILES, b"") for n in order]
    return merge_runs_of_files(table, runs, POSITION) if all(runs) else table


def place_of(blob: bytes) -> int:
    """The place of a blob in the order of delivery."""
    return _place_in(pa.ipc.open_stream(pa.py_buffer(blob)).schema)


def _place_in(schema: pa.Schema) -> int:
    return int(_metadata_of(schema).get(PLACE, b"0"))


def _metadata_of(schema: pa.Schema) -> dict[bytes, bytes]:
    return schema.metadata or {}


def _place(seen: int) -> int:
    """A number that grows in the order of delivery: with the map task, and within it with the rows it has seen."""
    context = TaskContext.get()
    return ((0 if context is None else context.partitionId()) << 40) + seen


def pack_records(items: Iterable[Record], shards: tuple[int, ...]) -> Batches:
    """Records for some of these shards as batches, each under the label of its group."""
    under = group_labels(shards, state_partitions())
    room = room_here()
    waiting: list[Record | Spacer] = []
    size = 0
    for record in items:
        shard, port, _, blob = record
        waiting.append(record)
        waiting += [(shard, port, SPACER, None)] * spacers(blob, room)
        size += len(blob)
        if size > BYTES_AT_ONCE:
            yield _as_batch(waiting, under)
            waiting, size = [], 0
    if waiting:
        yield _as_batch(waiting, under)


def spacers(blob: bytes | None, room: int | None) -> int:
    """The number of empty records that follow one with that blob, with room for so many bytes in each.

    So the number of records that follow each other bounds their bytes, where Spark does not: a blob is smaller than the
    room of its record and its spacers.

    >>> [spacers(bytes(size), 4096) for size in (4095, 4096, 10000)], spacers(bytes(10000), None)
    ([0, 1, 2], 0)
    """
    return 0 if blob is None or room is None else len(blob) // room


def _as_batch(items: Sequence[Record | Spacer], under: Mapping[int, int]) -> pa.RecordBatch:
    shards, *rest = zip(*items, strict=True)
    columns = [[under[shard] for shard in shards], shards, *rest]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, PACKED, strict=True)], schema=PACKED
    )


def _as_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_date32(type_) and pa.types.is_int64(column.type):
        # The operator emits the order of an arrival in microseconds.
        column = column.cast(pa.timestamp("us"))
    return column if column.type == type_ else column.cast(type_)
