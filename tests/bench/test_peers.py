"""The comparison with other systems at a tiny size: our part of it runs, and differences are noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from bench.peers import __main__ as peers
from bench.peers.data import Written, nexmark
from bench.peers.queries import QUERIES, Compared

from watersmeet.queries import analyze, read_script


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_our_words_for_every_query_may_run(query: Compared) -> None:
    [analyzed] = analyze(read_script(query.our_script(Path("/data"))))
    assert set(query.columns) <= {output.name for output in analyzed.outputs}
    assert len(query.flink_script(Path("/data"))) == len(query.streams)


def test_a_difference_is_told_and_rows_that_agree_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(query: Compared, peer: str, rows: Written, *, collect: bool) -> dict[str, Any]:
        people = _asked(f"SELECT DISTINCT column7 FROM '{rows.batches}/auction/*.csv' ORDER BY ALL")
        shown = [[str(one), f"name of {one}"] for (one,) in people]
        return {"rows": shown[1:] if peer == "flink" else shown}

    monkeypatch.setattr(peers, "BATCHES", 2)
    peers.main(["--queries", "q8", "--peers", "watersmeet", "--rows", "2000", "--check"], told)
    assert re.search(r"q8: \d\d rows of 2,000, the same everywhere", capsys.readouterr().out)
    with pytest.raises(RuntimeError, match="q8: watersmeet and flink differ: only watersmeet has"):
        peers.main(["--queries", "q8", "--peers", "watersmeet,flink", "--rows", "2000", "--check"], told)


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
