"""Columns that are read from the logs of Delta and Iceberg. `tests/matrix/test_lakes.py` compares them with Spark's."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.case_files import FILES
from typer.testing import CliRunner

from watersmeet.catalog import Source
from watersmeet.cli.app import app
from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.formats.columns import NoColumnsError, columns_of, save_columns
from watersmeet.project import fill_columns
from watersmeet.queries import read_readable, read_script, refusals_in
from watersmeet.tools.testing import read_case


def column_types(format: str, path: Path, changes: str | None = None, **options: str) -> dict[str, str]:
    source = Source("s", (), format=format, options={"path": str(path), **options}, changes=changes)
    return {field.name: field.type for field in columns_of(source).fields}


def refusal_of(format: str, path: Path, **options: str) -> str:
    with pytest.raises(NoColumnsError) as caught:
        column_types(format, path, **options)
    return str(caught.value)


def schema(*columns: tuple[str, Any], **metadata: Any) -> str:
    """A schema as Spark writes it."""
    fields = [{"name": name, "type": type_, "nullable": True, "metadata": metadata} for name, type_ in columns]
    return json.dumps({"type": "struct", "fields": fields})


def commit(table: Path, version: int, *actions: dict[str, Any], suffix: str = "") -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    told = "".join(f"{json.dumps(action)}\n" for action in ({"commitInfo": {}}, *actions))
    (log / f"{version:020}{suffix}.json").write_text(told)


def metadata(text: str) -> dict[str, Any]:
    return {"metaData": {"id": "x", "schemaString": text, "partitionColumns": []}}


def checkpoint(table: Path, name: str, text: str | None) -> None:
    """A checkpoint, or the part of one that has no metadata, with rows about other things before it."""
    told = pa.struct([("id", pa.string()), ("schemaString", pa.string())])
    rows = pa.array([None, None, None if text is None else {"id": "x", "schemaString": text}], told)
    add = pa.array([{"path": "a"}, {"path": "b"}, None], pa.struct([("path", pa.string())]))
    pq.write_table(pa.table({"add": add, "metaData": rows}), table / "_delta_log" / name, row_group_size=1)


DATA = {"add": {"path": 'odd "metaData" file.parquet'}}
STRUCT = {"type": "struct", "fields": [{"name": "x y", "type": "integer", "nullable": False, "metadata": {}}]}
KINDS = {
    "a": ("byte", "TINYINT"), "b": ("short", "SMALLINT"), "c": ("integer", "INT"), "d": ("long", "BIGINT"),
    "e": ("float", "FLOAT"), "f": ("double", "DOUBLE"), "g": ("boolean", "BOOLEAN"), "h": ("string", "STRING"),
    "i": ("binary", "BINARY"), "j": ("date", "DATE"), "k": ("timestamp", "TIMESTAMP"),
    "l": ("timestamp_ntz", "TIMESTAMP_NTZ"), "m": ("decimal(10,2)", "DECIMAL(10,2)"), "n": ("variant", "VARIANT"),
    "o": (STRUCT, "STRUCT<`x y`: INT>"),
    "p": ({"type": "array", "elementType": STRUCT, "containsNull": True}, "ARRAY<STRUCT<`x y`: INT>>"),
    "q": ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}, "MAP<STRING, BIGINT>"),
}  # fmt: skip


def test_delta_tells_its_columns_in_its_newest_metadata(tmp_path: Path):
    commit(tmp_path, 0, metadata(schema(("old", "integer"))), DATA)
    commit(tmp_path, 1, metadata(schema(*((name, type_) for name, (type_, _) in KINDS.items()), ("z", "void"))))
    commit(tmp_path, 2, DATA)
    assert column_types("delta", tmp_path) == {name: type_ for name, (_, type_) in KINDS.items()}
    assert column_types("delta", tmp_path, versionAsOf="0") == {"old": "INT"}
    feed = {"_change_type": "STRING", "_commit_version": "BIGINT", "_commit_timestamp": "TIMESTAMP"}
    assert column_types("delta", tmp_path, versionAsOf="0", readChangeFeed="true") == {"old": "INT", **feed}
    assert column_types("delta", tmp_path, "delta", versionAsOf="0", readChangeFeed="true") == {"old": "INT"}


@pytest.mark.parametrize(
    "names",
    [
        ["{:020}.checkpoint.parquet"],
        ["{:020}.checkpoint.0000000001.0000000002.parquet", "{:020}.checkpoint.0000000002.0000000002.parquet"],
        ["{:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"],
        ["{:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"],
    ],
    ids=["whole", "in parts", "v2", "v2 in JSON"],
)
def test_delta_tells_its_columns_in_a_checkpoint_if_versions_before_are_gone(tmp_path: Path, names: list[str]):
    for version in (9, 10, 11):
        commit(tmp_path, version, DATA)
    told = schema(("id", "long"))
    for i, name in enumerate(names):
        if name.endswith("json"):
            commit(tmp_path, 10, metadata(told), suffix=name[6:-5])
        else:
            checkpoint(tmp_path, name.format(10), told if i == len(names) - 1 else None)
    assert column_types("delta", tmp_path) == {"id": "BIGINT"}
    (tmp_path / "_delta_log" / f"{10:020}.json").unlink()
    assert column_types("delta", tmp_path) == {"id": "BIGINT"}
    commit(tmp_path, 12, metadata(schema(("id", "long"), ("more", "string"))))
    assert column_types("delta", tmp_path) == {"id": "BIGINT", "more": "STRING"}
    assert "is incomplete" in refusal_of("delta", tmp_path, versionAsOf="9")


def test_columns_missing_in_the_log_of_delta_are_refused_by_name(tmp_path: Path):
    assert refusal_of("delta", tmp_path) == f"{tmp_path} has no Delta table yet"
    commit(tmp_path, 0, metadata(schema(("id", "long"))))
    assert "has no version 1" in refusal_of("delta", tmp_path, versionAsOf="1")
    assert "`timestampAsOf`" in refusal_of("delta", tmp_path, timestampAsOf="2026-01-01")
    commit(tmp_path, 1, metadata(schema(("id", "geometry(4326)"))))
    assert refusal_of("delta", tmp_path) == "its column `id` has the unknown type geometry(4326)"
    commit(tmp_path, 1, metadata(schema(("id", {"type": "udt", "class": "x"}))))
    assert "`id` has the unknown type udt" in refusal_of("delta", tmp_path)
    commit(tmp_path, 1, metadata(schema(("n", "string"), __COLLATIONS={"n": "spark.UTF8_LCASE"})))
    assert refusal_of("delta", tmp_path) == "its column `n` has a collation"
    for torn in ('{"metaData": {"schemaS', '{"metaData": {}}', '{"metaData": {"schemaString": "{}"}}'):
        (tmp_path / "_delta_log" / f"{1:020}.json").write_text(torn)
        assert refusal_of("delta", tmp_path) == f"{tmp_path}/_delta_log/{1:020}.json is not a Delta log"
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    (tmp_path / "_delta_log" / f"{2:020}.checkpoint.parquet").write_text("torn")
    assert refusal_of("delta", tmp_path).endswith(".checkpoint.parquet is not a Delta log")
    (tmp_path / "_delta_log" / f"{2:020}.checkpoint.parquet").unlink()
    staged = tmp_path / "_delta_log" / "_staged_commits"
    staged.mkdir()
    (staged / f"{0:020}.80a083e8.json").write_text("")
    assert column_types("delta", tmp_path) == {"id": "BIGINT"}
    (staged / f"{1:020}.80a083e8.json").write_text("")
    assert refusal_of("delta", tmp_path) == "only its catalog knows its newest version"


def test_files_in_the_form_of_a_change_feed_have_the_columns_of_the_table(tmp_path: Path):
    row = {"id": 1, "_change_type": "insert", "_commit_version": 3}
    (tmp_path / "a.json").write_text(f"{json.dumps(row)}\n")
    assert column_types("json", tmp_path, "delta") == {"id": "BIGINT"}
    assert [*column_types("json", tmp_path)] == [*row]


TYPES = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP", "string": "STRING", "uuid": "STRING",
    "fixed[16]": "BINARY", "binary": "BINARY", "decimal(9, 2)": "DECIMAL(9,2)",
}  # fmt: skip


def iceberg(table: Path, name: str, *columns: tuple[str, Any], **more: Any) -> None:
    fields = [{"id": i, "name": one, "required": False, "type": type_} for i, (one, type_) in enumerate(columns)]
    now, before = ({"type": "struct", "schema-id": n, "fields": fields[: len(fields) - n]} for n in (0, 1))
    told = json.dumps({"format-version": 2, "current-schema-id": 0, "schemas": [before, now], **more}).encode()
    (table / "metadata").mkdir(exist_ok=True)
    (table / "metadata" / name).write_bytes(gzip.compress(told) if ".gz" in name else told)


def test_iceberg_tells_its_columns_in_its_newest_metadata(tmp_path: Path):
    assert refusal_of("iceberg", tmp_path) == f"{tmp_path} has no Iceberg table yet"
    iceberg(tmp_path, "v9.metadata.json", ("old", "int"))
    inner = {"type": "struct", "fields": [{"id": 9, "name": "x y", "required": True, "type": "int"}]}
    nested = {
        "l": ({"type": "list", "element-id": 3, "element": inner}, "ARRAY<STRUCT<`x y`: INT>>"),
        "m": ({"type": "map", "key-id": 4, "key": "string", "value": "long"}, "MAP<STRING, BIGINT>"),
    }
    kinds = {**{f"c{n}": pair for n, pair in enumerate(TYPES.items())}, **nested}
    iceberg(tmp_path, "v10.gz.metadata.json", *((name, told) for name, (told, _) in kinds.items()))
    want = {name: type_ for name, (_, type_) in kinds.items()}
    assert column_types("iceberg", tmp_path) == want
    assert "`snapshot-id`" in refusal_of("iceberg", tmp_path, **{"snapshot-id": "1"})
    iceberg(tmp_path, "v11.metadata.json", ("a", "time"))
    assert refusal_of("iceberg", tmp_path) == "its column `a` is time, which Spark has no type for"
    (tmp_path / "metadata" / "v12.metadata.json").write_text("{}")
    assert "v12.metadata.json is not Iceberg metadata" in refusal_of("iceberg", tmp_path)


def test_tables_that_only_a_catalog_knows_are_refused_by_name(tmp_path: Path):
    iceberg(tmp_path, "00001-80a083e8.metadata.json", ("id", "int"))
    assert refusal_of("iceberg", tmp_path) == "only its catalog knows which metadata is current"
    with pytest.raises(NoColumnsError, match="only its catalog knows them"):
        columns_of(Source("s", (), format="iceberg", options={"table": "lake.shop.orders"}))


SQL = """\
CREATE STREAM o (WATERMARK FOR t AS t) USING delta OPTIONS (path 'orders');
CREATE TABLE c (PRIMARY KEY (id)) CHANGES FROM delta USING delta OPTIONS (path 'orders', startingVersion '0');
SELECT STREAM o.*, c.name FROM o JOIN c ON o.id = c.id;
"""


def test_columns_of_delta_are_shown_and_stay_from_the_first_start(tmp_path: Path):
    table, storage = tmp_path / "orders", tmp_path / "q.storage"
    commit(table, 0, metadata(schema(("id", "long"), ("t", "timestamp"), ("name", "string"))))
    (tmp_path / "q.sql").write_text(SQL)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "q.sql")])
    file = f"{table}/_delta_log/{0:020}.json"
    assert f"o: columns of {file}: id BIGINT, t TIMESTAMP, name STRING." in result.stdout, result.stderr
    assert f"c: columns of {file}: id BIGINT, t TIMESTAMP, name STRING." in result.stdout
    assert f"read from {file}" in CliRunner().invoke(app, ["explain", str(tmp_path / "q.sql")]).stdout

    def read() -> list[list[str]]:
        script, refusals = fill_columns(read_script(SQL.replace("'orders'", f"'{table}'")), tmp_path, storage)
        assert not refusals
        save_columns(storage, "query1", script.sources)
        return [[field.name for field in source.fields] for source in script.sources]

    read()
    (storage / "checkpoints" / "query1").mkdir(parents=True)
    commit(table, 1, metadata(schema(("id", "long"), ("more", "string"))))
    assert read() == [["id", "t", "name"]] * 2


def test_unknown_columns_are_reported_with_their_cause_alone(tmp_path: Path):
    (tmp_path / "q.sql").write_text(
        SQL
        + """\
        CREATE VIEW v AS SELECT STREAM o.id, o.t FROM o;
        CREATE SINK out (id BIGINT, n STRING) USING json OPTIONS (path 'out');
        SELECT STREAM v.id FROM v JOIN o WITHIN 1 HOUR ON v.id = o.id;
        INSERT INTO out WITH w AS (SELECT STREAM * FROM v) SELECT STREAM id, n FROM w;
        SELECT STREAM session_window(t, '5 seconds') AS w, count(*) AS n FROM o GROUP BY session_window(t, '5 seconds');
        SELECT STREAM x.id FROM nothing x;
        """
    )
    with pytest.raises(WatersmeetError) as caught:
        open_script(tmp_path / "q.sql")
    told = [(one.condition, one.parameters["source"]) for one in caught.value.refusals]
    assert told == [("UNKNOWN_COLUMNS", "o"), ("UNKNOWN_COLUMNS", "c"), ("UNKNOWN_SOURCE", "nothing")]


def test_unknown_columns_cause_no_refusal():
    for case in map(read_case, FILES[::3]):
        script, unread = read_readable(case.sql)
        if case.fails or not script.sources:
            continue
        nameless = tuple(replace(source, fields=(), format=source.format or "orc") for source in script.sources)
        assert not refusals_in(replace(script, sources=nameless), unread), case.name
