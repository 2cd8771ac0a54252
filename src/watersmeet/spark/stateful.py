"""The meeting place: Spark calls one join operator per shard and batch, over Spark's own state store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from watersmeet.errors import refuse
from watersmeet.joins.operator import END_OF_INPUT, Emission, JoinOperator, Report
from watersmeet.spark.exchange import LATE, MARKS, REPORT, ROWS, fold_marks, from_blobs, to_blob

MET_DDL = (
    "kind TINYINT, port TINYINT, blob BINARY, "
    "rows_left BIGINT, rows_right BIGINT, late_left BIGINT, late_right BIGINT, matched BIGINT, "
    "padded_left BIGINT, padded_right BIGINT, state_left BIGINT, state_right BIGINT, watermarks STRING"
)
_NUMBERS = ("rows", "late", "padded", "state")
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


class ShardProcessor(StatefulProcessor):
    """Hands each shard's records of a batch to the operator and its emission back to Spark.

    ``ends``: the watermarked columns of inputs that end with this batch (batch DataFrames); ``fingerprint`` says
    whose state this is.
    """

    def __init__(self, operator: JoinOperator, fingerprint: str, ends: tuple[str, ...]) -> None:
        self.operator = operator
        self.fingerprint = fingerprint
        self.ends = ends

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: one map from names to values per shard."""
        self.state = handle.getMapState("state", "name STRING", "value BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
        """One batch of one shard."""
        store = SparkStore(self.state)
        self._check_owner(store)
        blobs: dict[int, list[bytes]] = {}
        marks: list[bytes] = []
        for row in rows:
            (marks if row["kind"] == MARKS else blobs.setdefault(row["port"], [])).append(row["blob"])
        arrivals = {port: from_blobs(parts) for port, parts in blobs.items()}
        ended = dict.fromkeys(self.ends, END_OF_INPUT)
        yield from self._rows(self.operator.step(store, arrivals, fold_marks(marks) | ended))

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

    def _rows(self, emission: Emission) -> Iterator[Row]:
        for table in emission.rows:
            yield Row(**(_NOTHING | {"kind": ROWS, "blob": _blob(table)}))
        for port, table in emission.late:
            yield Row(**(_NOTHING | {"kind": LATE, "port": port, "blob": _blob(table)}))
        yield Row(**(_NOTHING | {"kind": REPORT} | _numbers(emission.report)))


def _numbers(report: Report) -> dict[str, object]:
    numbers: dict[str, object] = {"matched": report.matched, "watermarks": json.dumps(dict(report.watermarks))}
    for name in _NUMBERS:
        left, right = getattr(report, name)
        numbers |= {f"{name}_left": left, f"{name}_right": right}
    return numbers


def _blob(table: pa.Table | pa.RecordBatch) -> bytes:
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    return to_blob(batches)
