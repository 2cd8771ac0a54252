"""What of a Parquet file workers read themselves: its footer and its path say so before a row is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.catalog import Source
from watersmeet.errors import WorkerRefusalError
from watersmeet.spark.connectors import parquet
from watersmeet.spark.connectors.parquet import ParquetColumns, parquet_reader

WHOLE = {"k": pa.int64()}


def reader_of(
    path: Path, columns: dict[str, pa.DataType] | None = None, options: dict[str, str] | None = None
) -> ParquetColumns | None:
    schema = pa.schema([*(columns or WHOLE).items()])
    source = Source("s", (), options={"path": f"file:{path}", **(options or {})})
    return parquet_reader(source, tuple(schema.names), schema)


def rows(path: Path, columns: dict[str, pa.DataType] | None = None, **options: str) -> list[object] | None:
    """What workers read of all files of a source, by the names of these; None: it is left to Spark."""
    reader = reader_of(path, columns, options)
    files = sorted(file for file in path.rglob("*.parquet") if file.is_file())
    if reader is None:
        return None
    return [row for file in files for part in reader.read(f"file:{file}") for row in part.to_pylist()]


def write(file: Path, **columns: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
    return file


def test_a_folder_tells_a_column_even_if_the_file_has_it(tmp_path: Path) -> None:
    write(tmp_path / "k=7/0.parquet", k=[1], v=["a"])
    assert rows(tmp_path) == [{"k": 7}]
    assert rows(tmp_path, {"K": pa.string(), "v": pa.string()}) == [{"K": "7", "v": "a"}]
    assert rows(tmp_path, recursiveFileLookup="true") == [{"k": 1}]


def test_folders_above_the_path_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "k=7/in/0.parquet", v=[1])
    assert rows(tmp_path / "k=7/in") == [{"k": None}]
    assert rows(tmp_path / "k=7/i*") == []


@pytest.mark.parametrize(
    "folder", ["k=07", "k=x", "k=%31", "k=+1", "k=1/in", "in/k=1", "k=1/K=1", "k=99999999999999999999"]
)
def test_folders_that_only_spark_understands(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder / "0.parquet", v=[1])
    assert rows(tmp_path) is None


def test_folders_that_are_not_equal(tmp_path: Path) -> None:
    write(tmp_path / "k=7/0.parquet", v=[1])
    reader = reader_of(tmp_path)
    assert reader is not None
    late = write(tmp_path / "0.parquet", v=[1])
    with pytest.raises(WorkerRefusalError) as raised:
        next(reader.read(str(late)))
    assert raised.value.refusal.condition == "NOT_AS_COLUMNS"
    assert rows(tmp_path) is None, "so that a start after that error lets Spark read"
    write(tmp_path / "no value/k=__HIVE_DEFAULT_PARTITION__/0.parquet", v=[1])
    assert rows(tmp_path / "no value") == [{"k": None}]


def test_names_of_columns(tmp_path: Path) -> None:
    write(tmp_path / "one/0.parquet", K=[1])
    assert rows(tmp_path / "one") == [{"k": 1}]
    write(tmp_path / "two/0.parquet", k=[1], K=[2])
    assert rows(tmp_path / "two") is None
    assert rows(tmp_path / "two", {"other": pa.int64()}) == [{"other": None}]
    write(tmp_path / "dots/0.parquet", **{"k.a": [1], "k": [2]})
    assert rows(tmp_path / "dots") is None
    assert rows(tmp_path / "dots", {"k.a": pa.int64()}) is None
    write(tmp_path / "nested/0.parquet", k=[{"a": 1}])
    assert rows(tmp_path / "nested") is None


@pytest.mark.parametrize("key", ["org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"])
@pytest.mark.parametrize("version", [None, "2.4.8", "3.0.3", "4.3.0"])
def test_calendars(tmp_path: Path, key: str, version: str | None) -> None:
    is_96 = key.endswith("INT96")
    told = {} if version is None else {"org.apache.spark.version": version}
    table = pa.table({"k": pa.array([0], pa.timestamp("us", "UTC")), "v": pa.array([1])})
    for name, metadata in (("new", told), ("old", {**told, key: ""})):
        (tmp_path / name).mkdir()
        marked = table.replace_schema_metadata(metadata)
        pq.write_table(marked, tmp_path / name / "0.parquet", use_deprecated_int96_timestamps=is_96)
    moment = {"k": pa.timestamp("us", "UTC")}
    is_sure = version is None or version >= ("3.1.0" if is_96 else "3.0.0")
    assert (rows(tmp_path / "new", moment) is not None) == is_sure
    assert (rows(tmp_path / "old", moment) is not None) == (version is None)
    assert rows(tmp_path / "old", {"v": pa.int64()}) == [{"v": 1}]


def test_files_without_rows_and_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").touch()
    write(tmp_path / "1.parquet", k=pa.array([], pa.int64()))
    (tmp_path / "_hidden.parquet").write_text("no Parquet")
    (tmp_path / "2.txt").write_text("no Parquet")
    assert rows(tmp_path) is None
    reader = reader_of(tmp_path, options={"pathGlobFilter": "*.parquet"})
    assert reader is not None
    assert [part for n in range(2) for part in reader.read(str(tmp_path / f"{n}.parquet")) if part.num_rows] == []
    assert reader_of(tmp_path, options={"pathGlobFilter": "*.{parquet}"}) is None


def test_a_file_that_goes_before_it_is_read(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    assert reader is not None
    with pytest.raises(WorkerRefusalError) as raised:
        next(reader.read(str(tmp_path / "0.parquet")))
    assert raised.value.refusal.condition == "INPUT_FILE_GONE"
    patient = reader_of(tmp_path, options={"ignoreMissingFiles": "true"})
    assert patient is not None
    assert [*patient.read(str(tmp_path / "0.parquet"))] == []


def test_a_large_folder_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.parquet", k=[number])
    opened: list[str] = []
    check = ParquetColumns.check
    monkeypatch.setattr(ParquetColumns, "check", lambda self, path: (opened.append(path), check(self, path)))
    monkeypatch.setattr(parquet, "SAMPLED", 2)
    monkeypatch.setattr(parquet, "MOST_FILES", 5)
    source, schema = Source("s", (), options={"path": str(tmp_path)}), pa.schema([*WHOLE.items()])
    assert parquet_reader(source, ("k",), schema, recovers=True) is not None
    assert len(opened) == 2
    # No one starts it again: all files are looked at, or Spark reads them.
    assert parquet_reader(source, ("k",), schema) is not None
    assert len(opened) == 7
    write(tmp_path / "5.parquet", k=[5])
    assert parquet_reader(source, ("k",), schema) is None
    assert len(opened) == 7
