"""Count the requests of batches to a storage: ``python -m tests.cluster.request_counts S3|HDFS [MASTER]``.

Runs an interval join of files into files, with a file of each stream in every batch, and prints the requests of a batch
by the part of the storage that they are for, and by their kind.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tests.cluster.hdfs import Hdfs
from tests.cluster.processes import stop_process
from tests.cluster.s3 import start_s3

SCRIPT = """
SET watersmeet.shards = 2;
CREATE STREAM orders (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
  USING json OPTIONS (path '{url}/orders', maxFilesPerTrigger '1');
CREATE STREAM deliveries (id BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
  USING json OPTIONS (path '{url}/deliveries', maxFilesPerTrigger '1');
CREATE SINK joined USING json OPTIONS (path '{url}/joined');
INSERT INTO joined SELECT STREAM o.id FROM orders o JOIN deliveries d
  ON o.id = d.id AND d.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR;
"""
STEADY = {"spark.sql.streaming.minBatchesToRetain": "10"}
"""Lets batches delete what old ones left, as they do by default from the hundredth on."""
FIRST, BATCHES = 14, 20
"""The first batch that counts, and how many do: logs are compacted and states are stored whole every ten batches."""
PARTS = {
    "offsets": r"/checkpoints/[^/]*/offsets\b",
    "commits": r"/checkpoints/[^/]*/commits\b",
    "source logs": r"/checkpoints/[^/]*/sources\b",
    "state": r"/checkpoints/[^/]*/state\b",
    "checkpoint": r"/checkpoints\b",
    "leases": r"/leases\b",
    "input": r"/(?:orders|deliveries)\b",
    "sink log": r"/joined/_spark_metadata\b",
    "sink": r"/joined\b",
}
OTHER = "other"
"""History, logs and what no pattern names."""

Requests = Counter[tuple[str, str]]
"""Requests by part and kind."""


@dataclass(frozen=True)
class Server:
    """A server of a storage: its address, the settings that a session needs for it, and the log of its requests."""

    url: str
    settings: Mapping[str, str]
    log: Path


def part_of(address: str) -> str:
    """The part of a storage that an address is in."""
    return next((part for part, pattern in PARTS.items() if re.search(pattern, address)), OTHER)


def parse_request(line: str) -> tuple[str, str] | None:
    """The kind and the address of a request, from a line of the log of either server; None: it tells of none."""
    if audited := re.match(r"allowed=(?:true|false)\s.*?\scmd=(.*?)\s+src=(\S+)\s", line):
        return audited[1], audited[2]
    if answered := re.match(r"([A-Z]+) (\d+) (\S+)$", line):
        method, status, address = answered.groups()
        path, _, query = unquote(address).partition("?")
        kind = f"{method} list" if "list-type" in query else f"{method} {query}" if query == "delete" else method
        if prefix := re.search(r"(?:^|&)prefix=([^&]*)", query):
            path += f"/{prefix[1]}"
        return f"{kind} 404" if status == "404" else kind, path
    return None


def count_requests(lines: Iterator[str], first: int, last: int) -> Requests:
    """The requests from the end of the batch before ``first`` to the end of ``last``."""
    counts: Requests = Counter()
    ends = {re.compile(rf"/commits/(?:\.?{batch})(?:\.[^/]*)?$"): batch for batch in (first - 1, last)}
    reached = -1
    for line in lines:
        request = parse_request(line.rstrip("\n"))
        if request is None:
            continue
        kind, address = request
        if kind in ("PUT", "COPY", "create"):
            # The first request that writes a commit ends a batch.
            reached = max(reached, *(batch for end, batch in ends.items() if end.search(address)), -1)
        if reached >= last:
            break
        if reached >= first - 1:
            counts[part_of(address), kind] += 1
    assert reached >= last, f"batch {last} did not end"
    return counts


def run_batches(server: Server, batches: int) -> None:
    """Join that many files of each stream, a file of each in a batch, and check the rows."""
    from pyspark.sql import SparkSession
    from tests.cluster.exercise import watersmeet

    from watersmeet.locations import write_whole
    from watersmeet.spark.private.files import open_storage

    spark = SparkSession.active()
    base = open_storage(spark, server.url)
    for number in range(batches):
        for second, name in enumerate(("orders", "deliveries")):
            row = {"id": number, "at": f"2024-01-01 10:{number:02}:{second:02}"}
            write_whole(base / name / f"{number:03}.json", json.dumps(row) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "shop"
        (project / "sql").mkdir(parents=True)
        (project / "sql" / "joined.sql").write_text(SCRIPT.format(url=server.url))
        libraries = "libraries:\n- glob:\n    include: sql/**\n"
        (project / "watersmeet.yml").write_text(f"name: shop\nstorage: {server.url}/storage\n{libraries}")
        watersmeet("run", project, "--once")
    ids = [row.id for row in spark.read.json(f"{server.url}/joined").collect()]
    assert sorted(ids) == list(range(batches)), ids


def measure(server: Server, master: str = "local[2]") -> Requests:
    """The requests of `BATCHES` batches from `FIRST` on, in a session of their own."""
    from tests.cluster.exercise import QUICK

    from watersmeet.spark.session import session

    conf = {**QUICK, **STEADY, **server.settings}
    spark = session(master, conf=conf, log=Path(f"{server.log}.spark"))
    try:
        run_batches(server, FIRST + BATCHES + 1)
    finally:
        spark.stop()
    with server.log.open() as lines:
        return count_requests(lines, FIRST, FIRST + BATCHES - 1)


def to_table(counts: Requests, batches: int) -> str:
    """The requests of a batch as a table: a line for each part, those with the most first."""
    parts: Counter[str] = Counter()
    for (part, _), count in counts.items():
        parts[part] += count
    lines = [f"{counts.total() / batches:.1f} requests in a batch, mean of {batches}"]
    for part, total in parts.most_common():
        kinds = sorted(((count, kind) for (of, kind), count in counts.items() if of == part), reverse=True)
        lines.append(f"  {part:12}{total / batches:6.1f}  {', '.join(f'{k} {c / batches:.1f}' for c, k in kinds)}")
    return "\n".join(lines)


@contextmanager
def start_server(kind: str, folder: Path) -> Generator[Server]:
    """A server of a kind, with its files in a folder."""
    if kind == "S3":
        for bucket in start_s3(folder):
            yield Server(bucket.url, bucket.settings, bucket.log)
        return
    hdfs = Hdfs(folder)
    hdfs.start()
    try:
        yield Server(hdfs.url, {}, hdfs.log)
    finally:
        assert hdfs.process is not None
        stop_process(hdfs.process)


def main() -> None:
    """Count and print."""
    kind, *master = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="requests-") as folder, start_server(kind, Path(folder)) as server:
        counts = measure(server, *master)
        print(to_table(counts, BATCHES))


if __name__ == "__main__":
    main()
