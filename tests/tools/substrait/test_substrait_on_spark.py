"""Substrait plans on Spark: the table that a plan gives, when all is consolidated, is the producer's own answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all, stream_files
from tests.tools.substrait.substrait_plans import (
    COLUMNS,
    QUERIES,
    ROWS,
    PlanWithRows,
    by_datafusion,
    by_ibis,
    count_rows,
)

import watersmeet as ws
from watersmeet.errors import WatersmeetError

pytestmark = pytest.mark.spark

BY_DATAFUSION = (
    "left join with a rest", "full join of filtered tables", "semi join", "anti join", "an inequality",
    "a join on the right side", "a computed key on the padded side", "a join with a union", "text", "numbers", "logic",
    "times",
)  # fmt: skip
BY_IBIS = ("full join with a rest", "filtered sides", "union all", "times")


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    return {table: spark.createDataFrame(ROWS[table], columns).coalesce(1) for table, columns in COLUMNS.items()}


def consolidate(rows: list[Any]) -> Counter[Any]:
    """What is left when what was taken back is taken away; no row is ever taken back that was not there."""
    shown, taken = ([tuple(row)[:-1] for row in rows if row["_change"] == sign] for sign in "+-")
    total = count_rows(shown)
    total.subtract(count_rows(taken))
    assert min(total.values(), default=0) >= 0
    return +total


def tables_of(planned: PlanWithRows, frames: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """The tables that the plan reads, found by their names in it."""
    return {table: frame for table, frame in frames.items() if table.encode() in planned.plan}


@pytest.mark.parametrize("about", BY_DATAFUSION)
def test_datafusion_agrees(about: str, frames: dict[str, DataFrame]) -> None:
    planned = by_datafusion(QUERIES[about])
    result = ws.substrait(planned.plan, **tables_of(planned, frames))
    assert consolidate(result.collect()) == planned.rows


@pytest.mark.parametrize("name", BY_IBIS)
def test_ibis_agrees(name: str, frames: dict[str, DataFrame]) -> None:
    planned = by_ibis(name)
    result = ws.substrait(planned.plan, **tables_of(planned, frames))
    assert consolidate(result.collect()) == planned.rows


def test_rows_that_arrive_later_change_the_result(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    planned = by_datafusion(QUERIES["three tables"])
    streams = {
        table: stream_files(tmp_path / table, [frame.limit(2), frame.exceptAll(frame.limit(2))])
        for table, frame in frames.items()
    }
    batches = run_all(ws.substrait(planned.plan, **streams), tmp_path / "checkpoint")
    assert len(batches) >= 2 and any(row["_change"] == "-" for row in batches[1])
    assert consolidate([row for batch in batches for row in batch]) == planned.rows


def test_a_plan_over_other_columns_is_refused(frames: dict[str, DataFrame]) -> None:
    planned = by_datafusion(QUERIES["inner join"])
    with pytest.raises(WatersmeetError) as caught:
        ws.substrait(planned.plan, orders=frames["items"], customers=frames["customers"])
    assert caught.value.getCondition() == "SCHEMA_MISMATCH"
