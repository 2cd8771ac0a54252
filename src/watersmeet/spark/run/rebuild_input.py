"""Past input of a query as streams, one file per batch and source, and how far back a state reaches.

Every source of the replay has as many files as there are batches, and takes one at a time. So all of them go through
the same batches together, as they did when these were new.

A state reaches back to the first batch of which a row may still be alive, or may count for one that is.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import OFFSETS, Source
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.formats import history_source, live_source, source_format
from watersmeet.locations import Storage, is_local, local_path, location_of
from watersmeet.logical.nodes import Script
from watersmeet.metrics.progress import Progress
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.state.state_schema import Reach
from watersmeet.physical.change import NamedIdentity
from watersmeet.schema import quote
from watersmeet.spark.connectors.history import is_lake, rows_after, rows_before
from watersmeet.spark.connectors.malformed import (
    PLACE,
    count_malformed,
    decode_path,
    place_of,
    readable_rows,
)
from watersmeet.spark.connectors.reading import Reads, is_static, order_of_files, read_source
from watersmeet.spark.connectors.static import copy_of, read_settings
from watersmeet.spark.private.files import copy_tree, delete_tree, set_time
from watersmeet.spark.state.offset_log import OffsetLog, is_in

WATERMARKS_SCHEMA = "column STRING, value BIGINT"
_BATCH, _ORDER = "watersmeet_batch", "watersmeet_order"
_ONE = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}


@dataclass(frozen=True)
class ReplayRange:
    """The batches that are replayed, by the log of the checkpoint.

    They are those from ``begin`` on, with the ``watermarks`` before it.
    """

    log: OffsetLog
    batches: tuple[int, ...]
    begin: int
    watermarks: Watermarks

    @property
    def is_truncated(self) -> bool:
        """Whether batches would have to be replayed that Spark does not remember as such."""
        return self.begin < self.log.batches[0]

    @property
    def steps(self) -> int:
        """In how many batches they are replayed: watermarks come before all of them."""
        return len(self.batches) + bool(self.watermarks)

    def files(self, path: str) -> dict[str, int]:
        """The files of a path that are replayed, each with its batch."""
        older = frozenset[str]() if self.is_truncated else self.log.older
        replayed = {f: batch for f, batch in self.log.files.items() if batch in self.batches and f not in older}
        return {file: batch for file, batch in replayed.items() if is_in(file, path)}

    def step_of(self, batch: int) -> int:
        """The batch of the replay that a batch of the old query becomes."""
        return self.batches.index(batch) + bool(self.watermarks)


def check_replayable(query: str, sources: Sequence[Source], replay: ReplayRange) -> None:
    """Refuse what cannot be read again: sources that forget, and files that are gone."""
    for source in (part for each in sources if not is_static(each) for part in _parts(each)):
        path = source.lowercase_options.get("path")
        if is_lake(source) or (path is None and not source_format(source).has_partitions):
            raise input_gone(query, source.name, f"{source.format} cannot be read twice")
        if path is None or "://" in local_path(path):
            # Whether it is there is seen when it is read.
            continue
        missing = [file for file in replay.files(path) if not Path(file).exists()]
        if missing:
            more = f" and {len(missing) - 1:,} more are" if len(missing) > 1 else " is"
            raise input_gone(query, source.name, f"the file {missing[0]}{more} gone")


def _parts(source: Source) -> tuple[Source, ...]:
    """The parts of a source that are read one after the other: its history and the stream itself, or it alone."""
    return (source,) if source.history is None else (history_source(source), live_source(source))


def input_gone(query: str, source: str, reason: str) -> WatersmeetError:
    """The refusal of a past that cannot be read again."""
    return refuse("PAST_IS_GONE", query=query, source=source, reason=reason)


def replay_stream(
    spark: SparkSession,
    script: Script,
    source: Source,
    storage: Storage,
    replay: ReplayRange,
    folder: Storage,
    query: str,
) -> DataFrame:
    """The rows that a source had in these batches, as a stream of them."""
    try:
        frame = _read_replay(spark, script, source, storage, replay, folder, query)
        frame = frame.where(F.col(_BATCH).isNotNull())
        raw = folder / "raw"
        ordered = frame.repartition(_BATCH).sortWithinPartitions(_BATCH, _ORDER).drop(_ORDER)
        ordered.write.partitionBy(_BATCH).parquet(location_of(raw))
        rows = frame.drop(_BATCH, _ORDER)
        rows.limit(0).coalesce(1).write.parquet(location_of(folder / "none"))
    except PySparkException as error:
        raise input_gone(query, source.name, str(error).strip().partition("\n")[0]) from error
    _write_batch_files(raw, next(iter((folder / "none").glob("part-*"))), folder / "batches", replay.steps)
    return spark.readStream.schema(rows.schema).options(**_ONE).parquet(location_of(folder / "batches"))


def _read_replay(
    spark: SparkSession,
    script: Script,
    source: Source,
    storage: Storage,
    replay: ReplayRange,
    folder: Storage,
    query: str,
) -> DataFrame:
    """The rows of a source, each with its batch of the replay, and its place in the order of arrival."""
    if is_static(source):
        copy = copy_of(source, storage, read_settings(spark, source))
        parts = [replace(source, options={**source.options, "path": location_of(copy)})]
        frames = [replay_frame(spark, script, source, storage)]
    else:
        parts = [_limit_part(part, replay, _links(folder, number)) for number, part in enumerate(_parts(source))]
        frames = [read_source(cast("SparkSession", _InBatches(spark)), script, part) for part in parts]
        if source.history is not None:
            before, after = frames
            frames = [rows_before(source, before, parts[0], after.schema), rows_after(source, after)]
        frames = [count_malformed(source, frame, "drop") for frame in frames]
    placed: list[DataFrame] = []
    for number, (part, frame) in enumerate(zip(parts, frames, strict=True)):
        if source_format(part).has_partitions and PLACE not in frame.columns:
            raise input_gone(query, source.name, "values are read as they are, so a record cannot be identified")
        place = F.col(quote(PLACE)) if PLACE in frame.columns else place_of(file=F.input_file_name())
        of_file = order_of_files(frame, part) or [F.lit(None).cast(type_) for type_ in ("bigint", "string", "bigint")]
        order = [F.lit(number), *of_file, F.monotonically_increasing_id()]
        order = F.struct(*(value.alias(f"{n}") for n, value in enumerate(order)))
        batch = _batch(part, place, replay, _links(folder, number))
        placed.append(readable_rows(frame.withColumn(_ORDER, order).withColumn(_BATCH, batch)))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), placed)


def _links(folder: Storage, part: int) -> Storage:
    return folder / f"links-{part}"


def _limit_part(part: Source, replay: ReplayRange, links: Storage) -> Source:
    """A part of a source as one of the files or offsets that are replayed."""
    return _link_files(part, replay, links) if "path" in part.lowercase_options else _limit_offsets(part, replay)


def empty_stream(rows: DataFrame, steps: int, folder: Storage) -> DataFrame:
    """A stream of as many batches without rows, for a source that the query did not read before."""
    spark = rows.sparkSession
    spark.createDataFrame([], rows.schema).coalesce(1).write.parquet(location_of(folder / "none"))
    _write_batch_files(folder / "raw", next(iter((folder / "none").glob("part-*"))), folder / "batches", steps)
    return spark.readStream.schema(rows.schema).options(**_ONE).parquet(location_of(folder / "batches"))


def watermark_stream(
    spark: SparkSession, watermarks: Mapping[int, Watermarks], steps: int, folder: Storage
) -> DataFrame:
    """Marks from outside, by batch of the replay, as a stream of them."""
    folder.mkdir(parents=True)
    for step in range(steps):
        lines = [json.dumps({"column": name, "value": value}) for name, value in watermarks.get(step, {}).items()]
        _put(folder / f"{step:06}.json", "".join(f"{line}\n" for line in lines), step)
    return spark.readStream.schema(WATERMARKS_SCHEMA).options(**_ONE).json(location_of(folder))


def _link_files(source: Source, replay: ReplayRange, links: Storage) -> Source:
    """The source as one of links to those of its files that are replayed, under the names that they have."""
    root = Path(local_path(source.lowercase_options["path"])).absolute()
    links.mkdir(parents=True)
    if not is_local(links) or not root.is_dir() or "basepath" in source.lowercase_options:
        # A storage without links, a pattern, a file, another machine's, or a folder in one that Spark must see, too:
        # all of it is read, and what is not asked for left out.
        return source
    for file in replay.files(source.lowercase_options["path"]):
        link = links / Path(file).relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    options = {name: value for name, value in source.options.items() if name.lower() != "path"}
    return replace(source, options={**options, "path": location_of(links)})


def _limit_offsets(source: Source, replay: ReplayRange) -> Source:
    """The source as one of those offsets of its topics that are replayed."""
    first, last = replay.batches[0], replay.batches[-1]
    log = replay.log
    bounds: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]] = ({}, {})
    topics = set(source_format(source).topics)
    for name, ends in log.offsets.items():
        topic, _, number = name.rpartition("-")
        if topics and topic not in topics:
            continue
        before = [end for batch, end in ends.items() if batch < first]
        bounds[0].setdefault(topic, {})[number] = max(before) if before else log.begin.get(name, -2)
        bounds[1].setdefault(topic, {})[number] = ends.get(last, -1)
    offset_options = {"startingOffsets": json.dumps(bounds[0]), "endingOffsets": json.dumps(bounds[1])}
    return replace(source, options={**whole_topics(source).options, **offset_options, "failOnDataLoss": "true"})


def _batch(source: Source, place: Column, replay: ReplayRange, links: Storage) -> Column:
    """In which batch of the replay a row came; NULL: in none."""
    if "path" in source.lowercase_options:
        root, files = (
            Path(local_path(source.lowercase_options["path"])).absolute(),
            replay.files(source.lowercase_options["path"]),
        )
        if is_local(links) and root == links.absolute():
            log = replay.log.files
            batch_by_file = {str(link): log[str(link.readlink())] for link in links.rglob("*") if link.is_symlink()}
        else:
            batch_by_file = files
        batch_map = F.create_map(
            *(F.lit(x) for file, batch in batch_by_file.items() for x in (file, replay.step_of(batch)))
        )
        return (
            F.try_element_at(batch_map, decode_path(place.getField("file")))
            if batch_by_file
            else F.lit(None).cast("int")
        )
    of = F.concat(place.getField("topic"), F.lit("-"), place.getField("partition").cast("string"))
    offset = place.getField("offset")
    whens = [
        F.when((of == name) & (offset >= replay.log.begin.get(name, 0)) & (offset < ends[batch]), replay.step_of(batch))
        for name, ends in replay.log.offsets.items()
        for batch in sorted(ends)
        if batch in replay.batches
    ]
    return reduce(lambda a, b: F.coalesce(a, b), whens, F.lit(None).cast("int"))


def _write_batch_files(raw: Storage, none: Storage, folder: Storage, steps: int) -> None:
    """A file for each batch of the replay, in their order."""
    folder.mkdir()
    for step in range(steps):
        # Object stores have no times to set: there, files of one second come in the order of their names.
        file = folder / f"{step:06}.parquet"
        parts = list((raw / f"{_BATCH}={step}").glob("part-*"))
        if parts:
            parts[0].rename(file)
        else:
            copy_tree(none, file)
        _set_file_time(file, step)
    delete_tree(raw)


def _put(file: Storage, text: str, step: int) -> None:
    file.write_text(text, "utf-8")
    _set_file_time(file, step)


def _set_file_time(file: Storage, step: int) -> None:
    """Spark takes files in the order of their times."""
    moment = int(time.time()) // 86400 * 86400 - 86400 + step
    set_time(file, moment)


class _InBatches:
    """A session that reads as a batch what it would read as a stream."""

    def __init__(self, spark: SparkSession) -> None:
        self.read = self.readStream = spark.read


def replay_frame(spark: SparkSession, script: Script, source: Source, storage: Storage) -> DataFrame:
    """All rows that a source has now, as a batch; those that cannot be read are marked as such."""
    copy = copy_of(source, storage, read_settings(spark, source)) if is_static(source) else None
    if copy is not None and copy.is_dir():
        return spark.read.parquet(location_of(copy))
    format_ = source_format(source)
    if not is_static(source) and "path" not in source.lowercase_options and not format_.has_partitions:
        raise refuse_trace(source, f"{source.format} cannot be read again")
    reads: Reads = "declared" if source.history is None else "all now"
    frame = read_source(cast("SparkSession", _InBatches(spark)), script, source, reads)
    return count_malformed(source, frame, "drop")


def refuse_trace(source: Source, reason: str) -> WatersmeetError:
    """The refusal to trace the rows of a source."""
    return refuse("NOT_TOLD", query=f"the queries that read {source.name}", reason=reason)


def whole_topics(source: Source) -> Source:
    """The source as a batch: topics from their first existing record to the last."""
    if not source_format(source).has_partitions:
        return source
    # A history that ends at offsets ends where the topic is first read.
    starts = () if source.history is not None and source.history.until.lower() == OFFSETS else ("startingoffsets",)
    options = {
        name: value
        for name, value in source.options.items()
        if name.lower()
        not in (*starts, "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "failondataloss")
    }
    return replace(source, options={**options, "failOnDataLoss": "false"})


BatchTimes = tuple[int, Watermarks]
"""A batch, and the latest time of each column up to it."""


@dataclass(frozen=True)
class ReplayStart:
    """The first batch that matters, and the watermarks that there were before it."""

    batch: int = 0
    watermarks: Watermarks = field(default_factory=dict[str, int])


def replay_start(
    now: NamedIdentity, batch_times: Sequence[BatchTimes], reach_of: Callable[[str], Reach]
) -> ReplayStart:
    """The first batch that matters to the last of those that were ``batch_times``; all do, if nothing is known.

    ``reach_of``: how long rows of an operator live, by its name in identities.
    """
    if not batch_times:
        return ReplayStart()
    stages, lags = now.identity["stages"], lags_of(now)

    def watermarks_at(place: int) -> dict[str, int]:
        return {c: t if t == END_OF_INPUT else t - lags[c] for c, t in batch_times[place][1].items() if c in lags}

    def last_expired(number: int, at: int) -> int:
        """The last place up to which no row matters to a stage at that place; -1 if every row may matter."""
        stage, watermarks = stages[number], watermarks_at(at)
        reach, position = reach_of(stage["operator"]["family"]), at
        for port in range(len(stage["ports"])):
            limits = [
                (c, watermarks[watermark] - far)
                for c, watermark, far in reach(stage["operator"], port)
                if watermark in watermarks
            ]
            # The first watermark to get there ends a life.
            positions = [_last_before(batch_times[: at + 1], column, limit) for column, limit in limits]
            position = min(position, max(positions, default=-1))
        for read in (read for port in stage["ports"] for read in port["reads"] if read.startswith("stage ")):
            # The stages below must have been right when they emitted the first row.
            position = (
                position if position < 0 else min(position, last_expired(int(read.removeprefix("stage ")), position))
            )
        return position

    place = min(
        (last_expired(number, len(batch_times) - 1) for number in range(len(stages))), default=len(batch_times) - 1
    )
    return ReplayStart() if place < 0 else ReplayStart(batch_times[place][0] + 1, watermarks_at(place))


def _last_before(batch_times: Sequence[BatchTimes], column: str, limit: int) -> int:
    """The last place at which no row of a column had reached a limit."""
    return max((n for n, (_, times) in enumerate(batch_times) if times.get(column, limit - 1) < limit), default=-1)


def lags_of(query: NamedIdentity) -> dict[str, int]:
    """The lags of all watermarked columns, by their canonical names."""
    return {
        column: lag
        for stage in query.identity["stages"]
        for port in stage["ports"]
        for column, lag in port["lags"].items()
    }


def times_after_batches(
    was: NamedIdentity, now: NamedIdentity, history: Sequence[Progress], last: int
) -> list[BatchTimes]:
    """The watermarks after each batch in the history of a query, in the columns of the query now.

    Nothing, if the history does not tell of the last batch, or of all columns.
    """
    lags, scans = lags_of(was), match_scans(was, now)
    records = {progress.batch: progress for progress in history if progress.batch <= last}
    if last not in records or not all(re.fullmatch(r"\d+\.[^.#]+", column) for column in lags):
        return []
    names = {column: f"{was.alias(column.partition('.')[0])}.{column.partition('.')[2]}".lower() for column in lags}
    batch_times: list[BatchTimes] = []
    for batch in sorted(records):
        own = {name.lower(): watermark for name, watermark in records[batch].own.items()}
        times: dict[str, int] = {}
        for column, name in names.items():
            number, _, rest = column.partition(".")
            if name in own and number in scans:
                watermark = own[name]
                times[f"{scans[number]}.{rest}"] = watermark if watermark == END_OF_INPUT else watermark + lags[column]
        batch_times.append((batch, times))
    columns = {name.lower() for name in records[last].own}
    return batch_times if columns <= set(names.values()) else []


def match_scans(was: NamedIdentity, now: NamedIdentity) -> dict[str, str]:
    """The scans of a query as it was by their numbers, and which they are now; those that have gone are left out."""
    free = {number: (words["source"].lower(), words["alias"].lower()) for number, words in now.words.items()}
    scans: dict[str, str] = {}
    for is_same in (_is_same, _has_source):
        for number, words in was.words.items():
            scan = words["source"].lower(), words["alias"].lower()
            fits = (
                next((n for n, candidate in free.items() if is_same(scan, candidate)), None)
                if number not in scans
                else None
            )
            if fits is not None:
                scans[number] = fits
                del free[fits]
    return scans


def _is_same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one == other


def _has_source(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[0] == other[0]


def sources_by_name(identity: Identity) -> Mapping[str, Identity]:
    """The sources of a query by name."""
    return {part["source"]: part for source in identity["sources"] for part in source["reads"]}
