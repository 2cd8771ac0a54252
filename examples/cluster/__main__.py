"""The same job in local mode and on a standalone cluster, with the package shipped to the executors.

Run it with ``.venv/bin/python -m examples.cluster``. It runs ``joined.sql`` in local mode, starts a master and two
workers on loopback, runs the same on them, with the command and from Python, and compares the results row by row.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from examples.cluster.job import join_streams, package_files
from examples.cluster.standalone import DRIVER, HOST, package_zip, standalone_cluster

from watersmeet.spark.session import session

WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))
SCRIPT = Path(__file__).with_name("joined.sql")
START = datetime(2026, 3, 2, 8, tzinfo=UTC)
ORDERS = pa.schema([("id", pa.int64()), ("ordered", pa.timestamp("us", "UTC")), ("amount", pa.int32())])
DELIVERIES = pa.schema([("order_id", pa.int64()), ("delivered", pa.timestamp("us", "UTC")), ("courier", pa.string())])
FILES = 4
"""Files per stream; each holds an hour."""


def make_project(folder: Path, orders: int = 2_000, seed: int = 7) -> Path:
    """The script in a folder of its own, with its data: out of order, a quarter never delivered, some too late."""
    chance = random.Random(seed)
    ordered: list[tuple[Any, ...]] = []
    delivered: list[tuple[Any, ...]] = []
    for number in range(orders):
        moment = START + timedelta(seconds=chance.randrange(FILES * 3600))
        ordered.append((number, moment, chance.randrange(1, 100)))
        if number % 4:
            later = moment + timedelta(minutes=chance.randrange(80))
            delivered.append((number, later, chance.choice(["north", "river", "hill"])))
    _write(folder / "data" / "orders", ordered, ORDERS)
    _write(folder / "data" / "deliveries", delivered, DELIVERIES)
    shutil.copy(SCRIPT, folder)
    return folder / SCRIPT.name


def run(script: Path, master: str, conf: Mapping[str, str]) -> None:
    """Run a script over what is there now with the command, on that master."""
    command = [WATERSMEET, "run", str(script), "--once", "--master", master, "--format", "json"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    subprocess.run(command, check=True, env=os.environ | {"SPARK_LOCAL_IP": HOST})


def rows(folder: Path) -> Counter[tuple[object, ...]]:
    """The rows of the Parquet files in a folder, as a multiset."""
    columns = pq.read_table(folder).to_pydict()
    return Counter(zip(*columns.values(), strict=True))


def main() -> None:
    """Run the job in local mode, then on the cluster with the command and from Python, and compare."""
    # A polite kill must not leave the cluster behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = package_zip(folder / "watersmeet.zip")
        here, there = make_project(folder / "here"), make_project(folder / "there")
        print("In local mode:", flush=True)
        run(here, "local[2]", {"spark.sql.shuffle.partitions": "2"})
        shipped = {**DRIVER, "spark.submit.pyFiles": str(package)}
        with standalone_cluster(folder / "cluster") as master:
            print(f"On {master}:", flush=True)
            run(there, master, shipped)
            spark = session(master, conf=shipped, log=folder / "spark.log")
            print(f"The executors import {', '.join(package_files(spark))}.", flush=True)
            join_streams(spark, there.parent / "data", folder / "in_python")
            spark.stop()
        expected = rows(here.parent / "joined")
        for way, where in (("with the command", there.parent / "joined"), ("from Python", folder / "in_python")):
            if rows(where) != expected:
                raise SystemExit(f"The cluster, {way}, has given other rows.")
        print(f"{expected.total():,} rows, the same in local mode and, both ways, on the cluster.")


def _write(folder: Path, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> None:
    """Rows as one file per hour, by the time in their second column; what comes after the last hour goes with it."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        begins, ends = (START + timedelta(hours=hour) for hour in (number, number + 1 if number < FILES - 1 else 99))
        columns = zip(*(row for row in rows if begins <= row[1] < ends), strict=True)
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table([list(column) for column in columns], schema=schema), file)
        # Spark takes files in the order of their times.
        os.utime(file, (START.timestamp() + number, START.timestamp() + number))


if __name__ == "__main__":
    main()
