"""``make bench``: Watersmeet, Spark's own join on both of its state stores, and the floor, in one run.

Every contender has a process and a JVM of its own, one after the other, on the same files. A batch is one file per
side; the first quarter of the batches is warm-up. Results must have the same number of rows, or the run fails. Memory
is the peak of the processes' proportional share, so that pages which workers share count once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chart import draw
from bench.data import Workload
from bench.sections import SECTIONS, Bench

RESULTS = Path(__file__).parent / "results"
CHART = Path(__file__).parents[1] / "docs" / "images" / "growth.png"


def main() -> None:
    """Run the sections asked for and show what they measured."""
    options = _options()
    console = Console()
    workload = Workload(options.rows, options.keys, options.batches, options.within)
    bench = Bench(lambda said: console.print(said, style="dim"), options.rocksdb)
    measured: dict[str, list[dict[str, Any]]] = {}
    for name in options.sections:
        measured[name] = SECTIONS[name](bench, workload)
        console.print(_started(measured[name]) if name == "start" else _table(name, measured[name]))
    path = _write(workload, measured)
    console.print(f"Written to {path}")
    if "growth" in measured:
        CHART.parent.mkdir(exist_ok=True, parents=True)
        draw(measured["growth"], CHART)
        console.print(f"Drawn to {CHART}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Workload()
    about = "; ".join(f"{name}: {(section.__doc__ or '').splitlines()[0]}" for name, section in SECTIONS.items())
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=list(SECTIONS), help=about)
    parser.add_argument("--rows", type=int, default=default.rows, help="rows of both sides together")
    parser.add_argument("--keys", type=int, default=default.keys, help="distinct keys")
    parser.add_argument("--batches", type=int, default=default.batches, help="micro-batches, one file per side each")
    parser.add_argument("--within", type=int, default=default.within, help="bound of the join in seconds")
    parser.add_argument("--rocksdb", help="which of Spark's own joins on RocksDB to take, as spark-rocksdb-2")
    return parser.parse_args()


def _table(name: str, measured: list[dict[str, Any]]) -> Table:
    table = Table(title=(SECTIONS[name].__doc__ or "").splitlines()[0])
    headings = ("rows/s", "s per batch", "median", "p99", "result rows", "rows kept", "JVM, MB", "workers, MB", "ratio")
    table.add_column("contender")
    for heading in headings:
        table.add_column(heading, justify="right")
    ours = next((m for m in measured if m["contender"] == "watersmeet"), None)
    for m in measured:
        ratio = "" if ours is None or m is ours else f"{m['seconds_per_batch'] / ours['seconds_per_batch']:.2f}"
        table.add_row(
            m["label"], f"{m['rows_per_second']:,}", f"{m['seconds_per_batch']:.3f}", f"{m['median']:.3f}",
            f"{m['p99']:.3f}", "" if m["contender"] == "floor" else f"{m['results']:,}", f"{m['state_rows']:,}",
            f"{m['jvm_megabytes']:,}", f"{m['workers_megabytes']:,}", ratio,
        )  # fmt: skip
    return table


def _started(measured: list[dict[str, Any]]) -> Table:
    table = Table(title="Seconds to the first result")
    for heading in ("contender", "first query of its kind", "later ones, median"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for m in measured:
        table.add_row(m["label"], f"{m['first']:.2f}", f"{m['later']:.2f}")
    return table


def _write(workload: Workload, measured: dict[str, list[dict[str, Any]]]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "system": platform.system()}
    content = {"at": now.isoformat(), "machine": machine, "workload": asdict(workload), "measured": measured}
    path = RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


if __name__ == "__main__":
    main()
