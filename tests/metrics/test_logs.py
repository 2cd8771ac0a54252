"""The log of a run: a line for whatever happens, as text and as JSON, in files that are rotated."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.tools.studio.page.histories import batch

from watersmeet.cli.run import log_batch, notify
from watersmeet.metrics import logs
from watersmeet.metrics.logs import Form, Level, LogOptions, log


def log_lines(storage: Path, level: Level, form: Form) -> list[str]:
    with LogOptions(level, form).attach(storage):
        log("info", "started", "joined")
        log_batch(batch(3, 1_800_000_000.0))
        notify("joined: is read by Spark from now on.")
        log("error", "failed", "joined", "No way in:\npassword=hunter2 is wrong.")
    log("error", "failed", "joined", "nobody logs this any more")
    return (storage / "watersmeet.log").read_text().splitlines()


def test_lines_of_text(tmp_path: Path) -> None:
    started, done, news, failed = [line.split(" ", 1) for line in log_lines(tmp_path, "info", "text")]
    assert started[0].endswith("Z") and started[1] == "info    joined started"
    assert done[1] == "info    joined batch 3, 700 rows in, 290 out, 1,100 kept, 0.8 s, watermark 2027-01-15 06:54:00"
    assert news[1] == "warning news joined: is read by Spark from now on."
    assert failed[1] == "error   joined failed No way in: password=*** is wrong."


def test_lines_of_json(tmp_path: Path) -> None:
    started, done, _, failed = [json.loads(line) for line in log_lines(tmp_path, "info", "json")]
    assert (started["level"], started["event"], started["query"]) == ("info", "started", "joined")
    assert (done["rows_in"], done["operators"]["o and d"]["sides"]["left"]["state_rows"]) == (700, 900)
    assert failed["text"] == "No way in:\npassword=*** is wrong."


def test_logs_have_as_many_lines_as_requested(tmp_path: Path) -> None:
    assert len(log_lines(tmp_path / "a", "warning", "text")) == 2
    assert len(log_lines(tmp_path / "b", "error", "json")) == 1
    assert '"rows_in": 700' in log_lines(tmp_path / "c", "debug", "text")[1]


def test_files_are_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 2000)
    with LogOptions("info", "json").attach(tmp_path):
        for number in range(40):
            log_batch(batch(number, 1_800_000_000.0))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["watersmeet.log", *(f"watersmeet.log.{n}" for n in range(1, 6))]
    assert json.loads((tmp_path / "watersmeet.log").read_text().splitlines()[-1])["batch"] == 39


def test_lines_are_written_once_a_storage_that_was_away_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "log"
    folder.write_text("a file where the folder should be")
    handler = logs._PieceHandler(folder)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.handle(logging.makeLogRecord({"msg": "first", "levelno": logging.WARNING}))
    folder.unlink()
    handler.handle(logging.makeLogRecord({"msg": "second", "levelno": logging.WARNING}))
    handler.close()
    assert [piece.read_text() for piece in folder.iterdir()] == ["first\nsecond\n"]
    assert capsys.readouterr().err == ""
