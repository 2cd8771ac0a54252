"""Control characters of others do not reach a terminal: in refusals, in what commands print, and in the log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.errors import Refusal, WatersmeetError, refusal_in
from watersmeet.metrics.logs import LogOptions, log

COMMANDS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
SENT = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\x00"
"""A new title of the window, an empty screen, red in one character, the start of the line again."""


def test_refusals_of_a_script_hold_no_command_to_the_terminal(tmp_path: Path) -> None:
    named = f"`a{SENT[1:]}`".replace("\x00", "").replace("\r", "")
    file = tmp_path / "q.sql"
    texts = (
        f"SELECT STREAM a.id FROM {named} a, \x1b[31m FORM;",
        f"CREATE STREAM s (id INT);\tSELECT STREAM x.{named} FROM s AS x;",
        f"CREATE STREAM s (id INT);\r\nSELECT STREAM s.id FROM s\r\nJOIN {named} b WITHIN 1 ON s.id = b.id;\r\n",
    )
    for text in texts:
        file.write_text(text, newline="")
        for command in ("check", "explain"):
            result = CliRunner().invoke(app, [command, str(file)])
            assert not COMMANDS.search(result.output), (command, result.output)
            assert "-->" in result.stderr
    refused = CliRunner().invoke(app, ["check", str(file)]).stderr.split("\n")
    excerpt = next(n for n, line in enumerate(refused) if line.startswith(" 3 | "))
    assert refused[excerpt].index("`a") == refused[excerpt + 1].index("^"), "the caret is below the name"
    assert refused[excerpt].endswith("id;")


def test_values_in_refusals_and_in_the_log_hold_no_command_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from watersmeet.cli.console import Format, print_refusals, print_text
    from watersmeet.cli.run import notify

    parameters = {"source": "orders", "place": f"t{SENT}", "reason": f"odd {SENT}", "value": f'{{"a": "{SENT}"}}'}
    refusal = Refusal("MALFORMED_ROW", parameters)
    error = WatersmeetError([refusal])
    for format_ in Format:
        print_refusals(error, format_)
    print_text(json.dumps({"value": SENT}, ensure_ascii=False))
    with LogOptions("info", "text").attach(tmp_path / "text"):
        log("error", "failed", "joined", refusal.message)
        notify(refusal.message)
    with LogOptions("info", "json").attach(tmp_path / "json"):
        log("error", "failed", "joined", refusal.message)
    output = capsys.readouterr()
    lines = [(tmp_path / form / "watersmeet.log").read_text() for form in ("text", "json")]
    for text in (output.out, output.err, *lines):
        assert not COMMANDS.search(text)
        assert "\\u001b" in text
    # Machines get what it was, as do drivers from their workers.
    as_json, printed = output.out.splitlines()
    assert json.loads(as_json)["refusals"][0]["parameters"] == parameters
    assert json.loads(printed) == {"value": SENT}
    assert json.loads(lines[1])["text"] == refusal.message
    assert refusal_in(refusal.to_message()) == refusal
