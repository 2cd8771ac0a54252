"""What the state of a family holds, from its identity alone, and a look into the state of a shard.

A reader of a state has no operator, only the identity that the state carries. So a family describes from that identity
whose rows a spine holds and until when (`SpineSchema`), in canonical names. Inspection changes nothing: it lists spines
and rows, and checks that they are sound.
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
    READABLE_FORMATS,
    RUN,
    Directory,
    StateBlock,
    decode_note,
    decode_rows,
)
from watersmeet.operators.state.layout import to_record_batch
from watersmeet.operators.state.spine import GONE

ExpiryTimes = Mapping[str, Ints]
"""By mark: a value for each row, beyond which the mark ends the row's life. The first to get there does."""

LivenessRule = Literal["each", "weights", "newest"]
"""Which of the stored rows are there. ``each``: all that have not expired. ``weights``: equal rows are put together,
and those are there that come oftener than they go. ``newest``: of several rows of one key the one that came last, if it
stands for anything."""


def _no_expiry(rows: pa.RecordBatch) -> ExpiryTimes:
    return {}


@dataclass(frozen=True)
class SpineSchema:
    """The rows of a spine: the port they came in through, what ends their lives in words, and until when they live.

    ``keys``: what tells rows apart where the newest counts. ``expiry`` is nothing where no mark ends them.
    """

    port: int
    expiry_text: str
    rule: LivenessRule = "each"
    expiry: Callable[[pa.RecordBatch], ExpiryTimes] = _no_expiry
    keys: tuple[str, ...] = ()

    @property
    def has_expiry(self) -> bool:
        """Whether a mark ends its rows."""
        return self.expiry is not _no_expiry


Reach = Callable[[Identity, int], list[tuple[str, str, int]]]
"""How long rows of a port live: a column of theirs, the mark that ends them, and how far it may go beyond the column.
The first such mark to get there ends a life; nothing: no mark does."""


def _no_reach(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    return []


class UnevenError(Exception):
    """Raised for shards that cannot be put together, or taken apart, as they are."""


Numbers = Callable[[Identity, Sequence[Mapping[str, Any]], "ShardInspector"], Mapping[str, Any]]
"""What a shard keeps besides rows and marks, of what those kept from which its rows have come, and of these rows."""


def same_numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """What all of them have."""
    if any(part != parts[0] for part in parts) or "before" in parts[0]:
        raise UnevenError("not all of its shards have run since it was changed")
    return parts[0]


@dataclass(frozen=True)
class StateSchema:
    """What a family, by its ``names`` in identities, keeps: the answer for a spine of a state of that identity.

    ``reach`` says of which rows a state may depend at all: a row is forgotten without a trace once one of these marks
    has passed it. Without it a state may depend on every row that ever came.

    ``numbers`` and ``arrival`` say what becomes of a state in another number of shards: what is kept besides rows, and
    the column, if there is one, by which rows of a shard are in the order of arrival.
    """

    names: tuple[str, ...]
    spine: Callable[[Identity, str], SpineSchema]
    reach: Reach = _no_reach
    numbers: Numbers = same_numbers
    arrival: str | None = None


UNTIL_FINAL = "until they are final, replaced or deleted"
"""What ends the life of a row behind windows."""
UNTIL_REPLACED = "until they are replaced or deleted"
"""What ends the life of a row of a table."""


MATCHED = "matched"
"""The note that says which rows have matched, whatever the family."""

_NOTE = "note/"
_COUNT = "count()#0"
_GENERATED = frozenset({WEIGHT, "#number"})


@dataclass(frozen=True)
class SpineRows:
    """Rows of a spine that are there; ``matched`` is NULL where nobody asks, ``expiry`` is by mark."""

    table: pa.RecordBatch
    matched: pa.Array
    expiry: ExpiryTimes

    def __len__(self) -> int:
        return self.table.num_rows

    def nearest(self, watermarks: Mapping[str, int]) -> tuple[pa.Array, pa.Array]:
        """Of each row the mark that is nearest to the end of its life, and the value that it must pass."""
        names = list(self.expiry)
        if not names:
            return pa.nulls(len(self), pa.string()), pa.nulls(len(self), pa.int64())
        ends = np.array([self.expiry[name] for name in names])
        # A mark that has not come yet is infinitely far away; of several such the earliest end counts.
        distance = ends.astype(np.float64) - np.array([[float(watermarks.get(name, -(2**62)))] for name in names])
        first = distance.argmin(axis=0)
        return pa.array(names).take(pa.array(first)), pa.array(ends[first, np.arange(len(self))])


@dataclass(frozen=True)
class ShardInspector:
    """The values of a shard by name, as they are stored."""

    values: Mapping[str, bytes]

    @cached_property
    def directory(self) -> Directory:
        """What the shard knows; a new one if it has none."""
        return Directory.decode(self.values.get(DIRECTORY), CanonicalNames())

    def bytes_of(self, spine: str) -> int:
        """How much the rows of a spine take, with what is kept beside them."""
        names = {block.name for run in self.directory.runs.get(spine, ()) for block in run}
        return sum(len(value) for name, value in self.values.items() if name.rpartition("/")[2] in names)

    def rows(self, spine: str, schema: SpineSchema) -> SpineRows | None:
        """The rows of a spine that are there; None: nothing is stored."""
        parts = [self._read(block) for run in self.directory.runs.get(spine, ()) for block in run]
        if not parts:
            return None
        # A column that the query no longer shows is left in older blocks.
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
        """What is not as it should be: blocks, notes, counts, ranges, and rows past the end of their lives."""
        listed = {block.name for runs in self.directory.runs.values() for run in runs for block in run}
        for name in sorted(self.values):
            if name.startswith((RUN, _NOTE)) and name.rpartition("/")[2] not in listed:
                yield f"{name} is stored, and no directory lists it"
        for spine, runs in self.directory.runs.items():
            for block in (block for run in runs for block in run):
                yield from (f"{spine}: {problem}" for problem in self._block_problems(block, spines.get(spine)))

    def _block_problems(self, block: StateBlock, schema: SpineSchema | None) -> Iterator[str]:
        try:
            batch, _ = self._read(block)
        except Exception as error:  # whatever pyarrow says of bytes that are none of its own
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
        """The rows of a block that are left, and which of them have matched."""
        value = self.values.get(f"{RUN}{block.name}")
        if value is None:
            raise ValueError("it is not stored")
        batch = decode_rows(value)
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
    """The number of the form in which a shard is stored; None: there is no directory, or it cannot be read."""
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
    """Rows of a table: equal ones once, with how often they are there."""
    columns = [name for name in table.schema.names if name not in _GENERATED]
    first, totals = group_rows(pa.Table.from_batches([table.select(columns)]), as_int64(table.column(WEIGHT)))
    there = totals > 0
    rows = table.select(columns).take(pa.array(first[there]))
    return pa.RecordBatch.from_arrays([*rows.columns, pa.array(totals[there])], names=[*columns, WEIGHT])


def _newest(table: pa.RecordBatch, schema: SpineSchema) -> Bools:
    """Which rows are the last of their keys, and stand for something."""
    ids: Ints = key_ids(table, schema.keys)
    _, last = np.unique(ids[::-1], return_index=True)
    newest = np.zeros(table.num_rows, np.bool_)
    newest[table.num_rows - 1 - last] = True
    if schema.keys and _COUNT in table.schema.names:
        newest &= pc.greater(table.column(_COUNT), 0).to_numpy(zero_copy_only=False)
    return newest
