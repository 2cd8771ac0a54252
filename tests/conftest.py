"""One Spark session for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# Neither a busy machine nor a die is a reason to fail: the examples are the same every time, and WATERSMEET_RANDOM=1
# looks for others.
settings.register_profile("house", deadline=None, derandomize=not os.environ.get("WATERSMEET_RANDOM"))
settings.load_profile("house")

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    # Data is tiny: compiling code for it, in Spark or in the JVM, costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


LONG = (
    "tests/test_faults.py",
    "tests/cli/test_run.py",
    "tests/tools/testing/test_on_spark.py",
    "tests/bench/test_bench.py",
    "tests/spark/compile/test_types.py",
    "tests/spark/connectors/test_file_sinks.py",
    "tests/spark/connectors/test_kafka.py",
    "tests/spark/connectors/test_malformed.py",
    "tests/spark/session/test_workers.py",
    "tests/spark/state/test_rescale.py",
    "tests/spark/connectors/test_ranges.py",
    "tests/spark/connectors/test_file_order.py",
    "tests/spark/connectors/test_sinks.py",
    "tests/spark/connectors/test_restored_checkpoints.py",
    "tests/spark/run/test_rebuild.py",
)
"""Files that take a minute or more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no process is left alone with it at the end."""
    places = {path: place for place, path in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def _with_kafka(conf: dict[str, str]) -> dict[str, str]:
    """Settings with the jars of Kafka's connector; without them where they cannot be had."""
    from watersmeet.errors import WatersmeetError
    from watersmeet.spark.session.java import with_connectors

    with suppress(WatersmeetError):
        return with_connectors(["kafka"], conf, os.environ)
    return conf


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A local session as Watersmeet makes it, with few partitions."""
    from pyspark.sql import SparkSession

    from watersmeet.spark.private.checkpoint_files import keep_checkpoints_here
    from watersmeet.spark.session import session

    assert SparkSession.getActiveSession() is None, "a test has made a session: it would be taken, with its settings"
    log: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    with pytest.MonkeyPatch.context() as patched:
        # To write one takes half a minute of a processor at the end, for which commands that tests launch are enough.
        patched.setenv("WATERSMEET_CLASS_ARCHIVE", "use")
        found = session("local[2]", conf=_with_kafka(QUICK), log=log)
    keep_checkpoints_here(found)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """The browser of the system; Playwright lets a process have one at a time."""
    from tests.tools.studio.page.chromium import start_browser

    with start_browser() as found:
        yield found
