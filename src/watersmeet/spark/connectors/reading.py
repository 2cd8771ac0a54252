"""DataFrames of a script's sources, files packed in workers, and input files that are missing.

Sources are given by name, or read by Spark as CREATE STREAM or CREATE TABLE says. For files that workers read, Spark
still finds the files and remembers which it has had.

A file source records the files of a batch before it reads them. If one is gone before the batch is finished, Spark
would repeat the batch without it, so a start looks for such files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, StructType

from watersmeet.catalog import Source
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats import OWN, check_history, check_source, feed_of, history_source, source_format
from watersmeet.formats.base import SourceFormat
from watersmeet.formats.records import ddl
from watersmeet.locations import has_scheme, local_path
from watersmeet.logical.nodes import Query, Script, scans
from watersmeet.logical.passes.settings import JSON_IN_WORKERS
from watersmeet.operators.core.changes import CHANGE
from watersmeet.spark.connectors import decode_changes, source_connector
from watersmeet.spark.connectors.history import Phase, check_columns, read_history
from watersmeet.spark.connectors.malformed import decode_path, error_columns, fit_column
from watersmeet.spark.connectors.records import (
    DELETE,
    INSERT,
    is_deleted,
    key_error_columns,
    key_of_record,
    partition_of,
    place_of_record,
)
from watersmeet.spark.exchange.columns import FILE, PATH, START, TIME, Batches, ColumnPipeline
from watersmeet.spark.exchange.packing import Pack
from watersmeet.spark.private.checkpoint_files import local_copies
from watersmeet.spark.private.files import Folder, file_exists, folder_of
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.refusals import is_of_database, is_unknown_format, unreadable_source

Reads = Literal["declared", "all now"] | Phase
"""The mode of reading: as ``declared``, a stream as such; or ``all now``, its current rows, as a batch. Of a stream
with a history also the phase: one without is read as declared."""


def read_sources(
    spark: SparkSession, script: Script, frames: Mapping[str, DataFrame], reads: Reads = "declared"
) -> dict[str, DataFrame]:
    """The DataFrame of every source that the script's queries read; all refusals together.

    Names compare without case. A source goes by the name of its declaration, else by that of its DataFrame.
    """
    declared = {source.name.lower(): source for source in script.sources}
    names = {name.lower(): name for name in frames}
    # Inputs of views are included, and names of views are not sources.
    used = dict.fromkeys(scan.source.lower() for query in _all_queries(script) for scan in scans(query.relation))
    inputs: dict[str, DataFrame] = {}
    refusals: list[Refusal] = []
    for name in used:
        source = declared.get(name)
        try:
            if name in names:
                frame = frames[names[name]]
                inputs[names[name] if source is None else source.name] = _as_declared(script, source, frame)
            elif source is not None:
                inputs[source.name] = read_source(spark, script, source, reads)
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)
    return inputs


def read_source(spark: SparkSession, script: Script, source: Source, reads: Reads = "declared") -> DataFrame:
    """The stream that a declaration describes, or the batch of a table that does not change."""
    place = script.place(source.span)
    if source.format is None:
        raise refuse("MISSING_FRAME", place, source=source.name)
    if source.history is not None and reads == "declared":
        raise refuse("HISTORY_OF_A_FRAME", place, source=source.name)
    if not is_remote():
        # A Connect server has its own files and network, and reports what is missing.
        _check_path(script, source)
        if source.history is not None and reads != "live":
            _check_path(script, history_source(source))
        missing = [replace(refusal, place=place) for refusal in source_format(source).check_reachable()]
        if missing:
            raise WatersmeetError(missing)
    try:
        with suppress_logs():
            return _analyze(_read(spark, source, reads))
    except WatersmeetError as error:
        raise WatersmeetError([replace(refusal, place=place) for refusal in error.refusals]) from error
    except Exception as error:
        if not isinstance(error, PySparkException) and not is_unknown_format(error) and not is_of_database(error):
            raise
        raise unreadable_source(source, place, error) from error


def _all_queries(script: Script) -> Iterator[Query]:
    """The queries of a script, and those of all views in it."""
    waiting = [*script.queries, *(view.query for view in script.views)]
    while waiting:
        query = waiting.pop()
        waiting += [view.query for view in query.views]
        yield query


def resolve_options(script: Script) -> Script:
    """The script as Spark reads it: every option that goes to Spark has gone through here.

    Paths of a Connect server are its own affair, so that they stay as they are written.
    """
    return script.resolve_options(is_here=not is_remote())


def is_static(source: Source) -> bool:
    """Whether a source is declared as a table that does not change.

    >>> is_static(Source("countries", (), kind="table", options={"static": "true"}))
    True
    """
    return source.kind == "table" and source.lowercase_options.get("static", "false").lower() == "true"


def _read(spark: SparkSession, source: Source, reads: Reads) -> DataFrame:
    wrong = [*check_source(source), *check_history(source)]
    if wrong:
        raise WatersmeetError(wrong)
    once = replace(source, kind="table", options={**source.options, "static": "true"})
    if source.history is not None:
        if reads != "live":
            check_columns(spark, source)
        phase = None if reads == "all now" else "live" if reads == "live" else "history"
        return read_history(source, phase, lambda part: _read(spark, part, reads))
    return decode_changes(source, _load_source(spark, once if reads == "all now" else source))


def read_now(spark: SparkSession, source: Source) -> DataFrame:
    """The rows that a stream has now, as a batch."""
    return _read(spark, source, "all now")


def _load_source(spark: SparkSession, source: Source) -> DataFrame:
    """The rows of a source, before their changes are decoded."""
    connector, feed = source_connector(source), feed_of(source)
    options = {name: value for name, value in source.options.items() if name.lower() not in OWN}
    return connector.load(spark, feed.schema(connector.format), {**feed.options, **options})


def load(spark: SparkSession, source: Source, schema: str | None, options: Mapping[str, str]) -> DataFrame:
    """Read a source with Spark. Some formats take a schema; others bring their own and refuse to be given one."""
    read = spark.read if is_static(source) else spark.readStream
    reader = read.format(str(source.format)).options(**options)
    if schema is None:
        return reader.load()
    try:
        return _analyze(reader.schema(schema).load())
    except (AnalysisException, PySparkException) as error:
        if "schema" not in str(error).lower() or "user-specified" not in str(error).lower():
            raise
        # A reader keeps a schema that it was given.
        return load(spark, source, None, options)


class ColumnReader(Protocol):
    """Reads columns in a worker."""

    def read(self, address: str, copy: str | None = None) -> Iterator[Any]:
        """The record batches of a file. ``copy``: of a remote file, its copy on this machine."""
        ...


SourceFormatT = TypeVar("SourceFormatT", bound=SourceFormat)


@dataclass(frozen=True)
class SourceConnector(Generic[SourceFormatT]):
    """Reads a source. This class reads any Spark format; subclasses override it."""

    format: SourceFormatT

    @property
    def source(self) -> Source:
        """The source that it reads."""
        return self.format.source

    def check_exists(self, spark: SparkSession) -> Iterator[Refusal]:
        """The missing inputs, on which a query would fail in its first batch."""
        yield from ()

    def column_reader(self, columns: tuple[str, ...], schema: Any, *, recovers: bool = False) -> ColumnReader | None:
        """A reader of these columns of its files in workers, with that schema; None: only Spark can.

        ``recovers``: if a worker finds a file that only Spark can read, the query is restarted with Spark's reader.
        """
        return None

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """Read the source with Spark: as a stream, or a static table as a batch; `schema` if the format takes one."""
        return load(spark, self.source, schema, options)


def _analyze(frame: DataFrame) -> DataFrame:
    """The frame, once Spark has found nothing wrong with it: a Connect server looks when it is first asked about it."""
    _ = frame.schema
    return frame


def _as_declared(script: Script, source: Source | None, frame: DataFrame) -> DataFrame:
    """A given DataFrame, checked against the declaration if there is one."""
    if source is None:
        return frame
    if source.changes is not None:
        return _changes_given(source, frame, script.place(source.span))
    types_by_name = {f.name.lower(): f.dataType for f in frame.schema}
    wrong: list[str] = []
    for expected in cast("StructType", StructType.fromDDL(ddl(source))):
        actual = types_by_name.get(expected.name.lower())
        if actual is None:
            wrong.append(f"`{expected.name}` is missing")
        elif actual.simpleString() != expected.dataType.simpleString():
            types = [type_.simpleString().upper() for type_ in (actual, expected.dataType)]
            wrong.append(f"`{expected.name}` is {types[0]}, declared {types[1]}")
    if wrong:
        raise refuse("SCHEMA_MISMATCH", script.place(source.span), source=source.name, difference=", ".join(wrong))
    return frame


def _changes_given(source: Source, frame: DataFrame, place: Place | None) -> DataFrame:
    """The changes in a given DataFrame that has the columns of their feed."""
    feed = feed_of(source)
    if not feed.accepts([name.lower() for name in frame.columns]):
        raise refuse("SCHEMA_MISMATCH", place, source=source.name, difference=f"`{feed.wanted}` is missing")
    return decode_changes(source, frame)


def _check_path(script: Script, source: Source) -> None:
    path = source.lowercase_options.get("path")
    if path is None:
        return
    local = local_path(path)
    if "://" not in local and not any(c in local for c in "*?[{") and not Path(local).exists():
        raise refuse("PATH_NOT_FOUND", script.place(source.span), source=source.name, path=local)


ENTRY = {"path", "timestamp", "batchId"}
"""The fields of a file in the log of a file source."""
MISSING_INPUT = "spark.sql.files.ignoreMissingFiles"


def check_inputs(spark: SparkSession, checkpoint: str, sources: Sequence[tuple[int, Mapping[str, str]]]) -> None:
    """Refuse to repeat a batch whose files are gone, unless their source ignores missing files.

    ``sources``: for every source, in the order of their offsets, the number of its folder and its options.
    """
    folder = folder_of(spark, checkpoint)
    offsets = _commit_offsets(folder)
    if offsets and len(offsets) != len(sources):
        return
    usual = str(spark.conf.get(MISSING_INPUT, "false"))
    gone: list[str] = []
    for (number, options), offset in zip(sources, offsets or [-1] * len(sources), strict=True):
        said = {name.lower(): value for name, value in options.items()}
        if said.get("ignoremissingfiles", usual).lower() != "true":
            gone += [file for file in _files_after(folder, f"sources/{number}", offset) if not file_exists(spark, file)]
    if gone:
        more = f" and {len(gone) - 1:,} more" if len(gone) > 1 else ""
        raise refuse("INPUT_FILE_GONE", file=local_path(unquote(gone[0])), more=more)


def _commit_offsets(folder: Folder) -> list[int]:
    """The progress of each file source, in the order of the sources; nothing: no batch is finished."""
    done = [int(name) for name in folder.names("commits") if name.isdecimal()]
    text = folder.read(f"offsets/{max(done)}") if done else None
    # A version, the metadata of the batch, and a line for every source.
    return [_number(line) for line in (text or "").split("\n")[2:]]


def _number(line: str) -> int:
    offset = _parse_line(line)
    return int(offset["logOffset"]) if "logOffset" in offset else -1


def _files_after(folder: Folder, log: str, offset: int) -> Iterator[str]:
    """The files of a file source that it has written down after that offset."""
    numbers = {name: name.removesuffix(".compact") for name in folder.names(log)}
    for name in (name for name, number in numbers.items() if number.isdecimal() and int(number) > offset):
        for entry in map(_parse_line, (folder.read(f"{log}/{name}") or "").split("\n")[1:]):
            if entry.keys() >= ENTRY and entry["batchId"] > offset:
                yield str(entry["path"])


def _parse_line(line: str) -> dict[str, Any]:
    """A line of a log, if it is an object; Spark itself reports one that is damaged."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


FILE_DDL = f"STRUCT<{TIME}: BIGINT, {PATH}: STRING, {START}: BIGINT>"


def with_files(frame: DataFrame, source: Source) -> DataFrame:
    """A stream with the file of each row in `FILE`; unchanged if its rows do not come straight from files.

    A batch keeps its order, which the caller may have chosen.
    """
    if not frame.isStreaming:
        return frame
    try:
        with suppress_logs():
            files = frame.withColumn(FILE, file_of_row(frame, source.lowercase_options))
            # Spark looks for the columns only now, if it runs elsewhere.
            _ = files.schema
    except PySparkException:
        return frame
    return files


def order_of_files(frame: DataFrame, source: Source) -> list[Column]:
    """By what rows of a batch come in the order in which a stream of the same files has them; none: they are of none.

    Rows that are equal in it are in order as they are read.
    """
    try:
        with suppress_logs():
            file = file_of_row(frame, source.lowercase_options)
            _ = frame.select(file).schema
    except PySparkException:
        return []
    return [file.getField(TIME), decode_path(file.getField(PATH)), file.getField(START)]


def file_of_row(frame: DataFrame, options: Mapping[str, str]) -> Column:
    """The file that a row of a frame is of, and where in it the part begins that a task reads."""
    metadata = frame.metadataColumn("_metadata")
    time = F.unix_micros(metadata.getField("file_modification_time"))
    return F.struct(
        (-time if is_latest_first(options) else time).alias(TIME),
        metadata.getField("file_path").alias(PATH),
        metadata.getField("file_block_start").alias(START),
    )


def is_latest_first(options: Mapping[str, str]) -> bool:
    """Whether the latest file comes first."""
    return options.get("latestfirst", "false").lower() == "true"


FILES_SCHEMA = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
MISSING = "spark.sql.files.ignoreMissingFiles"
SETTINGS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    MISSING: "false",
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
"""Settings of a session under which workers read as Spark does."""


def find_unread(
    spark: SparkSession,
    script: Script,
    frames: Mapping[str, DataFrame],
    by_spark: Collection[str] = (),
    *,
    with_records: bool = True,
) -> dict[str, DataFrame]:
    """For the sources that workers may read as columns, and are not ``frames``, the stream of what they read.

    That is the paths of its files, or its records as Spark fetches them. Sources ``by_spark`` are left to it. A remote
    file is copied by the executor, with the settings and credentials of Spark's own scan.
    """
    if is_remote():
        # A Connect server has its own files, about which nothing is known before rows flow.
        return {}
    sources = [source for source in script.sources if source.name not in frames and not _has_changes(source)]
    sources = [source for source in sources if source.history is None and source.name not in by_spark]
    plain = [source for source in sources if source_format(source).can_read_columns()]
    files = [source for source in plain if not source_format(source).has_partitions]
    has_records = with_records and _decodes_json(spark, script)
    records = [source for source in plain if source not in files] if has_records else []
    return {**_find_files(spark, files), **{source.name: _load_source(spark, source) for source in records}}


def _decodes_json(spark: SparkSession, script: Script) -> bool:
    """Whether workers decode JSON: as the script says, else the session."""
    said = [setting.value for setting in script.settings if setting.name.lower() == JSON_IN_WORKERS]
    return [str(spark.conf.get(JSON_IN_WORKERS, "off")), *said][-1].strip().lower() == "on"


def _find_files(spark: SparkSession, plain: Sequence[Source]) -> dict[str, DataFrame]:
    """The streams of the paths of files: Spark's own file source with all its options, without content."""
    if any(spark.conf.get(name, usual) != usual for name, usual in SETTINGS.items()):
        return {}
    reader = {s.name: spark.readStream.format("binaryFile").schema(FILES_SCHEMA).options(**s.options) for s in plain}
    copies = local_copies(spark, "path") if any(map(_is_remote, plain)) else None
    files = {s.name: (s, reader[s.name].load()) for s in plain if copies is not None or not _is_remote(s)}
    return {
        n: frame.select(
            "path",
            # Not from the metadata of rows: Spark would compile code for it in each batch.
            "modificationTime",
            *([] if copies is None or not _is_remote(s) else [copies.alias("copy")]),
        )
        for n, (s, frame) in files.items()
    }


def _is_remote(source: Source) -> bool:
    return has_scheme(local_path(source.lowercase_options.get("path", "")))


def _has_changes(source: Source) -> bool:
    """Whether rows of a table carry changes, which only Spark's reader decodes, or are not a stream."""
    return source.kind == "table" and (
        source.changes is not None or source.field(CHANGE) is not None or is_static(source) or source.is_static
    )


@dataclass(frozen=True)
class PackFiles:
    """Reads files, with ``reader``, goes the way of their rows to the exchange, and packs them."""

    pack: Pack
    reader: ColumnReader
    columns: ColumnPipeline
    latest_first: bool

    def __call__(self, batches: Batches) -> Batches:
        """Pack the files of one map task."""
        if FILE in self.pack.names:
            return self.pack(self._rows_with_files(batches))
        return self.pack(self.columns(part for batch in batches for _, parts in self._files(batch) for part in parts))

    def _files(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.Array, Iterator[pa.RecordBatch]]]:
        """The files of a batch, each as its rows have it, with its rows. A copy is deleted once it is read."""
        paths, times = batch.column(0), batch.column(1).cast(pa.int64()).to_numpy()
        times = pa.array(-times if self.latest_first else times)
        # A worker reads a file from its start.
        starts = pa.array(np.zeros(len(paths), np.int64))
        files = pa.StructArray.from_arrays([times, paths, starts], names=[TIME, PATH, START])
        copies = batch.column(2).to_pylist() if batch.num_columns > 2 else [None] * len(paths)
        for number, (path, copy) in enumerate(zip(paths.to_pylist(), copies, strict=True)):
            yield files.slice(number, 1), self.reader.read(path, copy)
            if copy is not None:
                Path(copy).unlink(missing_ok=True)

    def _rows_with_files(self, batches: Batches) -> Batches:
        """The rows as they go to the exchange, each with the file that it is of."""
        for file, parts in (found for batch in batches for found in self._files(batch)):
            for rows in self.columns(parts):
                none = pa.array(np.zeros(rows.num_rows, np.int32))
                yield rows.append_column(FILE, pa.DictionaryArray.from_arrays(none, file))


def row_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns and the key of a record, if there is one.

    For a table also ``_change``: from a condition, from a column of that name, or always ``+``.
    """
    key = key_of_record(source, frame)
    columns = [
        *cast_columns(source, frame),
        *key,
        *(error_columns(frame) or (key_error_columns(source, frame) if key else ())),
    ]
    if source.kind == "stream":
        names = {name.lower() for name in frame.columns}
        is_kafka = source_format(source).has_partitions and names.issuperset(("topic", "partition"))
        return frame.select(*columns, *((partition_of(place_of_record(frame)),) if is_kafka else ()))
    if "deletes" in source.lowercase_options:
        return frame.select(*columns, F.when(is_deleted(source), DELETE).otherwise(INSERT).alias(CHANGE))
    has_change = source.field(CHANGE) is None and any(name.lower() == CHANGE for name in frame.columns)
    return frame.select(*columns, *((F.col(CHANGE).cast("string"),) if has_change else ()))


def cast_columns(source: Source, frame: DataFrame) -> list[Column]:
    """The declared columns, in the declared types; a value that does not fit stops the query."""
    types = {field.name.lower(): field.dataType for field in frame.schema}
    return [fit_column(source, f.name, DataType.fromDDL(f.type), types.get(f.name.lower())) for f in source.fields]


def refusal_column(source: Source, reason: str, hint: str, type_: str = "boolean") -> Column:
    """A column that stops the query with a refusal when it is evaluated."""
    text = Refusal("WRONG_CHANGE", {"source": source.name, "reason": reason, "hint": hint}).to_message()
    return F.raise_error(F.lit(text)).cast(type_)
