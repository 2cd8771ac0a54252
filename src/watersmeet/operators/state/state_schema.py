"""The contents of a family's state, derived from its identity alone, and the inspection of a shard's state.

A reader of a state has no operator, only the identity that the state carries. So a family describes from that identity,
in canonical names, which rows a spine holds and when they expire (`SpineSchema`). Inspection changes nothing: it lists
spines and rows, and checks that they are sound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import WEIGHT, concat_tables, group_rows, key_ids
from watersmeet.operators.core.identity import CanonicalNames, Identity
from watersmeet.operators.core.matching import Bools, Ints, as_int64
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.state.format import (
    DIRECTORY,
    PART,
    READABLE_FORMATS,
    RUN,
    Directory,
    StateBlock,
    decode_block,
    decode_note,
    part_names,
)
from watersmeet.operators.state.layout import to_record_batch
from watersmeet.operators.state.spine import GONE

ExpiryTimes = Mapping[str, Ints]
"""By watermark: a value for each row; the row expires when the first of these watermarks passes its value."""

LivenessRule = Literal["each", "weights", "newest"]
"""The rule that decides which stored rows are live. ``each``: all that have not expired. ``weights``: equal rows are
consolidated, and those of positive weight are live. ``newest``: the last row of each key, unless it is a delete.
"""


def _no_expiry(rows: pa.RecordBatch) -> ExpiryTimes:
    return {}


@dataclass(frozen=True)
class SpineSchema:
    """The rows of a spine: the port they came in through, what expires them in words, and when.

    ``keys``: what identifies a row where the newest counts. ``expiry`` is empty where no watermark expires rows.
    """

    port: int
    expiry_text: str
    rule: LivenessRule = "each"
    expiry: Callable[[pa.RecordBatch], ExpiryTimes] = _no_expiry
    keys: tuple[str, ...] = ()

    @property
    def has_expiry(self) -> bool:
        """Whether a watermark expires its rows."""
        return self.expiry is not _no_expiry


Reach = Callable[[Identity, int], list[tuple[str, str, int]]]
"""The limits on rows of a port: a column, the watermark that expires them, and how far that may be ahead of the column.
The first watermark to reach its limit expires a row; an empty list: no watermark does.
"""


def _no_reach(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    return []


class UnevenError(Exception):
    """Raised for shards that cannot be merged or split in their current state."""


Numbers = Callable[[Identity, Sequence[Mapping[str, Any]], "ShardInspector"], Mapping[str, Any]]
"""Computes the directory numbers of a new shard from those of the shards its rows came from, and from these rows."""


def same_numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The numbers, which must be equal in all shards."""
    if any(part != parts[0] for part in parts) or "before" in parts[0]:
        raise UnevenError("not all of its shards have run since it was changed")
    return parts[0]


@dataclass(frozen=True)
class StateSchema:
    """The state schema of a family, by its ``names`` in identities: ``spine`` describes a spine of a state.

    ``reach`` limits the rows that a state may depend on: a row leaves no trace once one of these watermarks has passed
    it. Without it a state may depend on every row that ever arrived.

    ``numbers`` and ``arrival`` are for resharding: the directory numbers, and the column, if any, that holds the order
    of arrival of a shard's rows. ``gives_stream``: whether the result of a stage is a stream.
    """

    names: tuple[str, ...]
    spine: Callable[[Identity, str], SpineSchema]
    reach: Reach = _no_reach
    numbers: Numbers = same_numbers
    arrival: str | None = None
    gives_stream: Callable[[Identity], bool] = lambda identity: identity.get("emit") == "final"


UNTIL_FINAL = "until they are final, replaced or deleted"
"""The expiry of a row of a table whose rows become final."""
UNTIL_REPLACED = "until they are replaced or deleted"
"""The expiry of a row of a table."""


MATCHED = "matched"
"""The note that flags matched rows, in every family."""

_NOTE = "note/"
_COUNT = "count()#0"
_GENERATED = frozenset({WEIGHT, "#number"})


@dataclass(frozen=True)
class SpineRows:
    """The live rows of a spine; ``matched`` is NULL where matches are not tracked, ``expiry`` is by watermark."""

    table: pa.RecordBatch
    matched: pa.Array
    expiry: ExpiryTimes

    def __len__(self) -> int:
        return self.table.num_rows

    def nearest(self, watermarks: Mapping[str, int]) -> tuple[pa.Array, pa.Array]:
        """For each row, the watermark that will expire it first, and the value that it must pass."""
        names = list(self.expiry)
        if not names:
            return pa.nulls(len(self), pa.string()), pa.nulls(len(self), pa.int64())
        ends = np.array([self.expiry[name] for name in names])
        # A watermark that has not arrived is infinitely far away; among several such, the earliest end counts.
        distance = ends.astype(np.float64) - np.array([[float(watermarks.get(name, -(2**62)))] for name in names])
        first = distance.argmin(axis=0)
        return pa.array(names).take(pa.array(first)), pa.array(ends[first, np.arange(len(self))])


@dataclass(frozen=True)
class ShardInspector:
    """The values of a shard by name, as they are stored."""

    values: Mapping[str, bytes]

    @cached_property
    def directory(self) -> Directory:
        """The directory of the shard; a new one if it has none."""
        return Directory.decode(self.values.get(DIRECTORY), CanonicalNames())

    def bytes_of(self, spine: str) -> int:
        """The bytes of a spine's rows, with their notes."""
        names = {block.name for run in self.directory.runs.get(spine, ()) for block in run}
        return sum(len(value) for name, value in self.values.items() if name.rpartition("/")[2] in names)

    def rows(self, spine: str, schema: SpineSchema) -> SpineRows | None:
        """The live rows of a spine; None: no block is stored."""
        parts = [self._read(block) for run in self.directory.runs.get(spine, ()) for block in run]
        if not parts:
            return None
        # A column that the query no longer uses remains in older blocks.
        shared = [name for name in parts[-1][0].schema.names if all(name in part.schema.names for part, _ in parts)]
        table = to_record_batch(concat_tables([pa.Table.from_batches([part.select(shared)]) for part, _ in parts]))
        matched = pa.concat_arrays([flags for _, flags in parts])
        match schema.rule:
            case "weights":
                table, is_newest = _sum_weights(table), None
            case "newest":
                is_newest = _newest(table, schema)
            case "each":
                is_newest = None
        matched = pa.nulls(table.num_rows, pa.bool_()) if schema.rule == "weights" else matched
        stay = np.ones(table.num_rows, np.bool_) if is_newest is None else is_newest
        stay &= ~_is_expired(schema.expiry(table), self.directory.received, table.num_rows)
        time, mark = self.directory.finality.get(spine, ("", 0))
        if time in table.schema.names:
            stay &= as_int64(table.column(time)) > mark
        keep = pa.array(stay)
        table, matched = table.filter(keep), matched.filter(keep)
        return SpineRows(table, matched, schema.expiry(table))

    def problems(self, spines: Mapping[str, SpineSchema]) -> Iterator[str]:
        """Defects in blocks, notes, counts and ranges, and blocks that should have expired."""
        listed = {block.name for runs in self.directory.runs.values() for run in runs for block in run}
        for name in sorted(self.values):
            if name.startswith((RUN, PART, _NOTE)) and name.rpartition("/")[2] not in listed:
                yield f"{name} is stored, and no directory lists it"
        for spine, runs in self.directory.runs.items():
            for block in (block for run in runs for block in run):
                yield from (f"{spine}: {problem}" for problem in self._block_problems(block, spines.get(spine)))

    def _block_problems(self, block: StateBlock, schema: SpineSchema | None) -> Iterator[str]:
        try:
            batch, _ = self._read(block)
        except Exception as error:  # pyarrow raises various errors for bytes it did not write
            yield f"block {block.name} cannot be read ({str(error).splitlines()[0] if str(error) else 'no reason'})"
            return
        if batch.num_rows != block.left:
            yield f"block {block.name} has {batch.num_rows} rows, and its directory counts {block.left}"
            return
        for column, lowest in block.lowest.items():
            times = as_int64(batch.column(column))
            if (int(times.min()), int(times.max())) != (lowest, block.highest[column]):
                yield f"block {block.name} has other times of {column} than its directory says"
        if schema is not None and schema.rule == "each" and block.left:
            expired = _is_expired(schema.expiry(batch), self.directory.received, batch.num_rows)
            if expired.all():
                yield f"block {block.name} is past its limit: all of its {block.left} rows have expired"

    def _read(self, block: StateBlock) -> tuple[pa.RecordBatch, pa.Array]:
        """The remaining rows of a block, and which of them have matched."""
        batch = decode_block(self.values.get, block.name)
        if batch is None or any(name not in self.values for name in part_names(block.name, block.parts)):
            raise ValueError("it is not stored")
        if batch.num_rows != block.rows:
            raise ValueError(f"it has {batch.num_rows} rows, and its directory counts {block.rows}")
        flags = self.values.get(f"{_NOTE}{MATCHED}/{block.name}")
        matched = pa.nulls(block.rows, pa.bool_())
        if flags is not None:
            matched = pa.array(decode_note(flags, "flag", block.rows))
        if block.left < block.rows:
            gone = self.values.get(f"{_NOTE}{GONE}/{block.name}")
            if gone is None:
                raise ValueError("nothing says which of its rows are gone")
            left = pa.array(~decode_note(gone, "flag", block.rows))
            batch, matched = batch.filter(left), matched.filter(left)
        return batch, matched


def format_of(values: Mapping[str, bytes]) -> int | None:
    """The format number of a stored shard; None: no directory, or an unreadable one."""
    try:
        number = json.loads(values[DIRECTORY])["format"]
    except (KeyError, ValueError):
        return None
    return number if number in READABLE_FORMATS else None


def _is_expired(expiry: ExpiryTimes, watermarks: Mapping[str, int], rows: int) -> Bools:
    expired = np.zeros(rows, np.bool_)
    for watermark, ends in expiry.items():
        if watermark in watermarks:
            expired |= (
                np.ones(rows, np.bool_) if watermarks[watermark] == END_OF_INPUT else ends < watermarks[watermark]
            )
    return expired


def _sum_weights(table: pa.RecordBatch) -> pa.RecordBatch:
    """The consolidated rows of a table, with their weights."""
    columns = [name for name in table.schema.names if name not in _GENERATED]
    first, totals = group_rows(pa.Table.from_batches([table.select(columns)]), as_int64(table.column(WEIGHT)))
    there = totals > 0
    rows = table.select(columns).take(pa.array(first[there]))
    return pa.RecordBatch.from_arrays([*rows.columns, pa.array(totals[there])], names=[*columns, WEIGHT])


def _newest(table: pa.RecordBatch, schema: SpineSchema) -> Bools:
    """A mask of the rows that are the last of their keys, and not deleted."""
    ids: Ints = key_ids(table, schema.keys)
    _, last = np.unique(ids[::-1], return_index=True)
    newest = np.zeros(table.num_rows, np.bool_)
    newest[table.num_rows - 1 - last] = True
    if schema.keys and _COUNT in table.schema.names:
        newest &= pc.greater(table.column(_COUNT), 0).to_numpy(zero_copy_only=False)
    return newest
