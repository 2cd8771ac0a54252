"""Sources that workers read as columns give what Spark reads of them; and a large batch is joined in pieces."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import counted

import watersmeet as ws
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.physical.columnar import sources_of_columns
from watersmeet.queries import analyze, read_script
from watersmeet.spark.connectors.reading import find_unread, read_sources
from watersmeet.spark.run.build import build
from watersmeet.tools.explain.query import render

pytestmark = pytest.mark.spark

COLUMNS = (
    "id BIGINT, t TIMESTAMP, b BOOLEAN, d DATE, n DECIMAL(10,2), f FLOAT, g DOUBLE, s STRING, x BINARY, "
    "i INT, w TIMESTAMP_NTZ, missing STRING, day INT"
)
SCRIPT = """
CREATE STREAM l ({columns}, WATERMARK FOR t AS t - INTERVAL 1 MINUTE) USING parquet OPTIONS (path '{folder}/l');
CREATE STREAM r (id BIGINT, t TIMESTAMP, v STRING, WATERMARK FOR t AS t - INTERVAL 1 MINUTE)
    USING parquet OPTIONS (path '{folder}/r'{options});
SELECT STREAM l.*, r.v FROM l LEFT JOIN r WITHIN 10 MINUTES ON l.id = r.id{more};
"""


def write(folder: Path) -> None:
    """Files that Spark reads as declared, though not all are written so."""
    moments = pa.array([1_700_000_000_000_000 + n * 1_000_000 for n in range(6)], pa.timestamp("us", tz="UTC"))
    left = pa.table(
        {
            "ID": pa.array([1, 2, 3, 4, None, 6], pa.int32()),
            "t": moments.cast(pa.timestamp("ms", tz="UTC")),
            "b": [True, None, False, True, True, False],
            "d": pa.array([0, 1, None, 3, 4, 5], pa.date32()),
            "n": pa.array([None, "1.25", "-3.10", "0.00", "7.00", "8.00"]).cast(pa.decimal128(10, 2)),
            "f": pa.array([1.5, float("nan"), -0.0, None, 2.0, 3.0], pa.float32()),
            "g": [0.1, float("inf"), None, -0.0, float("nan"), 1.0],
            "s": pa.array(["a", None, "", "d", "e", "a"]).dictionary_encode(),
            "x": pa.array([b"", b"\x00", None, b"d", b"e", b"f"]),
            "i": pa.array([1, None, 3, 4, 5, 6], pa.int16()),
            "w": pa.array([5, None, 7, 8, 9, 10], pa.timestamp("us")),
            "unused": [[1]] * 6,
        }
    )
    right = pa.table({"id": pa.array([1, 3, 3, 9]), "t": moments.slice(0, 4), "v": ["p", "q", None, "z"]})
    (folder / "l" / "day=7").mkdir(parents=True)
    (folder / "r").mkdir()
    pq.write_table(left, folder / "l" / "day=7" / "0 %41.parquet", use_dictionary=True)
    pq.write_table(right, folder / "r" / "0.parquet")
    pq.write_table(right.slice(0, 0), folder / "r" / "1.parquet")


def result(frame: DataFrame, folder: Path) -> Counter[str]:
    out = folder / f"out{len(list(folder.iterdir()))}"
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}-state")
    writer.trigger(availableNow=True).start(str(out)).awaitTermination()
    return counted(frame.sparkSession.read.schema(frame.schema).parquet(str(out)).collect())


def test_workers_read_what_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path)
    text = SCRIPT.format(columns=COLUMNS, folder=tmp_path, options="", more="")
    script = read_script(text)
    by_workers = ws.sql(text, spark=spark)
    by_spark = build(spark, script, read_sources(spark, script, {}))[0].compiled.result
    assert "PackFiles" in cast("Any", by_workers)._jdf.queryExecution().logical().toString()
    assert by_workers.schema == by_spark.schema
    found = result(by_workers, tmp_path)
    assert found == result(by_spark, tmp_path)
    assert sum(found.values()) == 4


@pytest.mark.parametrize(
    ("options", "more", "read"),
    [
        ("", "", "l and r: Python workers"),
        (", maxFilesPerTrigger '1'", "", "l and r: Python workers"),
        (", mergeSchema 'true'", "", "l: Python workers"),
        ("", " AND r.v <> 'q'", "l and r: Python workers"),
        ("", " AND upper(l.s) = r.v", "r: Python workers"),
        ("", " AND l.g = CAST(r.v AS DOUBLE)", None),
    ],
)
def test_explain_says_which_sources_workers_read(tmp_path: Path, options: str, more: str, read: str | None) -> None:
    script = read_script(SCRIPT.format(columns=COLUMNS, folder=tmp_path, options=options, more=more))
    (query,) = analyze(script)
    said = render(query, plan_query(query, OPERATORS), OPERATORS)
    assert (read is None and "as columns" not in said) or (read is not None and f"{read} read the Parquet" in said)


def test_a_file_of_another_type_is_an_error_and_no_guess(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path)
    pq.write_table(pa.table({"id": ["1"], "t": pa.array([0], pa.timestamp("us", tz="UTC"))}), tmp_path / "r/2.parquet")
    frame = ws.sql(SCRIPT.format(columns=COLUMNS, folder=tmp_path, options="", more=""), spark=spark)
    with pytest.raises(Exception, match="PARQUET_COLUMN_DATA_TYPE_MISMATCH"):
        result(frame, tmp_path)


def test_a_shard_joins_a_large_batch_in_pieces(spark: SparkSession, tmp_path: Path) -> None:
    moments = pa.array([1_700_000_000_000_000 + n for n in range(3000)], pa.timestamp("us", tz="UTC"))
    for side in ("l", "r"):
        (tmp_path / side).mkdir()
        for part in range(3):
            rows = {"id": pa.array([n % 700 for n in range(part * 1000, part * 1000 + 1000)]), "v": [side] * 1000}
            table = pa.table(rows).append_column("t", moments.slice(part * 1000, 1000))
            pq.write_table(table, tmp_path / side / f"{part}.parquet")
            os.utime(tmp_path / side / f"{part}.parquet", (part, part))
    text = SCRIPT.format(columns="id BIGINT, t TIMESTAMP", folder=tmp_path, options="", more="")
    script = read_script(text)
    frames, files = read_sources(spark, script, {}), find_unread(spark, script, {})
    (built,) = build(spark, script, frames, files=files)
    whole = result(built.compiled.result, tmp_path)
    for shards in (2, 5):
        in_pieces = replace(built.compiler, bytes_per_step=4_000, shards=shards).compile_query(built.plan).result
        assert result(in_pieces, tmp_path) == whole


def test_a_table_that_must_be_there_first_is_left_to_spark_which_counts_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in "scfg":
        (tmp_path / name).mkdir()
    text = """{load}
    CREATE STREAM s (id INT) USING parquet OPTIONS (path '{folder}/s');
    CREATE TABLE c (id INT, PRIMARY KEY (id)) USING parquet OPTIONS (path '{folder}/c');
    CREATE TABLE f (id INT, PRIMARY KEY (id)) USING parquet OPTIONS (path '{folder}/f', static 'true');
    CREATE TABLE g (id INT, _change STRING, PRIMARY KEY (id)) USING parquet OPTIONS (path '{folder}/g');
    SELECT STREAM s.id FROM s JOIN c ON s.id = c.id;"""
    for load, read in (("", {"s", "c"}), ("SET watersmeet.table.load = first;", {"s"})):
        script = read_script(text.format(load=load, folder=tmp_path))
        assert find_unread(spark, script, {}).keys() == {"s", "c"}
        (query,) = analyze(script)
        assert sources_of_columns(plan_query(query, OPERATORS).relation) == read
