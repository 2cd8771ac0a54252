"""The Spark session: the one that is active, else one made with the settings that a join needs."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from watersmeet.errors import refuse
from watersmeet.spark.folders import LOCAL_DIRS, OF_JAVA, PREFIX, own_folder, own_local_folders
from watersmeet.spark.private import check_version
from watersmeet.spark.private.checkpoint_files import FILES
from watersmeet.spark.private.introspection import cache_jvm_names
from watersmeet.spark.private.jvm import (
    hold_lock,
    launch,
    root_cause,
    start_socket_cleanup,
    submit_settings,
    worker_python,
)
from watersmeet.spark.private.prefork_server import start_prefork_server
from watersmeet.spark.session.java import archive_options, prepare_java, with_connectors
from watersmeet.spark.session.workers import FOLDER, unix_sockets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_IMPORTED_EARLY = ("watersmeet.project", "watersmeet.queries")
"""Imported while Java starts. PySpark is not among them: the main thread imports it at the same time."""

STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Rows per Arrow batch that crosses to Python: a crossing costs something per call; and with fewer, a record of the
    # exchange has more room (see `watersmeet.spark.private.transfer`).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
}
"""Settings of every session that Watersmeet starts, on any master."""

LATER_COMPILED = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times what Java has: to compile for good what Spark runs some thousand times takes half of the first batch."""

TRIES = "4"
"""The number of attempts of a task, as Spark has it on a cluster."""

WORKER_TIMEOUT = "spark.python.authenticate.socketTimeout"
HEARTBEAT_TIMEOUT, NETWORK_TIMEOUT = "spark.storage.blockManagerHeartbeatTimeoutMs", "spark.network.timeout"
CLUSTER = {
    # Spark looks every minute for executors that were silent for two: a batch would wait three minutes for one that
    # hangs, or whose machine is gone without a word.
    "spark.executor.heartbeatInterval": "5s",
    HEARTBEAT_TIMEOUT: "20s",
    "spark.network.timeoutInterval": "5s",
    # A stage starts again for every executor that is lost with its shuffle files, and the fourth time fails the query.
    "spark.stage.maxConsecutiveAttempts": "12",
    # On a busy machine a new Python worker may need more than the 15 seconds that Spark gives it.
    WORKER_TIMEOUT: "120s",
}
"""Further settings of a session on a cluster, unless the user or the cluster's defaults set them."""

LOOPBACK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    WORKER_TIMEOUT: CLUSTER[WORKER_TIMEOUT],
    # Blobs are compressed before the shuffle, by columns, where that is worth it; local files are read from memory.
    "spark.shuffle.compress": "false",
}
"""Further settings of a session on this machine only: it listens on the loopback interface."""


def session(
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    log: Path | None = None,
    formats: Iterable[str] = (),
) -> SparkSession:
    """The active session, else a new one on ``remote`` (Spark Connect) or ``master`` (default: all cores here).

    In a program that ``spark-submit`` has started, the master and all settings are those that were given there.
    ``conf`` goes before our settings. With ``log``, what the JVM writes to its standard error goes to that file.
    ``formats``: those that it is to know; what brings them is fetched.
    """
    if find_spec("pyspark") is None:
        raise refuse("SPARK_NOT_INSTALLED", package="pyspark")
    check_version()
    from pyspark.sql import SparkSession  # imported late: it takes most of a second

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    overrides = dict(conf or {})
    if packages:
        overrides["spark.jars.packages"] = ",".join(packages)
    if remote is not None:
        return _start_session(SparkSession.builder.remote(remote), {**STATE, **overrides}, None)
    theirs = submit_settings()
    if theirs is not None:
        return _start_session(SparkSession.builder, settings_when_submitted(theirs, master, overrides), None)
    overrides = with_connectors(formats, overrides, os.environ)
    chosen = with_retries(
        master or overrides.get("spark.master", "local[*]"), overrides.get("spark.task.maxFailures", TRIES)
    )
    folders = _prepare_environment(chosen, overrides, log)
    archive = archive_options(Path(os.environ["JAVA_HOME"]), os.environ)
    made = settings(chosen, overrides, log, folders[0] if folders else None, archive)
    spark = _start_session(SparkSession.builder.master(chosen), made, log, chosen)
    for folder in folders:
        hold_lock(spark, folder / OF_JAVA)
    if FOLDER in made:
        start_socket_cleanup(spark, Path(made[FOLDER]))
    return spark


def settings(
    master: str, conf: Mapping[str, str], log: Path | None = None, temporary: Path | None = None, archive: str = ""
) -> dict[str, str]:
    """All settings of a new session: ours, and before them the user's. ``temporary``: for temporary files of the JVM.

    ``archive``: its options about the archive of classes.

    >>> made = settings("local[3]", {"spark.driver.extraJavaOptions": "-ea", "spark.ui.enabled": "true"})
    >>> made["spark.sql.shuffle.partitions"], made["spark.ui.enabled"], made["spark.driver.extraJavaOptions"][-3:]
    ('3', 'true', '-ea')
    """
    made = dict(STATE)
    if master.startswith("local"):
        # Stateful streaming runs without adaptive execution, so the number of partitions is exactly this.
        made |= LOOPBACK | {"spark.sql.shuffle.partitions": str(max(2, cores(master)))}
        made |= FILES | unix_sockets(temporary) | {"spark.python.daemon.module": "watersmeet.spark.daemon"}
    made |= conf
    theirs = conf.get(JAVA_OPTIONS, "")
    options = (_java_options(log, temporary), "" if "Archive" in theirs else archive, theirs)
    made[JAVA_OPTIONS] = " ".join(filter(None, options))
    return made


def settings_when_submitted(theirs: Mapping[str, str], master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session in a program that was submitted with ``theirs``, which go before ours.

    Its JVM runs already: what that must be started with cannot be set any more.

    >>> settings_when_submitted({"spark.master": "local[3]"}, None, {})["spark.sql.shuffle.partitions"]
    '3'
    >>> "spark.sql.shuffle.partitions" in settings_when_submitted({"spark.master": "yarn"}, None, {})
    False
    """
    master_setting = {} if master is None else {"spark.master": master}
    made = {**STATE, **theirs, **master_setting, **conf}
    chosen = made.get("spark.master", "")
    if chosen.startswith("local"):
        made.setdefault("spark.sql.shuffle.partitions", str(max(2, cores(chosen))))
    return cluster_settings(chosen, made) | made


def cluster_settings(master: str, theirs: Mapping[str, str]) -> dict[str, str]:
    """The further settings of a session on a cluster with ``theirs``, which hold the cluster's defaults too.

    >>> sorted(cluster_settings("yarn", {"spark.network.timeout": "600s", "spark.executor.heartbeatInterval": "10s"}))
    ['spark.network.timeoutInterval', 'spark.python.authenticate.socketTimeout', 'spark.stage.maxConsecutiveAttempts']
    >>> cluster_settings("local[2]", {})
    {}
    """
    if not master or master.startswith("local"):
        return {}
    # Who is patient with the network is so with executors.
    is_patient = NETWORK_TIMEOUT in theirs
    return {
        name: value
        for name, value in CLUSTER.items()
        if name not in theirs and not (is_patient and name == HEARTBEAT_TIMEOUT)
    }


def with_retries(master: str, tries: str) -> str:
    """A local master that tries a task so often, as any other does; by itself it fails with the first worker lost.

    >>> [with_retries(master, "4") for master in ("local", "local[*]", "local[2,1]", "spark://host:7077")]
    ['local[1,4]', 'local[*,4]', 'local[2,1]', 'spark://host:7077']
    """
    threads = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return master if threads is None else f"local[{threads[1] or 1},{tries}]"


def cores(master: str) -> int:
    """The number of tasks that a local master runs at once.

    >>> cores("local[3]"), cores("local[2,4]"), cores("local")
    (3, 2, 1)
    """
    threads = re.match(r"local\[(\*|\d+)", master)
    if threads is None:
        return 1
    if threads[1] != "*":
        return int(threads[1])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _java_options(log: Path | None, temporary: Path | None) -> str:
    quiet = files("watersmeet.spark").joinpath("log4j2.properties")
    level = "error" if log is None else "warn"
    # -Xss4m: with the default stack, one of Spark's regular expressions overflows when some queries stop.
    # -XX:ReservedCodeCacheSize: Java's own default, which it changes if a user limits it to the first compiler.
    made = f"-Xss4m -XX:ReservedCodeCacheSize=240m {LATER_COMPILED}"
    made += f" -Dlog4j2.configurationFile=file:{quiet} -Dwatersmeet.log.level={level}"
    # RocksDB and others unpack their libraries there, and a JVM that is killed does not remove them.
    return made if temporary is None else f"{made} {shlex.quote(f'-Djava.io.tmpdir={temporary}')}"


def _prepare_environment(master: str, conf: Mapping[str, str], log: Path | None) -> list[Path]:
    """Set what processes of Spark's inherit; gives the folders of ours that they use, that for temporary files first.

    On other machines they use their own.
    """
    prepare_java(os.environ)
    if master.startswith("local"):
        temporary = own_folder(Path(tempfile.gettempdir()))
        local = own_local_folders(os.environ, conf.get("spark.local.dir"))
        # Goes before what the setting says.
        os.environ[LOCAL_DIRS] = ",".join(map(str, local))
        # The workers must have what this interpreter has, whatever `python3` means on PATH.
        os.environ["PYSPARK_PYTHON"] = worker_python(os.environ)
        ours = str(Path(__file__).parents[3])
        before = os.environ.get("PYTHONPATH", "")
        if ours not in before.split(os.pathsep):
            os.environ["PYTHONPATH"] = f"{ours}{os.pathsep}{before}" if before else ours
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with _redirect_output(log):
            start_prefork_server(os.environ, temporary)
        return [folder for folder in dict.fromkeys((temporary, *local)) if folder.name.startswith(PREFIX)]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return []


def _start_session(
    builder: SparkSession.Builder, made: Mapping[str, str], log: Path | None, master: str | None = None
) -> SparkSession:
    for name, value in made.items():
        builder = builder.config(name, value)
    try:
        with _redirect_output(log):
            if master is not None:
                # Java takes seconds to start; meanwhile, Python imports what every query needs.
                for name in _IMPORTED_EARLY:
                    Thread(target=import_module, args=(name,), name="imports", daemon=True).start()
                launch({"spark.master": master, **made})
                for name, value in _cluster_defaults(master, made).items():
                    builder = builder.config(name, value)
            spark = builder.getOrCreate()
        cache_jvm_names(spark)
        return spark
    except Exception as error:  # of Java, of the library that speaks to it, or of Spark Connect
        hint = "set JAVA_HOME to a Java 17 or 21 and try again." if log is None else f"read {log}."
        reason = root_cause(error) or str(error).split("\n", 1)[0]
        raise refuse("SPARK_NOT_STARTED", reason=reason, hint=hint) from error


def _cluster_defaults(master: str, made: Mapping[str, str]) -> dict[str, str]:
    """The settings for a cluster that neither ours nor its defaults have, which the JVM has read."""
    from pyspark import SparkConf

    # Without a JVM it is empty.
    return cluster_settings(master, {**dict(SparkConf().getAll()), **made})


@contextmanager
def _redirect_output(log: Path | None) -> Generator[None]:
    """Redirect the output of processes started meanwhile to ``log``; they keep it for their lifetime.

    A terminal stays their standard output. A pipe does not: its reader would wait for the last of them, and a JVM may
    write its class archive for half a minute after the command has ended.
    """
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    moved = (2,) if os.isatty(1) else (1, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = {number: os.dup(number) for number in moved}
    with log.open("ab") as file:
        for number in moved:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, before in saved.items():
            os.dup2(before, number)
            os.close(before)
