"""The whole tutorial, its cluster too."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.postgres import postgres
from pyspark.sql import SparkSession
from tests.tutorial import PAGES, follow

from watersmeet.spark.private import SEEN, spark_version
from watersmeet.spark.session import session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not spark_version().startswith(SEEN.split()[-1]), reason="it shows what the newest Spark gives"),
]


def test_the_tutorial_works_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SparkSession.getActiveSession() is None, "this test wants a session of its own"
    spark = session("local[2]", log=tmp_path / "spark.log")
    try:
        with postgres() as server:
            follow(PAGES, tmp_path, server.get_uri(), monkeypatch)
    finally:
        spark.stop()
