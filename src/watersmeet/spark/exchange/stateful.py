"""The meeting place: Spark calls one join operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from watersmeet.errors import Refusal, TravellingError
from watersmeet.joins.core.operator import END_OF_INPUT, RUN, Emission, Family, Marks, StepError
from watersmeet.joins.state.cache import share_runs
from watersmeet.joins.state.format import FORMAT, READ
from watersmeet.spark.exchange.examples import Examples
from watersmeet.spark.exchange.leaving import Leaving, Tally
from watersmeet.spark.exchange.packing import LATE, MARKS, REPORT, fold_marks, from_blobs
from watersmeet.spark.private.told import accepted_before, run_group

if TYPE_CHECKING:
    import pandas as pd

RowsTold = Literal["none", "some"]
"""Whether numbers come with some of the rows that they count."""
_FINGERPRINT = "fingerprint"
_ANEW = "undo the change, or give the changed query another checkpoint, and another folder or table to write to."
# As types, not as text: Spark would have the JVM parse a text anew in every task.
_NAME = StructType([StructField("name", StringType())])
_VALUE = StructType([StructField("value", BinaryType())])
_own: set[tuple[str, str, int]] = set()
"""The shards that this process has found to be our own, each by its run and the digest of its stage."""
BYTES_PER_STEP = 256 * 2**20
"""Of the records of a shard, at most so many bytes are joined at once, if the operator may split a batch."""


class SparkStore:
    """A shard's part of Spark's state store, as the store of an operator."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> bytes | None:
        """The value of that name, or None."""
        value = self.state.getValue((name,))
        return None if value is None else bytes(value[0])

    def put(self, name: str, value: bytes) -> None:
        """Set the value of that name."""
        self.state.updateValue((name,), (value,))

    def remove(self, name: str) -> None:
        """Forget the value of that name."""
        self.state.removeKey((name,))


@dataclass(frozen=True)
class Shards:
    """What a processor must know of the exchange: which shard counts the rows of ports that go to all of them."""

    first: int
    to_all: frozenset[int]


class ShardProcessor(StatefulProcessor):
    """Hands each shard's records of a batch to the operator and its emission back to Spark.

    ``name`` is what people call the join, ``digest`` says whose state this is, ``ends`` are the watermarked
    columns of inputs that end with this batch (batch DataFrames).
    """

    def __init__(
        self,
        operator: Family,
        name: str,
        digest: str,
        shards: Shards,
        ends: tuple[str, ...],
        bytes_per_step: int = BYTES_PER_STEP,
        rows: RowsTold = "none",
    ) -> None:
        self.operator = operator
        self.name = name
        self.digest = digest
        self.shards = shards
        self.ends = dict.fromkeys(ends, END_OF_INPUT)
        self.rows = rows
        self.bytes_per_step = bytes_per_step if operator.may_split else sys.maxsize

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: one map from names to values per shard."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        if folder:
            # Spark removes its local directories when the executor ends.
            share_runs(Path(folder) / "watersmeet-runs")
        self.state = handle.getMapState("state", _NAME, _VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """One batch of one shard."""
        store = SparkStore(self.state)
        self._check_owner(store, key[0])
        ports = frozenset(range(len(self.operator.shown)))
        counted = ports if key[0] == self.shards.first else ports - self.shards.to_all
        waiting, leaving = _Waiting(), Leaving()
        tally = Tally(counted, leaving, Examples(self.operator) if self.rows == "some" else None)
        for records in rows:
            for port, kind, blob in zip(records["port"], records["kind"], records["blob"], strict=True):
                if kind == LATE:
                    leaving.add(LATE, blob=blob)
                else:
                    waiting.add(port, kind, blob)
                if waiting.bytes > self.bytes_per_step:
                    yield from self._step(store, waiting, {}, tally)
        marks = fold_marks(waiting.marks) | self.ends | (_run() if self.operator.needs_run else {})
        yield from self._step(store, waiting, marks, tally)
        with tally.computing():
            leaving.close()
        leaving.add(REPORT, report=json.dumps(tally.numbers(), default=int))
        yield leaving.frame()

    def _step(self, store: SparkStore, waiting: _Waiting, marks: Marks, tally: Tally) -> Iterator[pd.DataFrame]:
        """Let a step run; gives what it hands out whenever that has become much."""
        with tally.computing():
            arrivals = waiting.arrivals()
        try:
            for piece in tally.timed(self.operator.stream(store, arrivals, marks)):
                if isinstance(piece, Emission):
                    tally.emitted(piece)
                else:
                    tally.handed_out(piece)
                if tally.leaving.is_much:
                    yield tally.leaving.frame()
        except StepError as error:
            refusal = Refusal(error.condition, {"join": self.name, **error.parameters})
            raise TravellingError(refusal) from None

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""

    def _check_owner(self, store: SparkStore, shard: int) -> None:
        """Refuse the state of another query: the last line of defence, where nobody could look before the start.

        That of the query as it was before a change that was accepted is taken over. What an earlier batch of this run
        has left is our own.
        """
        run = run_group()
        if run is not None and (run, self.digest, shard) in _own:
            return
        found = store.get(_FINGERPRINT)
        if found is not None and found.decode() not in (f"{number} {self.digest}" for number in READ):
            was = accepted_before().get(found.decode())
            if was is None:
                raise TravellingError(_foreign(self.name, found.decode(), self.digest))
            self.operator.take_over(store, was)
        if found is None or found.decode() != f"{FORMAT} {self.digest}":
            store.put(_FINGERPRINT, f"{FORMAT} {self.digest}".encode())
        elif run is not None:
            # Only what was read: a task that fails leaves nothing that it has put.
            _own.add((run, self.digest, shard))


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
    """Records of a shard that no step has seen yet."""

    def __init__(self) -> None:
        self.blobs: dict[int, list[bytes]] = {}
        self.marks: list[bytes] = []
        self.bytes = 0

    def add(self, port: int, kind: int, blob: bytes) -> None:
        if kind == MARKS:
            self.marks.append(blob)
        else:
            self.blobs.setdefault(int(port), []).append(blob)
            self.bytes += len(blob)

    def arrivals(self) -> dict[int, pa.Table]:
        """The rows per port; they wait no longer."""
        taken, self.blobs, self.bytes = self.blobs, {}, 0
        return {port: from_blobs(parts) for port, parts in taken.items()}
