"""The meeting place: Spark calls one join operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.joins.operator import END_OF_INPUT, Emission, JoinOperator, Report, StateOverflowError
from watersmeet.spark.exchange import LATE, MARKS, REPORT, ROWS, fold_marks, from_blobs, to_blob

MET_DDL = (
    "kind TINYINT, port TINYINT, blob BINARY, "
    "rows_left BIGINT, rows_right BIGINT, late_left BIGINT, late_right BIGINT, matched BIGINT, "
    "padded_left BIGINT, padded_right BIGINT, state_left BIGINT, state_right BIGINT, "
    "dropped_left BIGINT, dropped_right BIGINT, watermarks STRING"
)
_NUMBERS = ("rows", "late", "padded", "state", "dropped")
_FINGERPRINT = "fingerprint"
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

    ``name`` is what people call the join, ``fingerprint`` says whose state this is, ``ends`` are the watermarked
    columns of inputs that end with this batch (batch DataFrames).
    """

    def __init__(
        self, operator: JoinOperator, name: str, fingerprint: str, shards: Shards, ends: tuple[str, ...]
    ) -> None:
        self.operator = operator
        self.name = name
        self.fingerprint = fingerprint
        self.shards = shards
        self.ends = ends

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: one map from names to values per shard."""
        self.state = handle.getMapState("state", "name STRING", "value BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """One batch of one shard."""
        store = SparkStore(self.state)
        self._check_owner(store)
        blobs: dict[int, list[bytes]] = {}
        marks: list[bytes] = []
        for row in rows:
            if row["kind"] == LATE:
                yield Row(**(_NOTHING | {"kind": LATE, "blob": row["blob"]}))
            else:
                (marks if row["kind"] == MARKS else blobs.setdefault(row["port"], [])).append(row["blob"])
        arrivals = {port: from_blobs(parts) for port, parts in blobs.items()}
        ended = dict.fromkeys(self.ends, END_OF_INPUT)
        try:
            emission = self.operator.step(store, arrivals, fold_marks(marks) | ended)
        except StateOverflowError as overflow:
            raise self._overflow(overflow) from None
        counted = frozenset((0, 1)) if key[0] == self.shards.first else frozenset((0, 1)) - self.shards.to_all
        yield from self._rows(emission, counted)

    def _overflow(self, overflow: StateOverflowError) -> WatersmeetError:
        side = "left" if overflow.kept[0] >= overflow.kept[1] else "right"
        rows = f"{overflow.kept[0]:,} rows of the left and {overflow.kept[1]:,} of the right side"
        return refuse("STATE_LIMIT", join=self.name, side=side, rows=rows, limit=f"{overflow.limit:,}")

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""

    def _check_owner(self, store: SparkStore) -> None:
        found = store.get(_FINGERPRINT)
        if found is None:
            store.put(_FINGERPRINT, self.fingerprint.encode())
        elif found.decode() != self.fingerprint:
            raise refuse(
                "CHECKPOINT_OF_ANOTHER_QUERY",
                checkpoint="of this run",
                difference="its join or its number of shards differs",
                hint="give the changed query a checkpoint of its own, or undo the change.",
            )

    def _rows(self, emission: Emission, counted: frozenset[int]) -> Iterator[Row]:
        for table in emission.rows:
            yield Row(**(_NOTHING | {"kind": ROWS, "blob": _blob(table)}))
        for port, table in emission.late:
            if port in counted:
                yield Row(**(_NOTHING | {"kind": LATE, "port": port, "blob": _blob(table)}))
        yield Row(**(_NOTHING | {"kind": REPORT} | _numbers(emission.report, counted)))


def _numbers(report: Report, counted: frozenset[int]) -> dict[str, object]:
    """The numbers of a step; those of ports that another shard counts are left to it."""
    numbers: dict[str, object] = {"matched": report.matched, "watermarks": json.dumps(dict(report.watermarks))}
    for name in _NUMBERS:
        values = getattr(report, name)
        numbers |= {f"{name}_{side}": values[p] if p in counted else 0 for p, side in enumerate(("left", "right"))}
    return numbers


def _blob(table: pa.Table | pa.RecordBatch) -> bytes:
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    return to_blob(batches)
