"""The benchmark of latency at a tiny size."""

from __future__ import annotations

import pytest

from watersmeet.cli.servers import broker

latency = pytest.importorskip("bench.latency", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.parametrize("contender", ["watersmeet", "spark-memory", "flink", "kafka-streams", "hazelcast"])
def test_every_pair_is_measured_once(contender: str) -> None:
    if (reason := latency.missing(contender)) is not None:
        pytest.skip(reason)
    with broker() as kafka:
        found = latency.measured(kafka.address, contender, rate=100, seconds=3)
    # A third of 150 pairs is warm-up.
    assert found["pairs"] == 100 and 0 < found["median"] <= found["p99"] <= found["longest"] < 60
