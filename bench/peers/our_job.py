"""A query on Watersmeet, in a process of its own: ``python -m bench.peers.our_job '{...}'``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from bench.contender import LAUNCHED
from bench.peers.queries import QUERIES


def main() -> None:
    """Run what is asked in a session of its own, and tell how long that took and, if asked to, what came out."""
    launched = float(os.environ[LAUNCHED])
    from watersmeet.spark.session import session

    spark = session("local[2]", conf={"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "2"})
    print("RESULT " + json.dumps(run(json.loads(sys.argv[1]), spark, launched)), flush=True)


def run(asked: dict[str, Any], spark: SparkSession, launched: float) -> dict[str, Any]:
    """What a run of a script took; ``collect``: with the rows that are there in the end."""
    import watersmeet as ws

    shown = ws.sql(asked["script"], spark=spark)
    ready = time.time()
    result: dict[str, Any] = {"start": round(ready - launched, 2)}
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-", ignore_cleanup_errors=True) as folder:
        writer = shown.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        if asked["collect"]:
            writer.format("parquet").option("path", f"{folder}/result").start().awaitTermination()
            result["rows"] = _in_the_end(spark.read.schema(shown.schema).parquet(f"{folder}/result"), asked["name"])
        else:
            writer.format("noop").start().awaitTermination()
    result["run"] = round(time.time() - ready, 2)
    return result


def _in_the_end(result: DataFrame, name: str) -> list[list[str | None]]:
    """The rows as texts, those that were taken back left out."""
    weight = F.expr("IF(_change = '+', 1, -1)") if "_change" in result.columns else F.lit(1)
    texts = [F.col(column).cast("string").alias(column) for column in QUERIES[name].columns]
    found = result.groupBy(*texts).agg(F.sum(weight).alias("#times")).where("`#times` <> 0").collect()
    return [list(row)[:-1] for row in found for _ in range(row["#times"])]


if __name__ == "__main__":
    main()
