"""What a terminal shows before Spark is there: what is waited for, and for how long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.terminal import type_command

from watersmeet.cli.init import init_project


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java that says which one it is, and then does nothing until there is a file ``go`` beside it; then it ends."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    waits = f"while [ -d {java.parent} ] && [ ! -e {java.parent / 'go'} ]; do sleep 0.1; done; exit 1"
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21"\' >&2 && exit 0\n{waits}\n')
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("command", "columns"), [("run shop", 30), ("demo", 100), ("check shop --deep", 100)])
def test_something_moves_before_spark_is_there(tmp_path: Path, java: Path, command: str, columns: int) -> None:
    init_project(tmp_path / "shop")
    environ = {**os.environ, "JAVA_HOME": str(java.parent.parent)}
    with type_command(*command.split(), folder=tmp_path, columns=columns, told=environ) as terminal:
        terminal.until("Starting Spark, 0 s")
        terminal.until("Starting Spark, 1 s")
        (java.parent / "go").touch()
        assert terminal.end() == 5
    assert "[SPARK_NOT_STARTED]" in terminal.shown.replace("\n", "")
