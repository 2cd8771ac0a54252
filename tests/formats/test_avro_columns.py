"""Columns that are read from Avro: the header of files, a given schema, a registry. `tests/matrix` asks Spark too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.avro_files import INNER, READ, record, write_avro
from tests.registry import registry

from watersmeet.catalog import Source
from watersmeet.formats.columns import NoColumnsError, SourceColumns, columns_of


def source_columns(path: Path | str, format: str = "avro", **options: str) -> SourceColumns:
    return columns_of(Source("s", (), format=format, options={"path": str(path), **options}))


def types(read: SourceColumns) -> dict[str, str]:
    return {field.name: field.type for field in read.fields}


def refusal_of(path: Path | str, **options: str) -> str:
    with pytest.raises(NoColumnsError) as caught:
        source_columns(path, **options)
    return str(caught.value)


def test_the_header_of_a_file_tells_columns(tmp_path: Path):
    file = write_avro(tmp_path / "a.avro", record(*((name, type_) for name, (type_, _) in READ.items())))
    read = source_columns(tmp_path)
    assert types(read) == {name: type_ for name, (_, type_) in READ.items()}
    assert read.file == str(file)


def test_columns_of_several_files_are_merged_if_their_types_agree(tmp_path: Path):
    write_avro(tmp_path / "day=2026-01-01" / "a.avro", record(("id", "int"), ("x", "float")))
    write_avro(tmp_path / "day=2026-01-01" / "b", record(("id", ["null", "long"]), ("more", "string")))
    want = {"id": "BIGINT", "x": "FLOAT", "more": "STRING", "day": "DATE"}
    assert types(source_columns(tmp_path)) == want
    write_avro(tmp_path / "day=2026-01-02" / "c.avro", record(("id", "string")))
    assert refusal_of(tmp_path) == "its column `id` is BIGINT in one file and STRING in another"
    assert types(source_columns(tmp_path / "day=2026-01-01", ignoreExtension="false")) == {"id": "INT", "x": "FLOAT"}


def test_other_files_than_avro_are_refused_by_name(tmp_path: Path):
    whole = write_avro(tmp_path / "a.avro", record(("id", "int"))).read_bytes()
    for torn in (b"PAR1", whole[:3], whole[:30], whole.replace(b"avro.schema", b"avro.nothing")[:80]):
        (tmp_path / "a.avro").write_bytes(torn)
        assert refusal_of(tmp_path) == f"{tmp_path}/a.avro is not an Avro file"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("int", "a row in its schema is not a record with fields"),
        (record(), "a row in its schema is not a record with fields"),
        (record(("next", ["null", "row"])), "its column `next` contains itself"),
        (
            record(("a", {"type": "array", "items": record(("b", "row"), name="in")})),
            "its column `a.b` contains itself",
        ),
        (record(("a", "nonesuch")), "cannot be read: `nonesuch` is not an Avro type"),
        (record(("a", {"type": "int", "spark.sql.catalyst.type": "interval year"})), "has types of Spark's own"),
    ],
)
def test_schemas_without_columns_are_refused_by_name(tmp_path: Path, schema: Any, reason: str):
    write_avro(tmp_path / "a.avro", schema)
    assert reason in refusal_of(tmp_path)


def test_a_schema_that_is_given_counts_more_than_files(tmp_path: Path):
    given = json.dumps(record(("id", "long"), ("u", ["int", "string"])))
    read = source_columns("/nothing/there", avroSchema=given)
    assert (types(read)["id"], read.file) == ("BIGINT", "`avroSchema`")
    (tmp_path / "s.avsc").write_text(given)
    assert types(source_columns("/nothing/there", avroSchema=f"${{file:{tmp_path}/s.avsc}}")) == types(read)
    assert "NOT_SET_HERE is not set" in refusal_of("/nothing/there", avroSchema="${env:NOT_SET_HERE}")
    assert "only Spark reads" in refusal_of("/nothing/there", avroSchemaUrl="hdfs://s.avsc")
    assert "`u` is of several types" in refusal_of(
        "/there", avroSchema=given, enableStableIdentifiersForUnionType="true"
    )


def of_values(**options: str) -> SourceColumns:
    told = {"value.format": "avro", "subscribe": "orders, others", **options}
    return columns_of(Source("s", (), format="kafka", options=told))


def test_values_of_records_have_the_columns_of_their_schema():
    assert types(of_values(**{"avro.schema": json.dumps(record(("id", "int"), ("in", INNER)))})) == {
        "id": "INT", "in": "STRUCT<x: INT, y: STRING>",
    }  # fmt: skip
    with pytest.raises(NoColumnsError, match="`u` is of several types"):
        of_values(**{"avro.schema": json.dumps(record(("u", ["int", "string"])))})
    with pytest.raises(NoColumnsError, match="do not declare"):
        of_values()
    with registry() as known:
        known.add("orders-value", record(("id", "int")))
        known.add("orders-value", record(("id", "long"), ("in", "inner")), [
            {"name": "inner", "subject": "inner", "version": 1},
        ])  # fmt: skip
        known.add("inner", INNER)
        read = of_values(**{"schema.registry.url": known.url})
        assert types(read) == {"id": "BIGINT", "in": "STRUCT<x: INT, y: STRING>"}
        assert read.file == "the subject `orders-value` of the registry"
        subject = {"schema.registry.subject": "nothing"}
        with pytest.raises(NoColumnsError, match=r"answers with 404 .*, asked for the subject `nothing`"):
            of_values(**{"schema.registry.url": known.url, **subject})
