"""``make bench``: Watersmeet, Spark's own join on both of its state stores, and the floor, in one run.

Every contender has a process and a JVM of its own, one after the other, on the same files. A batch is one file per
side; the first
quarter of the batches is warm-up. Results must have the same number of rows, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.data import Workload, write

FORMATS = ("2", "3", "4")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run all contenders and compare them."""
    options = _options()
    console = Console()
    workload = Workload(options.rows, options.keys, options.batches, options.within)
    root = Path(tempfile.gettempdir()) / "watersmeet-bench"
    folder = write(workload, root)
    contenders = options.only or [
        "floor",
        "watersmeet",
        "spark-memory",
        _best_format(options.how, workload, root, console),
    ]
    measured = []
    for contender in contenders:
        with console.status(f"{contender}: {workload.rows:,} rows"):
            measured.append(_run(contender, folder, workload, options.how))
        console.print(f"{contender}: {measured[-1]['rows_per_second']:,} rows/s", style="dim")
    console.print(_table(measured))
    path = _write(workload, options.how, measured)
    console.print(f"Written to {path}")
    _check_results(measured)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    default = Workload()
    parser.add_argument("--rows", type=int, default=default.rows, help="rows of both sides together")
    parser.add_argument("--keys", type=int, default=default.keys, help="distinct keys")
    parser.add_argument("--batches", type=int, default=default.batches, help="micro-batches, one file per side each")
    parser.add_argument("--within", type=int, default=default.within, help="bound of the join in seconds")
    parser.add_argument("--how", default="inner", choices=["inner", "left", "right", "full"])
    parser.add_argument("--only", nargs="*", help="contenders to run, for example: watersmeet floor")
    return parser.parse_args()


def _best_format(how: str, workload: Workload, root: Path, console: Console) -> str:
    """Spark's own join has several formats of state: a short run of each tells which one is its best on RocksDB."""
    short = replace(workload, rows=workload.rows // 8, batches=max(4, workload.batches // 4))
    folder = write(short, root)
    found: dict[str, int] = {}
    for version in FORMATS:
        with console.status(f"Spark's own join on RocksDB, state format {version}: a short run"):
            try:
                found[version] = _run(f"spark-rocksdb-{version}", folder, short, how)["rows_per_second"]
            except RuntimeError as error:
                console.print(f"state format {version} does not run: {error}", style="dim")
    console.print(f"RocksDB by state format, short run: {found}", style="dim")
    return f"spark-rocksdb-{max(found, key=lambda version: found[version])}"


def _run(contender: str, folder: Path, workload: Workload, how: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.contender", contender, str(folder), json.dumps(asdict(workload)), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"{contender} failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return json.loads(lines[0].removeprefix("RESULT "))


def _table(measured: list[dict[str, Any]]) -> Table:
    table = Table(title="Interval join, steady state")
    for heading in ("contender", "rows/s", "s per batch", "whole run, s", "result rows", "Watersmeet is"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    ours = next((m for m in measured if m["contender"] == "watersmeet"), None)
    for m in measured:
        ratio = "" if ours is None or m is ours else f"{ours['rows_per_second'] / m['rows_per_second']:.2f} x"
        cells = (f"{m['rows_per_second']:,}", f"{m['seconds_per_batch']:.3f}", f"{m['whole_run_seconds']:.1f}")
        table.add_row(m["contender"], *cells, "" if m["contender"] == "floor" else f"{m['results']:,}", ratio)
    return table


def _write(workload: Workload, how: str, measured: list[dict[str, Any]]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "system": platform.system()}
    content = {
        "at": now.isoformat(),
        "machine": machine,
        "workload": asdict(workload),
        "how": how,
        "measured": measured,
    }
    path = RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _check_results(measured: list[dict[str, Any]]) -> None:
    counts = {m["results"] for m in measured if m["contender"] != "floor"}
    if len(counts) > 1:
        sys.exit(f"the contenders disagree about the number of result rows: {sorted(counts)}")


if __name__ == "__main__":
    main()
