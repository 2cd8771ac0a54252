"""Checks of a cluster before the first run: whether its executors can do what the queries of a project need.

Executors are asked by a job with several tasks per core, so that each executor takes some. The function that
they run is sent as source, so an executor without the package can answer, too.
"""

from __future__ import annotations

import json
import platform
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from watersmeet.duration import format_bytes, format_count
from watersmeet.locations import has_scheme, local_path
from watersmeet.spark.private import spark_version
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.private.jvm import root_cause
from watersmeet.spark.session.workers import NEEDED
from watersmeet.version import __version__

Status = Literal["ok", "note", "problem"]
"""``note``: queries run, but the reader should know."""

ANSWER_SECONDS = 120.0
"""The time that the executors may take until all of them have answered."""
CLOCK_SECONDS = 2.0
"""The largest distance of the clock of an executor from the driver's. Idle sides and leases are measured by clocks."""
DISK_BYTES = 5 * 10**9
"""Free space in the local folder of an executor below which `doctor` warns."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, with one thing to do about it."""

    check: str
    status: Status
    message: str
    hint: str = ""


@dataclass(frozen=True)
class ClusterNeeds:
    """The requirements of a project's queries on every executor.

    ``paths``: folders of this machine that sources and sinks name. ``addresses``: servers as ``host:port``, and
    ``of_driver``: those that only the driver connects to. ``native``: bytes outside the heap of an executor that runs
    so many tasks at once. ``read``, ``written``: folders of sources, and of sinks, on other file systems.
    """

    storage: str
    paths: Mapping[str, str]
    addresses: Mapping[str, str]
    of_driver: Mapping[str, str] = field(default_factory=dict[str, str])
    native: Callable[[int], int] = lambda tasks: 0
    read: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class ExecutorReport:
    """The report of an executor about itself.

    ``offset``: seconds by which its clock was outside the time in which the job ran. ``disk``: free bytes by local
    folder. ``memory``: bytes that its machine or container has left; None: unknown. ``unseen``: paths that do not
    exist there. ``silent``: servers that do not answer, each with the reason.
    """

    host: str
    executor: str
    python: str
    packages: Mapping[str, str | None]
    offset: float
    disk: Mapping[str, int]
    memory: int | None
    unseen: tuple[str, ...]
    silent: Mapping[str, str]


_ASK = """
def look(batches):
    import importlib.metadata
    import json
    import os
    import platform
    import shutil
    import socket
    import time
    import pyarrow

    def version_of(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def watersmeet_version():
        try:
            from watersmeet.version import __version__
        except ImportError:
            return None
        return __version__

    def free(folder):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return 0

    def number_in(path):
        try:
            with open(path) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def memory():
        limit, used = number_in("/sys/fs/cgroup/memory.max"), number_in("/sys/fs/cgroup/memory.current")
        if limit is not None and used is not None:
            return limit - used
        try:
            with open("/proc/meminfo") as file:
                sizes = dict(line.split(":", 1) for line in file)
            return int(sizes["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return None

    def silence(address):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__
        return None

    for _ in batches:
        pass
    time.sleep(PAUSE)
    folders = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or "/tmp"
    silent = {address: silence(address) for address in ADDRESSES}
    report = {
        "host": socket.gethostname(),
        "executor": str(os.getppid()),
        "python": platform.python_version(),
        "packages": {**{package: version_of(package) for package in PACKAGES}, "watersmeet": watersmeet_version()},
        "clock": time.time(),
        "disk": {folder: free(folder) for folder in folders.split(",")},
        "memory": memory(),
        "unseen": [path for path in PATHS if not os.path.exists(path)],
        "silent": {address: reason for address, reason in silent.items() if reason is not None},
    }
    yield pyarrow.RecordBatch.from_pydict({"report": [json.dumps(report)]})
"""
"""The code that an executor runs. Its names in capitals are filled in by `ask_executors`."""


class NoAnswerError(Exception):
    """The executors did not answer, with the reason."""


def diagnose(spark: SparkSession, needs: ClusterNeeds, parallelism: int) -> Iterator[CheckResult]:
    """Check a cluster, one result after the other; ``parallelism``: how many tasks it runs at once."""
    yield CheckResult("driver", "ok", f"Spark {spark_version()}, Python {platform.python_version()} on {_host()}")
    try:
        reports = ask_executors(spark, needs, parallelism)
    except NoAnswerError as error:
        yield CheckResult("executors", "problem", f"the executors did not run Python: {error}", _NO_ANSWER)
        return
    executors = list({(report.host, report.executor): report for report in reports}.values())
    hosts = Counter(report.host for report in executors)
    shown = ", ".join(f"{host} ({number})" for host, number in sorted(hosts.items()))
    yield CheckResult("executors", "ok", f"{format_count(len(executors), 'executor')} answered: {shown}")
    yield from _check_versions(executors)
    yield from _check_clocks(reports)
    yield from _check_room(executors, parallelism, needs.native)
    yield from _check_storage(spark, needs.storage, parallelism)
    yield from _check_reach(executors, needs)
    yield from _check_folders(spark, needs, parallelism)


_NO_ANSWER = (
    "look at the cluster's own page: are workers there, do they have free cores and memory, and does PYSPARK_PYTHON "
    "name an interpreter that exists on them?"
)


def ask_executors(
    spark: SparkSession, needs: ClusterNeeds, parallelism: int, seconds: float = ANSWER_SECONDS
) -> list[ExecutorReport]:
    """The reports of the executors, one per task; raises `NoAnswerError` if no executor answers."""
    tasks = 3 * parallelism
    names: dict[str, Any] = {
        "__name__": "watersmeet_doctor", "PAUSE": 0.2, "PACKAGES": sorted(NEEDED.values()),
        "ADDRESSES": sorted(set(needs.addresses.values())), "PATHS": sorted(set(needs.paths.values())),
    }  # fmt: skip
    exec(_ASK, names)
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(names["look"], "report STRING")
    started = time.time()
    rows = _collect(spark, frame, seconds)
    ended = time.time()
    return [_report(json.loads(row["report"]), started, ended) for row in rows]


def _report(answer: dict[str, Any], started: float, ended: float) -> ExecutorReport:
    clock = float(answer.pop("clock"))
    offset = min(0.0, clock - started) + max(0.0, clock - ended)
    values: dict[str, Any] = {**answer, "unseen": tuple(answer["unseen"]), "offset": offset}
    return ExecutorReport(**values)


def _collect(spark: SparkSession, frame: DataFrame, seconds: float) -> list[Any]:
    """The rows of a frame; cancels its job and raises `NoAnswerError` if it fails or takes too long."""
    outcome: list[list[Any] | Exception] = []
    tag = f"watersmeet-doctor-{uuid4().hex}"

    def collect() -> None:
        try:
            spark.addTag(tag)
            with suppress_logs():
                outcome.append(frame.collect())
        except Exception as error:  # of Spark, or of Java if the job is cancelled
            outcome.append(error)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        spark.interruptTag(tag)
        raise NoAnswerError(f"no answer within {seconds:g} s")
    answer = outcome[0]
    if isinstance(answer, Exception):
        raise NoAnswerError(_reason(answer))
    return answer


def _reason(error: Exception) -> str:
    """The last line of an error that names a cause."""
    cause = root_cause(error) or str(error)
    lines = [line.strip() for line in cause.splitlines() if "Error" in line or "Exception" in line]
    return (lines[-1] if lines else cause.strip().splitlines()[0])[:300].rstrip(".")


def _check_versions(reports: Sequence[ExecutorReport]) -> Iterator[CheckResult]:
    wanted = {package: _version_here(package) for package in sorted(NEEDED.values())} | {"watersmeet": __version__}
    here = platform.python_version_tuple()[:2]
    pythons = sorted({report.python for report in reports if tuple(report.python.split(".")[:2]) != here})
    if pythons:
        hint = f"set PYSPARK_PYTHON to a Python {'.'.join(here)} that exists on every machine."
        yield CheckResult("python", "problem", f"the driver has {platform.python_version()}, executors {pythons}", hint)
    missing = {(report.host, name) for report in reports for name in wanted if report.packages.get(name) is None}
    for name in sorted({name for _, name in missing}):
        hosts = ", ".join(sorted(host for host, package in missing if package == name))
        hint = f"run `pip install 'watersmeet[spark]=={__version__}'` for the Python of the executors."
        yield CheckResult("packages", "problem", f"executors on {hosts} do not have {name}", hint)
    others = {
        (report.host, name, there)
        for report in reports
        for name in wanted
        if (there := report.packages.get(name)) is not None and there != wanted[name]
    }
    for host, name, there in sorted(others):
        status: Status = "problem" if name == "watersmeet" else "note"
        message = f"{host} has {name} {there}, the driver {wanted[name] or 'has none'}"
        yield CheckResult("packages", status, message, f"install {name} {wanted[name]} on {host}.")
    if not pythons and not missing and not others:
        versions = ", ".join(f"{name} {number}" for name, number in wanted.items())
        yield CheckResult("packages", "ok", f"the same everywhere: Python {'.'.join(here)}, {versions}")


def _version_here(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_clocks(reports: Collection[ExecutorReport]) -> Iterator[CheckResult]:
    furthest = {report.host: report.offset for report in sorted(reports, key=lambda report: abs(report.offset))}
    wrong = {host: offset for host, offset in furthest.items() if abs(offset) > CLOCK_SECONDS}
    for host, offset in sorted(wrong.items()):
        ahead = "ahead of" if offset > 0 else "behind"
        message = f"the clock of {host} is {abs(offset):.1f} s {ahead} the driver's"
        yield CheckResult("clocks", "problem", message, f"synchronise the clock of {host}, for example with chrony.")
    if not wrong:
        yield CheckResult("clocks", "ok", f"they agree within {CLOCK_SECONDS:g} s")


def _check_room(
    reports: Collection[ExecutorReport], parallelism: int, native: Callable[[int], int]
) -> Iterator[CheckResult]:
    """Local disk, and memory outside the JVM."""
    full = {(r.host, folder, free) for r in reports for folder, free in r.disk.items() if free < DISK_BYTES}
    for host, folder, free in sorted(full):
        message = f"{folder} on {host} has {format_bytes(free)} left; RocksDB and the shuffle write there"
        yield CheckResult("disk", "note", message, "set spark.local.dir to a larger disk.")
    if not full:
        least = min(free for report in reports for free in report.disk.values())
        yield CheckResult("disk", "ok", f"at least {format_bytes(least)} free in every local folder")
    tasks = max(1, -(-parallelism // max(1, len(reports))))
    needed = native(tasks)
    short = {(report.host, report.memory) for report in reports if report.memory is not None and report.memory < needed}
    for host, memory in sorted(short):
        message = f"{host} has {format_bytes(memory)} left for {format_count(tasks, 'task')} at once outside the heap"
        hint = (
            f"run with `--conf spark.executor.memoryOverhead={-(-needed // 2**20)}m`, or with fewer cores per executor."
        )
        yield CheckResult("memory", "note", message, hint)
    if not short:
        message = f"at least {format_bytes(needed)} outside the heap for {format_count(tasks, 'task')} at once"
        yield CheckResult("memory", "ok", message)


def _check_storage(spark: SparkSession, storage: str, parallelism: int) -> Iterator[CheckResult]:
    """Let the executors read what the driver writes, and the driver what they write."""
    hint = (
        "name a storage that the driver and every executor see: a mounted file system, or a URL such as "
        "`storage: s3a://bucket/shop`."
    )
    problem = _write_problem(spark, storage, parallelism)
    if problem is not None:
        yield CheckResult("storage", "problem", problem, hint)
        return
    yield CheckResult("storage", "ok", f"the driver and all executors read and write {storage}")


def _write_problem(spark: SparkSession, storage: str, parallelism: int) -> str | None:
    """The reason why the driver and the executors cannot share files in a folder; None: they can."""
    probe = f"doctor-{uuid4().hex[:12]}"
    files = 2 * parallelism
    location = f"{storage.rstrip('/')}/{probe}"
    try:
        with _probe_folder(spark, storage, probe) as write:
            for number in range(files):
                write(f"driver/{number}.txt", f"{number}\n")
            return _storage_problem(spark, storage, location, files)
    except Exception as error:  # of Java, of Spark or of the system
        return f"the driver cannot write to {storage}: {root_cause(error) or error}"


def _storage_problem(spark: SparkSession, storage: str, location: str, files: int) -> str | None:
    """Check a storage in which the driver has written so many files, and describe the problem; None if it works."""
    try:
        rows = _collect(spark, spark.read.text(f"{location}/driver"), ANSWER_SECONDS)
    except NoAnswerError as error:
        return f"executors do not see what the driver writes to {storage}: {error}"
    if sorted(row[0] for row in rows) != sorted(str(number) for number in range(files)):
        return f"executors read other files in {storage} than the driver wrote"
    try:
        with suppress_logs():
            spark.range(0, files, 1, files).selectExpr("CAST(id AS STRING)").write.text(f"{location}/executors")
    except PySparkException as error:
        return f"executors cannot write to {storage}: {_reason(error)}"
    written = sum(name.startswith("part-") for name in folder_of(spark, location).names("executors"))
    return f"the driver sees {written} of {files} files that executors wrote to {storage}" if written < files else None


@contextmanager
def _probe_folder(spark: SparkSession, storage: str, probe: str) -> Generator[Callable[[str, str], None]]:
    """A folder in the storage for the time of the check, and what writes a file to it."""
    folder = folder_of(spark, storage)
    folder_of(spark, f"{storage.rstrip('/')}/{probe}/driver").make()
    try:
        yield lambda name, text: folder.write(f"{probe}/{name}", text)
    finally:
        folder.delete(probe)


def _check_reach(reports: Collection[ExecutorReport], needs: ClusterNeeds) -> Iterator[CheckResult]:
    """Whether every executor sees the folders of sources and sinks, and reaches their servers."""
    for name, path in sorted(needs.paths.items()):
        if not Path(path).exists():
            hint = f"write the path that the data has, or create it: `mkdir -p {path}`."
            yield CheckResult("inputs", "problem", f"{name}: {path} does not exist on the driver", hint)
            continue
        hosts = sorted({report.host for report in reports if path in report.unseen})
        if hosts:
            message = f"{name}: {path} does not exist on {', '.join(hosts)}"
            hint = "mount it there, or move the data to a file system that all machines see."
            yield CheckResult("inputs", "problem", message, hint)
        else:
            yield CheckResult("inputs", "ok", f"{name}: every executor sees {path}")
    for name, address in sorted(needs.addresses.items()):
        silent = {report.host: report.silent[address] for report in reports if address in report.silent}
        if silent:
            message = f"{name}: no connection to {address} from {', '.join(sorted(silent))} ({min(silent.values())})"
            hint = f"start the server, or open the network between the executors and {address}."
            yield CheckResult("servers", "problem", message, hint)
        else:
            yield CheckResult("servers", "ok", f"{name}: every executor reaches {address}")
    for name, address in sorted(needs.of_driver.items()):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            hint = f"start the server, or open the network between the driver and {address}."
            message = f"{name}: no connection to {address} from the driver ({error})"
            yield CheckResult("servers", "problem", message, hint)
        else:
            yield CheckResult("servers", "ok", f"{name}: the driver reaches {address}")


def _check_folders(spark: SparkSession, needs: ClusterNeeds, parallelism: int) -> Iterator[CheckResult]:
    """Whether executors read the folders of sources, and write beside those of sinks, on HDFS and in object stores."""
    for name, url in sorted(needs.read.items()):
        try:
            files = _some_files(spark, url, 2 * parallelism)
            if files:
                frame = spark.read.format("binaryFile").load([*files]).selectExpr("length(content)")
                number = format_count(len(_collect(spark, frame, ANSWER_SECONDS)), "file")
                yield CheckResult("inputs", "ok", f"{name}: executors read {number} of {url}")
                continue
            problem = f"the driver sees no files in {url}"
        except NoAnswerError as error:
            problem = f"executors cannot read {url}: {error}"
        except Exception as error:  # of Java, of Spark or of the system
            problem = f"the driver cannot read {url}: {root_cause(error) or error}"
        hint = "give the session the file system and its credentials, as for `storage`, and look at the path."
        yield CheckResult("inputs", "problem", f"{name}: {problem}", hint)
    for name, url in sorted(needs.written.items()):
        above = url.rstrip("/").rpartition("/")[0]
        problem = _write_problem(spark, above, parallelism)
        if problem is None:
            yield CheckResult("outputs", "ok", f"{name}: the driver and all executors read and write {above}")
        else:
            hint = "give the session the file system and its credentials, as for `storage`."
            yield CheckResult("outputs", "problem", f"{name}: {problem}", hint)


def _some_files(spark: SparkSession, url: str, most: int) -> list[str]:
    """So many files at most of a folder, or of the first folder in it that has some."""
    url = re.split(r"/[^/]*[*?\[{]", url, maxsplit=1)[0].rstrip("/")
    folder = folder_of(spark, url)
    names = [name for name in folder.names() if not name.startswith((".", "_"))][:most]
    below = [name for name in names if folder.has_files(name)]
    files = [f"{url}/{name}" for name in names if name not in below]
    for name in below if not files else ():
        files = files or _some_files(spark, f"{url}/{name}", most)
    return files


_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "sqlserver": 1433, "oracle": 1521}
_JDBC = re.compile(r"jdbc:(?P<kind>\w+):[^/@]*(?:@?//|@)(?P<host>\[[^\]]+\]|[^/:;?,@]+)(?::(?P<port>\d+))?", re.I)


def database_addresses(options: Mapping[str, str]) -> list[str]:
    """The servers that the address of a database names, as ``host:port``; none for a file or a socket.

    >>> database_addresses({"url": "jdbc:sqlserver://db;encrypt=true"})
    ['db:1433']
    >>> database_addresses({"url": "jdbc:oracle:thin:@db:1522:shop"}), database_addresses({"url": "jdbc:sqlite:a.db"})
    (['db:1522'], [])
    >>> database_addresses({"dsn": "postgresql://me:secret@db/shop"}), database_addresses({"dsn": "host=db port=5433"})
    (['db:5432'], ['db:5433'])
    >>> database_addresses({"dsn": "host=/var/run/postgresql"})
    []
    """
    if (match := _JDBC.match(options.get("url", ""))) is not None:
        port = match["port"] or _PORTS.get(match["kind"].lower())
        return [f"{match['host']}:{port}"] if port else []
    dsn = options.get("dsn", "")
    if re.match(r"postgres(ql)?://", dsn):
        hosts = [part for part in urlsplit(dsn).netloc.rpartition("@")[2].split(",") if part]
    else:
        words = dict(re.findall(r"(\w+)\s*=\s*('[^']*'|\S+)", dsn))
        names, ports = (words.get(name, "").strip("'").split(",") for name in ("host", "port"))
        # One port holds for all hosts.
        ports = ports if len(ports) == len(names) else ports[:1] * len(names)
        hosts = [f"{host}:{port}" if port else host for host, port in zip(names, ports, strict=True) if host]
    # A folder is that of a socket.
    hosts = [host for host in map(unquote, hosts) if not host.startswith("/")]
    return [host if re.search(r":\d+$", host) else f"{host}:{_PORTS['postgresql']}" for host in hosts]


def needs_of(
    storage: str, options: Mapping[str, Mapping[str, str]], sinks: Collection[str] = frozenset()
) -> ClusterNeeds:
    """The needs of queries by the options of their sources and sinks, whose names are the keys.

    ``sinks``: which of them are sinks. Only the driver connects to a database that a sink writes to.

    >>> options = {"orders": {"kafka.bootstrap.servers": "a:9092,b:9092"}, "log": {"path": "file:///d"}}
    >>> needs = needs_of("s3a://bucket/shop", options)
    >>> needs.addresses, needs.paths
    ({'orders (a:9092)': 'a:9092', 'orders (b:9092)': 'b:9092'}, {'log': '/d'})
    >>> needs_of("/s", {"out": {"path": "s3a://b/out"}, "pg": {"dsn": "host=db"}}, {"out", "pg"}).written
    {'out': 's3a://b/out'}
    """
    paths: dict[str, str] = {}
    addresses: dict[str, str] = {}
    of_driver: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name, values in options.items():
        lowered = {option.lower(): value for option, value in values.items()}
        path = lowered.get("path", "")
        if local_path(path).startswith("/"):
            paths[name] = unquote(urlsplit(path).path) if path.startswith("file:") else path
        elif has_scheme(path) and not path.startswith("file:"):
            folders[name] = path
        servers = [part.strip() for part in lowered.get("kafka.bootstrap.servers", "").split(",") if part.strip()]
        addresses |= {f"{name} ({server})": server for server in servers}
        databases = {f"{name} ({server})": server for server in database_addresses(lowered)}
        (of_driver if name in sinks else addresses).update(databases)
    read = {name: url for name, url in folders.items() if name not in sinks}
    written = {name: url for name, url in folders.items() if name in sinks}
    return ClusterNeeds(storage, paths, addresses, of_driver=of_driver, read=read, written=written)


def _host() -> str:
    return f"{socket.gethostname()} ({sys.executable})"
