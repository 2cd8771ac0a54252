"""The meeting place: Spark calls one join operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from watersmeet.errors import Refusal, TravellingError
from watersmeet.families import keeping_of
from watersmeet.joins.core.operator import END_OF_INPUT, RUN, Emission, Family, Marks, Report, StepError
from watersmeet.joins.core.spread import Counts
from watersmeet.joins.state.cache import share_runs
from watersmeet.joins.state.format import FORMAT, READ
from watersmeet.spark.exchange.examples import Examples
from watersmeet.spark.exchange.packing import LATE, MARKS, REPORT, ROWS, UNMATCHED, fold_marks, from_blobs, to_blob
from watersmeet.spark.private.told import accepted_before, run_group

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("rows", "late", "padded", "state", "dropped", "partitions", "stored", "bytes")
"""The numbers of a step that there are per port; of rows ``stored``, the ``bytes`` that they took."""
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
        self._check_owner(store)
        ports = frozenset(range(len(self.operator.shown)))
        counted = ports if key[0] == self.shards.first else ports - self.shards.to_all
        waiting = _Waiting()
        tally = _Tally(self.operator, counted, Examples(self.operator) if self.rows == "some" else None)
        for records in rows:
            for port, kind, blob in zip(records["port"], records["kind"], records["blob"], strict=True):
                if kind == LATE:
                    yield _records([{"kind": LATE, "blob": blob}])
                else:
                    waiting.add(port, kind, blob)
                if waiting.bytes > self.bytes_per_step:
                    yield from self._step(store, waiting, {}, tally, last=False)
        marks = fold_marks(waiting.marks) | self.ends | (_run() if self.operator.needs_run else {})
        yield from self._step(store, waiting, marks, tally, last=True)

    def _step(
        self, store: SparkStore, waiting: _Waiting, marks: Marks, tally: _Tally, *, last: bool
    ) -> Iterator[pd.DataFrame]:
        """What a step hands out, as it comes; the numbers of all steps of a batch come with its ``last``."""
        with tally.computing():
            arrivals = waiting.arrivals()
        try:
            for piece in tally.timed(self.operator.stream(store, arrivals, marks)):
                if not isinstance(piece, Emission):
                    if piece.num_rows:
                        yield _records([tally.handed_out(piece)])
                    continue
                found = tally.emitted(piece)
                if last:
                    found.append({"kind": REPORT} | tally.numbers())
                if found:
                    yield _records(found)
        except StepError as error:
            refusal = Refusal(error.condition, {"join": self.name, **error.parameters})
            raise TravellingError(refusal) from None

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""

    def _check_owner(self, store: SparkStore) -> None:
        """Refuse the state of another query: the last line of defence, where nobody could look before the start.

        That of the query as it was before a change that was accepted is taken over.
        """
        found = store.get(_FINGERPRINT)
        if found is not None and found.decode() not in (f"{number} {self.digest}" for number in READ):
            was = accepted_before().get(found.decode())
            if was is None:
                raise TravellingError(_foreign(self.name, found.decode(), self.digest))
            self.operator.take_over(store, was)
        if found is None or found.decode() != f"{FORMAT} {self.digest}":
            store.put(_FINGERPRINT, f"{FORMAT} {self.digest}".encode())


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


class _Tally:
    """What a shard did in a batch: the numbers of its steps, the rows it handed out, the seconds it computed.

    Waiting for Spark to bring rows or to take them is not computing; reading and writing the state is. ``counted``
    are the ports whose rows this shard counts.
    """

    def __init__(self, operator: Family, counted: frozenset[int], examples: Examples | None = None) -> None:
        self.operator = operator
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

    def handed_out(self, table: pa.Table, kind: int = ROWS, port: int | None = None) -> dict[str, Any]:
        """Rows that come out, as a record."""
        self.rows += table.num_rows
        if self.examples is not None and kind == ROWS:
            self.examples.take(table)
        with self.computing():
            return {"kind": kind, "port": port, "blob": _blob(table)}

    def emitted(self, emission: Emission) -> list[dict[str, Any]]:
        """What an emission hands out besides its numbers, which are added; tables without rows are nothing."""
        self.reports.append(emission.report)
        if self.examples is not None:
            self.examples.late(emission.report.too_late)
        found = [self.handed_out(table) for table in emission.rows if table.num_rows]
        for port, table in emission.late:
            if port in self.counted and table.num_rows:
                found.append({"kind": LATE, "port": port, "blob": _blob(table)})
        alone = ((port, table) for port, table in emission.unmatched if table.num_rows)
        return [*found, *(self.handed_out(table, UNMATCHED, port) for port, table in alone)]

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
        per_port = self._stored(report)
        for name in NUMBERS:
            values: Sequence[int] = per_port[name] if name in per_port else getattr(report, name)
            numbers[name] = [value if port in self.counted else 0 for port, value in enumerate(values)]
        return numbers

    def _stored(self, report: Report) -> dict[str, Sequence[int]]:
        """Rows that were written to the state per port, and their bytes: a port may have several spines."""
        found: dict[str, Sequence[int]] = {}
        counts = [[0] * len(report.rows) for _ in range(2)]
        if report.stored:
            keeping, identity = keeping_of(self.operator.name), self.operator.identity
            for spine, amounts in report.stored.items():
                port = keeping.spine(identity, spine).port
                for count, amount in zip(counts, amounts, strict=True):
                    count[port] += amount
        found["stored"], found["bytes"] = counts
        return found


def _records(found: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # imported late: only workers that run a batch need it

    return pd.DataFrame([_NOTHING | record for record in found], dtype=object)


def _added(reports: list[Report]) -> Report:
    """The numbers of a batch from those of its steps: what is counted adds up, what is kept is told by the last."""
    last = reports[-1]
    counted = ("rows", "late", "padded", "dropped")
    sums = {name: tuple(map(sum, zip(*(getattr(r, name) for r in reports), strict=True))) for name in counted}
    whole: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in ("matched", "written")}
    stored: dict[str, tuple[int, int]] = {}
    for spine, (rows, size) in (one for report in reports for one in report.stored.items()):
        before = stored.get(spine, (0, 0))
        stored[spine] = (before[0] + rows, before[1] + size)
    whole["stored"] = stored
    spreads = {name: [c for r in reports if (c := getattr(r, name)) is not None] for name in SPREADS}
    return replace(last, **whole, **sums, **{name: sum(found) if found else None for name, found in spreads.items()})


def _blob(table: pa.Table | pa.RecordBatch) -> bytes:
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    return to_blob(batches)
