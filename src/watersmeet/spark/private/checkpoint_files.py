"""The classes with which Spark writes the files of checkpoints, and reads remote files and records for workers.

Local checkpoints without a process per file. Why: Spark's file manager for local files starts commands (``chmod``,
``readlink``), some three hundred in a batch of a join. Its other file manager does not, and replaces a file atomically
on a local disk, but not on every file system, nor with Hive's class for local files: so it is used only for checkpoints
on this machine, in sessions that name Hadoop's class. Checksum files are turned off: a file and its checksum are not
replaced in one step. Uses: the names of the class, Hadoop's ``LocalFileSystem`` through the JVM. Seen in: 4.0 to 4.3.
Missing: Spark's default manager, which is slower.

Remote checkpoints with few requests. Why: Spark's file manager writes a file under another name, looks for files of
both names and renames, which on S3 takes some twenty requests; Hadoop's other managers lose what they overwrite, or
failures. Ours, `CheckpointFiles.java`, is compiled by Janino, which Spark has, and given to the class loader of the
driver and to executors as a jar. Uses: the interface of file managers, Janino's ``SimpleCompiler``, ``addURL`` of
Spark's class loader, ``addJar``. Seen in: 4.0 to 4.3. Missing: Spark's default manager.

Remote files for workers. Why: a Python worker has no file system of Hadoop's, and PySpark cannot make a function of
Java from an object with settings. Ours, `LocalCopies.java`, copies a file to the executor's machine with the settings
of the session. Uses: ``UDF1`` through the JVM, ``SerializableConfiguration``. Seen in: 4.0 to 4.3.
Missing: Spark reads such files itself.

Records in blocks. Why: Spark writes each value for a worker into a batch of Arrow by itself, and asks after each how
large the batch is; a block of records is one value. Ours, `RecordBlocks.java`, is a function over the rows of a task.
Uses: ``mapPartitions`` of Java's ``Dataset``. Seen in: 4.3. Missing: records cross one by one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from zipfile import ZipFile

from pyspark.sql import Column, DataFrame

from watersmeet.spark.folders import own_folder
from watersmeet.spark.private.files import has_local_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
IMPLEMENTATION = "spark.hadoop.fs.file.impl"
FILES = {IMPLEMENTATION: "org.apache.hadoop.fs.LocalFileSystem"}
"""The settings that a session must have."""
_PACKAGE = "org.apache.spark.sql.execution.streaming"
_CLASSES = tuple(f"{_PACKAGE}{part}.FileSystemBasedCheckpointFileManager" for part in (".checkpointing", ""))


def keep_checkpoints_here(spark: SparkSession) -> None:
    """Let the queries of a session of ours write their checkpoints to this machine quickly, unless it says how."""
    for name, value in local_checkpoint_settings(spark).items():
        spark.conf.set(name, value)


def local_checkpoint_settings(spark: SparkSession) -> dict[str, str]:
    """The settings with which a session writes local checkpoints quickly; empty where it must not.

    Also turns off checksums of Hadoop's class, in this JVM, permanently.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or spark.conf.get(MANAGER, "") not in ("", MANAGER_CLASS):
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


MANAGER_CLASS, COMMIT_CLASS = "watersmeet.CheckpointFiles", "watersmeet.BatchFiles"
COPY_CLASS, BLOCKS_CLASS = "watersmeet.LocalCopies", "watersmeet.RecordBlocks"
_FILE_CLASSES = MANAGER_CLASS, COMMIT_CLASS, COPY_CLASS
COMMIT_PROTOCOL = "spark.sql.sources.commitProtocolClass"


def keep_checkpoints_remotely(spark: SparkSession) -> None:
    """Let the queries of a session write remote checkpoints with few requests, unless it says how."""
    for name, value in remote_checkpoint_settings(spark).items():
        spark.conf.set(name, value)


def remote_checkpoint_settings(spark: SparkSession) -> dict[str, str]:
    """The settings with which a session writes remote checkpoints with few requests; empty where it cannot.

    Gives the class to the JVM, and to its executors.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or spark.conf.get(MANAGER, "") not in ("", MANAGER_CLASS):
        return {}
    with suppress(Exception):
        _load_classes(spark)
        return {MANAGER: MANAGER_CLASS}
    return {}


@contextmanager
def commit_without_renames(spark: SparkSession) -> Generator[Callable[[str], list[str] | None] | None]:
    """Let a session write files into a folder without renames meanwhile, where it can; gives None where it cannot.

    Gives a function for the names of the files in a folder that count, by the name of the folder; it returns None if
    Spark has written the folder as it does by default, so that all files count.
    """
    jvm: Any = cast("Any", spark)._jvm
    try:
        _load_classes(spark)
    except Exception:  # of Java, or of a class loader without `addURL`
        yield None
        return

    def take_committed(folder: str) -> list[str] | None:
        names = jvm.watersmeet.BatchFiles.take(folder)
        return None if names is None else [str(name) for name in names]

    before = spark.conf.get(COMMIT_PROTOCOL)
    spark.conf.set(COMMIT_PROTOCOL, COMMIT_CLASS)
    try:
        yield take_committed
    finally:
        spark.conf.set(COMMIT_PROTOCOL, str(before))


def local_copies(spark: SparkSession, paths: str) -> Column | None:
    """The paths of copies, on the machine of the task, of the files that a column names; None: there can be none."""
    jvm: Any = cast("Any", spark)._jvm
    with suppress(Exception):
        classic: Any = import_module("pyspark.sql.classic.column")
        _load_classes(spark)
        context = cast("Any", spark.sparkContext)
        settings = cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()
        shared = context._jsc.broadcast(jvm.org.apache.spark.util.SerializableConfiguration(settings))
        copy = _make_function(context._gateway, jvm.watersmeet.LocalCopies(shared))
        return Column(copy.apply(classic._to_seq(context, [paths], classic._to_java_column)))
    return None


def _make_function(gateway: Any, function: Any) -> Any:
    """A function of Spark's, from text to text, which Spark computes once: it may compute others twice."""
    jvm = gateway.jvm
    types = "org.apache.spark.sql.api.java.UDF1", "org.apache.spark.sql.types.DataType"
    classes, values = gateway.new_array(jvm.java.lang.Class, 2), gateway.new_array(jvm.java.lang.Object, 2)
    for number, name in enumerate(types):
        classes[number] = jvm.java.lang.Class.forName(name)
    values[0], values[1] = function, jvm.org.apache.spark.sql.types.DataTypes.StringType
    # Called by its name, another method of that name would be taken.
    method = jvm.java.lang.Class.forName("org.apache.spark.sql.functions").getMethod("udf", classes)
    return method.invoke(None, values).asNondeterministic()


def records_in_blocks(records: DataFrame) -> DataFrame | None:
    """Blocks of records, which have a value, a partition, an offset and perhaps a topic; None: there can be none."""
    with suppress(Exception):
        spark: Any = records.sparkSession
        _load_classes(spark, (BLOCKS_CLASS,))
        frame, jvm, frames = cast("Any", records)._jdf, spark._jvm, import_module("pyspark.sql.classic.dataframe")
        blocks = frame.mapPartitions(jvm.watersmeet.RecordBlocks(), jvm.org.apache.spark.sql.Encoders.BINARY())
        return cast("DataFrame", frames.DataFrame(blocks.toDF(), spark))
    return None


def _load_classes(spark: SparkSession, classes: Sequence[str] = _FILE_CLASSES) -> None:
    """Give our classes to the JVM of a session and its executors, unless they have them; compiled once per machine."""
    jvm, context = cast("Any", spark)._jvm, cast("Any", spark.sparkContext)
    folder = files("watersmeet.spark.private")
    package = next(name for name in _CLASSES if _is_there(jvm, name)).rpartition(".")[0]
    texts = (folder.joinpath(f"{name.rpartition('.')[2]}.java").read_text("utf-8") for name in classes)
    sources = [text.replace("PACKAGE", package) for text in texts]
    digest = sha256("".join([spark.version, *sources]).encode()).hexdigest()[:16]
    jar = own_folder(Path(tempfile.gettempdir())) / f"watersmeet-{digest}.jar"
    with _loading:
        if not _is_there(jvm, classes[-1]):
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            if not jar.is_file():
                _compile(jvm, loader, sources, jar)
            loader.addURL(jvm.java.net.URL(jar.as_uri()))
            for name in classes:
                jvm.java.lang.Class.forName(name, True, loader)
        if not has_local_executors(spark) and jar.is_file() and jar.name not in str(context._jsc.sc().listJars()):
            context._jsc.addJar(jar.as_uri())


def _compile(jvm: Any, loader: Any, sources: Sequence[str], jar: Path) -> None:
    """Write the classes of some sources to a jar."""
    # Processes that start at once each write their own.
    written = jar.with_suffix(f".{os.getpid()}")
    with ZipFile(written, "w") as file:
        for source in sources:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(loader)
            compiler.cook(source)
            for name, code in dict(compiler.getBytecodes()).items():
                file.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    written.replace(jar)


_loading = Lock()


def _is_there(jvm: Any, name: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception:  # of Java
        return False
    return True
