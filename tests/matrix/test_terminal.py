"""A run on a terminal, with a Spark of its own: what is shown from the launch to the end, in this order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.terminal import type_command

from watersmeet.cli.init import init_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("columns", [60, 120])
def test_something_moves_from_the_launch_to_the_end(tmp_path: Path, columns: int) -> None:
    init_project(tmp_path / "shop")
    with type_command("run", "shop", "--end", "--master", "local[2]", folder=tmp_path, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.shown
    shown = terminal.shown
    steps = (
        "Starting Watersmeet, 0 s",
        "Starting Spark, 0 s",
        "Starting Spark, 1 s",
        "Waiting for the first batch, 0 s",
    )
    places = [shown.index(step) for step in (*steps, "rows in", "source  orders", "ended", "Done: joined is in")]
    assert places == sorted(places)
    assert "…" not in shown and "Traceback" not in shown
