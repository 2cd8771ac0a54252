"""The comparison with other systems at a tiny size, with those of them that are there."""

from __future__ import annotations

import pytest

peers = pytest.importorskip("bench.peers.__main__", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("peer", ["flink", "pathway", "spark", "kafka-streams", "hazelcast"])
def test_results_are_those_of_others(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (reason := peers.missing(peer)) is not None:
        pytest.skip(reason)
    query = "interval" if peer in ("flink", "pathway", "spark") else "topics"
    peers.main(["--queries", query, "--peers", f"watersmeet,{peer}", "--rows", "2000", "--check"])
    assert "rows of 2,000, the same everywhere" in capsys.readouterr().out
