"""Workers of a session: whether their Python can run a join, the sockets to them, and shards for so many at once.

A session of our own on this machine gives its workers this interpreter. In any other session they run `python3` of
their PATH, or what `PYSPARK_PYTHON` says, on machines of their own.

On one machine Spark and its workers use Unix sockets. When a TCP receive buffer is full while both sides write, the
system drops data and waits ever longer before it sends again: a large join was seen to stand still for minutes. Unix
sockets lose nothing. They have no secret either, so they are used only where the folder is private.

The number of shards of a query, and of the partitions over which Spark spreads them, follows from the number of tasks.
A partition is a task per batch, with a Python worker and a commit of its own, whether there are rows for it or not: so
there are as many as tasks run at once. A shard costs a call. Both numbers are fixed when a checkpoint is made.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakSet

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.logical.nodes import Script
from watersmeet.physical.nodes import SHARDS
from watersmeet.spark.folders import is_private
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.private.jvm import own_python
from watersmeet.version import __version__

NEEDED = {"pandas": "pandas", "google.protobuf": "protobuf", "numpy": "numpy", "pyarrow": "pyarrow"}
"""The modules that a join needs besides PySpark, here and in workers, each with the package that has it."""

_PROBE = """
def look(batches):
    import importlib.util
    import json
    import pyarrow

    def is_there(name):
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    told = {"missing": [name for name in NEEDED if not is_there(name)], "version": None}
    if is_there("watersmeet"):
        from watersmeet.version import __version__

        told["version"] = __version__
    yield pyarrow.RecordBatch.from_pydict({"told": [json.dumps(told)]})
"""
"""The probe for workers. It is sent as source, so that a worker can answer without our package."""

_UNFIT = re.compile(r"PYTHON_VERSION_MISMATCH|ModuleNotFoundError|ImportError|Cannot run program|PACKAGE_NOT_INSTALLED")
_checked_sessions: WeakSet[Any] = WeakSet()


def check_workers(spark: SparkSession) -> None:
    """See to it that workers can run a join: make them run this interpreter, or refuse if they are unfit.

    A session is looked at once.
    """
    if spark in _checked_sessions:
        return
    for module, package in NEEDED.items():
        if not _is_here(module):
            raise refuse("SPARK_NOT_INSTALLED", package=package)
    if spark.conf.get("spark.python.daemon.module", None) != "watersmeet.spark.daemon" and not own_python(spark):
        _probe_worker(spark)
    _checked_sessions.add(spark)


def _probe_worker(spark: SparkSession) -> None:
    """Probe a worker; refused if it could not run a join."""
    names: dict[str, Any] = {"__name__": "watersmeet_probe", "NEEDED": tuple(NEEDED)}
    exec(_PROBE, names)
    try:
        with suppress_logs():
            [row] = spark.range(0, 1, 1, 1).mapInArrow(names["look"], "told STRING").collect()
    except PySparkException as error:
        text = str(error)
        if not _UNFIT.search(text):
            # Whatever it is, it is not the Python of the workers.
            return
        lines = [line.strip() for line in text.splitlines() if _UNFIT.search(line)]
        raise _unfit(spark, lines[-1][:300].rstrip(".")) from error
    answer = json.loads(row["told"])
    if answer["version"] is None:
        raise _unfit(spark, "they do not have the package watersmeet")
    if answer["version"] != __version__:
        raise _unfit(spark, f"they have watersmeet {answer['version']}, but this is {__version__}")
    if answer["missing"]:
        raise _unfit(spark, f"they do not have the package {', '.join(NEEDED[name] for name in answer['missing'])}")


def _unfit(spark: SparkSession, reason: str) -> WatersmeetError:
    if str(spark.conf.get("spark.master", "local")).startswith("local"):
        hint = 'add `os.environ["PYSPARK_PYTHON"] = sys.executable` before the session starts.'
    else:
        hint = f"run `pip install 'watersmeet[spark]=={__version__}'` for the Python of the workers."
    return refuse("WORKERS_UNFIT", reason=reason, python=sys.executable, version=__version__, hint=hint)


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """These settings for whatever starts meanwhile."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


FOLDER = "spark.python.unix.domain.socket.dir"
LONGEST = 61
"""The maximum length of the folder: an address has at most 104 characters on some systems, and Spark's name takes 43.
"""


def unix_sockets(folder: Path | None) -> dict[str, str]:
    """The settings that let Spark take Unix sockets in that folder; none where it cannot.

    Spark 4.0 has no such settings and takes TCP.

    >>> unix_sockets(None)
    {}
    """
    if folder is None or len(str(folder)) > LONGEST or not is_private(folder):
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        FOLDER: str(folder),
    }


PARTITIONS = "spark.sql.shuffle.partitions"
MAX_PARTITIONS_PER_TASK = 8
"""So many partitions for each task that runs at once are too many."""
ON_A_CLUSTER = 16
"""At least so many shards where executors may still come; more than that as soon as there are more."""


def shard_count(script: Script, spark: SparkSession, shards: int | None) -> int:
    """Into how many shards a script is split: as it says itself, else so many, else as many as Spark has partitions."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    said = settings.get("watersmeet.shards", shards)
    if said is not None:
        return int(str(said))
    partitions, at_once = partition_setting(spark), parallel_tasks(spark)
    if partitions is not None and at_once is not None and partitions > MAX_PARTITIONS_PER_TASK * at_once:
        warnings.warn(too_many_partitions(partitions, at_once), stacklevel=2)
    return partitions or default_partitions(spark) or int(str(spark.conf.get(PARTITIONS)))


def partitions_of(spark: SparkSession, shards: int) -> int | None:
    """Over how many partitions a query with so many shards is spread when it first starts; None: as Spark does it."""
    own = None if partition_setting(spark) else default_partitions(spark)
    return None if own is None else min(own, shards)


def partition_setting(spark: SparkSession) -> int | None:
    """The number of partitions that was set; None: it was not set, and Spark would take 200."""
    setting = spark.conf.getAll.get(PARTITIONS)
    return None if setting is None else int(setting)


def default_partitions(spark: SparkSession) -> int | None:
    """The number of tasks that run at once, on a cluster some more; None if it is unknown, as with Spark Connect."""
    at_once = parallel_tasks(spark)
    if at_once is None:
        return None
    if str(spark.sparkContext.master).startswith("local"):
        return max(2, at_once)
    return max(ON_A_CLUSTER, 2 * at_once)


def parallel_tasks(spark: SparkSession) -> int | None:
    """The number of tasks that Spark runs at once; None if it is unknown, as with Spark Connect."""
    return getattr(getattr(spark, "sparkContext", None), "defaultParallelism", None)


def shard_notes(spark: SparkSession | None) -> tuple[str, ...]:
    """Describe the shards of a query in this session."""
    partitions, at_once = (None, None) if spark is None else (partition_setting(spark), parallel_tasks(spark))
    if partitions is None or at_once is None or partitions <= MAX_PARTITIONS_PER_TASK * at_once:
        return SHARDS
    dear = (
        f"{partitions}, as many as {PARTITIONS} says, while {at_once} tasks run at once: each costs time in every batch"
    )
    return dear, f'set fewer before the query first starts: spark.conf.set("{PARTITIONS}", {2 * at_once})', *SHARDS[1:]


def too_many_partitions(partitions: int, at_once: int) -> str:
    """Return the warning about the number of partitions.

    >>> too_many_partitions(200, 2).rpartition(": ")[2]
    'spark.conf.set("spark.sql.shuffle.partitions", 4)'
    """
    return (
        f"every join of this session is split into {partitions} shards, as many as {PARTITIONS} says, while {at_once} "
        "tasks run at once. A batch costs some time for each of them: it may take ten times as long as it needs. "
        f'Before the query first starts: spark.conf.set("{PARTITIONS}", {2 * at_once})'
    )
