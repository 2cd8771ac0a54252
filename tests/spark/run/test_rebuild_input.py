"""What a rebuilt state is made of, without Spark: how far back it reaches, its logs, and how it takes its place."""

from __future__ import annotations

import json
from pathlib import Path

from tests.physical.test_change import CHAIN
from tests.physical.test_identity import JOIN, OTHER, edit_sql, identify

from watersmeet.metrics.progress import Progress
from watersmeet.operators import state_schema_of
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.state.state_schema import Reach
from watersmeet.spark.private.writers import FORMAT
from watersmeet.spark.run.rebuild_input import (
    ReplayRange,
    ReplayStart,
    lags_of,
    match_scans,
    replay_start,
    times_after_batches,
)
from watersmeet.spark.state.checkpoint import prepare_staging, recover_swap, swap
from watersmeet.spark.state.offset_log import SourcePositions, read_log, write_logs

MINUTE = 60_000_000
NOW = identify(JOIN)


def reach_of(name: str) -> Reach:
    return state_schema_of(name).reach


def test_a_join_in_time_reaches_as_far_as_its_bounds() -> None:
    lag = 5 * MINUTE
    assert lags_of(NOW) == {"0.ts": lag, "1.ts": lag}
    # d.ts BETWEEN o.ts - 5 min AND o.ts + 1 h: an order lives for an hour, a delivery for five minutes.
    seen = [(batch, {"0.ts": batch * 10 * MINUTE, "1.ts": batch * 10 * MINUTE}) for batch in range(12)]
    # At batch 11 the marks are at 105 minutes: orders from 45 on are alive, so that up to batch 4 nothing matters.
    assert replay_start(NOW, seen, reach_of) == ReplayStart(5, {"0.ts": 35 * MINUTE, "1.ts": 35 * MINUTE})
    assert replay_start(NOW, seen[:5], reach_of) == ReplayStart()
    assert replay_start(NOW, [], reach_of) == ReplayStart()
    longer = identify(edit_sql(JOIN, {"1 HOUR": "90 MINUTES"}))
    assert replay_start(longer, seen, reach_of).batch == 2


def test_a_chain_reaches_as_far_as_the_sum_of_its_stages_and_a_source_that_is_new_to_the_beginning() -> None:
    chain = identify(CHAIN)
    ends = [(batch, {f"{n}.ts": batch * 10 * MINUTE for n in range(3)}) for batch in range(30)]
    assert replay_start(chain, ends, reach_of).batch < replay_start(NOW, ends, reach_of).batch
    known = [(batch, {name: time for name, time in times.items() if name != "2.ts"}) for batch, times in ends]
    assert replay_start(chain, known, reach_of) == ReplayStart()
    window = identify(OTHER["a window"][0])
    assert replay_start(window, ends, reach_of) == ReplayStart()


def test_the_history_of_a_query_tells_times_in_the_columns_of_now() -> None:
    history = [Progress("joined", batch, own={"o.ts": batch, "d.ts": batch}) for batch in range(3)]
    lag = 5 * MINUTE
    renamed = identify(edit_sql(JOIN, {r"\bo\b": "x"}))
    assert times_after_batches(NOW, renamed, history, 2)[-1] == (2, {"0.ts": 2 + lag, "1.ts": 2 + lag})
    assert times_after_batches(NOW, NOW, history, 3) == []
    strange = [*history, Progress("joined", 3, own={"o.ts": 3, "y.ts": 3})]
    assert times_after_batches(NOW, NOW, strange, 3) == []
    ended = [*history, Progress("joined", 3, own={"o.ts": END_OF_INPUT, "d.ts": END_OF_INPUT})]
    assert times_after_batches(NOW, NOW, ended, 3)[-1] == (3, {"0.ts": END_OF_INPUT, "1.ts": END_OF_INPUT})
    assert match_scans(NOW, identify(CHAIN)) == {"0": "0", "1": "1"}


def test_logs_follow_sources_to_other_places(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    head = json.dumps({"batchTimestampMs": 5, "conf": {"a": "1"}})
    lines = {
        7: ['{"logOffset":1}', '{"topic":{"0":4}}', "-", "3"],
        8: ['{"logOffset":2}', '{"topic":{"0":9}}', "-", "4"],
    }
    for batch, own in lines.items():
        (old / "offsets").mkdir(parents=True, exist_ok=True)
        (old / "offsets" / str(batch)).write_text("\n".join(["v1", head, *own]))
    (old / "sources" / "0").mkdir(parents=True)
    for step in range(3):
        entry = {"path": f"file:///in/a%20b/{step}.json", "timestamp": step, "batchId": step}
        (old / "sources" / "0" / str(step)).write_text(f"v1\n{json.dumps(entry)}")
    sources = [
        (0, {FORMAT: "kafka", "subscribe": "topic"}), (1, {"path": "/in/other"}), (2, {"path": "/in/a b"}),
        (3, {FORMAT: "rate"}), (2, {"path": "/in/a b"}),
    ]  # fmt: skip
    write_logs(new, SourcePositions.of(old, [7, 8]), sources, 7, 8, {"a": "2"})
    found = {batch: (new / "offsets" / str(batch)).read_text().split("\n") for batch in (6, 7, 8)}
    assert found[7][2:] == found[6][2:] == ['{"topic":{"0":4}}', "-", '{"logOffset":0}', "-", '{"logOffset":0}']
    assert found[8][2:] == ['{"topic":{"0":9}}', "-", '{"logOffset":1}', "-", '{"logOffset":1}']
    assert json.loads(found[7][1]) == {"batchTimestampMs": 5, "conf": {"a": "2"}}
    assert [path.name for path in (new / "sources").iterdir()] == ["2"]
    steps = [(new / "sources" / "2" / step).read_text().count("a%20b") for step in ("0", "1")]
    assert steps == [2, 1]


def test_a_kill_between_two_names_leaves_the_old_one(tmp_path: Path) -> None:
    checkpoint = tmp_path / "joined"
    checkpoint.mkdir()
    (checkpoint / "old").touch()
    made = prepare_staging(checkpoint)
    made.mkdir()
    (made / "new").touch()
    # The first of two names has changed.
    checkpoint.rename(tmp_path / ".before-joined")
    recover_swap(checkpoint)
    assert [file.name for file in checkpoint.iterdir()] == ["old"]
    recover_swap(checkpoint)
    swap(made, checkpoint)
    assert [file.name for file in checkpoint.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["joined"]


def test_of_batches_that_spark_forgot_files_are_known_and_not_their_batches(tmp_path: Path) -> None:
    for name in ("offsets", "commits", "sources/0"):
        (tmp_path / name).mkdir(parents=True)
    for step in range(5):
        entry = json.dumps({"path": f"file:///in/{step}.json", "timestamp": step, "batchId": step})
        (tmp_path / "sources" / "0" / str(step)).write_text(f"v1\n{entry}")
    for batch, step in ((7, 3), (8, 4)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{{"logOffset":{step}}}')
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    log = read_log(tmp_path)
    assert log.older == {"/in/0.json", "/in/1.json", "/in/2.json"}
    exact, forgotten = ReplayRange(log, (7, 8), 7, {"0.t": 1}), ReplayRange(log, (7, 8), 3, {})
    assert (exact.is_truncated, forgotten.is_truncated) == (False, True)
    assert exact.files("/in") == {"/in/3.json": 7, "/in/4.json": 8}
    assert len(forgotten.files("/in")) == 5
    # Marks come in a batch of their own, before all others.
    assert (exact.steps, exact.step_of(7), forgotten.steps, forgotten.step_of(7)) == (3, 1, 2, 0)
