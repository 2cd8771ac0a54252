"""A NameNode and a DataNode in one JVM on loopback: ``hdfs`` gives the address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.processes import HADOOP, jars_of, java, start_process, stop_process

PACKAGES = (
    f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
    f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    "org.slf4j:slf4j-reload4j:1.7.36",
    "org.mockito:mockito-core:4.11.0",
    "junit:junit:4.13.2",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
    "org.bouncycastle:bcpkix-jdk18on:1.82",
)
SETTINGS = {
    "dfs.permissions.enabled": "false",
    "dfs.replication": "1",
    "dfs.namenode.rpc-bind-host": "127.0.0.1",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.namenode.http-address": "127.0.0.1:0",
}
_OPENED = ("java.lang", "java.util", "java.net", "java.nio")


def jvm_options(folder: Path) -> list[str]:
    """The options of a JVM with servers of Hadoop, whose files are in that folder."""
    return [
        "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        f"-Dtest.build.data={folder}/build", f"-Dtest.build.dir={folder}/build", f"-Dhdfs.minidfs.basedir={folder}/dfs",
    ]  # fmt: skip


def start_hdfs(folder: Path) -> Iterator[str]:
    """An HDFS with its files in that folder, until the iterator goes on."""
    path = os.pathsep.join(map(str, jars_of(*PACKAGES)))
    ready = folder / "ready"
    command = [
        java(), "-Xmx512m", *jvm_options(folder),
        "-cp", path, "org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1", "-nnport", "0",
        *(part for name, value in SETTINGS.items() for part in ("-D", f"{name}={value}")),
        "-D", f"hdfs.minidfs.basedir={folder}/dfs", "-writeDetails", str(ready),
    ]  # fmt: skip
    process = start_process(command, folder, lambda: ready.is_file() and bool(ready.read_text()))
    try:
        import json

        yield f"hdfs://127.0.0.1:{json.loads(ready.read_text())['namenode_port']}"
    finally:
        stop_process(process)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an HDFS."""
    yield from start_hdfs(tmp_path_factory.mktemp("hdfs"))
