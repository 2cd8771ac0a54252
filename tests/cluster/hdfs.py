"""A NameNode and a DataNode in one JVM on loopback: ``hdfs`` gives the address."""

from __future__ import annotations

import json
import os
import subprocess
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
LOG4J = """
log4j.rootLogger=WARN,main
log4j.appender.main=org.apache.log4j.ConsoleAppender
log4j.appender.main.layout=org.apache.log4j.SimpleLayout
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=INFO,audit
log4j.additivity.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=false
log4j.appender.audit=org.apache.log4j.FileAppender
log4j.appender.audit.File={folder}/requests.log
log4j.appender.audit.layout=org.apache.log4j.PatternLayout
log4j.appender.audit.layout.ConversionPattern=%m%n
"""
"""What the servers log: the NameNode a line for each operation."""
_OPENED = ("java.lang", "java.util", "java.net", "java.nio")


def jvm_options(folder: Path) -> list[str]:
    """The options of a JVM with servers of Hadoop, whose files are in that folder."""
    (folder / "log4j.properties").write_text(LOG4J.format(folder=folder))
    return [
        f"-Dlog4j.configuration=file:{folder}/log4j.properties",
        "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        f"-Dtest.build.data={folder}/build", f"-Dtest.build.dir={folder}/build", f"-Dhdfs.minidfs.basedir={folder}/dfs",
    ]  # fmt: skip


class Hdfs:
    """An HDFS with its files in a folder; it can be killed and started again at the same address."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None
        self._path = os.pathsep.join(map(str, jars_of(*PACKAGES)))

    @property
    def url(self) -> str:
        """Its address."""
        return f"hdfs://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The log of its operations."""
        return self.folder / "requests.log"

    def start(self, *, is_new: bool = True) -> None:
        """Start it, with the files that it had unless it is new."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [
            java(), "-Xmx512m", *jvm_options(self.folder),
            "-cp", self._path, "org.apache.hadoop.test.MiniDFSClusterManager", *(["-format"] if is_new else []),
            "-datanodes", "1", "-nnport", str(self.port),
            *(part for name, value in SETTINGS.items() for part in ("-D", f"{name}={value}")),
            "-D", f"hdfs.minidfs.basedir={self.folder}/dfs", "-writeDetails", str(ready),
        ]  # fmt: skip
        self.process = start_process(command, self.folder, lambda: ready.is_file() and bool(ready.read_text()))
        self.port = json.loads(ready.read_text())["namenode_port"]

    def kill(self) -> None:
        """Kill the NameNode and the DataNode, which are one process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def start_hdfs(folder: Path) -> Iterator[str]:
    """An HDFS with its files in that folder, until the iterator goes on."""
    hdfs = Hdfs(folder)
    hdfs.start()
    try:
        yield hdfs.url
    finally:
        assert hdfs.process is not None
        stop_process(hdfs.process)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an HDFS."""
    yield from start_hdfs(tmp_path_factory.mktemp("hdfs"))
