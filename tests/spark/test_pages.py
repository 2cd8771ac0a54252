"""The Python of the pages runs as a reader runs it, over the files that ``watersmeet init`` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
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


STREAMS = {
    "orders": [{"id": n, "customer": 1, "item": "rug", "amount": 9.5, "ts": f"2026-03-02 08:{n}:00"} for n in (10, 17)],
    "deliveries": [{"order_id": 10, "courier": "north", "delivered_at": "2026-03-02 08:40:00"}],
    "ratings": [{"order_id": 10, "stars": 5, "rated_at": "2026-03-02 18:00:00"}],
    "clicks": [{"click_id": "a", "page": "home", "price": 1.0, "clicked_at": "2026-03-02 08:00:00"}],
    "trades": [{"ticker": "W", "price": 1.0, "traded_at": "2026-03-02 08:00:00"}],
    "quotes": [{"ticker": "W", "ask": 1.0, "bid": 0.9, "sequence": 1, "quoted_at": "2026-03-02 08:00:00"}],
    "averages": [{"ticker": "W", "vwap": 120.0, "sequence": 0, "averaged_at": "2026-03-02 08:00:00"}],
    "calls": [{"id": 1, "caller": "Ada", "called_at": "2026-03-02 08:00:00"}],
    "answers": [{"id": 1, "agent": "Bo", "answered_at": "2026-03-02 08:01:00"}],
    "temperature": [{"degrees": 11.5, "measured_at": "2026-03-02 08:00:00"}],
    "wind": [{"speed": 3.0, "measured_at": "2026-03-02 08:00:00"}],
    "customers": [{"id": 1, "name": "Ada"}],
}  # fmt: skip
"""The rows of the examples in the reference, by the folder that they are read from."""


def write_rows(folder: Path, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """A file of rows in each folder of ``data``."""
    for name, of_name in rows.items():
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / "0.json").write_text("".join(json.dumps(row) + "\n" for row in of_name))


def run_blocks(spark: SparkSession, page: str, folder: Path) -> Iterator[dict[str, object]]:
    """Run the Python of a page, block by block; yields the names after each, when its queries have had all rows."""
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / page, "python"):
        exec(re.sub(r'(f?)"((?:data|output|checkpoints)/)', rf'\1"{folder}/\2', block), names)
        yield names
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()


def test_all_of_the_reference_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path, STREAMS)
    page = ROOT / "docs" / "reference" / "python.md"
    running = run_blocks(spark, "reference/python.md", tmp_path)
    try:
        names = next(running)
        assert capsys.readouterr().out.strip() == blocks(page, "text")[0].strip()
        ran = 1 + len([*running])
    finally:
        spark.conf.unset("watersmeet.operator_chaining")
    assert ran == len(blocks(page, "python")) > 20
    # What the examples write, and what is in the state of their first query.
    alone = names["alone"]
    assert isinstance(alone, DataFrame) and [row["id"] for row in alone.collect()] == [17]
    written = {path.name for path in (tmp_path / "output").iterdir()}
    assert written == {"joined", "both", "late", "all", "totals"}
    # The last windows and unmatched rows came out where the input was declared finished.
    assert sorted(row["id"] for row in spark.read.parquet(f"{tmp_path}/output/all").collect()) == [10, 17]
    assert "17" in capsys.readouterr().out


def test_the_advice_in_python_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, done = ([f"2026-03-02 {hour}:{n:02}:00" for n in range(60)] for hour in ("08", "09"))
    orders = [{"id": n, "at": at[n], "amount": n} for n in range(60)]
    deliveries = [{"order_id": n, "done": done[n], "rating": 5} for n in range(60)]
    write_rows(tmp_path, {"orders": orders, "deliveries": deliveries})
    (names,) = run_blocks(spark, "advise.md", tmp_path)
    assert "INTERVAL 1 HOUR" in capsys.readouterr().out and names["found"]


def test_a_plan_of_substrait_runs(spark: SparkSession, tmp_path: Path) -> None:
    from datafusion import SessionContext
    from datafusion.substrait import Serde

    write_rows(tmp_path, {name: STREAMS[name] for name in ("orders", "customers")})
    context = SessionContext()
    context.sql("CREATE TABLE orders (id BIGINT, customer BIGINT, amount DOUBLE)").collect()
    context.sql("CREATE TABLE customers (id BIGINT, name VARCHAR)").collect()
    sql = "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id"
    (tmp_path / "data" / "plan.substrait").write_bytes(Serde.serialize_bytes(sql, context))
    source = "\n".join(blocks(ROOT / "docs" / "reference" / "substrait.md", "python"))
    names: dict[str, object] = {}
    exec(re.sub(r'"(data/|plan)', lambda found: f'"{tmp_path}/data/{found[1].removeprefix("data/")}', source), names)
    changes = names["changes"]
    assert isinstance(changes, DataFrame) and changes.columns == ["id", "name", "_change"]


def test_a_changed_query_is_accepted_in_python(spark: SparkSession, shop: Path) -> None:
    # The program of the README, then its edit.
    (program,) = blocks(ROOT / "README.md", "python")
    for longer in (False, True):
        edited = program.replace('"1 hour"', '"2 hours"') if longer else program
        head, _, tail = edited.partition("query = ")
        names: dict[str, object] = {}
        exec(head.replace('"shop/', f'"{shop}/'), names)
        started = "query = " + (blocks(ROOT / "docs" / "changing.md", "python")[0] if longer else tail)
        started = re.sub(r'"(checkpoint|joined)"', lambda found: repr(str(shop / found[1])), started)
        if longer:
            with pytest.raises(ws.WatersmeetError, match="CHECKPOINT_OF_A_CHANGED_QUERY"):
                exec(started.replace('.option("watersmeet.accept", "true")', ""), dict(names))
        exec(started, names)
        query = names["query"]
        assert isinstance(query, StreamingQuery)
        query.processAllAvailable() if longer else query.awaitTermination()
        query.stop()


def test_cases_run_in_tests_of_the_user(shop: Path) -> None:
    for page in ("howto/ci.md", "reference/python.md"):
        block = next(block for block in blocks(ROOT / "docs" / page, "python") if "def test_case" in block)
        names: dict[str, object] = {"ws": ws}
        exec(re.sub(r'Path\("(?:shop/)?cases', f'Path("{shop}/cases', block), names)
        marks = names["test_case"].pytestmark  # pyright: ignore[reportAttributeAccessIssue]
        (path,) = marks[0].args[1]
        names["test_case"](path)  # pyright: ignore[reportCallIssue]
    (block,) = blocks(ROOT / "docs" / "reference" / "cases.md", "python")
    exec(block.replace('Path("', f'Path("{shop}/'), {})
