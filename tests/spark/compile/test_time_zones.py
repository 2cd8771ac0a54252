"""Days, and differences of times, in a session whose clocks move: what Spark says of a pair, Watersmeet says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all, stream_files

import watersmeet as ws

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"
SCHEMA = "k INT, at STRING"
# In Berlin the 26th of October has 25 hours, and the 30th of March has 23.
LEFT = [(1, "2025-10-25T12:00:00+02:00"), (1, "2025-03-29T12:00:00+01:00"), (1, "2025-10-26T00:30:00+02:00")]
RIGHT = [
    (1, f"2025-{day}:{minute}:00Z")
    for day in ("10-26T10", "10-26T11", "10-25T10", "03-30T09", "03-30T10", "03-30T11", "10-26T01", "10-26T02")
    for minute in ("00", "30")
]
CONDITIONS = (
    "r.t BETWEEN l.t AND l.t + INTERVAL 1 DAY",
    "r.t BETWEEN l.t AND l.t + INTERVAL 24 HOURS",
    "r.t >= l.t AND r.t - INTERVAL 1 DAY <= l.t",
    "r.t - l.t BETWEEN INTERVAL 0 SECONDS AND INTERVAL 1 DAY",
    "r.t >= l.t AND NOT (r.t - l.t > INTERVAL 2 HOURS)",
    "r.t = l.t + INTERVAL 1 DAY",
)


@pytest.fixture(params=["Europe/Berlin", "UTC"])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, request.param)
    yield spark
    spark.conf.set(ZONE, str(before))


def moments(spark: SparkSession, rows: list[tuple[int, str]]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA).selectExpr("k", "CAST(at AS TIMESTAMP) AS t")


def row_texts(rows: list[tuple[object, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in rows)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("session", ["Europe/Berlin"], indirect=True)
def test_days_and_differences_are_sparks(condition: str, session: SparkSession) -> None:
    left, right = moments(session, LEFT), moments(session, RIGHT)
    query = f"SELECT l.t AS lt, r.t AS rt FROM l LEFT JOIN r ON l.k = r.k AND {condition}"
    left.createOrReplaceTempView("l")
    right.createOrReplaceTempView("r")
    expected = row_texts([tuple(row) for row in session.sql(query).collect()])
    assert row_texts([tuple(row) for row in ws.sql(query, l=left, r=right).collect()]) == expected


@pytest.mark.parametrize("condition", ["r.t BETWEEN l.t AND l.t + INTERVAL 1 DAY", "r.t - l.t <= INTERVAL 1 DAY"])
def test_why_says_of_days_what_the_query_gives(condition: str, session: SparkSession) -> None:
    left, right = moments(session, LEFT[:1]), moments(session, [(1, "2025-10-26T11:00:00Z")])
    query = f"SELECT STREAM l.t FROM l JOIN r ON l.k = r.k AND r.t >= l.t AND {condition}"
    is_match = ws.sql(query, l=left, r=right).count() == 1
    # In Berlin the day has 25 hours; the difference of local times is 24 hours.
    assert is_match == (session.conf.get(ZONE) == "Europe/Berlin")
    said = ws.why(query, "l", {"k": 1}, l=left, r=right, spark=session)
    assert bool(said.lineage.matches) == is_match, str(said)


def test_a_day_of_25_hours_is_retained_for_25_hours(session: SparkSession, tmp_path: Path) -> None:
    # The watermark of r is 24 hours and a half behind the row of l, when its pair comes.
    left = stream_files(tmp_path / "l", [moments(session, LEFT[:1]), moments(session, []), moments(session, [])])
    batches = [[(2, "2025-10-25T10:00:00Z")], [(2, "2025-10-26T10:30:00Z")], [(1, "2025-10-26T11:00:00Z")]]
    right = stream_files(tmp_path / "r", [moments(session, rows) for rows in batches])
    query = "SELECT STREAM l.k, r.t FROM l JOIN r ON l.k = r.k AND r.t BETWEEN l.t AND l.t + INTERVAL 1 DAY"
    frames: dict[str, Any] = {"l": left.withWatermark("t", "0 seconds"), "r": right.withWatermark("t", "0 seconds")}
    rows = [row for batch in run_all(ws.sql(query, **frames), tmp_path / "c") for row in batch]
    assert len(rows) == (1 if session.conf.get(ZONE) == "Europe/Berlin" else 0)
