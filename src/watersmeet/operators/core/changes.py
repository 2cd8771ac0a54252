"""Tables as Z-sets: rows with integer weights, and the arithmetic on them.

A table of changes has a column `WEIGHT`: the row n times more, or n times less. Two rows are the same when all their
columns are, bit by bit: NULL is NULL and NaN is NaN, but -0.0 is not 0.0, since they show differently. Keys are equal
as SQL has it, where -0.0 is 0.0; a NULL key here equals itself, and whether it may match is for others to say.

Invariant. Values are never compared one by one: every column, nested ones too, has a flat form with the same equalities
(`_flatten`), by which Arrow groups rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.matching import Ints

WEIGHT = "#weight"
"""int64: how often a row comes to a table, or, if negative, leaves it."""
OP = "#op"
"""int8: 1, the row takes the place of the one with its key; -1, the row with that key leaves."""
MULTIPLICITY = "#copies"
"""int64: how often a row of a stream comes that stands for others like it; without it a row comes once."""
POSITION = "#position"
"""int64: the place of a change in the order of delivery, which counts among changes of one key in a batch."""

ROWS_PER_PIECE = 262_144
"""So many rows of a result come out at once: a column of them must stay below the 2 GiB that Arrow allows it."""

_ROW = "#row"
_NULL = np.uint64(0x9C63E1A5D07B2F48)
_Words = npt.NDArray[np.uint64]


def consolidate_changes(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table with equal rows put together, their weights added, and those of weight zero gone.

    It has ``columns`` and `WEIGHT`, and the rows in the order in which they first came. Names may occur twice.

    >>> changes = pa.table({"a": [1, None, 1, None], WEIGHT: [1, 2, -1, 3]})
    >>> consolidate_changes(changes, ["a"]).to_pydict()
    {'a': [None], '#weight': [5]}
    """
    weights = table.column(table.schema.names.index(WEIGHT))
    shown = _select_columns(table, columns)
    first, totals = group_rows(shown, weights.to_numpy())
    is_nonzero = totals != 0
    if not columns:
        return pa.table({WEIGHT: pa.array(totals[is_nonzero], pa.int64())})
    rows = shown if len(first) == len(shown) and bool(is_nonzero.all()) else shown.take(pa.array(first[is_nonzero]))
    return rows.append_column(WEIGHT, pa.array(totals[is_nonzero], pa.int64()))


def group_rows(table: pa.Table, weights: Ints) -> tuple[Ints, Ints]:
    """For each distinct row of the table the place where it first stands, and the sum of its weights.

    >>> [part.tolist() for part in group_rows(pa.table({"a": [7, 8, 7]}), np.array([1, 1, 2]))]
    [[0, 1], [3, 1]]
    """
    if not weights.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    flat = [part for column in table.columns for part in _flatten(_combine_chunks(column), is_key=False)]
    if not flat:
        return np.zeros(1, np.int64), np.array([weights.sum()])
    names = [str(number) for number in range(len(flat))]
    keyed = pa.Table.from_arrays(
        [*flat, pa.array(weights), pa.array(np.arange(table.num_rows))], names=[*names, WEIGHT, _ROW]
    )
    groups = keyed.group_by(names, use_threads=False).aggregate([(_ROW, "min"), (WEIGHT, "sum")])
    first, totals = groups.column(f"{_ROW}_min").to_numpy(), groups.column(f"{WEIGHT}_sum").to_numpy()
    # Arrow gives groups in no order that it promises.
    order = np.argsort(first, kind="stable")
    return first[order], totals[order]


def key_ids(table: pa.Table | pa.RecordBatch, keys: Sequence[str]) -> Ints:
    """A number for each row that is the same where all keys are equal, NULL to NULL, NaN to NaN and -0.0 to 0.0.

    The numbers say something within this table only; none between 0 and the highest is missing.

    >>> key_ids(pa.table({"k": ["a", None, "a", None]}), ["k"]).tolist()
    [0, 1, 0, 1]
    """
    flat = [part for name in keys for part in _flatten(_combine_chunks(table.column(name)), is_key=True)]
    return _ids(flat, table.num_rows)


def first_positions(ids: Ints) -> Ints:
    """The first row of each of the numbers that `key_ids` or `row_ids` gave.

    >>> first_positions(np.array([1, 0, 1, 2])).tolist()
    [1, 0, 3]
    """
    positions = np.empty(int(ids.max(initial=-1)) + 1, np.int64)
    # Of several assignments to one place, numpy lets the last stand.
    positions[ids[::-1]] = np.arange(len(ids))[::-1]
    return positions


def row_ids(table: pa.Table | pa.RecordBatch) -> Ints:
    """A number for each row that is the same where all columns are, bit by bit; it says something here only.

    >>> row_ids(pa.table({"k": [0.0, -0.0, 0.0]})).tolist()
    [0, 1, 0]
    """
    flat = [part for column in table.columns for part in _flatten(_combine_chunks(column), is_key=False)]
    return _ids(flat, table.num_rows)


def row_codes(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Ints:
    """A hash of these columns for each row, computed in the worker: equal where the rows, or keys, are equal.

    It takes all types, and never changes with time: states are found by it. `Port.code`, by contrast, is computed
    before the shuffle, as Spark's hash.

    >>> codes = row_codes(pa.table({"a": [0.0, -0.0, None], "b": [[1], [1], []]}), ["a", "b"])
    >>> bool(codes[0] == codes[1]), bool(codes[0] == codes[2])
    (True, False)
    """
    codes = np.zeros(table.num_rows, np.uint64)
    for name in columns:
        codes = _mix(codes) ^ _hash(_combine_chunks(table.column(name)))
    return codes.view(np.int64)


class ChangeBuffer:
    """Changes on their way out, put together as far as they fit in memory.

    Where less than a piece comes in all, nothing comes out that cancels out. Of more than that, this is so for each
    piece: the pieces add up to the same table, but a row may come in one and go in another.
    """

    def __init__(self, columns: Sequence[str], size: int = ROWS_PER_PIECE) -> None:
        self.columns = tuple(columns)
        self.size = size
        self.parts: list[pa.Table] = []
        self.rows = 0

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Take in changes: these columns and then `WEIGHT`, none zero; gives a piece when there is enough for one."""
        if not table.num_rows:
            return
        self.parts.append(table)
        self.rows += table.num_rows
        if self.rows < self.size:
            return
        self._consolidate()
        # Where half of it has cancelled out, it is worth while to wait for more.
        if 2 * self.rows >= self.size:
            yield from self.flush()

    def flush(self) -> Iterator[pa.Table]:
        """Emit the changes that are still buffered."""
        self._consolidate()
        if self.rows:
            yield self.parts[0]
        self.parts, self.rows = [], 0

    def _consolidate(self) -> None:
        if self.rows:
            table = concat_tables(self.parts)
            weights = pc.min_max(table.column(table.num_columns - 1)).as_py()
            # Rows that all come, or all go, cannot cancel out: no need to look for equal ones.
            if weights["min"] < 0 < weights["max"]:
                table = consolidate_changes(table, self.columns)
            self.parts, self.rows = [table], table.num_rows


def concat_tables(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables with the same columns one behind the other; a column of nulls takes the type that the others have.

    Parts may differ in what does not change a value, such as the time zone a session shows timestamps in.

    >>> concat_tables([pa.table({"a": pa.nulls(1)}), pa.table({"a": ["x"]})]).schema.types
    [DataType(string)]
    """
    names = parts[-1].schema.names
    types = [
        next((part.schema.types[i] for part in reversed(parts) if part.schema.types[i] != pa.null()), pa.null())
        for i in range(len(names))
    ]
    schema = pa.schema(list(zip(names, types, strict=True)))
    return pa.concat_tables([part if part.schema.equals(schema) else _cast(part, schema) for part in parts])


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [column.cast(type_) for column, type_ in zip(table.columns, schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _select_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The first columns of a table if these are their names, as in results, where a name may occur twice."""
    if table.schema.names[: len(columns)] == list(columns):
        return table.select(list(range(len(columns))))
    return table.select(list(columns))


def _combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _flatten(array: pa.Array, *, is_key: bool) -> list[pa.Array]:
    """Columns of plain types that are equal exactly where the array's values are."""
    kind = array.type
    if pa.types.is_floating(kind):
        return [_plain_floats(array, is_key=is_key)]
    if pa.types.is_struct(kind):
        parts = [part for field in array.flatten() for part in _flatten(field, is_key=is_key)]
        return [*([array.is_valid()] if array.null_count or not parts else []), *parts]
    if not pa.types.is_nested(kind):
        return [array]
    lists = _as_list(array)
    elements = _ids(_flatten(lists.flatten(), is_key=is_key), len(lists.flatten()))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    offsets = 8 * np.concatenate([[0], np.cumsum(lengths)])
    values = pa.Array.from_buffers(
        pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(elements))]
    )
    return [values, array.is_valid()] if array.null_count else [values]


def _ids(flat: list[pa.Array], rows: int) -> Ints:
    """A number for each row that is the same where all these columns of plain types are, NULL to NULL."""
    ids, below, is_dense = np.zeros(rows, np.int64), 1, True
    for column in flat:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        values = max(1, len(encoded.dictionary))
        if below * values >= 2**63:
            # There are less than 2**31 rows, and so of both factors.
            ids, below = np.unique(ids, return_inverse=True)[1], rows
        ids, is_dense = (indices, True) if below == 1 else (ids * values + indices, values == 1 and is_dense)
        below *= values
    return ids if is_dense else np.unique(ids, return_inverse=True)[1]


def _plain_floats(array: pa.Array, *, is_key: bool) -> pa.Array:
    if is_key:
        array = pc.add(array, pa.scalar(0.0, array.type))
    is_nan = pc.is_nan(array)
    return pc.if_else(is_nan, pa.scalar(float("nan"), array.type), array) if pc.any(is_nan).as_py() else array


def _as_list(array: pa.Array) -> pa.Array:
    """A list, map or list of fixed size as a list."""
    kind = array.type
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return array.cast(pa.list_(entries)) if not array.offset else pa.concat_arrays([array]).cast(pa.list_(entries))
    return array.cast(pa.list_(kind.value_type)) if pa.types.is_fixed_size_list(kind) else array


def _hash(array: pa.Array) -> _Words:
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    if pa.types.is_struct(kind):
        hashes = np.ones(len(array), np.uint64)
        for field in array.flatten():
            hashes = _mix(hashes) ^ _hash(field)
    elif pa.types.is_nested(kind):
        lists = _as_list(array)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        hashes = _hash_lists(_hash(lists.flatten()), lengths)
    elif _is_text(kind):
        hashes = _hash_of_bytes(array)
    else:
        hashes = _hash_of_words(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return _mix(hashes)


def _is_text(kind: pa.DataType) -> bool:
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return (
        views or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or kind in (pa.string(), pa.binary())
    )


def _hash_of_bytes(array: pa.Array) -> _Words:
    """The hashes of texts or bytes, some at a time: the work takes a word for each byte."""
    parts: list[_Words] = []
    for start in range(0, len(array), 65_536):
        part = array.slice(start, 65_536)
        is_bytes = pa.types.is_binary(part.type) or pa.types.is_large_binary(part.type)
        bytes_ = (part if is_bytes else part.cast(pa.large_string()).cast(pa.large_binary())).cast(pa.large_binary())
        _, offsets, values = bytes_.buffers()
        edges = np.frombuffer(offsets, np.int64)[bytes_.offset : bytes_.offset + len(bytes_) + 1]
        data = np.frombuffer(values, np.uint8)[edges[0] : edges[-1]] if values is not None else np.zeros(0, np.uint8)
        parts.append(_hash_lists(data.astype(np.uint64) + np.uint64(1), np.diff(edges)))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _hash_of_words(array: pa.Array) -> _Words:
    """The hashes of values of a fixed width."""
    if pa.types.is_boolean(array.type):
        return _mix(pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.uint64))
    if pa.types.is_floating(array.type):
        array = _plain_floats(array, is_key=True)
    width = array.type.bit_width // 8
    values = array.buffers()[1]
    data = np.frombuffer(values, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    whole = np.zeros((len(array), -(-width // 8) * 8), np.uint8)
    whole[:, :width] = data.reshape(len(array), width)
    hashes = np.zeros(len(array), np.uint64)
    for word in whole.view(np.uint64).T:
        hashes = _mix(hashes ^ word)
    return hashes


def _hash_lists(parts: _Words, lengths: Ints) -> _Words:
    """The hashes of lists of parts, each of that length, one behind the other: sums with a factor for each place."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(parts)) - np.repeat(starts, lengths)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(parts * _mix(place.astype(np.uint64)))])
    return sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)


def _mix(words: _Words) -> _Words:
    """Words of which every bit depends on every bit of those given (the steps of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


CHANGE = "_change"
"""The column of a table's rows with their change: insert (``+``) or delete (``-``)."""
