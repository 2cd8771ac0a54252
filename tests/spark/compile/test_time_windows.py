"""The windows that a time lies in: Spark's SQL for them and what is computed without Spark, beside the plain truth."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from watersmeet.duration import DAY, HOUR, MINUTE
from watersmeet.local.functions import value_of
from watersmeet.logical.expressions import Expr, Reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH, FIRST = datetime(1970, 1, 1), "TIMESTAMP_NTZ'1970-01-01'"
LENGTHS = {
    "TUMBLE": (7 * HOUR,),
    "HOP": (9 * HOUR, 2 * DAY),
    # Of the length of which an INTERVAL would be a day of the calendar, and with a step that ends within a second.
    "CUMULATE": (12 * HOUR, 2 * DAY),
    "CUMULATE of a fraction": (MINUTE + 1, 4 * MINUTE + 4),
}
# Around the hour that a zone leaves out and the one that it has twice, before 1970, and on the bounds of windows.
TIMES = [
    *(datetime(2026, 3, 28, 20) + timedelta(hours=n) for n in range(10)),
    *(datetime(2026, 10, 24, 21, 59, 59, 999_999) + timedelta(hours=n) for n in range(6)),
    datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1901, 1, 1), EPOCH, EPOCH + timedelta(microseconds=1),
]  # fmt: skip


def truth(function: str, lengths: tuple[int, ...], time: datetime) -> list[tuple[datetime, datetime]]:
    """The windows of a time, one by one."""
    at, step, size = (time - EPOCH) // timedelta(microseconds=1), lengths[0], lengths[-1]
    first = at // size * size
    if function.startswith("CUMULATE"):
        found = [(first, end) for end in range(first + step, first + size + 1, step) if end > at]
    else:
        starts = (at // step * step - n * step for n in range(size // step + 1))
        found = [(start, start + size) for start in starts if start <= at < start + size]
    return sorted((moment(start), moment(end)) for start, end in found)


def moment(told: int | str) -> datetime:
    return datetime.fromisoformat(told) if isinstance(told, str) else EPOCH + timedelta(microseconds=told)


def windows(function: str, lengths: tuple[int, ...], alias: str = "a") -> Expr:
    time = Expr("column", text="t", refs=(Reference(("t",), 0, 1, alias, "t"),))
    return Expr("windows", (time, *(Expr("interval", value=each) for each in lengths)), function.split()[0])


@pytest.mark.parametrize("function", LENGTHS)
def test_windows_without_spark(function: str) -> None:
    rows = pa.table({"a.t": pa.array([*TIMES, None], pa.timestamp("us"))})
    found = value_of(windows(function, LENGTHS[function]), rows).to_pylist()
    given = [sorted((one["start"], one["end"]) for one in each) for each in found]
    assert given == [*(truth(function, LENGTHS[function], time) for time in TIMES), []]


@pytest.mark.spark
def test_windows_of_spark_are_exact_in_any_time_zone(spark: SparkSession) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        micros = [(time - EPOCH) // timedelta(microseconds=1) for time in TIMES]
        frame = spark.createDataFrame([(each,) for each in micros], "m BIGINT")
        plain = frame.selectExpr("m", f"timestampadd(MICROSECOND, m, {FIRST}) AS n")
        both = plain.selectExpr("timestamp_micros(m) AS `x.t`", "n AS `y.t`")
        # Spark lets windows of one kind stand in a projection.
        for function, lengths in LENGTHS.items():
            for alias in ("x", "y"):
                array = windows(function, lengths, alias).sql()
                # As text: to count the time since 1970, Spark would make a TIMESTAMP of a TIMESTAMP_NTZ first.
                shown = "unix_micros(w.{0})" if alias == "x" else "CAST(w.{0} AS STRING)"
                bounds = ", ".join(shown.format(name) for name in ("start", "end"))
                rows = both.selectExpr(f"transform({array}, w -> array({bounds})) AS found").collect()
                given = [sorted((moment(start), moment(end)) for start, end in row["found"]) for row in rows]
                assert given == [truth(function, lengths, time) for time in TIMES], (function, alias)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
