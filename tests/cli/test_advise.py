"""What `advise` refuses before Spark is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli.app import app

STREAM = "CREATE STREAM a (id BIGINT, t TIMESTAMP) USING json OPTIONS (path 'a');"


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        (STREAM, (), 1, "[NOTHING_TO_ADVISE]"),
        (f"{STREAM} SELECT STREAM a.t FROM a SYNC JOIN a AS b;", (), 1, "a and a has no time bounds"),
        (f"{STREAM} SELECT STREAM a.id FROM a JOIN b ON a.id = b.id;", (), 1, "[UNKNOWN_SOURCE]"),
        (f"{STREAM} SELECT STREAM a.id FROM a JOIN a AS b ON a.id = b.ids;", (), 1, "did you mean `id`?"),
        (f"{STREAM} SELEC;", (), 1, "[SYNTAX_ERROR]"),
        (STREAM, ("--svg", "x.svg", "--format", "json"), 2, "exclude each other"),
        (STREAM, ("--keep", "0.1"), 2, "--keep"),
        (STREAM, ("--sample", "1"), 2, "--sample"),
    ],
)
def test_refusals(text: str, arguments: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "query.sql").write_text(text)
    refused = CliRunner().invoke(app, ["advise", str(tmp_path / "query.sql"), *arguments])
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr
