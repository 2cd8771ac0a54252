"""Shared by the servers of these tests: jars that are fetched once, and processes that end with the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

HADOOP = "3.5.0"
"""The Hadoop of the servers, which is that of the locked Spark."""
SECONDS = 150
LONG = pytest.mark.skipif(not os.environ.get("WATERSMEET_CLUSTER"), reason="`make cluster` runs it")
"""For what takes minutes."""


def jars_of(*packages: str, is_whole: bool = False) -> list[Path]:
    """The jars of packages, from the user's cache or from Maven Central; the test is skipped where it has neither."""
    from watersmeet.errors import WatersmeetError
    from watersmeet.spark.session.java import fetch_jars

    try:
        return fetch_jars(packages, os.environ, is_whole=is_whole)
    except WatersmeetError as error:
        pytest.skip(f"did not run, because Maven Central cannot be reached: {error.refusals[0].message}")


def hadoop_of_spark() -> str:
    """The version of the Hadoop that the installed Spark bundles."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    [jar] = (Path(spec.origin).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.rpartition("-")[2]


def start_process(command: Sequence[str | Path], folder: Path, is_ready: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """A process that is ready; its output is in ``out.log`` of the folder."""
    with (folder / "out.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    until = time.monotonic() + SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise AssertionError((folder / "out.log").read_text("utf-8", "replace")[-3000:])
        time.sleep(0.1)
    return process


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that a test started."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def java() -> str:
    """The Java that Spark takes, or that is on the path."""
    from watersmeet.spark.session.java import prepare_java

    home = prepare_java(dict(os.environ))
    return str(home / "bin" / "java") if home else shutil.which("java") or "java"
