"""The same join through Spark Connect: this process has no JVM, the server has the package on its PYTHONPATH."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.cluster.__main__ import make_project, rows
from examples.cluster.job import join_streams
from examples.cluster.standalone import DRIVER, HOST, free_ports, package_zip, spark_class, spark_environment, stop
from pyspark.sql import SparkSession
from tests.conftest import QUICK
from tests.matrix.test_cluster import hide_package

from watersmeet.spark.private import spark_version

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

IS_OLD = spark_version().startswith("4.0.")
joins = pytest.mark.skipif(IS_OLD, reason="Spark 4.0 runs no operators in Python through Connect")

ROOT = Path(__file__).parents[2]
WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))

PROGRAM = """
import sys
from pathlib import Path
from examples.cluster.job import imported_from, join_streams
from watersmeet.spark.session import session

remote, project = sys.argv[1:]
spark = session(remote=remote)
print(type(spark).__module__, *imported_from(spark))
join_streams(spark, Path(project) / "data", Path(project) / "there")
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on this machine whose workers have the package from an archive."""
    folder = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    conf = QUICK | DRIVER
    conf |= {"spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": str(port)}
    conf["spark.driver.extraJavaOptions"] += " -Xss4m"
    command = [spark_class(), "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    path = os.pathsep.join(map(str, (hide_package(folder), package_zip(folder / "watersmeet.zip"))))
    environ = spark_environment(folder) | {"PYTHONPATH": path, "SPARK_DAEMON_MEMORY": "1g"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"], stdout=log, stderr=log, env=environ, cwd=folder, start_new_session=True
        )
    try:
        wait_until_listening(port, process, folder / "server.log")
        yield f"sc://{HOST}:{port}"
    finally:
        stop([process])


def wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(log.read_text()[-2000:])


def command(server: str, script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["run", str(script), "--remote", server, "--format", "json", *options]
    return subprocess.run([WATERSMEET, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200)


@joins
def test_the_python_call_gives_the_same_rows(spark: SparkSession, server: str, tmp_path: Path) -> None:
    make_project(tmp_path, orders=400)
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, server, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert said.returncode == 0, said.stderr[-3000:]
    kind, *files = said.stdout.split()
    assert kind == "pyspark.sql.connect.session"
    assert files and all(file.endswith("watersmeet.zip/watersmeet/__init__.py") for file in files)
    join_streams(spark, tmp_path / "data", tmp_path / "here")
    found = rows(tmp_path / "there")
    assert found == rows(tmp_path / "here") and found.total() > 390


@joins
def test_a_script_runs_and_continues(server: str, tmp_path: Path) -> None:
    script = make_project(tmp_path / "shop", orders=400)
    script.write_text(script.read_text().replace("path '", f"path '{script.parent}/"))
    said = command(server, script, "--once")
    assert said.returncode == 0, said.stdout + said.stderr
    first = [json.loads(line) for line in said.stdout.splitlines()]
    said = command(server, script, "--end")
    assert said.returncode == 0, said.stdout + said.stderr
    told = first + [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["batch"] for line in told] == list(range(len(told)))
    found = rows(script.parent / "joined")
    assert found.total() == sum(line["rows_out"] for line in told) == 400
    assert told[-1]["state_rows"] == 0


@joins
def test_refusals_of_the_server_have_their_place(server: str, tmp_path: Path) -> None:
    script = make_project(tmp_path / "shop", orders=400)
    text = script.read_text().replace("path 'data", f"path '{script.parent}/data")
    script.write_text(text.replace("deliveries'", "nowhere'"))
    said = command(server, script, "--once")
    refusals = json.loads(said.stdout)["refusals"]
    assert [refusal["condition"] for refusal in refusals] == ["PATH_NOT_FOUND"]
    line = 1 + text.splitlines().index("CREATE STREAM deliveries (")
    assert "nowhere" in refusals[0]["message"] and refusals[0]["place"]["line"] == line
    script.write_text(text.replace("joined USING parquet", "joined USING pigeon"))
    said = command(server, script, "--once")
    refusals = json.loads(said.stdout)["refusals"]
    assert [refusal["condition"] for refusal in refusals] == ["UNKNOWN_FORMAT"]


@joins
def test_a_history_and_then_its_stream_are_read(server: str, tmp_path: Path) -> None:
    for folder, numbers in (("history", range(6)), ("live", range(2, 9))):
        (tmp_path / folder).mkdir()
        text = "".join(json.dumps({"id": n, "t": n}) + "\n" for n in numbers)
        (tmp_path / folder / "0.json").write_text(text)
    script = tmp_path / "s.sql"
    script.write_text(f"""
        CREATE STREAM s (id BIGINT, t BIGINT, WATERMARK FOR t AS t) USING json OPTIONS (path '{tmp_path}/live')
        AFTER json OPTIONS (path '{tmp_path}/history', until '4');
        CREATE SINK out USING json OPTIONS (path '{tmp_path}/out');
        INSERT INTO out SELECT STREAM a.id FROM s a JOIN s b ON a.id = b.id AND a.t = b.t;
    """)
    for trigger in ("--once", "--end"):
        said = command(server, script, trigger)
        assert said.returncode == 0, said.stdout + said.stderr
    files = (tmp_path / "out").glob("*.json")
    assert sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines()) == [*range(9)]


@pytest.mark.skipif(not IS_OLD, reason="joins run through Connect")
def test_a_join_that_cannot_run_there_is_refused(server: str, tmp_path: Path) -> None:
    script = make_project(tmp_path / "shop", orders=400)
    script.write_text(script.read_text().replace("path '", f"path '{script.parent}/"))
    said = command(server, script, "--once")
    refusals = json.loads(said.stdout)["refusals"]
    assert [refusal["condition"] for refusal in refusals] == ["UNKNOWN_SPARK"]
    assert refusals[0]["hint"] == "use Spark 4.1 to 4.3."
