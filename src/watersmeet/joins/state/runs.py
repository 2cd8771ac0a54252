"""State as sorted runs: immutable, uniquely named stretches of rows, and a small directory that says what each holds.

Invariants. A run never changes; what changes (which rows have matched) is kept beside it as flags. A run's name is
used once
ever, so a worker may keep decoded runs from batch to batch and is never wrong; it may also lose them at any time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, LOWEST, Bools
from watersmeet.joins.core.operator import Marks, Store
from watersmeet.joins.state import cache
from watersmeet.joins.state.layout import Layout, Rows

DIRECTORY = "marks"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Entry:
    """What the directory knows of a run: its ranges, enough to leave it alone when it cannot matter."""

    name: str
    rows: int
    lowest: Marks
    highest: Marks
    lowest_code: int = int(LOWEST)
    highest_code: int = int(HIGHEST)

    @staticmethod
    def of(rows: Rows) -> Entry:
        """A new name for these rows, which are in the order of a run, and their ranges."""
        return Entry(
            uuid4().hex,
            len(rows),
            {name: int(values.min()) for name, values in rows.times.items()},
            {name: int(values.max()) for name, values in rows.times.items()},
            int(rows.codes[0]),
            int(rows.codes[-1]),
        )

    def to_json(self) -> list[Any]:
        """The entry as it is stored."""
        return [self.name, self.rows, dict(self.lowest), dict(self.highest), self.lowest_code, self.highest_code]


@dataclass(frozen=True)
class Directory:
    """The runs of each port, oldest first, the marks of the shard, and when its columns were last heard of.

    ``owner`` names the shard to the cache of decoded runs, which forgets what the directory no longer lists.
    """

    entries: tuple[tuple[Entry, ...], ...]
    received: Marks = field(default_factory=dict[str, int])
    emitted: Marks = field(default_factory=dict[str, int])
    active: Marks = field(default_factory=dict[str, int])
    owner: str = field(default_factory=lambda: uuid4().hex)

    def to_bytes(self) -> bytes:
        """The directory as it is stored."""
        runs = [[entry.to_json() for entry in port] for port in self.entries]
        marks = {"received": dict(self.received), "emitted": dict(self.emitted), "active": dict(self.active)}
        return json.dumps({"owner": self.owner, "runs": runs, **marks}).encode()

    @staticmethod
    def from_bytes(value: bytes | None, ports: int) -> Directory:
        """The directory that was stored, or an empty one."""
        if value is None:
            return Directory(((),) * ports)
        read = cast("dict[str, Any]", json.loads(value))
        entries = tuple(tuple(Entry(*entry) for entry in port) for port in read["runs"])
        found = Directory(entries, read["received"], read["emitted"], read["active"], read["owner"])
        cache.at_hand.retain(found.owner, frozenset(entry.name for port in entries for entry in port))
        return found


def put_run(store: Store, owner: str, entry: Entry, rows: Rows, matched: Bools | None) -> None:
    """Store a run, and its flags if its side keeps any."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.table.schema, options=_COMPRESSED) as writer:
        writer.write_batch(rows.table)
    store.put(f"run/{entry.name}", sink.getvalue().to_pybytes())
    if matched is not None:
        put_flags(store, entry, matched)
    cache.at_hand.put(owner, entry.name, rows.table)


def read_run(store: Store, owner: str, entry: Entry, layout: Layout) -> Rows:
    """The rows of a run, decoded or from the cache."""
    cached = cache.at_hand.find(owner, entry.name)
    if cached is not None:
        return layout.rows(cached)
    value = store.get(f"run/{entry.name}")
    if value is None:
        raise RuntimeError(f"the state has no run {entry.name}, which its directory lists")
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        run = reader.read_next_batch()
    cache.at_hand.put(owner, entry.name, run)
    return layout.rows(run)


def put_flags(store: Store, entry: Entry, matched: Bools) -> None:
    """Store which rows of a run have matched."""
    store.put(f"flags/{entry.name}", np.packbits(matched).tobytes())


def read_flags(store: Store, entry: Entry) -> Bools:
    """Which rows of a run have matched."""
    value = store.get(f"flags/{entry.name}")
    if value is None:
        raise RuntimeError(f"the state has no flags for the run {entry.name}")
    return np.unpackbits(np.frombuffer(value, np.uint8), count=entry.rows).astype(np.bool_)


def remove_run(store: Store, owner: str, entry: Entry, *, flagged: bool) -> None:
    """Forget a run and its flags."""
    store.remove(f"run/{entry.name}")
    if flagged:
        store.remove(f"flags/{entry.name}")
    cache.at_hand.drop(owner, entry.name)


def merged(parts: list[Rows], layout: Layout) -> tuple[Rows, None]:
    """Several runs as one."""
    return layout.merged(parts), None
