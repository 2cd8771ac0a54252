"""Malformed rows: found where rows are read, with their text, their place and the reason.

A frame that may have such rows has the columns `ERROR_COLUMNS` until `readable_rows` drops them. An observation counts
them, and may also stop the query. Spark moves neither filters nor projections through an observation, so the query does
not influence which rows are malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import cast
from urllib.parse import unquote
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from watersmeet.catalog import Source
from watersmeet.errors import REFUSAL_PREFIX, Refusal
from watersmeet.formats.base import SHOWN, MalformedPolicy, policy_for
from watersmeet.formats.records import RECORD_METADATA
from watersmeet.locations import local_path, location_of
from watersmeet.logical.nodes import Script
from watersmeet.metrics.progress import MALFORMED_PREFIX as COUNTED
from watersmeet.operators.core.changes import CHANGE
from watersmeet.schema import quote
from watersmeet.spark.connectors.ranges import (
    DATE_FALLBACK,
    NON_NUMERIC,
    fields_of,
    finite_columns,
    has_type,
    is_lost,
    json_range_error,
    narrow_columns,
    narrow_file,
    range_error,
    widen_json,
    widen_schema,
)

CONDITION = "MALFORMED_ROW"
REASON, PLACE, VALUE = ERROR_COLUMNS = ("#reason", "#place", "#value")
"""The reason why a row is malformed, NULL for all others; where it comes from; and its text, if available."""
CORRUPT_RECORD = "#unread"
"""The column in which Spark leaves the text of a row that it could not read."""
PACKED_RECORD = "#packed"
"""The column of records that workers have decoded and packed already; a row with one is not a row of the source."""
_READ, _AGAIN = "#read", "#again"
"""The columns of a row of a file as they were read, and as they are read from its text."""
MAX_FILES_WITH_LINES = 32
"""In how many files of a batch the lines of malformed rows are looked for."""
_FILE = "#file"
"""A placeholder for the file in the text of an error, until the row provides its name."""
_SHOWN_CHARACTERS, _SENT_CHARACTERS = 200, 1_000


def permissive_options(opened: Mapping[str, str]) -> dict[str, str]:
    """The options with which Spark reads all it can and keeps the text of malformed rows.

    Strings of digits would otherwise be read as days since 1970 where a DATE is declared.
    """
    said = {name: value for name, value in opened.items() if name.lower() not in ("mode", "columnnameofcorruptrecord")}
    fallback = {} if any(name.lower() == DATE_FALLBACK.lower() for name in said) else {DATE_FALLBACK: "false"}
    return {**said, **fallback, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_RECORD}


def with_corrupt_record(schema: str) -> str:
    """A schema in which Spark can leave the text of a row that it could not read."""
    return f"{schema}, {quote(CORRUPT_RECORD)} STRING" if schema else f"{quote(CORRUPT_RECORD)} STRING"


def error_columns(frame: DataFrame) -> tuple[Column, ...]:
    """The columns that describe malformed rows, if the frame has them."""
    return tuple(F.col(quote(name)) for name in ERROR_COLUMNS) if REASON in frame.columns else ()


def empty_error_columns() -> tuple[Column, ...]:
    """The same columns, for rows that are not known to be malformed."""
    return F.lit(None).cast("string").alias(REASON), place_of().alias(PLACE), F.lit(None).cast("string").alias(VALUE)


def place_of(**columns: Column) -> Column:
    """The origin of a row: a file, or a topic, partition and offset."""
    types = {"file": "string", "topic": "string", "partition": "int", "offset": "bigint"}
    parts = (
        (columns[name] if name in columns else F.lit(None)).cast(type_).alias(name) for name, type_ in types.items()
    )
    return F.struct(*parts)


def describe_misread(texts: Column, read: Column, types: Mapping[str, str]) -> Column:
    """The declared values of a text that could not be read, in words; "" if all could.

    ``texts`` is a map of the texts by name, ``read`` a struct of the values read.
    """
    values = F.from_json(F.to_json(read), "map<string,string>")
    kinds = F.create_map(*(F.lit(text) for pair in types.items() for text in pair))
    names = F.array(*(F.lit(name) for name in types))
    lost = F.filter(
        names, lambda name: F.try_element_at(texts, name).isNotNull() & ~F.map_contains_key(values, cast("str", name))
    )
    return F.array_join(
        F.transform(
            lost,
            lambda name: F.concat(
                F.lit("`"), name, F.lit("` is "), F.try_element_at(kinds, name), F.lit(" and the text has "),
                F.left(F.try_element_at(texts, name), F.lit(_SHOWN_CHARACTERS)),
            ),
        ),
        "; ",
    )  # fmt: skip


def load_text(
    spark: SparkSession, source: Source, schema: str, options: Mapping[str, str], *, is_json: bool
) -> DataFrame:
    """JSON or CSV files, with their malformed rows."""
    from watersmeet.spark.connectors.reading import load

    # The names above the columns are compared with the declared ones, unless that is not wanted.
    checked = {} if is_json or "enforceschema" in source.lowercase_options else {"enforceSchema": "false"}
    opened = permissive_options({**checked, **options})
    rereads = is_json and _rereads(schema, opened)
    # Values in the names of folders are not JSON: Spark reads those columns itself, in their declared types.
    folders = folder_names({**source.options, **options}) if is_json else frozenset[str]()
    fields = StructType([field for field in fields_of(schema) if field.name.lower() not in folders])
    wide = widen_schema(schema, widen_json, folders) if is_json else schema
    reader_options = {**opened, NON_NUMERIC: "false"} if rereads else opened
    frame = load(spark, source, with_corrupt_record(wide), reader_options)
    place = place_of(file=frame.metadataColumn("_metadata").getField("file_path"))
    # Narrow columns have the names of those that were read, and Spark must not take one for the other.
    names = [name for name in frame.columns if name != CORRUPT_RECORD]
    row = F.struct(*map(quote, names)).alias(_READ)
    frame = frame.select(row, F.col(quote(CORRUPT_RECORD)).alias(VALUE), place.alias(PLACE))
    unread, read = F.col(quote(VALUE)), {name: F.col(quote(_READ))[name] for name in names}
    if rereads:
        again = F.from_json(unread, with_corrupt_record(schema), opened)
        frame = frame.withColumn(_AGAIN, F.when(unread.isNotNull(), again))
    fitted = narrow_columns(read, fields, opened) if is_json else finite_columns(read, fields)
    misfit = range_error(read, fitted, fields, fields_of(wide))
    reason = F.when(unread.isNull(), misfit)
    # Spark keeps no text of a row that it could read, but the row read has the value that does not fit.
    text = F.when(unread.isNull() & misfit.isNotNull(), F.to_json(F.col(quote(_READ)))).otherwise(unread)
    if rereads:
        again = F.col(quote(_AGAIN))
        fitted = {name: F.when(unread.isNull(), value).otherwise(again[name]) for name, value in fitted.items()}
        reason = reason.when(again[CORRUPT_RECORD].isNull(), json_range_error(unread, schema, opened))
    types = {f.name: f.dataType.simpleString().upper() for f in fields}
    columns = [value.alias(name) for name, value in {**read, **fitted}.items()]
    reason = reason.otherwise(explain_misread(unread, F.struct(*columns), types, options, is_json=is_json))
    return frame.select(*columns, reason.alias(REASON), quote(PLACE), text.alias(VALUE))


def folder_names(options: Mapping[str, str]) -> frozenset[str]:
    """The columns, in lower case, that folders below the path of a source on this machine have in their names.

    Of a path elsewhere they are not known: a TIMESTAMP in the names of its folders stops the query.
    """
    said = {name.lower(): value for name, value in options.items()}
    path = local_path(said.get("path", ""))
    folder, names = Path(path), set[str]()
    if "basepath" in said:
        names.update(part.partition("=")[0].lower() for part in folder.parts if "=" in part)
    while "://" not in path and folder.is_dir():
        below = next((entry for entry in folder.iterdir() if "=" in entry.name and entry.is_dir()), None)
        if below is None:
            break
        names.add(unquote(below.name).partition("=")[0].lower())
        folder = below
    return frozenset(names)


def _rereads(schema: str, options: Mapping[str, str]) -> bool:
    """Whether rows of JSON files with texts such as ``NaN`` are read from their own text, one by one.

    Spark keeps the text only if such texts count as malformed at first, so that an infinite number is not one of them.
    For a file that is an array, it keeps the text of the array for every row.
    """
    said = {name.lower(): value.lower() for name, value in options.items()}
    is_fit = NON_NUMERIC.lower() not in said and said.get("multiline", "false") != "true"
    return is_fit and has_type(fields_of(schema), (FloatType, DoubleType))


def explain_misread(
    text: Column, read: Column, types: Mapping[str, str], options: Mapping[str, str], *, is_json: bool
) -> Column:
    """The reason why a text could not be read."""
    if is_json:
        values, other = F.from_json(text, "map<string,string>", dict(options)), "it is not a JSON object of that form"
    else:
        texts = ", ".join(f"{quote(name)} STRING" for name in types)
        values = F.from_json(F.to_json(F.from_csv(text, texts, dict(options))), "map<string,string>")
        other = f"it has another number of values than the {len(types)} that are declared"
    reason = describe_misread(values, read, types)
    return F.when(F.coalesce(reason, F.lit("")) != "", reason).otherwise(F.lit(other))


def observe_malformed(
    script: Script,
    frames: Mapping[str, DataFrame],
    default_policy: MalformedPolicy = "fail",
    *,
    with_example: bool = False,
) -> dict[str, DataFrame]:
    """The frames, with their malformed rows counted; ``default_policy``: the policy where the source has none.

    ``with_example``: the observation includes one of them.
    """
    sources = {source.name: source for source in script.sources}
    return {
        n: count_malformed(sources[n], f, policy_for(sources[n], default_policy), with_example=with_example)
        if n in sources
        else f
        for n, f in frames.items()
    }


def readable_rows(frame: DataFrame) -> DataFrame:
    """The rows that are not malformed."""
    return frame.where(F.col(quote(REASON)).isNull()).drop(*ERROR_COLUMNS) if REASON in frame.columns else frame


def select_malformed(sources: Iterable[Source], frames: Mapping[str, DataFrame]) -> tuple[DataFrame, ...]:
    """The malformed rows of sources as a side output of the result, for sources that can have some."""
    inputs = ((source, frames[source.name]) for source in sources)
    return tuple(
        frame.where(F.col(quote(REASON)).isNotNull()).select(F.struct(*_parts(source, frame)).alias(SHOWN))
        for source, frame in inputs
        if REASON in frame.columns
    )


def count_malformed(
    source: Source, frame: DataFrame, policy: MalformedPolicy, *, with_example: bool = False
) -> DataFrame:
    """The frame with the reason of every malformed row; they are counted, and may stop the query."""
    if REASON not in frame.columns:
        return frame
    reason = F.coalesce(F.col(quote(REASON)), _null_violation(source, frame))
    reason = F.when(F.col(quote(PACKED_RECORD)).isNull(), reason) if PACKED_RECORD in frame.columns else reason
    checked = frame.withColumn(REASON, reason)
    is_bad = F.col(quote(REASON)).isNotNull()
    numbers = [F.count(F.when(is_bad, 1)).alias("rows")]
    if policy == "fail":
        # The observation sees every row, whatever the query selects.
        numbers.append(F.max(F.when(is_bad, _raise_malformed(source, frame))).alias("first"))
    elif with_example:
        parts = (F.left(part, F.lit(_SHOWN_CHARACTERS)).alias(name) for name, part in _example_parts(source, checked))
        numbers.append(F.max(F.when(is_bad, F.to_json(F.struct(*parts)))).alias("example"))
    # A query may hold several that read a source of this name, and Spark wants a name for each.
    return checked.observe(f"{COUNTED}{source.name}#{uuid4().hex[:16]}", *numbers)


def _parts(source: Source, frame: DataFrame) -> Iterator[Column]:
    """The description of a malformed row: its source, its place, the reason, and its text."""
    place, value = F.col(quote(PLACE)), F.col(quote(VALUE))
    record = F.concat(
        place.getField("topic"), F.lit(", partition "), place.getField("partition"), F.lit(", offset "),
        place.getField("offset"),
    )  # fmt: skip
    text = value.cast("string")
    bytes_ = F.concat(F.lit("0x"), F.hex(value.cast("binary")))
    columns = [quote(name) for name in frame.columns if not name.startswith("#")]
    yield F.lit(source.name).alias("source")
    yield F.coalesce(decode_path(place.getField("file")), record).alias("place")
    yield F.col(quote(REASON)).alias("reason")
    # Of a row that was read, but lacks something, a file does not keep the text.
    read = F.to_json(F.struct(*columns))
    yield F.when(value.isNull(), read).when(F.is_valid_utf8(text), text).otherwise(bytes_).alias("value")


def _example_parts(source: Source, frame: DataFrame) -> Iterator[tuple[str, Column]]:
    row = F.struct(*_parts(source, frame))
    yield from ((name, row.getField(name)) for name in ("place", "reason", "value"))


def _null_violation(source: Source, frame: DataFrame) -> Column:
    """The required values that a row lacks, in words; NULL if it lacks none."""
    key = {name.lower() for name in source.primary_key}
    own = [f for f in source.fields if f.name in frame.columns]
    must = [f.name for f in own if f.name.lower() in key]
    further = [f.name for f in own if not f.nullable and f.name.lower() not in key]
    goes = F.col(CHANGE) == "-" if CHANGE in frame.columns and source.kind == "table" else F.lit(False)
    goes = F.coalesce(goes, F.lit(False))

    def nothing(name: str, constraint: str) -> Column:
        return F.when(F.col(quote(name)).isNull(), F.lit(f"`{name}` is {constraint} and has no value"))

    lacks = [nothing(name, "a primary key") for name in must]
    lacks += [F.when(~goes, nothing(name, "NOT NULL")) for name in further]
    # Metadata of a record exists whatever its value is.
    inside = [f.name for f in own if f.name.lower() not in RECORD_METADATA]
    empty = reduce(lambda a, b: a & b, (F.col(quote(name)).isNull() for name in inside), F.lit(bool(inside)))
    lacks.append(F.when(empty & ~goes, F.lit("it has none of the declared columns")))
    return F.coalesce(*lacks)


def _raise_malformed(source: Source, frame: DataFrame) -> Column:
    """The end of the query: the refusal of a malformed row, as text that travels."""
    row = F.struct(*_parts(source, frame))
    names = ("source", "place", "reason", "value")
    said = {name: F.left(F.coalesce(row.getField(name), F.lit("")), F.lit(_SENT_CHARACTERS)) for name in names}
    parameters = F.struct(*(part.alias(name) for name, part in said.items()))
    data = F.to_json(F.struct(F.lit(CONDITION).alias("condition"), parameters.alias("parameters")))
    text = F.concat(
        F.lit(f"[{CONDITION}] A row of {source.name} cannot be read, at "), said["place"], F.lit(": "), said["reason"],
        F.lit(f".\n{REFUSAL_PREFIX}"), data,
    )  # fmt: skip
    return F.raise_error(text).cast("string")


def locate(refusal: Refusal, spark: SparkSession) -> Refusal:
    """The refusal of a malformed row with the line of its file, where there is one and it is still there."""
    place = refusal.parameters.get("place", "")
    if refusal.condition != CONDITION or not _is_file(place):
        return refusal
    text, kind = refusal.parameters["value"], "map<string,string>"
    # Of a row that could be read, the text is made of its columns: a line has them among others.
    values, texts = F.from_json(F.lit(text), kind), F.from_json("value", kind)
    is_row = F.forall(F.map_entries(values), lambda part: texts[part["key"]].eqNullSafe(part["value"]))
    with suppress(PySparkException):
        is_line = F.col("value").startswith(text) | F.coalesce(is_row, F.lit(False))
        line = _lines(spark, place).where(is_line).agg(F.min("line")).collect()[0][0]
        if line is not None:
            return replace(refusal, parameters={**refusal.parameters, "place": f"{place}, line {line}"})
    return refusal


def with_lines(rows: DataFrame) -> DataFrame:
    """Malformed rows for a sink: those of files with their line numbers, as far as these are found.

    A text that occurs at several lines is malformed at each of them: the rows get the lines one by one.
    """
    places = [row[0] for row in rows.select("place").distinct().limit(MAX_FILES_WITH_LINES + 1).collect()]
    files = [place for place in places if place is not None and _is_file(place)]
    if not files or len(places) > MAX_FILES_WITH_LINES:
        return rows
    spark, same = rows.sparkSession, ("place", "value")
    lines = reduce(DataFrame.unionAll, (_lines(spark, file) for file in files))
    turn = Window.partitionBy(*same)
    texts = rows.select(*same).distinct()
    lines = lines.join(texts, [*same], "left_semi").withColumn("n", F.row_number().over(turn.orderBy("line")))
    numbered = rows.withColumn("n", F.row_number().over(turn.orderBy("reason"))).join(lines, [*same, "n"], "left")
    place = F.when(F.col("line").isNull(), F.col("place")).otherwise(F.concat("place", F.lit(", line "), "line"))
    return numbered.select("source", place.alias("place"), "reason", "value")


def _lines(spark: SparkSession, file: str) -> DataFrame:
    """The lines of a file: its place, its text, and its number."""
    escaped = "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in location_of(file))
    # Spark numbers the rows of each partition, and the partitions of one file in its order.
    row = F.monotonically_increasing_id()
    read = spark.read.text(escaped).select("value", F.shiftright(row, 33).alias("part"), row.alias("row"))
    sizes = read.groupBy("part").agg(F.count("*").alias("size"))
    before = F.coalesce(F.sum("size").over(Window.orderBy("part").rowsBetween(Window.unboundedPreceding, -1)), F.lit(0))
    starts = sizes.select("part", before.alias("before"))
    line = F.col("row").bitwiseAND(F.lit((1 << 33) - 1)) + F.col("before") + 1
    return read.join(starts, "part").select(F.lit(file).alias("place"), "value", line.alias("line"))


def _is_file(place: str) -> bool:
    return ":/" in place or place.startswith("/")


def fit_column(
    source: Source, name: str, declared: DataType, actual: DataType | None, file: Column | None = None
) -> Column:
    """A column in the declared type; a value that does not fit stops the query.

    ``actual`` is the type that it has, ``file`` the path of the file that it is from.
    """
    value = F.col(quote(name))
    if actual is None or actual.simpleString() == declared.simpleString():
        return value.cast(declared).alias(name)
    field = source.field(name)
    type_ = declared.simpleString().upper() if field is None else field.type
    shown = actual.simpleString().upper()
    where = "" if file is None else f", in {_FILE}"
    parameters = {"source": source.name, "column": name, "type": type_, "found": shown, "where": where}
    text = F.lit(Refusal("VALUE_OUT_OF_RANGE", parameters).to_message())
    if file is not None:
        # The text has JSON in it, in which a path is as it is written.
        text = F.replace(text, F.lit(_FILE), F.translate(decode_path(file), '"\\', "''"))
    fitted = narrow_file(value, actual, declared)
    # Not a plain cast: in ANSI mode it names no place, and in the other mode it gives another value.
    lost = is_lost(value, fitted, actual, declared)
    return F.when(lost, F.raise_error(text).cast(declared)).otherwise(fitted).alias(name)


def decode_path(path: Column) -> Column:
    """A path of Spark's, which are encoded as addresses are, as people write it."""
    plain = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, "^file:/+", "/")
