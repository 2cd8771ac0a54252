"""Faults of first attempts in Spark's workers: they fail, are slow, or their executor ends.

A batch has a point at which that happens: around a kind of request to the state, before the state is committed, or
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
"""Those of a task. The first are those that tests in short must see."""
SLOW_SECONDS = 20.0
"""The time that a slow task waits, unless Spark ends it since another attempt was quicker."""
Kind = Literal["none", "fail", "slow", "lose"]


@dataclass(frozen=True)
class Fault:
    """The fault of the first attempts of a batch, and the file in which they record it.

    ``every``: in one batch of so many; ``first``: the point of batch 0, from which others follow in turn.
    """

    kind: Kind
    log: Path
    first: int = 0
    every: int = 1

    def strike(self, point: str) -> None:
        """Let it happen, if this is the point and the attempt."""
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
        """Whether it happens to that task: the first that comes to the point, and no other one of the batch.

        The other task, or executor, goes on. If it ran where this one fails, Spark would let go of what that executor
        still has of the state. With an executor, Spark loses its shuffle files and repeats the whole stage, whose
        attempts count from 0 again: an executor is lost once per batch.
        """
        claim = self.log.with_suffix(f".{batch}")
        try:
            with claim.open("x") as file:
                file.write(str(partition))
        except FileExistsError:
            return self.kind != "lose" and claim.read_text() == str(partition)
        return True


def _executor() -> int:
    """The process of the executor whose worker this is."""
    process = os.getppid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


class FailingProcessor(ShardProcessor):
    """Ours, with a fault around its requests to the state; ``current`` is that of queries that are made now."""

    current: Fault

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault = self.current

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        super().init(handle)
        self.state = _Watched(self.state, self.fault)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """A batch of the shards of a group."""
        yield from super().handleInputRows(key, rows, timerValues)
        self.fault.strike("before commit")


class _Watched:
    """A map of a state whose requests are watched."""

    def __init__(self, state: Any, fault: Fault) -> None:
        self._state = state
        self._fault = fault

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's
        self._fault.strike("before read")
        found = self._state.getValue(key)
        self._fault.strike("after read")
        return found

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
    """Lets rows of a result pass; Spark has committed the states of a task by the time all have."""

    fault: Fault

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let the rows of a task pass."""
        yield from batches
        self.fault.strike("after commit")
