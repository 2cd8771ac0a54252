"""The output of a shard in a batch: rows as records, metrics, and whether the row count bounds their bytes."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from watersmeet.operators import state_schema_of
from watersmeet.operators.core.matching import Histogram
from watersmeet.operators.core.operator import (
    EXAMPLE_PREFIX,
    HISTOGRAMS,
    OWN_WATERMARK_PREFIX,
    PORT_COUNTERS,
    SUMMED_COUNTERS,
    WATERMARK_PREFIX,
    Emission,
    ShardMetrics,
    StepReport,
    StreamOperator,
    merge_step_reports,
    port_names,
)
from watersmeet.operators.core.python_values import python_rows
from watersmeet.operators.state.layout import to_record_batch
from watersmeet.operators.state.shard import LATE_BY, LATE_COLUMN
from watersmeet.spark.exchange.packing import LATE, PACKED, ROWS, SPACER, UNMATCHED, spacers, split_batches, to_blob
from watersmeet.spark.private.transfer import PythonTransfer

if TYPE_CHECKING:
    import pandas as pd


OUTPUT_DDL = "kind TINYINT, port TINYINT, blob BINARY, report STRING"
"""The records of an operator. Few columns: what a frame costs on its way through pandas is per column."""
ROWS_PER_BATCH = 1_024
"""Batches that have fewer rows on average leave as one."""
BYTES_PER_FRAME = 4 * 2**20
"""The number of waiting bytes of records at which they are handed to Spark."""
Made = TypeVar("Made")
OUTPUT_NAMES = [part.split()[0] for part in OUTPUT_DDL.split(", ")]


class OutputBuffer:
    """Records that are not sent to Spark yet. Consecutive rows of one kind become one record.

    ``room``: the maximum number of bytes per record, where Spark counts records only.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.records: list[tuple[int, int | None, bytes | None, str | None]] = []
        self.batches: list[pa.RecordBatch] = []
        self.kind: tuple[int, int | None] = (ROWS, None)
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to hand them to Spark."""
        return self.bytes > BYTES_PER_FRAME

    def add_rows(self, table: pa.Table | pa.RecordBatch, kind: int = ROWS, port: int | None = None) -> None:
        """Take rows."""
        if self.batches and ((kind, port) != self.kind or not table.schema.equals(self.batches[0].schema)):
            self.close()
        self.kind = kind, port
        self.batches += [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
        self.bytes += table.nbytes

    def add(self, kind: int, port: int | None = None, *, blob: bytes | None = None, report: str | None = None) -> None:
        """Take a record that is complete."""
        self.close()
        self._append(kind, port, blob, report)
        self.bytes += len(blob or b"")

    def take_frames(self) -> Iterator[pd.DataFrame]:
        """All of it, as Spark takes it: each frame has about `BYTES_PER_FRAME` bytes at most."""
        import pandas as pd  # imported late: only workers that run a batch need it

        self.close()
        records, self.records, self.bytes = self.records, [], 0
        start = size = 0
        for number, (_, _, blob, _) in enumerate(records):
            if size and size + len(blob or b"") > BYTES_PER_FRAME:
                yield pd.DataFrame(records[start:number], columns=pd.Index(OUTPUT_NAMES), dtype=object)
                start, size = number, 0
            size += len(blob or b"")
        if start < len(records):
            yield pd.DataFrame(records[start:], columns=pd.Index(OUTPUT_NAMES), dtype=object)

    def close(self) -> None:
        """Make a record of the rows that wait."""
        if self.batches:
            rows = sum(batch.num_rows for batch in self.batches)
            if rows < ROWS_PER_BATCH * len(self.batches):
                # Each costs as much as so many rows on its way out, and there are some of every shard.
                self.batches = [to_record_batch(pa.Table.from_batches(self.batches))]
            batches, self.batches = self.batches, []
            for piece in split_batches(batches):
                self._append(*self.kind, to_blob(piece))

    def _append(self, kind: int, port: int | None, blob: bytes | None, report: str | None = None) -> None:
        self.records.append((kind, port, blob, report))
        self.records += [(SPACER, None, None, None)] * spacers(blob, self.room)


class OperatorCounters:
    """The work of a join in a batch of a shard: the reports of its steps, its output rows, its seconds.

    Waiting for Spark does not count as work; reading and writing the state does. ``counted`` are the ports whose rows
    this shard counts, ``output`` takes the output; unless the join ``is_last`` of its operator chain, its rows go to
    the next one and are only counted.
    """

    def __init__(
        self,
        operator: StreamOperator,
        counted: frozenset[int],
        output: OutputBuffer,
        examples: Examples | None = None,
        *,
        is_last: bool = True,
    ) -> None:
        self.operator = operator
        self.is_last = is_last
        self.counted = counted
        self.output = output
        self.examples = examples
        self.reports: list[StepReport] = []
        self.rows = 0
        self.seconds = 0.0

    @contextmanager
    def measure_time(self) -> Generator[None]:
        """The time in here counts."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - began

    def measure_each(self, pieces: Iterator[Made]) -> Iterator[Made]:
        """The same pieces; the time to make each counts, that to hand it on does not."""
        while True:
            with self.measure_time():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def emit_rows(self, table: pa.Table | pa.RecordBatch, kind: int = ROWS, port: int | None = None) -> None:
        """Emit rows; a table without rows is skipped."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        if self.examples is not None and kind == ROWS:
            self.examples.take(table)
        if self.is_last or kind != ROWS:
            with self.measure_time():
                self.output.add_rows(table, kind, port)

    def add_emission(self, emission: Emission) -> None:
        """Emit the rows of an emission, and add its report."""
        self.reports.append(emission.report)
        if self.examples is not None:
            self.examples.take_late(emission.report.too_late)
        for table in emission.rows:
            self.emit_rows(table)
        for port, table in emission.late:
            if port in self.counted and table.num_rows:
                self.output.add_rows(table, LATE, port)
        for port, table in emission.unmatched:
            self.emit_rows(table, UNMATCHED, port)

    @cached_property
    def report(self) -> StepReport:
        """The numbers of the batch, once all its steps are done."""
        return merge_step_reports(self.reports)

    def to_text(self) -> str:
        """The report for the next operator and for tests, as text of a record."""
        report = self.report
        summary: dict[str, object] = {name: self._own_counts(getattr(report, name)) for name in ("state", "partitions")}
        return json.dumps(summary | {"watermarks": dict(report.watermarks)}, default=int)

    def collect_metrics(self, times: Sequence[str]) -> ShardMetrics:
        """The metrics of the batch, to be merged with those of other shards; with the watermarks of these columns.

        Ports that another shard counts are left out. A join without input in this batch only reports its name.
        """
        sides = port_names(len(self.operator.result_columns))
        highest: dict[str, Any] = {"operator": self.operator.name}
        if not self.reports:
            return {"sum": {f"rows_{side}": 0 for side in sides}, "highest": highest}
        report = self.report
        sums: dict[str, Any] = {name: getattr(report, name) for name in SUMMED_COUNTERS}
        sums |= {"emitted": self.rows, "seconds": self.seconds, "shards": 1}
        highest["fullest"] = sum(self._own_counts(report.state))
        for name, values in (
            {name: getattr(report, name) for name in PORT_COUNTERS} | self._state_writes(report)
        ).items():
            counted = self._own_counts(values)
            for port, side in enumerate(sides):
                is_sum = name != "partitions" or self.operator.is_partitioned(port)
                (sums if is_sum else highest)[f"{name}_{side}"] = counted[port] if port < len(counted) else None
        if self.examples is not None:
            highest |= {f"{EXAMPLE_PREFIX}{kind}": json.dumps(rows) for kind, rows in self.examples.by_kind.items()}
        lowest = {f"{WATERMARK_PREFIX}{time}": report.watermarks.get(time) for time in times}
        lowest |= {f"{OWN_WATERMARK_PREFIX}{time}": report.received.get(time) for time in times}
        spreads = {name: _ranges_in_use(getattr(report, name)) for name in HISTOGRAMS}
        return {"sum": sums, "highest": highest, "lowest": lowest, "sums": spreads}

    def _own_counts(self, values: Sequence[int]) -> list[int]:
        """Numbers per port, those that this shard counts."""
        return [value if port in self.counted else 0 for port, value in enumerate(values)]

    def _state_writes(self, report: StepReport) -> dict[str, Sequence[int]]:
        """Rows that were written to the state per port, and their bytes: a port may have several spines."""
        counts = [[0] * len(report.rows) for _ in range(2)]
        if report.stored:
            keeping, identity = state_schema_of(self.operator.name), self.operator.identity
            for spine, amounts in report.stored.items():
                port = keeping.spine(identity, spine).port
                for count, amount in zip(counts, amounts, strict=True):
                    count[port] += amount
        return dict(zip(("stored", "bytes"), counts, strict=True))


def _ranges_in_use(counts: Histogram | None) -> dict[str, float] | None:
    """Those ranges that hold something, by their numbers."""
    return None if counts is None else {str(number): count for number, count in enumerate(counts.tolist()) if count}


_FIXED = (
    NumericType, BooleanType, DateType, TimestampType, TimestampNTZType, DayTimeIntervalType, YearMonthIntervalType,
)  # fmt: skip
_WIDEST = 16
"""The maximum size of a fixed-width value, as of decimals."""
_OURS = (
    # From the exchange into a join, under the label of the group; out of a join, into rows or into the next exchange.
    ([PACKED.names[0], *PACKED.names], OUTPUT_NAMES),
    (OUTPUT_NAMES, None),
    # Paths of files that workers read, and external watermarks: few and short rows.
    (["path"], PACKED.names),
    (["column", "value"], PACKED.names),
)
"""The transfers to Python that the exchange itself makes, by the names of their columns in and out; None: any."""


def is_bounded(crossings: Iterable[PythonTransfer], room: int | None) -> bool:
    """Whether rows cross, and none exceeds its room; our own records have spacers, see `packing`."""
    rows = [transfer.input_schema for transfer in crossings if not _is_ours(transfer)]
    return room is not None and bool(rows) and all(_width(schema) <= room for schema in rows)


def _is_ours(transfer: PythonTransfer) -> bool:
    return any(
        transfer.input_schema.names == given and made in (None, transfer.output_schema.names) for given, made in _OURS
    )


def _width(type_: DataType) -> float:
    """The largest number of bytes of a value of a type."""
    if isinstance(type_, StructType):
        return 1 + sum(_width(field.dataType) for field in type_)
    return _WIDEST if isinstance(type_, _FIXED) else inf


ROWS_PER_KIND = 3
"""The number of examples per kind, shard and batch."""


MAX_CHARACTERS = 200
"""The maximum length of a value in an example."""


_PADDED = "#padded"


class Examples:
    """Takes what an operator hands out, and keeps the latest few rows of each kind, as text.

    A row counts as joined if each side has a value in a column that no joined row leaves NULL, a key or a time; where a
    side shows no such column, its rows count as ``joined``. Nothing here may fail a query: rows that cannot be shown
    are counted as ``dropped``, with the reason.
    """

    def __init__(self, operator: StreamOperator) -> None:
        self._certain = [
            next((name for name in side.columns if name in (*side.keys, *side.times)), None) for side in operator.ports
        ]
        self._pads = [bool(side.columns) for side in operator.ports]
        self.by_kind: dict[str, list[dict[str, str | None]]] = {}
        self._dropped = 0

    def take(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take rows of the result."""
        try:
            self._take(table)
        except Exception as error:
            self._drop(error)

    def take_late(self, tables: Sequence[pa.Table]) -> None:
        """Take late rows, each with the watermark it missed."""
        try:
            self._take_late(tables)
        except Exception as error:
            self._drop(error)

    def _take(self, table: pa.Table | pa.RecordBatch) -> None:
        last = table.slice(max(0, table.num_rows - ROWS_PER_KIND))
        is_padded = self._find_padded(last)
        unknown = "joined" if len(self._certain) > 1 else "out"
        for number, row in enumerate(python_rows(last)):
            self._keep(
                unknown if is_padded is None else "padded" if is_padded[number] else "matched", _row_as_text(row)
            )

    def _take_late(self, tables: Sequence[pa.Table]) -> None:
        for table in tables:
            for row in python_rows(table):
                missed = {"late_by": None if row[LATE_BY] is None else str(row[LATE_BY]), "watermark": row[LATE_COLUMN]}
                self._keep("late", _row_as_text(row) | missed)

    def _drop(self, error: Exception) -> None:
        self._dropped += 1
        reason = f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]
        self.by_kind["dropped"] = [{"times": str(self._dropped), "reason": reason}]

    def _keep(self, kind: str, row: dict[str, str | None]) -> None:
        self.by_kind[kind] = [*self.by_kind.get(kind, ()), row][-ROWS_PER_KIND:]

    def _find_padded(self, table: pa.Table | pa.RecordBatch) -> Any:
        """A mask of the rows that lack a side; None if that is unknown."""
        names = table.schema.names
        if _PADDED in names:
            return table.column(_PADDED).to_numpy(zero_copy_only=False) >= 0
        if len(self._certain) < 2 or any(
            shows and name not in names for name, shows in zip(self._certain, self._pads, strict=True)
        ):
            return None
        is_padded = np.zeros(table.num_rows, np.bool_)
        for name in (name for name in self._certain if name in names):
            is_padded |= ~table.column(name).is_valid().to_numpy(zero_copy_only=False)
        return is_padded


def _row_as_text(row: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value)[:MAX_CHARACTERS] for name, value in row.items() if "#" not in name
    }
