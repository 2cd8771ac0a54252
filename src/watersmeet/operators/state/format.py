"""The stored form of a state, format 3, and the only module that reads it.

A shard's state is values by name:

- ``directory``: JSON. The number of the format, the ``owner`` (the shard's name in the cache of decoded runs), the
  watermarks ``received``, ``emitted`` and ``active``, the ``numbers`` of the family, and by name of spine its runs,
  oldest first: each a list of blocks (name, rows, rows left, ranges of times, range of codes, rows of one code at most,
  and of a block in parts their number and the bytes of its rows)
- ``run/<block>``: the rows of a block, sorted, as an Arrow stream compressed with lz4; of a block in parts only the
  index, codes and times, and where each part begins
- ``part/<number>/<block>``: the other columns of some of its rows; ``part/filter/<block>``: a Bloom filter of its codes
- ``note/<note>/<block>``: values of the rows that may change: flags as bits, numbers as int64 with lz4

A block of more than `SPLIT_AT` bytes is stored in parts, so that no value is large, and a batch reads codes and the
parts of the rows that match. Formats 1 and 2 have no parts. Format 1 stores the sums of doubles of a grouping in
another form, which `watersmeet.operators.group.groups` reads. A state of an earlier format continues as one of format 3
with the next batch, and gets parts as its runs are merged.

A block's name is a digest of its bytes (`block_name`), so two attempts of a batch that compute the same write the same:
a state depends only on what arrived. Names of earlier versions are random and stay valid. Columns and watermarks are
stored under canonical names, so that a state survives a change of aliases; inside a step they have the names of the
query.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, as_int64
from watersmeet.operators.core.operator import StepError, Watermarks
from watersmeet.operators.state.layout import KeyedRows, NoteKind, RowLayout, Values

FORMAT = 3
"""The number of the form of states."""
READABLE_FORMATS = (1, 2, FORMAT)
"""The forms that can be read."""
DIRECTORY = "directory"
RUN = "run/"
"""The prefix of the names of blocks."""
PART = "part/"
"""The prefix of the names of the parts of blocks."""
SPLIT_AT, PART_BYTES = 4 * 2**20, 2**20
"""A block of more bytes is stored in parts, each of about so many bytes; a single row may be larger."""
SAMPLE, SHRINKS = 256, 1.25
"""The rows by which a part is judged, and how much smaller they must be when compressed, for it to be compressed."""
FILTER_BITS, PROBES = 8, 3
"""The bits of a filter per row, up to twice as many, and how many of them a code sets: one miss in forty passes."""
_EDGES, _SCHEMA, _CODE = b"edges", b"schema", b"code"
_MARKS = ("received", "emitted", "active")
# Single-threaded: most blocks are small, and every core has a worker.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class UnknownFormatError(StepError):
    """Raised for a state that this version cannot read: one of a later version, or from before formats had numbers."""

    def __init__(self, number: object) -> None:
        super().__init__(
            "STATE_FORMAT",
            {"found": "none" if number is None else str(number), "known": _list_formats()},
        )


def _list_formats() -> str:
    *others, last = map(str, READABLE_FORMATS)
    return f"{', '.join(others)} and {last}"


@dataclass(frozen=True)
class StateBlock:
    """The directory's entry for a block: enough to skip it when it cannot matter.

    ``left``: how many of its rows remain; the ranges cover their times. ``most``: the largest number of rows of one
    code, if it was counted. ``parts``: how many parts hold its columns, 0 where one value holds all; ``size``: the
    bytes of the rows of a block in parts.
    """

    name: str
    rows: int
    left: int
    lowest: Watermarks
    highest: Watermarks
    lowest_code: int = int(LOWEST)
    highest_code: int = int(HIGHEST)
    most: int = 0
    parts: int = 0
    size: int = 0

    @staticmethod
    def of(rows: KeyedRows, name: str = "", *, counted: bool = False) -> StateBlock:
        """The ranges of these rows, which are sorted, under that name; ``counted``: with how many share a code."""
        codes, most = rows.codes, 0
        if counted:
            edges = np.flatnonzero(codes[1:] != codes[:-1]) + 1
            most = int(np.diff(edges, prepend=0, append=len(rows)).max())
        size = len(rows)
        return StateBlock(name, size, size, rows.lowest, rows.highest, int(codes[0]), int(codes[-1]), most)


Run = tuple[StateBlock, ...]
"""The blocks of a run, in the order of their rows."""


@dataclass(frozen=True)
class Directory:
    """The state of a shard between two batches; ``numbers``: what its family stores besides rows and watermarks.

    ``finality``: by spine, the time column and the watermark up to which rows are final; such rows are removed when
    runs are merged.
    """

    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict[str, tuple[Run, ...]])
    received: Watermarks = field(default_factory=dict[str, int])
    emitted: Watermarks = field(default_factory=dict[str, int])
    active: Watermarks = field(default_factory=dict[str, int])
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    owner: str = ""
    finality: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to store."""
        return not (any(self.runs.values()) or self.received or self.emitted or self.active or self.numbers)

    def encode(self, names: CanonicalNames) -> bytes:
        """The directory as stored."""

        def block(of: StateBlock) -> list[Any]:
            ranges = [names.to_canonical(of.lowest), names.to_canonical(of.highest)]
            parts = [of.parts, of.size] if of.parts else []
            return [of.name, of.rows, of.left, *ranges, of.lowest_code, of.highest_code, of.most, *parts]

        runs = {spine: [[block(part) for part in run] for run in runs] for spine, runs in self.runs.items() if runs}
        # Watermarks arrive in the order of a shuffle, which differs between attempts of a batch.
        marks = {name: dict(sorted(names.to_canonical(getattr(self, name)).items())) for name in _MARKS}
        document = {"format": FORMAT, "owner": self.owner, **marks, "numbers": self.numbers, "runs": runs}
        if self.finality:
            document["over"] = {spine: [names.canonical(time), mark] for spine, (time, mark) in self.finality.items()}
        return json.dumps(document).encode()

    @staticmethod
    def decode(value: bytes | None, names: CanonicalNames) -> Directory:
        """The directory that was stored, or a new one."""
        if value is None:
            return Directory()
        document = cast("dict[str, Any]", json.loads(value))
        if document.get("format") not in READABLE_FORMATS:
            raise UnknownFormatError(document.get("format"))

        def block(of: list[Any]) -> StateBlock:
            name, rows, left, lowest, highest, *rest = of
            return StateBlock(name, rows, left, names.from_canonical(lowest), names.from_canonical(highest), *rest)

        runs = {spine: tuple(tuple(map(block, run)) for run in runs) for spine, runs in document["runs"].items()}
        received, emitted, active = (names.from_canonical(document[name]) for name in _MARKS)
        # Finality is set again in every batch, and a step does not read the stored one.
        over = {spine: (str(time), int(mark)) for spine, (time, mark) in document.get("over", {}).items()}
        return Directory(runs, received, emitted, active, document["numbers"], document["owner"], over)


def digest(*parts: str | bytes) -> str:
    """32 hexadecimal digits that identify these parts."""
    # Of those that Python has the quickest, where processors have instructions for it.
    hasher = sha256()
    for part in parts:
        value = part.encode() if isinstance(part, str) else part
        hasher.update(b"%d:" % len(value))
        hasher.update(value)
    return hasher.hexdigest()[:32]


def block_name(owner: str, spine: str, value: bytes, taken: Container[str]) -> str:
    """A name for a block of a shard's spine with this value, different from those that are taken.

    The same bytes have the same name in every attempt of a batch, and one name never stands for two values, even where
    attempts compute different ones. Equal blocks are numbered.

    >>> first = block_name("shard", "left", b"rows", ())
    >>> first == block_name("shard", "left", b"rows", ()), first == block_name("shard", "left", b"rows", {first})
    (True, False)
    """
    content = digest(value)
    return next(name for number in count() if (name := digest(owner, spine, str(number), content)) not in taken)


def block_from_rows(rows: KeyedRows, layout: RowLayout, names: CanonicalNames) -> pa.RecordBatch:
    """Rows as a block holds them: columns and numbers under canonical names, each once."""
    columns = [*rows.table.columns, *(pa.array(rows.attributes[name]) for name in layout.numbers)]
    columns_by_name = dict(zip(names.canonical_list(layout.run_columns), columns, strict=True))
    return pa.RecordBatch.from_arrays(list(columns_by_name.values()), names=list(columns_by_name))


def rows_from_block(batch: pa.RecordBatch, layout: RowLayout, names: CanonicalNames) -> KeyedRows:
    """The rows that a block holds, as a step calls them."""
    missing = {name for name in names.canonical_list(layout.absent) if name not in batch.schema.names}
    columns = [
        pa.repeat(pa.scalar(False), batch.num_rows) if name in missing else batch.column(name)
        for name in names.canonical_list(layout.run_columns)
    ]
    return layout.rows(pa.RecordBatch.from_arrays(columns, names=list(layout.run_columns)))


def encode_rows(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = _COMPRESSED) -> bytes:
    """Rows as they are stored; ``options``: None if they are not compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _encode_part(batch: pa.RecordBatch) -> bytes:
    """Rows of a part as they are stored: compressed, unless a sample hardly shrinks.

    Random numbers, digests and images do not, and a part that is not compressed is read without a copy. Rows alone
    decide, so that every attempt of a batch writes the same bytes.
    """
    if batch.num_rows < SAMPLE:
        return encode_rows(batch)
    sample = batch.slice(0, SAMPLE)
    plain = encode_rows(sample, None)
    return encode_rows(batch, _COMPRESSED if SHRINKS * len(encode_rows(sample)) < len(plain) else None)


def decode_rows(value: bytes) -> pa.RecordBatch:
    """The rows of a value that was stored."""
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        return reader.read_next_batch()


@dataclass(frozen=True)
class BlockValues:
    """A block as it is stored: its value, and the values of its parts, if it has any.

    ``index`` and ``rest`` are the columns of a block in parts: those that are searched, and the others.
    """

    value: bytes
    parts: tuple[bytes, ...] = ()
    filter: bytes = b""
    index: pa.RecordBatch | None = None
    rest: pa.RecordBatch | None = None

    @property
    def content(self) -> bytes:
        """The bytes that a block of this content has, and no other."""
        return digest(self.value, *self.parts).encode() if self.parts else self.value

    @property
    def size(self) -> int:
        """The number of bytes to store."""
        return len(self.value) + sum(map(len, self.parts)) + len(self.filter)

    def items(self, block: str) -> Iterator[tuple[str, bytes]]:
        """The values by their names in the state."""
        yield f"{RUN}{block}", self.value
        if self.parts:
            yield from zip(part_names(block, len(self.parts)), (*self.parts, self.filter), strict=True)


def part_names(block: str, parts: int) -> list[str]:
    """The names of the parts of a block in the state, and of its filter; none of a block without parts."""
    return [*(part_name(block, number) for number in range(parts)), part_name(block, "filter")] if parts else []


def part_name(block: str, part: int | str) -> str:
    """The name of a part of a block in the state.

    >>> part_name("29c8", 0)
    'part/0/29c8'
    """
    return f"{PART}{part}/{block}"


def encode_block(batch: pa.RecordBatch, code: str | None, times: Sequence[str]) -> BlockValues:
    """The rows of a block as they are stored: in parts, if they are large.

    The columns that are searched stay together: the one of codes, if there is one, and the times.
    """
    index = {*times, *(() if code is None else (code,))}
    rest = [name for name in batch.schema.names if name not in index]
    if value_bytes(batch) <= SPLIT_AT or not rest:
        return BlockValues(encode_rows(batch))
    others = batch.select(rest)
    edges = cut_rows(others, batch.num_rows, PART_BYTES)
    parts = tuple(_encode_part(others.slice(start, stop - start)) for start, stop in pairwise(edges))
    metadata = {_EDGES: json.dumps(edges), _CODE: code or "", _SCHEMA: batch.schema.serialize().to_pybytes()}
    codes = np.zeros(1, np.int64) if code is None else as_int64(batch.column(code))
    searched = batch.select([name for name in batch.schema.names if name in index]).replace_schema_metadata(metadata)
    return BlockValues(encode_rows(searched), parts, build_filter(codes).tobytes(), searched, others)


def value_bytes(batch: pa.RecordBatch) -> int:
    """The bytes of the values of rows, without the bitmaps of NULLs.

    Such a bitmap may be there or not where no value is NULL, as in a slice, so ``nbytes`` differs between a cached
    block and one that was just read. Where a block is cut must follow from its rows alone.

    >>> some = pa.array([1, None, 3, 4])
    >>> [value_bytes(pa.record_batch({"a": column})) for column in (some[2:], pa.array([3, 4]), pa.array(["ab", None]))]
    [16, 16, 14]
    """
    return sum(map(_value_bytes, batch.columns))


def _value_bytes(values: pa.Array) -> int:
    type_: Any = values.type
    if pa.types.is_struct(type_):
        return sum(_value_bytes(values.field(place)) for place in range(type_.num_fields))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        offsets = values.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        return offsets.nbytes + _value_bytes(values.values.slice(first, last - first))
    if pa.types.is_null(type_):
        return 0
    try:
        return -(-len(values) * type_.bit_width // 8)
    except ValueError:
        # Texts and bytes, of any length.
        return 4 * (len(values) + 1) + (pc.sum(pc.binary_length(values)).as_py() or 0)


def cut_rows(batch: pa.RecordBatch, rows: int, size: int) -> list[int]:
    """The edges of pieces of at most so many rows, and of about ``size`` bytes where they have more than one.

    >>> cut_rows(pa.record_batch({"a": [1, 2, 3, 4, 5]}), 2, 1000)
    [0, 2, 4, 5]
    >>> cut_rows(pa.record_batch({"a": ["a", "b" * 100, "c"]}), 9, 20)
    [0, 1, 2, 3]
    """
    count, total = batch.num_rows, value_bytes(batch)
    step = max(1, min(rows, size * count // total if total else rows))
    edges = [*range(0, count, step), count]
    if total <= size or step == 1:
        return edges
    return [*_halve_large(batch, edges, size + size // 2), count]


def _halve_large(batch: pa.RecordBatch, edges: Sequence[int], most: int) -> Iterator[int]:
    """The first rows of pieces with these edges; pieces of more bytes are halved."""
    for start, stop in pairwise(edges):
        if stop - start > 1 and value_bytes(batch.slice(start, stop - start)) > most:
            middle = (start + stop) // 2
            yield from _halve_large(batch, (start, middle, stop), most)
        else:
            yield start


def part_edges(index: pa.RecordBatch) -> list[int] | None:
    """The rows at which the parts of a block begin, and its number of rows; None: the value holds all columns."""
    metadata = index.schema.metadata
    return json.loads(metadata[_EDGES]) if metadata and _EDGES in metadata else None


def index_columns(index: pa.RecordBatch) -> tuple[str | None, list[str]]:
    """The column of codes, if there is one, and the other columns of the index of a block in parts."""
    code = index.schema.metadata[_CODE].decode() or None
    return code, [name for name in index.schema.names if name != code]


def join_columns(index: pa.RecordBatch, rest: pa.RecordBatch) -> pa.RecordBatch:
    """Rows from the index of a block in parts, and their other columns."""
    schema = block_schema(index)
    columns = [(index if field.name in index.schema.names else rest).column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def block_schema(value: pa.RecordBatch) -> pa.Schema:
    """The columns of a block, from its decoded value."""
    metadata = value.schema.metadata
    return pa.ipc.read_schema(pa.py_buffer(metadata[_SCHEMA])) if part_edges(value) and metadata else value.schema


def concat_batches(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of several batches as one."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def decode_block(get: Callable[[str], bytes | None], block: str) -> pa.RecordBatch | None:
    """All rows of a block; ``get`` returns values by name. None: it is not stored, or not all of it."""
    value = get(f"{RUN}{block}")
    index = None if value is None else decode_rows(value)
    edges = None if index is None else part_edges(index)
    if index is None or edges is None:
        return index
    parts = [get(part_name(block, number)) for number in range(len(edges) - 1)]
    if any(part is None for part in parts):
        return None
    return join_columns(index, concat_batches([decode_rows(part) for part in parts if part is not None]))


def build_filter(codes: Ints) -> npt.NDArray[np.uint8]:
    """A Bloom filter of codes: bits, as many as the power of two that is at least `FILTER_BITS` per code.

    >>> may_contain(build_filter(np.array([3, 5])), hash_codes(np.array([3, 4, 5]))).tolist()
    [True, False, True]
    """
    bits = np.zeros(1 << max(6, (FILTER_BITS * codes.size - 1).bit_length()), np.bool_)
    for positions in _positions(hash_codes(codes), bits.size):
        bits[positions] = True
    return np.packbits(bits, bitorder="little")


def may_contain(filter: npt.NDArray[np.uint8], hashes: npt.NDArray[np.uint64]) -> Bools:
    """A mask of the codes with these hashes that a filter may contain: all that it contains, and few others."""
    passed = np.arange(hashes.size)
    for number in range(PROBES):
        position = _position(hashes[passed], number, filter.size * 8)
        passed = passed[(filter[position >> np.uint64(3)] >> (position & np.uint64(7)).astype(np.uint8)) & 1 == 1]
    present = np.zeros(hashes.size, np.bool_)
    present[passed] = True
    return present


def hash_codes(codes: Ints) -> npt.NDArray[np.uint64]:
    """Codes mixed, since codes of whole numbers are often next to each other (the finalizer of SplitMix64)."""
    mixed = codes.astype(np.int64, copy=False).view(np.uint64).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _positions(hashes: npt.NDArray[np.uint64], bits: int) -> Iterator[npt.NDArray[np.uint64]]:
    return (_position(hashes, number, bits) for number in range(PROBES))


def _position(hashes: npt.NDArray[np.uint64], number: int, bits: int) -> npt.NDArray[np.uint64]:
    """The bit, of so many (a power of two), that a code sets as that number."""
    return (hashes + np.uint64(number) * (hashes >> np.uint64(32) | np.uint64(1))) & np.uint64(bits - 1)


def encode_note(values: Values) -> bytes:
    """A note as stored."""
    if values.dtype == np.bool_:
        return np.packbits(values).tobytes()
    return pa.compress(values.tobytes(), codec="lz4", asbytes=True)


def decode_note(value: bytes, kind: NoteKind, rows: int) -> Values:
    """The note of this many rows from its stored form.

    >>> decode_note(encode_note(np.array([True, False, True])), "flag", 3).tolist()
    [True, False, True]
    """
    if kind == "flag":
        return np.unpackbits(np.frombuffer(value, np.uint8), count=rows).astype(np.bool_)
    return np.frombuffer(pa.decompress(value, decompressed_size=8 * rows, codec="lz4", asbytes=True), np.int64)


def encode_schema(schema: pa.Schema) -> str:
    """The schema as text, for the numbers of a directory."""
    return b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(value: str) -> pa.Schema:
    """The schema that a text stands for.

    >>> decode_schema(encode_schema(pa.schema({"v": pa.decimal128(10, 2)})))
    v: decimal128(10, 2)
    """
    return pa.ipc.read_schema(pa.py_buffer(b64decode(value)))
