"""How many requests a batch makes to a remote storage. `tests.cluster.request_counts` prints them by part and kind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster import hdfs, s3
from tests.cluster.exercise import LOCAL_CLUSTER
from tests.cluster.processes import LONG, jars_of
from tests.cluster.request_counts import count_requests, parse_request, part_of

ROOT = Path(__file__).parents[2]
LOG = """\
PUT 200 /shop/storage/checkpoints/joined/commits/6
GET 200 /shop?list-type=2&prefix=storage%2Fcheckpoints%2Fjoined%2Fsources%2F0%2F
HEAD 404 /shop/joined/_spark_metadata/7
a line of another kind
PUT 200 /shop/storage/checkpoints/joined/commits/7
HEAD 200 /shop/orders/000.json
"""


def test_requests_are_read_from_both_logs() -> None:
    audit = "allowed=true\tugi=me (auth:SIMPLE)\tip=/127.0.0.1\tcmd=rename (options=[NONE])\tsrc=/a/offsets/7\tdst=/b\t"
    assert parse_request(audit) == ("rename (options=[NONE])", "/a/offsets/7")
    assert parse_request("GET 206 /shop/a%20b") == ("GET", "/shop/a b")
    assert parse_request("POST 200 /shop?delete") == ("POST delete", "/shop")
    assert parse_request("Starting") is None


def test_requests_belong_to_parts() -> None:
    names = ["checkpoints/q/state/0/1/2.changelog", "joined/_spark_metadata/3", "joined/part-1.json", "log/1"]
    assert [part_of(f"/storage/{name}") for name in names] == ["state", "sink log", "sink", "other"]


def test_requests_of_a_batch_end_with_its_commit() -> None:
    counts = count_requests(iter(LOG.splitlines(keepends=True)), 7, 7)
    assert counts == {("commits", "PUT"): 1, ("source logs", "GET list"): 1, ("sink log", "HEAD 404"): 1}
    with pytest.raises(AssertionError, match="batch 8"):
        count_requests(iter(LOG.splitlines(keepends=True)), 7, 8)


@LONG
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "master", "most"),
    [("S3", "local[2]", 32), ("HDFS", "local[2]", 32), ("S3", LOCAL_CLUSTER, 54), ("HDFS", LOCAL_CLUSTER, 36)],
)
def test_a_batch_makes_few_requests(kind: str, master: str, most: int) -> None:
    jars_of(*(s3 if kind == "S3" else hdfs).PACKAGES)
    command = [sys.executable, "-m", "tests.cluster.request_counts", kind, master]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    requests = re.search(r"^([\d.]+) requests in a batch", done.stdout, re.MULTILINE)
    assert requests is not None, done.stdout
    assert float(requests[1]) <= most, done.stdout
