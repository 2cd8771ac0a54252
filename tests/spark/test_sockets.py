"""Spark and its workers speak through Unix sockets where we make the session, and nobody else can open them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.private import spark_version
from watersmeet.spark.private.asking import SPARE
from watersmeet.spark.session.sockets import LONGEST, unix_sockets


def test_they_are_taken_only_in_private_folders_whose_paths_are_short() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        assert str(folder) in unix_sockets(folder).values()
        folder.chmod(0o755)
        assert not unix_sockets(folder)
        folder.chmod(0o700)
        long = folder / ("x" * LONGEST)
        long.mkdir(mode=0o700)
        assert not unix_sockets(long)
    assert not unix_sockets(folder), "it is gone"


@pytest.mark.spark
@pytest.mark.skipif(spark_version().startswith("4.0."), reason="Spark 4.0 knows TCP alone")
def test_the_workers_of_a_session_use_them_and_come_from_the_process_that_stands_ready(spark: SparkSession) -> None:
    def tell(batches: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
        for _ in batches:
            pass
        parent = Path(f"/proc/{os.getppid()}/stat").read_text("ascii")
        ready = parent.rpartition(")")[2].split()[1]
        folder = os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]
        yield pd.DataFrame({"command": [Path(f"/proc/{ready}/cmdline").read_bytes()], "folder": [folder]})

    (row,) = spark.range(0, 1, 1, 1).mapInPandas(tell, "command binary, folder string").collect()
    assert os.fsencode(os.environ[SPARE]) in bytes(row.command)
    assert Path(os.environ[SPARE]).is_relative_to(row.folder)
    assert any(entry.is_socket() for entry in Path(row.folder).iterdir())
