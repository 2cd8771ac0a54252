"""Combines rows before the exchange: equal rows with their multiplicity, and changes that cancel out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
    VariantType,
)

from watersmeet.formats.records import CHANGE
from watersmeet.logical.expressions import quote
from watersmeet.operators.core.changes import MULTIPLICITY, WEIGHT, group_rows
from watersmeet.physical.columnar import AssignWindows
from watersmeet.spark.time_texts import EXACT

MIN_ROWS, MIN_RATIO = 1_000, 2
"""Of more rows than so few, one in so many at most must be left if putting them together is to be worth it."""
_SLOT = "#slot"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Precombine:
    """Combines rows that are equal but for their ``times``: one of them is sent, with their number.

    The times only advance watermarks, so the row that is sent has the latest of them. Skipped where few rows are equal.
    """

    times: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """The batches of one map task, with a column more, or with more in it."""
        is_worth_it = True
        for batch in batches:
            combined = self._combine(batch) if is_worth_it and batch.num_rows else _with_multiplicity(batch)
            is_worth_it = is_worth_it and _is_fewer(combined, batch)
            yield combined

    def _combine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = _group_equal_rows(batch, batch.drop_columns([name for name in self.times if name in batch.schema.names]))
        for name in self.times:
            at, latest = batch.schema.get_field_index(name), pc.max(batch.column(name))
            rows = rows.set_column(at, name, pa.repeat(latest, rows.num_rows))
        return rows


@dataclass(frozen=True)
class WindowPrecombine:
    """The same before rows are unfolded into windows: equal rows whose times are in the same windows."""

    unfold: AssignWindows

    def __call__(self, batches: Batches) -> Batches:
        """The batches of one map task, with a column more; the latest time of a batch is still in it."""
        is_worth_it = True
        for batch in batches:
            can_combine = is_worth_it and batch.num_rows and not batch.column(self.unfold.time).null_count
            combined = self._combine(batch) if can_combine else _with_multiplicity(batch)
            is_worth_it = is_worth_it and _is_fewer(combined, batch)
            yield combined

    def _combine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        windows = self.unfold.windows
        times: npt.NDArray[np.int64] = batch.column(self.unfold.time).view(pa.int64()).to_numpy()
        # All bounds of windows are whole multiples of it.
        length = gcd(windows.base, windows.first_end, windows.end)
        latest = int(times.argmax())
        # The first of equal rows is sent.
        order = np.concatenate([[latest], np.delete(np.arange(times.size), latest)])
        batch, slots = batch.take(pa.array(order)), times[order] // length
        return _group_equal_rows(batch, batch.drop_columns([self.unfold.time]).append_column(_SLOT, pa.array(slots)))


def _group_equal_rows(batch: pa.RecordBatch, compared: pa.RecordBatch) -> pa.RecordBatch:
    """Of rows whose compared columns are the same the first, with how many they are."""
    if MULTIPLICITY in batch.schema.names:
        weights: npt.NDArray[np.int64] = batch.column(MULTIPLICITY).to_numpy()
        batch, compared = batch.drop_columns([MULTIPLICITY]), compared.drop_columns([MULTIPLICITY])
    else:
        number: int = batch.num_rows
        weights = np.ones(number, np.int64)
    places, multiplicities = group_rows(pa.Table.from_batches([compared]), weights)
    return batch.take(pa.array(places)).append_column(MULTIPLICITY, pa.array(multiplicities, pa.int64()))


def _with_multiplicity(batch: pa.RecordBatch) -> pa.RecordBatch:
    if MULTIPLICITY in batch.schema.names:
        return batch
    number: int = batch.num_rows
    return batch.append_column(MULTIPLICITY, pa.array(np.ones(number, np.int64)))


def _is_fewer(combined: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    return batch.num_rows < MIN_ROWS or combined.num_rows * MIN_RATIO <= batch.num_rows


def consolidate(changes: DataFrame) -> DataFrame:
    """The columns of a table and ``#weight``: the net insertions (above 0) or deletions (below) of each row.

    The input has ``_change``, or ``#weight`` already.
    """
    names = columns_of(changes)
    weight = F.col(quote(WEIGHT)) if WEIGHT in changes.columns else F.when(F.col(CHANGE) == "-", -1).otherwise(1)
    keyed = changes.select(
        *(F.col(quote(n)) for n in names), weight.cast("bigint").alias(WEIGHT), *comparison_columns(changes)
    )
    values = [F.first(quote(name)).alias(name) for name in names]
    summed = keyed.groupBy(*comparison_names(changes)).agg(F.sum(quote(WEIGHT)).alias(WEIGHT), *values)
    return summed.where(F.col(quote(WEIGHT)) != 0).select(*(F.col(quote(n)) for n in (*names, WEIGHT)))


def columns_of(changes: DataFrame) -> list[str]:
    """The columns of the table itself."""
    return [name for name in changes.columns if name not in (CHANGE, WEIGHT)]


def comparison_columns(frame: DataFrame, suffix: str = "") -> Sequence[Column]:
    """What equal rows have in common, one column for each, under the names of `comparison_names`."""
    types = {field.name: field.dataType for field in frame.schema}
    columns: list[Column] = []
    for name, key in zip(columns_of(frame), comparison_names(frame, suffix), strict=True):
        column = F.col(quote(name))
        # A map cannot be compared, and texts may be equal in their collation that are not the same.
        plain = column if _is_plain(types[name]) else F.to_json(F.struct(column.alias("v")), EXACT)
        columns.append(plain.alias(key))
    return columns


def comparison_names(frame: DataFrame, suffix: str = "") -> list[str]:
    """The names of what rows are compared by."""
    return [f"#{number}{suffix}" for number in range(len(columns_of(frame)))]


def _is_plain(type_: DataType) -> bool:
    match type_:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return _is_plain(type_.elementType)
        case StructType():
            return all(_is_plain(field.dataType) for field in type_)
        case CharType() | VarcharType():
            return True
        case StringType():
            return type_.isUTF8BinaryCollation()
        case _:
            return True
