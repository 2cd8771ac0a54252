"""Writes the input rows of a case to the sources of a project: records of topics, or files of JSON or Parquet."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.catalog import Source
from watersmeet.cli.script import open_script
from watersmeet.codec.avro_values import encode_rows, schema_of
from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.formats.debezium import DECIMALS
from watersmeet.formats.kafka import Kafka
from watersmeet.formats.records import RECORD_METADATA, VALUE_FORMAT
from watersmeet.formats.registry import SUBJECT, Registry, subject_in
from watersmeet.locations import resolve_references
from watersmeet.operators.core.changes import CHANGE
from watersmeet.operators.core.python_values import python_rows
from watersmeet.tools.testing import CaseBatch, read_case, table_of

_FLUSH_SECONDS = 30.0


def feed_case(path: Path, case_path: Path) -> Iterator[str]:
    """Write the rows of a case, batch by batch; yields what was written where."""
    case = read_case(case_path)
    if not case.batches:
        raise refuse("WRONG_CASE", path=case.path, reason="it has no rows to feed")
    opened = open_script(path, "absolute")
    sources = {source.name.lower(): source for source in opened.script.sources}
    counts: dict[str, int] = {}
    for number, batch in enumerate(case.batches, 1):
        for name in batch.rows:
            if name.lower() not in sources:
                hint = did_you_mean(name, [source.name for source in sources.values()]).rstrip(".")
                reason = f"the project has no source `{name}` ({hint})"
                raise refuse("WRONG_CASE", path=case.path, reason=reason)
            source = sources[name.lower()]
            rows = _rows(source, batch, name, case.path)
            _write(source, rows, f"{case_path.stem}-{number:04}")
            counts[source.name] = counts.get(source.name, 0) + rows.num_rows
    for name, count in counts.items():
        yield f"Wrote {count} rows to {name}."


def _rows(source: Source, batch: CaseBatch, name: str, path: str) -> pa.Table:
    return table_of(source, batch.rows[name], path)


def _write(source: Source, rows: pa.Table, file_name: str) -> None:
    options = resolve_references(source.lowercase_options)
    match (source.format or "").lower():
        case "kafka":
            _send(source, options, rows)
        case "json" | "parquet" as format_ if "path" in options and source.changes is None:
            _write_file(Path(options["path"].removeprefix("file://")), rows, file_name, format_)
        case format_:
            raise _cannot(source, f"it reads {format_ or 'no format'}, and rows can be fed to topics, json and parquet")


def _write_file(folder: Path, rows: pa.Table, name: str, format_: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.{format_}"
    # The file appears whole: Spark passes over names that begin with a dot.
    hidden = target.with_name(f".{target.name}")
    if format_ == "parquet":
        pq.write_table(rows, hidden)
    else:
        hidden.write_text("".join(f"{json.dumps(_plain(row))}\n" for row in python_rows(rows)), "utf-8")
    hidden.replace(target)


@dataclass(frozen=True)
class Record:
    """A record of a topic; a value of None deletes the row of its key."""

    key: str | None
    value: bytes | None


def _send(source: Source, options: Mapping[str, str], rows: pa.Table) -> None:
    if find_spec("confluent_kafka") is None:
        raise refuse("KAFKA_NOT_INSTALLED", package="confluent-kafka")
    topics = Kafka(source).topics
    if len(topics) != 1:
        raise _cannot(source, "it does not read exactly one topic that it names")
    records = _records(source, options, topics[0], rows)
    from confluent_kafka import KafkaException, Producer  # imported late: it may not be installed

    from watersmeet.spark.connectors.kafka import client_settings

    producer = Producer({**client_settings(options), "partitioner": "murmur2_random"})
    try:
        for record in records:
            producer.produce(resolve_references({"topic": topics[0]})["topic"], record.value, record.key)
        missing = producer.flush(_FLUSH_SECONDS)
    except KafkaException as error:
        raise _cannot(source, str(error)) from error
    if missing:
        raise _cannot(source, f"the broker did not confirm {missing} of its records")


def _records(source: Source, options: Mapping[str, str], topic: str, rows: pa.Table) -> list[Record]:
    """The records of rows, as the declaration of the source reads them."""
    format_ = options.get(VALUE_FORMAT, "json").lower()
    is_feed = source.changes is not None
    if (source.changes or "debezium").lower() != "debezium" or format_ not in ("json", "avro"):
        raise _cannot(source, "only values in json and avro, and Debezium's in json, can be fed")
    if is_feed and format_ == "avro":
        raise _cannot(source, "Debezium's records can be fed in json only")
    if VALUE_FORMAT not in options and not is_feed:
        raise _cannot(source, f"it has no `{VALUE_FORMAT}`")
    signs = rows.column(CHANGE).to_pylist() if CHANGE in rows.column_names else ["+"] * rows.num_rows
    hidden = [name for name in rows.column_names if name.lower() in ("_key", CHANGE, *RECORD_METADATA)]
    values = rows.drop_columns(hidden)
    keys = [_key(source, row) for row in python_rows(rows)]
    if is_feed:
        texts = [
            _change(sign, _debezium_row(row, options)) for sign, row in zip(signs, python_rows(values), strict=True)
        ]
        return [Record(key, text) for key, text in zip(keys, texts, strict=True)]
    encoded = _avro(source, options, topic, values) if format_ == "avro" else _json_lines(values)
    if "-" in signs and not source.primary_key:
        raise _cannot(source, "a record deletes a row by its key, and the table has no primary key")
    return [Record(key, None if sign == "-" else value) for key, sign, value in zip(keys, signs, encoded, strict=True)]


def _key(source: Source, row: Mapping[str, Any]) -> str | None:
    if (field := source.field("_key")) is not None:
        value = row.get(field.name)
        return None if value is None else str(value)
    parts = {name: _plain(row[field.name]) for name in source.primary_key if (field := source.field(name)) is not None}
    if not parts:
        return None
    return str(*parts.values()) if len(parts) == 1 else json.dumps(parts)


def _json_lines(rows: pa.Table) -> list[bytes]:
    return [json.dumps(_plain(row)).encode() for row in python_rows(rows)]


def _avro(source: Source, options: Mapping[str, str], topic: str, rows: pa.Table) -> list[bytes]:
    registry = Registry.of(options)
    if registry is None:
        raise _cannot(source, "its Avro schema is not in a registry")
    schema = json.dumps(schema_of([*rows.schema], source.name))
    number = registry.register(subject_in(options, SUBJECT, "value", topic), schema)
    header = b"\x00" + number.to_bytes(4, "big")
    return encode_rows(rows.to_struct_array().combine_chunks(), header).to_pylist()


def _change(sign: str, row: Mapping[str, Any]) -> bytes:
    """A record of Debezium: the row after an insert or update, or before a delete."""
    record = {"op": "c", "before": None, "after": row} if sign == "+" else {"op": "d", "before": row, "after": None}
    return json.dumps(record).encode()


def _debezium_row(row: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    as_text = options.get(DECIMALS, "").lower() == "string"
    return {
        name: str(value) if as_text and isinstance(value, Decimal) else _plain(value) for name, value in row.items()
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it.

    >>> _plain({"at": datetime.fromisoformat("2026-03-02T08:00:00+00:00"), "price": Decimal("9.50"), "raw": b"a"})
    {'at': '2026-03-02T08:00:00Z', 'price': 9.5, 'raw': 'YQ=='}
    """
    match value:
        case Mapping():
            return {str(name): _plain(each) for name, each in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(each) for each in cast("Sequence[Any]", value)]
        case datetime() | date():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return float(value) if Decimal(repr(float(value))) == value else str(value)
        case bytes():
            return b64encode(value).decode()
        case _:
            return value


def _cannot(source: Source, reason: str) -> WatersmeetError:
    return refuse("CANNOT_FEED", source=source.name, reason=reason)
