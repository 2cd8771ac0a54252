"""The comparison with other systems at a tiny size: our part of it runs, and differences are noticed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from bench.peers import __main__ as peers
from bench.peers.data import Written, nexmark
from bench.peers.our_job import run
from bench.peers.queries import QUERIES, Compared

from watersmeet.queries import analyze, read_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_our_words_for_every_query_may_run(query: Compared) -> None:
    [analyzed] = analyze(read_script(query.our_script(Path("/data"))))
    assert set(query.columns) <= {output.name for output in analyzed.outputs}
    assert len(query.flink_script(Path("/data"))) == len(query.streams)


@pytest.mark.spark
def test_our_part_runs_and_a_difference_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ours(query: Compared, peer: str, rows: Written, *, collect: bool) -> dict[str, Any]:
        asked = {"name": query.name, "script": query.our_script(rows.batches), "collect": collect}
        told = run(asked, spark.newSession(), time.time())
        if peer == "flink":
            told["rows"] = told["rows"][1:]
        return {**told, "seconds": 1.0, "megabytes": 1}

    monkeypatch.setattr(peers, "BATCHES", 2)
    peers.main(["--queries", "q8", "--peers", "watersmeet", "--rows", "2000", "--check"], ours)
    # All of it is one window.
    written = peers.rows_of(QUERIES["q8"], 2_000).batches
    [[people]] = _asked(f"SELECT count(DISTINCT column7) FROM '{written}/auction/*.csv'")
    assert people > 5 and f"q8: {people} rows of 2,000, the same everywhere" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="q8: watersmeet and flink differ: only watersmeet has"):
        peers.main(["--queries", "q8", "--peers", "watersmeet,flink", "--rows", "2000", "--check"], ours)


def test_events_are_nexmarks(tmp_path: Path) -> None:
    written = nexmark(1_000, 4, tmp_path)
    for name, rows in {"person": 20, "auction": 60, "bid": 920}.items():
        batches, halves = (f"SELECT * FROM '{folder / name}/*.csv'" for folder in (written.batches, written.halves))
        assert _asked(f"SELECT count(*) FROM ({batches})") == [(rows,)]
        assert not _asked(f"({batches} EXCEPT ALL {halves}) UNION ALL ({halves} EXCEPT ALL {batches})")


def _asked(query: str) -> list[Any]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def test_help_names_the_queries(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and all(name in shown for name in QUERIES)
