"""The benchmark of latency at a tiny size."""

from __future__ import annotations

import pytest

latency = pytest.importorskip("bench.latency", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.parametrize("contender", ["watersmeet", "spark-memory"])
def test_every_pair_is_measured_once(contender: str) -> None:
    found = latency.measured(contender, rate=100, seconds=3)
    # A third of 150 pairs is warm-up.
    assert found["pairs"] == 100 and 0 < found["median"] <= found["p99"] <= found["longest"] < 60
