"""Queries over files: the rows, and a process of each system that reads them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from bench.contender import LAUNCHED
from bench.data import Workload
from bench.peers import data, topics
from bench.peers.queries import FLINK, PATHWAY, SPARK, WATERSMEET, WITHIN, PeerQuery
from bench.running import TREE, run_process
from watersmeet.spark.session.java import fetch_jars

BATCHES = 16
JOBS = Path(__file__).parent
FLINK_PARQUET = (
    "org.apache.flink:flink-sql-parquet:2.3.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
)
"""The packages with which Flink reads Parquet; CSV is built in."""


class RunPeer(Protocol):
    """Runs a query on a peer and returns its figures."""

    def __call__(self, query: PeerQuery, peer: str, rows: data.RowFiles, *, collect: bool) -> dict[str, Any]: ...


def absence_reason(peer: str) -> str | None:
    """The reason why a system cannot take part, or None."""
    if peer == PATHWAY and not Path(_python(peer)).exists():
        return "Pathway is not installed: `make bench-peers` does that"
    return topics.absence_reason(peer)


def workload_of(rows: int, part: int = 1) -> Workload:
    """The workload of the interval join with this many rows, or the first of ``part`` parts of it."""
    return Workload(rows // part, max(10, rows // 20), max(1, BATCHES // part), WITHIN)


def rows_of(query: PeerQuery, format_: data.Format, rows: int, part: int = 1) -> data.RowFiles:
    """The files of a query with this many rows or events, or the first of ``part`` parts; they are written once."""
    if query.name == "interval":
        return data.interval(workload_of(rows, part), format_)
    folder = Path(tempfile.gettempdir()) / "watersmeet-bench"
    return data.nexmark(rows // part, max(1, BATCHES // part), folder, format_, query.streams)


def in_a_process(query: PeerQuery, peer: str, rows: data.RowFiles, *, collect: bool) -> dict[str, Any]:
    """The output of a peer's process, its duration and its memory."""
    if peer in (WATERSMEET, SPARK):
        job = ["-m", "bench.peers.our_job"]
        script = query.our_script(rows.batches, rows.format)
        request = {
            "peer": peer,
            "name": query.name,
            "script": script,
            "folder": str(rows.batches),
            "format": rows.format,
        }
    elif peer == FLINK:
        job, declared = [str(JOBS / "flink_job.py")], query.flink_script(rows.halves, rows.format)
        jars = fetch_jars(FLINK_PARQUET, os.environ, is_whole=True) if rows.format == "parquet" else []
        request = {"declared": declared, "query": query.flink, "jars": [jar.as_uri() for jar in jars]}
    else:
        job, request = [str(JOBS / "pathway_job.py")], {"folder": str(rows.with_header), "within": WITHIN}
    command = [_python(peer), *job, json.dumps({**request, "collect": collect})]
    path = os.pathsep.join((str(TREE / "src"), str(TREE)))
    own = {"PYTHONPATH": path} if peer in (WATERSMEET, SPARK) else {"JVM_ARGS": "-Xmx6g", "PATHWAY_THREADS": "2"}
    launched = time.time()
    result, peak = run_process(f"{query.name} on {peer}", command, os.environ | own | {LAUNCHED: str(launched)})
    usage = {"megabytes": peak.jvm + peak.workers + peak.own, "processor": peak.processor}
    return {**result, "seconds": time.time() - launched, **usage}


def _python(peer: str) -> str:
    return sys.executable if peer in (WATERSMEET, SPARK) else str(TREE / f".venv-peers-{peer}" / "bin" / "python")
