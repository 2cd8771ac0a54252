"""Resharding of a state, and the check that rows with NULL keys are in the right shard.

Earlier versions sent a row with a NULL key to any shard, so that its next version could go to another one, which did
not find it. A state with the value `NULL_KEYS` has its rows placed by `watersmeet.operators.core.routing`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import CanonicalNames, Identity
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64
from watersmeet.operators.core.operator import StateStore, StreamOperator
from watersmeet.operators.state.format import (
    DIRECTORY,
    PART,
    RUN,
    SPLIT_AT,
    BlockValues,
    Directory,
    Run,
    StateBlock,
    block_name,
    cut_rows,
    decode_block,
    decode_note,
    decode_rows,
    digest,
    encode_block,
    encode_note,
    encode_rows,
    index_columns,
    part_names,
    value_bytes,
)
from watersmeet.operators.state.layout import NoteKind, Values
from watersmeet.operators.state.spine import GONE
from watersmeet.operators.state.state_schema import MATCHED, ShardInspector, StateSchema, UnevenError

NULL_KEYS = "null keys"
"""The name of the value that says how a shard's rows with NULL keys are placed."""
BY_CONTENT = b"by content"


def places_null_keys(operator: StreamOperator, store: StateStore, shards: int) -> bool:
    """Whether every stored row with a NULL key is in its shard; if so, the state records it."""
    if not operator.null_key_spines or store.get(NULL_KEYS) is not None:
        return True
    if shards > 1 and _holds_null_keys(operator, store):
        return False
    store.put(NULL_KEYS, BY_CONTENT)
    return True


def _holds_null_keys(operator: StreamOperator, store: StateStore) -> bool:
    runs = Directory.decode(store.get(DIRECTORY), operator.canonical_names).runs
    for spine, key in operator.null_key_spines:
        for block in (block for run in runs.get(spine, ()) for block in run):
            # NULL is stored as the highest code, so other blocks need not be read.
            batch = decode_block(store.get, block.name) if block.highest_code == HIGHEST else None
            if batch is not None and batch.column(operator.canonical_names.canonical(key)).null_count:
                return True
    return False


# A state in another number of shards: every row goes to the shard of the rows that it can match.
#
# Each shard is split separately (`split_shard`), block by block, so that runs stay sorted; the parts from several
# shards become one state with the runs of all of them (`merge_shards`), which later merge as usual. A family converts
# the numbers in the directory (`StateSchema.numbers`), and says whether its rows are in order of arrival
# (`StateSchema.arrival`), which each shard numbers separately.


ShardValues = dict[str, bytes]
"""The values of a shard by name."""
ShardAssignment = Callable[[str, pa.RecordBatch], Ints | None]
"""The shard of each row of a spine, or `EVERYWHERE` or `NOWHERE`; None: the rows are in all shards."""
EVERYWHERE, NOWHERE = -1, -2
"""The shards of copies of a row with a skewed key: one of them goes to all shards, the others are dropped."""
NOTES: Mapping[str, NoteKind] = {MATCHED: "flag", GONE: "flag", "sums": "number"}
"""All notes, by name."""
FINGERPRINT = "fingerprint"


def split_shard(
    values: Mapping[str, bytes], places: ShardAssignment, shards: int, *, is_first: bool
) -> list[ShardValues]:
    """The parts of a shard for each of several; rows that are in all shards are taken from the first of them."""
    constants = {name: values[name] for name in (FINGERPRINT, NULL_KEYS) if name in values}
    if DIRECTORY not in values:
        # A chained join that no row has reached yet.
        return [dict(constants) for _ in range(shards)]
    directory = ShardInspector(values).directory
    unknown = {name.split("/")[1] for name in values if name.startswith("note/")} - NOTES.keys()
    if unknown:
        raise UnevenError(f"its notes `{min(unknown)}` have an unknown format")
    parts: list[ShardValues] = [{} for _ in range(shards)]
    runs: list[dict[str, tuple[Run, ...]]] = [{} for _ in range(shards)]
    for spine, old in directory.runs.items():
        new: list[list[Run]] = [[] for _ in range(shards)]
        for run in old:
            pieces: list[list[StateBlock]] = [[] for _ in range(shards)]
            for block in run:
                batch, notes = _read_block(values, block)
                searched = _find_index_columns(values, block)
                place = places(spine, batch)
                if place is None and notes:
                    raise UnevenError(f"its shards differ in the notes on rows that all of them hold ({spine})")
                for shard in range(shards) if place is not None or is_first else ():
                    is_taken = None if place is None else (place == shard) | (place == EVERYWHERE)
                    pieces[shard] += _put_blocks(
                        parts[shard], (directory.owner, spine), block, batch, notes, is_taken, searched
                    )
            for shard, blocks in enumerate(pieces):
                if blocks:
                    new[shard].append(tuple(blocks))
        for shard in range(shards):
            runs[shard][spine] = tuple(new[shard])
    for shard, part in enumerate(parts):
        owner = digest(directory.owner, f"{shard} of {shards}")
        part[DIRECTORY] = replace(directory, runs=runs[shard], owner=owner).encode(CanonicalNames())
        part |= constants
    return parts


def merge_shards(parts: Sequence[Mapping[str, bytes]], keeping: StateSchema, identity: Identity) -> ShardValues:
    """The state of a shard from its parts of several shards."""
    directories = [ShardInspector(part).directory for part in parts]
    first = directories[0]
    if any(directory.received != first.received or directory.active != first.active for directory in directories):
        raise UnevenError("its shards are not all at the same batch")
    if len({part[FINGERPRINT] for part in parts}) > 1:
        raise UnevenError("its shards are not all of the current query")
    if not any(DIRECTORY in part for part in parts):
        return dict(parts[0])
    values: ShardValues = {}
    for part in parts:
        if any(name.startswith((RUN, PART)) and name in values for name in part):
            raise RuntimeError("two shards have blocks of one name")
        values |= {name: value for name, value in part.items() if name != DIRECTORY}
    spines = dict.fromkeys(spine for directory in directories for spine in directory.runs)
    runs = {spine: tuple(run for directory in directories for run in directory.runs.get(spine, ())) for spine in spines}
    shared = set(first.emitted).intersection(*(directory.emitted for directory in directories))
    # A watermark that only some shards have emitted has not reached the operators downstream.
    emitted = {name: min(directory.emitted[name] for directory in directories) for name in shared}
    owner = digest(*(directory.owner for directory in directories))
    if keeping.arrival is not None:
        runs = _renumber_arrivals(values, directories, keeping.arrival, owner)
    over = next((directory.finality for directory in directories if directory.finality), first.finality)
    merged = Directory(runs, first.received, emitted, first.active, {}, owner, over)
    values[DIRECTORY] = merged.encode(CanonicalNames())
    numbers_before = [
        directory.numbers for part, directory in zip(parts, directories, strict=True) if DIRECTORY in part
    ]
    numbers = keeping.numbers(identity, numbers_before, ShardInspector(values))
    values[DIRECTORY] = replace(merged, numbers=numbers).encode(CanonicalNames())
    return values


def _read_block(values: Mapping[str, bytes], block: StateBlock) -> tuple[pa.RecordBatch, dict[str, Values]]:
    """The remaining rows of a block, and their notes."""
    batch = decode_block(values.get, block.name)
    if batch is None:
        raise RuntimeError(f"the state has no run {block.name}, which its directory lists")
    stored = {name: values.get(f"note/{name}/{block.name}") for name in NOTES}
    notes = {n: decode_note(value, NOTES[n], block.rows) for n, value in stored.items() if value is not None}
    gone = notes.pop(GONE, None)
    if gone is None or block.left == block.rows:
        return batch, notes
    return batch.filter(pa.array(~gone)), {name: noted[~gone] for name, noted in notes.items()}


def _find_index_columns(values: Mapping[str, bytes], block: StateBlock) -> tuple[str | None, list[str]] | None:
    """The columns that are searched, of a block in parts; None: one value holds all."""
    return index_columns(decode_rows(values[f"{RUN}{block.name}"])) if block.parts else None


def _put_blocks(
    part: ShardValues,
    of: tuple[str, str],
    block: StateBlock,
    batch: pa.RecordBatch,
    notes: Mapping[str, Values],
    taken: Bools | None,
    searched: tuple[str | None, list[str]] | None,
) -> Run:
    """Store the taken rows of a block as new blocks, usually one; none without rows.

    ``of``: the name of the shard, and of the spine. ``searched``: the columns of the index, if blocks may have parts.
    """
    rows = batch if taken is None else batch.filter(pa.array(taken))
    notes = {note: values if taken is None else values[taken] for note, values in notes.items()}
    edges = cut_rows(rows, max(1, rows.num_rows), SPLIT_AT if searched is None else sys.maxsize)
    pieces = [(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]
    run: list[StateBlock] = []
    for start, stop in pieces:
        piece = rows.slice(start, stop - start)
        times = {name: as_int64(piece.column(name)) for name in block.lowest}
        lowest = {name: int(values.min()) for name, values in times.items()}
        highest = {name: int(values.max()) for name, values in times.items()}
        values = BlockValues(encode_rows(piece)) if searched is None else encode_block(piece, *searched)
        name = block_name(*of, values.content, {key.removeprefix(RUN) for key in part if key.startswith(RUN)})
        part.update(values.items(name))
        for note, noted in notes.items():
            part[f"note/{note}/{name}"] = encode_note(noted[start:stop])
        size = value_bytes(piece) if values.parts else 0
        # The range of codes of a subset lies within that of the block.
        run.append(
            replace(
                block, name=name, rows=stop - start, left=stop - start, lowest=lowest, highest=highest,
                parts=len(values.parts), size=size,
            )
        )  # fmt: skip
    return tuple(run)


def _renumber_arrivals(
    values: ShardValues, directories: Sequence[Directory], arrival: str, owner: str
) -> dict[str, tuple[Run, ...]]:
    """The runs of all spines, each as one block in order of arrival, with numbers that are unique across shards.

    Rows of one shard keep their order; rows of different shards have no order between them, and get one.
    """
    blocks = [(shard, spine, block) for shard, spine, block in _blocks(directories)]
    batches = [_read_block(values, block) for _, _, block in blocks]
    numbers = [as_int64(batch.column(arrival)) for batch, _ in batches]
    sizes = [len(numbers_of_block) for numbers_of_block in numbers]
    of = np.repeat([shard for shard, _, _ in blocks], sizes)
    order = np.lexsort((of, np.concatenate(numbers))) if numbers else np.zeros(0, np.int64)
    new_numbers = np.empty(len(order), np.int64)
    new_numbers[order] = np.arange(len(order))
    pieces = np.split(new_numbers, np.cumsum(sizes)[:-1])
    runs: dict[str, tuple[Run, ...]] = {}
    for spine in dict.fromkeys(name for _, name, _ in blocks):
        own = [n for n, (_, name, _) in enumerate(blocks) if name == spine]
        number = np.concatenate([pieces[n] for n in own])
        table = pa.Table.from_batches([_with_numbers(batches[n][0], arrival, pieces[n]) for n in own])
        taken = np.argsort(number)
        (whole,) = table.combine_chunks().take(pa.array(taken)).combine_chunks().to_batches()
        notes = {name: np.concatenate([batches[n][1][name] for n in own])[taken] for name in batches[own[0]][1]}
        run = _put_blocks(values, (owner, spine), blocks[own[0]][2], whole, notes, None, None)
        runs[spine] = (run,) if run else ()
    for _, _, block in blocks:
        stored = (f"{RUN}{block.name}", *part_names(block.name, block.parts))
        for name in (*stored, *(f"note/{note}/{block.name}" for note in NOTES)):
            values.pop(name, None)
    return runs


def _blocks(directories: Sequence[Directory]) -> Iterator[tuple[int, str, StateBlock]]:
    for shard, directory in enumerate(directories):
        for spine, runs in directory.runs.items():
            yield from ((shard, spine, block) for run in runs for block in run)


def _with_numbers(batch: pa.RecordBatch, column: str, numbers: Ints) -> pa.RecordBatch:
    return batch.set_column(batch.schema.names.index(column), column, pa.array(numbers))
