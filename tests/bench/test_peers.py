"""The comparison with other systems at a tiny size: our part of it runs, and differences are noticed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from bench.peers import __main__ as peers
from bench.peers import files, our_job
from bench.peers.data import RowFiles, nexmark
from bench.peers.queries import QUERIES, PeerQuery
from pyspark.sql import SparkSession

from watersmeet.queries import analyze, read_script


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_our_words_for_every_query_may_run(query: PeerQuery) -> None:
    [analyzed] = analyze(read_script(query.our_script(Path("/data"), "csv")))
    assert set(query.columns) <= {output.name for output in analyzed.outputs}
    assert len(query.flink_script(Path("/data"), "csv")) == len(query.streams)


def test_a_difference_is_reported_and_rows_that_agree_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(query: PeerQuery, peer: str, rows: RowFiles, *, collect: bool) -> dict[str, Any]:
        people = _query(f"SELECT DISTINCT seller FROM '{rows.batches}/auction/*.parquet' ORDER BY ALL")
        shown = [[str(one), f"name of {one}"] for (one,) in people]
        return {"rows": shown[1:] if peer == "flink" else shown}

    monkeypatch.setattr(files, "BATCHES", 2)
    peers.main(["--queries", "q8", "--peers", "watersmeet", "--rows", "2000", "--check"], run)
    assert re.search(r"q8: \d\d rows of 2,000, the same everywhere", capsys.readouterr().out)
    with pytest.raises(RuntimeError, match="q8: watersmeet and flink differ: only watersmeet has"):
        peers.main(["--queries", "q8", "--peers", "watersmeet,flink", "--rows", "2000", "--check"], run)


def test_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(query: PeerQuery, peer: str, rows: RowFiles, *, collect: bool) -> dict[str, Any]:
        assert query.name == "q13" and not collect
        seconds = (5 if peer == "watersmeet" else 9) + rows.rows / 400
        return {"seconds": seconds, "start": 3.0, "megabytes": 700, "processor": 2 * seconds}

    peers.main(["--queries", "q13", "--rows", "4000", "--no-check"], run, tmp_path)
    [path] = tmp_path.iterdir()
    ours, flink = (peers.Timing(**one) for one in json.loads(path.read_text()))
    assert (ours.peer, ours.seconds, ours.quarter) == ("watersmeet", 15, 7.5)
    # The start is no part of what is steady.
    assert (ours.steady, flink.steady) == (400, 400) and (ours.per_core, ours.rows_per_second) == (4000 / 30, 4000 / 15)
    assert re.search(r"flink .* 1\.27 ", capsys.readouterr().out)


def test_a_peer_that_cannot_go_on_does_not_end_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(query: PeerQuery, peer: str, rows: RowFiles, *, collect: bool) -> dict[str, Any]:
        if peer == "flink" and query.name == "q8":
            raise RuntimeError("q8 on flink failed: Caused by: java.lang.OutOfMemoryError: Java heap space")
        return {"seconds": rows.rows / 400, "start": 3.0, "megabytes": 700, "processor": rows.rows / 200}

    peers.main(["--queries", "q8,q3", "--rows", "4000", "--no-check"], run, tmp_path)
    [path] = tmp_path.iterdir()
    timed = [(one["query"], one["peer"]) for one in json.loads(path.read_text())]
    assert timed == [("q8", "watersmeet"), ("q3", "watersmeet"), ("q3", "flink")]
    assert "q8, flink: q8 on flink failed: Caused by: java.lang.OutOfMemoryError" in capsys.readouterr().out


@pytest.mark.spark
def test_our_jobs_give_what_is_compared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BATCHES", 2)
    query, rows = QUERIES["interval"], files.rows_of(QUERIES["interval"], "csv", 2_000)
    asked = {"name": "interval", "script": query.our_script(rows.batches, "csv"), "folder": str(rows.batches)}
    ours, sparks = (
        our_job.run({**asked, "peer": peer, "format": "csv", "collect": True}, spark, 0)["rows"]
        for peer in ("watersmeet", "spark")
    )
    assert sorted(ours) == sorted(sparks) and len(ours) > 100


def test_events_are_nexmarks(tmp_path: Path) -> None:
    streams = ("person", "auction", "bid")
    csv, parquet = (nexmark(1_000, 4, tmp_path, format_, streams) for format_ in ("csv", "parquet"))
    for name, rows in {"person": 20, "auction": 60, "bid": 920}.items():
        of_csv, batches, halves = (
            f"SELECT * FROM '{folder / name}/*.{folder.parent.name}'"
            for folder in (csv.batches, parquet.batches, parquet.halves)
        )
        assert _query(f"SELECT count(*) FROM ({of_csv})") == [(rows,)]
        assert _query(f"SELECT count(*) FROM ({batches})") == [(rows,)]
        assert not _query(f"({batches} EXCEPT ALL {halves}) UNION ALL ({halves} EXCEPT ALL {batches})")


def _query(query: str) -> list[Any]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def test_help_names_the_queries(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and all(name in shown for name in QUERIES)
