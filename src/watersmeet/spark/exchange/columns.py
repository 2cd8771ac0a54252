"""The way of rows to an exchange over whole columns, in a worker: what `watersmeet.physical.columnar` has planned.

Equal rows are combined before the exchange: they become one, with their multiplicity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import assert_never
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import MULTIPLICITY, OP, WEIGHT, group_rows
from watersmeet.operators.core.condition import (
    AssignWindows,
    Compute,
    Condition,
    DeriveChange,
    FieldAccess,
    Filter,
    Projection,
    Step,
    columns_of,
    evaluate,
    holds,
)
from watersmeet.operators.core.routing import code_of, is_hashable

KEEP = "#keep"
"""Whether a row is kept; without the column, all are."""
WATERMARKS_COLUMN, LATE_ROW = "#marks", "#late"
"""In the frame of a join that feeds another: NULL in a row; a record that is not a row has one of them."""
PART = "#part"
"""In the frame of a union: the number of the part a row comes from."""
PARTITION = "#partition"
"""In the frame of a source whose partitions have separate watermarks: the partition of a row."""
ORDER = "#order"
"""In the frame of a source that orders its changes itself: a number that grows with the order."""
FILE = "#file"
"""In the frame of files whose rows count in the order of arrival: the file of a row, see `with_files`."""
METADATA_COLUMNS = (KEEP, WATERMARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER)
"""Metadata columns that accompany the columns of every row."""

MAX_UNFOLDED_ROWS = 262_144
"""Rows of no more windows than so many are unfolded at once."""
Codes = tuple[tuple[str, tuple[str, ...]], ...]
"""Columns that are hashes, each with the columns it is a hash of."""


@dataclass(frozen=True)
class ColumnPipeline:
    """Applies the ``steps`` to rows and returns rows of ``schema``, as Spark would have made them.

    ``codes``: its columns that are hashes of others; ``precombine``: combines equal rows.
    """

    steps: tuple[Step, ...]
    schema: pa.Schema
    codes: Codes = ()
    precombine: Precombine | None = None

    def __call__(self, batches: Batches) -> Batches:
        """The batches of one map task, as they go to the exchange."""
        steps = self.steps
        unfold = next((step for step in steps if isinstance(step, AssignWindows)), None)
        if unfold is not None:
            place = steps.index(unfold)
            batches, steps = _apply_steps(steps[:place], batches), steps[place:]
            if self.precombine is not None and self._moves_watermarks_only(unfold, steps[1:]):
                batches = WindowPrecombine(unfold)(batches)
            batches = _slice_batches(batches, max(1, MAX_UNFOLDED_ROWS // unfold.windows.number))
        transformed = _apply_steps(steps, batches)
        return map(self._output_batch, transformed if self.precombine is None else self.precombine(transformed))

    def _moves_watermarks_only(self, unfold: AssignWindows, behind: tuple[Step, ...]) -> bool:
        """Whether only watermarks depend on the times by which rows were unfolded into windows."""
        if unfold.is_outer or self.precombine is None or len(behind) != 1 or not isinstance(behind[0], Projection):
            return False
        readers = [name for name, value in behind[0].columns if unfold.time in _input_columns(value)]
        return all(name in self.precombine.times for name in readers)

    def _output_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        hashes = dict(self.codes)
        arrays = {
            field.name: _cast(batch.column(field.name), field) for field in self.schema if field.name not in hashes
        }
        for name, columns in self.codes:
            arrays[name] = pa.array(code_of([arrays[column] for column in columns]))
        shown = pa.RecordBatch.from_arrays([arrays[field.name] for field in self.schema], schema=self.schema)
        return shown if self.precombine is None else shown.append_column(MULTIPLICITY, batch.column(MULTIPLICITY))

    def can_take(self, leaf: pa.Schema) -> bool:
        """Whether all of it can be done to rows of a leaf, and gives the types of Spark."""
        if not len(leaf) or not all(columns for _, columns in self.codes):
            return False
        if not all(is_hashable(self.schema.field(column).type) for _, columns in self.codes for column in columns):
            return False
        try:
            list(self(iter([pa.RecordBatch.from_arrays([pa.array([], field.type) for field in leaf], schema=leaf)])))
        except (pa.ArrowException, KeyError, TypeError):
            return False
        return True


def _slice_batches(batches: Batches, rows: int) -> Batches:
    for batch in batches:
        for start in range(0, max(batch.num_rows, 1), rows):
            yield batch.slice(start, rows)


def _input_columns(value: Condition | FieldAccess) -> frozenset[str]:
    return frozenset({value.column}) if isinstance(value, FieldAccess) else columns_of(value)


def _apply_steps(steps: tuple[Step, ...], batches: Batches) -> Batches:
    return (reduce(_apply_step, steps, batch) for batch in batches)


def _apply_step(batch: pa.RecordBatch, step: Step) -> pa.RecordBatch:
    match step:
        case Filter():
            return _apply_keep(step, batch)
        case DeriveChange():
            return _apply_change(step, batch)
        case AssignWindows():
            return _apply_unfold(step, batch)
        case Projection():
            return _apply_show(step, batch)
        case Compute(name, condition, is_dead):
            if is_dead:
                return batch.append_column(name, pa.array(~_holds(condition, batch)))
            return batch.append_column(name, _value(condition, batch))
        case _:
            assert_never(step)


def _apply_change(step: DeriveChange, batch: pa.RecordBatch) -> pa.RecordBatch:
    kind = pa.int64() if step.column == WEIGHT else pa.int8()
    comes, goes = (pa.scalar(number, kind) for number in (1, -1))
    if step.origin not in batch.schema.names or batch.column(step.origin).null_count == batch.num_rows:
        return batch.append_column(step.column, pa.repeat(comes, batch.num_rows))
    is_gone = pc.fill_null(pc.equal(batch.column(step.origin), "-"), False)
    return batch.append_column(step.column, pc.if_else(is_gone, goes, comes))


def _apply_keep(step: Filter, batch: pa.RecordBatch) -> pa.RecordBatch:
    is_true = pa.array(_holds(step.condition, batch))
    if step.beats is None:
        return _with_keep(batch, is_true)
    place, values = batch.schema.get_field_index(step.beats), batch.column(step.beats)
    return batch.set_column(place, step.beats, pc.if_else(is_true, values, pa.scalar(-1, values.type)))


def _with_keep(batch: pa.RecordBatch, keep: pa.Array) -> pa.RecordBatch:
    """The batch, with this condition added to the kept rows."""
    place = batch.schema.get_field_index(KEEP)
    if place < 0:
        return batch.append_column(KEEP, keep)
    return batch.set_column(place, KEEP, pc.and_(batch.column(place), keep))


def _apply_unfold(step: AssignWindows, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Windows as Spark counts them, from 1970 on."""
    times = batch.column(step.time)
    if not pa.types.is_timestamp(times.type):
        raise TypeError(f"{times.type} is not a time type")
    if step.is_outer:
        batch = _with_keep(batch, times.is_valid())
    elif times.null_count:
        is_there = times.is_valid()
        batch, times = batch.filter(is_there), times.filter(is_there)
    windows, micros = step.windows, times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    base, numbers = micros // windows.base * windows.base, np.arange(windows.number)
    starts, ends = (
        base[:, None] + first + each * numbers for first, each in ((0, windows.start), (windows.first_end, windows.end))
    )
    if windows.number > 1:
        lies_in = ends > micros[:, None]
        rows = np.repeat(np.arange(len(micros)), lies_in.sum(axis=1))
        batch, starts, ends = batch.take(pa.array(rows)), starts[lies_in], ends[lies_in]
    bounds = [pa.array(bound.ravel()).view(times.type) for bound in (starts, ends)]
    return batch.append_column(step.name, pa.StructArray.from_arrays(bounds, ["start", "end"]))


def _apply_show(step: Projection, batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    arrays = [_value(value, batch) for _, value in step.columns]
    passthrough = [name for name in names if name in (*METADATA_COLUMNS, WEIGHT, OP, MULTIPLICITY)]
    arrays += [
        _rename_watermarks(batch.column(name), step.watermarks) if name == WATERMARKS_COLUMN else batch.column(name)
        for name in passthrough
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*(name for name, _ in step.columns), *passthrough])


def _rename_watermarks(watermarks: pa.Array, names: tuple[tuple[str, str], ...]) -> pa.Array:
    """Watermarks under the names that their times have behind a view, which may show one of them under several."""
    if watermarks.null_count == len(watermarks):
        return watermarks

    def rename(text: str | None) -> str | None:
        if text is None:
            return None
        values = json.loads(text)
        return json.dumps({outer: values[inner] for inner, outer in names if values.get(inner) is not None})

    return pa.array(map(rename, watermarks.to_pylist()), watermarks.type)


def _value(value: Condition | FieldAccess, batch: pa.RecordBatch) -> pa.Array:
    if isinstance(value, FieldAccess):
        return pc.struct_field(batch.column(value.column), value.name)
    return evaluate(value, batch.column, batch.num_rows)


def _holds(condition: Condition, batch: pa.RecordBatch) -> np.ndarray:
    return holds(condition, batch.column, batch.num_rows)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    return column if column.type == field.type else column.cast(field.type)


Ints = npt.NDArray[np.int64]
FileKey = tuple[int, int, str, int]
"""The part of a union, the time of a file, its path, and where in it a run of rows begins."""
TIME, PATH, START = "time", "path", "start"
"""The fields of the column that says which file a row is of."""


class FileKeys:
    """The keys of the runs that a map task has seen, each under a number."""

    def __init__(self) -> None:
        self._numbers: dict[FileKey, int] = {}

    def numbers_of(self, files: pa.Array, parts: pa.Array | None) -> pa.Array:
        """The number of each row's key; ``parts``: those of a union that the rows come from.

        A dictionary of files is of no union, and comes from a worker that has read them by their plain paths.
        """
        if pa.types.is_dictionary(files.type):
            keys = [self._number(0, file[TIME], file[PATH], file[START]) for file in files.dictionary.to_pylist()]
            return pa.array(np.array(keys, np.int64)[files.indices.to_numpy()])
        columns = _key_columns(files, parts)
        starts = _run_starts(columns, len(files))
        runs = zip(*(column.take(pa.array(starts)).to_pylist() for column in columns), strict=True)
        # Spark writes paths as addresses: the order is that of the names that people know.
        numbers = [self._number(part, time, unquote(path), start) for part, time, path, start in runs]
        lengths = np.diff(np.append(starts, len(files)))
        return pa.array(np.repeat(np.array(numbers, np.int64), lengths))

    def _number(self, part: int, time: int, path: str, start: int) -> int:
        return self._numbers.setdefault((part, time, path, start), len(self._numbers))

    def sort(self, batches: Sequence[pa.RecordBatch], column: str) -> tuple[Sequence[pa.RecordBatch], bytes]:
        """Batches in the order of the keys that ``column`` has the numbers of, without it; and the lengths of runs."""
        numbers: Ints = np.concatenate([batch.column(column).to_numpy() for batch in batches])
        keys = list(self._numbers)
        present, inverse = np.unique(numbers, return_inverse=True)
        present_keys: list[FileKey] = [keys[int(number)] for number in present]
        by_key = sorted(range(len(present_keys)), key=present_keys.__getitem__)
        ranks = np.argsort(np.array(by_key, np.int64))[inverse]
        rest = [batch.drop_columns([column]) for batch in batches]
        if (ranks[1:] < ranks[:-1]).any():
            order = pa.array(np.argsort(ranks, kind="stable"))
            rest = pa.Table.from_batches(rest).take(order).to_batches()
        counts = np.bincount(ranks, minlength=present.size).tolist()
        return rest, json.dumps([[*present_keys[n], counts[place]] for place, n in enumerate(by_key)]).encode()


def merge_runs_of_files(table: pa.Table, runs: Sequence[bytes], position: str) -> pa.Table:
    """The rows of several blobs in the order of their files; ``runs``: those of each blob.

    A column of that name with the order of delivery then has this order.
    """
    keys: list[FileKey] = []
    lengths: list[int] = []
    for text in runs:
        for part, time, path, start, length in json.loads(text):
            keys.append((part, time, path, start))
            lengths.append(length)
    ranks_by_key = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    ranks = np.repeat(np.array([ranks_by_key[key] for key in keys], np.int64), lengths)
    if (ranks[1:] < ranks[:-1]).any():
        table = table.combine_chunks().take(pa.array(np.argsort(ranks, kind="stable")))
    if position in table.column_names:
        places = np.sort(table.column(position).to_numpy())
        table = table.set_column(table.column_names.index(position), position, pa.array(places))
    return table


def _key_columns(files: pa.Array, parts: pa.Array | None) -> list[pa.Array]:
    """The parts of the keys by row; rows of other sources have the least time and no path."""
    length = len(files)
    own = [pa.repeat(pa.scalar(0, pa.int32()), length) if parts is None else parts]
    fields = dict(zip((field.name for field in files.type), files.flatten(), strict=True))
    return [*own, *(pc.fill_null(fields[name], empty) for name, empty in ((TIME, 0), (PATH, ""), (START, 0)))]


def _run_starts(columns: Sequence[pa.Array], length: int) -> Ints:
    """The rows with which a run begins: their key is another than that of the row before."""
    if not length:
        return np.zeros(0, np.int64)
    begins = np.zeros(length, np.bool_)
    begins[0] = True
    for column in columns:
        begins[1:] |= pc.not_equal(column.slice(1), column.slice(0, length - 1)).to_numpy(zero_copy_only=False)
    return np.flatnonzero(begins)


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
