"""The rows that a query has read, batch by batch, and expressions that only Spark can evaluate over them.

Nothing of a running query is touched.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.formats import source_format
from watersmeet.local.casts import in_session
from watersmeet.local.functions import SPARK_EVALUATOR
from watersmeet.local.query import PARTITION, WHERE
from watersmeet.locations import Storage, is_local, local_path
from watersmeet.logical.nodes import Script
from watersmeet.operators.core.changes import CHANGE
from watersmeet.operators.core.operator import NOW
from watersmeet.operators.core.python_values import python_rows
from watersmeet.physical import QueryPlan
from watersmeet.physical.identity import scan_names
from watersmeet.schema import arrow_type, quote
from watersmeet.spark.connectors.malformed import PLACE, REASON, VALUE, place_of
from watersmeet.spark.connectors.reading import is_static, order_of_files
from watersmeet.spark.connectors.static import copy_of, read_settings
from watersmeet.spark.run.rebuild_input import refuse_trace, replay_frame, whole_topics
from watersmeet.spark.state.offset_log import OffsetLog, plain_path
from watersmeet.tools.trace import Batch

_BATCH = "#batch"


@dataclass(frozen=True)
class Unreadable:
    """A row that could not be read: its source, batch, place, reason and text."""

    source: str
    batch: int | None
    where: str
    reason: str
    text: str


@dataclass(frozen=True)
class InputHistory:
    """The input of a query: its batches, malformed rows, and rows that it has not read yet by source.

    ``unknown`` are sentences about lost information. ``uncertain_until``: the last batch for which the treatment of its
    rows is not known; -1: all batches are known.
    """

    batches: tuple[Batch, ...]
    malformed: tuple[Unreadable, ...] = ()
    waiting: Mapping[str, pa.Table] = field(default_factory=dict[str, pa.Table])
    unknown: tuple[str, ...] = ()
    uncertain_until: int = -1


def read_input_history(
    spark: SparkSession,
    script: Script,
    plan: QueryPlan,
    log: OffsetLog,
    storage: Storage,
    change: tuple[int, str] | None = None,
) -> InputHistory:
    """The input of a query by the log of its checkpoint; ``storage`` has external watermarks and static tables.

    ``change``: the last batch before the query was changed or its state rebuilt, and which in words.
    """
    read = (source_part for scan in plan.relation.leaves for source_part in (scan.parts or (scan.source,)))
    sources = {source_part.name: script.with_options(source_part) for source_part in read}
    tables: dict[str, pa.Table] = {}
    malformed: list[Unreadable] = []
    truncated = -1 if log.is_whole else log.batches[0]
    uncertain = truncated if change is None else max(truncated, change[0])
    unknown = [_truncation_note(log)] if uncertain == truncated >= 0 else []
    if change is not None and uncertain > truncated:
        unknown = [_change_note(*change)]
    for source in sources.values():
        rows = _rows(spark, script, source, log, storage)
        tables[source.name], bad = _split_malformed(source, rows)
        malformed += bad
        unknown += _file_loss_notes(source, log)
        unknown += _record_loss_notes(source, tables[source.name], len(bad), log)
    watermarks = _external_watermarks(plan, log, storage)
    batches = tuple(
        Batch(
            {n: t.filter(pc.equal(t.column(_BATCH), batch)).drop_columns([_BATCH]) for n, t in tables.items()},
            {NOW: log.clocks[batch], **watermarks.get(batch, {})},
            False,
            batch,
        )
        for batch in log.batches
    )
    waiting = {
        name: table.filter(table.column(_BATCH).is_null()).drop_columns([_BATCH]) for name, table in tables.items()
    }
    return InputHistory(batches, tuple(malformed), waiting, tuple(unknown), uncertain)


def _rows(spark: SparkSession, script: Script, source: Source, log: OffsetLog, storage: Storage) -> pa.Table:
    """All rows of a source, each with its batch and where it was read."""
    frame = replay_frame(spark, script, whole_topics(source), storage)
    if source_format(source).has_partitions and PLACE not in frame.columns:
        raise refuse_trace(source, "its values are read as they are, so a record cannot be identified")
    names = (*(f.name for f in source.fields), CHANGE, PARTITION, REASON, VALUE)
    columns = [F.col(quote(name)) for name in names if name in frame.columns]
    place = F.col(quote(PLACE)) if PLACE in frame.columns else place_of(file=F.input_file_name())
    parts = {name: place.getField(name) for name in ("file", "topic", "partition", "offset")}
    of = F.concat(parts["topic"], F.lit("-"), parts["partition"].cast("string"))
    order = F.struct(*order_of_files(frame, source), F.monotonically_increasing_id()).alias("#order")
    shown = frame.select(
        *columns, parts["file"].alias("#file"), parts["offset"].alias("#offset"), of.alias("#of"), order
    )
    try:
        return _assign_batches(
            source,
            _in_order(shown.toArrow()),
            log,
            is_static=is_static(source) and not copy_of(source, storage, read_settings(spark, source)).is_dir(),
        )
    except PySparkException as error:
        raise refuse_trace(source, str(error).strip().partition("\n")[0]) from error


def _in_order(table: pa.Table) -> pa.Table:
    """The rows in the order in which they arrived."""
    keys = table.select(["#order"]).flatten()
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    return table.drop_columns(["#order"]).take(order)


def _assign_batches(source: Source, table: pa.Table, log: OffsetLog, *, is_static: bool) -> pa.Table:
    """Rows with their batch, and where they were read in words; a table that Spark looks up exists from the start."""
    files = [None if path is None or not path else plain_path(path) for path in table.column("#file").to_pylist()]
    offsets, parts = table.column("#offset").to_pylist(), table.column("#of").to_pylist()
    batches: list[int | None] = []
    places: list[str] = []
    for file, offset, part in zip(files, offsets, parts, strict=True):
        if part is not None and offset is not None:
            batches.append(log.batch_of(part, offset))
            topic, _, number = part.rpartition("-")
            places.append(f"{topic}, partition {number}, offset {offset}")
        else:
            batches.append(log.batches[0] if is_static else log.files.get(file or ""))
            places.append(file or "")
    fields = [f for f in source.fields if f.name in table.column_names]
    columns = {f.name: _cast_column(table.column(f.name), arrow_type(f.type)) for f in fields}
    if source.kind == "table":
        changes = (
            table.column(CHANGE) if CHANGE in table.column_names else pa.array(["+"] * table.num_rows, pa.string())
        )
        columns[CHANGE] = pc.fill_null(changes.cast(pa.string()), "+")
    passthrough = {name: table.column(name) for name in (PARTITION, REASON, VALUE) if name in table.column_names}
    return pa.table(
        {**columns, **passthrough, WHERE: pa.array(places, pa.string()), _BATCH: pa.array(batches, pa.int64())}
    )


def _cast_column(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)


def _split_malformed(source: Source, table: pa.Table) -> tuple[pa.Table, list[Unreadable]]:
    """The readable rows, and the descriptions of the others."""
    if REASON not in table.column_names:
        return table, []
    bad = python_rows(table.filter(table.column(REASON).is_valid()).select([REASON, VALUE, WHERE, _BATCH]))
    good = table.filter(table.column(REASON).is_null()).drop_columns([REASON, VALUE])
    return good, [Unreadable(source.name, row[_BATCH], row[WHERE], row[REASON], _text(row[VALUE])) for row in bad]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value or "")


def _mark_file(storage: Storage, file: str) -> Storage | None:
    """The file of watermarks of that name, in a storage or, moved since, on this machine; None for any other file."""
    folder, _, name = file.rpartition("/")
    above, _, query = folder.rpartition("/")
    if not above.endswith("/marks"):
        return None
    return Path(file) if is_local(storage) else storage / "marks" / query / name


def _external_watermarks(plan: QueryPlan, log: OffsetLog, storage: Storage) -> dict[int, dict[str, int]]:
    """Marks from outside, by batch, as the query calls their columns."""
    column_names = {name: column for column, name in scan_names(plan).items()}
    watermarks: dict[int, dict[str, int]] = {}
    for file, batch in log.files.items():
        path = _mark_file(storage, file)
        if path is not None and path.is_file():
            for line in path.read_text("utf-8").splitlines():
                record: dict[str, Any] = json.loads(line)
                watermarks.setdefault(batch, {})[column_names.get(str(record["column"]), str(record["column"]))] = int(
                    record["value"]
                )
    return watermarks


def _file_loss_notes(source: Source, log: OffsetLog) -> Iterable[str]:
    """Notes about files of a source that were read and are gone."""
    path = source.lowercase_options.get("path")
    if path is None or "://" in local_path(path):
        return
    folder = local_path(path).rstrip("/")
    missing = [file for file in log.files if file.startswith(f"{folder}/") and not Path(file).exists()]
    if missing:
        files = "1 file" if len(missing) == 1 else f"{len(missing):,} files"
        of = f"of {source.name} that the query has read {'is' if len(missing) == 1 else 'are'} gone"
        yield f"{files} {of}, such as {missing[0]}: of such rows and the watermarks they moved nothing can be known."


def _record_loss_notes(source: Source, table: pa.Table, malformed: int, log: OffsetLog) -> Iterable[str]:
    """Notes about records that topics no longer have, and about static tables, known only as they are now."""
    if is_static(source):
        yield f"{source.name} is shown as it is now; the query has seen it as it was."
    if PARTITION in table.column_names:
        topics = set(pc.unique(table.column(PARTITION)).to_pylist()) | {
            partition for partition in log.offsets if partition.rpartition("-")[0] in source_format(source).topics
        }
        ends = {partition: max(log.offsets[partition].values()) for partition in topics if partition in log.offsets}
        expected = sum(end - log.begin.get(partition, 0) for partition, end in ends.items())
        available = table.num_rows - table.column(_BATCH).null_count + malformed
        if available < expected:
            reason = "they were compacted or are too old, or never were rows"
            yield f"{expected - available:,} of {expected:,} records of {source.name} are not there any more: {reason}."


def _change_note(batch: int, change: str) -> str:
    consequence = "of rows that came until then, this is what the query does with them as it is now"
    before = "which of them were late before, and what came out of them"
    return f"{change.capitalize()} after batch {batch}: {consequence}; {before}."


def _truncation_note(log: OffsetLog) -> str:
    consequence = "their rows are shown as if all had arrived in that batch, and which of them were late is not known"
    return f"Spark has forgotten the batches before {log.batches[0]}: {consequence}."


_PLACE = "#place"


def session_zone(spark: SparkSession) -> str:
    """The time zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


@contextmanager
def evaluate_on_spark(spark: SparkSession) -> Generator[None]:
    """Let Spark evaluate meanwhile what this process cannot."""
    types: dict[str, pa.DataType] = {}

    def evaluate(sql: str, rows: pa.Table) -> pa.Array:
        if not rows.num_rows and sql in types:
            return pa.array([], types[sql])
        placed = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        table = spark.createDataFrame(placed).selectExpr(f"{sql} AS value", f"`{_PLACE}`").toArrow().sort_by(_PLACE)
        types[sql] = table.schema.field("value").type
        return pa.concat_arrays([*table.column("value").chunks, pa.array([], types[sql])])

    token = SPARK_EVALUATOR.set(evaluate)
    try:
        is_ansi = str(spark.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"
        with in_session(session_zone(spark), is_ansi=is_ansi):
            yield
    finally:
        SPARK_EVALUATOR.reset(token)
