"""The how-to page of notebooks runs, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.test_docs import ROOT, blocks

import watersmeet as ws
from watersmeet.cli.demo import init_project

pytestmark = pytest.mark.spark


def test_the_cells_of_a_notebook_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init_project(tmp_path / "shop")
    page = "\n".join(blocks(ROOT / "docs" / "howto" / "notebooks.md", "python"))
    # Relative paths begin where the session was started; and this session is there already.
    for written in ("data/orders", "data/deliveries", "checkpoint", "joined"):
        page = page.replace(f'"{written}"', repr(str(tmp_path / "shop" / written)))
    found: dict[str, object] = {}
    exec(page, found)
    assert found["spark"] is spark
    query = found["query"]
    assert isinstance(query, StreamingQuery)
    try:
        query.processAllAvailable()
        assert ws.progress(query).rows_out == 3
    finally:
        query.stop()
    shown = capsys.readouterr().out
    assert "25 min too late" in shown and "north" in shown
