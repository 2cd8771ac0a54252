"""Every argument of every call is looked at: what has no meaning is refused in one line, and nothing else is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.spark.frames import rows_of

import watersmeet as ws
from watersmeet import WatersmeetError

pytestmark = pytest.mark.spark

MAKE: dict[str, Callable[..., Any]] = {
    "join": ws.join, "window_join": ws.window_join, "sync_join": ws.sync_join, "asof_join": ws.asof_join,
    "sql": ws.sql, "substrait": ws.substrait, "explain": ws.explain,
}  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    text = "SELECT * FROM VALUES (1, TIMESTAMP'2024-01-01 12:00:00Z', 5), (2, TIMESTAMP'2024-01-01 12:20:00Z', 6)"
    return spark.sql(f"{text} AS r(id, t, v)")


def right_arguments(call: str, frame: DataFrame) -> dict[str, Any]:
    """Arguments with which a call succeeds, by name."""
    two = {"left": frame, "right": frame, "on": "id", "left_time": "t", "right_time": "t"}
    return {
        "join": {**two, "within": "1 hour"},
        "window_join": {
            "left": frame, "right": frame, "on": "id", "left_window": "COUNT 1", "right_window": "COUNT 0"
        },
        "sync_join": {"a": frame, "b": frame, "time": "t"},
        "asof_join": two,
        "sql": {"text": "SELECT STREAM a.id FROM a WHERE a.id > 0", "a": frame},
        "substrait": {"plan": b"", "a": frame},
        "explain": {"query": frame, "right": frame, "on": "id", "left_time": "t", "right_time": "t", "within": "1 h"},
    }[call]  # fmt: skip


def wrong_values(frame: DataFrame) -> Iterator[Any]:
    yield from (
        object(),
        1.5,
        -1,
        True,
        b"\xff",
        "",
        "\0",
        "no such",
        [],
        ["x", 1],
        {},
        {1: 2},
        (1, "2 s", 3),
        float("nan"),
    )
    yield from (F.col("id") == F.col("v"), [F.col("id")], frame.id, np.array([1, 2]), pd.DataFrame({"id": [1]}), pd.NaT)
    yield from (timedelta.max, np.timedelta64("NaT"), pa.table({"id": [1]}), frame.schema, frame.sparkSession, print)


@pytest.mark.parametrize("call", MAKE)
def test_wrong_arguments_give_refusals_alone(frame: DataFrame, call: str) -> None:
    right = right_arguments(call, frame)
    named = [n for n, p in signature(MAKE[call]).parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    refused = 0
    for argument in dict.fromkeys((*named, *right)):
        for value in (*wrong_values(frame), *([None] if argument in right else [])):
            try:
                MAKE[call](**{**right, argument: value})
            except WatersmeetError as error:
                refused += 1
                assert error.refusals[0].hint or error.refusals[0].place, f"{call}({argument}={value!r}): {error}"
            except Exception as error:
                raise AssertionError(f"{call}({argument}={value!r})") from error
    assert refused > 10 * len(named)


def test_a_column_is_refused_with_what_to_write_instead(frame: DataFrame) -> None:
    for on in (frame.id == frame.id, [frame.id]):
        with pytest.raises(WatersmeetError) as caught:
            ws.join(frame, frame, on, within="1 hour")  # type: ignore[arg-type]
        assert caught.value.refusals[0].parameters["reason"] == "a Column does not say which side it belongs to"
        assert "\n" not in caught.value.refusals[0].message


def test_another_argument_is_not_taken_for_a_port(frame: DataFrame) -> None:
    with pytest.raises(WatersmeetError, match="no argument has that name"):
        ws.sync_join(a=frame, b=frame, times="t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "within", ["20 minutes", timedelta(minutes=20), pd.Timedelta("20min"), np.timedelta64(20, "m"), ("20m", "20m")]
)
def test_one_length_of_time_in_all_its_forms(frame: DataFrame, within: Any) -> None:
    shown = ws.explain(frame, frame, "id", within=within, left_time="t", right_time="t")
    assert shown == ws.explain(frame, frame, "id", within="20 minutes", left_time="t", right_time="t")


def test_a_pair_says_how_far_before_and_after(frame: DataFrame) -> None:
    other = frame.selectExpr("3 - id AS key", "t AS at")

    def join(within: Any) -> DataFrame:
        return ws.join(frame, other, "left.id = right.key", within=within, left_time="t", right_time="at")

    after, before = join(("0s", "30 minutes")), join((timedelta(minutes=30), timedelta(0)))
    found = after.selectExpr("'after' AS which", "id").union(before.selectExpr("'before'", "id"))
    assert sorted(rows_of(found)) == ["('after', 1)", "('before', 2)"]
    assert "right.at >= left.t\n" in ws.explain(after)
    assert "right.at >= left.t + 10 min" in ws.explain(join(("-10 minutes", "30 minutes")))


def test_names_of_frames_compare_without_case(frame: DataFrame) -> None:
    declared = "CREATE STREAM rows (id INT, t TIMESTAMP, v INT); SELECT STREAM Rows.id FROM ROWS WHERE rows.id > 1"
    for text in ("SELECT STREAM Rows.id FROM ROWS WHERE rows.id > 1", declared):
        assert rows_of(ws.sql(text, Rows=frame)) == {"(2,)": 1}
