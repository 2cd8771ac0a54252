"""Queries with several sinks on Spark: one checkpoint, every sink the rows of its branch once, also after failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.run.test_scripts import DELIVERIES, ORDERS, declarations, sink_rows, write

from watersmeet.errors import WatersmeetError
from watersmeet.locations import find_recorded_sinks
from watersmeet.logical.passes.branches import share_views
from watersmeet.metrics.progress import Progress
from watersmeet.queries import analyze, read_script
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.starts import Accepting
from watersmeet.spark.run.watching import Listeners

pytestmark = pytest.mark.spark

VIEW = """
CREATE VIEW joined AS
  SELECT STREAM o.id, o.item, d.courier, o.t FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id;
CREATE SINK matched USING parquet OPTIONS (path '{out}/matched');
CREATE SINK copies USING json OPTIONS (path '{out}/copies');
CREATE SINK missing USING json OPTIONS (path '{out}/missing');
CREATE SINK late USING json OPTIONS (path '{out}/late');
"""
MATCHED = "INSERT INTO matched SELECT STREAM id, courier FROM joined WHERE courier IS NOT NULL;\n"
MISSING = "INSERT INTO missing SELECT STREAM j.item, {share} AS share FROM joined j WHERE courier IS NULL;\n"


def run(
    spark: SparkSession, folder: Path, text: str, trigger: Trigger, accepting: Accepting = "refuse"
) -> list[Progress]:
    """Run a script as the command does."""
    reported: list[Progress] = []
    script, storage = read_script(declarations(folder, "json") + VIEW.format(out=folder) + text), folder / "storage"
    script, queries = share_views(script, analyze(script), find_recorded_sinks(storage))
    run_script(
        script, analyzed=queries, spark=spark, storage=storage, trigger=trigger, options=StartOptions(accepting),
        listeners=Listeners(on_progress=reported.append),
    )  # fmt: skip
    return reported


def test_insert_statements_over_one_view_are_one_query(spark: SparkSession, tmp_path: Path) -> None:
    for name, rows in (("orders", ORDERS), ("deliveries", DELIVERIES)):
        write(spark, tmp_path, name, "json", rows)
    share = MISSING.format(share="100 DIV (id - 3)")
    with pytest.raises(WatersmeetError, match=r"(?s)DIVIDE_BY_ZERO.*while missing was written"):
        run(spark, tmp_path, MATCHED + share, "end")
    # The sink before it has the batch, and recognises it; that behind it gets it now.
    assert sink_rows(spark, tmp_path / "matched", "parquet", "id BIGINT, courier INT") == [(1, 10)]
    fixed = run(spark, tmp_path, MATCHED + MISSING.format(share="100 DIV id"), "end")
    assert {batch.query for batch in fixed} == {"matched"}
    assert sink_rows(spark, tmp_path / "matched", "parquet", "id BIGINT, courier INT") == [(1, 10)]
    assert sink_rows(spark, tmp_path / "missing", "json", "item STRING, share BIGINT") == [("b", 50), ("c", 33)]
    assert find_recorded_sinks(tmp_path / "storage") == {"matched": ("matched", "missing")}

    # Another sink is one change of the query: it has no rows from before.
    copies = "INSERT INTO copies SELECT STREAM * FROM joined;\n"
    more = MATCHED + MISSING.format(share="100 DIV id") + copies
    with pytest.raises(WatersmeetError, match="copies gets rows from now on, and none from before"):
        run(spark, tmp_path, more, "available_now")
    run(spark, tmp_path, more, "available_now", "accept")
    # The checkpoint stays that of the others when the sink that it is named after is gone.
    write(spark, tmp_path, "orders", "json", [(7, "2024-01-01 12:00:00", "late"), (8, "2030-01-01 12:00:00", "new")])
    (after,) = run(spark, tmp_path, more.removeprefix(MATCHED), "available_now")
    assert after.query == "matched"
    assert sorted(path.name for path in (tmp_path / "storage" / "checkpoints").iterdir()) == ["matched"]


def test_a_statement_with_several_sinks(spark: SparkSession, tmp_path: Path) -> None:
    for name, rows in (("orders", ORDERS), ("deliveries", DELIVERIES)):
        write(spark, tmp_path, name, "json", rows)
    both = "INSERT INTO matched, copies SELECT STREAM o.id, d.courier FROM orders o JOIN deliveries d"
    both += " WITHIN 1h ON o.id = d.order_id LATE INTO late;\n"
    # An INSERT with a checkpoint stays a query of its own, and so does one that does more than filter and project.
    (first,) = run(spark, tmp_path, both.replace("matched, copies", "matched"), "available_now")
    assert first.query == "matched"
    with pytest.raises(WatersmeetError, match="copies gets rows from now on"):
        run(spark, tmp_path, both, "available_now")
    write(spark, tmp_path, "orders", "json", [(9, "2024-01-01 12:00:00", "d"), (1, "2023-01-01 12:00:00", "late")])
    (second,) = run(spark, tmp_path, both, "available_now", "accept")
    assert (second.query, second.late) == ("matched", 1)
    columns = "id BIGINT, courier INT"
    assert sink_rows(spark, tmp_path / "matched", "parquet", columns) == [(1, 10), (9, 90)]
    assert sink_rows(spark, tmp_path / "copies", "json", columns) == [(9, 90)]
    assert sink_rows(spark, tmp_path / "late", "json", "o STRUCT<item: STRING>") == [(("late",),)]


def test_insert_statements_with_checkpoints_stay_separate(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path, "orders", "json", ORDERS)
    write(spark, tmp_path, "deliveries", "json", DELIVERIES)
    inserts, off = MATCHED + MISSING.format(share="1"), "SET watersmeet.shared_views = off;\n"
    assert {batch.query for batch in run(spark, tmp_path, off + inserts, "end")} == {"matched", "missing"}
    script = read_script(declarations(tmp_path, "json") + VIEW.format(out=tmp_path) + inserts)
    _, queries = share_views(script, analyze(script), find_recorded_sinks(tmp_path / "storage"))
    assert [query.into for query in queries] == ["matched", "missing"]


def test_a_table_with_several_sinks(spark: SparkSession, tmp_path: Path) -> None:
    for name, rows in (("orders", ORDERS), ("deliveries", DELIVERIES)):
        write(spark, tmp_path, name, "json", rows)
    text = f"""
    CREATE VIEW counts AS SELECT TABLE item, count(*) AS n FROM orders GROUP BY item;
    CREATE SINK log USING json OPTIONS (path '{tmp_path}/log', changes 'log');
    CREATE SINK whole USING parquet OPTIONS (path '{tmp_path}/whole', changes 'snapshot');
    INSERT INTO log SELECT TABLE item, n FROM counts WHERE n > 1;
    INSERT INTO whole SELECT TABLE upper(item) AS item, n FROM counts;
    """
    run(spark, tmp_path, text, "available_now")
    write(spark, tmp_path, "orders", "json", [(4, "2024-01-01 12:10:00", "a"), (5, "2024-01-01 12:11:00", "a")])
    run(spark, tmp_path, text, "available_now")
    write(spark, tmp_path, "orders", "json", [(4, "2024-01-01 12:10:00", "a")])
    (last,) = run(spark, tmp_path, text, "available_now")
    assert last.query == "log"
    snapshot = sink_rows(spark, tmp_path / "whole" / "current", "parquet", "item STRING, n BIGINT")
    assert snapshot == [("A", 4), ("B", 1), ("C", 1)]
    log = sink_rows(spark, tmp_path / "log", "json", "item STRING, n BIGINT, _change STRING")
    assert [row[:3] for row in log] == [("a", 3, "+"), ("a", 3, "-"), ("a", 4, "+")]
