"""Sync and as-of joins on Spark: batches and streams, chains, outputs per port, disorder, the Python surface."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.frames import run_all, stream_files

import watersmeet as ws
from watersmeet.catalog import Amount
from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.build import source_of
from watersmeet.spark.run.running import run_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def frame(spark: SparkSession, schema: str, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), schema).coalesce(1)


def count_rows(found: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in found.collect())


def test_sync_of_batches_is_the_inner_join_on_time(spark: SparkSession) -> None:
    ports = [frame(spark, "t BIGINT, v BIGINT", *((t, t * n) for t in range(0, 60, n))) for n in (2, 3, 4)]
    expected = {(t, 2 * t, t, 3 * t, t, 4 * t): 1 for t in range(0, 60, 12)}
    assert count_rows(ws.sync_join(*ports, time="t", shards=3)) == expected
    named = ws.sync_join(a=ports[0], b=ports[1], time="t")
    assert named.columns == ["a_t", "a_v", "b_t", "b_v"]


def test_disorder_can_stop_the_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = [frame(spark, "t TIMESTAMP_NTZ", (t,)) for t in map(moment, (1, 3, 2))]
    ports = [stream_files(tmp_path / name, rows) for name in ("a", "b")]
    dropped = run_all(ws.sync_join(*ports, time="t", late="side_output"), tmp_path / "dropped")
    assert [len([r for r in batch if r.i1_t]) for batch in dropped] == [1, 1, 0]
    assert {row._late.side for row in dropped[2]} == {"i1", "i2"}
    with pytest.raises(StreamingQueryException) as caught:
        run_all(ws.sync_join(*ports, time="t", disorder="error"), tmp_path / "stopped")
    assert "[DISORDER]" in str(caught.value) and "2024-05-01 10:00:02" in str(caught.value)


def moment(second: int) -> Any:
    from datetime import datetime

    return datetime(2024, 5, 1, 10, 0, second)


PORTS = """
CREATE STREAM a (t BIGINT, v STRING, WATERMARK FOR t AS t - 0) USING json OPTIONS (path '{folder}/a');
CREATE STREAM b (t BIGINT, w STRING, WATERMARK FOR t AS t - 0) USING json OPTIONS (path '{folder}/b');
CREATE SINK o1 USING json OPTIONS (path '{folder}/o1');
CREATE SINK o2 USING json OPTIONS (path '{folder}/o2');
SELECT STREAM * FROM a SYNC JOIN b WHERE a.t < 9 PORTS INTO o1, o2;
"""


def test_each_port_has_an_output_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    for side, name in (("a", "v"), ("b", "w")):
        (tmp_path / side).mkdir()
        rows = [json.dumps({"t": t, name: f"{side}{t}"}) for t in (1, 2 if side == "a" else 3, 4, 9)]
        (tmp_path / side / "1.json").write_text("\n".join(rows) + "\n")
    script = read_script(PORTS.format(folder=tmp_path))
    run_script(script, spark=spark, storage=tmp_path / "storage", trigger="available_now")
    found = [
        [
            tuple(json.loads(line).values())
            for f in (tmp_path / o).rglob("*.json")
            for line in f.read_text().splitlines()
        ]
        for o in ("o1", "o2")
    ]
    assert [sorted(rows) for rows in found] == [[(1, "a1"), (4, "a4")], [(1, "b1"), (4, "b4")]]


VERSIONS = ((1, 10, "x"), (1, 20, "y"), (2, 15, "z"))
QUESTIONS = ((1, 5), (1, 10), (1, 16), (2, 40), (3, 10))


def answer(direction: str, key: int, time: int, tolerance: int) -> str | None:
    near = [(abs(t - time), t, v) for k, t, v in VERSIONS if k == key and abs(t - time) <= tolerance]
    allowed = {"backward": lambda t: t <= time, "forward": lambda t: t >= time, "nearest": lambda t: True}[direction]
    return next((v for _, t, v in sorted(near) if allowed(t)), None)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_as_of_batches(spark: SparkSession, direction: Any) -> None:
    questions = frame(spark, "k BIGINT, t BIGINT", *QUESTIONS)
    versions = frame(spark, "k BIGINT, vt BIGINT, v STRING", *VERSIONS)
    found = ws.asof_join(
        questions, versions, on="k", direction=direction, tolerance=6, default={"v": "none"}, left_time="t",
        right_time="vt", shards=3,
    )  # fmt: skip
    expected = {(k, t, answer(direction, k, t, 6) or "none"): 1 for k, t in QUESTIONS}
    assert count_rows(found.select("k", "t", "v")) == expected


def test_as_of_without_a_key_on_streams(spark: SparkSession, tmp_path: Path) -> None:
    asked = [frame(spark, "t BIGINT", *rows) for rows in ([(1,), (7,)], [(9,), (12,)], [(20,)])]
    told = [frame(spark, "t BIGINT, v STRING", *rows) for rows in ([(5, "a")], [(9, "b"), (10, "c")], [(30, "d")])]
    left, right = stream_files(tmp_path / "left", asked), stream_files(tmp_path / "right", told)
    found = ws.asof_join(left, right, how="inner", exact="excluded", left_time="t", right_time="t", shards=3)
    batches = run_all(found.select("left_t", "v"), tmp_path / "checkpoint")
    assert [sorted(map(tuple, batch)) for batch in batches] == [[], [(7, "a"), (9, "a")], [(12, "c"), (20, "c")]]


def test_as_of_behind_an_interval_join(spark: SparkSession) -> None:
    a, b = (frame(spark, "id BIGINT, t BIGINT", (1, 10), (2, 20)), frame(spark, "id BIGINT, t BIGINT", (1, 12)))
    p = frame(spark, "t BIGINT, v STRING", (0, "old"), (11, "new"))
    text = """
        CREATE STREAM a (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
        CREATE STREAM b (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
        CREATE STREAM p (t BIGINT, v STRING, WATERMARK FOR t AS t - 0);
        SELECT STREAM a.id, b.t AS bt, p.v FROM a LEFT JOIN b ON a.id = b.id AND b.t BETWEEN a.t AND a.t + 5
        LEFT ASOF JOIN p MATCH_CONDITION (a.t >= p.t);"""
    assert count_rows(ws.sql(text, a=a, b=b, p=p)) == {(1, 12, "old"): 1, (2, None, "new"): 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"direction": "up"},
        {"exact": "no"},
        {"how": "full"},
        {"left_time": None},
        {"direction": "nearest", "exact": "excluded", "tolerance": 1},
    ],
)
def test_wrong_arguments_are_refused(spark: SparkSession, wrong: dict[str, Any]) -> None:
    sides = [frame(spark, "t BIGINT, v STRING", (1, "a")) for _ in range(2)]
    with pytest.raises(WatersmeetError) as caught:
        cast("Any", ws.asof_join)(*sides, **({"left_time": "t", "right_time": "t"} | wrong))
    assert caught.value.getCondition() in ("WRONG_ARGUMENT", "UNSUPPORTED_STATEMENT")


def test_a_sync_join_has_two_ports(spark: SparkSession) -> None:
    with pytest.raises(WatersmeetError) as caught:
        ws.sync_join(frame(spark, "t BIGINT", (1,)), time="t")
    assert caught.value.getCondition() == "WRONG_ARGUMENT"


def test_no_port_takes_the_name_of_another(spark: SparkSession) -> None:
    one = frame(spark, "t BIGINT", (1,))
    with pytest.raises(WatersmeetError) as caught:
        ws.sync_join(one, one, i1=one, time="t")
    assert caught.value.getCondition() == "WRONG_ARGUMENT"


def test_a_lag_without_a_time_is_that_of_the_watermark(spark: SparkSession) -> None:
    side = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    (watermark,) = source_of("side", side, lag=Amount(7_000_000, is_interval=True)).watermarks
    assert watermark.lag.value == 7_000_000
