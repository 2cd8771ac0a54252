"""``make soak``: an hour of event time through a LEFT join, to check that state and memory stay flat.

Every batch brings a minute of event time. The bound is five minutes, so the state stops growing after about ten
batches; the run fails if it or the memory still grows in the second half.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import watersmeet as ws
from bench.contender import SCHEMA, of_ours
from bench.data import LAG_SECONDS, Workload
from bench.memory import memory
from bench.running import data_of
from watersmeet.spark.session import session

GROWTH = 1.25
"""The factor by which the last quarter may exceed the second, of numbers that must not grow."""


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> None:
    """Run the soak, in a given session or in its own, and print its curve."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=60, help="of event time, one batch each")
    parser.add_argument("--rows", type=int, default=40_000, help="per minute, both sides in total")
    parser.add_argument("--within", type=int, default=300, help="bound of the join in seconds")
    options = parser.parse_args(arguments)
    console = Console()
    workload = Workload(options.rows * options.minutes, 20_000, options.minutes, options.within)
    spark = spark or session("local[2]", log=Path(tempfile.gettempdir()) / "watersmeet-bench.log")
    curve = _run(spark, data_of(workload), workload, console)
    console.print(_table(curve))
    _check(curve)


def _run(spark: SparkSession, folder: Path, workload: Workload, console: Console) -> list[dict[str, Any]]:
    sides = [
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder / side))
        for side in ("left", "right")
    ]
    left, right = (side.withWatermark("ts", f"{LAG_SECONDS} seconds") for side in sides)
    joined = ws.join(left, right, on="left.id = right.id", within=workload.within_text, how="left")
    checkpoint = tempfile.mkdtemp(prefix="watersmeet-soak-")
    query = (
        joined.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    curve: list[dict[str, Any]] = []
    try:
        while not query.awaitTermination(1) or len(curve) < workload.batches:
            for progress in query.recentProgress:
                if progress["batchId"] == len(curve) and progress["numInputRows"]:
                    jvm, workers = memory(os.getpid())
                    seconds = progress["durationMs"]["triggerExecution"] / 1000
                    curve.append(
                        {"state": of_ours(progress, "state"), "seconds": seconds, "jvm": jvm, "workers": workers}
                    )
            console.print(f"{len(curve)} of {workload.batches} minutes", end="\r")
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    return curve


def _table(curve: list[dict[str, Any]]) -> Table:
    table = Table(title="Soak")
    for heading in ("minute", "state rows", "s per batch", "JVM, MB", "workers, MB"):
        table.add_column(heading, justify="right")
    step = max(1, len(curve) // 20)
    for minute in range(0, len(curve), step):
        at = curve[minute]
        table.add_row(str(minute), f"{at['state']:,}", f"{at['seconds']:.2f}", f"{at['jvm']:,}", f"{at['workers']:,}")
    return table


def _check(curve: list[dict[str, Any]]) -> None:
    quarter = len(curve) // 4
    for name in ("state", "workers"):
        early = median(at[name] for at in curve[quarter : 2 * quarter])
        last = median(at[name] for at in curve[-quarter:])
        if last > early * GROWTH:
            sys.exit(f"{name} still grows: {early:,.0f} in the second quarter, {last:,.0f} in the last")


if __name__ == "__main__":
    main()
