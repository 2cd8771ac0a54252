"""Input files through the whole: what only Spark reads is read by Spark, and a file that is gone is missed."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import count_rows, rows_of

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.connectors.reading import SETTINGS
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners

pytestmark = pytest.mark.spark

NOBODY = (
    "CREATE STREAM nobody (id BIGINT, t BIGINT, WATERMARK FOR t AS t) USING parquet OPTIONS (path '{folder}/none');"
)
SOURCE = """
CREATE STREAM {name} (id BIGINT, t BIGINT, {columns}, WATERMARK FOR t AS t)
    USING {format} OPTIONS (path '{path}'{options});
"""
QUERY = """
CREATE SINK {name}_out USING parquet OPTIONS (path '{folder}/out/{name}');
INSERT INTO {name}_out
SELECT STREAM l.* FROM {name} l LEFT JOIN nobody r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 1;
"""
CREATED = """
CREATE STREAM {name} (id BIGINT, t BIGINT, {columns}, WATERMARK FOR t AS t) USING parquet OPTIONS (path '{path}');
"""
JOINED = """
CREATE SINK out USING parquet OPTIONS (path '{out}');
INSERT INTO out SELECT STREAM x, s, v, y.d, legacy.d AS e, m
FROM above JOIN same ON above.id = same.id AND same.t BETWEEN above.t AND above.t + 1
JOIN day y ON above.id = y.id AND y.t BETWEEN above.t AND above.t + 1
JOIN legacy ON above.id = legacy.id AND legacy.t BETWEEN above.t AND above.t + 1;
"""


def script(folder: Path, columns: Mapping[str, str], format_: str = "parquet", options: str = "") -> str:
    """A query for each source, which shows its rows as they are."""
    (folder / "none").mkdir(exist_ok=True)
    text = NOBODY.format(folder=folder)
    for name, declared in columns.items():
        text += SOURCE.format(name=name, columns=declared, format=format_, path=folder / name, options=options)
        text += QUERY.format(name=name, folder=folder)
    return text


def run(spark: SparkSession, text: str, folder: Path, trigger: Trigger = "end") -> None:
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger=trigger)


def put(file: Path, number: int = 0, **columns: object) -> Path:
    """A file that appears whole, with a row of its own."""
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_name(f".{file.name}")
    pq.write_table(pa.table({"id": [number], "t": [number], **columns}), hidden)
    os.utime(hidden, (number, number))
    return hidden.rename(file)


@pytest.mark.smoke
def test_a_run_has_the_values_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x=1" / "above").mkdir(parents=True)
    pl.DataFrame({"id": [1], "t": [1], "s": ["polars"]}).write_parquet(tmp_path / "x=1" / "above" / "0.parquet")
    put(tmp_path / "same" / "v=7" / "0.parquet", 1, v=[1])
    put(tmp_path / "day" / "0.parquet", 1, d=[dt.date(1500, 1, 1)])
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    old = spark.sql("SELECT 1L AS id, 1L AS t, DATE'1500-01-01' AS d, TIMESTAMP'1500-01-01 00:00:00' AS m")
    old.coalesce(1).write.parquet(str(tmp_path / "legacy"))
    spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")
    text = CREATED.format(name="above", columns="x STRING, s STRING", path=tmp_path / "x=1" / "above")
    text += CREATED.format(name="same", columns="v INT", path=tmp_path / "same")
    text += CREATED.format(name="day", columns="d TIMESTAMP_NTZ", path=tmp_path / "day")
    text += CREATED.format(name="legacy", columns="d DATE, m TIMESTAMP", path=tmp_path / "legacy")
    run(spark, text + JOINED.format(out=tmp_path / "out"), tmp_path, "available_now")
    expected = "SELECT NULL, 'polars', 7, TIMESTAMP_NTZ'1500-01-01', DATE'1500-01-01', TIMESTAMP'1500-01-01'"
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == rows_of(spark.sql(expected))


def is_columnar(frame: DataFrame) -> bool:
    return "PackFiles" in cast("Any", frame)._jdf.queryExecution().logical().toString()


def test_a_session_that_reads_otherwise_reads_itself(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "same" / "0.parquet", v=[1])
    text = script(tmp_path, {"same": "v INT"}).replace("INSERT INTO same_out", "")
    assert is_columnar(ws.sql(text, spark=spark))
    for name, usual in SETTINGS.items():
        spark.conf.set(name, {"true": "false", "false": "true"}.get(usual, "EXCEPTION"))
        assert not is_columnar(ws.sql(text, spark=spark)), name
        spark.conf.unset(name)


def test_a_run_leaves_files_to_spark_once_it_must(spark: SparkSession, tmp_path: Path) -> None:
    """A file comes while the query runs: nothing is lost, nothing doubled, and no one has to do anything."""
    put(tmp_path / "late" / "0.parquet", 1, v=["a"])
    news: list[str] = []
    batches = 0

    def on_progress(progress: object) -> None:
        nonlocal batches
        batches += 1
        if batches == 1:
            put(tmp_path / "late" / "1.parquet", 2, v=pa.array(["b"]))
            put(tmp_path / "late" / "2.parquet", 3, v=pa.array(["c"]).dictionary_encode(), w=[dt.date(1500, 1, 1)])

    text = script(tmp_path, {"late": "v STRING, w TIMESTAMP_NTZ"})
    with pytest.raises(KeyboardInterrupt):
        run_script(
            read_script(text),
            spark=spark,
            storage=tmp_path / "storage",
            trigger="continuous",
            listeners=Listeners(on_progress=on_progress, on_news=news.append, is_interrupted=lambda: batches > 1),
        )
    assert any("late is read by Spark from now on: its column `w` is INT32 (Date)" in line for line in news)
    run(spark, text, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out" / "late")).select("id", "v", "w")
    expected = spark.read.schema("id BIGINT, v STRING, w TIMESTAMP_NTZ").parquet(str(tmp_path / "late"))
    assert count_rows(found.collect()) == count_rows(expected.collect())
    assert found.count() == 3


def forget_last(log: Path) -> None:
    """Put a log of Spark's back to where a crash before the end of the last batch leaves it."""
    last = max((file for file in log.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_file_that_is_gone_before_its_batch_is_repeated(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    folder = tmp_path / "gone"
    for number in range(3):
        file = put(folder / f"{number} %41.parquet", number, v=["a"])
        if format_ == "json":
            file.with_suffix(".json").write_text(f'{{"id": {number}, "t": {number}, "v": "a"}}\n')
            file.unlink()
            os.utime(file.with_suffix(".json"), (number, number))
    columns = {"gone": "v STRING"}
    text = script(tmp_path, columns, format_, ", maxFilesPerTrigger '1'")
    run(spark, text, tmp_path, "available_now")
    forget_last(tmp_path / "storage" / "checkpoints" / "gone_out" / "commits")
    first, last = folder / f"0 %41.{format_}", folder / f"2 %41.{format_}"
    first.unlink()
    last.unlink()
    with pytest.raises(WatersmeetError) as raised:
        run(spark, text, tmp_path, "available_now")
    (refusal,) = raised.value.refusals
    assert refusal.condition == "INPUT_FILE_GONE"
    assert Path(refusal.parameters["file"]) == last, "that of finished batches is missed by nobody"
    run(spark, script(tmp_path, columns, format_, ", ignoreMissingFiles 'true'"), tmp_path)
    # What was in the file is gone from the state with it: its row never dies alone.
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out" / "gone")).collect()) == [0, 1]


def test_a_file_that_is_gone_from_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    for number in range(2):
        put(tmp_path / "left" / f"{number}.parquet", number)
        (tmp_path / "right" / f"{number}.csv").write_text(f"{number},{number}\n")
        os.utime(tmp_path / "right" / f"{number}.csv", (number, number))
    put(tmp_path / "third" / "0.parquet")

    def start(**options: str) -> None:
        reader = spark.readStream.schema("id BIGINT, t BIGINT").options(maxFilesPerTrigger="1", **options)
        once, right = reader.parquet(str(tmp_path / "left")), reader.csv(str(tmp_path / "right"))
        # Spark has one folder for what is read twice, and two offsets.
        left = once.union(once).union(reader.parquet(str(tmp_path / "third")))
        frame = ws.join(left, right, on="left.id = right.id", within=1, left_time="t", right_time="t")
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "state"))
        writer.trigger(availableNow=True).start().awaitTermination()

    start()
    forget_last(tmp_path / "state" / "commits")
    (tmp_path / "right" / "0.csv").unlink()
    (tmp_path / "right" / "1.csv").rename(tmp_path / "away")
    with pytest.raises(WatersmeetError, match=r"its input file .*right/1\.csv, so rows"):
        start()
    (tmp_path / "away").rename(tmp_path / "right" / "1.csv")
    start()
    forget_last(tmp_path / "state" / "commits")
    (tmp_path / "right" / "1.csv").unlink()
    start(ignoreMissingFiles="true")
    forget_last(tmp_path / "state" / "commits")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    start()
    spark.conf.unset("spark.sql.files.ignoreMissingFiles")
