"""What is written down of a query: every batch, in a file that stays small and that a crash does not spoil."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

import watersmeet as ws
from watersmeet.cli.init import init_project
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.history import HistoryWriter, QueryEvent, Recorder, queries_of, read_history
from watersmeet.metrics.metrics import OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress, Totals
from watersmeet.operators.core.operator import END_OF_INPUT

SIDES = {"left": SideMetrics(5, 1, 2, 0, 3), "right": SideMetrics(4, 0, 0, 1, 2)}
NUMBERS = OperatorMetrics(
    "interval", 0.5, 0.25, 1, events=6, events_processed=9, matched=4, padded=2, late=1, dropped=1, state_rows=5,
    written=8, seconds=0.25, shards=2, sides=SIDES,
)  # fmt: skip
FULL = Progress(
    "joined", 7, 9, 6, 4, 2, 1, 5, {"o.t": "2023-11-14 22:13:20", "d.n": "ended"}, 1.5, 1, 8, {"left": 3, "right": 0},
    {"o and d": NUMBERS}, {"o.t": 1_700_000_000_000_000, "d.n": END_OF_INPUT}, frozenset({"o.t"}), 0.25, 2,
    {"orders": 2}, {"orders": 5, "deliveries": 4}, {"o.t": 17}, frozenset({"d.n"}), 4096, 1_700_000_060.5,
    {"addBatch": 1.25, "walCommit": 0.05}, {"orders": 12},
)  # fmt: skip


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = HistoryWriter(tmp_path, "joined")
    started = QueryEvent("started", 1_700_000_000.0, process=os.getpid(), spark="http://localhost:4040")
    written = (
        started,
        FULL,
        replace(FULL, batch=8, at=FULL.at + 1),
        QueryEvent("failed", 1_700_000_070.0, "Disk full."),
    )
    for record in written:
        log.append(record)
    history = read_history(tmp_path, "joined")
    assert (history.events[0], *history.batches, history.events[1]) == written
    assert queries_of(tmp_path) == ["joined"]
    assert read_history(tmp_path, "other").totals == Totals()


counts = st.integers(0, 1000)
batches = st.lists(st.tuples(counts, counts, counts, st.booleans()), max_size=120)


@settings(max_examples=examples(60))
@given(batches, st.integers(400, 4000))
def test_counts_stay_exact_however_small_the_file_must_be(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, bool]], largest: int
) -> None:
    storage = tmp_path_factory.mktemp("storage")
    log = HistoryWriter(storage, "joined", largest)
    totals = Totals()
    for number, (left, right, late, tears) in enumerate(rows):
        batch = Progress(
            "joined", number, left + right, late=late, sources={"orders": left, "deliveries": right}, at=float(number)
        )
        totals = totals.plus(batch)
        if tears and log.path.exists():
            # As a process that was killed leaves it.
            with Path(str(log.path)).open("ab") as file:
                file.write(b'{"batch": 12, "rows_in": 5')
        log.append(batch)
    history = read_history(storage, "joined")
    found = history.totals
    names = ("batches", "rows_in", "late", "sources", "state_rows")
    assert [getattr(found, name) for name in names] == [getattr(totals, name) for name in names]
    assert [one.batch for one in history.batches] == sorted(one.batch for one in history.batches)
    if rows:
        assert history.last == replace(totals.last or FULL, batches=history.batches[-1].batches)
        # A hundred and twenty batches take more than 10,000 bytes.
        assert log.path.stat().st_size < 3 * largest


def test_lines_that_are_none_of_ours_are_passed_over(tmp_path: Path) -> None:
    log = HistoryWriter(tmp_path, "joined")
    log.append(FULL)
    with Path(str(log.path)).open("ab") as file:
        file.write(b'\n\n[1]\n{"no": "batch"}\nnull\n\xff\xfe\n')
        file.write(json.dumps({"batch": 9, "rows_in": 3, "of_a_later_version": {"a": 1}}).encode() + b"\n")
    assert [batch.batch for batch in read_history(tmp_path, "joined").batches] == [7, 9]


def test_a_run_tells_how_its_queries_are(tmp_path: Path) -> None:
    told: list[str] = []
    recorder = Recorder(tmp_path, told.append, "http://localhost:4040")
    for query in ("joined", "other", "third"):
        recorder.start(query)
    assert read_history(tmp_path, "joined").is_running
    recorder.fail("joined", "The disk is full.", 2.0)
    assert read_history(tmp_path, "joined").is_running
    recorder.fail("joined", "The disk is full.", None)
    recorder.end("other")
    recorder.close()
    kinds = {query: [event.kind for event in read_history(tmp_path, query).events] for query in queries_of(tmp_path)}
    assert kinds == {
        "joined": ["started", "retried", "failed"],
        "other": ["started", "ended"],
        "third": ["started", "stopped"],
    }
    assert not any(read_history(tmp_path, query).is_running for query in kinds)
    assert told == []


def test_a_process_that_is_gone_runs_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    HistoryWriter(tmp_path, "joined").append(QueryEvent("started", 0.0, process=child))
    assert not read_history(tmp_path, "joined").is_running


def test_a_history_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("no folder")
    told: list[str] = []
    recorder = Recorder(tmp_path, told.append)
    recorder.start("joined")
    recorder.take(FULL)
    recorder.close()
    assert told == ["joined: its history cannot be written: File exists. The query continues."]


def test_progress_of_a_project_is_that_of_all_its_runs(tmp_path: Path) -> None:
    init_project(tmp_path / "shop")
    log = HistoryWriter(tmp_path / "shop" / "storage", "joined")
    log.append(FULL)
    log.append(replace(FULL, batch=8, at=FULL.at + 1))
    found = ws.progress(tmp_path / "shop")
    assert (found["joined"].batches, found["joined"].rows_in, found["joined"].last) == (
        2, 18, replace(FULL, batch=8, at=FULL.at + 1),
    )  # fmt: skip
    assert ws.progress(str(tmp_path / "shop" / "watersmeet.yml").removesuffix("/watersmeet.yml")) == found
    with pytest.raises(WatersmeetError, match="nowhere"):
        ws.progress(tmp_path / "nowhere")
