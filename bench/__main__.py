"""``make bench``: Watersmeet, Spark's own join on both of its state stores, and the floor, in one run.

Every contender has a process and a JVM of its own, one after the other, on the same files. A batch is one file per
side; the first quarter of the batches is warm-up. Results must have the same number of rows, or the run fails. Memory
is the peak of the processes' proportional share, so that pages which workers share count once.

``--beside TREE`` compares two trees: it runs only our contenders, each in turn with the package of this tree and with
that of another one (a folder with ``src/watersmeet``), and prints the ratio of their times:

    git worktree add /tmp/before main
    .venv/bin/python -m bench --beside /tmp/before --sections throughput,outer --rows 2000000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import compare
from bench.chart import draw
from bench.data import Workload
from bench.forecast import forecast_table
from bench.report import Report
from bench.running import FORMATS, TREE, Bench, Measure, Measured, Processes, check
from bench.sections import DEFAULT_SECTIONS, MINUTES, ROCKSDB, SECTIONS, about

RESULTS = TREE / "bench" / "results"
CHART = TREE / "docs" / "images" / "growth.png"


def main(
    arguments: Sequence[str] | None = None,
    measure: Measure | None = None,
    results: Path = RESULTS,
    chart: Path = CHART,
) -> None:
    """Run the requested sections and print what they measured."""
    options = _options(arguments)
    console = Console()
    workload = Workload(options.rows, options.keys, options.batches, options.within)
    measured: dict[str, list[Any]] = {}
    if options.beside is not None:
        comparisons: list[compare.Comparison] = []
        for comparison in compare.compare_trees(
            options.beside, options.sections, workload, options.repeat, only=options.only, without=options.without
        ):
            console.print(
                f"{comparison.section}, {comparison.run.label or comparison.run.contender}: "
                f"{comparison.ratio:.2f}, of the shortest {comparison.ratio_of_shortest:.2f}",
                style="dim",
            )
            comparisons.append(comparison)
        console.print(compare.table(comparisons))
        measured["beside"] = [compare.as_json(m) for m in comparisons]
        console.print(f"Written to {_write(workload, measured, results)}")
    elif options.draw:
        measured = {str(path): _points(path) for path in options.draw}
    else:
        with Processes() as processes:
            log = partial(console.print, style="dim")
            bench = Bench(workload, measure or processes, log, options.rocksdb, options.only, options.without)
            try:
                for name in options.sections:
                    measured[name] = []
                    measured[name].extend(bench.runs(name))
                    check(measured[name])
                    console.print(TABLES.get(name, _table)(name, measured[name]))
            finally:
                # Results that took minutes are written even if a later section fails.
                console.print(f"Written to {_write(workload, measured, results)}")
    points = [m for found in measured.values() for m in found if m.get("axis")]
    if points:
        chart.parent.mkdir(exist_ok=True, parents=True)
        draw(points, chart)
        console.print(f"Drawn to {chart}")


def _points(path: Path) -> list[Measured]:
    """The measurements in a file of results, for the chart."""
    return [m for runs in json.loads(path.read_text())["measured"].values() for m in runs]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = "\n".join(f"  {name:<12} {MINUTES[name]:>2} min  {about(name)}" for name in SECTIONS)
    left_out = ", ".join(name for name in SECTIONS if name not in DEFAULT_SECTIONS)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"sections, and about how long each takes on two cores:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Workload()
    parser.add_argument(
        "--sections",
        type=_sections,
        default=list(DEFAULT_SECTIONS),
        metavar="NAME,...",
        help=f"default: all but {left_out}",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose label contains this text")
    parser.add_argument(
        "--without", metavar="TEXT", help="no runs whose label contains this text, for example `rocksdb`"
    )
    parser.add_argument("--rows", type=int, default=default.rows, help="rows of both sides in total")
    parser.add_argument("--keys", type=int, default=default.keys, help="distinct keys")
    parser.add_argument("--batches", type=int, default=default.batches, help="micro-batches, one file per side each")
    parser.add_argument("--within", type=int, default=default.within, help="bound of the join in seconds")
    own = [f"{ROCKSDB}-{version}" for version in FORMATS]
    parser.add_argument(
        "--rocksdb", choices=own, help="which of Spark's own joins on RocksDB to take, as spark-rocksdb-2"
    )
    parser.add_argument(
        "--draw", type=Path, nargs="+", metavar="FILE", help="measure nothing; draw the chart of growth from results"
    )
    parser.add_argument("--beside", type=_tree, metavar="TREE", help="compare our contenders with those of this tree")
    parser.add_argument("--repeat", type=int, default=3, help="how often each tree is measured")
    return parser.parse_args(arguments)


def _sections(names: str) -> list[str]:
    chosen = names.split(",")
    if unknown := sorted(set(chosen) - SECTIONS.keys()):
        raise argparse.ArgumentTypeError(f"no section: {', '.join(unknown)} (there are {', '.join(SECTIONS)})")
    return chosen


def _tree(path: str) -> Path:
    if not (Path(path) / "src" / "watersmeet").is_dir():
        raise argparse.ArgumentTypeError(f"{path} has no src/watersmeet")
    return Path(path).resolve()


def _table(name: str, measured: list[Measured]) -> Report:
    headings = ("contender", "rows/s", "s per batch", "median", "p99", "ratio", "result rows", "results/s", "rows kept",
                "JVM, MB", "workers, MB")  # fmt: skip
    rows = list[list[str]]()
    ours = next((m for m in measured if m["contender"] == "watersmeet"), None)
    for m in measured:
        ratio = "" if ours is None or m is ours else f"{m['seconds_per_batch'] / ours['seconds_per_batch']:.2f}"
        rows.append([
            m["label"], f"{m['rows_per_second']:,}", f"{m['seconds_per_batch']:.3f}", f"{m['median']:.3f}",
            f"{m['p99']:.3f}", ratio, "" if m["contender"] == "floor" else f"{m['results']:,}",
            f"{m.get('results_per_second', 0):,}", f"{m['state_rows']:,}",
            f"{m.get('jvm_megabytes', 0):,}", f"{m.get('workers_megabytes', 0):,}",
        ])  # fmt: skip
    return Report(about(name), headings, rows)


def _start(name: str, measured: list[Measured]) -> Report:
    return _seconds(name, measured, {"first": "first query of its kind", "median": "later ones, median"})


def _cold(name: str, measured: list[Measured]) -> Report:
    parts = {"session": "until Spark is there", "begin": "until a batch begins", "batch": "first batch"}
    return _seconds(name, measured, parts | {"median": "in all"})


def _seconds(name: str, measured: list[Measured], parts: dict[str, str]) -> Report:
    rows = [[m["label"], *(f"{m[part]:.2f}" for part in parts)] for m in measured]
    return Report(about(name), ["contender", *parts.values()], rows)


def _chains(name: str, measured: list[Measured]) -> Report:
    """The runs compared with the first, which joins two streams: elapsed time, and processor time of all processes."""
    headings = ("run", "s per batch", "ratio", "processor s per batch", "ratio", "result rows", "rows kept")
    rows = list[list[str]]()
    for m in measured:
        cells = [m["label"]]
        for number in ("seconds_per_batch", "processor_seconds"):
            two = measured[0][number]
            cells += [f"{m[number]:.3f}", f"{m[number] / two:.2f}" if two else ""]
        rows.append([*cells, f"{m['results']:,}", f"{m['state_rows']:,}"])
    return Report(about(name), headings, rows)


def _growth(name: str, measured: list[Measured]) -> Report:
    """The cost of a row and the memory at every point."""
    headings = ("run", "\u00b5s per row", "s per batch", "rows kept", "JVM, MB", "workers, MB",
                "without mapped files, MB")  # fmt: skip
    rows = list[list[str]]()
    for m in measured:
        memory = (f"{m.get(f'{of}_megabytes', 0):,}" for of in ("jvm", "workers", "unmapped"))
        cost = f"{1_000_000 / m['rows_per_second']:.2f}"
        rows.append([m["label"], cost, f"{m['seconds_per_batch']:.3f}", f"{m['state_rows']:,}", *memory])
    return Report(about(name), headings, rows)


def _cluster(name: str, measured: list[Measured]) -> Report:
    """Seconds of a batch, those that Spark spends outside its job, and the processor time of all processes."""
    headings = ("run", "rows/s", "s per batch", "of which around the job", "processor s per batch", "JVMs, MB",
                "workers, MB")  # fmt: skip
    rows = list[list[str]]()
    for m in measured:
        seconds = (f"{m[number]:.3f}" for number in ("seconds_per_batch", "around", "processor_seconds"))
        memory = (f"{m.get(f'{of}_megabytes', 0):,}" for of in ("jvm", "workers"))
        rows.append([m["label"], f"{m['rows_per_second']:,}", *seconds, *memory])
    return Report(about(name), headings, rows)


TABLES = {
    "start": _start,
    "chains": _chains,
    "cold": _cold,
    "forecast": forecast_table,
    "growth": _growth,
    "growth-large": _growth,
    "beyond-memory": _growth,
    "beyond-memory-large": _growth,
    "cluster": _cluster,
}
"""Sections that have a table of their own."""


def _write(workload: Workload, measured: dict[str, list[Any]], results: Path) -> Path:
    results.mkdir(exist_ok=True, parents=True)
    now = datetime.now(UTC)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "system": platform.system()}
    content = {"at": now.isoformat(), "machine": machine, "workload": asdict(workload), "measured": measured}
    path = results / f"{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


if __name__ == "__main__":
    # SIGTERM ends the child processes, and the results so far are written.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    main()
