"""What is not public API of PySpark stands in one room, each use with its reason, versions and fallback."""

from __future__ import annotations

from watersmeet.spark.private import SEEN, unknown


def test_a_spark_that_lacks_something_is_named() -> None:
    (found,) = unknown("Arrow schemas of its own", "no rows can be handed to workers").refusals
    assert found.condition == "UNKNOWN_SPARK"
    assert found.hint == f"use Spark {SEEN}."
    assert "has no Arrow schemas of its own" in found.message
