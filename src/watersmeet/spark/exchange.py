"""Rows through Spark in bulk: packed by shard into Arrow blobs before the shuffle, unpacked after the join.

A record of the exchange is ``(shard, port, kind, blob)``. Every map task sends to every shard one record of marks, so
that after the
shuffle each shard knows the watermarks of the whole batch. These functions run in Spark's workers: they import only
what they need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.joins.operator import Marks
from watersmeet.joins.runs import as_int64
from watersmeet.spark.shards import shard_of

ROWS, MARKS, LATE, REPORT = 0, 1, 2, 3
"""The kinds of records: rows, marks; and only out of a join: late rows, the numbers of a step."""

PACKED_DDL = "shard INT, port TINYINT, kind TINYINT, blob BINARY"
PACKED = pa.schema([("shard", pa.int32()), ("port", pa.int8()), ("kind", pa.int8()), ("blob", pa.binary())])
MARKS_COLUMN = "#marks"
"""In the frame of a join that feeds another: NULL in a row, and the marks in the one row per shard that is none."""

ROWS_PER_BLOB = 262_144

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Pack:
    """Packs the rows of one port: splits them by shard and sends their marks to every shard.

    ``lags`` gives the watermarked columns of a source; a port fed by a join has none and finds its marks in
    `MARKS_COLUMN`.
    Rows for which ``keep`` is false are only there for their event times and go no further. The columns arrive under
    other names
    and get ``names``: Spark would read the dot of ``alias.column`` as a path.
    """

    port: int
    code: str | None
    shards: tuple[int, ...]
    lags: tuple[tuple[str, int], ...]
    keep: str
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """Pack the batches of one map task."""
        waiting: list[list[pa.RecordBatch]] = [[] for _ in self.shards]
        rows = 0
        marks = _Folded()
        for batch in batches:
            batch = self._note_marks(batch.rename_columns(list(self.names)), marks)
            self._split(batch, waiting)
            rows += batch.num_rows
            if rows >= ROWS_PER_BLOB * len(self.shards):
                yield from self._flush(waiting)
                rows = 0
        yield from self._flush(waiting)
        if marks.marks:
            yield records([(shard, self.port, MARKS, marks.to_bytes()) for shard in self.shards])

    def _note_marks(self, batch: pa.RecordBatch, marks: _Folded) -> pa.RecordBatch:
        """Fold the marks that a batch brings; the rows that only carry marks are taken out."""
        for column, lag in self.lags:
            latest = pc.max(batch.column(column))
            if latest.is_valid:
                marks.fold({column: int(as_int64(pa.array([latest], latest.type))[0]) - lag}, lowest=False)
        kept = batch.column(self.keep)
        batch = batch.drop_columns([self.keep])
        if MARKS_COLUMN in batch.schema.names:
            carried = batch.column(MARKS_COLUMN)
            for text in carried.drop_null().to_pylist():
                marks.fold(json.loads(text), lowest=True)
            kept = pc.and_(kept, carried.is_null())
            batch = batch.drop_columns([MARKS_COLUMN])
        return batch if pc.all(kept).as_py() else batch.filter(kept)

    def _split(self, batch: pa.RecordBatch, waiting: list[list[pa.RecordBatch]]) -> None:
        if len(self.shards) == 1 or self.code is None:
            waiting[0].append(batch)
            return
        codes = as_int64(batch.column(self.code))
        if batch.column(self.code).null_count:
            # NULL keys match nothing, so any shard will do: spread them.
            codes = np.where(
                batch.column(self.code).is_null().to_numpy(zero_copy_only=False), np.arange(len(codes)), codes
            )
        shard = shard_of(codes, len(self.shards))
        order = np.argsort(shard, kind="stable")
        ordered = batch.take(pa.array(order))
        ends = np.cumsum(np.bincount(shard, minlength=len(self.shards)))
        start = 0
        for part, end in zip(waiting, ends.tolist(), strict=True):
            if end > start:
                part.append(ordered.slice(start, end - start))
            start = end

    def _flush(self, waiting: list[list[pa.RecordBatch]]) -> Batches:
        for shard, part in zip(self.shards, waiting, strict=True):
            if part and any(batch.num_rows for batch in part):
                yield records([(shard, self.port, ROWS, to_blob(part))])
            part.clear()


@dataclass(frozen=True)
class PackMarks:
    """Sends marks that come from outside, as rows ``(column, value)``, to every shard."""

    port: int
    shards: tuple[int, ...]
    columns: frozenset[str]

    def __call__(self, batches: Batches) -> Batches:
        """Pack the marks of one map task."""
        marks = _Folded()
        for batch in batches:
            for row in batch.to_pylist():
                if row["column"] in self.columns:
                    marks.fold({row["column"]: row["value"]}, lowest=False)
        if marks.marks:
            yield records([(shard, self.port, MARKS, marks.to_bytes()) for shard in self.shards])


@dataclass(frozen=True)
class Unpack:
    """Turns the records of a join back into rows of ``schema``; with ``marks``, its marks follow as rows too."""

    schema: pa.Schema
    kind: int = ROWS
    marks: bool = False

    def __call__(self, batches: Batches) -> Batches:
        """Unpack the records of one task."""
        target = self.schema.append(pa.field(MARKS_COLUMN, pa.string())) if self.marks else self.schema
        for batch in batches:
            kinds = batch.column("kind").to_pylist()
            for i, kind in enumerate(kinds):
                if kind == self.kind:
                    yield from self._rows(batch.column("blob")[i].as_buffer(), target)
                elif kind == REPORT and self.marks:
                    nulls = [pa.nulls(1, field.type) for field in self.schema]
                    watermarks = batch.column("watermarks")[i].as_py()
                    yield pa.RecordBatch.from_arrays([*nulls, pa.array([watermarks])], schema=target)

    def _rows(self, blob: pa.Buffer, target: pa.Schema) -> Batches:
        for batch in pa.ipc.open_stream(blob):
            columns = [_as_type(batch.column(f.name), f.type) for f in self.schema]
            if self.marks:
                columns.append(pa.nulls(batch.num_rows, pa.string()))
            yield pa.RecordBatch.from_arrays(columns, schema=target)


class _Folded:
    """Marks of a map task: of the rows of a source the latest per column, of the shards of a join the earliest."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.lowest = False

    def fold(self, marks: Marks, *, lowest: bool) -> None:
        choose: Callable[[int, int], int] = min if lowest else max
        self.lowest = lowest
        for column, value in marks.items():
            self.marks[column] = choose(value, self.marks.get(column, value))

    def to_bytes(self) -> bytes:
        return json.dumps({"lowest": self.lowest, "marks": self.marks}).encode()


def fold_marks(blobs: Sequence[bytes]) -> dict[str, int]:
    """The marks of a batch from the records of all its map tasks."""
    folded: dict[bool, _Folded] = {False: _Folded(), True: _Folded()}
    for blob in blobs:
        read = json.loads(blob)
        folded[read["lowest"]].fold(read["marks"], lowest=read["lowest"])
    return folded[False].marks | folded[True].marks


def to_blob(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Batches of one schema as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_blobs(blobs: Sequence[bytes]) -> pa.Table:
    """The rows of several blobs as one table."""
    return pa.concat_tables([pa.ipc.open_stream(pa.py_buffer(blob)).read_all() for blob in blobs])


def records(rows: list[tuple[int, int, int, bytes]]) -> pa.RecordBatch:
    """Records of the exchange as a batch."""
    return pa.RecordBatch.from_pylist([dict(zip(PACKED.names, row, strict=True)) for row in rows], schema=PACKED)


def _as_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    return column if column.type == type_ else column.cast(type_)
