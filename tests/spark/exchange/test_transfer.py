"""Queries in which Spark does not count the bytes that cross to Python: which they are, and that rows are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType
from tests.spark.frames import count_rows, stream_files

import watersmeet as ws
from watersmeet.queries import read_script
from watersmeet.spark.private import transfer, writers
from watersmeet.spark.private.transfer import BYTES, UNLIMITED
from watersmeet.spark.run.running import run_script

pytestmark = pytest.mark.spark

ROWS = 20_000
_NUMBERS = count()


def stream(spark: SparkSession, folder: Path, *more: str) -> DataFrame:
    columns = [
        "id % 5000 AS id",
        "timestamp_micros(id * 1000000) AS t",
        f"id AS v{folder.name}",
        f"CAST(id AS DECIMAL(38, 2)) AS d{folder.name}",
    ]
    rows = spark.range(ROWS).selectExpr(*columns, *more)
    return stream_files(folder, [rows.where("id < 2500"), rows.where("id >= 2500")]).withWatermark("t", "1 hour")


def write_stream(frame: DataFrame, folder: Path) -> DataFrame:
    """What a stream writes, by a sink of Spark's."""
    at = str(folder / f"out{next(_NUMBERS)}")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{at}-checkpoint")
    writer.trigger(availableNow=True).start(at).awaitTermination()
    return frame.sparkSession.read.parquet(at)


def report_setting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What tasks know of the setting."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        value = context.getLocalProperty("spark.sql.execution.arrow.maxBytesPerBatch")
        yield pa.record_batch({"told": pa.array([value] * batch.num_rows, pa.string())})


def setting(frame: DataFrame, folder: Path) -> str | None:
    (found,) = {row[0] for row in write_stream(frame.mapInArrow(report_setting, "told STRING"), folder).collect()}
    return found


def with_setting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, each with what tasks know of the setting."""
    context = TaskContext.get()
    assert context is not None
    value = context.getLocalProperty("spark.sql.execution.arrow.maxBytesPerBatch")
    for batch in batches:
        setting = pa.array([value] * batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, setting], names=[*batch.schema.names, "setting"])


def rows_and_setting(frame: DataFrame, folder: Path) -> tuple[Counter[str], str | None]:
    """The rows that a query writes, and the setting with which its tasks ran."""
    shown = write_stream(frame.mapInArrow(with_setting, StructType([*frame.schema]).add("setting", "string")), folder)
    (value,) = {row[0] for row in shown.select("setting").distinct().collect()}
    return count_rows(shown.drop("setting").collect()), value


def test_queries_of_fixed_width_run_without_a_count_of_bytes_and_give_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    a, b = (stream(spark, tmp_path / name) for name in "ab")
    # Behind the first join rows go by another key, through a second exchange.
    chain = "SELECT STREAM x.id, x.va, y.vb, z.da FROM a AS x JOIN b AS y WITHIN 10m ON x.id = y.id"
    queries = [
        lambda: ws.join(a, b, on="id", within="10 minutes", how="left"),
        lambda: ws.sql(f"{chain} JOIN a AS z ON x.va = z.va AND z.t BETWEEN y.t - INTERVAL '1' HOUR AND y.t", a=a, b=b),
    ]
    for query in queries:
        rows, value = rows_and_setting(query(), tmp_path)
        assert value == UNLIMITED
        spark.conf.set(BYTES, "67108864")
        try:
            # A value that was set holds.
            assert rows_and_setting(query(), tmp_path) == (rows, "67108864") and len(rows) > 10_000
        finally:
            spark.conf.unset(BYTES)
    assert BYTES not in spark.conf.getAll


def test_a_query_goes_on_either_way(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint that was begun with the limit goes on without it, and the other way round."""
    whole = ws.join(*(stream(spark, tmp_path / name) for name in "ab"), on="id", within="10 minutes")
    expected = count_rows(write_stream(whole, tmp_path).collect())
    for limits in (("67108864", None), (None, "67108864")):
        parts = tmp_path / f"parts{limits[0]}"
        for files, limit in enumerate(limits, 1):
            if limit is not None:
                spark.conf.set(BYTES, limit)
            try:
                for name in "ab":
                    (parts / name).mkdir(parents=True, exist_ok=True)
                    for file in sorted((tmp_path / name).glob("*.parquet"))[:files]:
                        (parts / name / file.name).write_bytes(file.read_bytes())
                frames = [
                    spark.readStream.schema(whole_schema(spark, tmp_path / name)).parquet(str(parts / name))
                    for name in "ab"
                ]
                joined = ws.join(*(f.withWatermark("t", "1 hour") for f in frames), on="id", within="10 minutes")
                writer = joined.writeStream.format("parquet").option("checkpointLocation", str(parts / "checkpoint"))
                writer.trigger(availableNow=True).start(str(parts / "out")).awaitTermination()
            finally:
                spark.conf.unset(BYTES)
        found = count_rows(spark.read.parquet(str(parts / "out")).collect())
        assert found == expected


def whole_schema(spark: SparkSession, folder: Path) -> Any:
    return spark.read.parquet(str(folder)).schema


def test_rows_that_may_be_long_are_counted_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    a, b = stream(spark, tmp_path / "a", "'text' AS x"), stream(spark, tmp_path / "b")
    joined = ws.join(a, b, on="id", within="10 minutes")
    assert setting(joined.select("id"), tmp_path) is None
    # Where no one reads the text it does not cross.
    assert setting(ws.join(a.drop("x"), b, on="id", within="10 minutes").select("id"), tmp_path) == UNLIMITED


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.withColumn("x", F.lit("text")).mapInArrow(report_setting, "told STRING"),
        lambda frame: frame.select(cast("Any", F.pandas_udf)(lambda v: v, "bigint")("id")).mapInArrow(
            report_setting, "told STRING"
        ),
        lambda frame: frame.where(F.udf(lambda v: True, "boolean")("id")).mapInArrow(report_setting, "told STRING"),
    ],
)
def test_rows_of_others_that_may_be_long_are_counted_as_ever(
    spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame]
) -> None:
    a, b = (stream(spark, tmp_path / name) for name in "ab")
    joined = ws.join(a, b, on="id", within="10 minutes")
    assert {row[0] for row in write_stream(change(joined), tmp_path).collect()} == {None}


def test_handling_of_batches_decides_too(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    kept = writers._set
    monkeypatch.setattr(writers, "_set", lambda session, made: given.append(made.get(BYTES)) or kept(session, made))
    a, b = (stream(spark, tmp_path / name) for name in "ab")
    joined = ws.join(a, b, on="id", within="10 minutes")
    writer = joined.writeStream.foreachBatch(lambda rows, number: print(rows.collect())).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    # A function of others may do anything with rows.
    assert given == [None]

    columns = "id BIGINT, t TIMESTAMP, v DOUBLE, WATERMARK FOR t AS t - INTERVAL '1' HOUR"
    for name in "cd":
        rows = spark.range(100).selectExpr("id", "timestamp_micros(id * 1000000) AS t", "DOUBLE(id) AS v")
        rows.write.json(str(tmp_path / name))
    text = "".join(f"CREATE STREAM {n} ({columns}) USING json OPTIONS (path '{tmp_path}/{n}');" for n in "cd")
    text += f"CREATE SINK o USING json OPTIONS (path '{tmp_path}/o');"
    text += "INSERT INTO o SELECT STREAM c.id, d.v FROM c JOIN d WITHIN 1m ON c.id = d.id;"
    run_script(read_script(text), spark=spark, storage=tmp_path / "storage", trigger="available_now")
    assert given == [None, UNLIMITED]
    assert spark.read.json(str(tmp_path / "o")).count() == 100


def test_hidden_plans_leave_the_count_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise TypeError("'JavaPackage' object is not callable")

    a, b = (stream(spark, tmp_path / name) for name in "ab")
    joined = ws.join(a, b, on="id", within="10 minutes").select("id")
    monkeypatch.setattr(transfer, "_in_plan", fail)
    assert setting(joined, tmp_path) is None
