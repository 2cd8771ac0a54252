"""The Python of the pages runs as a reader runs it, over the files that ``watersmeet init`` writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.test_docs import ROOT, blocks

import watersmeet as ws
from watersmeet.cli.init import init_project
from watersmeet.metrics.progress import Totals

pytestmark = pytest.mark.spark


def run_page(page: str, shop: Path) -> dict[str, object]:
    """Run all Python of a page in a project; its queries take what is there, and end."""
    source = "\n".join(blocks(ROOT / "docs" / page, "python"))
    # Relative paths begin where the session was started; and this session is there already.
    source = re.sub(r'"((?:data|sql)/[^"]*|checkpoint|joined)"', lambda found: repr(str(shop / found[1])), source)
    source = source.replace("hdfs://host", str(shop)).replace(".start(", ".trigger(availableNow=True).start(")
    names: dict[str, object] = {}
    exec(source, names)
    return names


def finish(names: dict[str, object]) -> Totals:
    """What the query of a page did until its end."""
    query = names["query"]
    assert isinstance(query, StreamingQuery)
    query.awaitTermination()
    return ws.progress(query)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project that ``init`` wrote."""
    init_project(tmp_path / "shop")
    return tmp_path / "shop"


def test_the_page_for_users_of_spark_runs(spark: SparkSession, shop: Path) -> None:
    # Its orders are called by `id`.
    for file in (shop / "data" / "orders").glob("*.json"):
        file.write_text(file.read_text().replace('"order_id"', '"id"'))
    names = run_page("coming-from/spark.md", shop)
    totals = finish(names)
    assert names["spark"] is spark and (totals.rows_in, totals.rows_out) == (5, 3)


def test_the_program_to_submit_runs(spark: SparkSession, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = shop / "sql" / "joined.sql"
    script.write_text(script.read_text().replace("'data/", f"'{shop}/data/"))
    totals = finish(run_page("howto/spark-submit.md", shop))
    assert (totals.rows_in, totals.rows_out) == (5, 3)
    assert spark.read.parquet(str(shop / "joined")).count() == 3


def test_the_cells_of_a_notebook_run(spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("howto/notebooks.md", shop)
    assert names["spark"] is spark and finish(names).rows_out == 3
    shown = capsys.readouterr().out
    assert "25 min too late" in shown and "north" in shown
