"""An S3 server on loopback, in memory: ``s3`` gives the address of a bucket and the settings of a session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.processes import hadoop_of_spark, jars_of, start_process, stop_process

PACKAGES = (f"org.apache.hadoop:hadoop-aws:{hadoop_of_spark()}",)
MOTO = "moto[s3,server]==5.2.5"


@dataclass(frozen=True)
class Bucket:
    """A bucket: its address, what a session needs to reach it, and the log of its requests."""

    url: str
    endpoint: str
    jars: tuple[Path, ...]
    log: Path

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a session that reaches it."""
        s3a = "spark.hadoop.fs.s3a"
        return {
            f"{s3a}.endpoint": self.endpoint,
            f"{s3a}.endpoint.region": "us-east-1",
            f"{s3a}.path.style.access": "true",
            f"{s3a}.multipart.size": "5M",
            f"{s3a}.connection.ssl.enabled": "false",
            f"{s3a}.access.key": "test",
            f"{s3a}.secret.key": "test-secret",
            f"{s3a}.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "spark.jars": ",".join(map(str, self.jars)),
        }


def server_python() -> Path:
    """The interpreter of an environment with the server, which is made once; the test is skipped where it cannot be."""
    from watersmeet.spark.folders import cache_folder

    folder = cache_folder(os.environ) / f"{MOTO.translate(str.maketrans('[,]=', '----'))}-{sys.version_info[1]}"
    python = folder / "bin" / "python"
    if not (folder / "installed").is_file():
        uv = Path(sys.executable).with_name("uv")
        commands: list[list[str | Path]] = [
            [sys.executable, "-m", "venv", *([] if not uv.exists() else ["--without-pip"]), folder]
        ]
        install: list[str | Path] = (
            [uv, "pip", "install", "--python", python] if uv.exists() else [python, "-m", "pip", "install"]
        )
        commands.append([*install, "--quiet", MOTO])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"{MOTO} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "installed").touch()
    return python


def start_s3(folder: Path) -> Iterator[Bucket]:
    """An S3 server with a bucket, until the iterator goes on."""
    jars = tuple(jars_of(*PACKAGES))
    python = server_python()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    server, log = Path(__file__).with_name("s3_server.py"), folder / "requests.log"
    process = start_process([python, server, str(port), log], folder, lambda: _answers(port))
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/shop", method="PUT")):
            yield Bucket("s3a://shop", endpoint, jars, log)
    finally:
        stop_process(process)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """A bucket."""
    yield from start_s3(tmp_path_factory.mktemp("s3"))
