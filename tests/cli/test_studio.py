"""``draw`` and ``play``: what they print, write and refuse."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from watersmeet.cli import studio
from watersmeet.cli.app import app
from watersmeet.tools.studio.board.server import BoardSession

ROOT = Path(__file__).parent.parent.parent
STORY = ROOT / "src" / "watersmeet" / "tools" / "studio" / "board" / "stories" / "interval.yaml"


def watersmeet(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="watersmeet")


def test_draw_writes_a_picture_or_prints_it(tmp_path: Path) -> None:
    file = tmp_path / "lifetimes.svg"
    drawn = watersmeet("draw", STORY, "-o", file)
    assert (drawn.exit_code, drawn.stdout) == (0, f"{file}: 7 rows drawn.\n")
    assert watersmeet("draw", STORY).stdout == file.read_text("utf-8")


def test_draw_of_a_batch_has_what_had_come_by_then(tmp_path: Path) -> None:
    file = tmp_path / "lifetimes.svg"
    assert watersmeet("draw", STORY, "--batch", 0, "-o", file).stdout == f"{file}: 4 rows drawn.\n"
    beyond = watersmeet("draw", STORY, "--batch", 3)
    assert beyond.exit_code == 2
    assert "the last one of" in beyond.stderr


def test_draw_of_one_of_several_queries(tmp_path: Path) -> None:
    sql = "CREATE STREAM a (t BIGINT, WATERMARK FOR t AS t - 0);\nCREATE SINK x USING json OPTIONS (path 'x');\n"
    sql += "CREATE SINK y USING json OPTIONS (path 'y');\nINSERT INTO x SELECT STREAM t FROM a;\n"
    sql += "INSERT INTO y SELECT STREAM t FROM a WHERE t > 5;\n"
    case = tmp_path / "two.yaml"
    text = "".join(f"  {line}\n" for line in sql.splitlines())
    case.write_text(f"name: two\nsql: |\n{text}batches:\n- in: {{a: [[1], [9]]}}\n")
    assert "has 2 queries" in watersmeet("draw", case).stderr
    assert "filtered" in watersmeet("draw", case, "--query", "y").stdout
    assert "filtered" not in watersmeet("draw", case, "--query", "X").stdout
    assert "known names: `x`, `y`" in watersmeet("draw", case, "--query", "nothing").stderr


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("tests/cases/interval/refused/no-bound.yaml", "queries to explain"),
        ("tests/cases/nexmark/q15.yaml", "only Spark can evaluate"),
        ("tests/cases/none.yaml", "FILE_NOT_FOUND"),
    ],
)
def test_draw_refuses_what_it_cannot_draw(case: str, said: str) -> None:
    refused = watersmeet("draw", ROOT / case)
    assert refused.exit_code in (1, 2)
    assert said in refused.stderr or "UNBOUNDED_STATE" in refused.stderr
    assert refused.stdout == ""


def test_play_says_where_it_is_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "watersmeet.cli", "play", str(STORY), "--save", str(tmp_path / "a.yaml")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": tmp_path}
    running = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes)
    try:
        assert running.stdout is not None
        address, saves, ends = (running.stdout.readline().strip() for _ in range(3))
        found = re.search(r"at (http://127\.0\.0\.1:\d+)$", address)
        assert found is not None
        with urllib.request.urlopen(found[1], timeout=20) as answer:
            assert b"drawing board" in answer.read()
    finally:
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=20)
    assert (saves, ends) == (f"It saves to {tmp_path / 'a.yaml'}.", "Ctrl-C ends it.")
    assert rest == ""
    assert running.returncode == 130


def test_play_refuses_before_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FILE_NOT_FOUND" in watersmeet("play", tmp_path / "none.yaml").stderr
    assert "there is no folder" in watersmeet("play", STORY, "--save", tmp_path / "no" / "a.yaml").stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = watersmeet("play", STORY, "--port", taken.getsockname()[1])
        assert refused.exit_code == 1
        assert "[BOARD_ADDRESS]" in refused.stderr
        assert "another process listens there" in refused.stderr
    monkeypatch.setattr(studio, "find_spec", lambda name: None if name == "uvicorn" else True)
    assert "[BOARD_NOT_INSTALLED] uvicorn is not installed" in watersmeet("play", STORY).stderr


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tests/cases", "behind a FULL JOIN on a text"),
        ("examples/shop", "rows of shop"),
        ("examples/shop/cases/cities.yaml", "the table of cities"),
        ("examples/cluster/joined.sql", "rows of joined"),
        (None, "an order waits an hour"),
    ],
)
def test_play_lays_out_what_it_is_given(path: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[BoardSession] = []

    def serve(table: BoardSession, listening: socket.socket) -> None:
        tables.append(table)
        listening.close()

    monkeypatch.setattr(studio, "_serve", serve)
    monkeypatch.chdir(ROOT / "examples" / "clicks")
    assert watersmeet("play", *([] if path is None else [ROOT / path])).exit_code == 0
    assert tables[0].first.name.startswith(name)
    assert tables[0].first.sql


def test_play_on_another_address_prints_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio, "_serve", lambda table, listening: listening.close())
    assert re.search(
        r"http://0\.0\.0\.0:\d+/\?token=[\w-]{20,}\n", watersmeet("play", STORY, "--host", "0.0.0.0").stdout
    )
    assert "token" not in watersmeet("play", STORY).stdout
