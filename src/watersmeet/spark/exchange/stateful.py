"""The meeting place: Spark calls the joins of an operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from watersmeet.errors import Refusal, TravellingError
from watersmeet.joins.core.chain import Chain, Link, Piece
from watersmeet.joins.core.operator import END_OF_INPUT, RUN, Emission, Marks, StepError
from watersmeet.joins.state.cache import share_runs
from watersmeet.joins.state.format import FORMAT, READ
from watersmeet.physical.identity import canonical_json
from watersmeet.spark.exchange.examples import Examples
from watersmeet.spark.exchange.leaving import Leaving, Tally
from watersmeet.spark.exchange.packing import INSIDE, LATE, MARKS, REPORT, fold_marks, from_blobs
from watersmeet.spark.private.told import accepted_before, run_group

if TYPE_CHECKING:
    import pandas as pd

RowsTold = Literal["none", "some"]
"""Whether numbers come with some of the rows that they count."""
_FINGERPRINT = "fingerprint"
_ANEW = "undo the change, or give the changed query another checkpoint, and another folder or table to write to."
# As types, not as text: Spark would have the JVM parse a text anew in every task.
NAME = StructType([StructField("name", StringType())])
VALUE = StructType([StructField("value", BinaryType())])
BYTES_PER_STEP = 256 * 2**20
"""Of the records of a shard, at most so many bytes are joined at once, if the operator may split a batch."""
_own: set[tuple[str, str, str, int]] = set()
"""The shards that this process has found to be our own: by the run, and the prefix and the digest of each stage."""


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
        self.state = handle.getMapState("state", NAME, VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """One batch of one shard."""
        stores = [SparkStore(self.state, prefix) for prefix in prefixes(len(self.stages))]
        for stage, store in zip(self.stages, stores, strict=True):
            _check_owner(stage, store, key[0])
        leaving = Leaving()
        tallies = [self._tally(stage, key[0], leaving) for stage in self.stages]
        chain = Chain(
            [stage.link for stage in self.stages], stores, self.bytes_per_step, partial(self._around, tallies)
        )
        split = (stage.ports for stage in self.stages if stage.link.operator.may_split)
        waiting = _Waiting(frozenset(port for ports in split for port in ports))
        for records in rows:
            for port, kind, blob in zip(records["port"], records["kind"], records["blob"], strict=True):
                if kind == LATE:
                    waiting.came.add(int(port))
                    leaving.add(LATE, blob=blob)
                else:
                    waiting.add(port, kind, blob)
                if waiting.bytes > self.bytes_per_step:
                    yield from self._split(chain, waiting, tallies)
        marks = [self._marks(stage, waiting) for stage in self.stages]
        came = {number for number, stage in enumerate(self.stages) if waiting.came.intersection(stage.ports)}
        arrivals = [self._arrivals(stage, waiting, tally) for stage, tally in zip(self.stages, tallies, strict=True)]
        yield from self._handed_out(chain.close(arrivals, marks, came), tallies)
        with tallies[-1].computing():
            leaving.close()
        for place, tally in enumerate(tallies[:-1]):
            if tally.reports:
                leaving.add(INSIDE, place, report=tally.to_text())
        leaving.add(REPORT, report=tallies[-1].to_text())
        yield leaving.frame()

    def _split(self, chain: Chain, waiting: _Waiting, tallies: Sequence[Tally]) -> Iterator[pd.DataFrame]:
        """Let the stages that may split a batch take what has come so far."""
        for number, stage in enumerate(self.stages):
            if stage.link.operator.may_split:
                arrivals = self._arrivals(stage, waiting, tallies[number])
                yield from self._handed_out(chain.split(number, arrivals), tallies)

    def _tally(self, stage: Stage, shard: int, leaving: Leaving) -> Tally:
        ports = frozenset(range(len(stage.link.operator.shown)))
        counted = ports if shard == self.shards.first else ports - self.shards.to_all
        examples = Examples(stage.link.operator) if self.rows == "some" else None
        return Tally(stage.link.operator, counted, leaving, examples, is_last=stage is self.stages[-1])

    def _around(self, tallies: Sequence[Tally], number: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces of a step: the time that they take counts, and what cannot go on is refused by its name."""
        try:
            yield from tallies[number].timed(pieces)
        except StepError as error:
            refusal = Refusal(error.condition, {"join": self.stages[number].name, **error.parameters})
            raise TravellingError(refusal) from None

    def _arrivals(self, stage: Stage, waiting: _Waiting, tally: Tally) -> dict[int, pa.Table]:
        with tally.computing():
            return waiting.arrivals(stage.ports)

    def _marks(self, stage: Stage, waiting: _Waiting) -> Marks:
        """The marks that a batch brings to the ports of a stage."""
        marks = fold_marks([blob for port in stage.ports for blob in waiting.marks.get(port, ())])
        return marks | dict.fromkeys(stage.ends, END_OF_INPUT) | (_run() if stage.link.operator.needs_run else {})

    def _handed_out(self, pieces: Iterator[tuple[int, Piece]], tallies: Sequence[Tally]) -> Iterator[pd.DataFrame]:
        """Let the stages run; gives what they hand out whenever that has become much."""
        for number, piece in pieces:
            tally = tallies[number]
            if isinstance(piece, Emission):
                tally.emitted(piece)
            else:
                tally.handed_out(piece)
            if tally.leaving.is_much:
                yield tally.leaving.frame()

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""


def prefixes(stages: int) -> tuple[str, ...]:
    """What the names in the state of each of several stages begin with; those of one that is alone with nothing.

    >>> prefixes(1), prefixes(2)
    (('',), ('0/', '1/'))
    """
    return ("",) if stages == 1 else tuple(f"{place}/" for place in range(stages))


def _check_owner(stage: Stage, store: SparkStore, shard: int) -> None:
    """Refuse the state of another query: the last line of defence, where nobody could look before the start.

    That of the query as it was before a change that was accepted is taken over. What an earlier batch of this run has
    left is our own.
    """
    run = run_group()
    own = None if run is None else (run, store.prefix, stage.digest, shard)
    if own in _own:
        return
    found = store.get(_FINGERPRINT)
    if found is not None and found.decode() not in (f"{number} {stage.digest}" for number in READ):
        was = accepted_before().get(found.decode())
        if was is None:
            raise TravellingError(_foreign(stage.name, found.decode(), stage.digest))
        # In another number of shards it is the same.
        if canonical_json(was) != canonical_json(stage.link.operator.identity):
            stage.link.operator.take_over(store, was)
    if found is None or found.decode() != f"{FORMAT} {stage.digest}":
        store.put(_FINGERPRINT, f"{FORMAT} {stage.digest}".encode())
    elif own is not None:
        # Only what was read: a task that fails leaves nothing that it has put.
        _own.add(own)


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
