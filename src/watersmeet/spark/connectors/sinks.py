"""Sinks, several outputs of one query, and how far a sink is compared with its checkpoint.

The writers here write what Spark's own streaming sinks cannot: files, changes of tables. All of them use foreachBatch.
A batch that is repeated after a failure changes nothing: files of a batch are replaced, and a snapshot knows its
batches. Batches for Kafka become records here, with the batch in each record.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from watersmeet.catalog import Sink
from watersmeet.codec.avro_schema import AVRO
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats import sink_format
from watersmeet.formats.base import PATH, Changes, SinkFormat
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.locations import Storage, query_of
from watersmeet.logical.passes.sinks import key_columns, result_columns
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.schema import quote
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.avro import encode_avro
from watersmeet.spark.connectors.protobuf import encode_protobuf
from watersmeet.spark.connectors.record_parts import OF_KEY
from watersmeet.spark.connectors.records import encode_records, key_in, value_of
from watersmeet.spark.exchange.rows import columns_of, consolidate, explode_changes, is_row, text_options
from watersmeet.spark.leases import NO_LEASES, Leases
from watersmeet.spark.private.files import Folder, folder_of, is_reachable
from watersmeet.spark.private.introspection import query_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NewColumns = Literal["refuse", "add"]
"""Columns that the table of a sink lacks: the query is not started, or they are added first."""


@dataclass(frozen=True)
class SinkTarget:
    """The target of a query's rows.

    ``changes``: how changes of a table are written; None: rows only arrive. ``key``: the key of a table's rows, or of
    the records of a stream. ``checkpoint`` identifies the run of the query that writes. ``leases``: what the run holds.
    ``new_columns``: what is done with columns that the table of the sink lacks.
    """

    sink: Sink
    query: str
    checkpoint: Storage
    changes: Changes | None = None
    key: tuple[str, ...] = ()
    leases: Leases = NO_LEASES
    new_columns: NewColumns = "refuse"

    def check_lease(self) -> None:
        """Refuse to commit a batch if another driver has the lease of the query by now."""
        self.leases.check(query_of(self.checkpoint))

    @property
    def format(self) -> SinkFormat:
        """The format of the sink."""
        return sink_format(self.sink)

    @property
    def options(self) -> dict[str, str]:
        """The options that are Spark's."""
        return self.format.options

    @property
    def plain(self) -> Sink:
        """The sink as Spark knows it."""
        return replace(self.sink, options=self.options)


def target_of(sink: Sink, name: str, query: AnalyzedQuery, checkpoint: Storage) -> SinkTarget:
    """The target of a query: its sink, checkpoint and options."""
    format_ = sink_format(sink)
    if query.result != "table":
        # A record's key determines its partition, and need not be unique.
        return SinkTarget(sink, name, checkpoint, key=key_columns(query) or ())
    if format_.is_display:
        return SinkTarget(sink, name, checkpoint)
    spelled = {output.name.lower(): output.name for output in query.outputs}
    key = tuple(spelled[name.lower()] for name in format_.key) or result_columns(query) or ()
    return SinkTarget(sink, name, checkpoint, cast("Changes | None", format_.changes), key)


def needs_batches(target: SinkTarget, spark: SparkSession) -> bool:
    """Whether the target is written batch by batch; else Spark's own streaming sink writes there."""
    if target.changes is not None:
        return True
    path = target.sink.lowercase_options.get(PATH, "")
    return target.format.is_batched and (not target.format.has_files or is_reachable(spark, path))


class AddRows(Protocol):
    """Adds the rows of a batch to a sink."""

    def __call__(self, rows: DataFrame, number: int, *, is_empty: bool = False) -> None:
        """Add the rows of the batch of that number; ``is_empty``: it has none."""
        ...


SinkFormatT = TypeVar("SinkFormatT", bound=SinkFormat)


@dataclass(frozen=True)
class SinkConnector(Generic[SinkFormatT]):
    """Writes to a target. This class writes any Spark format; subclasses override it."""

    format: SinkFormatT
    target: SinkTarget

    @property
    def checks_lease(self) -> bool:
        """Whether its writer asks the storage for the lease of the query by itself."""
        return False

    def check(self, place: Place | None, spark: SparkSession) -> None:
        """Refuse a target that is known to fail, before the query starts."""

    def check_rows(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse rows that cannot be written as the sink says. Nothing is made or registered yet."""

    def prepare(self, rows: DataFrame | None, place: Place | None) -> None:
        """Create what must exist before the first batch, after all checks have passed.

        ``rows``: those of the result; None for a side output.
        """

    def add_columns(self, rows: DataFrame) -> Sequence[str]:
        """Add the columns of rows that the table lacks, if it may get any, after all checks; return their names."""
        return ()

    def writer(self) -> Write:
        """The function that writes a batch."""
        return batch_writer(self.target, self.add_rows)

    def add_rows(self, rows: DataFrame, number: int, *, is_empty: bool = False) -> None:
        """Add the rows of a batch; ``is_empty``: it has none."""
        if not is_empty:
            write_rows(rows, self.target.plain, number)

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch of this run that it has; None: it has none, or does not remember batches."""

    def had_rows(self, spark: SparkSession) -> bool:
        """Whether rows are replaced by key in a table that had rows before the query."""
        return False

    def recovery_hint(self, last: int) -> str:
        """The hint for a sink that does not match its checkpoint, which ends at the batch ``last``."""
        return f"restore {self.target.sink.name} and the checkpoint to the same moment."

    def can_rewind(self, spark: SparkSession) -> bool:
        """Whether what came after the last batch of the checkpoint can be taken back, exactly."""
        return False

    def rewind(self, spark: SparkSession) -> None:
        """Take back what came after the last batch of the checkpoint."""
        raise NotImplementedError


def check_target(target: SinkTarget, place: Place | None, spark: SparkSession) -> None:
    """Refuse a target that is known to fail, before the query starts."""
    missing = [replace(refusal, place=place) for refusal in target.format.check_installed()]
    if missing:
        raise WatersmeetError(missing)
    sink_connector(target).check(place, spark)


def batch_writer(target: SinkTarget, add: AddRows) -> Write:
    """A function that writes batches to a target by ``add``: the rows of a stream, or the changes of a table."""

    def write(batch: DataFrame, number: int) -> None:
        if target.changes is None:
            add(encode_rows(target, batch), number)
        else:
            _write_log(target, batch, number, add)

    return write


def encode_rows(target: SinkTarget, rows: DataFrame) -> DataFrame:
    """Rows as the sink takes them."""
    is_encoded = target.format.is_encoded(target.changes)
    if not is_encoded:
        return rows
    return encode_values(target, encode_records(rows, target.key, target.format.key_format, target.format.value_format))


def encode_values(target: SinkTarget, records: DataFrame) -> DataFrame:
    """Records whose values and keys are as the sink takes them."""
    records = encode_avro(target.sink, records) if target.format.value_format == AVRO else records
    records = encode_protobuf(target.sink, records) if target.format.value_format == PROTOBUF else records
    is_struct = isinstance(records.schema["key"].dataType, StructType)
    return encode_avro(target.sink, records, OF_KEY) if target.format.key_format == AVRO and is_struct else records


def changelog_rows(batch: DataFrame) -> DataFrame:
    """The changes of a batch, put together: each row as often as it comes or goes, with ``_change``."""
    return explode_changes(consolidate(batch))


def upsert_records(target: SinkTarget, batch: DataFrame) -> DataFrame:
    """The changes of a batch as records: the row that a key has now, or no value for one that has none any more."""
    rows = consolidate(batch)
    weight = F.col(quote(WEIGHT))
    text = Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name}).to_message()
    own, value = (
        key_in(rows, target.key, target.format.key_format),
        value_of(columns_of(rows), target.format.value_format),
    )
    keyed = rows.select(own.alias("key"), value.alias("row"), weight.alias("n"))
    comes = F.when(F.col("n") > 0, F.col("n")).otherwise(0)
    latest = F.first(F.when(F.col("n") > 0, F.col("row")), ignorenulls=True)
    by_key = keyed.groupBy("key").agg(F.sum(comes).alias("n"), latest.alias("row"))
    row = F.when(F.col("n") <= 1, F.col("row")).otherwise(F.raise_error(F.lit(text)).cast(keyed.schema["row"].dataType))
    return encode_values(target, by_key.select("key", row.alias("value")))


def run_of(checkpoint: Storage) -> str:
    """The id of the query run that a checkpoint belongs to; Spark assigns it at the first start."""
    return query_id(checkpoint) or query_of(checkpoint)


def _write_log(target: SinkTarget, batch: DataFrame, number: int, add: AddRows) -> None:
    changes = changelog_rows(batch).persist()
    try:
        has_folders = PATH in target.sink.lowercase_options
        rows = changes if has_folders else changes.withColumn(BATCH, F.lit(number).cast("bigint"))
        # A batch without changes would leave an empty file behind each time.
        add(encode_rows(target, rows), number, is_empty=changes.isEmpty())
    finally:
        changes.unpersist()


def plans_of(batch: DataFrame, target: SinkTarget) -> BatchPlans:
    """The batches of the checkpoint that a batch belongs to."""
    return BatchPlans.of(batch.sparkSession, target.checkpoint)


HEADERS = BATCH_HEADER, POSITION_HEADER = "watersmeet.batch", "watersmeet.position"
"""The headers that say in which batch a record was written, and as which of its rows."""


def batch_records(target: SinkTarget, batch: DataFrame, number: int) -> DataFrame:
    """The records that a batch is."""
    if target.changes == "upsert":
        return upsert_records(target, batch)
    if target.changes == "log":
        return encode_rows(target, changelog_rows(batch).withColumn(BATCH, F.lit(number).cast("bigint")))
    return encode_rows(target, batch)


def record_writer(target: SinkTarget) -> Write:
    """A function that writes batches by Spark's own writer. A repeated batch is written again, with the same number."""

    def write(batch: DataFrame, number: int) -> None:
        write_rows(with_headers(batch_records(target, batch, number), number), target.plain, number)

    return write


def with_headers(records: DataFrame, number: int) -> DataFrame:
    """Records with their batch and position in headers, after those that they have."""
    own = F.array(_header(BATCH_HEADER, F.lit(number)), _header(POSITION_HEADER, F.monotonically_increasing_id()))
    header_columns = [name for name in records.columns if name.lower() == "headers"]
    headers = F.concat(F.coalesce(F.col(header_columns[0]), F.array()), own) if header_columns else own
    return records.drop(*header_columns).withColumn("headers", headers)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


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


FAILED_SINK = "Watersmeet wrote to the sink "
"""The note in an error that says to which of several sinks a batch was being written."""
Branch = tuple[str, Callable[[DataFrame], DataFrame], Write]
"""A sink, the rows of a batch that it gets, and its writer."""


def write_branches(branches: Sequence[Branch]) -> Write:
    """The writer of a batch that goes to several sinks, one after the other; it is computed once.

    If a sink fails, those before it have the batch and those behind it do not: the query stops, and repeats the batch
    for all of them, each of which sees to it that it has the batch once.
    """

    def write(batch: DataFrame, number: int) -> None:
        cached = batch.persist()
        try:
            for sink, rows_of, write_rows_of in branches:
                try:
                    write_rows_of(rows_of(cached), number)
                except Exception as error:
                    error.add_note(f"{FAILED_SINK}{sink}")
                    raise
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
        """The time when Spark planned a batch, in milliseconds; None: it did not, or the plan is deleted by now."""
        text = self.folder.read(f"{_PLANNED}/{batch}")
        with suppress(ValueError, IndexError, AttributeError, TypeError):
            return int(json.loads((text or "").split("\n")[1]).get("batchTimestampMs", 0)) or None
        return None

    def sink_batch(self, batch: int) -> SinkBatch:
        """A batch, as a sink that has it records it."""
        return SinkBatch(batch, self.plan_time(batch))

    def difference(self, last_batch: SinkBatch) -> str | None:
        """The contradiction between a sink's last batch and the plan of the checkpoint; None: none is known."""
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
