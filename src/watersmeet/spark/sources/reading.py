"""The DataFrames of a script's sources: given by name, or read by Spark as CREATE STREAM or CREATE TABLE says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.types import StructType

from watersmeet.catalog import Source
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats import OWN, check_source, feed_of, source_format
from watersmeet.formats.feed import ddl
from watersmeet.locations import local_path
from watersmeet.plan.nodes import Query, Script, scans
from watersmeet.spark.private.told import suppress_logs
from watersmeet.spark.refusals import is_of_database, is_unknown_format, unreadable_source

Reads = Literal["declared", "all now"]
"""What is read of a source: what it is declared as, a stream as such; or ``all now``, what is there, as a batch."""


def read_sources(spark: SparkSession, script: Script, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The DataFrame of every source that the script's queries read; all refusals together.

    Names compare without case. A source goes by the name of its declaration, else by that of its DataFrame.
    """
    declared = {source.name.lower(): source for source in script.sources}
    names = {name.lower(): name for name in frames}
    # What a view reads is there under that name too, and names of views are none of sources.
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
                inputs[source.name] = read_source(spark, script, source)
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
    if not is_remote():
        # A Connect server has files and a network of its own and says itself what is missing.
        _check_path(script, source)
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
    wrong = [*check_source(source)]
    if wrong:
        raise WatersmeetError(wrong)
    once = replace(source, kind="table", options={**source.options, "static": "true"})
    format_, feed = source_format(once if reads == "all now" else source), feed_of(source)
    options = {name: value for name, value in source.options.items() if name.lower() not in OWN}
    return feed.changes(format_.load(spark, feed.schema(format_), {**feed.options, **options}))


def load(spark: SparkSession, source: Source, schema: str | None, options: Mapping[str, str]) -> DataFrame:
    """What Spark reads. Some of its sources take a schema, others bring their own; those refuse to be given one."""
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
    return feed.changes(frame)


def _check_path(script: Script, source: Source) -> None:
    path = source.lowercase_options.get("path")
    if path is None:
        return
    local = local_path(path)
    if "://" not in local and not any(c in local for c in "*?[{") and not Path(local).exists():
        raise refuse("PATH_NOT_FOUND", script.place(source.span), source=source.name, path=local)
