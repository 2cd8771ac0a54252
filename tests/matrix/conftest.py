"""A session with Delta and Iceberg."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.matrix.lakes import FORMATS

from watersmeet.errors import WatersmeetError
from watersmeet.spark.private import spark_version

QUICK = {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the libraries, made as `watersmeet run` makes it."""
    if not FORMATS:
        pytest.skip(f"there are no libraries of Delta and Iceberg for Spark {spark_version()}")
    from watersmeet.spark.session import session

    assert SparkSession.getActiveSession() is None, "these tests want a session of their own"
    try:
        spark = session("local[2]", conf=QUICK, formats=FORMATS, log=tmp_path_factory.mktemp("spark") / "spark.log")
    except WatersmeetError as error:
        pytest.skip(f"the libraries cannot be had: {error.refusals[0].message}")
    yield spark
    spark.stop()
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
