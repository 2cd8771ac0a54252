"""`doctor`: what the executors of a session answer, and what is made of answers that differ from the driver's."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.session.doctor import (
    CheckResult,
    ClusterNeeds,
    ExecutorReport,
    NoAnswerError,
    _check_clocks,
    _check_room,
    _check_versions,
    ask_executors,
    diagnose,
)
from watersmeet.spark.session.workers import NEEDED
from watersmeet.tools.forecast.cluster import native_bytes
from watersmeet.version import __version__


def report(**changes: object) -> ExecutorReport:
    from importlib.metadata import version

    packages = {package: version(package) for package in NEEDED.values()} | {"watersmeet": __version__}
    values: dict[str, object] = {
        "host": "node1", "executor": "1", "python": platform.python_version(), "packages": packages, "offset": 0.0,
        "disk": {"/tmp": 10**12}, "memory": 10**12, "unseen": (), "silent": {},
    }  # fmt: skip
    return ExecutorReport(**{**values, **changes})  # type: ignore[arg-type]


def problems(results: Iterator[CheckResult]) -> list[tuple[str, str]]:
    return [(result.check, result.message) for result in results if result.status != "ok"]


def test_check_versions_names_hosts_with_another_python_or_package() -> None:
    assert problems(_check_versions([report()])) == []
    [(check, message)] = problems(_check_versions([report(), report(host="node2", python="3.9.1")]))
    assert check == "python" and "3.9.1" in message
    found = problems(_check_versions([report(packages={**report().packages, "watersmeet": "0.0.1", "numpy": None})]))
    assert found == [
        ("packages", "executors on node1 do not have numpy"),
        ("packages", f"node1 has watersmeet 0.0.1, the driver {__version__}"),
    ]


def test_check_clocks_names_hosts_whose_clock_differs() -> None:
    assert problems(_check_clocks([report(offset=1.5)])) == []
    found = problems(_check_clocks([report(), report(host="node2", offset=-60.0), report(host="node2", offset=-59.0)]))
    assert found == [("clocks", "the clock of node2 is 60.0 s behind the driver's")]


def test_check_room_names_full_disks_and_scarce_memory() -> None:
    assert problems(_check_room([report()], 4, native_bytes)) == []
    found = problems(_check_room([report(disk={"/tmp": 10**9}, memory=2 * 10**9)], 4, native_bytes))
    assert found == [
        ("disk", "/tmp on node1 has 1.0 GB left; RocksDB and the shuffle write there"),
        ("memory", "node1 has 2.0 GB left for 4 tasks at once outside the heap"),
    ]


@pytest.mark.spark
def test_diagnose_finds_what_executors_do_not_reach(spark: SparkSession, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as closed:
            silent = f"127.0.0.1:{closed.getsockname()[1]}"
        paths = {"orders": str(tmp_path), "deliveries": str(tmp_path / "nowhere")}
        needs = ClusterNeeds(f"file://{tmp_path}/storage", paths, {"a": reached, "b": silent})
        results = list(diagnose(spark, needs, 2))
    assert [(check, message) for check, message in problems(iter(results)) if check not in ("disk", "memory")] == [
        ("inputs", f"deliveries: {tmp_path}/nowhere does not exist on the driver"),
        ("servers", f"b: no connection to {silent} from {socket.gethostname()} ([Errno 111] Connection refused)"),
    ]
    assert [result.check for result in results if result.status == "ok"].count("storage") == 1
    assert list((tmp_path / "storage").iterdir()) == []


@pytest.mark.spark
def test_diagnose_finds_a_storage_that_executors_do_not_see(spark: SparkSession, tmp_path: Path) -> None:
    """The driver writes to this machine, the executors to a file system that is not known."""
    results = list(diagnose(spark, ClusterNeeds("nowhere://host/shop", {}, {}), 2))
    found = [message for check, message in problems(iter(results)) if check == "storage"]
    assert len(found) == 1 and "nowhere" in found[0]


@pytest.mark.spark
def test_ask_executors_ends_when_no_answer_comes(spark: SparkSession) -> None:
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.05 s"):
        ask_executors(spark, ClusterNeeds("", {}, {}), 2, seconds=0.05)
