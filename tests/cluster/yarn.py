"""A ResourceManager, two NodeManagers and an HDFS in one JVM on loopback: ``yarn`` gives what clients need.

The JVM is driven through PySpark's Py4J, so nothing has to be compiled. Containers are processes of this machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.cluster.standalone import HOST
from tests.cluster.hdfs import PACKAGES, SETTINGS, jvm_options
from tests.cluster.processes import jars_of

import watersmeet

MEGABYTES = 3000
NODES = 2
YARN_SETTINGS = {
    "yarn.nodemanager.resource.memory-mb": str(MEGABYTES),
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.maximum-allocation-mb": str(MEGABYTES),
    # A container that needs more than it asked for is killed, as on a real node.
    "yarn.nodemanager.pmem-check-enabled": "true",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
    "yarn.log-aggregation-enable": "false",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    # The one of the minicluster is a class of the tests, which clients do not have.
    "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.ScriptBasedMapping",
}


@dataclass(frozen=True)
class Yarn:
    """A cluster: the address of its HDFS, the folder of its settings, and where its containers write."""

    hdfs: str
    conf: Path
    logs: Path

    def environ(self, python: str) -> dict[str, str]:
        """The environment of a client, whose workers run that Python."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        return environ | {"HADOOP_CONF_DIR": str(self.conf), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": HOST}

    def last_lines(self) -> str:
        """The end of what each container wrote."""
        files = sorted(file for name in ("stderr", "stdout") for file in self.logs.rglob(f"*/container*/{name}"))
        return "\n".join(f"--- {file}\n{file.read_text('utf-8', 'replace')[-2500:]}" for file in files[-6:])


def start_yarn(folder: Path) -> Iterator[Yarn]:
    """A cluster with its files in that folder, until the iterator goes on."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    from watersmeet.spark.session.java import prepare_java

    jars = jars_of(*PACKAGES)
    [py4j] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    prepare_java(os.environ)
    with (folder / "out.log").open("w") as log:
        launched: Any = launch_gateway(
            jarpath=str(py4j), classpath=os.pathsep.join(map(str, jars)), javaopts=["-Xmx768m", *jvm_options(folder)],
            die_on_exit=True, redirect_stdout=log, redirect_stderr=log, return_proc=True,
        )  # fmt: skip
        port, process = launched
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_field=True))
        try:
            yield _start_services(gateway.jvm, folder)
        finally:
            gateway.close()
            # It ends with its standard input.
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_services(jvm: Any, folder: Path) -> Yarn:
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in {**SETTINGS, "hdfs.minidfs.basedir": str(folder / "dfs")}.items():
        configuration.set(name, value)
    builder = getattr(jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")
    hdfs = builder(configuration).numDataNodes(1).format(True).build()
    hdfs.waitActive()
    address = f"hdfs://127.0.0.1:{hdfs.getNameNodePort()}"
    wanted = jvm.org.apache.hadoop.conf.Configuration(configuration)
    for name, value in {**YARN_SETTINGS, "fs.defaultFS": address}.items():
        wanted.set(name, value)
    cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", NODES, 1, 1)
    cluster.init(wanted)
    cluster.start()
    assert cluster.waitForNodeManagersToConnect(60_000)
    conf = folder / "conf"
    conf.mkdir()
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        stream = jvm.java.io.FileOutputStream(str(conf / name))
        cluster.getConfig().writeXml(stream)
        stream.close()
    return Yarn(address, conf, folder)


def pack_environment(folder: Path) -> Path:
    """An archive of an environment that can be moved, with the package and what it needs, and without PySpark.

    On YARN, Spark itself brings its Python files. The interpreter is that of this machine.
    """
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("did not run, because `uv` is not installed: `make install` brings it")
    environment = folder / "environment"
    pinned = [
        f"{name}=={importlib.metadata.version(name)}" for name in sorted(_requirements_of("watersmeet", {"spark"}))
    ]
    for command in (
        [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, environment],
        [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", "--no-deps", *pinned],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"did not run, because packages cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    [packages] = environment.glob("lib/python*/site-packages")
    source = Path(watersmeet.__path__[0])
    shutil.copytree(source, packages / "watersmeet", ignore=shutil.ignore_patterns("__pycache__"))
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(environment, arcname=".")
    return archive


def _requirements_of(package: str, extras: set[str]) -> set[str]:
    """The distributions that a package needs here, without PySpark."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    for line in importlib.metadata.requires(package) or ():
        requirement = Requirement(line)
        marker, name = requirement.marker, re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in ("pyspark", "watersmeet"):
            continue
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            found |= {name} | _requirements_of(name, set(requirement.extras))
    return found


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A cluster."""
    yield from start_yarn(tmp_path_factory.mktemp("yarn"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with the environment of driver and executors."""
    return pack_environment(tmp_path_factory.mktemp("packed"))
