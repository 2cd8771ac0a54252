"""Settings of a session that hold for a while."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """These settings for whatever starts meanwhile."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
