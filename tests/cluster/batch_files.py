"""Write files of a batch into a remote folder while attempts of tasks fail and executors are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.spark.private.checkpoint_files import commit_without_renames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.locations import RemoteStorage

ROWS, TASKS = 4000, 4


def make_rows(spark: SparkSession) -> DataFrame:
    """Rows whose second task fails once behind all of its rows, and loses its executor there the next time."""
    # Workers do not have this module: functions of a function travel whole.

    def find_executor(process: int) -> int:
        """The nearest JVM above a process."""
        while "CoarseGrainedExecutorBackend" not in (Path("/proc") / str(process) / "cmdline").read_text("utf-8"):
            process = int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
        return process

    def pass_on_third_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows; see above."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() != 1:
            return
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        if context.attemptNumber() == 1:
            os.kill(find_executor(os.getpid()), signal.SIGKILL)

    return spark.range(0, ROWS, 1, TASKS).mapInArrow(pass_on_third_attempt, "id BIGINT")


def check_batch_files(spark: SparkSession, storage: RemoteStorage) -> None:
    """The files that count have each row once, whatever else attempts have left in the folder."""
    folder = storage / "batch-1"
    rows = make_rows(spark)
    for _ in range(2):
        with commit_without_renames(spark) as take_committed:
            assert take_committed is not None
            rows.write.mode("overwrite").json(str(folder))
            names = take_committed("batch-1")
        assert names is not None
        assert len(names) == len(set(names)) == TASKS, names
        lines = [line for name in names for line in (folder / name).read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in lines) == list(range(ROWS))
    # A job that fails has no files that count, and those of the job before it do not count again.
    with commit_without_renames(spark) as take_committed:
        assert take_committed is not None
        try:
            rows.selectExpr("raise_error(id)").write.mode("append").json(str(folder))
        except Exception as error:  # of Java
            assert "USER_RAISED_EXCEPTION" in str(error)
        assert take_committed("batch-1") is None
    # What Spark writes by itself is written as ever.
    rows.limit(1).write.mode("overwrite").json(str(folder))
    assert (folder / "_SUCCESS").is_file()
