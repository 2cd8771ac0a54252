"""A NameNode that is away for a while: the run waits for it and goes on by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.exercise import QUICK
from tests.cluster.hdfs import Hdfs
from tests.cluster.processes import LONG, SECONDS, stop_process

pytestmark = [pytest.mark.spark, LONG, pytest.mark.timeout(600)]
WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))
SCRIPT = """
CREATE STREAM orders (id BIGINT, at BIGINT, WATERMARK FOR at AS at) USING json OPTIONS (path 'orders');
CREATE STREAM deliveries (id BIGINT, at BIGINT, WATERMARK FOR at AS at) USING json OPTIONS (path 'deliveries');
CREATE SINK joined USING json OPTIONS (path 'joined');
INSERT INTO joined SELECT STREAM o.id FROM orders o JOIN deliveries d
  ON o.id = d.id AND d.at BETWEEN o.at AND o.at + 10;
"""
AWAY_SECONDS = 15
"""Less than a lease lasts, and more than Hadoop's client tries again by itself."""


def test_a_run_waits_for_its_namenode(tmp_path: Path) -> None:
    (tmp_path / "hdfs").mkdir()
    server = Hdfs(tmp_path / "hdfs")
    server.start()
    shop = tmp_path / "shop"
    for folder in ("orders", "deliveries", "sql"):
        (shop / folder).mkdir(parents=True)
    (shop / "sql" / "joined.sql").write_text(SCRIPT)
    # A client that gives up soon, so that the query fails while the server is away.
    conf = {**QUICK, "spark.hadoop.ipc.client.connect.max.retries": "2"}
    lines = [f"  {name}: {json.dumps(value)}" for name, value in conf.items()]
    text = f"name: shop\nstorage: {server.url}/shop\nlibraries:\n- glob:\n    include: sql/**\nconfiguration:\n"
    (shop / "watersmeet.yml").write_text(text + "\n".join(lines) + "\n")
    log = tmp_path / "log"
    with log.open("wb") as printed:
        run = subprocess.Popen([WATERSMEET, "run", shop], stdout=printed, stderr=printed, stdin=subprocess.DEVNULL)
    try:
        write(shop, 1)
        wait_for_ids(shop, [1], log)
        server.kill()
        write(shop, 2)
        time.sleep(AWAY_SECONDS)
        server.start(is_new=False)
        wait_for_ids(shop, [1, 2], log)
        assert "Trying again in 5 s" in log.read_text(), log.read_text()
        assert run.poll() is None
    finally:
        stop_process(run)
        assert server.process is not None
        stop_process(server.process)


def write(shop: Path, id_: int) -> None:
    """A row for each side."""
    for folder in ("orders", "deliveries"):
        hidden = shop / f"{folder}-{id_}"
        hidden.write_text(json.dumps({"id": id_, "at": id_}) + "\n")
        hidden.rename(shop / folder / f"{id_}.json")


def wait_for_ids(shop: Path, ids: list[int], log: Path) -> None:
    """Wait until these rows have been delivered."""
    until = time.monotonic() + SECONDS
    while True:
        files = (shop / "joined").glob("*.json")
        delivered = sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())
        if delivered == ids:
            return
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.5)
