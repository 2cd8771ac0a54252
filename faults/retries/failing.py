"""Faults of first attempts in Spark's workers: they fail, are slow, or their executor ends.

A batch has a point at which that happens: around a kind of request to the state, before the commit of the state, or
after it, when rows are on their way to the sink.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from watersmeet.spark.exchange.stateful import ShardProcessor

POINTS = (
    "after commit", "before commit", "before read", "after write", "after read", "before write", "before remove",
    "after remove",
)  # fmt: skip
"""The points of a task. Short tests must cover the first ones."""
SLOW_SECONDS = 20.0
"""The time that a slow task waits, unless Spark ends it because another attempt was quicker."""
Kind = Literal["none", "fail", "slow", "lose"]


@dataclass(frozen=True)
class Fault:
    """The fault of the first attempts of a batch, and the file in which they record it.

    ``every``: one batch in this many has the fault; ``first``: the point of batch 0; later batches take the next ones.
    """

    kind: Kind
    log: Path
    first: int = 0
    every: int = 1

    def strike(self, point: str) -> None:
        """Apply the fault, if this is its point and its attempt."""
        context = TaskContext.get()
        if context is None or self.kind == "none" or context.attemptNumber():
            return
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        if batch < 0 or batch % self.every or POINTS[(self.first + batch // self.every) % len(POINTS)] != point:
            return
        if not self._is_chosen(batch, context.partitionId()):
            return
        with self.log.open("a") as file:
            file.write(f"{self.kind} {point}\n")
        if self.kind == "fail":
            raise OSError(f"a task that was to fail, {point}")
        if self.kind == "lose":
            os.kill(_executor(), signal.SIGKILL)
        time.sleep(SLOW_SECONDS)

    def _is_chosen(self, batch: int, partition: int) -> bool:
        """Whether the fault happens to this task: the first of the batch that reaches the point, and no other.

        The other task, or executor, continues. If it ran on the executor that fails, Spark would unload the state that
        this executor holds. With an executor, Spark loses its shuffle files and repeats the whole stage, whose attempts
        count from 0 again: an executor is lost once per batch.
        """
        claim = self.log.with_suffix(f".{batch}")
        try:
            with claim.open("x") as file:
                file.write(str(partition))
        except FileExistsError:
            return self.kind != "lose" and claim.read_text() == str(partition)
        return True


def _executor() -> int:
    """The process of this worker's executor."""
    process = os.getppid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


class FailingProcessor(ShardProcessor):
    """A shard processor with a fault around its requests to the state; ``current`` is the fault of new queries."""

    current: Fault

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault = self.current

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        super().init(handle)
        self.state = _FaultyState(self.state, self.fault)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """A batch of the shards of a group."""
        yield from super().handleInputRows(key, rows, timerValues)
        self.fault.strike("before commit")


class _FaultyState:
    """A map of a state whose requests may fail."""

    def __init__(self, state: Any, fault: Fault) -> None:
        self._state = state
        self._fault = fault

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's
        self._fault.strike("before read")
        value = self._state.getValue(key)
        self._fault.strike("after read")
        return value

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802 - Spark's
        self._fault.strike("before write")
        self._state.updateValue(key, value)
        self._fault.strike("after write")

    def removeKey(self, key: Any) -> None:  # noqa: N802 - Spark's
        self._fault.strike("before remove")
        self._state.removeKey(key)
        self._fault.strike("after remove")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


@dataclass(frozen=True)
class AfterCommit:
    """Passes the rows of a result through; Spark has committed the states of a task after the last of them."""

    fault: Fault

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the rows of a task through."""
        yield from batches
        self.fault.strike("after commit")
