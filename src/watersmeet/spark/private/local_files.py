"""Checkpoints on this machine without a process for every file.

Why: what Spark takes by itself for local files starts commands (``chmod``, ``readlink``): some three hundred in a batch
of a join, which is more than the join takes. Its other manager of files does not; where a repeated batch writes a file
again, that one replaces it in one step on a local disk, but not on every other file system, nor with the class that
Hive, which comes with Spark, has for local files: so it is only for queries whose checkpoints are on this machine, in
sessions that name Hadoop's. Checksums beside the files are left out, as Spark's own way leaves out Hadoop's: a
file and its checksum are not replaced in one step. Uses: the names of the class, Hadoop's ``LocalFileSystem`` through
the JVM of a classic session. Seen in: 4.0 to 4.3. Missing: Spark's own way, which is slower.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
IMPLEMENTATION = "spark.hadoop.fs.file.impl"
FILES = {IMPLEMENTATION: "org.apache.hadoop.fs.LocalFileSystem"}
"""What a session must be set to."""
_PACKAGE = "org.apache.spark.sql.execution.streaming"
_CLASSES = tuple(f"{_PACKAGE}{part}.FileSystemBasedCheckpointFileManager" for part in (".checkpointing", ""))


def keep_checkpoints_here(spark: SparkSession) -> None:
    """Let the queries of a session of ours write their checkpoints to this machine quickly, unless it says how."""
    for name, value in local_checkpoint_settings(spark).items():
        spark.conf.set(name, value)


def local_checkpoint_settings(spark: SparkSession) -> dict[str, str]:
    """What a session must be set to so that checkpoints on this machine are written quickly; nothing where it may not.

    Hadoop's class is told to write no checksums, in this JVM, for good.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or spark.conf.get(MANAGER, ""):
        return {}
    context = cast("Any", spark.sparkContext)
    if not context.master.startswith("local"):
        return {}
    with suppress(Exception):
        manager = next(name for name in _CLASSES if _is_there(jvm, name))
        local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
        if local.getClass().getName() == FILES[IMPLEMENTATION]:
            local.setWriteChecksum(False)
            return {MANAGER: manager, CHECKSUMS: "false"}
    return {}


def _is_there(jvm: Any, name: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception:  # of Java
        return False
    return True
