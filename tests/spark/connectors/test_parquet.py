"""Workers read Parquet with the values of Spark, whatever program wrote the file, or leave it to Spark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.connectors.parquet import ParquetColumns, UnlikeSparkError

pytestmark = pytest.mark.spark

TYPES = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "STRING": pa.string(), "BINARY": pa.binary(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"), "TIMESTAMP_NTZ": pa.timestamp("us"),
    **{f"DECIMAL({p},{s})": pa.decimal128(p, s) for p, s in ((9, 2), (10, 0), (22, 2), (38, 10))},
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
DAYS = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1900, 1, 1), dt.date(2024, 2, 29), None]
MOMENTS = [dt.datetime(1, 1, 2, 3, 4, 5), dt.datetime(1582, 10, 4), dt.datetime(1899, 12, 31, 23, 59, 59, 999999),
           dt.datetime(2024, 3, 31, 1, 30, 0, 1000), None]  # fmt: skip
CENTS = [Decimal("1.25"), Decimal("-9999999.99"), None, Decimal("0.00"), Decimal("9999999.99")]


SPARKS: Mapping[str, Mapping[str, str]] = {
    "usual": {},
    "micros": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"},
    "millis": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "old-decimals": {"spark.sql.parquet.writeLegacyFormat": "true"},
    "legacy": {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    },
    "legacy96": {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    },
}


def extremes(bits: int, *, is_signed: bool = True) -> list[int | None]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return [low, high, None, 0, 1]


def columns() -> dict[str, pa.Array]:
    """Values of every type that Arrow writes, their extremes among them, and NULLs."""
    texts, raw = ["a", "", None, "é", "a"], [b"\x00", b"", None, b"\xff\xfe", b"a"]
    made = {f"i{bits}": pa.array(extremes(bits), f"int{bits}") for bits in (8, 16, 32, 64)}
    made |= {f"u{bits}": pa.array(extremes(bits, is_signed=False), f"uint{bits}") for bits in (8, 16, 32, 64)}
    made |= {f"ts_{unit}": pa.array(MOMENTS, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
             for unit in ("s", "ms", "us")}  # fmt: skip
    made |= {f"tz_{unit}": made[f"ts_{unit}"].cast(pa.timestamp(unit, "UTC")) for unit in ("ms", "us")}
    made |= {f"d_{p}_{s}": pa.array(CENTS).cast(pa.decimal128(p, s)) for p, s in ((9, 2), (10, 2), (18, 2), (38, 9))}
    return made | {
        "b": pa.array([True, False, None, True, True]),
        "f16": pa.array([1.5, -0.0, None, NAN, INF], pa.float16()),
        "f32": pa.array([1.5, -0.0, None, NAN, INF], pa.float32()),
        "f64": pa.array([1e300, -0.0, None, NAN, INF]),
        "tz_berlin": made["ts_us"].cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Europe/Berlin")),
        "ts_ns": pa.array([0, 1_000, None, 1_999, -1], pa.timestamp("ns")),
        "day": pa.array(DAYS, pa.date32()),
        "day64": pa.array(DAYS, pa.date64()),
        "time": pa.array([0, 1, None, 2, 3], pa.time64("us")),
        "length": pa.array([0, 1, None, 2, 3], pa.duration("us")),
        "s": pa.array(texts),
        "s_large": pa.array(texts, pa.large_string()),
        "s_view": pa.array(texts, pa.string_view()),
        "s_dictionary": pa.array(texts, pa.large_string()).dictionary_encode(),
        "i_dictionary": pa.array(extremes(32), pa.int32()).dictionary_encode(),
        "x": pa.array(raw, pa.binary()),
        "x_large": pa.array(raw, pa.large_binary()),
        "x_view": pa.array(raw, pa.binary_view()),
        "x_fixed": pa.array([b"ab", b"\x00\xff", None, b"cd", b"ab"], pa.binary(2)),
        "uuid": pa.array([b"0123456789abcdef"] * 5, pa.uuid()),
        "json": pa.array(["{}"] * 5, pa.json_()),
        "nothing": pa.nulls(5),
        "rows": pa.array([{"x": 1}] * 5),
        "list": pa.array([[1], [], None, [2], [3]]),
        "map": pa.array([[("a", 1)]] * 5, pa.map_(pa.string(), pa.int64())),
        "dotted.name": pa.array(extremes(64)),
    }  # fmt: skip


def write_all(spark: SparkSession, folder: Path) -> None:
    """A file of each writer, and of some in several ways."""
    table = pa.table(columns())
    ids = [field.with_metadata({"PARQUET:field_id": str(n + 1)}) for n, field in enumerate(table.schema)]
    required = pa.schema([table.schema.field(name).with_nullable(False) for name in ("i64", "f64")])
    rows = pa.Table.from_arrays(table.columns, schema=pa.schema(ids))
    ways: dict[str, dict[str, Any]] = {
        "plain": {"use_dictionary": False},
        "dictionary": {"use_dictionary": True, "row_group_size": 2, "data_page_version": "2.0"},
        "unnamed": {"store_schema": False, "store_decimal_as_integer": True},
        "old": {"version": "1.0", "use_deprecated_int96_timestamps": True},
    }
    for name, way in ways.items():
        pq.write_table(rows, folder / f"pyarrow-{name}.parquet", **way)
    there = pa.table([rows["i64"].drop_null(), rows["f64"].drop_null()], schema=required)
    pq.write_table(there, folder / "pyarrow-required.parquet")
    pq.write_table(rows.slice(0, 0), folder / "pyarrow-empty.parquet")
    with pq.ParquetWriter(folder / "pyarrow-no-groups.parquet", rows.schema):
        pass
    (folder / "bytes.parquet").touch()
    simple = table.drop_columns(["uuid", "json", "map", "rows", "list", "nothing", "f16"])
    pl.DataFrame(simple.drop_columns(["time", "length"])).write_parquet(folder / "polars.parquet")
    numpy = simple.select(["i8", "i64", "b", "f32", "f64", "s", "x", "tz_us", "day"])
    frame = numpy.to_pandas(timestamp_as_object=True)
    frame["ns"] = pd.to_datetime([0, 1, None, 2, 3], unit="ns")
    frame["us"] = pd.to_datetime([0, 1, None, 2, 3], unit="us").astype("datetime64[us]")
    frame["many"] = pd.Categorical(["a", "b", None, "a", "b"])
    frame["text"] = pd.array(["a", "b", None, "a", "b"], dtype="string[pyarrow]")
    frame["whole"] = pd.array([1, 2, None, 3, 4], dtype="Int32")
    frame.to_parquet(folder / "pandas.parquet")
    simple = simple.drop_columns(["s_view", "x_view"])
    written = duckdb.sql("SELECT * , uuid() AS uuid, 'a'::ENUM('a', 'b') AS many, 12::HUGEINT AS huge, "
               "1::DECIMAL(4, 1) AS small FROM simple")  # fmt: skip
    assert written is not None
    written.write_parquet(str(folder / "duckdb.parquet"))
    common = simple.drop_columns(["ts_ns", "time", "length", "ts_s"])
    pq.write_table(common, folder / "common.parquet")
    by_spark = spark.read.parquet(str(folder / "common.parquet"))
    for name, settings in SPARKS.items():
        with set_to(spark, settings):
            by_spark.coalesce(1).write.parquet(str(folder / "written"), mode="overwrite")
        (written,) = (folder / "written").glob("*.parquet")
        written.rename(folder / f"spark-{name}.parquet")
    (folder / "common.parquet").unlink()


@contextmanager
def set_to(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def reader(folder: Path, types: Mapping[str, str]) -> ParquetColumns:
    """What reads columns of the files in a folder as these types."""
    schema = pa.schema([(column, TYPES[type_]) for column, type_ in types.items()])
    return ParquetColumns("files", tuple(types), schema, str(folder))


def sure(folder: Path, file: Path) -> dict[str, list[str]]:
    """As which types workers read each column of a file."""
    names = pq.read_schema(file).names if file.stat().st_size else []
    found: dict[str, list[str]] = {}
    for column in names:
        for type_ in TYPES:
            try:
                reader(folder, {column: type_}).check(str(file))
            except UnlikeSparkError:
                continue
            found.setdefault(column, []).append(type_)
    return found


def values(column: Any) -> list[str]:
    """Values that compare by what they are: NaN is itself, -0.0 is not 0.0, and times are numbers."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(whole.type):
        whole = whole.view("int64")
    elif pa.types.is_date(whole.type):
        whole = whole.cast("int32")
    elif pa.types.is_string(whole.type):
        whole = whole.cast("binary")
    return [repr(value) for value in whole.to_pylist()]


def rows(table: pa.Table) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(values(column) for column in table.columns), strict=True))


def differ(spark: SparkSession, files: list[Path], types: Mapping[str, str]) -> bool:
    """Whether workers read files otherwise than Spark."""
    own = reader(files[0].parent, types)
    mine = pa.Table.from_batches([part for file in files for part in own.read(f"file:{file}")], own.schema)
    ddl = ", ".join(f"`{column}` {type_}" for column, type_ in types.items())
    return rows(mine) != rows(spark.read.schema(ddl).parquet(*map(str, files)).toArrow())


def test_workers_read_what_spark_reads_of_all_writers(spark: SparkSession, tmp_path: Path) -> None:
    write_all(spark, tmp_path)
    read = {file: sure(tmp_path, file) for file in sorted(tmp_path.glob("*.parquet"))}
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for file, found in read.items():
        for number in range(max(map(len, found.values()), default=1)):
            some = {column: types[number] for column, types in found.items() if number < len(types)}
            groups.setdefault((*some.items(), ("missing", [*TYPES][number])), []).append(file)
    assert [(files, types) for types, files in groups.items() if differ(spark, files, dict(types))] == []
    # Nothing of this says that workers read anything at all.
    by_name = {file.stem: found for file, found in read.items()}
    for name, found in by_name.items():
        assert set(found).isdisjoint({"f16", "time", "nothing", "list", "rows", "map", "dotted.name"})
        if name not in ("bytes", "pandas", "pyarrow-required"):
            expected = {"i8": "TINYINT", "i64": "BIGINT", "f32": "FLOAT", "f64": "DOUBLE", "b": "BOOLEAN"}
            expected |= {"s_large": "STRING", "x": "BINARY", "d_9_2": "DECIMAL(9,2)", "s_dictionary": "STRING"}
            if "legacy" not in name:
                expected |= {"day": "DATE", "tz_us": "TIMESTAMP"}
            assert [column for column, type_ in expected.items() if type_ not in found.get(column, ())] == [], name
    assert by_name["polars"]["s"] == by_name["pyarrow-plain"]["s_view"] == by_name["pandas"]["text"]
    assert {"day", "tz_us"}.isdisjoint(by_name["spark-legacy"])
    assert "tz_us" not in by_name["spark-legacy96"]
    assert "u64" not in by_name["pyarrow-plain"]
    assert by_name["pyarrow-plain"]["f64"] == ["DOUBLE"]
    assert "INT" not in by_name["pyarrow-plain"]["i64"]
