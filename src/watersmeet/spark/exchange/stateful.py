"""The meeting place: Spark calls the joins of an operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from watersmeet.errors import Refusal, TravellingError
from watersmeet.joins.core.chain import Chain, Link, Piece
from watersmeet.joins.core.operator import END_OF_INPUT, RUN, Emission, Marks, Report, StepError
from watersmeet.joins.core.spread import Counts
from watersmeet.joins.state.cache import share_runs
from watersmeet.joins.state.format import FORMAT, READ
from watersmeet.spark.exchange.examples import Examples
from watersmeet.spark.exchange.packing import (
    INSIDE,
    LATE,
    MARKS,
    REPORT,
    ROWS,
    UNMATCHED,
    fold_marks,
    from_blobs,
    to_blob,
)
from watersmeet.spark.private.told import accepted_before, run_group

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("rows", "late", "padded", "state", "dropped", "partitions")
"""The numbers of a step that there are per port."""
SPREADS = ("delays", "lateness")
"""What a step counts by how long it is."""
MET_DDL = (
    "kind TINYINT, port TINYINT, blob BINARY, matched BIGINT, written BIGINT, emitted BIGINT, seconds DOUBLE, "
    + ", ".join(f"{name} ARRAY<BIGINT>" for name in NUMBERS)
    + ", watermarks STRING, received STRING, "
    + ", ".join(f"{name} ARRAY<FLOAT>" for name in SPREADS)
    + ", examples STRING"
)
RowsTold = Literal["none", "some"]
"""Whether numbers come with some of the rows that they count."""
_FINGERPRINT = "fingerprint"
_ANEW = "undo the change, or give the changed query another checkpoint, and another folder or table to write to."
# As types, not as text: Spark would have the JVM parse a text anew in every task.
_NAME = StructType([StructField("name", StringType())])
_VALUE = StructType([StructField("value", BinaryType())])
BYTES_PER_STEP = 256 * 2**20
"""Of the records of a shard, at most so many bytes are joined at once, if the operator may split a batch."""
_NOTHING: dict[str, Any] = dict.fromkeys(part.split()[0] for part in MET_DDL.split(", "))


class SparkStore:
    """A shard's part of Spark's state store, as the store of an operator, whose names all begin with ``prefix``."""

    def __init__(self, state: Any, prefix: str = "") -> None:
        self.state = state
        self.prefix = prefix

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        value = self.state.getValue((self.prefix + name,))
        return None if value is None else bytes(value[0])

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name."""
        self.state.updateValue((self.prefix + name,), (value,))

    def remove(self, name: str) -> None:
        """Forget the value of that name."""
        self.state.removeKey((self.prefix + name,))


@dataclass(frozen=True)
class Shards:
    """What a processor must know of the exchange: which shard counts the rows of ports that go to all of them."""

    first: int
    to_all: frozenset[int]


@dataclass(frozen=True)
class Stage:
    """A join that runs in a processor: its link of the chain, and what else is known of it.

    - ``name``: what people call it; ``digest``: whose state its part of the state is
    - ``ports``: for each port of the exchange that feeds it, which one of its own that is
    - ``ends``: the watermarked columns of inputs that end with this batch (batch DataFrames)
    """

    link: Link
    name: str
    digest: str
    ports: Mapping[int, int]
    ends: tuple[str, ...] = ()


class ShardProcessor(StatefulProcessor):
    """Hands each shard's records of a batch to the joins that run in it, and the emission of the last back to Spark."""

    def __init__(
        self, stages: tuple[Stage, ...], shards: Shards, bytes_per_step: int = BYTES_PER_STEP, rows: RowsTold = "none"
    ) -> None:
        self.stages = stages
        self.shards = shards
        self.rows = rows
        self.bytes_per_step = bytes_per_step

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: one map from names to values per shard."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        if folder:
            # Spark removes its local directories when the executor ends.
            share_runs(Path(folder) / "watersmeet-runs")
        self.state = handle.getMapState("state", _NAME, _VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """One batch of one shard."""
        stores = [SparkStore(self.state, prefix) for prefix in prefixes(len(self.stages))]
        for stage, store in zip(self.stages, stores, strict=True):
            _check_owner(stage, store)
        tallies = [self._tally(stage, key[0]) for stage in self.stages]
        chain = Chain(
            [stage.link for stage in self.stages], stores, self.bytes_per_step, partial(self._around, tallies)
        )
        split = (stage.ports for stage in self.stages if stage.link.operator.may_split)
        waiting = _Waiting(frozenset(port for ports in split for port in ports))
        for records in rows:
            for port, kind, blob in zip(records["port"], records["kind"], records["blob"], strict=True):
                if kind == LATE:
                    waiting.came.add(int(port))
                    yield _records([{"kind": LATE, "blob": blob}])
                else:
                    waiting.add(port, kind, blob)
                if waiting.bytes > self.bytes_per_step:
                    yield from self._split(chain, waiting, tallies)
        marks = [self._marks(stage, waiting) for stage in self.stages]
        came = {number for number, stage in enumerate(self.stages) if waiting.came.intersection(stage.ports)}
        arrivals = [self._arrivals(stage, waiting, tally) for stage, tally in zip(self.stages, tallies, strict=True)]
        rest: list[dict[str, Any]] = []
        yield from self._handed_out(chain.close(arrivals, marks, came), tallies, rest)
        inside = [(place, tally) for place, tally in enumerate(tallies[:-1]) if tally.reports]
        rest += [{"kind": INSIDE, "port": place} | tally.numbers() for place, tally in inside]
        yield _records([*rest, {"kind": REPORT} | tallies[-1].numbers()])

    def _split(self, chain: Chain, waiting: _Waiting, tallies: Sequence[_Tally]) -> Iterator[pd.DataFrame]:
        """Let the stages that may split a batch take what has come so far."""
        for number, stage in enumerate(self.stages):
            if stage.link.operator.may_split:
                rest: list[dict[str, Any]] = []
                arrivals = self._arrivals(stage, waiting, tallies[number])
                yield from self._handed_out(chain.split(number, arrivals), tallies, rest)
                if rest:
                    yield _records(rest)

    def _tally(self, stage: Stage, shard: int) -> _Tally:
        ports = frozenset(range(len(stage.link.operator.shown)))
        counted = ports if shard == self.shards.first else ports - self.shards.to_all
        return _Tally(counted, Examples(stage.link.operator) if self.rows == "some" else None)

    def _around(self, tallies: Sequence[_Tally], number: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces of a step: the time that they take counts, and what cannot go on is refused by its name."""
        try:
            yield from tallies[number].timed(pieces)
        except StepError as error:
            refusal = Refusal(error.condition, {"join": self.stages[number].name, **error.parameters})
            raise TravellingError(refusal) from None

    def _arrivals(self, stage: Stage, waiting: _Waiting, tally: _Tally) -> dict[int, pa.Table]:
        with tally.computing():
            return waiting.arrivals(stage.ports)

    def _marks(self, stage: Stage, waiting: _Waiting) -> Marks:
        """The marks that a batch brings to the ports of a stage."""
        marks = fold_marks([blob for port in stage.ports for blob in waiting.marks.get(port, ())])
        return marks | dict.fromkeys(stage.ends, END_OF_INPUT) | (_run() if stage.link.operator.needs_run else {})

    def _handed_out(
        self, pieces: Iterator[tuple[int, Piece]], tallies: Sequence[_Tally], rest: list[dict[str, Any]]
    ) -> Iterator[pd.DataFrame]:
        """The rows of the last stage as they come; what its steps and those of others end with is added to ``rest``."""
        for number, piece in pieces:
            tally, is_last = tallies[number], number == len(tallies) - 1
            if isinstance(piece, Emission):
                rest += tally.emitted(piece, is_last)
            else:
                found = [*tally.handed_out([piece], is_last)]
                if found:
                    yield _records(found)

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""


def prefixes(stages: int) -> tuple[str, ...]:
    """What the names in the state of each of several stages begin with; those of one that is alone with nothing.

    >>> prefixes(1), prefixes(2)
    (('',), ('0/', '1/'))
    """
    return ("",) if stages == 1 else tuple(f"{place}/" for place in range(stages))


def _check_owner(stage: Stage, store: SparkStore) -> None:
    """Refuse the state of another query: the last line of defence, where nobody could look before the start.

    That of the query as it was before a change that was accepted is taken over.
    """
    found = store.get(_FINGERPRINT)
    if found is not None and found.decode() not in (f"{number} {stage.digest}" for number in READ):
        was = accepted_before().get(found.decode())
        if was is None:
            raise TravellingError(_foreign(stage.name, found.decode(), stage.digest))
        stage.link.operator.take_over(store, was)
    if found is None or found.decode() != f"{FORMAT} {stage.digest}":
        store.put(_FINGERPRINT, f"{FORMAT} {stage.digest}".encode())


def _foreign(join: str, found: str, own: str) -> Refusal:
    """Why a state is not our own: its fingerprint is of another format, or of another join."""
    number, _, digest = found.rpartition(" ")
    told = {"checkpoint": "of this run", "hint": _ANEW}
    if not number:
        return Refusal("CHECKPOINT_WITHOUT_FORMAT", {**told, "file": f"the state of the join of {join}"})
    if digest != own and number in map(str, READ):
        difference = f"the join of {join}, the types of its columns or the number of its shards differ"
        return Refusal("CHECKPOINT_OF_ANOTHER_QUERY", {**told, "difference": difference})
    told = {**told, "version": "a later one", "format": number, "known": str(FORMAT)}
    return Refusal("CHECKPOINT_OF_A_NEWER_VERSION", told)


def _run() -> dict[str, int]:
    """The mark that tells this start of the query from others."""
    group = run_group()
    return {} if group is None else {RUN: int.from_bytes(sha256(group.encode()).digest()[:7], "big")}


class _Waiting:
    """Records of a shard that no step has seen yet; ``split``: the ports whose rows need not wait for the whole batch.

    ``came``: the ports that something came to in this batch.
    """

    def __init__(self, split: frozenset[int]) -> None:
        self.split = split
        self.came: set[int] = set()
        self.blobs: dict[int, list[bytes]] = {}
        self.marks: dict[int, list[bytes]] = {}
        self.bytes = 0

    def add(self, port: int, kind: int, blob: bytes) -> None:
        self.came.add(int(port))
        if kind == MARKS:
            self.marks.setdefault(int(port), []).append(blob)
        else:
            self.blobs.setdefault(int(port), []).append(blob)
            self.bytes += len(blob) if port in self.split else 0

    def arrivals(self, ports: Mapping[int, int]) -> dict[int, pa.Table]:
        """The rows of these ports, by what the stage calls them; they wait no longer."""
        found: dict[int, pa.Table] = {}
        for port in ports.keys() & self.blobs.keys():
            parts = self.blobs.pop(port)
            self.bytes -= sum(map(len, parts)) if port in self.split else 0
            found[ports[port]] = from_blobs(parts)
        return dict(sorted(found.items()))


class _Tally:
    """What a shard did in a batch: the numbers of its steps, the rows it handed out, the seconds it computed.

    Waiting for Spark to bring rows or to take them is not computing; reading and writing the state is. ``counted``
    are the ports whose rows this shard counts.
    """

    def __init__(self, counted: frozenset[int], examples: Examples | None = None) -> None:
        self.counted = counted
        self.examples = examples
        self.reports: list[Report] = []
        self.rows = 0
        self.seconds = 0.0

    @contextmanager
    def computing(self) -> Generator[None]:
        """The time in here counts."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - began

    def timed(self, pieces: Iterator[pa.Table | Emission]) -> Iterator[pa.Table | Emission]:
        """The same pieces; the time to make each counts, that to hand it on does not."""
        while True:
            with self.computing():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def handed_out(self, tables: Iterable[pa.Table], is_last: bool) -> Iterator[dict[str, Any]]:
        """Rows that come out, as records; those that only another stage gets are counted."""
        for table in tables:
            if table.num_rows:
                self.rows += table.num_rows
                if self.examples is not None:
                    self.examples.take(table)
                if is_last:
                    yield self.record(ROWS, None, table)

    def record(self, kind: int, port: int | None, table: pa.Table) -> dict[str, Any]:
        """Rows as a record."""
        with self.computing():
            return {"kind": kind, "port": port, "blob": _blob(table)}

    def emitted(self, emission: Emission, is_last: bool) -> list[dict[str, Any]]:
        """What an emission hands out besides its numbers, which are added; tables without rows are nothing."""
        self.reports.append(emission.report)
        if self.examples is not None:
            self.examples.late(emission.report.too_late)
        found = [*self.handed_out(emission.rows, is_last)]
        for port, table in emission.late:
            if port in self.counted and table.num_rows:
                found.append(self.record(LATE, port, table))
        for port, table in emission.unmatched:
            if table.num_rows:
                self.rows += table.num_rows
                found.append(self.record(UNMATCHED, port, table))
        return found

    def numbers(self) -> dict[str, object]:
        """The numbers of the batch; those of ports that another shard counts are left to it."""
        report = _added(self.reports)
        numbers: dict[str, object] = {"matched": report.matched, "written": report.written}
        numbers |= {"emitted": self.rows, "seconds": self.seconds, "watermarks": json.dumps(dict(report.watermarks))}
        numbers["received"] = json.dumps(dict(report.received))
        numbers["examples"] = None if self.examples is None else self.examples.to_text()
        for name in SPREADS:
            counts: Counts | None = getattr(report, name)
            numbers[name] = None if counts is None else counts.astype(np.float32)
        for name in NUMBERS:
            values: tuple[int, ...] = getattr(report, name)
            numbers[name] = [value if port in self.counted else 0 for port, value in enumerate(values)]
        return numbers


def _records(found: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # imported late: only workers that run a batch need it

    return pd.DataFrame([_NOTHING | record for record in found], dtype=object)


def _added(reports: list[Report]) -> Report:
    """The numbers of a batch from those of its steps: what is counted adds up, what is kept is told by the last."""
    last = reports[-1]
    counted = ("rows", "late", "padded", "dropped")
    sums = {name: tuple(map(sum, zip(*(getattr(r, name) for r in reports), strict=True))) for name in counted}
    whole = {name: sum(getattr(report, name) for report in reports) for name in ("matched", "written")}
    spreads = {name: [c for r in reports if (c := getattr(r, name)) is not None] for name in SPREADS}
    return replace(last, **whole, **sums, **{name: sum(found) if found else None for name, found in spreads.items()})


def _blob(table: pa.Table | pa.RecordBatch) -> bytes:
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    return to_blob(batches)
