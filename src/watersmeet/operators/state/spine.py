"""The state engine: rows of one kind in one shard, as sorted runs that can be added, read, annotated and merged.

Invariants. A block of a run never changes and its name is a digest of its bytes, so a worker may cache decoded blocks
from batch to batch; values that change are stored as notes. A step is a function of the state, the arrivals and their
order: the same in every attempt of a batch, whether blocks are cached or not. New rows become a new run, and runs of
similar size are merged, so that a row is rewritten about once per size it passes through (`Budget`). Nothing is written
before `ShardState.save`, except merged runs, which are written block by block and are never in memory whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints
from watersmeet.operators.core.operator import StateStore
from watersmeet.operators.state import cache
from watersmeet.operators.state.blocks import BlockStore
from watersmeet.operators.state.format import DIRECTORY, Directory, Run, StateBlock, cut_rows, decode_note, encode_note
from watersmeet.operators.state.layout import (
    Budget,
    FinalityBound,
    Hash,
    KeyedRows,
    RowLayout,
    Values,
    concat_rows,
    split_to_fit,
)

MergeRule = Callable[[KeyedRows, bool], KeyedRows]
"""Selects the live rows of several runs, sorted, the older first among equals; the flag: no older run is left."""

GONE = "gone"
"""The note that flags the removed rows of a block."""

BLOCKS_AT_HAND, ROWS_AT_HAND, BYTES_AT_HAND = 64, 4_000_000, 256 * 2**20
"""The blocks that a step caches at most, unless they have more rows or bytes than that: most steps read a block twice,
for old rows and for matches.
"""
BLOCK_BYTES = 64 * 2**20
"""The bytes of a block at most, if it has more than one row, and of the rows that are merged at once."""
SAMPLES = 16
"""The codes of a block that are looked at for every part of a merge, to find ranges of one size."""


class CodeMatches(NamedTuple):
    """The rows of a block among which those with some sorted codes are.

    - ``rows``: the rows, all of the block or only those that have one of the codes
    - ``positions``: where these are in the block; None: all of its rows
    - ``probes``: the positions of the codes that the block has; None: any of them
    """

    rows: KeyedRows
    positions: Ints | None = None
    probes: Ints | None = None


class ShardState:
    """The state of one shard during a step: open it, use its spines, save it once.

    >>> from watersmeet.tools.testing import MemoryStore
    >>> import pyarrow as pa
    >>> store, layout = MemoryStore(), RowLayout(("k", "v"), code="k")
    >>> state = ShardState(store)
    >>> state.spine("rows", layout).add(layout.rows(pa.table({"k": [2, 1], "v": ["b", "a"]})))
    >>> state.save(received={"t": 5})
    >>> state = ShardState(store)
    >>> [state.spine("rows", layout).read(block).table["v"].to_pylist() for block in state.spine("rows", layout).blocks]
    [['a', 'b']]
    """

    def __init__(self, store: StateStore, names: CanonicalNames | None = None) -> None:
        self.store = store
        self.names = CanonicalNames() if names is None else names
        self.value: bytes | None = store.get(DIRECTORY)
        read = Directory.decode(self.value, self.names)
        self.directory: Directory = read if self.value is not None else replace(read, owner=store.owner)
        self.spines: dict[str, Spine] = {}
        listed = frozenset(block.name for runs in self.directory.runs.values() for run in runs for block in run)
        self.block_names = set(listed)
        if self.value is not None:
            cache.run_cache.retain(self.directory.owner, listed)

    def spine(
        self,
        name: str,
        layout: RowLayout,
        budget: Budget | None = None,
        rule: MergeRule | None = None,
        hash_of: Hash | None = None,
    ) -> Spine:
        """Open the spine of that name.

        ``hash_of`` is equal for rows that the rule must see together, so that a code with many rows can be split;
        without it the rule sees all rows of a code together.
        """
        if name not in self.spines:
            self.spines[name] = Spine(self, name, layout, budget or Budget(), rule, hash_of)
        return self.spines[name]

    @property
    def rows_written(self) -> int:
        """The number of rows written, including those of merged runs."""
        return sum(spine.written for spine in self.spines.values())

    @property
    def writes_by_spine(self) -> dict[str, tuple[int, int]]:
        """By spine, the rows and bytes written, where there are any."""
        return {
            name: (spine.written, spine.stored.written_bytes) for name, spine in self.spines.items() if spine.written
        }

    def save(self, **changes: Any) -> None:
        """Store new runs and notes, and the directory with these ``changes``, if anything changed."""
        runs = {name: spine.save() for name, spine in self.spines.items()}
        over = {
            name: (own_spine.finality.time, own_spine.finality.mark)
            for name, own_spine in self.spines.items()
            if own_spine.finality is not None
        }
        directory = replace(self.directory, runs={**self.directory.runs, **runs}, finality=over, **changes)
        value = directory.encode(self.names)
        if value != self.value and not (self.value is None and directory.is_blank):
            self.store.put(DIRECTORY, value)
        self.directory, self.value = directory, value


class Spine:
    """The rows of one kind in a shard: a log-structured set of sorted runs, with levels as in an LSM tree.

    New rows become a new run, and runs of similar size are merged into one of the next level (`Budget`). ``runs`` are
    oldest first. Readers select ``blocks`` of runs by their ranges and read those. The object lasts for one step.
    """

    def __init__(
        self,
        state: ShardState,
        name: str,
        layout: RowLayout,
        budget: Budget,
        rule: MergeRule | None,
        hash_of: Hash | None,
    ) -> None:
        self.state = state
        self.name = name
        self.layout = layout
        self.budget = budget
        self.rule = rule
        self.hash_of = hash_of
        self.kinds = dict(layout.notes)
        self.runs: list[Run] = list(state.directory.runs.get(name, ()))
        self.finality: FinalityBound | None = None
        self.stored = BlockStore(state, name, layout)
        self.written = 0
        self._fresh: dict[str, KeyedRows] = {}
        self._numbers = count()
        self._held: dict[str, KeyedRows] = {}
        self._notes: dict[tuple[str, str], Values] = {}
        self._changed: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        """The number of stored rows; rows that cancel out but are not merged yet count."""
        return sum(block.left for run in self.runs for block in run)

    @property
    def blocks(self) -> list[StateBlock]:
        """All blocks, as they are now."""
        return [block for run in self.runs for block in run]

    def earliest(self, time: str) -> int | None:
        """The earliest time in a column; None without rows."""
        return min((block.lowest[time] for run in self.runs for block in run), default=None)

    def read(self, block: StateBlock) -> KeyedRows:
        """The rows of a block with their notes, those that are `GONE` included."""
        rows = self._fresh.get(block.name)
        if rows is not None:
            return rows
        rows = self._held.get(block.name)
        if rows is None:
            rows = self.stored.read(block)
            held = self._held.values()
            if (
                len(held) >= BLOCKS_AT_HAND
                or sum(map(len, held)) >= ROWS_AT_HAND
                or sum(other.table.nbytes for other in held if not other.is_view) >= BYTES_AT_HAND
            ):
                self._held.clear()
            self._held[block.name] = rows
        if not self.kinds:
            return rows
        return rows.with_attributes(**{name: self.note(block, name) for name in self.kinds})

    def index(self, block: StateBlock) -> KeyedRows:
        """Codes, times and notes of a block. Of a block in parts, the table has only the columns of these."""
        if not block.parts:
            return self.read(block)
        rows = self.stored.index(block)
        if rows is None:
            # The block is older than a time that counts now.
            return self.read(block)
        if not self.kinds:
            return rows
        return rows.with_attributes(**{name: self.note(block, name) for name in self.kinds})

    def select(self, block: StateBlock, positions: Ints) -> KeyedRows:
        """The rows of a block at these positions, which ascend, with their notes; other parts are not read."""
        if not block.parts:
            return self.read(block).take(positions)
        return self._with_notes(block, self.stored.take(block, positions), positions)

    def take_columns(self, block: StateBlock, columns: Sequence[str], positions: Ints) -> pa.RecordBatch:
        """Some columns of the rows of a block at these positions, in any order; other parts are not read."""
        if not block.parts:
            return self.read(block).table.select(list(columns)).take(pa.array(positions))
        distinct, places = np.unique(positions, return_inverse=True)
        return self.select(block, distinct).table.select(list(columns)).take(pa.array(places))

    def find(self, block: StateBlock, codes: Ints) -> CodeMatches:
        """The rows of a block that may have one of these sorted codes."""
        if not block.parts:
            return CodeMatches(self.read(block))
        probes, stored, first = self._search_index(block, codes)
        if not probes.size:
            return CodeMatches(self.layout.empty_rows, np.zeros(0, np.int64), probes)
        if block.name in self._held or self.stored.is_cached(block):
            # All of it is at hand: to search it costs less than to take rows out of it.
            return CodeMatches(self.read(block), None, probes)
        positions = _positions_from(stored, codes[probes], first)
        return CodeMatches(self.select(block, positions), positions, probes)

    def positions_of(self, block: StateBlock, codes: Ints) -> Ints:
        """The ascending positions of the rows of a block in parts that have one of these sorted codes."""
        probes, stored, first = self._search_index(block, codes)
        return _positions_from(stored, codes[probes], first)

    def candidates(self, block: StateBlock, codes: Ints) -> Ints:
        """The positions of those of these sorted codes that a block may have, by its range and its filter, if any."""
        low, high = (
            np.searchsorted(codes, block.lowest_code, "left"),
            np.searchsorted(codes, block.highest_code, "right"),
        )
        positions = np.arange(low, high)
        if not block.parts or not positions.size:
            return positions
        return positions[self.stored.may_contain(block, codes[low:high])]

    def _search_index(self, block: StateBlock, codes: Ints) -> tuple[Ints, Ints, Ints]:
        """Search the index of a block in parts for sorted codes.

        Returns the positions of those that it has, its own codes, and the first row of each. Only codes that the filter
        passes are searched: where keys are spread over many blocks, most codes are in none or one of them.
        """
        probes = self.candidates(block, codes)
        if not probes.size:
            return probes, probes, probes
        stored, searched = self.index(block).codes, codes[probes]
        first = np.searchsorted(stored, searched, "left")
        is_stored = stored[np.minimum(first, stored.size - 1)] == searched
        return probes[is_stored], stored, first[is_stored]

    def note(self, block: StateBlock, name: str) -> Values:
        """The note of a block by name."""
        if block.name in self._fresh:
            return self._fresh[block.name].attributes[name]
        values = self._notes.get((name, block.name))
        if values is None:
            value = self.state.store.get(_note(name, block))
            if value is None:
                raise RuntimeError(f"the state has no note {name} for the block {block.name}")
            values = decode_note(value, self.kinds.get(name, "flag"), block.rows)
            self._notes[name, block.name] = values
        return values

    def rows(self) -> KeyedRows:
        """All live rows, block after block."""
        parts = [self.read(block).where(self.live_mask(block)) for run in self.runs for block in run]
        return concat_rows(parts) if parts else self.layout.empty_rows

    def live_mask(self, block: StateBlock) -> Bools:
        """A mask of the live rows of a block."""
        if block.left == block.rows:
            return np.ones(block.rows, np.bool_)
        return ~self.note(block, GONE)

    def annotate(self, block: StateBlock, name: str, values: Values) -> None:
        """Replace a note of a block."""
        if block.name in self._fresh:
            self._fresh[block.name] = self._fresh[block.name].with_attributes(**{name: values})
            return
        self._notes[name, block.name] = values
        self._changed.add((name, block.name))

    def add(self, rows: KeyedRows) -> None:
        """Add rows, in any order, with their notes: they become a run."""
        run = self._blocks(self.layout.sort(rows))
        if run:
            self.runs.append(run)

    def remove(self, block: StateBlock, evicted: Bools) -> None:
        """Remove rows of a block; a block that has become sparse is replaced by one without them."""
        stay = self.live_mask(block) & ~evicted
        left, sparse = int(np.count_nonzero(stay)), self.budget.sparse
        if left == block.left:
            return
        if not left:
            self.drop(block)
        elif block.name in self._fresh or (sparse is not None and left * sparse < block.rows):
            rest = self.read(block).where(stay)
            self._delete_block(block)
            self._substitute(block, self._blocks(rest))
        else:
            self.annotate(block, GONE, ~stay)
            times = {name: values[stay] for name, values in self.read(block).times.items()}
            lowest = {name: int(values.min()) for name, values in times.items()}
            highest = {name: int(values.max()) for name, values in times.items()}
            self._substitute(block, (replace(block, left=left, lowest=lowest, highest=highest),))

    def retain(self, retained: Bools, **notes: Values) -> None:
        """Remove all rows (see `rows`) that are not ``retained``, and set notes of the others."""
        start = 0
        for block in self.blocks:
            part = slice(start, start + block.left)
            start += block.left
            if not retained[part].any():
                self.drop(block)
                continue
            there = np.flatnonzero(self.live_mask(block))
            for name, values in notes.items():
                noted = self.note(block, name)
                if not np.array_equal(noted[there], values[part]):
                    noted = noted.copy()
                    noted[there] = values[part]
                    self.annotate(block, name, noted)
            evicted = np.zeros(block.rows, np.bool_)
            evicted[there] = ~retained[part]
            self.remove(block, evicted)

    def drop(self, block: StateBlock) -> None:
        """Let all rows of a block leave."""
        self._delete_block(block)
        self._substitute(block, ())

    def expire(self, finality: FinalityBound | None) -> None:
        """Let rows leave that are over: whole blocks, and those that have not been written yet.

        Others leave when their runs are merged, if the rule says so.
        """
        self.finality = finality
        if finality is None:
            return
        for block in self.blocks:
            if finality.time not in block.highest:
                # The block was written without that time.
                continue
            if block.highest[finality.time] <= finality.mark:
                self.drop(block)
            elif block.name in self._fresh and block.lowest[finality.time] <= finality.mark:
                self.remove(block, ~finality.is_open(self.read(block)))

    def compact(self) -> None:
        """Merge all runs, so that nothing is stored that is not alive."""
        if self.runs:
            self._replace_runs(list(self.runs))

    def merge_runs(self, runs: Sequence[Run] | None = None) -> Iterator[KeyedRows]:
        """The live rows of some runs, or of all, in order, by ranges of codes that fit in memory."""
        runs = self.runs if runs is None else runs
        is_oldest = bool(runs) and runs[0] is self.runs[0]
        for low, high in self._ranges([block for run in runs for block in run]):
            parts = [part for run in runs for block in run for part in self.rows_between(block, low, high)]
            for group in split_to_fit(parts, high, self.budget.chunk, self.hash_of):
                if group:
                    rows = self.layout.merge(group)
                    rows = rows if self.rule is None else self.rule(rows, is_oldest)
                    if len(rows):
                        yield rows

    def save(self) -> tuple[Run, ...]:
        """Merge runs, store new blocks and notes, and return the current runs."""
        runs = list(self.runs)
        for group in self.budget.merge_groups([sum(block.left for block in run) for run in runs]):
            self._replace_runs([runs[number] for number in group])
        self.runs = [tuple(self._store_block(block) for block in run) for run in self.runs]
        for name, block in sorted(self._changed):
            self.state.store.put(f"note/{name}/{block}", encode_note(self._notes[name, block]))
        self._fresh, self._changed = {}, set()
        return tuple(self.runs)

    def _blocks(self, rows: KeyedRows) -> Run:
        """Sorted rows as blocks that have not been written yet; what these are called is nowhere stored."""
        run = list[StateBlock]()
        for part in self._cut(rows):
            run.append(self._describe_block(part, f"fresh {next(self._numbers)}"))
            self._fresh[run[-1].name] = part
        return tuple(run)

    def _cut(self, rows: KeyedRows) -> list[KeyedRows]:
        """Rows in pieces of a block's size: all full but the last, unless rows differ much in their bytes."""
        edges = cut_rows(rows.table, self.budget.block, BLOCK_BYTES)
        return [rows.slice(start, stop) for start, stop in pairwise(edges) if start < stop]

    def _describe_block(self, rows: KeyedRows, name: str = "") -> StateBlock:
        return StateBlock.of(rows, name, counted=not self.layout.sort_time)

    def rows_between(self, block: StateBlock, low: int, high: int) -> Iterator[KeyedRows]:
        """The rows of a block that are there and have codes from ``low`` to ``high``, as one part, or none."""
        if block.lowest_code > high or low > block.highest_code:
            return
        codes = self.index(block).codes
        start = 0 if low <= block.lowest_code else int(np.searchsorted(codes, low, "left"))
        stop = block.rows if block.highest_code <= high else int(np.searchsorted(codes, high, "right"))
        if start == stop:
            return
        rows = self._slice(block, start, stop)
        if block.left < block.rows:
            rows = rows.where(self.live_mask(block)[start:stop])
        if len(rows):
            yield rows

    def _replace_runs(self, runs: list[Run]) -> None:
        """Let one run take the place of several; written block by block, so that it is never in memory whole."""
        run: list[StateBlock] = []
        carried: list[KeyedRows] = []
        for rows in self.merge_runs(runs):
            pieces = self._cut(concat_rows([*carried, rows]))
            run += [self._put_new(piece) for piece in pieces[:-1]]
            carried = pieces[-1:]
        run += [self._put_new(piece) for piece in carried]
        for block in (block for old in runs for block in old):
            self._delete_block(block)
        place = self.runs.index(runs[0])
        rest = [[old for old in part if old not in runs] for part in (self.runs[:place], self.runs[place:])]
        self.runs = [*rest[0], *([tuple(run)] if run else []), *rest[1]]

    def _substitute(self, block: StateBlock, blocks: Run) -> None:
        """Let these blocks take the place of one."""
        for number, run in enumerate(self.runs):
            if any(old.name == block.name for old in run):
                changed = tuple(new for old in run for new in (blocks if old.name == block.name else (old,)))
                self.runs[number : number + 1] = [changed] if changed else []
                return

    def _ranges(self, blocks: list[StateBlock]) -> list[tuple[int, int]]:
        """Ranges of codes, first to last, that cover all blocks, each with about as many rows as fit in memory.

        A code with more rows than that ends a range.
        """
        shares = [max(1 / self.budget.chunk, block.size / block.rows / BLOCK_BYTES) for block in blocks]
        whole = sum(share * block.rows for share, block in zip(shares, blocks, strict=True))
        if whole <= 1:
            return [(int(LOWEST), int(HIGHEST))]
        codes, weights = list[Ints](), list[Values]()
        for share, block in zip(shares, blocks, strict=True):
            step = max(1, int(1 / (SAMPLES * share)))
            sample = self.index(block).codes[step // 2 :: step]
            codes.append(sample)
            weights.append(np.full(sample.size, share * block.rows / max(1, sample.size)))
        sampled = np.concatenate(codes)
        order = np.argsort(sampled, kind="stable")
        total = np.cumsum(np.concatenate(weights)[order])
        edges = np.flatnonzero(np.diff(np.floor(total), prepend=0.0))
        lasts = [int(code) for code in np.unique(sampled[order][edges]) if code < HIGHEST]
        return list(zip([int(LOWEST), *(code + 1 for code in lasts)], [*lasts, int(HIGHEST)], strict=True))

    def _slice(self, block: StateBlock, start: int, stop: int) -> KeyedRows:
        """The rows of a block from ``start`` to before ``stop``, with their notes; other parts are not read."""
        if not block.parts or (start == 0 and stop == block.rows) or block.name in self._held:
            return self.read(block).slice(start, stop)
        return self._with_notes(block, self.stored.slice(block, start, stop), slice(start, stop))

    def _with_notes(self, block: StateBlock, rows: KeyedRows, which: Ints | slice) -> KeyedRows:
        notes = {name: self.note(block, name)[which] for name in self.kinds}
        return rows.with_attributes(**notes) if notes else rows

    def _store_block(self, block: StateBlock) -> StateBlock:
        """The block as it is stored, which it is by then."""
        return self._put(block, self._fresh[block.name]) if block.name in self._fresh else block

    def _put_new(self, rows: KeyedRows) -> StateBlock:
        return self._put(self._describe_block(rows), rows)

    def _put(self, block: StateBlock, rows: KeyedRows) -> StateBlock:
        """Write a block; gives it under its name."""
        block = self.stored.put(block, rows)
        for name in self.kinds:
            self.state.store.put(_note(name, block), encode_note(rows.attributes[name]))
        self.written += len(rows)
        return block

    def _delete_block(self, block: StateBlock) -> None:
        """Remove a block from the store, unless it was never there."""
        names = [*self.kinds, *([GONE] if block.left < block.rows else [])]
        for name in names:
            self._notes.pop((name, block.name), None)
            self._changed.discard((name, block.name))
        self._held.pop(block.name, None)
        if self._fresh.pop(block.name, None) is None:
            self.stored.remove(block)
            for name in names:
                self.state.store.remove(_note(name, block))


def _positions_from(stored: Ints, codes: Ints, first: Ints) -> Ints:
    """The ascending positions of all rows with these sorted codes, given the first row of each.

    >>> _positions_from(np.array([3, 5, 5, 8]), np.array([5, 5, 8]), np.array([1, 1, 3])).tolist()
    [1, 2, 3]
    """
    is_new = np.ones(codes.size, np.bool_)
    is_new[1:] = codes[1:] != codes[:-1]
    first = first[is_new]
    counts = np.searchsorted(stored, codes[is_new], "right") - first
    return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))


def _note(name: str, block: StateBlock) -> str:
    return f"note/{name}/{block.name}"
