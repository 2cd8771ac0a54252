"""Names that PySpark asks the JVM for: what is kept of the answers, and that it is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j import java_gateway

from watersmeet.spark.private.introspection import cache_jvm_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_names_mean_what_they_meant_and_are_not_requested_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = cast("Any", spark)._jvm
    bridge: Any = java_gateway
    known = cast("dict[str, Any]", vars(jvm))
    kept = {name: found for name, found in known.items() if not name.startswith("_")}
    assert {"PythonUtils", "org.apache.spark.sql.functions", "py4j"} <= kept.keys()
    for name, found in kept.items():
        asked: Any = bridge.JVMView.__getattr__(jvm, name)
        assert (type(asked), asked._fqn) == (type(found), found._fqn), name
    assert jvm.py4j.reflection.TypeUtil._fqn == "py4j.reflection.TypeUtil"
    asked_for: list[str] = []

    def asks(view: Any, name: str) -> Any:
        asked_for.append(name)
        return ask(view, name)

    ask = bridge.JVMView.__getattr__
    monkeypatch.setattr(bridge.JVMView, "__getattr__", asks)
    assert spark.range(3).selectExpr("id + 1 AS n").collect()[2].n == 3
    assert set(asked_for) <= {"org.apache.spark.sql.classic.SparkSession$"}


def test_a_session_without_a_jvm_is_left_alone() -> None:
    cache_jvm_names(object())  # pyright: ignore[reportArgumentType] - as of Spark Connect
