"""What only some tests on Spark need: a Postgres, and files as Spark itself writes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.postgres import postgres as started
from pyspark.sql import SparkSession
from tests.conftest import FILES_IN_PROCESS


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a Unix socket, as libpq takes it."""
    with started() as server:
        yield server.get_uri()


@pytest.fixture
def replaced_files(spark: SparkSession) -> Iterator[None]:
    """Checkpoints as Spark writes them by itself: what a repeated batch writes takes the place of what was there.

    The quicker way of the other tests leaves a file of a failed batch where it is.
    """
    (name,) = FILES_IN_PROCESS
    spark.conf.unset(name)
    yield
    spark.conf.set(name, FILES_IN_PROCESS[name])
