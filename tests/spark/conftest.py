"""What only some tests on Spark need: a Postgres, a Kafka broker, another default file system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from faults.postgres import postgres as started
from pyspark.sql import SparkSession

from watersmeet.cli.servers import Broker
from watersmeet.cli.servers import broker as started_broker
from watersmeet.errors import WatersmeetError


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a Unix socket, as libpq takes it."""
    with started() as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A Kafka broker; without its jars, or what speaks to it, the tests that need one do not run and say why."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(started_broker())
        except WatersmeetError as error:
            pytest.skip(f"there is no broker: {error.refusals[0].message}")
        yield made


@pytest.fixture
def kafka(spark: SparkSession, broker: Broker) -> str:
    """The address of a broker that the session can read from."""
    if "spark-sql-kafka" not in (spark.conf.get("spark.jars", "") or ""):
        pytest.skip("the connector of Kafka could not be fetched")
    return broker.address


@pytest.fixture
def other_files(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The folder that Hadoop's default file system keeps its files in, while it is not the one of this machine."""
    folder = tmp_path / "other-file-system"
    folder.mkdir()
    hadoop = cast("Any", spark.sparkContext)._jsc.hadoopConfiguration()
    name = f"other{abs(hash(str(tmp_path)))}"
    settings = {"fs.defaultFS": f"viewfs://{name}/", f"fs.viewfs.mounttable.{name}.linkFallback": folder.as_uri()}
    before = {one: hadoop.get(one) for one in settings}
    for one, value in settings.items():
        hadoop.set(one, value)
    try:
        yield folder
    finally:
        for one, value in before.items():
            hadoop.unset(one) if value is None else hadoop.set(one, value)
