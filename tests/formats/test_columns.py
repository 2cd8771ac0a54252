"""Columns that are read from data: of Parquet, JSON and CSV, without Spark."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from watersmeet.catalog import Source
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.formats.columns import NoColumnsError, columns_of, save_columns
from watersmeet.project import fill_columns, with_columns
from watersmeet.queries import analyze, read_script


def column_types(format: str, path: Path, **options: str) -> dict[str, str]:
    source = Source("s", (), format=format, options={"path": str(path), **options})
    return {field.name: field.type for field in columns_of(source).fields}


def refusal_of(format: str, path: Path | str, **options: str) -> str:
    with pytest.raises(NoColumnsError) as caught:
        columns_of(Source("s", (), format=format, options={"path": str(path), **options}))
    return str(caught.value)


def test_parquet_tells_its_types(tmp_path: Path):
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    table = pa.table({
        "a": pa.array([1], pa.int8()), "b": pa.array([1], pa.uint32()), "c": pa.array([1], pa.uint64()),
        "d": pa.array([Decimal("1.50")], pa.decimal128(10, 2)), "e": pa.array([date(2026, 1, 1)]),
        "f": pa.array([moment], pa.timestamp("us", "UTC")),
        "g": pa.array([moment.replace(tzinfo=None)], pa.timestamp("ms")), "h": pa.array([[1]], pa.list_(pa.int32())),
        "i": pa.array([{"x y": "z"}]), "j": pa.array(["a"]).dictionary_encode(),
        "k": pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), "l": pa.array([b"a"]),
        "m": pa.array([1.5], pa.float32()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert column_types("parquet", tmp_path) == {
        "a": "TINYINT", "b": "BIGINT", "c": "DECIMAL(20,0)", "d": "DECIMAL(10,2)", "e": "DATE", "f": "TIMESTAMP",
        "g": "TIMESTAMP_NTZ", "h": "ARRAY<INT>", "i": "STRUCT<`x y`: STRING>", "j": "STRING",
        "k": "MAP<STRING, DOUBLE>", "l": "BINARY", "m": "FLOAT",
    }  # fmt: skip


def test_times_of_old_parquet_files_are_timestamps_and_nanoseconds_are_refused(tmp_path: Path):
    table = pa.table({"t": pa.array([datetime(2026, 1, 1)], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert column_types("parquet", tmp_path) == {"t": "TIMESTAMP"}
    pq.write_table(table, tmp_path / "a.parquet", version="2.6")
    assert "its column `t` is timestamp[ns]" in refusal_of("parquet", tmp_path)


def test_types_of_files_that_nothing_reads_as_one_are_refused(tmp_path: Path):
    pq.write_table(pa.table({"s": pa.array([{"n": 1}])}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": pa.array([{"n": "x"}])}), tmp_path / "b.parquet")
    assert refusal_of("parquet", tmp_path) == "its column `s.n` is BIGINT in one file and STRING in another"


def test_columns_of_several_files_are_merged_and_folders_make_some(tmp_path: Path):
    for day, columns in (("2026-01-01", {"id": pa.array([1], pa.int32())}), ("2026-01-02", {"id": [2], "n": ["x"]})):
        folder = tmp_path / f"day={day}" / "shop=3"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "a.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.parquet").write_text("no Parquet")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.parquet").write_text("no Parquet, and Spark does not look here")
    assert column_types("parquet", tmp_path) == {"id": "BIGINT", "n": "STRING", "day": "DATE", "shop": "BIGINT"}
    assert "is not a Parquet file" in refusal_of("parquet", tmp_path, recursiveFileLookup="true")


def test_json_and_its_kinds(tmp_path: Path):
    rows = [
        {"i": 1, "f": 1, "b": True, "s": "x", "t": "2026-01-01T10:00:00Z", "d": "2026-01-01", "o": {"a": 1}, "l": [1]},
        {"i": 2, "f": 1.5, "b": None, "s": 3, "t": "2026-01-01 10:00:00.5", "d": None, "o": {"b c": [{}]}, "l": [2.5]},
        {"n": None, "h": 2**70, "m": "2026-01-01T10:00:00.123456789Z"},
    ]
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows) + "torn {\n[1]\n")
    assert column_types("json", tmp_path) == {
        "i": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "s": "STRING", "t": "TIMESTAMP", "d": "DATE",
        "o": "STRUCT<a: BIGINT, `b c`: ARRAY<STRUCT<>>>", "l": "ARRAY<DOUBLE>", "n": "STRING", "h": "DECIMAL(38,0)",
        "m": "STRING",
    }  # fmt: skip
    assert column_types("json", tmp_path, timestampFormat="yyyy")["t"] == "STRING"
    assert "several lines" in refusal_of("json", tmp_path, multiLine="true")


def test_csv_and_its_kinds(tmp_path: Path):
    (tmp_path / "a.csv").write_text(
        'id;code;n;"a;b";t;e\n1;007;1.5;true;2026-01-01 10:00:00;\n2;08;;FALSE;2026-01-02;\n'
    )
    assert column_types("csv", tmp_path, header="true", sep=";") == {
        "id": "BIGINT", "code": "STRING", "n": "DOUBLE", "a;b": "BOOLEAN", "t": "TIMESTAMP", "e": "STRING",
    }  # fmt: skip
    assert "header 'true'" in refusal_of("csv", tmp_path)


@pytest.mark.parametrize(
    ("format", "options", "reason"),
    [
        ("kafka", {"includeHeaders": "true"}, "not from kafka"),
        ("orc", {"path": "/in"}, "not from orc"),
        ("delta", {"path": "/in"}, "/in has no Delta table yet"),
        ("json", {}, "no `path` is named"),
        ("json", {"path": "s3://bucket/in"}, "only from files on this machine"),
        ("json", {"path": "/not/there"}, "/not/there has no files yet"),
        ("json", {"path": "/in", "value.format": "json"}, "records do not declare"),
    ],
)
def test_columns_that_cannot_be_known_are_refused(format: str, options: dict[str, str], reason: str):
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    text = f"CREATE STREAM s USING {format}{f' OPTIONS ({given})' if given else ''}; SELECT STREAM s.id FROM s;"
    with pytest.raises(WatersmeetError) as caught:
        with_columns(read_script(text))
    [refusal] = caught.value.refusals
    assert refusal.condition == "UNKNOWN_COLUMNS"
    assert reason in refusal.message
    assert f"`CREATE STREAM s (id BIGINT, name STRING, ...) USING {format}`" in refusal.hint


def test_formats_whose_columns_are_always_the_same():
    script = with_columns(read_script("CREATE STREAM s (WATERMARK FOR timestamp AS timestamp) USING rate;"))
    assert [(field.name, field.type) for field in script.sources[0].fields] == [
        ("timestamp", "TIMESTAMP"),
        ("value", "BIGINT"),
    ]
    assert columns_of(Source("s", (), format="Kafka", options={"subscribe": "a"})).fields[4].name == "offset"


SQL = """\
CREATE STREAM o (WATERMARK FOR t AS t) USING json OPTIONS (path 'in');
CREATE TABLE c (PRIMARY KEY (id)) USING json OPTIONS (path 'in');
SELECT STREAM o.*, c.name FROM o JOIN c ON o.id = c.id;
"""


def test_check_and_explain_show_columns_and_where_they_are_from(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "t": 5, "name": "x"}\n')
    (tmp_path / "q.sql").write_text(SQL)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "q.sql")])
    assert f"o: columns of {tmp_path}/in/a.json: id BIGINT, t BIGINT, name STRING." in result.stdout, result.stderr
    data = json.loads(CliRunner().invoke(app, ["check", str(tmp_path / "q.sql"), "--format", "json"]).stdout)
    assert data["columns"]["c"]["columns"] == ["id BIGINT", "t BIGINT", "name STRING"]
    explained = CliRunner().invoke(app, ["explain", str(tmp_path / "q.sql")]).stdout
    assert f"read from {tmp_path}/in/a.json" in explained


def test_columns_stay_while_the_query_has_its_checkpoint(tmp_path: Path):
    data, storage = tmp_path / "in", tmp_path / "storage"
    data.mkdir()
    (data / "a.json").write_text('{"id": 1, "t": 5, "name": "x"}\n')
    script, _ = fill_columns(read_script(SQL), tmp_path, storage)
    assert analyze(script)
    placed, _ = fill_columns(read_script(SQL.replace("'in'", f"'{data}'")), tmp_path, storage)
    save_columns(storage, "query1", placed.sources)
    (data / "0.json").write_text('{"id": "seven", "more": 1}\n')

    def names() -> list[str]:
        return [field.name for field in fill_columns(read_script(SQL), tmp_path, storage)[0].sources[0].fields]

    assert names() == ["id", "more", "t", "name"]
    (storage / "checkpoints" / "query1").mkdir(parents=True)
    assert names() == ["id", "t", "name"]
    # What was kept first stays: a later start has seen it.
    save_columns(storage, "query1", fill_columns(read_script(SQL), tmp_path)[0].sources)
    assert names() == ["id", "t", "name"]
    elsewhere = fill_columns(
        read_script(SQL.replace("json", "csv").replace("'in'", "'in', header true")), tmp_path, storage
    )
    assert [field.name for field in elsewhere[0].sources[0].fields] != ["id", "t", "name"]
