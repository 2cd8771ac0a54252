"""A state in another number of shards: every row goes to the shard in which the rows are that it can meet.

Each shard is taken apart by itself (`parted`), block by block, so that runs stay sorted; what came from several shards
is put together as one state with the runs of all of them (`united`), which merge as runs do. A family says what becomes
of the numbers that it keeps (`Keeping.numbers`), and whether its rows are in the order of arrival (`Keeping.arrival`),
which shards number each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.identity import Identity, Names
from watersmeet.joins.core.matching import Bools, Ints
from watersmeet.joins.state.format import (
    DIRECTORY,
    RUN,
    Block,
    Directory,
    Run,
    block_name,
    decode_note,
    decode_rows,
    digest,
    encode_note,
    encode_rows,
)
from watersmeet.joins.state.kept import Keeping, UnevenError
from watersmeet.joins.state.layout import NoteKind, Values, as_int64
from watersmeet.joins.state.look import MATCHED, Look
from watersmeet.joins.state.null_keys import NULL_KEYS
from watersmeet.joins.state.spine import GONE

Stored = dict[str, bytes]
"""The values of a shard by name."""
Places = Callable[[str, pa.RecordBatch], Ints | None]
"""Of the rows of a spine, the place of the shard of each; None: they are in all of them."""
NOTES: Mapping[str, NoteKind] = {MATCHED: "flag", GONE: "flag", "sums": "number"}
"""All notes that there are."""
FINGERPRINT = "fingerprint"


def parted(values: Mapping[str, bytes], places: Places, shards: int, *, is_first: bool) -> list[Stored]:
    """What of a shard goes to each of so many; rows that are in all shards are taken from the first of them."""
    said = {name: values[name] for name in (FINGERPRINT, NULL_KEYS) if name in values}
    if DIRECTORY not in values:
        # Of joins that run together, one that nothing has come to yet.
        return [dict(said) for _ in range(shards)]
    known = Look(values).directory
    unknown = {name.split("/")[1] for name in values if name.startswith("note/")} - NOTES.keys()
    if unknown:
        raise UnevenError(f"nobody knows how its notes `{min(unknown)}` are stored")
    parts: list[Stored] = [{} for _ in range(shards)]
    runs: list[dict[str, tuple[Run, ...]]] = [{} for _ in range(shards)]
    for spine, old in known.runs.items():
        new: list[list[Run]] = [[] for _ in range(shards)]
        for run in old:
            pieces: list[list[Block]] = [[] for _ in range(shards)]
            for block in run:
                batch, notes = _read(values, block)
                place = places(spine, batch)
                if place is None and notes:
                    raise UnevenError(f"what each shard knows of rows that are in all of them ({spine}) differs")
                for shard in range(shards) if place is not None or is_first else ():
                    taken = None if place is None else place == shard
                    made = _put(parts[shard], (known.owner, spine), block, batch, notes, taken)
                    if made is not None:
                        pieces[shard].append(made)
            for shard, blocks in enumerate(pieces):
                if blocks:
                    new[shard].append(tuple(blocks))
        for shard in range(shards):
            runs[shard][spine] = tuple(new[shard])
    for shard, part in enumerate(parts):
        owner = digest(known.owner, f"{shard} of {shards}")
        part[DIRECTORY] = replace(known, runs=runs[shard], owner=owner).encoded(Names())
        part |= said
    return parts


def united(parts: Sequence[Mapping[str, bytes]], keeping: Keeping, identity: Identity) -> Stored:
    """What went to one shard from several, as its state."""
    directories = [Look(part).directory for part in parts]
    first = directories[0]
    if any(one.received != first.received or one.active != first.active for one in directories):
        raise UnevenError("not all of its shards are equally far")
    if len({part[FINGERPRINT] for part in parts}) > 1:
        raise UnevenError("not all of its shards are of the query as it is now")
    if not any(DIRECTORY in part for part in parts):
        return dict(parts[0])
    values: Stored = {}
    for part in parts:
        if any(name.startswith(RUN) and name in values for name in part):
            raise RuntimeError("two shards have blocks of one name")
        values |= {name: value for name, value in part.items() if name != DIRECTORY}
    spines = dict.fromkeys(spine for one in directories for spine in one.runs)
    runs = {spine: tuple(run for one in directories for run in one.runs.get(spine, ())) for spine in spines}
    shared = set(first.emitted).intersection(*(one.emitted for one in directories))
    # A mark that only some have passed on is none that all that follows has heard of.
    emitted = {name: min(one.emitted[name] for one in directories) for name in shared}
    owner = digest(*(one.owner for one in directories))
    if keeping.arrival is not None:
        runs = _in_order(values, directories, keeping.arrival, owner)
    over = next((one.over for one in directories if one.over), first.over)
    found = Directory(runs, first.received, emitted, first.active, {}, owner, over)
    values[DIRECTORY] = found.encoded(Names())
    known = [one.numbers for part, one in zip(parts, directories, strict=True) if DIRECTORY in part]
    numbers = keeping.numbers(identity, known, Look(values))
    values[DIRECTORY] = replace(found, numbers=numbers).encoded(Names())
    return values


def _read(values: Mapping[str, bytes], block: Block) -> tuple[pa.RecordBatch, dict[str, Values]]:
    """The rows of a block that are left, and what is kept beside them."""
    batch = decode_rows(values[f"{RUN}{block.name}"])
    stored = {name: values.get(f"note/{name}/{block.name}") for name in NOTES}
    notes = {n: decode_note(value, NOTES[n], block.rows) for n, value in stored.items() if value is not None}
    gone = notes.pop(GONE, None)
    if gone is None or block.left == block.rows:
        return batch, notes
    return batch.filter(pa.array(~gone)), {name: noted[~gone] for name, noted in notes.items()}


def _put(
    part: Stored,
    of: tuple[str, str],
    block: Block,
    batch: pa.RecordBatch,
    notes: Mapping[str, Values],
    taken: Bools | None,
) -> Block | None:
    """Store those of the rows of a block that are taken, as a block of its own; None: there are none.

    ``of``: the name of the shard, and of the spine.
    """
    rows = batch if taken is None else batch.filter(pa.array(taken))
    if not rows.num_rows:
        return None
    times = {name: as_int64(rows.column(name)) for name in block.lowest}
    lowest = {name: int(values.min()) for name, values in times.items()}
    highest = {name: int(values.max()) for name, values in times.items()}
    value, size = encode_rows(rows), rows.num_rows
    name = block_name(*of, value, {key.removeprefix(RUN) for key in part if key.startswith(RUN)})
    part[f"{RUN}{name}"] = value
    for note, values in notes.items():
        part[f"note/{note}/{name}"] = encode_note(values if taken is None else values[taken])
    # The codes of some rows lie between those of all.
    return replace(block, name=name, rows=size, left=size, lowest=lowest, highest=highest)


def _in_order(values: Stored, directories: Sequence[Directory], arrival: str, owner: str) -> dict[str, tuple[Run, ...]]:
    """The runs of all spines, each as one block in the order of arrival, in numbers that hold for all of them.

    Rows of one shard keep their order; rows of different shards have none among each other, and get one.
    """
    found = [(shard, spine, block) for shard, spine, block in _blocks(directories)]
    batches = [_read(values, block) for _, _, block in found]
    numbers = [as_int64(batch.column(arrival)) for batch, _ in batches]
    sizes = [len(one) for one in numbers]
    of = np.repeat([shard for shard, _, _ in found], sizes)
    order = np.lexsort((of, np.concatenate(numbers))) if numbers else np.zeros(0, np.int64)
    anew = np.empty(len(order), np.int64)
    anew[order] = np.arange(len(order))
    pieces = np.split(anew, np.cumsum(sizes)[:-1])
    runs: dict[str, tuple[Run, ...]] = {}
    for spine in dict.fromkeys(name for _, name, _ in found):
        mine = [n for n, (_, name, _) in enumerate(found) if name == spine]
        number = np.concatenate([pieces[n] for n in mine])
        table = pa.Table.from_batches([_numbered(batches[n][0], arrival, pieces[n]) for n in mine])
        taken = np.argsort(number)
        (whole,) = table.combine_chunks().take(pa.array(taken)).combine_chunks().to_batches()
        notes = {name: np.concatenate([batches[n][1][name] for n in mine])[taken] for name in batches[mine[0]][1]}
        made = _put(values, (owner, spine), found[mine[0]][2], whole, notes, None)
        runs[spine] = () if made is None else ((made,),)
    for _, _, block in found:
        for name in (f"{RUN}{block.name}", *(f"note/{note}/{block.name}" for note in NOTES)):
            values.pop(name, None)
    return runs


def _blocks(directories: Sequence[Directory]) -> Iterator[tuple[int, str, Block]]:
    for shard, one in enumerate(directories):
        for spine, runs in one.runs.items():
            yield from ((shard, spine, block) for run in runs for block in run)


def _numbered(batch: pa.RecordBatch, column: str, numbers: Ints) -> pa.RecordBatch:
    return batch.set_column(batch.schema.names.index(column), column, pa.array(numbers))
