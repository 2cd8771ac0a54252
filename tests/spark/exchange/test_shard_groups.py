"""Shards that come in one group of Spark's: each keeps its own state, where Spark looks for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.queries import read_script
from watersmeet.spark.exchange.store import labels
from watersmeet.spark.run.running import run_script

pytestmark = pytest.mark.spark

SHARDS, PARTITIONS = 8, 2
STREAM = "(k STRING, t BIGINT, WATERMARK FOR t AS t - 3) USING json OPTIONS (path '{}/{}', maxFilesPerTrigger '1')"
TEXT = """
SET watersmeet.shards = {shards};
CREATE STREAM a {a};
CREATE STREAM b {b};
CREATE SINK joined USING json OPTIONS (path '{folder}/{out}/joined');
INSERT INTO joined SELECT STREAM a.k, a.t, b.k AS bk, b.t AS bt
FROM a FULL JOIN b ON a.k = b.k AND b.t BETWEEN a.t - 4 AND a.t + 4;
"""


def test_the_state_of_each_shard_is_where_spark_puts_it(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(2):
        arrive(tmp_path, batch)
        # What the session says by now does not count: a checkpoint has its own number of partitions.
        with_partitions(spark, PARTITIONS + batch, lambda: run(spark, tmp_path, "many", SHARDS))
    run(spark, tmp_path, "two", 2)
    assert sink_lines(tmp_path, "many") == sink_lines(tmp_path, "two")
    kept = spark.read.format("statestore").option("stateVarName", "state")
    kept = kept.load(str(tmp_path / "storage-many" / "checkpoints" / "joined"))
    places = kept.select(F.col("key.shard"), "partition_id", F.expr(f"pmod(hash(key.shard), {PARTITIONS}) AS spark"))
    found = places.distinct().collect()
    assert {row["shard"] for row in found} == set(labels(SHARDS))
    assert all(row["partition_id"] == row["spark"] for row in found) and len(found) == SHARDS


def test_two_stages_that_feed_one_have_groups_of_shards_too(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(2):
        arrive(tmp_path, batch)
    both = {name: f"SELECT TABLE k, count(*) AS n FROM {name} GROUP BY k" for name in "ab"}
    text = TEXT[: TEXT.index("INSERT")].replace("/joined'", "/joined', changes 'log'") + (
        f"CREATE VIEW x AS {both['a']}; CREATE VIEW y AS {both['b']};"
        " INSERT INTO joined SELECT TABLE x.k, x.n, y.n AS m FROM x JOIN y ON x.k = y.k;"
    )
    found = {}
    for out, shards in (("many", SHARDS), ("two", 2)):
        with_partitions(spark, PARTITIONS, lambda out=out, shards=shards: run(spark, tmp_path, out, shards, text))
        found[out] = sink_lines(tmp_path, out)
    assert found["many"] == found["two"] and found["two"]


def with_partitions(spark: SparkSession, partitions: int, work: Callable[[], None]) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    try:
        work()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def run(spark: SparkSession, folder: Path, out: str, shards: int, text: str = TEXT) -> None:
    streams = {name: STREAM.format(folder, name) for name in "ab"}
    script = read_script(text.format(folder=folder, out=out, shards=shards, **streams))
    run_script(script, spark=spark, storage=folder / f"storage-{out}", trigger="available_now")


def arrive(folder: Path, batch: int) -> None:
    for stream, apart in (("a", 41), ("b", 37)):
        (folder / stream).mkdir(exist_ok=True)
        rows = [{"k": f"k{i % apart}", "t": batch * 10 + i % 10} for i in range(100)]
        (folder / stream / f"{batch}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def sink_lines(folder: Path, out: str) -> Counter[str]:
    files = [file for file in (folder / out).rglob("*.json") if not file.name.startswith((".", "_"))]
    return Counter(line for file in files for line in file.read_text().splitlines())
