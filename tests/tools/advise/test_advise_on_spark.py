"""Advice over the files of a project and over DataFrames, as Spark reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.tools.advise.generated import SECOND, Truth
from typer.testing import CliRunner

import watersmeet as ws
from watersmeet.catalog import Source
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.tools.advise.arrivals import SampledRows, numbers_of, sample_frame

pytestmark = pytest.mark.spark

TRUTH = Truth("even", reach=60, disorder=10, rows=1500)
DECLARED = """
CREATE STREAM orders (id BIGINT, at TIMESTAMP, amount BIGINT) USING json OPTIONS (path 'data/orders');
CREATE STREAM deliveries (order_id BIGINT, done TIMESTAMP, rating BIGINT) USING json OPTIONS (path 'data/deliveries');
CREATE TABLE ratings (rating BIGINT, words STRING, PRIMARY KEY (rating)) USING json OPTIONS (path 'data/ratings');
"""
QUERIES = """
SELECT STREAM o.id, d.done FROM orders o LEFT JOIN deliveries d ON o.id = d.order_id;
SELECT STREAM d.order_id, r.words FROM deliveries d JOIN ratings r ON d.rating = r.rating;
"""
FILES = 3


def write(arrivals: SampledRows, folder: Path) -> None:
    """Files whose names are in another order than the times of their last change."""
    folder.mkdir(parents=True)
    size = -(-arrivals.rows.num_rows // FILES)
    for number in range(FILES):
        rows = arrivals.rows.slice(number * size, size).to_pylist()
        path = folder / f"{FILES - number}.json"
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    for side in TRUTH.streams(1):
        write(side, root / "data" / side.name)
    (root / "data" / "ratings").mkdir()
    words = "".join(json.dumps({"rating": n, "words": "good"}) + "\n" for n in range(500))
    (root / "data" / "ratings" / "all.json").write_text(words)
    (root / "watersmeet.yml").write_text("name: shop\n")
    (root / "sql").mkdir()
    (root / "sql" / "joins.sql").write_text(DECLARED + QUERIES)
    return root


@pytest.mark.usefixtures("spark")
def test_a_project_without_bounds_gets_some_that_pass(shop: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["check", str(shop)]).exit_code == 1, "the bounds are missing"
    result = CliRunner().invoke(app, ["advise", str(shop)])
    assert result.exit_code == 0, result.output
    assert "in the order of their files" in result.stdout and "static 'true'" in result.stdout
    text = result.stdout.partition("conditions and columns):\n\n")[2]
    (tmp_path / "proposed.sql").write_text(text)
    assert CliRunner().invoke(app, ["check", str(tmp_path / "proposed.sql")]).exit_code == 0
    record = json.loads((shop / "storage" / "advice.json").read_text())
    [pair] = record["pairs"]
    assert 58 * SECOND < pair["proposed"]["later"] <= 62 * SECOND and pair["proposed"]["earlier"] == 0
    # Files in the order of their names would be out of order by minutes.
    assert pair["left"]["proposed_lag"] < 30 * SECOND


def test_frames_are_advised_on_as_batches_and_as_streams(shop: Path, spark: SparkSession, tmp_path: Path) -> None:
    types = {"orders": "id BIGINT, at TIMESTAMP, amount BIGINT", "deliveries": "order_id BIGINT, done TIMESTAMP"}
    streams = [spark.readStream.schema(types[n]).json(str(shop / "data" / n)) for n in types]
    batches = [spark.read.schema(types[n]).json(str(shop / "data" / n)) for n in types]
    found = [ws.advise(*sides, on="left.id = right.order_id") for sides in (streams, batches)]
    assert found[0].data["pairs"] == found[1].data["pairs"] and "the order of their files" in found[0]
    assert "FROM `left` " in found[0].sql or "FROM left left" in found[0].sql

    few = ws.advise(batches[0], batches[1], sample=200, keep=0.9)
    assert not few.pairs[0].sides[0].arrivals.is_all and few.pairs[0].sides[0].rows == 200
    times = numbers_of(few.pairs[0].sides[0].arrivals.column("at"))[0]
    assert times.max() < numbers_of(found[1].pairs[0].sides[0].arrivals.column("at"))[0][400:].min(), "the first rows"

    plain = sample_frame(batches[1].groupBy("order_id").count(), Source("g", ()), 10)
    assert (plain.order, plain.is_all, plain.rows.num_rows) == ("the order of delivery", False, 10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": "left.id > right.order_id"}, "not an equality"),
        ({"on": "nothing"}, "not an equality"),
        ({"left_time": "att"}, "did you mean `at`?"),
        ({"keep": 2}, "a share from 0.5 to 1"),
        ({"sample": 0}, "at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], said: str, spark: SparkSession) -> None:
    left = spark.createDataFrame([], "id BIGINT, at TIMESTAMP")
    right = spark.createDataFrame([], "order_id BIGINT, done TIMESTAMP")
    with pytest.raises(WatersmeetError, match="WRONG_ARGUMENT") as refused:
        ws.advise(left, right, **arguments)  # pyright: ignore[reportArgumentType]
    assert said in str(refused.value)
    with pytest.raises(WatersmeetError, match="it has no row"):
        ws.advise(left, right)
