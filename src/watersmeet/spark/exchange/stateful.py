"""The stateful operator: Spark calls the joins of an operator per shard and batch, over Spark's own state store.

A shuffle hands records over in any order, and in another one when a task is repeated. So a step takes the rows of a
port in the order in which they were delivered, which blobs carry with them, and a large batch is cut by that order as
well. Until all records are there, those that do not fit into memory wait in a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from watersmeet.errors import Refusal, WorkerRefusalError
from watersmeet.operators.core.chain import Chain, Link, Piece
from watersmeet.operators.core.identity import canonical_json
from watersmeet.operators.core.operator import (
    END_OF_INPUT,
    RUN,
    Emission,
    ShardMetrics,
    StepError,
    Watermarks,
    merge_shard_metrics,
    to_text,
)
from watersmeet.operators.state import cache
from watersmeet.operators.state.format import FORMAT, READABLE_FORMATS, digest
from watersmeet.operators.state.reshard import places_null_keys
from watersmeet.spark.exchange.output import Examples, OperatorCounters, OutputBuffer
from watersmeet.spark.exchange.packing import (
    LATE,
    MARKED_ROWS,
    METRICS,
    REPORT,
    SPACER,
    WATERMARKS,
    fold_watermarks,
    from_blobs,
    place_of,
    watermarks_behind,
)
from watersmeet.spark.exchange.store import NAME, VALUE, SparkStore, States, group_members, labels
from watersmeet.spark.private.introspection import (
    get_accepted_states,
    query_of_task,
    run_group,
    state_partitions,
)
from watersmeet.spark.private.transfer import room_here

if TYPE_CHECKING:
    import pandas as pd

SampleRows = Literal["none", "some"]
"""Whether metrics include some of the rows that they count."""
_FINGERPRINT = "fingerprint"
_NEW_CHECKPOINT = "undo the change, or give the changed query a new checkpoint and a new folder or table to write to."
BYTES_PER_STEP = 64 * 2**20
"""The maximum of a shard's bytes that are joined at once, if the operator may split a batch."""
_own: set[tuple[str, str, str, int]] = set()
"""The shards whose owner this process has checked: by run, prefix and digest of each stage, and label."""


@dataclass(frozen=True)
class Shards:
    """The exchange, as a processor sees it: ``first`` is the shard that counts the rows of ports that go to all shards.

    ``number``: the number of shards.
    """

    first: int
    to_all: frozenset[int]
    number: int = 1


@dataclass(frozen=True)
class JoinStage:
    """A join that runs in a processor: its link of the chain, and its metadata.

    - ``name``: its name for users; ``digest``: the owner of its part of the state
    - ``metrics_name``: its name in the metrics, empty if it has none there; ``times``: the columns whose
      watermarks are in the metrics
    - ``ports``: maps each port of the exchange that feeds it to one of its own
    - ``ends``: the watermarked columns of inputs that end with this batch (batch DataFrames)
    """

    link: Link
    name: str
    digest: str
    ports: Mapping[int, int]
    metrics_name: str
    times: tuple[str, ...]
    ends: tuple[str, ...] = ()


class ShardProcessor(StatefulProcessor):
    """Hands each shard's records of a batch to the joins that run in it, and the last one's emission back to Spark."""

    def __init__(
        self,
        stages: tuple[JoinStage, ...],
        shards: Shards,
        bytes_per_step: int = BYTES_PER_STEP,
        sample_rows: SampleRows = "none",
        cache_bytes: int | None = None,
    ) -> None:
        self.cache_bytes = cache_bytes
        self.stages = stages
        self.shards = shards
        self.sample_rows: SampleRows = sample_rows
        self.bytes_per_step = bytes_per_step

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: one map from names to values per shard."""
        folder = local_folder()
        if folder is not None:
            # Spark removes its local directories when the executor ends.
            cache.share_runs(Path(folder) / "watersmeet-runs", self.cache_bytes)
        self.handle = handle
        self.state = handle.getMapState("state", NAME, VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """Process one batch of the shards of one group."""
        group: dict[int, _Shard] = {}
        output = OutputBuffer(room_here())
        states = States(self.handle, self.state, key[0])
        received = BatchWatermarks()
        with closing(SpillFile(local_folder())) as spill_file:
            self._take(rows, group, spill_file, states, output, received)
            if received.blobs:
                # They are for all shards of the group, also for those without rows.
                for shard in group_members(labels(self.shards.number), state_partitions())[key[0]]:
                    target = group.get(shard) or group.setdefault(shard, _Shard(self, shard, states, output))
                    target.take_watermarks(received)
            shards = sorted(group.values(), key=lambda shard: shard.label)
            # Reads and writes for the whole group are charged to one shard.
            with shards[0].counters[-1].measure_time():
                states.fetch()
            for shard in shards:
                yield from shard.close()
        with shards[-1].counters[-1].measure_time():
            output.close()
            states.flush()
        for shard in shards:
            output.add(REPORT, report=shard.counters[-1].to_text())
        for text in _metrics_texts(shards, self.stages):
            output.add(METRICS, report=text)
        yield from output.take_frames()

    def _take(
        self,
        rows: Any,
        group: dict[int, _Shard],
        spill_file: SpillFile,
        states: States,
        output: OutputBuffer,
        received: BatchWatermarks,
    ) -> None:
        """Distribute records to the shards of a group, and watermarks; large inputs are spilled to a file."""
        for records in rows:
            for shard, port, kind, blob in zip(
                records["of"], records["port"], records["kind"], records["blob"], strict=True
            ):
                if kind == SPACER:
                    continue
                if kind in (WATERMARKS, MARKED_ROWS):
                    received.add(int(port), blob if kind == WATERMARKS else watermarks_behind(blob))
                if kind == WATERMARKS:
                    continue
                target = group.get(shard) or group.setdefault(shard, _Shard(self, int(shard), states, output))
                target.take(int(port), kind, blob)
                if (
                    target.input_buffer.bytes
                    and sum(other.input_buffer.bytes for other in group.values()) > self.bytes_per_step
                ):
                    for other in group.values():
                        other.input_buffer.spill(spill_file)

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""


class _Shard:
    """One batch of one shard: its buffered records, the joins that process them, and their counters.

    ``output`` collects the output; shards of a group share it.
    """

    def __init__(self, processor: ShardProcessor, label: int, states: States, output: OutputBuffer) -> None:
        self.label = label
        self.stages = processor.stages
        self.shards = processor.shards.number
        self.output = output
        self.is_checked = False
        self.watermarks = BatchWatermarks()
        named = zip(self.stages, prefixes(len(self.stages)), strict=True)
        self.stores = [states.store(label, prefix, shard_owner(stage.digest, prefix, label)) for stage, prefix in named]
        self.counters = [self._make_counters(stage, processor.shards, processor.sample_rows) for stage in self.stages]
        self.chain = Chain([stage.link for stage in self.stages], self.stores, processor.bytes_per_step, self._run_step)
        split = (stage.ports for stage in self.stages if stage.link.operator.can_split_batch)
        self.input_buffer = InputBuffer(frozenset(port for ports in split for port in ports))

    def check_owner(self) -> None:
        """Fail, once, if the state belongs to another query."""
        if not self.is_checked:
            for stage, store in zip(self.stages, self.stores, strict=True):
                _check_owner(stage, store, self.label, self.shards)
            self.is_checked = True

    def take(self, port: int, kind: int, blob: bytes) -> None:
        """Buffer a record of the exchange."""
        if kind == LATE:
            self.input_buffer.add_late(port, blob)
        else:
            self.input_buffer.add(port, blob)

    def take_watermarks(self, received: BatchWatermarks) -> None:
        """Take the watermarks of the group."""
        self.watermarks = received
        self.input_buffer.ports.update(received.blobs)

    def close(self) -> Iterator[pd.DataFrame]:
        """Run the stages on the batch, with the watermarks in the last step."""
        self.check_owner()
        for blob in sorted(self.input_buffer.late):
            self.output.add(LATE, blob=blob)
        parts = self.input_buffer.parts(self.chain.bytes_per_step)
        for tables, is_last in self.counters[0].measure_each(parts):
            inputs = [_stage_tables(tables, stage.ports) for stage in self.stages]
            if is_last:
                watermarks = [self._watermarks(stage) for stage in self.stages]
                came = {n for n, stage in enumerate(self.stages) if self.input_buffer.ports.intersection(stage.ports)}
                yield from self._emit(self.chain.close(inputs, watermarks, came))
                continue
            for number, stage in enumerate(self.stages):
                if stage.link.operator.can_split_batch:
                    yield from self._emit(self.chain.split(number, inputs[number]))

    def _make_counters(self, stage: JoinStage, shards: Shards, sample_rows: SampleRows) -> OperatorCounters:
        ports = frozenset(range(len(stage.link.operator.result_columns)))
        counted = ports if self.label == shards.first else ports - shards.to_all
        examples = Examples(stage.link.operator) if sample_rows == "some" else None
        return OperatorCounters(stage.link.operator, counted, self.output, examples, is_last=stage is self.stages[-1])

    def _run_step(self, number: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces of a step, timed; a `StepError` becomes a refusal that names the join."""
        try:
            yield from self.counters[number].measure_each(pieces)
        except StepError as error:
            refusal = Refusal(error.condition, {"join": self.stages[number].name, **error.parameters})
            raise WorkerRefusalError(refusal) from None

    def _watermarks(self, stage: JoinStage) -> Watermarks:
        """The watermarks of a batch for the ports of a stage."""
        return (
            self.watermarks.fold(tuple(stage.ports))
            | dict.fromkeys(stage.ends, END_OF_INPUT)
            | (_run_watermark() if stage.link.operator.needs_run else {})
        )

    def _emit(self, pieces: Iterator[tuple[int, Piece]]) -> Iterator[pd.DataFrame]:
        """Run the stages; yields their output whenever enough is buffered."""
        for number, piece in pieces:
            counters = self.counters[number]
            if isinstance(piece, Emission):
                counters.add_emission(piece)
            else:
                counters.emit_rows(piece)
            if self.output.is_full:
                yield from self.output.take_frames()


def _metrics_texts(shards: Sequence[_Shard], stages: Sequence[JoinStage]) -> Iterator[str]:
    """The metrics of a batch per join, for all shards of a group, with the bytes in the cache of their executor."""
    cached: ShardMetrics = {"highest": {"cache": cache.run_cache.bytes_used}}
    for number, stage in enumerate(stages):
        if stage.metrics_name:
            metrics = (shard.counters[number].collect_metrics(stage.times) for shard in shards)
            yield to_text(stage.metrics_name, merge_shard_metrics((*metrics, cached)))


def prefixes(stages: int) -> tuple[str, ...]:
    """The prefixes of the names in the state of each of several stages; empty for a single one.

    >>> prefixes(1), prefixes(2)
    (('',), ('0/', '1/'))
    """
    return ("",) if stages == 1 else tuple(f"{place}/" for place in range(stages))


def _check_owner(stage: JoinStage, store: SparkStore, shard: int, shards: int) -> None:
    """Refuse the state of another query: the last check, where none was possible before the start.

    The state of the query before an accepted change is taken over. A state from an earlier batch of this run is our
    own.
    """
    run = run_group()
    own = None if run is None else (run, store.prefix, stage.digest, shard)
    if own in _own:
        return
    fingerprint = store.get(_FINGERPRINT)
    if fingerprint is not None and fingerprint.decode() not in (
        f"{number} {stage.digest}" for number in READABLE_FORMATS
    ):
        was = get_accepted_states().get(fingerprint.decode())
        if was is None:
            raise WorkerRefusalError(_foreign_state(stage.name, fingerprint.decode(), stage.digest))
        # In another number of shards it is the same.
        if canonical_json(was) != canonical_json(stage.link.operator.identity):
            stage.link.operator.take_over(store, was)
    if not places_null_keys(stage.link.operator, store, shards):
        raise WorkerRefusalError(Refusal("NULL_KEYS_IN_ANY_SHARD", {"join": stage.name}))
    if fingerprint is None or fingerprint.decode() != f"{FORMAT} {stage.digest}":
        store.put(_FINGERPRINT, f"{FORMAT} {stage.digest}".encode())
    elif own is not None and not store.changed:
        # Only for a state that was read: a failed task leaves none of its writes.
        _own.add(own)


def _foreign_state(join: str, fingerprint: str, own: str) -> Refusal:
    """The reason why a state is not our own: its fingerprint is of another format, or of another join."""
    number, _, digest = fingerprint.rpartition(" ")
    parameters = {"checkpoint": "of this run", "hint": _NEW_CHECKPOINT}
    if not number:
        return Refusal("CHECKPOINT_WITHOUT_FORMAT", {**parameters, "file": f"the state of the join of {join}"})
    if digest != own and number in map(str, READABLE_FORMATS):
        difference = f"the join of {join}, the types of its columns or the number of its shards differ"
        return Refusal("CHECKPOINT_OF_ANOTHER_QUERY", {**parameters, "difference": difference})
    parameters = {**parameters, "version": f"one with state format {number}", "format": number, "known": str(FORMAT)}
    return Refusal("CHECKPOINT_OF_A_NEWER_VERSION", parameters)


def _run_watermark() -> dict[str, int]:
    """The watermark that identifies this start of the query."""
    group = run_group()
    return {} if group is None else {RUN: int.from_bytes(sha256(group.encode()).digest()[:7], "big")}


def shard_owner(stage: str, prefix: str, shard: int) -> str:
    """The name of a shard of a stage, by its digest: the same in every attempt, and after a restart."""
    return digest(query_of_task() or "", stage, prefix, str(shard))


def local_folder() -> str | None:
    """Spark's local folder for temporary files of an executor; None: unknown."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _stage_tables(tables: Mapping[int, pa.Table], ports: Mapping[int, int]) -> dict[int, pa.Table]:
    """The rows of the ports of the exchange that feed a stage, by what the stage calls them."""
    return dict(sorted((ports[port], table) for port, table in tables.items() if port in ports))


@dataclass(frozen=True)
class SpilledBlob:
    """A blob in a file: its place in the order of delivery, where it begins, and its bytes."""

    file: BinaryIO
    place: int
    start: int
    size: int

    def read(self) -> bytes:
        """The blob."""
        return os.pread(self.file.fileno(), self.size, self.start)


class SpillFile:
    """Blobs of a group that do not fit into memory. The file has no name, and goes with the task, however that ends."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.size = 0
        self._file: BinaryIO | None = None

    def put(self, blob: bytes) -> SpilledBlob:
        """Write a blob."""
        if self._file is None:
            # Unbuffered, so that written data can be read back.
            self._file = TemporaryFile(buffering=0, prefix="watersmeet-", dir=self.folder)  # noqa: SIM115 - see `close`
        rest = memoryview(blob)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(blob)
        return SpilledBlob(self._file, place_of(blob), self.size - len(blob), len(blob))

    def close(self) -> None:
        """Remove it."""
        if self._file is not None:
            self._file.close()


class BatchWatermarks:
    """The watermarks of a batch that came to a group of shards, by port. All of its shards have the same."""

    def __init__(self) -> None:
        self.blobs: dict[int, list[bytes]] = {}
        self._folded: dict[tuple[int, ...], dict[str, int]] = {}

    def add(self, port: int, blob: bytes) -> None:
        """Add what a map task sent to a port."""
        self.blobs.setdefault(port, []).append(blob)

    def fold(self, ports: tuple[int, ...]) -> dict[str, int]:
        """The watermarks of some ports, from those of all map tasks: folded once for all shards of the group."""
        if ports not in self._folded:
            self._folded[ports] = fold_watermarks([blob for port in ports for blob in self.blobs.get(port, ())])
        return self._folded[ports]


class InputBuffer:
    """Records of a shard that no step has seen yet; ``split``: the ports whose rows need not wait for the whole batch.

    - ``ports``: those that something came to in this batch
    - ``late``: rows that only pass through
    - ``bytes``: of rows in memory that need not wait
    """

    def __init__(self, split: frozenset[int]) -> None:
        self.split = split
        self.ports: set[int] = set()
        self.late: list[bytes] = []
        self.bytes = 0
        self._blobs: dict[int, list[bytes | SpilledBlob]] = {}

    def add(self, port: int, blob: bytes) -> None:
        """Add a record of rows."""
        self.ports.add(port)
        self._blobs.setdefault(port, []).append(blob)
        self.bytes += len(blob) if port in self.split else 0

    def add_late(self, port: int, blob: bytes) -> None:
        """Take late rows of a join further up."""
        self.ports.add(port)
        self.late.append(blob)

    def spill(self, file: SpillFile) -> None:
        """Let rows that need not wait for the whole batch wait in a file."""
        for port in self.split & self._blobs.keys():
            self._blobs[port] = [
                blob if isinstance(blob, SpilledBlob) else file.put(blob) for blob in self._blobs[port]
            ]
        self.bytes = 0

    def parts(self, size: int) -> Iterator[tuple[dict[int, pa.Table], bool]]:
        """Yield rows by port, and whether they are complete; large arrivals in parts of about ``size`` bytes."""
        blobs = [(port, blob) for port in self.split for blob in self._blobs.pop(port, ())]
        if sum(_size(blob) for _, blob in blobs) > size:
            blobs.sort(key=lambda entry: (_place(entry[1]), entry[0], _size(entry[1])))
        waiting = 0
        for port, blob in blobs:
            if waiting > size:
                yield self._tables(self.split), False
                waiting = 0
            self._blobs.setdefault(port, []).append(blob)
            waiting += _size(blob)
        yield self._tables(frozenset(self._blobs)), True

    def _tables(self, ports: frozenset[int]) -> dict[int, pa.Table]:
        """The rows of some ports; they wait no longer."""
        some = sorted(self._blobs.keys() & ports)
        return {port: from_blobs([_read(blob) for blob in self._blobs.pop(port)]) for port in some}


def _size(blob: bytes | SpilledBlob) -> int:
    return blob.size if isinstance(blob, SpilledBlob) else len(blob)


def _place(blob: bytes | SpilledBlob) -> int:
    return blob.place if isinstance(blob, SpilledBlob) else place_of(blob)


def _read(blob: bytes | SpilledBlob) -> bytes:
    return blob.read() if isinstance(blob, SpilledBlob) else blob
