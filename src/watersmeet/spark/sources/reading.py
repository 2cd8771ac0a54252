"""The DataFrames of a script's sources: given by name, or read by Spark as CREATE STREAM or CREATE TABLE says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.types import StructType

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.plan.expressions import quote
from watersmeet.plan.nodes import Query, Script, scans
from watersmeet.spark.compile.frames import CHANGE
from watersmeet.spark.session import unlogged
from watersmeet.spark.sources.feeds import (
    CHANGE_TYPE,
    TIME_UNIT,
    TRUNCATE,
    also_deleted,
    debezium_changes,
    debezium_ddl,
    declared_columns,
    delta_changes,
    marked_changes,
    options_in_lower_case,
)
from watersmeet.spark.sources.records import KEY_FORMAT, VALUE_FORMAT, decoded, key_of_record

STATIC = "static"
OWN = frozenset({VALUE_FORMAT, KEY_FORMAT, TRUNCATE, TIME_UNIT, STATIC, "key", "deletes"})
"""The options of a source that are our own. All others are Spark's."""
TELLING = frozenset({"avro", "json", "orc", "parquet"})
"""Formats of files that have names for their columns, so that one may have ``_change`` or not."""

FORMATS = (
    "avro",
    "csv",
    "delta",
    "json",
    "kafka",
    "kinesis",
    "orc",
    "parquet",
    "rate",
    "rate-micro-batch",
    "socket",
    "text",
    "xml",
)


def read_sources(spark: SparkSession, script: Script, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The DataFrame of every source that the script's queries read; all refusals together."""
    declared = {source.name: source for source in script.sources}
    # What a view reads is there under that name too, and names of views are none of sources.
    used = dict.fromkeys(scan.source for query in _all_queries(script) for scan in scans(query.relation))
    found: dict[str, DataFrame] = {}
    refusals: list[Refusal] = []
    for name in used:
        try:
            if name in frames:
                found[name] = _as_declared(script, declared.get(name), frames[name])
            elif name in declared:
                found[name] = read_source(spark, script, declared[name])
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)
    return found


def read_source(spark: SparkSession, script: Script, source: Source) -> DataFrame:
    """The stream that a declaration describes, or the batch of a table that does not change."""
    place = script.place(source.span)
    if source.format is None:
        raise refuse("MISSING_FRAME", place, source=source.name)
    if not is_remote():
        # A Connect server has files of its own and says itself which are missing.
        _check_path(script, source)
    try:
        with unlogged():
            return _analysed(_read(spark, script, source))
    except WatersmeetError:
        raise
    except Exception as error:
        if not isinstance(error, PySparkException) and not is_unknown_format(error):
            raise
        raise _refusal(script, source.format, source, error) from error


def _all_queries(script: Script) -> Iterator[Query]:
    """The queries of a script, and those of all views in it."""
    waiting = [*script.queries, *(view.query for view in script.views)]
    while waiting:
        query = waiting.pop()
        waiting += [view.query for view in query.views]
        yield query


def is_static(source: Source) -> bool:
    """Whether a source is declared as a table that does not change.

    >>> is_static(Source("countries", (), kind="table", options={"static": "true"}))
    True
    """
    said = options_in_lower_case(source.options).get(STATIC, "false")
    return source.kind == "table" and said.lower() == "true"


def ddl(source: Source) -> str:
    """The columns of a source as Spark reads a schema."""
    return ", ".join(f"{quote(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in source.fields)


def first_line(error: Exception) -> str:
    """What Spark says, without the plan and the SQLSTATE that follow."""
    return str(error).split("\n", 1)[0].split(" SQLSTATE", 1)[0]


def is_unknown_format(error: Exception) -> bool:
    """Whether Spark does not know a format; it says so in errors of several classes, one of them plain Java."""
    return "DATA_SOURCE_NOT_FOUND" in str(error) or "Failed to find" in str(error)


def _read(spark: SparkSession, script: Script, source: Source) -> DataFrame:
    said = options_in_lower_case(source.options)
    options = {key: value for key, value in source.options.items() if key.lower() not in OWN}
    format_ = str(source.format).lower()
    if source.changes == "debezium":
        schema = debezium_ddl(source) if format_ == "json" else None
        return debezium_changes(script, source, _load(spark, source, options, schema))
    if source.changes == "delta":
        more = {"readChangeFeed": "true"} if format_ == "delta" else {}
        return delta_changes(source, _load(spark, source, {**more, **options}, f"{ddl(source)}, {CHANGE_TYPE} STRING"))
    if VALUE_FORMAT in said:
        records = decoded(script, source, _load(spark, source, options, None))
        return also_deleted(records, said["deletes"]) if "deletes" in said and source.kind == "table" else records
    tells = source.kind == "table" and format_ in TELLING and "deletes" not in said and source.field(CHANGE) is None
    frame = _load(spark, source, options, f"{ddl(source)}, {CHANGE} STRING" if tells else ddl(source))
    key = key_of_record(script, source, frame)
    if source.kind == "table":
        return marked_changes(source, frame, said.get("deletes"), key)
    return frame.select(*declared_columns(source), *key)


def _load(spark: SparkSession, source: Source, options: Mapping[str, str], schema: str | None) -> DataFrame:
    """Some sources take a schema, others bring their own; those refuse to be given one."""
    read = spark.read if is_static(source) else spark.readStream
    reader = read.format(str(source.format)).options(**options)
    if schema is None:
        return reader.load()
    try:
        return _analysed(reader.schema(schema).load())
    except (AnalysisException, PySparkException) as error:
        if "schema" not in str(error).lower() or "user-specified" not in str(error).lower():
            raise
        # A reader keeps a schema that it was given.
        read = spark.read if is_static(source) else spark.readStream
        return read.format(str(source.format)).options(**options).load()


def _analysed(frame: DataFrame) -> DataFrame:
    """The frame, once Spark has found nothing wrong with it: a Connect server looks when it is first asked about it."""
    _ = frame.schema
    return frame


def _as_declared(script: Script, source: Source | None, frame: DataFrame) -> DataFrame:
    """A given DataFrame, checked against the declaration if there is one."""
    if source is None:
        return frame
    if source.changes is not None:
        return _changes_given(script, source, frame)
    given = {f.name.lower(): f.dataType for f in frame.schema}
    wrong: list[str] = []
    for expected in cast("StructType", StructType.fromDDL(ddl(source))):
        found = given.get(expected.name.lower())
        if found is None:
            wrong.append(f"`{expected.name}` is missing")
        elif found.simpleString() != expected.dataType.simpleString():
            types = [type_.simpleString().upper() for type_ in (found, expected.dataType)]
            wrong.append(f"`{expected.name}` is {types[0]}, declared {types[1]}")
    if wrong:
        raise refuse("SCHEMA_MISMATCH", script.place(source.span), source=source.name, difference=", ".join(wrong))
    return frame


def _changes_given(script: Script, source: Source, frame: DataFrame) -> DataFrame:
    """The changes in a given DataFrame that has the columns of their feed."""
    wanted = {"debezium": "value", "delta": CHANGE_TYPE}[str(source.changes)]
    names = {name.lower() for name in frame.columns}
    if wanted not in names and not names.issuperset({"op", "before", "after", "payload"}):
        difference = f"`{wanted}` is missing"
        raise refuse("SCHEMA_MISMATCH", script.place(source.span), source=source.name, difference=difference)
    return delta_changes(source, frame) if source.changes == "delta" else debezium_changes(script, source, frame)


def _check_path(script: Script, source: Source) -> None:
    path = next((value for key, value in source.options.items() if key.lower() == "path"), None)
    if path is None:
        return
    local = path.removeprefix("file://").removeprefix("file:")
    if "://" not in local and not any(c in local for c in "*?[{") and not Path(local).exists():
        raise refuse("PATH_NOT_FOUND", script.place(source.span), source=source.name, path=path)


def _refusal(script: Script, format_: str, source: Source, error: Exception) -> WatersmeetError:
    place = script.place(source.span)
    if is_unknown_format(error):
        hint = f"{did_you_mean(format_, FORMATS)} A format of another package needs `--packages group:name:version`."
        return refuse("UNKNOWN_FORMAT", place, format=format_, hint=hint)
    if "PATH_NOT_FOUND" in str(error):
        return refuse("PATH_NOT_FOUND", place, source=source.name, path=source.options.get("path", ""))
    hint = "correct the options; they are Spark's own for this format."
    return refuse("WRONG_OPTION", place, format=format_, option=f"USING {format_}", reason=first_line(error), hint=hint)
