"""The stored form of a state, format 2, and the only module that reads it.

A shard's state is values by name:

- ``directory``: JSON. The number of the format, the ``owner`` (the shard's name in the cache of decoded runs), the
  watermarks ``received``, ``emitted`` and ``active``, the ``numbers`` of the family, and by name of spine its runs,
  oldest first: each a list of blocks (name, rows, rows left, ranges of times, range of codes, rows of one code at most)
- ``run/<block>``: the rows of a block, sorted, as an Arrow stream compressed with lz4
- ``note/<note>/<block>``: values of the rows that may change: flags as bits, numbers as int64 with lz4

Format 1 stores the sums of doubles of a grouping in another form, which `watersmeet.operators.group.groups` reads: with
the next batch, a state of format 1 continues as one of format 2, block by block.

A block's name is a digest of its bytes (`block_name`), so two attempts of a batch that compute the same write the same:
a state depends only on what arrived. Names of earlier versions are random and stay valid. Columns and watermarks are
stored under canonical names, so that a state survives a change of aliases; inside a step they have the names of the
query.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, cast

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.matching import HIGHEST, LOWEST
from watersmeet.operators.core.operator import StepError, Watermarks
from watersmeet.operators.state.layout import KeyedRows, NoteKind, RowLayout, Values

FORMAT = 2
"""The number of the form of states."""
READABLE_FORMATS = (1, FORMAT)
"""The forms that can be read."""
DIRECTORY = "directory"
RUN = "run/"
"""The prefix of the names of blocks."""
_MARKS = ("received", "emitted", "active")
# Single-threaded: most blocks are small, and every core has a worker.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class UnknownFormatError(StepError):
    """Raised for a state that this version cannot read: one of a later version, or from before formats had numbers."""

    def __init__(self, number: object) -> None:
        super().__init__(
            "STATE_FORMAT",
            {"found": "none" if number is None else str(number), "known": " and ".join(map(str, READABLE_FORMATS))},
        )


@dataclass(frozen=True)
class StateBlock:
    """The directory's entry for a block: enough to skip it when it cannot matter.

    ``left``: how many of its rows remain; the ranges cover their times. ``most``: the largest number of rows of one
    code, if it was counted.
    """

    name: str
    rows: int
    left: int
    lowest: Watermarks
    highest: Watermarks
    lowest_code: int = int(LOWEST)
    highest_code: int = int(HIGHEST)
    most: int = 0

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
            return [of.name, of.rows, of.left, *ranges, of.lowest_code, of.highest_code, of.most]

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


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """The rows of a block as they are stored."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode_rows(value: bytes) -> pa.RecordBatch:
    """The rows of a block that was stored."""
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        return reader.read_next_batch()


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
