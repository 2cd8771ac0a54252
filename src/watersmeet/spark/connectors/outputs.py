"""Several outputs of one query, and how far a sink is compared with its checkpoint.

A batch goes to the result's sink and to the sinks of side outputs. A repeated batch must not appear twice: files see to
that, and where they cannot be renamed, a batch has its own folder, ``_batch=7``, which a repetition replaces. Other
sinks get it again, unless they recognise batches.

A sink that remembers its last batch skips the batches that it has. That is right only while sink and checkpoint have
the same history: after an older checkpoint is restored, Spark plans the same numbers over other rows. So a sink also
remembers when Spark planned its last batch, ``batchTimestampMs`` in ``offsets/N``, which Spark writes once. The rest of
that file is not stable: rescaling, a rebuild and a new clock rewrite it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Sink
from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.formats.sink import PATH
from watersmeet.locations import Storage
from watersmeet.spark.exchange.rows import is_row
from watersmeet.spark.private.files import Folder, folder_of
from watersmeet.spark.time_texts import text_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BATCH = "_batch"

Write = Callable[[DataFrame, int], None]
"""Writes a batch, given its number. It must go over all rows: else the joins before it would not have run."""


def split_outputs(rows: Write, others: Mapping[str, Write]) -> Write:
    """The writer of a batch: its rows go to one sink, and each side output to its own."""

    def write(batch: DataFrame, number: int) -> None:
        cached = batch.persist()
        try:
            rows(cached.where(is_row(cached)).drop(*others), number)
            for column, write_output in others.items():
                write_output(cached.where(F.col(column).isNotNull()).select(f"{column}.*"), number)
        finally:
            cached.unpersist()

    return write


def write_rows(frame: DataFrame, sink: Sink, number: int) -> None:
    """Add the rows of a batch to a batch sink of Spark."""
    options = {name: value for name, value in sink.options.items() if name.lower() != PATH}
    path = sink.lowercase_options.get(PATH)
    writer = frame.write.format(sink.format).options(**text_options(sink.format, options))
    if path is None:
        writer.mode("append").save()
    else:
        writer.mode("overwrite").save(f"{path.rstrip('/')}/{BATCH}={number}")


def drain_batch(frame: DataFrame) -> None:
    """Run a batch without writing it: Spark stores the state of its joins only if it runs."""
    frame.write.format("noop").mode("overwrite").save()


_PLANNED, _DONE = "offsets", "commits"


@dataclass(frozen=True)
class SinkBatch:
    """The last batch of a run that a sink has, and when Spark planned it, in milliseconds; None: that is not known."""

    batch: int
    planned_at: int | None = None

    def to_text(self) -> str:
        """The batch as text.

        >>> SinkBatch.from_text(SinkBatch(7, 1000).to_text(), 7)
        SinkBatch(batch=7, planned_at=1000)
        """
        return json.dumps({"batch": self.batch, "planned_at": self.planned_at})

    @staticmethod
    def from_text(text: str | None, batch: int) -> SinkBatch:
        """The batch of that number, as a text has it; the text of an earlier batch, by an earlier version, is ignored.

        >>> SinkBatch.from_text('{"batch": 6, "planned_at": 900}', 7), SinkBatch.from_text(None, 7)
        (SinkBatch(batch=7, planned_at=None), SinkBatch(batch=7, planned_at=None))
        """
        with suppress(ValueError, TypeError, KeyError):
            stored = json.loads(text or "")
            if stored["batch"] == batch:
                return SinkBatch(batch, stored["planned_at"])
        return SinkBatch(batch)


@dataclass(frozen=True)
class BatchPlans:
    """The batches that the checkpoint of a query has planned and finished, as far as it can be seen from here."""

    folder: Folder

    @staticmethod
    def of(spark: SparkSession, checkpoint: Storage) -> BatchPlans:
        """The batches of a checkpoint, as that session sees it."""
        return BatchPlans(folder_of(spark, checkpoint))

    @cached_property
    def is_visible(self) -> bool:
        """Whether the checkpoint has begun and can be read from here: that of a server may lie elsewhere."""
        return self.folder.read("metadata") is not None

    @property
    def last_planned(self) -> int:
        """The last batch that is planned; -1: none is."""
        return max(_numbers(self.folder, _PLANNED), default=-1)

    @property
    def last_done(self) -> int:
        """The last batch that is finished; -1: none is."""
        return max(_numbers(self.folder, _DONE), default=-1)

    def plan_time(self, batch: int) -> int | None:
        """When Spark planned a batch, in milliseconds; None: it did not, or the plan is deleted by now."""
        text = self.folder.read(f"{_PLANNED}/{batch}")
        with suppress(ValueError, IndexError, AttributeError, TypeError):
            return int(json.loads((text or "").split("\n")[1]).get("batchTimestampMs", 0)) or None
        return None

    def sink_batch(self, batch: int) -> SinkBatch:
        """A batch, as a sink that has it records it."""
        return SinkBatch(batch, self.plan_time(batch))

    def difference(self, last_batch: SinkBatch) -> str | None:
        """Why a sink's last batch contradicts the plan of the checkpoint; None: it does not, as far as is known."""
        if not self.is_visible:
            return None
        last = self.last_planned
        if last_batch.batch > last:
            end = f"ends at batch {last}" if last >= 0 else "has none yet"
            return f"it has batch {last_batch.batch}, and the checkpoint {end}"
        planned_at = self.plan_time(last_batch.batch)
        if None not in (planned_at, last_batch.planned_at) and planned_at != last_batch.planned_at:
            return f"its batch {last_batch.batch} is not the batch {last_batch.batch} that the checkpoint has planned"
        return None

    def has_batch(self, last_batch: SinkBatch | None, number: int, target: str, hint: str) -> bool:
        """Whether a sink with that last batch has a batch; refused if that is the batch of another plan."""
        if last_batch is None or last_batch.batch < number:
            return False
        self.check(last_batch, target, hint)
        return True

    def check(self, last_batch: SinkBatch, target: str, hint: str) -> None:
        """Refuse a sink whose last batch contradicts the plan of the checkpoint."""
        difference = self.difference(last_batch)
        if difference is not None:
            raise sink_ahead(target, difference, hint)


def sink_ahead(target: str, difference: str, hint: str, place: Place | None = None) -> WatersmeetError:
    """The refusal of a sink that has batches which the checkpoint does not have."""
    return refuse("SINK_AHEAD_OF_CHECKPOINT", place, target=target, difference=difference, hint=hint)


def _numbers(folder: Folder, name: str) -> list[int]:
    return [int(file) for file in folder.names(name) if file.isdecimal()]
