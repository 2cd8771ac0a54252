"""Spark and its workers speak through Unix sockets where we make the session, and no one else can open them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.private import jvm as exits
from watersmeet.spark.private import spark_version
from watersmeet.spark.private.jvm import forget_sockets
from watersmeet.spark.private.prefork_client import PREFORK_DIR
from watersmeet.spark.session.workers import FOLDER, LONGEST, unix_sockets


def test_sockets_are_taken_only_in_private_folders_whose_paths_are_short() -> None:
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
    def report_worker(batches: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
        for _ in batches:
            pass
        parent = Path(f"/proc/{os.getppid()}/stat").read_text("ascii")
        ready = parent.rpartition(")")[2].split()[1]
        folder = os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]
        yield pd.DataFrame({"command": [Path(f"/proc/{ready}/cmdline").read_bytes()], "folder": [folder]})

    (row,) = spark.range(0, 1, 1, 1).mapInPandas(cast("Any", report_worker), "command binary, folder string").collect()
    assert os.fsencode(os.environ[PREFORK_DIR]) in bytes(row.command)
    assert Path(os.environ[PREFORK_DIR]).is_relative_to(row.folder)
    assert any(entry.is_socket() for entry in Path(row.folder).iterdir())


@pytest.mark.spark
def test_java_forgets_those_that_are_gone_and_nothing_else(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext.getConf().get(FOLDER) or "")
    jvm = cast("Any", spark)._jvm
    field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    field.setAccessible(True)
    sockets = {str(folder / f".{uuid4()}.sock") for _ in range(3)}
    others = {str(folder / "library.so"), str(folder / "deeper" / f".{uuid4()}.sock"), str(folder / ".of-others.sock")}
    for path in sockets | others:
        jvm.java.io.File(path).deleteOnExit()
    assert sockets | others <= set(field.get(None))
    forget_sockets(spark, folder)
    assert others <= set(field.get(None)) and not sockets & set(field.get(None))
    assert any(thread.name == "sockets" for thread in threading.enumerate()), "it is done every now and then"


@pytest.mark.spark
def test_java_keeps_a_path_that_comes_while_it_forgets(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(spark.sparkContext.getConf().get(FOLDER) or "")
    jvm = cast("Any", spark)._jvm
    field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    field.setAccessible(True)
    early, late = str(folder / f"{uuid4()}.so"), str(folder / f"{uuid4()}.so")
    jvm.java.io.File(early).deleteOnExit()
    copied = exits._copy_paths  # pyright: ignore[reportPrivateUsage] - where someone else may come in between

    def overtaken(jvm: Any, paths: Any) -> Any:
        found = copied(jvm, paths)
        paths.add(late)
        return found

    monkeypatch.setattr(exits, "_copy_paths", overtaken)
    forget_sockets(spark, folder)
    assert {early, late} <= set(field.get(None))
