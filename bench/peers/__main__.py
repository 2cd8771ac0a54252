"""``make bench-peers``: whole runs of the same queries on Watersmeet, Flink and Pathway, over the same rows.

First each query is run on a few rows and the results are compared, row for row; then on all of them into nothing. A run
is timed from the launch of its process to its end, so with everything that a start costs; ``run`` is the part after
what was asked is declared. Two cores each; Flink keeps its state on the heap and takes no checkpoints, while
Watersmeet commits every batch. Flink and Pathway are those of .venv-peers-flink and .venv-peers-pathway.

    .venv/bin/python -m bench.peers --queries interval,q9 --rows 2000000
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contender import LAUNCHED
from bench.data import Workload
from bench.peers import data
from bench.peers.queries import QUERIES, WITHIN, Compared
from bench.running import TREE, told_by

FEW = 20_000
"""So many rows are enough to see that results are the same."""
BATCHES = 16
PEERS = ("watersmeet", "flink", "pathway")
JOBS = Path(__file__).parent


@dataclass(frozen=True)
class Timed:
    """A whole run: seconds from the launch of the process, of them those before and after all was declared."""

    query: str
    peer: str
    rows: int
    seconds: float
    start: float
    run: float
    megabytes: int

    @property
    def rows_per_second(self) -> int:
        """Of the whole run."""
        return round(self.rows / self.seconds)


Told = Callable[..., dict[str, Any]]
"""Runs a query on a peer and tells what it said."""


def main(arguments: Sequence[str] | None = None, told: Told | None = None) -> None:
    """Compare the results of the queries that are asked for, then time them."""
    options = _options(arguments)
    console = Console()
    timed: list[Timed] = []
    for name in options.queries:
        query = QUERIES[name]
        few, all_ = (rows_of(query, rows) for rows in (min(FEW, options.rows), options.rows))
        peers = [peer for peer in options.peers if peer != "pathway" or name == "interval"]
        ask = told or in_a_process
        found = {peer: ask(query, peer, few, collect=True)["rows"] for peer in peers}
        _compare(query, found)
        results = len(next(iter(found.values())))
        console.print(f"{name}: {results:,} rows of {few.rows:,}, the same everywhere", style="dim")
        if options.check:
            continue
        for peer in peers:
            timed.append(_timed(query, peer, all_, ask(query, peer, all_, collect=False)))
            console.print(f"{name}, {peer}: {timed[-1].seconds:.1f} s", style="dim")
    if timed:
        console.print(_table(timed))
        path = TREE / "bench" / "results" / f"peers-{int(time.time())}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([asdict(one) for one in timed], indent=1))
        console.print(f"Written to {path}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="queries:\n" + "\n".join(f"  {query.name:<9} {query.about}" for query in QUERIES.values()),
    )
    parser.add_argument(
        "--queries", type=_among(QUERIES), default=list(QUERIES), metavar="NAME,...", help="all of them"
    )
    parser.add_argument("--peers", type=_among(PEERS), default=_installed(), metavar="NAME,...", help="all installed")
    parser.add_argument("--rows", type=int, default=8_000_000, help="rows, or events, of each query")
    parser.add_argument("--check", action="store_true", help="only compare the results")
    return parser.parse_args(arguments)


def _among(known: Sequence[str] | dict[str, Any] | Any) -> Callable[[str], list[str]]:
    def named(text: str) -> list[str]:
        if unknown := sorted(set(text.split(",")) - set(known)):
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}, but {', '.join(known)}")
        return text.split(",")

    return named


def _python(peer: str) -> str:
    return sys.executable if peer == "watersmeet" else str(TREE / f".venv-peers-{peer}" / "bin" / "python")


def _installed() -> list[str]:
    return [peer for peer in PEERS if Path(_python(peer)).exists()]


def rows_of(query: Compared, rows: int) -> data.Written:
    """The rows of a query, or events, so many; they are written once."""
    if query.name == "interval":
        return data.interval(Workload(rows=rows, keys=max(10, rows // 20), batches=BATCHES))
    return data.nexmark(rows, BATCHES, Path(tempfile.gettempdir()) / "watersmeet-bench")


def in_a_process(query: Compared, peer: str, rows: data.Written, *, collect: bool) -> dict[str, Any]:
    """What a process of the peer says."""
    if peer == "watersmeet":
        job, asked = ["-m", "bench.peers.our_job"], {"name": query.name, "script": query.our_script(rows.batches)}
    elif peer == "flink":
        job, asked = [str(JOBS / "flink_job.py")], {"declared": query.flink_script(rows.halves), "query": query.flink}
    else:
        job, asked = [str(JOBS / "pathway_job.py")], {"folder": str(rows.headed), "within": WITHIN}
    command = [_python(peer), *job, json.dumps({**asked, "collect": collect})]
    path = os.pathsep.join((str(TREE / "src"), str(TREE)))
    own = {"PYTHONPATH": path} if peer == "watersmeet" else {"JVM_ARGS": "-Xmx6g"}
    launched = time.time()
    environ = os.environ | own | {LAUNCHED: str(launched)}
    told, peak = told_by(f"{query.name} on {peer}", command, environ)
    return {**told, "seconds": time.time() - launched, "megabytes": peak.jvm + peak.workers + peak.own}


def _timed(query: Compared, peer: str, rows: data.Written, told: dict[str, Any]) -> Timed:
    return Timed(query.name, peer, rows.rows, told["seconds"], told["start"], told["run"], told["megabytes"])


def _compare(query: Compared, found: dict[str, list[list[Any]]]) -> None:
    """Fail where peers do not give the same rows."""
    shown = {
        peer: Counter(tuple(_plain(value) for value in row) for row in _narrowed(query, peer, rows))
        for peer, rows in found.items()
    }
    (first, ours), *others = shown.items()
    for peer, theirs in others:
        if ours != theirs:
            only, other = list((ours - theirs).items())[:3], list((theirs - ours).items())[:3]
            raise RuntimeError(f"{query.name}: {first} and {peer} differ: only {first} has {only}, only {peer} {other}")


def _narrowed(query: Compared, peer: str, rows: list[list[Any]]) -> list[list[Any]]:
    """The columns that are compared: Flink shows those of its query."""
    if peer != "flink" or query.name != "interval":
        return rows
    return [[row[0], row[2], row[4]] for row in rows]


def _plain(value: Any) -> Any:
    """Numbers as numbers: 12.0 and 12 are the same."""
    try:
        return round(float(value), 6)
    except (TypeError, ValueError):
        return value


def _table(timed: list[Timed]) -> Table:
    table = Table(title="Whole runs, from the launch of a process")
    table.add_column("query")
    table.add_column("system")
    for heading in ("rows", "seconds", "before", "running", "rows/s", "MB at most", "ratio"):
        table.add_column(heading, justify="right")
    ours = {one.query: one.seconds for one in timed if one.peer == "watersmeet"}
    for one in timed:
        ratio = f"{one.seconds / ours[one.query]:.2f}" if one.query in ours and one.peer != "watersmeet" else ""
        table.add_row(
            one.query, one.peer, f"{one.rows:,}", f"{one.seconds:.1f}", f"{one.start:.1f}", f"{one.run:.1f}",
            f"{one.rows_per_second:,}", f"{one.megabytes:,}", ratio,
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
