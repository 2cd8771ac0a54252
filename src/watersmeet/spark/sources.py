"""The DataFrames of a script's sources: given by name, or read by Spark as CREATE STREAM says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.plan.expressions import quote
from watersmeet.plan.nodes import Script, scans
from watersmeet.spark.session import unlogged

VALUE_FORMAT = "value.format"
"""Our own option: how the column ``value`` of a record is encoded. All other options are Spark's."""

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
    used = dict.fromkeys(scan.source for query in script.queries for scan in scans(query.relation))
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
    """The stream that a declaration describes."""
    place = script.place(source.span)
    if source.format is None:
        raise refuse("MISSING_FRAME", place, source=source.name)
    if not is_remote():
        # A Connect server has files of its own and says itself which are missing.
        _check_path(script, source)
    options = {key: value for key, value in source.options.items() if key.lower() != VALUE_FORMAT}
    decoded = {key.lower(): value for key, value in source.options.items()}.get(VALUE_FORMAT)
    try:
        with unlogged():
            if decoded is None:
                return _analysed(_select(_load(spark, source, options), source))
            return _analysed(_decoded(script, source, _load(spark, source, options, as_declared=False), decoded))
    except WatersmeetError:
        raise
    except Exception as error:
        if not isinstance(error, PySparkException) and not is_unknown_format(error):
            raise
        raise _refusal(script, source.format, source, error) from error


def ddl(source: Source) -> str:
    """The columns of a source as Spark reads a schema."""
    return ", ".join(f"{quote(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in source.fields)


def first_line(error: Exception) -> str:
    """What Spark says, without the plan and the SQLSTATE that follow."""
    return str(error).split("\n", 1)[0].split(" SQLSTATE", 1)[0]


def is_unknown_format(error: Exception) -> bool:
    """Whether Spark does not know a format; it says so in errors of several classes, one of them plain Java."""
    return "DATA_SOURCE_NOT_FOUND" in str(error) or "Failed to find" in str(error)


def _load(spark: SparkSession, source: Source, options: Mapping[str, str], *, as_declared: bool = True) -> DataFrame:
    """Some sources take the declared schema, others bring their own; those refuse to be given one."""
    reader = spark.readStream.format(str(source.format)).options(**options)
    if not as_declared:
        return reader.load()
    try:
        return _analysed(reader.schema(ddl(source)).load())
    except (AnalysisException, PySparkException) as error:
        if "schema" not in str(error).lower() or "user-specified" not in str(error).lower():
            raise
        return spark.readStream.format(str(source.format)).options(**options).load()


def _analysed(frame: DataFrame) -> DataFrame:
    """The frame, once Spark has found nothing wrong with it: a Connect server looks when it is first asked about it."""
    _ = frame.schema
    return frame


def _select(frame: DataFrame, source: Source) -> DataFrame:
    return frame.select(*(F.col(quote(f.name)).cast(f.type).alias(f.name) for f in source.fields))


def _decoded(script: Script, source: Source, frame: DataFrame, format_: str) -> DataFrame:
    """The declared columns out of the column ``value``; a declared ``_key`` is the record's key."""
    if format_.lower() not in {"json", "csv"}:
        option, reason = f"value.format '{format_}'", "a value can be read as json or csv"
        hint = "write `value.format 'json'`."
        place = script.place(source.span)
        raise refuse("WRONG_OPTION", place, format=source.format, option=option, reason=reason, hint=hint)
    inside = Source(source.name, tuple(f for f in source.fields if f.name != "_key"))
    decode = F.from_json if format_.lower() == "json" else F.from_csv
    value = decode(F.col("value").cast("string"), ddl(inside))
    key = [F.col("key").cast(f.type).alias("_key") for f in source.fields if f.name == "_key"]
    opened = frame.select(*key, value.alias("value"))
    columns = [
        F.col("_key") if f.name == "_key" else F.col(f"value.{quote(f.name)}").alias(f.name) for f in source.fields
    ]
    return opened.select(*columns)


def _as_declared(script: Script, source: Source | None, frame: DataFrame) -> DataFrame:
    """A given DataFrame, checked against the declaration if there is one."""
    if source is None:
        return frame
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
