"""Kinds, keys, columns and joins change, and states are made again from the past of their sources: a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.run.test_rebuild import states_are_made_anew_and_go_on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_states_are_made_anew_and_go_on(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states_are_made_anew_and_go_on(spark, tmp_path, monkeypatch)
