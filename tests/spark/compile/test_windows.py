"""Window joins on Spark: the same result however rows are cut and sharded, outputs of their own, the Python surface."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.frames import run_all, stream_files

import watersmeet as ws
from watersmeet.errors import WatersmeetError
from watersmeet.local.query import LocalQuery
from watersmeet.metrics.progress import Progress
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.testing import arrow_table, read_case, run_case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
SCHEMA = "k BIGINT, at BIGINT, v BIGINT"
LEFT_WINDOW, RIGHT_WINDOW = "COUNT 3 PARTITION BY k", "DELTA at 9 PARTITION BY k, v"
DEFINED = f"""
    CREATE STREAM left ({SCHEMA}) ORDER BY at;
    CREATE STREAM right ({SCHEMA}) ORDER BY at;
    SELECT STREAM * FROM left WINDOW ({LEFT_WINDOW}) FULL JOIN right WINDOW ({RIGHT_WINDOW})
    ON left.k = right.k AND left.v <= right.v;"""

Row = tuple[int | None, int, int]


def arrivals(seed: int) -> list[Row]:
    """Rows whose places are all different, with some NULL keys, in the order of arrival."""
    random.seed(seed)
    return [(random.choice([None, 1, 2, 3, 4, 5]), 2 * at + seed % 2, random.randrange(4)) for at in range(120)]


def by_definition(left: list[Row], right: list[Row]) -> Counter[tuple[Any, ...]]:
    script = read_script(DEFINED)
    query = LocalQuery(plan_query(analyze(script)[0], OPERATORS), "reference")
    tables = {s.name: arrow_table(s.fields, rows) for s, rows in zip(script.sources, (left, right), strict=True)}
    return Counter(tuple(row.values()) for row in query.step(tables, {}).rows.to_pylist())


def cut(rows: list[Row], *places: int) -> list[list[Row]]:
    """The rows in stretches, the last of each before the given places."""
    ends = (*places, 10**6)
    return [[r for r in rows if low <= r[1] < high] for low, high in zip((0, *places), ends, strict=True)]


def join(left: DataFrame, right: DataFrame, shards: int) -> DataFrame:
    return ws.window_join(
        left, right, on="left.k = right.k AND left.v <= right.v", left_window=LEFT_WINDOW, right_window=RIGHT_WINDOW,
        how="full", order_by="at", shards=shards,
    )  # fmt: skip


def test_the_result_depends_neither_on_batches_nor_on_shards(spark: SparkSession, tmp_path: Path) -> None:
    left, right = arrivals(1), arrivals(2)
    expected = by_definition(left, right)
    shuffled = [random.sample(rows, len(rows)) for rows in (left, right)]
    frames = [spark.createDataFrame(rows, SCHEMA).repartition(3) for rows in shuffled]
    assert sum(expected.values()) > 200
    for shards in (1, 3):
        assert Counter(tuple(row) for row in join(frames[0], frames[1], shards).collect()) == expected
    parts = [
        stream_files(tmp_path / name, [spark.createDataFrame(part, SCHEMA) for part in cut(rows, 50, 51, 190)])
        for name, rows in (("left", left), ("right", right))
    ]
    found = run_all(join(parts[0], parts[1], 3), tmp_path / "checkpoint")
    assert Counter(tuple(row) for batch in found for row in batch) == expected


SCRIPT = """
CREATE STREAM l (k BIGINT, v STRING) USING json OPTIONS (path '{folder}/l', maxFilesPerTrigger '1');
CREATE STREAM r (k BIGINT, w STRING) USING json OPTIONS (path '{folder}/r', maxFilesPerTrigger '1');
CREATE SINK pairs USING json OPTIONS (path '{folder}/pairs');
CREATE SINK lonely_left USING json OPTIONS (path '{folder}/lonely_left');
CREATE SINK lonely_right USING json OPTIONS (path '{folder}/lonely_right');
INSERT INTO pairs
SELECT STREAM l.v, r.w FROM l WINDOW (COUNT 1 PARTITION BY k) FULL JOIN r WINDOW (COUNT 0) ON l.k = r.k
UNMATCHED LEFT INTO lonely_left UNMATCHED RIGHT INTO lonely_right;
"""


def sink_rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for file in folder.rglob("*.json") for line in file.read_text().splitlines()]
    return sorted(found, key=str)


def test_rows_that_stay_alone_go_to_sinks_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    for side, rows in {"l": [(1, "a"), (1, "b"), (2, "c")], "r": [(2, "x"), (3, "y")]}.items():
        (tmp_path / side).mkdir()
        lines = [json.dumps({"k": k, "v" if side == "l" else "w": value}) for k, value in rows]
        (tmp_path / side / "1.json").write_text("\n".join(lines) + "\n")
    seen: list[Progress] = []
    script = read_script(SCRIPT.format(folder=tmp_path))
    run_script(
        script,
        spark=spark,
        storage=tmp_path / "storage",
        trigger="available_now",
        listeners=Listeners(on_progress=seen.append),
    )
    assert sink_rows(tmp_path / "pairs") == [{"v": "c", "w": "x"}]
    assert sink_rows(tmp_path / "lonely_left") == [{"k": 1, "v": "a"}]
    assert sink_rows(tmp_path / "lonely_right") == [{"k": 3, "w": "y"}]
    assert [(one.state_rows, one.rows_out, one.padded) for one in seen] == [(2, 1, 2)]
    assert seen[0].partitions == {"left": 2, "right": 0}


def frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left = spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "k BIGINT, v STRING").coalesce(1)
    return left, spark.createDataFrame([(2, 20.5), (4, 40.5)], "k BIGINT, w DOUBLE").coalesce(1)


def test_padding_in_python(spark: SparkSession) -> None:
    left, right = frames(spark)
    windows: dict[str, Any] = {"left_window": "COUNT 9", "right_window": "COUNT 0"}
    found = ws.window_join(left, right, on="k", how="right", left_pad={"v": "it's"}, **windows)
    assert sorted(map(tuple, found.select("v", "w").collect())) == [("b", 20.5), ("it's", 40.5)]
    endless = ws.window_join(right, left, on="k", how="right", left_pad={"w": float("-inf")}, **windows)
    assert sorted(map(tuple, endless.select("w", "v").collect())) == [(-inf, "a"), (-inf, "c"), (20.5, "b")]
    zeros = ws.window_join(left, right, "left.k = right.k", how="right", left_pad="zeros", **windows)
    assert sorted(map(tuple, zeros.collect())) == [(0, "", 4, 40.5), (2, "b", 2, 20.5)]


def test_unmatched_rows_go_to_a_side_output(spark: SparkSession) -> None:
    left, right = frames(spark)
    found = ws.window_join(
        left, right, "left.k = right.k", how="full", left_window="COUNT 2", right_window="COUNT 0",
        unmatched="side_output", trigger="shown",
    )  # fmt: skip
    assert found.columns == [
        "left_k", "v", "right_k", "w", "_trigger", "_seq", "_last", "_unmatched_left", "_unmatched_right",
    ]  # fmt: skip
    rows = found.collect()
    assert [tuple(row._unmatched_left) for row in rows if row._unmatched_left] == [(1, "a")]
    assert [tuple(row._unmatched_right) for row in rows if row._unmatched_right] == [(4, 40.5)]
    (pair,) = (row for row in rows if row.w is not None)
    assert (pair.v, pair._trigger.side, pair._seq, pair._last) == ("b", "right", 0, True)


@pytest.mark.parametrize(
    ("wrong", "condition"),
    [
        ({"left_window": "COUNT"}, "SYNTAX_ERROR"),
        ({"left_pad": "ones"}, "WRONG_ARGUMENT"),
        ({"left_pad": {"v": object()}}, "WRONG_ARGUMENT"),
        ({"unmatched": "no"}, "WRONG_ARGUMENT"),
        ({"how": "semi"}, "UNSUPPORTED_STATEMENT"),
        ({"order_by": "nothing"}, "UNKNOWN_COLUMN"),
    ],
)
def test_wrong_arguments_are_refused(spark: SparkSession, wrong: dict[str, Any], condition: str) -> None:
    given: dict[str, Any] = {"on": "k", "left_window": "COUNT 1", "right_window": "COUNT 1", "how": "right"} | wrong
    with pytest.raises(WatersmeetError) as caught:
        ws.window_join(*frames(spark), **given)
    assert caught.value.getCondition() == condition


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "ibm").glob("*.yaml")), ids=lambda path: path.stem)
def test_examples(path: Path, spark: SparkSession) -> None:
    """On the kernel where it can; what needs Spark's functions, on Spark."""
    case = read_case(path)
    result = run_case(case, "kernel")
    result = run_case(case, "spark", spark) if result.status == "not run" else result
    assert result.status == "passed", result.detail
