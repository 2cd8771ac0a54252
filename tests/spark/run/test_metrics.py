"""The metrics of a running query, read over HTTP while it runs and after it failed."""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from watersmeet import operators as families
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.metrics.prometheus import MetricsRegistry, serve_metrics
from watersmeet.operators.core.operator import StreamOperator
from watersmeet.queries import read_script
from watersmeet.spark.run.watching import Listeners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
SET watersmeet.state.max_rows = 20;
CREATE STREAM a (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 2) USING json OPTIONS (path '{folder}/a');
CREATE STREAM b (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 2) USING json OPTIONS (path '{folder}/b');
CREATE SINK joined USING json OPTIONS (path '{folder}/joined');
INSERT INTO joined SELECT STREAM a.id, b.t FROM a LEFT JOIN b WITHIN 5 ON a.id = b.id;
"""
OPERATOR = '{query="joined",operator="a and b",kind="interval"}'


def arrive(folder: Path, stream: str, name: str, *rows: tuple[int, int]) -> None:
    (folder / stream).mkdir(exist_ok=True)
    hidden = folder / stream / f".{name}"
    hidden.write_text("".join(json.dumps({"id": id, "t": t}) + "\n" for id, t in rows))
    hidden.rename(folder / stream / f"{name}.json")


def values(address: str) -> dict[str, float]:
    with urlopen(f"{address}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


class ScriptRun:
    """A script that runs in a thread, with its metrics; when it is left, it is stopped."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.metrics = MetricsRegistry()
        self.seen: list[Progress] = []
        self.failures: list[WatersmeetError] = []
        self.stop = Event()
        self.thread = Thread(target=self.run)

    def run(self) -> None:
        from watersmeet.spark.run.running import run_script

        with suppress(KeyboardInterrupt):
            try:
                run_script(
                    read_script(SCRIPT.format(folder=self.folder)),
                    spark=self.spark,
                    storage=self.folder / "storage",
                    trigger="continuous",
                    listeners=Listeners(
                        on_progress=self.take,
                        on_failure=lambda query, why, again: self.metrics.fail(query),
                        is_interrupted=self.stop.is_set,
                    ),
                )
            except WatersmeetError as error:
                self.failures.append(error)

    def take(self, progress: Progress) -> None:
        self.seen.append(progress)
        self.metrics.take(progress)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something, but not for ever, nor for a run that has ended."""
        patience = time.monotonic() + 120
        while not condition() and self.thread.is_alive() and time.monotonic() < patience:
            time.sleep(0.1)

    def __enter__(self) -> ScriptRun:
        self.thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop.set()
        self.thread.join(60)


@pytest.mark.spark
def test_a_running_query_is_scraped_and_a_failed_one_is_not_healthy(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, "a", "1", (1, 10), (2, 10), (3, 12))
    arrive(tmp_path, "b", "1", (1, 11), (1, 12), (2, 12))
    running = ScriptRun(spark, tmp_path)
    with serve_metrics(running.metrics, 0) as address, running:
        running.until(lambda: bool(values(address)))
        found = values(address)
        assert found[f"watersmeet_operator_health{OPERATOR}"] == 1, running.failures
        assert found[f"watersmeet_operator_events_total{OPERATOR}"] == 3
        assert found[f"watersmeet_operator_events_processed_total{OPERATOR}"] == 6
        assert found[f"watersmeet_operator_state_rows{OPERATOR}"] == 6
        assert found[f"watersmeet_operator_shards{OPERATOR}"] == 2
        assert 0 < found[f"watersmeet_operator_busy{OPERATOR}"] <= 1
        assert 0 <= found[f"watersmeet_operator_backpressure{OPERATOR}"] <= 1
        # A row of `a` may still come out while `b` is at 10: the bound is 5.
        assert found['watersmeet_watermark{query="joined",column="a.t"}'] == 5
        (batch,) = running.seen
        assert 0 < batch.operators["a and b"].seconds <= 2 * batch.seconds

        # More rows than may be kept: the query fails, and the endpoint says so.
        arrive(tmp_path, "a", "2", *((id, 13) for id in range(50)))
        running.until(lambda: running.metrics.status == "failed")
        assert values(address)[f"watersmeet_operator_health{OPERATOR}"] == 0
        with pytest.raises(HTTPError) as answer:
            urlopen(f"{address}/health")
        assert answer.value.code == 503
    assert "max_rows" in str(running.failures[0])


def test_every_operator_has_a_name_in_the_metrics() -> None:
    modules = [
        importlib.import_module(one.name) for one in pkgutil.walk_packages(families.__path__, "watersmeet.operators.")
    ]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    asked = ("result_columns", "identity", "for_shards", "step")
    operators = {one for one in classes if all(hasattr(one, name) for name in asked) and one is not StreamOperator}
    # What others are built upon does not run itself.
    operators = {one for one in operators if not any(one in other.__bases__ for other in operators)}
    # The two operators of OVER, of streams and of tables, have one name: they are one family.
    assert len(operators) == 13
    assert len({operator.name for operator in operators}) == 12
