"""Rows of files in their order of arrival: which rows of a blob are of which file, and blobs merged by that.

A key says where the rows of a run stand in the order: the part of a union, the time of the file, its path, and where
in it the run begins. Rows of equal keys are in the order of delivery. This module runs in Spark's workers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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

        A dictionary of files is of no union.
        """
        if pa.types.is_dictionary(files.type):
            keys = [self._number(0, **file) for file in files.dictionary.to_pylist()]
            return pa.array(np.array(keys, np.int64)[files.indices.to_numpy()])
        columns = _key_columns(files, parts)
        starts = _run_starts(columns, len(files))
        runs = zip(*(column.take(pa.array(starts)).to_pylist() for column in columns), strict=True)
        numbers = [self._number(*run) for run in runs]
        lengths = np.diff(np.append(starts, len(files)))
        return pa.array(np.repeat(np.array(numbers, np.int64), lengths))

    def _number(self, part: int, time: int, path: str, start: int) -> int:
        # Spark writes paths as addresses: the order is that of the names that people know.
        return self._numbers.setdefault((part, time, unquote(path), start), len(self._numbers))

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
    """The rows of blobs, one behind the other, in the order of their files; ``runs``: those of each blob.

    A column of that name, which tells the order of delivery, then tells this one.
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
