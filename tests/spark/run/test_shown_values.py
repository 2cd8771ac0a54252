"""Values that Python cannot hold, or only as text: a query that shows some of its rows runs all the same."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.cli.test_commands import watersmeet
from tests.spark.exchange.test_examples import not_utf8

from watersmeet.metrics.progress import Progress
from watersmeet.parser import read_script
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.studio.page.model import RowSamples

pytestmark = pytest.mark.spark

COLUMNS = (
    "id BIGINT, at TIMESTAMP, s STRING, b BINARY, moment TIMESTAMP, plain TIMESTAMP_NTZ, day DATE, f DOUBLE, "
    "dec DECIMAL(38,10), several ARRAY<TIMESTAMP>, by_name MAP<STRING, DATE>, both STRUCT<s: STRING, day: DATE>"
)
SCRIPT = """
CREATE STREAM left_side ({columns}, WATERMARK FOR at AS at - INTERVAL '1 minute')
  USING parquet OPTIONS (path '{folder}/l');
CREATE STREAM right_side ({columns}, WATERMARK FOR at AS at - INTERVAL '1 minute')
  USING parquet OPTIONS (path '{folder}/r');
CREATE SINK joined USING parquet OPTIONS (path '{folder}/joined');
INSERT INTO joined
SELECT STREAM l.*, r.id AS other_id, r.s AS other, r.moment AS later FROM left_side l
LEFT JOIN right_side r ON l.id = r.id AND r.at BETWEEN l.at AND l.at + INTERVAL 1 HOUR;
"""
HOUR = 1_772_438_400_000_000
FAR = (2**63 - 1, 253_402_300_800_000_000, -62_135_596_800_000_001, -(2**63) + 1)
"""The last microsecond there is, the year 10000, the year 0, and the first microsecond."""


def rows(at: list[int]) -> pa.Table:
    text, count = not_utf8(len(at)), len(at)
    moments, others = (pa.array([FAR[n]] * count).cast(pa.timestamp("us")) for n in (1, 3))
    days = pa.array([-800_000] * count, pa.int32()).cast(pa.date32())
    every = pa.array(range(count + 1), pa.int32())
    return pa.table(
        {
            "id": range(count), "at": pa.array(at).cast(pa.timestamp("us", "UTC")), "s": text,
            "b": pa.array([b"\xff\x00"] * count), "moment": moments.cast(pa.timestamp("us", "UTC")), "plain": others,
            "day": days, "f": [float("nan")] * count,
            "dec": pa.array([Decimal("9" * 28)] * count, pa.decimal128(38, 10)),
            "several": pa.ListArray.from_arrays(every, moments.cast(pa.timestamp("us", "UTC"))),
            "by_name": pa.MapArray.from_arrays(every, text, days),
            "both": pa.StructArray.from_arrays([text, days], names=["s", "day"]),
        }
    )  # fmt: skip


@pytest.fixture
def odd_zone(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "GMT+01:00")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


def test_rows_of_any_value_are_shown(spark: SparkSession, odd_zone: None, tmp_path: Path) -> None:
    for side in ("l", "r"):
        (tmp_path / side).mkdir()
        pq.write_table(rows([HOUR] * 4), tmp_path / side / "1.parquet")
    text = SCRIPT.format(columns=COLUMNS, folder=tmp_path)
    shown, news = RowSamples(), list[str]()

    def run() -> list[Progress]:
        seen: list[Progress] = []
        run_script(
            read_script(text),
            spark=spark,
            storage=tmp_path / "q.storage",
            trigger="available_now",
            options=StartOptions(sample_rows="some"),
            listeners=Listeners(
                on_progress=lambda progress: (seen.append(progress), shown.take(progress))[0], on_news=news.append
            ),
        )
        return seen

    [first] = run()
    assert (first.matched, news) == (4, [])
    # The watermark goes to the last year there is, behind which everything is late.
    pq.write_table(rows([FAR[0], FAR[1]]), tmp_path / "l" / "2.parquet")
    run()
    pq.write_table(rows([FAR[2], FAR[3], HOUR]), tmp_path / "l" / "3.parquet")
    assert (sum(batch.late for batch in run()), news) == (3, [])
    tables = {table["kind"]: table for table in cast("list[dict[str, Any]]", shown.to_json("joined")["kinds"])}
    assert "dropped" not in tables
    matched = [dict(zip(tables["matched"]["columns"], row["values"], strict=True)) for row in tables["matched"]["rows"]]
    row = {name.removeprefix("l."): str(value) for name, value in matched[0].items()}
    assert (row["moment"], row["plain"][:20]) == ("+10000-01-01 00:00:00+00:00", "-290308-12-21 19:59:")
    assert (row["day"], row["f"], row["s"][:4], row["b"]) == ("-0221-09-04", "nan", "\\xff", r"b'\xff\x00'")
    assert "+10000-01-01" in row["several"] and "-0221-09-04" in row["by_name"] and "-0221-09-04" in row["both"]
    assert tables["late"]["rows"], "late rows are shown, too"
    result = watersmeet("state", "read", tmp_path / "q.storage", "--query", "joined", "--side", "l")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "+294247" in result.stdout
    assert "+294247" in watersmeet("state", "show", tmp_path / "q.storage", "--query", "joined").stdout
    (tmp_path / "q.sql").write_text(text)
    why = watersmeet("why", tmp_path / "q.sql", "left_side", "id=1")
    assert why.exit_code == 0, why.stderr
    assert "10000" in why.stdout
