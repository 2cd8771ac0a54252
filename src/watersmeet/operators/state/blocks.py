"""The stored blocks of a spine: each as one value, or as an index, a filter and parts, read through the run cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.matching import Bools, Ints, as_int64
from watersmeet.operators.state import cache
from watersmeet.operators.state.format import (
    READABLE_FORMATS,
    RUN,
    StateBlock,
    block_from_rows,
    block_name,
    concat_batches,
    decode_rows,
    encode_block,
    hash_codes,
    join_columns,
    may_contain,
    part_edges,
    part_name,
    part_names,
    rows_from_block,
    value_bytes,
)
from watersmeet.operators.state.layout import KeyedRows, RowLayout

if TYPE_CHECKING:
    from watersmeet.operators.state.spine import ShardState

SMALL_RUN = 1_024
"""Runs of at most this many rows are prefetched: where batches are small, most steps read all of them."""


_WHOLE = 6
"""The entry of a directory for a block in one value, after its name and rows; a block in parts has more."""


def runs_to_fetch(directory: bytes) -> list[tuple[str, str]]:
    """The small runs that a stored directory lists and that are not cached: the shard's name, and theirs."""
    read = json.loads(directory)
    if read.get("format") not in READABLE_FORMATS:
        # Opening the state raises the error.
        return []
    owner: str = read["owner"]
    blocks = (block for runs in read["runs"].values() for run in runs for block in run)
    return [
        (owner, name)
        for name, rows, *rest in blocks
        if rows <= SMALL_RUN and len(rest) <= _WHOLE and not cache.run_cache.has(owner, name)
    ]


def cache_run(owner: str, name: str, value: bytes) -> bool:
    """Cache a run that was fetched; False: it is not small, since its rows are wide."""
    run = decode_rows(value)
    if run.nbytes >= cache.SMALLEST:
        return False
    cache.run_cache.put(owner, name, run)
    return True


class BlockStore:
    """Reads, writes and removes the blocks of a spine.

    A block never changes and its name is a digest of its bytes, so the run cache of the worker may hold what was read.
    ``written_bytes`` counts the bytes of the blocks that were written.
    """

    def __init__(self, state: ShardState, spine: str, layout: RowLayout) -> None:
        self.state = state
        self.spine = spine
        self.layout = layout
        self.written_bytes = 0

    def index(self, block: StateBlock) -> KeyedRows | None:
        """Codes and times of a block in parts, with a table of only these columns; None: it lacks one of them."""
        index, shape = self._read_index(block), self._shape
        rows: KeyedRows | None = cache.run_cache.find_view(self._owner, block.name + cache.INDEX, shape)
        if rows is None:
            searched = (*self.layout.times, *(() if self.layout.code is None else (self.layout.code,)))
            if any(name not in index.schema.names for name in self.state.names.canonical_list(searched)):
                return None
            codes = np.zeros(block.rows, np.int64) if self.layout.code is None else self._ints(index, self.layout.code)
            times = {name: self._ints(index, name) for name in self.layout.times}
            rows = KeyedRows(index, codes, times)
            if rows.is_view:
                cache.run_cache.put_view(self._owner, block.name + cache.INDEX, shape, rows)
        return rows

    def is_cached(self, block: StateBlock) -> bool:
        """Whether all of a block in parts is at hand."""
        return cache.run_cache.is_cached(self._owner, block.name + cache.REST)

    def take(self, block: StateBlock, positions: Ints) -> KeyedRows:
        """The rows of a block in parts at these positions, which ascend; other parts are not read."""
        index, taken = self._read_index(block), pa.array(positions)
        searched = index.take(taken).replace_schema_metadata(index.schema.metadata)
        batch = join_columns(searched, self._take_rest(block, positions))
        return rows_from_block(batch, self.layout, self.state.names)

    def slice(self, block: StateBlock, start: int, stop: int) -> KeyedRows:
        """The rows of a block in parts from ``start`` to before ``stop``; other parts are not read."""
        index, rest = self._read_index(block), cache.run_cache.find(self._owner, block.name + cache.REST)
        if rest is None:
            edges = np.array(part_edges(index))
            first, last = int(np.searchsorted(edges, start, "right")) - 1, int(np.searchsorted(edges, stop, "left"))
            rest = concat_batches([self._read_part(block, number) for number in range(first, last)])
            rest = rest.slice(start - int(edges[first]), stop - start)
        else:
            rest = rest.slice(start, stop - start)
        return rows_from_block(join_columns(index.slice(start, stop - start), rest), self.layout, self.state.names)

    def put(self, block: StateBlock, rows: KeyedRows) -> StateBlock:
        """Write the rows of a block; returns it under its name."""
        batch = block_from_rows(rows, self.layout, self.state.names)
        names = self.state.names
        values = encode_block(batch, names.canonical_or_none(self.layout.code), names.canonical_list(self.layout.times))
        name = block_name(self._owner, self.spine, values.content, self.state.block_names)
        size = value_bytes(batch) if values.parts else 0
        block = replace(block, name=name, parts=len(values.parts), size=size)
        self.state.block_names.add(block.name)
        self.written_bytes += values.size
        for key, value in values.items(block.name):
            self.state.store.put(key, value)
        # The cached run has the same buffers as one read from the state, so views of it are the same.
        if values.index is None or values.rest is None:
            self._cache(block.name, batch, [values.value])
        else:
            self._cache(block.name + cache.INDEX, values.index, [values.value])
            self._cache(block.name + cache.REST, values.rest, values.parts)
            cache.run_cache.put(self._owner, block.name + cache.FILTER, _filter_batch(values.filter))
        return block

    def remove(self, block: StateBlock) -> None:
        """Remove a block from the store and from the cache."""
        self.state.store.remove(f"{RUN}{block.name}")
        for name in part_names(block.name, block.parts):
            self.state.store.remove(name)
        for suffix in (cache.INDEX, cache.FILTER, cache.REST) if block.parts else ("",):
            cache.run_cache.drop(self._owner, block.name + suffix)

    @property
    def _owner(self) -> str:
        return self.state.directory.owner

    @property
    def _shape(self) -> tuple[RowLayout, Any]:
        return self.layout, self.state.names.pairs

    def read(self, block: StateBlock) -> KeyedRows:
        """The rows of a block without their notes."""
        name = block.name + (cache.REST if block.parts else "")
        batch = self._read_rest(block) if block.parts else cache.run_cache.find(self._owner, name)
        if batch is None:
            batch = cache.run_cache.put_read(self._owner, name, decode_rows(self._get(f"{RUN}{name}", block)))
        rows: KeyedRows | None = cache.run_cache.find_view(self._owner, name, self._shape)
        if rows is None:
            batch = join_columns(self._read_index(block), batch) if block.parts else batch
            rows = rows_from_block(batch, self.layout, self.state.names)
            if rows.is_view:
                cache.run_cache.put_view(self._owner, name, self._shape, rows)
        return rows

    def _get(self, name: str, block: StateBlock) -> bytes:
        value = self.state.store.get(name)
        if value is None:
            raise RuntimeError(f"the state has no run {block.name}, which its directory lists")
        return value

    def _read_index(self, block: StateBlock) -> pa.RecordBatch:
        """The columns by which the rows of a block in parts are searched."""
        name = block.name + cache.INDEX
        index = cache.run_cache.find(self._owner, name)
        if index is None:
            index = cache.run_cache.put_read(self._owner, name, decode_rows(self._get(f"{RUN}{block.name}", block)))
        return index

    def may_contain(self, block: StateBlock, codes: Ints) -> Bools:
        """A mask of the codes that a block in parts may have, by its filter."""
        name = block.name + cache.FILTER
        batch = cache.run_cache.find(self._owner, name)
        if batch is None:
            batch = _filter_batch(self._get(part_name(block.name, "filter"), block))
            batch = cache.run_cache.put_read(self._owner, name, batch)
        return may_contain(batch.column(0).to_numpy(), hash_codes(codes))

    def _read_rest(self, block: StateBlock) -> pa.RecordBatch:
        """The columns of a block in parts that are not in its index."""
        name = block.name + cache.REST
        rest = cache.run_cache.find(self._owner, name)
        if rest is None:
            rest = cache.run_cache.put_read(self._owner, name, self._read_parts(block))
        return rest

    def _read_parts(self, block: StateBlock) -> pa.RecordBatch:
        return concat_batches([self._read_part(block, number) for number in range(block.parts)])

    def _read_part(self, block: StateBlock, number: int) -> pa.RecordBatch:
        return decode_rows(self._get(part_name(block.name, number), block))

    def _take_rest(self, block: StateBlock, positions: Ints) -> pa.RecordBatch:
        """The columns that are not in the index, of rows at ascending positions."""
        name = block.name + cache.REST
        rest = cache.run_cache.find(self._owner, name)
        if rest is not None:
            return rest.take(pa.array(positions))
        edges = np.array(part_edges(self._read_index(block)))
        cuts = np.searchsorted(positions, edges)
        numbers = np.flatnonzero(np.diff(cuts))
        if cache.run_cache.is_worth_reading(self._owner, block.name, numbers.size, block.parts, block.size):
            rest = self._read_parts(block)
            cache.run_cache.put(self._owner, name, rest)
            return rest.take(pa.array(positions))
        # Without room for all of it, parts are read one after the other, so that no more than one is in memory.
        pieces = [
            self._read_part(block, number).take(pa.array(positions[cuts[number] : cuts[number + 1]] - edges[number]))
            for number in numbers.tolist()
        ]
        return concat_batches(pieces) if pieces else self._read_part(block, 0).slice(0, 0)

    def _ints(self, batch: pa.RecordBatch, name: str) -> Ints:
        return as_int64(batch.column(self.state.names.canonical(name)))

    def _cache(self, name: str, batch: pa.RecordBatch, values: Sequence[bytes]) -> None:
        if not cache.run_cache.is_file_backed(batch):
            batch = concat_batches([decode_rows(value) for value in values])
        cache.run_cache.put(self._owner, name, batch)


def _filter_batch(value: bytes) -> pa.RecordBatch:
    """A filter as the cache holds it."""
    return pa.RecordBatch.from_arrays([pa.array(np.frombuffer(value, np.uint8))], names=["filter"])
