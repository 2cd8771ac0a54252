"""The classes of Java that are compiled at the start, on the installed Spark; `make cluster` uses them remotely."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.checkpoint_files import Manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_checkpoint_files_are_created_once_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.private.checkpoint_files import MANAGER, MANAGER_CLASS, remote_checkpoint_settings
    from watersmeet.spark.private.files import HadoopStorage

    # The session of the tests writes local checkpoints, and says how.
    own = spark.newSession()
    own.conf.unset(MANAGER)
    assert remote_checkpoint_settings(own) == {MANAGER: MANAGER_CLASS}
    storage = HadoopStorage(own, f"file://{tmp_path}")
    logs, states = (Manager.make(own, storage, name) for name in ("sources/0", "state/0/0"))
    assert not logs.write("sources/0/0", b"first")
    assert logs.write("sources/0/0", b"second") == "FileAlreadyExistsException"
    # Its own, which it has in memory, and that of another.
    assert logs.read("sources/0/0") == Manager.make(own, storage, "sources/0").read("sources/0/0") == b"first"
    for content in (b"first", b"second, and longer"):
        assert not states.write("state/0/0/1.zip", content, replaces=True)
        assert states.read("state/0/0/1.zip") == content
    states.java.delete(states.path("state/0/0/1.zip"))
    assert not states.exists("state/0/0/1.zip")


def test_files_are_copied_for_workers(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.private.checkpoint_files import local_copies

    (tmp_path / "rows").write_text("rows")
    frame = spark.createDataFrame([(f"file://{tmp_path}/rows",), (f"file://{tmp_path}/none",)], "path STRING")
    copies = local_copies(spark, "path")
    assert copies is not None
    places = [Path(row.copy) for row in frame.select(copies.alias("copy")).collect()]
    assert len({*places}) == 2
    # Deleted with the end of their task.
    assert not any(place.exists() for place in places)


def test_files_of_a_batch_are_written_without_renames(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.private.checkpoint_files import commit_without_renames

    with commit_without_renames(spark) as take_committed:
        assert take_committed is not None
        spark.range(10).repartition(2).write.mode("append").json(f"file://{tmp_path}/batch")
        committed = take_committed("batch")
    assert committed is not None
    assert sorted(committed) == sorted(file.name for file in (tmp_path / "batch").glob("part-*.json"))
    assert spark.read.json(f"{tmp_path}/batch").count() == 10
