"""``make soak``: an hour of event time through a LEFT join, to see that state and memory stay flat.

Every batch brings a minute of event time. The bound is five minutes, so the state stops growing after about ten
batches; the run fails if it or the memory still grows in the second half.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import watersmeet as ws
from bench.contender import SCHEMA
from bench.data import LAG_SECONDS, Workload, write
from bench.memory import memory
from watersmeet.observe.progress import progress_of
from watersmeet.spark.session import session

GROWTH = 1.25
"""How much larger the last quarter may be than the second, for what must not grow."""


def main() -> None:
    """Run the soak and print its curve."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=60, help="of event time, one batch each")
    parser.add_argument("--rows", type=int, default=40_000, help="per minute, both sides together")
    options = parser.parse_args()
    console = Console()
    workload = Workload(options.rows * options.minutes, 20_000, options.minutes, within=300)
    folder = write(workload, Path(tempfile.gettempdir()) / "watersmeet-bench")
    curve = _run(folder, workload, console)
    console.print(_table(curve))
    _check(curve)


def _run(folder: Path, workload: Workload, console: Console) -> list[dict[str, Any]]:
    spark = session("local[2]", log=Path(tempfile.gettempdir()) / "watersmeet-bench.log")
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
            for reported in query.recentProgress:
                if reported["batchId"] == len(curve) and reported["numInputRows"]:
                    progress = progress_of("soak", reported, frozenset())
                    jvm, workers = memory(os.getpid())
                    now = {"state": progress.state_rows, "seconds": progress.seconds, "jvm": jvm, "workers": workers}
                    curve.append(now)
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
