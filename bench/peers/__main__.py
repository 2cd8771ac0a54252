"""``make bench-peers``: whole runs of the same queries on Watersmeet and on other systems, over the same rows.

First each query is run on a few rows and the results are compared, row by row; then on all rows, into a sink that drops
them. A run is timed from the launch of its process to its end, with all costs of a start; ``start`` is the part until
the query is declared, ``steady`` leaves out the time of a run over the first quarter of the rows. Most queries have as
many rows as keep Flink busy for about a minute. Two cores each; Flink keeps its state on the heap and takes no
checkpoints, while Watersmeet and Spark commit every batch.

``topics`` is the interval join from two topics of a broker into a third. There Flink takes checkpoints too, a run ends
with the last joined record, and ``steady`` is the time after a quarter of them.

Flink and Pathway are those of .venv-peers-flink and .venv-peers-pathway, Kafka Streams and Hazelcast come from Maven
Central. A system that is not available does not run, and the reason is printed.

    .venv/bin/python -m bench.peers --queries interval,q9 --rows 2000000
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.peers import topics
from bench.peers.files import RunPeer, absence_reason, in_a_process, rows_of, workload_of
from bench.peers.queries import PEERS, QUERIES, WATERSMEET, PeerQuery
from bench.report import Report, names_among
from bench.running import TREE
from watersmeet.cli.servers import broker

FEW = 20_000
"""Rows that are enough to check that results are the same."""
TOPICS, TOPICS_ROWS = "topics", 4_000_000
ALL = (*QUERIES, TOPICS)
RESULTS = TREE / "bench" / "results"
ALL_PEERS = tuple(dict.fromkeys((*PEERS, *topics.PEERS)))


@dataclass(frozen=True)
class Timing:
    """A whole run: seconds from the launch of the process to its end, until the query was declared, and of the quarter.

    ``processor``: the processor seconds of all its processes; ``megabytes``: their memory at its peak.
    """

    query: str
    peer: str
    rows: int
    seconds: float
    start: float
    quarter: float | None
    megabytes: int
    processor: float

    @property
    def rows_per_second(self) -> float:
        """Of the whole run."""
        return self.rows / self.seconds

    @property
    def steady(self) -> float | None:
        """Rows per second of the last three quarters, if the first one was measured."""
        return None if self.quarter is None else self.rows * 3 / 4 / max(self.seconds - self.quarter, 1e-3)

    @property
    def per_core(self) -> float:
        """Rows per second of processor time."""
        return self.rows / max(self.processor, 1e-3)


def main(arguments: Sequence[str] | None = None, run_peer: RunPeer | None = None, results: Path = RESULTS) -> None:
    """Compare the results of the requested queries, then time them; ``run_peer``: in place of processes."""
    options = _options(arguments)
    console = Console()
    able = {peer for name in options.queries for peer in _able(name)}
    peers = [peer for peer in options.peers if peer in able]
    absent = {peer: reason for peer in peers if run_peer is None and (reason := absence_reason(peer)) is not None}
    for peer, reason in absent.items():
        console.print(f"{peer} does not run: {reason}")
    peers = [peer for peer in peers if peer not in absent]
    run = run_peer or in_a_process
    timings: list[Timing] = []
    try:
        for name in options.queries:
            runs = (
                over_topics(options, peers, console)
                if name == TOPICS
                else over_files(options, name, peers, run, console)
            )
            for timing in runs:
                timings.append(timing)
                console.print(f"{timing.query}, {timing.peer}: {timing.seconds:.1f} s", style="dim")
    finally:
        # Results that took minutes are written even if a later query fails.
        if timings:
            _report(timings, results, console)


def _report(timings: list[Timing], results: Path, console: Console) -> None:
    """Print the timings, and write them to a file."""
    console.print(_table(timings))
    path = results / f"peers-{int(time.time())}.json"
    results.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps([asdict(timing) for timing in timings], indent=1))
    console.print(f"Written to {path}")


def _able(name: str) -> Sequence[str]:
    return topics.PEERS if name == TOPICS else QUERIES[name].peers


def over_files(
    options: argparse.Namespace, name: str, peers: Sequence[str], run: RunPeer, console: Console
) -> Iterator[Timing]:
    """Compare the results of a query on few rows, then time it on all, unless ``--check`` asks for the first only."""
    query = QUERIES[name]
    peers = [peer for peer in peers if peer in _able(name)]
    rows = options.rows or query.rows
    few = rows_of(query, options.format, min(FEW, rows))
    rows_of_peers = {peer: run(query, peer, few, collect=True)["rows"] for peer in peers} if options.compare else {}
    _compare(query.name, {peer: _select_columns(query, peer, rows) for peer, rows in rows_of_peers.items()})
    if rows_of_peers:
        console.print(
            f"{name}: {len(rows_of_peers[peers[0]]):,} rows of {few.rows:,}, the same everywhere", style="dim"
        )
    for peer in peers if options.time else ():
        try:
            runs = {
                part: run(query, peer, rows_of(query, options.format, rows, part), collect=False)
                for part in (4, 1)
                if part == 1 or options.steady
            }
        except RuntimeError as error:
            # Running out of memory is a result too.
            console.print(f"{name}, {peer}: {error}")
            continue
        whole, quarter = runs[1], runs[4]["seconds"] if options.steady else None
        yield Timing(
            name, peer, rows, whole["seconds"], whole["start"], quarter, whole["megabytes"], whole["processor"]
        )


def over_topics(options: argparse.Namespace, peers: Sequence[str], console: Console) -> Iterator[Timing]:
    """The same for the interval join from topics into a topic."""
    peers = [peer for peer in peers if peer in _able(TOPICS)]
    rows = options.rows or TOPICS_ROWS
    with broker() as kafka:
        if options.compare:
            few = workload_of(min(FEW, rows))
            names, results = topics.fill(kafka.address, few), topics.count_results(few)
            joins = {peer: topics.within(few, peer, kafka.address, names, "few") for peer in peers}
            rows_of_peers: dict[str, list[list[Any]]] = {}
            for peer, join in joins.items():
                rows_of_peers[peer] = topics.collect_rows(join, results)
                console.print(f"{TOPICS}, {peer}: {len(rows_of_peers[peer]):,} rows", style="dim")
            _compare(TOPICS, rows_of_peers)
            console.print(f"{TOPICS}: {results:,} rows of {few.rows:,}, the same everywhere", style="dim")
        if options.time:
            all_ = workload_of(rows)
            names, results = topics.fill(kafka.address, all_), topics.count_results(all_)
            for peer in peers:
                run = topics.run(topics.within(all_, peer, kafka.address, names, "all"), results)
                yield Timing(TOPICS, peer, rows, run.seconds, run.start, run.quarter, run.megabytes, run.processor)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = {query.name: query.about for query in QUERIES.values()} | {TOPICS: "the interval join, over a broker"}
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="queries:\n" + "\n".join(f"  {name:<9} {text}" for name, text in about.items()),
    )
    parser.add_argument("--queries", type=names_among(ALL), default=list(ALL), metavar="NAME,...", help="all of them")
    parser.add_argument(
        "--peers",
        type=names_among(ALL_PEERS),
        default=list(ALL_PEERS),
        metavar="NAME,...",
        help="all that are available",
    )
    parser.add_argument("--rows", type=int, default=0, help="rows, or events, of each query, in place of its default")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="of the files")
    parser.add_argument("--check", dest="time", action="store_false", help="only compare the results")
    parser.add_argument(
        "--no-steady", dest="steady", action="store_false", help="only whole runs over files, not their first quarters"
    )
    parser.add_argument("--no-check", dest="compare", action="store_false", help="only time them")
    return parser.parse_args(arguments)


def _compare(name: str, rows_of_peers: dict[str, list[list[Any]]]) -> None:
    """Fail where peers do not give the same rows."""
    counts = {
        peer: Counter(tuple(_plain(value) for value in row) for row in rows) for peer, rows in rows_of_peers.items()
    }
    for peer, theirs in list(counts.items())[1:]:
        first, ours = next(iter(counts.items()))
        if ours != theirs:
            only, other = list((ours - theirs).items())[:3], list((theirs - ours).items())[:3]
            raise RuntimeError(f"{name}: {first} and {peer} differ: only {first} has {only}, only {peer} {other}")


def _select_columns(query: PeerQuery, peer: str, rows: list[list[Any]]) -> list[list[Any]]:
    """The columns that are compared; Flink returns those of its query."""
    if peer != "flink" or query.name != "interval":
        return rows
    return [[row[0], row[2], row[4]] for row in rows]


def _plain(value: Any) -> Any:
    """Numbers as numbers: 12.0 and 12 are the same."""
    try:
        return round(float(value), 6)
    except (TypeError, ValueError):
        return value


def _table(timings: list[Timing]) -> Report:
    headings = ("query", "system", "rows", "seconds", "start", "rows/s", "steady", "a core", "MB at most", "ratio")
    ours = {run.query: run.seconds for run in timings if run.peer == WATERSMEET}
    rows = list[list[str]]()
    for run in timings:
        ratio = f"{run.seconds / ours[run.query]:.2f}" if run.query in ours and run.peer != WATERSMEET else ""
        speeds = (run.rows_per_second, run.steady, run.per_core)
        rows.append([
            run.query, run.peer, f"{run.rows:,}", f"{run.seconds:.1f}", f"{run.start:.1f}",
            *("" if speed is None else f"{speed:,.0f}" for speed in speeds), f"{run.megabytes:,}", ratio,
        ])  # fmt: skip
    return Report("Whole runs, from the launch of a process", headings, rows, labels=2)


if __name__ == "__main__":
    main()
